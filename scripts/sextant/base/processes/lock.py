"""A lock, so that one job at a time measures a cell.

A job of a cluster outlives the Snakemake that submitted it; the next Snakemake then submits
another job for the same cell.
"""

import contextlib
import errno
import fcntl
import logging
import time
from collections.abc import Iterator
from pathlib import Path

from sextant.base.processes.caretaker import is_at, open_lock, remove_unheld

log = logging.getLogger(__name__)
_PERIOD_S = 0.5


@contextlib.contextmanager
def cell_lock(folder: Path) -> Iterator[bool]:
    """Hold the lock of a cell, `.lock` in its folder; yields whether another job held it before.

    The kernel releases the lock (flock(2)) when the process ends. It works across nodes on NFS,
    Lustre (mounted with `flock`) and GPFS. A file system without locks gives a warning. Raises
    OSError if `.lock` cannot be made, or is not a plain file.
    """
    path, has_waited, handle = folder / ".lock", False, None
    try:
        while True:
            handle = open_lock(path, "a")
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if is_at(handle, path):
                    break
            except BlockingIOError:
                if not has_waited:
                    log.info("another job measures this cell; waiting for its end (%s)", path)
                has_waited = True
                time.sleep(_PERIOD_S)
            except OSError as error:
                # ESTALE: on NFS, a job on another node held it and has removed it.
                if error.errno != errno.ESTALE:
                    problem = error.strerror
                    log.warning("%s cannot be locked (%s): start no second job", path, problem)
                    break
            handle.close()
        yield has_waited
    finally:
        if handle:
            handle.close()
        # Another job's lock stays: this job may be stopped before it has the lock.
        remove_unheld(path)
