"""Stops a job when its Snakemake has exited, also by SIGKILL.

A Snakemake that was killed cannot stop its jobs, and the kernel's signal (PR_SET_PDEATHSIG) does
not reach them through the shells in between. So each Snakemake gives its jobs its process id, and
they look whether it still runs.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)
_PERIOD_S = 1.0
# For servers to stop and files to be removed, before the job is killed.
_GRACE_S = 20.0
_SNAKEMAKE = "SEXTANT_SNAKEMAKE"
"""Environment variable: process id, start time and namespace of a job's Snakemake."""


def name_to_jobs() -> None:
    """Tell the jobs of this process, a Snakemake, its process id (`end_with_snakemake`)."""
    if started := _started(os.getpid()):
        os.environ[_SNAKEMAKE] = f"{os.getpid()} {started} {_namespace()}"


def end_with_snakemake() -> None:
    """Stop this process by SIGTERM, later SIGKILL, once the Snakemake that started it has exited.

    On a cluster that is the Snakemake inside the job; the job outlives the one that submitted it.
    A process without a Snakemake is not watched, nor is one in a container that hides the
    processes outside.
    """
    if named := os.environ.get(_SNAKEMAKE):
        pid, started, namespace = named.split()
        if namespace == _namespace():
            _watch_from_now_on(lambda: _is_there(int(pid), started))


def end_with_parent() -> None:
    """Stop this process, a Snakemake that a scheduler has started, once its parent has exited.

    SLURM without control groups loses track of a job's Snakemake when the job's shell ends first;
    and Snakemake (9.27) may get SIGTERM while it holds the lock that its handler waits for.
    """
    parent = os.getppid()
    _watch_from_now_on(lambda: os.getppid() == parent)


def _is_there(pid: int, started: str) -> bool:
    try:
        return _started(pid) == started
    except OSError:  # unknown: a job under load may have no file descriptor left
        return True


def _started(pid: int) -> str | None:
    """Return when a process started, which tells it from later ones; None if it has exited.

    Read directly, which is cheap: latencies are measured meanwhile.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = text.rpartition(")")[2].split()
    # proc(5): field 3 is the state, field 22 the start time; the name before may hold anything.
    return None if state in "ZX" else fields[18]


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return "unknown"


def _watch_from_now_on(is_there: Callable[[], bool]) -> None:
    threading.Thread(target=_watch, args=(is_there,), daemon=True).start()


def _watch(is_there: Callable[[], bool]) -> None:
    while is_there():
        time.sleep(_PERIOD_S)
    log.error("parent process exited; stopping")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)
