"""A job of Snakemake's ends when what has started it does.

Killed with SIGKILL, Snakemake's main process cannot end its jobs, and the kernel's own signal
(PR_SET_PDEATHSIG) would not reach them: a job runs below a second Snakemake and shells, which
live on. So the job watches the links of that chain.
"""

import logging
import os
import signal
import threading
import time
from itertools import pairwise
from pathlib import Path

import psutil

log = logging.getLogger(__name__)
_PERIOD_S = 1.0
# For servers to end and files to be removed, before the job ends without it.
_GRACE_S = 20.0
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")

Link = tuple[int, int]
"""A process and its parent, by their ids."""


def end_with_parent() -> None:
    """End this process, a Snakemake that a scheduler has started, once its parent is gone.

    SLURM without control groups loses sight of a job's Snakemake when the job's shell ends before
    it; and Snakemake (9.27) may take SIGTERM while it holds the lock that its handler waits for.
    """
    _watch_from_now_on([(os.getpid(), os.getppid())])


def end_with_snakemake() -> None:
    """End this process by SIGTERM, later SIGKILL, once the Snakemake it works for is gone.

    On a cluster the scheduler has started the job: there is no such Snakemake, and the job
    goes on without the one that submitted it.
    """
    links = links_to_snakemake()
    if links is None or links:
        _watch_from_now_on(links or [(0, -1)])


def links_to_snakemake() -> list[Link] | None:
    """Return the chain up to Snakemake's main process; empty without one, None if it is gone."""
    parents = psutil.Process().parents()
    runners = [n for n, process in enumerate(parents) if _is_job_runner(process)]
    if not runners:
        return []
    above = [n for n in range(runners[-1] + 1, len(parents)) if _name(parents[n]) not in _SHELLS]
    if not above or "python" not in _name(parents[above[0]]):
        return None  # init, or whoever else takes in orphans
    ids = [os.getpid(), *(process.pid for process in parents[: above[0] + 1])]
    return list(pairwise(ids))


def _is_job_runner(process: psutil.Process) -> bool:
    """Return whether it is the Snakemake that a local Snakemake starts to run one job."""
    try:
        command = process.cmdline()
    except psutil.Error:
        return False
    pairs = list(pairwise(command))
    return ("-m", "snakemake") in pairs and ("--mode", "subprocess") in pairs


def _name(process: psutil.Process) -> str:
    try:
        return Path(process.cmdline()[0]).name.lstrip("-") or process.name()
    except (psutil.Error, IndexError):
        return ""


def _watch_from_now_on(links: list[Link]) -> None:
    threading.Thread(target=_watch, args=(links,), daemon=True).start()


def _watch(links: list[Link]) -> None:
    while all(_parent(child) == parent for child, parent in links):
        time.sleep(_PERIOD_S)
    log.error("whoever has started this job has ended without ending it: it ends now")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _parent(pid: int) -> int | None:
    """Return the parent's id; read directly, since it is read while latencies are measured."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[1])
