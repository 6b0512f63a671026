"""A measuring run has its devices to itself: locks of this machine, and who else uses them."""

import contextlib
import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import psutil
import pynvml

from sextant.base.caretaker import open_lock
from sextant.engine.devices import nvml_handle

log = logging.getLogger(__name__)
_PERIOD_S = 0.5


@contextlib.contextmanager
def device_locks(kind: str, devices: Collection[int | str]) -> Iterator[None]:
    """Hold the locks of these devices of this machine: GPUs by UUID, or processor cores.

    While another run of this user holds one, it waits and says so once. The locks end with this
    process, however it ends. Where no lock can be made, a warning says so.
    """
    with contextlib.ExitStack() as held:
        # In one order, so that no two runs wait for each other.
        for name in sorted({_lock_name(kind, device) for device in devices}):
            try:
                _take(_lock_folder() / name, held)
            except OSError as error:
                text = "%s cannot be locked (%s): measure nothing else on it"
                log.warning(text, name, error.strerror)
        yield


def _take(path: Path, held: contextlib.ExitStack) -> None:
    """Take the lock at a path, once no other run has it."""
    lock = held.enter_context(open_lock(path, "a"))
    has_waited = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not has_waited:
                log.info("another run measures on %s; waiting for its end", path.name)
            has_waited = True
            time.sleep(_PERIOD_S)


def _lock_folder() -> Path:
    """Return this user's folder of locks, made if it is missing; OSError: it is somebody else's."""
    folder = Path(tempfile.gettempdir()) / f"sextant-devices-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(1, "its folder of locks is somebody else's", str(folder))
    return folder


def _lock_name(kind: str, device: int | str) -> str:
    """Return what a device is called on this machine, whatever a job calls it."""
    if kind == "cpu":
        return f"core-{device}"
    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlDeviceGetUUID(nvml_handle(device)))
    except pynvml.NVMLError:
        return f"gpu-{device}"


def n_other_processes(devices: Collection[int | str], pids: Collection[int]) -> int | None:
    """Return how many processes use these GPUs besides `pids` and all below them.

    None: NVML cannot say.
    """
    own_pids = {*pids}
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            own_pids.update(child.pid for child in psutil.Process(pid).children(recursive=True))
    try:
        pynvml.nvmlInit()
        handles = [nvml_handle(device) for device in devices]
        running = [
            process.pid
            for handle in handles
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        ]
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError):  # or the driver is too old
        return None
    return len({*running} - own_pids) if devices else None
