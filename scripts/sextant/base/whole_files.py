"""Files that are replaced whole: a reader finds all of the old ones or all of the new ones.

Files that belong together are written into a folder beside them. One rename of that folder, to
`MOVING`, decides that they count. Then they are moved, one by one. Whoever reads or writes there
later first moves what is left (`settle`), should the writer have been killed meanwhile.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError

MOVING = ".moving.partial"
"""Folder of files that count already, and are still to be moved into the folder around it."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A full disk, the user's quota and the process's own limit."""
_BUSY = (errno.EAGAIN, errno.EACCES)  # somebody else holds the lock
_PATIENCE_S = 30.0
"""How long to wait for another command that moves files, which takes it a moment."""
_PERIOD_S = 0.05
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, with the same ending; rename it if the block succeeds.

    A full disk (InputError), an exception or a kill leaves no file that looks whole.
    """
    path = Path(path)
    _refuse_device(path)
    temporary = path.with_name(f".{path.stem}.{_writer()}.partial{path.suffix}")
    with _moved_later(temporary, path):
        yield temporary
        _sync(temporary)
        _move(temporary, path)


@contextlib.contextmanager
def atomic_folder(folder: str | Path, last: str) -> Iterator[Path]:
    """Yield a temporary folder; move its files into `folder` if the block succeeds.

    Files that belong together are replaced together, also if the command is killed at any moment.
    Other files in the folder stay. `last` is the file that declares the others whole; it is moved
    last. InputError: the disk is full, or another command does not end to move files there.
    """
    folder = Path(folder)
    temporary = folder / f".new.{_writer()}.partial"
    with _moved_later(temporary, folder / last):
        temporary.mkdir()
        yield temporary
        if not any(temporary.iterdir()):
            return
        with _signals_wait(), _lock(folder):
            _move_all(folder, last)  # what a writer left that was killed
            _move(temporary, folder / MOVING)
            _sync(folder)
            _move_all(folder, last)


@contextlib.contextmanager
def atomic_files(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Yield temporary paths of files that belong together, the one that declares the others whole
    first; move the files if the block succeeds. Those of one folder are replaced together."""
    with contextlib.ExitStack() as stack:
        folders: dict[Path, Path] = {}
        for path in paths:
            _refuse_device(path)
            if path.parent not in folders:
                new = atomic_folder(path.parent, last=path.name)
                folders[path.parent] = stack.enter_context(new)
        yield [folders[path.parent] / path.name for path in paths]


def settle(folder: Path) -> None:
    """Move what a writer left in a folder that was killed while it moved files.

    Everything that reads calls this first. InputError: the files cannot be moved.
    """
    if not (folder / MOVING).is_dir():
        return
    try:
        with _signals_wait(), _lock(folder):
            _move_all(folder)
    except OSError as error:
        problem = f"what a killed command has written cannot be moved here ({error.strerror})"
        fix = "run any command of sextant that reads them as a user who may write there"
        raise InputError(problem, file=folder, fix=fix) from None


def _move_all(folder: Path, last: str = "") -> None:
    """Move all files of `MOVING` into the folder around it, and remove it."""
    moving = folder / MOVING
    files = [file.relative_to(moving) for file in moving.rglob("*") if file.is_file()]
    for file in sorted(files, key=lambda file: (str(file) == last, str(file))):
        (folder / file).parent.mkdir(exist_ok=True, parents=True)
        _move(moving / file, folder / file)
    remove(moving)


def _move(source: Path, target: Path) -> None:
    """Rename a file or a folder. Tests end the process here."""
    os.replace(source, target)  # noqa: PTH105  one name to watch


def _refuse_device(path: Path) -> None:
    """Raise InputError where a path is a pipe or a device: a file would take its place."""
    is_other = path.exists() and not (path.is_file() or path.is_dir())
    if is_other or path.parent == Path("/dev"):
        problem = "it is a pipe or a device, not a file"
        raise InputError(problem, file=path, fix="name a file: the new one takes its place")


@contextlib.contextmanager
def _moved_later(temporary: Path, path: Path) -> Iterator[None]:
    """Remove the temporary file or folder at the end of the block; a full disk is an InputError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path.parent)
    # Process ids repeat in containers: a killed job may have left a file of this name.
    remove(temporary)
    try:
        yield
        _sync(path.parent)
    except InputError:
        raise
    except Exception as error:
        words = _no_room(error)
        if words is None:
            raise
        problem = f"no room to write {path.name} ({words})"
        fix = "free some space or raise the quota, and run again: finished results are kept"
        raise InputError(problem, file=path.parent, fix=fix) from None
    finally:
        remove(temporary)


def _no_room(error: Exception) -> str | None:
    """Return how the system says that there is no room; None if it is another error.

    DuckDB's errors have no number, only the system's words.
    """
    for number in _NO_ROOM:
        words = os.strerror(number)
        if words in str(error) or getattr(error, "errno", None) == number:
            return words
    return None


def _sweep(folder: Path) -> None:
    """Remove unfinished files of processes of this machine that have ended."""
    for left in folder.glob(f".*.{_machine()}.*.partial*"):
        pid = left.name.partition(f".{_machine()}.")[2].partition(".")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            remove(left)


def _writer() -> str:
    """Return what names this process among those of all machines that share a disk."""
    return f"{_machine()}.{os.getpid()}"


@cache
def _machine() -> str:
    """Return a short name of this machine; a container with process ids of its own is one."""
    namespace = ""
    with contextlib.suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return hashlib.sha256(f"{socket.gethostname()} {namespace}".encode()).hexdigest()[:8]


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, for one writer at a time; a file system without locks has none.

    InputError: another process does not give it back.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    deadline_s = time.monotonic() + _PATIENCE_S
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in _BUSY:
                    break
            if time.monotonic() > deadline_s:
                problem = "another command is about to write here, and does not go on"
                fix = "wait for its end, or end it, and run again"
                raise InputError(problem, file=folder, fix=fix)
            time.sleep(_PERIOD_S)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Let signals that end the process wait for the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are handled in the main thread
        return
    came: list[int] = []
    before: dict[signal.Signals, Any] = {
        number: signal.signal(number, lambda number, _: came.append(number)) for number in _SIGNALS
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        for first in came[:1]:
            signal.raise_signal(first)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
