"""The operating system's accounting of a server's processes."""

import contextlib
import time
from collections.abc import Callable, Sequence

import psutil

from sextant.engine.telemetry.series import SeriesEndedError
from sextant.facts.gpu import GIB

# The system accounts CPU time in steps of 10 ms: over less time a quotient would be noise.
_SHORTEST_INTERVAL_S = 0.1


def cpu_reader(pids: Sequence[int], n_cores: int) -> Callable[[], dict]:
    """Return a reader of the CPU time and memory that processes and all below them use.

    `utilization` is the fraction of `n_cores` in use since the last reading that had one, null in
    the first and where that is less than 0.1 s ago; `memory_used_gib` is the sum of resident sets.
    The reader raises SeriesEndedError when none of the processes is left.
    """
    known_s: dict[tuple[int, float], float] | None = None
    known_at_s = 0.0

    def read() -> dict:
        nonlocal known_s, known_at_s
        now_s = time.monotonic()
        used_s, memory = _usage(pids)
        if not used_s:
            raise SeriesEndedError("the server's processes have ended")
        row = {"device": "cpu", "memory_used_gib": memory / GIB}
        if known_s is not None:
            elapsed_s = now_s - known_at_s
            if elapsed_s < _SHORTEST_INTERVAL_S:
                return row
            # What started since the last reading has used all its time since then.
            busy_s = sum(seconds - known_s.get(key, 0.0) for key, seconds in used_s.items())
            row["utilization"] = busy_s / elapsed_s / n_cores
        known_s, known_at_s = used_s, now_s
        return row

    return read


def _usage(pids: Sequence[int]) -> tuple[dict[tuple[int, float], float], int]:
    """Return the CPU seconds of each process, by pid and start, and their memory in bytes."""
    used_s, memory = {}, 0
    for process in _families(pids):
        with contextlib.suppress(psutil.Error), process.oneshot():
            times = process.cpu_times()
            memory += process.memory_info().rss
            used_s[process.pid, process.create_time()] = times.user + times.system
    return used_s, memory


def _families(pids: Sequence[int]) -> list[psutil.Process]:
    processes = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            parent = psutil.Process(pid)
            processes += [parent, *parent.children(recursive=True)]
    return processes
