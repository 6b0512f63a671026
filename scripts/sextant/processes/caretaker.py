"""Removes what a job leaves behind when it ends, in whatever way, with SIGKILL too.

Run as `python caretaker.py SCRATCH RESULTS PID` with a pipe on standard input, which closes when
the job does. The scratch folder is removed once the keepers of the job's servers, which share a
lock on it, have ended too. Of the folder RESULTS only unfinished files of the job PID go, and a
lock that nobody holds.
"""

import contextlib
import errno
import fcntl
import fnmatch
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TextIO

# A process that was just killed may still write for a moment.
_ATTEMPTS = 20
# On a file system without locks nobody holds one.
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP)


def main(scratch: Path, results: Path, pid: str) -> None:
    """Wait for the end of the job and of its servers; then remove."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while os.read(sys.stdin.fileno(), 1):
        pass
    for folder, _, names in os.walk(results):  # the next job may remove folders meanwhile
        for name in fnmatch.filter(names, f".*.{pid}.partial*"):
            with contextlib.suppress(OSError):
                Path(folder, name).unlink()
    remove_unheld(results / ".lock")
    with contextlib.suppress(OSError), (scratch / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    # Again: the kernel closes a killed job's files one by one, and the pipe may go before the lock.
    remove_unheld(results / ".lock")
    for _ in range(_ATTEMPTS):
        shutil.rmtree(scratch, ignore_errors=True)
        if not scratch.exists():
            return
        time.sleep(0.25)


def remove_unheld(path: Path) -> None:
    """Remove a lock's file that no job holds; who waits for it makes another."""
    # NFS locks only what is open for writing.
    with contextlib.suppress(OSError), path.open("r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                return
        if is_at(lock, path):
            path.unlink()


def is_at(file: TextIO, path: Path) -> bool:
    """Return whether a file is still the one at its path: a lock's last holder removes it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
