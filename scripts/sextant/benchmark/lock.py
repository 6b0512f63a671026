"""One job at a time measures a cell.

A cluster's job outlives the Snakemake that has submitted it; the next Snakemake then submits
another of the same cell.
"""

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from sextant.engine.caretaker import remove_unheld

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
                if _is_at(handle.fileno(), path):
                    break
            except BlockingIOError:
                if not has_waited:
                    log.info("another job measures this cell; waiting for its end (%s)", path)
                has_waited = True
                time.sleep(_PERIOD_S)
            except OSError as error:
                log.warning("%s cannot be locked (%s): start no second job", path, error.strerror)
                break
            handle.close()
        yield has_waited
    finally:
        if handle:
            handle.close()
        # Another's is left alone: a job may be ended before the lock is its own.
        remove_unheld(path)


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether the file is still the one at its path: its last holder removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
