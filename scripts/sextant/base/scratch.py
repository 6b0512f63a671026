"""A job's lock on its cell, and its node-local folder for the model, caches and temporary files."""

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from sextant.base.caretaker import is_at, open_lock, remove_unheld
from sextant.base.errors import InputError

_PREFIX = "sextant-"
_MARK = "a scratch folder of Sextant, removed when its job has ended\n"
"""Content of a scratch folder's lock. A folder without it is not ours to remove."""
# Run by its path: `-I -S` hides this package from it.
_CARETAKER = Path(__file__).with_name("caretaker.py")
_PATIENCE_S = 10.0
_FREE_BYTES = 64 * 2**20
# The path of a Unix socket (unix(7)), which vLLM names by a UUID in TMPDIR.
_MAX_PATH_BYTES = 107 - len("/") - 36
_FIX = "set TMPDIR to a folder of this node with room"
log = logging.getLogger(__name__)
_PERIOD_S = 0.5


@contextlib.contextmanager
def scratch_folder(results: Path) -> Iterator[Path]:
    """Yield a new folder in `SLURM_TMPDIR`, else `TMPDIR`.

    It is removed when the block or this process ends, also by SIGKILL, and so are unfinished files
    in `results`. Folders of jobs that were killed with their caretakers are removed first.
    InputError: no folder can be made, there is no room, or the path is too long.
    """
    temporary = Path(os.environ.get("SLURM_TMPDIR") or tempfile.gettempdir())

    for abandoned in temporary.glob(f"{_PREFIX}{'[0-9a-f]' * 8}"):
        # Anyone can make a folder of this name there, with anything in it: ours has the mark.
        with contextlib.suppress(OSError):
            if abandoned.lstat().st_uid == os.getuid():
                with open_lock(abandoned / "lock") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if lock.read(len(_MARK) + 1) == _MARK:
                        shutil.rmtree(abandoned, ignore_errors=True)

    folder = temporary / f"{_PREFIX}{uuid.uuid4().hex[:8]}"
    # Started before the folder exists: this process may be killed at any moment from here on.
    caretaker = subprocess.Popen(
        [sys.executable, "-I", "-S", _CARETAKER, folder, results.absolute(), str(os.getpid())],
        stdin=subprocess.PIPE,
        process_group=0,  # Ctrl-C is for this process
    )
    assert caretaker.stdin is not None  # it is a pipe
    try:
        with _make(folder):
            if (free := shutil.disk_usage(folder).free) < _FREE_BYTES:
                needed = f"{free >> 20} MiB are free, a server needs {_FREE_BYTES >> 20}"
                raise InputError(f"scratch is full: {needed}", file=temporary, fix=_FIX)
            if len(os.fsencode(folder / "tmp")) > _MAX_PATH_BYTES:
                most = f"at most {_MAX_PATH_BYTES - 21} bytes"
                problem = f"the path is too long for sockets ({most})"
                raise InputError(problem, file=temporary, fix="shorten TMPDIR")
            yield folder
    finally:
        caretaker.stdin.close()
        # It waits for servers; one that is left by an interrupted stop ends with this process.
        with contextlib.suppress(subprocess.TimeoutExpired):
            caretaker.wait(_PATIENCE_S)
            shutil.rmtree(folder, ignore_errors=True)  # should the caretaker have been killed


def _make(folder: Path) -> TextIO:
    """Make a scratch folder, and return its lock, which keeps it."""
    try:
        folder.mkdir(mode=0o700)
        lock = share(folder, "lock.new")
        lock.write(_MARK)
        lock.flush()
        # Locked before other jobs see it: they remove what no job holds.
        (folder / "lock.new").rename(folder / "lock")
        return lock
    except OSError as error:
        problem = f"no scratch folder can be made ({error.strerror})"
        raise InputError(problem, file=folder.parent, fix=_FIX) from None


def share(folder: Path, name: str = "lock") -> TextIO:
    """Return a lock that keeps a scratch folder until it is closed; a child may inherit it."""
    lock = open_lock(folder / name, "a")
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
    except BaseException:  # SIGTERM: the caretaker waits for this lock
        lock.close()
        raise
    return lock


@contextlib.contextmanager
def cell_lock(folder: Path) -> Iterator[bool]:
    """Hold the lock of a cell, `.lock` in its folder; yield whether another job held it before.

    On a cluster a job outlives its Snakemake, and the next Snakemake submits another job for the
    same cell. flock(2) works on NFS, Lustre (with `flock`) and GPFS; a file system without locks
    gives a warning. OSError: the lock cannot be made.
    """
    path = folder / ".lock"
    has_waited = False
    handle = None
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
                # ESTALE: on NFS, a job on another node held the lock and has removed it.
                if error.errno != errno.ESTALE:
                    text = "%s cannot be locked (%s): start no second job"
                    log.warning(text, path, error.strerror)
                    break
            handle.close()
        yield has_waited
    finally:
        if handle:
            handle.close()
        # Another job's lock stays: this job may be stopped before it has the lock.
        remove_unheld(path)
