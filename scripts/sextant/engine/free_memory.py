"""How much memory a server leaves: of its GPUs, or of the limit of its processes."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pynvml

from sextant.engine.devices import nvml_handle
from sextant.points.cells.tuning import MemoryFacts

_PERIOD_S = 0.02
_VMSTAT = Path("/proc/vmstat")


def worst(facts: Sequence[MemoryFacts]) -> MemoryFacts:
    """Return the facts of the server with the least memory, of servers that run together."""

    def known(name: str) -> list[int]:
        return [getattr(each, name) for each in facts if getattr(each, name) is not None]

    return MemoryFacts(
        idle_free_bytes=min(known("idle_free_bytes"), default=None),
        free_bytes=min(known("free_bytes"), default=None),
        lacking_bytes=max(known("lacking_bytes"), default=None),
        profiled_tokens=min(known("profiled_tokens"), default=None),
    )


class FreeMemory(threading.Thread):
    """Looks every 20 ms how much memory is left, until it is stopped."""

    def __init__(self, read: Callable[[], int | None]) -> None:
        super().__init__(daemon=True)
        self._read, self._stopped = read, threading.Event()
        self.least_bytes: int | None = None

    def run(self) -> None:
        """Look (called by `start`)."""
        while not self._stopped.wait(_PERIOD_S):
            self.look()

    def look(self) -> int | None:
        """Return what is left at this moment, in bytes; None if that is unknown."""
        now_bytes = self._read()
        known = [n for n in (now_bytes, self.least_bytes) if n is not None]
        self.least_bytes = min(known, default=None)
        return now_bytes

    def stop(self) -> None:
        """Stop looking; what was seen stays. Without effect the second time."""
        self._stopped.set()
        if self.is_alive():
            self.join()


def limited_processes(pid: int, limit_bytes: int) -> Callable[[], int | None]:
    """Return a reader of what the process with the most data, below `pid`, leaves of a limit.

    `VmData` of /proc (proc_pid_status(5)) is what RLIMIT_DATA (getrlimit(2)) counts: private
    writable memory, whether it was touched or not.
    """

    def read() -> int | None:
        used = [bytes_ for each in _below(pid) if (bytes_ := _data_bytes(each)) is not None]
        return limit_bytes - max(used) if used else None

    return read


def gpus(devices: Sequence[int | str]) -> Callable[[], int | None]:
    """Return a reader of the memory left on the fullest of these GPUs (indices or UUIDs).

    Without NVML, or where it does not tell, it is unknown.
    """
    handles: list = []
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        handles += map(nvml_handle, devices)

    def read() -> int | None:
        try:
            free = [pynvml.nvmlDeviceGetMemoryInfo(handle).free for handle in handles]
        except pynvml.NVMLError:
            return None
        return min(free) if len(free) == len(devices) else None

    return read


def n_oom_kills() -> int | None:
    """Return how many processes the kernel of this node has killed for want of memory.

    The counter `oom_kill` of /proc/vmstat (Linux 4.13 and later) counts those of memory cgroups,
    such as a job's, as well. None where there is none.
    """
    with contextlib.suppress(OSError):
        for line in _VMSTAT.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def _below(pid: int) -> list[int]:
    """Return the processes below `pid`, by the kernel's own lists, which cost little to read."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *_below(int(child))]
    return found


def _data_bytes(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return None
