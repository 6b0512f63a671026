"""A process that removes what a job leaves behind, also after SIGKILL.

Run as `python caretaker.py SCRATCH RESULTS PID` with a pipe on standard input, which closes when
the job ends. The scratch folder is removed once the keepers of the job's servers, which share a
lock on it, have ended too. In the folder RESULTS only the unfinished files of the job PID are
removed, and a lock that no job holds.
"""

import contextlib
import errno
import fcntl
import fnmatch
import os
import shutil
import signal
import stat
import sys
import time
from pathlib import Path
from typing import Literal, TextIO

_ATTEMPTS = 20  # a process that was just killed may still write for a moment
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP)  # on such a file system no job holds one


def main(scratch: Path, results: Path, pid: str) -> None:
    """Wait for the end of the job and of its servers; then remove."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while os.read(sys.stdin.fileno(), 1):
        pass
    for folder, folders, names in os.walk(results):  # the next job may remove folders meanwhile
        for name in fnmatch.filter(folders, f".*.{pid}.partial"):
            shutil.rmtree(Path(folder, name), ignore_errors=True)
        for name in fnmatch.filter(names, f".*.{pid}.partial*"):
            with contextlib.suppress(OSError):
                Path(folder, name).unlink()
    remove_unheld(results / ".lock")
    with contextlib.suppress(OSError), open_lock(scratch / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    # Again: the kernel closes a killed job's files one by one, and the pipe may go before the lock.
    remove_unheld(results / ".lock")
    for _ in range(_ATTEMPTS):
        shutil.rmtree(scratch, ignore_errors=True)
        if not scratch.exists():
            return
        time.sleep(0.25)


def open_lock(path: Path, mode: Literal["r+", "a"] = "r+") -> TextIO:
    """Open a lock's file; OSError if there is none, or it is a link or a pipe of a stranger."""
    return open(path, mode, opener=_open_plain_file)  # for writing: NFS locks nothing else


def _open_plain_file(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a plain file", path)


def remove_unheld(path: Path) -> None:
    """Remove a lock's file that no job holds; a job that waits for it creates another."""
    with contextlib.suppress(OSError), open_lock(path) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                return
        if is_at(lock, path):
            path.unlink()


def is_at(file: TextIO, path: Path) -> bool:
    """Return whether an open lock is still the file at its path; its last holder removes it."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
