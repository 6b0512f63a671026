"""The operating system's accounting of a server's processes."""

import contextlib
import time
from collections.abc import Callable, Sequence

import psutil

from sextant.gpu import GIB
from sextant.telemetry.series import SeriesEndedError


def cpu_reader(pids: Sequence[int], n_cores: int) -> Callable[[], dict]:
    """Return a reader of the CPU time and memory that processes and all below them use.

    `utilization` is the fraction of `n_cores` in use since the last reading, null in the
    first one; `memory_used_gib` is the sum of resident sets, shared pages once per process.
    The reader raises SeriesEndedError when none of the processes is left.
    """
    known_s: dict[tuple[int, float], float] = {}
    read_at_s: float | None = None

    def read() -> dict:
        nonlocal known_s, read_at_s
        now_s, before_s = time.monotonic(), read_at_s
        used_s, memory = _usage(pids)
        if not used_s:
            raise SeriesEndedError("the server's processes have ended")
        # What started since the last reading has used all its time since then.
        busy_s = sum(seconds - known_s.get(key, 0.0) for key, seconds in used_s.items())
        known_s, read_at_s = used_s, now_s
        row = {"device": "cpu", "memory_used_gib": memory / GIB}
        if before_s is not None and now_s > before_s:
            row["utilization"] = busy_s / (now_s - before_s) / n_cores
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
