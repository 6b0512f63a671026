"""What Snakemake has started ends with it, in whatever way it ends.

Killed with SIGKILL, Snakemake cannot end its jobs, and the kernel's own signal
(PR_SET_PDEATHSIG) would not reach them through the shells in between. So each Snakemake names
itself to its jobs, and they look whether it is still there.
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
# For servers to end and files to be removed, before the job ends without it.
_GRACE_S = 20.0
_SNAKEMAKE = "SEXTANT_SNAKEMAKE"
"""Variable of the environment: process id, time of start and namespace of a job's Snakemake."""


def name_to_jobs() -> None:
    """Have the jobs of this process, a Snakemake, know it (`end_with_snakemake`)."""
    if started := _started(os.getpid()):
        os.environ[_SNAKEMAKE] = f"{os.getpid()} {started} {_namespace()}"


def end_with_snakemake() -> None:
    """End this process by SIGTERM, later SIGKILL, once the Snakemake that started it is gone.

    On a cluster that is the one inside the job; the job goes on without the one that submitted
    it. A process that no Snakemake has started goes on, and so does one in a container that
    hides the processes outside.
    """
    if named := os.environ.get(_SNAKEMAKE):
        pid, started, namespace = named.split()
        if namespace == _namespace():
            _watch_from_now_on(lambda: _is_there(int(pid), started))


def end_with_parent() -> None:
    """End this process, a Snakemake that a scheduler has started, once its parent is gone.

    SLURM without control groups loses sight of a job's Snakemake when the job's shell ends before
    it; and Snakemake (9.27) may take SIGTERM while it holds the lock that its handler waits for.
    """
    parent = os.getppid()
    _watch_from_now_on(lambda: os.getppid() == parent)


def _is_there(pid: int, started: str) -> bool:
    try:
        return _started(pid) == started
    except OSError:  # not to be seen now: a job under load may have no file descriptor left
        return True


def _started(pid: int) -> str | None:
    """Return when a process started, which tells it from later ones; None if it is gone.

    Read directly, since it is read while latencies are measured.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = text.rpartition(")")[2].split()
    # proc(5): field 3 is the state, field 22 the time of start; the name may hold anything.
    return None if state in "ZX" else fields[18]


def _namespace() -> str:
    """Return the namespace that process ids are of."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return "unknown"


def _watch_from_now_on(is_there: Callable[[], bool]) -> None:
    threading.Thread(target=_watch, args=(is_there,), daemon=True).start()


def _watch(is_there: Callable[[], bool]) -> None:
    while is_there():
        time.sleep(_PERIOD_S)
    log.error("whoever has started this process has ended without ending it: it ends now")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)
