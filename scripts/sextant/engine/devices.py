"""Which of the machine's devices a job may use, and how replicas share them."""

import contextlib
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

import pynvml

from sextant.base.errors import InputError
from sextant.facts.gpu import MIG_PREFIX, Devices
from sextant.points.verdict import MemoryFacts

Device = TypeVar("Device", int, int | str)
_UUID_PREFIXES = ("GPU-", MIG_PREFIX)


def pick_devices(
    devices: Devices,
    replicas: int = 1,
    placement: str = "own",
    environ: Mapping[str, str] = os.environ,
) -> list[tuple[int | str, ...]]:
    """Return the devices of each replica: the first ones that this job may use.

    GPUs are indices or UUIDs, as `CUDA_VISIBLE_DEVICES` has them; on a CPU they are cores. Where
    SLURM has given a job devices for a profile of kind `cpu`, core n belongs to device n, so that
    jobs side by side on a node share none. With the placement `own` each replica has devices of its
    own, with `shared` all have the same.

    Raises InputError: the job has fewer devices than the replicas need, SLURM has given it none, or
    a replica would need several MIG instances, of which a process can use only one.
    """
    n_needed = devices.n_gpus * (replicas if placement == "own" else 1)
    picked = _first(_available(devices.kind, n_needed, environ), n_needed, devices.kind)
    if devices.n_gpus > 1 and any(str(device).startswith(MIG_PREFIX) for device in picked):
        problem = f"a server of {devices.n_gpus} GPUs cannot use MIG instances"
        raise InputError(
            problem, field="CUDA_VISIBLE_DEVICES", fix="use whole GPUs, or a profile of one GPU"
        )
    return _shares(picked, devices.n_gpus, replicas, placement)


def pick_cores(n_cores: int, replicas: int = 1, placement: str = "own") -> list[tuple[int, ...]]:
    """Return the cores of each replica beside its devices; InputError: the job has too few."""
    n_needed = n_cores * (replicas if placement == "own" else 1)
    picked = _first(sorted(os.sched_getaffinity(0)), n_needed, "cpu")
    return _shares(picked, n_cores, replicas, placement)


def _first(available: Sequence[Device], n_needed: int, kind: str) -> Sequence[Device]:
    if len(available) < n_needed:
        fix = "run on a machine that has them, or remove the profile from benchmarks.tsv"
        raise InputError(f"{n_needed} devices ({kind}) needed, {len(available)} here", fix=fix)
    return available[:n_needed]


def _shares(
    picked: Sequence[Device], n_each: int, replicas: int, placement: str
) -> list[tuple[Device, ...]]:
    starts = [n * n_each if placement == "own" else 0 for n in range(replicas)]
    return [tuple(picked[start : start + n_each]) for start in starts]


def _available(kind: str, n_needed: int, environ: Mapping[str, str]) -> Sequence[int | str]:
    if kind == "cpu":
        return _cores(environ)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:  # CUDA sees those before the first entry that is none, e.g. -1
        entries = map(str.strip, visible.split(","))
        seen = takewhile(lambda it: it.isdigit() or it.startswith(_UUID_PREFIXES), entries)
        return list(dict.fromkeys(int(entry) if entry.isdigit() else entry for entry in seen))
    if "SLURM_JOB_ID" in environ:
        # All GPUs of the node would be visible: those of other jobs, too.
        problem = f"SLURM job {environ['SLURM_JOB_ID']} was given no GPU"
        fix = (
            "submit with workflow/profiles/slurm, which asks for the devices of each GPU profile "
            "(`gpu_model` in gpu_profiles.tsv), or with --gres=gpu:N"
        )
        raise InputError(problem, field="CUDA_VISIBLE_DEVICES", fix=fix)
    try:
        pynvml.nvmlInit()
        return list(range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError:  # the server will find out
        return list(range(n_needed))


def _cores(environ: Mapping[str, str]) -> list[int | str]:
    """Return the cores of the job; of a job with devices by SLURM, those of its devices."""
    cores = sorted(os.sched_getaffinity(0))
    # The step's devices are the job's; a scheduler may have cleared the job's variable.
    granted = environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS")
    if not granted:
        return list(cores)
    return [cores[int(index)] for index in granted.split(",") if int(index) < len(cores)]


def nvml_handle(device: int | str) -> object:
    """Return NVML's handle of a GPU by index or UUID, once NVML is there; raises `NVMLError`."""
    if isinstance(device, int):
        return pynvml.nvmlDeviceGetHandleByIndex(device)
    return pynvml.nvmlDeviceGetHandleByUUID(device)


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
        used = []
        for each in _below(pid):
            with contextlib.suppress(OSError):
                said = re.search(
                    r"^VmData:\s*(\d+)", Path(f"/proc/{each}/status").read_text(), re.MULTILINE
                )
                used += [int(said[1]) * 1024] if said else []
        return limit_bytes - max(used) if used else None

    return read


def gpus(devices: Sequence[int | str]) -> Callable[[], int | None]:
    """Return a reader of the memory left on the fullest of these GPUs (indices or UUIDs).

    Without NVML, or where it does not report memory, it is unknown.
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
        if said := re.search(r"^oom_kill (\d+)", _VMSTAT.read_text(), re.MULTILINE):
            return int(said[1])
    return None


def _below(pid: int) -> list[int]:
    """Return the processes below `pid`, by the kernel's own lists, which cost little to read."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *_below(int(child))]
    return found
