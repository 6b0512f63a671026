"""One job at a time measures a cell.

A cluster's job outlives the Snakemake that has submitted it; the next Snakemake then submits
another of the same cell.
"""

import contextlib
import errno
import fcntl
import logging
import time
from collections.abc import Iterator
from pathlib import Path

from sextant.processes.caretaker import is_at, remove_unheld

log = logging.getLogger(__name__)
_PERIOD_S = 0.5


@contextlib.contextmanager
def cell_lock(folder: Path) -> Iterator[bool]:
    """Hold the only right to measure a cell; yields whether another job had it meanwhile.

    The lock (flock(2)) is the kernel's: it goes with the process, also across nodes on NFS,
    Lustre (mounted with `flock`) and GPFS. On a file system that knows none there is a warning.

    Args:
        folder: the cell's; the file `.lock` in it goes with the lock.
    """
    path, has_waited, handle = folder / ".lock", False, None
    try:
        while True:
            handle = path.open("a")
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
                # ESTALE: on NFS, its last holder, on another node, has removed it.
                if error.errno != errno.ESTALE:
                    problem = error.strerror
                    log.warning("%s cannot be locked (%s): start no second job", path, problem)
                    break
            handle.close()
        yield has_waited
    finally:
        if handle:
            handle.close()
        # Another's is left alone: a job may be ended before the lock is its own.
        remove_unheld(path)
