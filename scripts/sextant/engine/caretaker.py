"""Removes what a job leaves behind when it ends, in whatever way, with SIGKILL too.

Run as `python caretaker.py SCRATCH RESULTS PID` with a pipe on standard input, which closes when
the job does. The scratch folder is removed once the keepers of the job's servers, which share a
lock on it, have ended too. Of the folder RESULTS only unfinished files of the job PID go, and a
lock that nobody holds.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import sys
import time
from pathlib import Path

# A process that was just killed may still write for a moment.
_ATTEMPTS = 20


def main(scratch: Path, results: Path, pid: str) -> None:
    """Wait for the end of the job and of its servers; then remove."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while os.read(sys.stdin.fileno(), 1):
        pass
    for path in results.rglob(f".*.{pid}.partial*"):
        path.unlink(missing_ok=True)
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
        except BlockingIOError:
            return
        except OSError:
            pass  # no locks on this file system: nobody holds one
        if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
            path.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
