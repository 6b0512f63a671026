"""The machine: what identifies it, which devices a job may use, and how much memory is left."""

import contextlib
import os
import platform
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import psutil
import pynvml

from sextant.base.errors import InputError
from sextant.facts.gpu import MIG_PREFIX, Devices

if TYPE_CHECKING:
    from sextant.points.run import CellRun, HostFacts

Device = TypeVar("Device", int, int | str)
_UUID_PREFIXES = ("GPU-", MIG_PREFIX)
_PERIOD_S = 0.02
_VMSTAT = Path("/proc/vmstat")
_MPS_DAEMON = "nvidia-cuda-mps-control"


def pick_devices(
    devices: Devices,
    replicas: int = 1,
    placement: str = "own",
    environ: Mapping[str, str] = os.environ,
) -> list[tuple[int | str, ...]]:
    """Return the devices of each replica: GPUs by index or UUID; on a CPU, cores.

    They are the first ones that this job may use. With the placement `shared` all replicas have the
    same. InputError: there are too few devices, SLURM gave none, or a server would need several MIG
    instances, while a process can use only one.
    """
    available: Sequence[int | str]
    if devices.kind == "cpu":
        available = cores = sorted(os.sched_getaffinity(0))
        # Core n belongs to SLURM's device n, so that jobs side by side on a node share none. The
        # step's devices are the job's; a scheduler may have cleared the job's variable.
        if granted := environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS"):
            indices = map(int, granted.split(","))
            available = [cores[index] for index in indices if index < len(cores)]
    elif (visible := environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        # CUDA sees the devices before the first entry that names none, e.g. -1.
        entries = map(str.strip, visible.split(","))
        seen = takewhile(lambda it: it.isdigit() or it.startswith(_UUID_PREFIXES), entries)
        available = list(dict.fromkeys(int(it) if it.isdigit() else it for it in seen))
    elif "SLURM_JOB_ID" in environ:
        # All GPUs of the node would be visible: those of other jobs, too.
        problem = f"SLURM job {environ['SLURM_JOB_ID']} was given no GPU"
        fix = "submit with workflow/profiles/slurm, which asks for the devices of each GPU profile "
        fix += "(`gpu_model` in gpu_profiles.tsv), or with --gres=gpu:N"
        raise InputError(problem, field="CUDA_VISIBLE_DEVICES", fix=fix)
    else:
        try:
            pynvml.nvmlInit()
            available = range(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError:  # the server will find out
            available = range(devices.n_gpus * replicas)
    picked = _shares(available, devices.n_gpus, replicas, placement, devices.kind)
    if devices.n_gpus > 1 and any(str(device).startswith(MIG_PREFIX) for device in sum(picked, ())):
        problem = f"a server of {devices.n_gpus} GPUs cannot use MIG instances"
        fix = "use whole GPUs, or a profile of one GPU"
        raise InputError(problem, field="CUDA_VISIBLE_DEVICES", fix=fix)
    return picked


def pick_cores(n_cores: int, replicas: int = 1, placement: str = "own") -> list[tuple[int, ...]]:
    """Return the cores of each replica beside its devices; InputError: the job has too few."""
    return _shares(sorted(os.sched_getaffinity(0)), n_cores, replicas, placement, "cpu")


def _shares(
    available: Sequence[Device], n_each: int, replicas: int, placement: str, kind: str
) -> list[tuple[Device, ...]]:
    starts = [n * n_each if placement == "own" else 0 for n in range(replicas)]
    if len(available) < (n_needed := starts[-1] + n_each):
        fix = "run on a machine that has them, or remove the profile from benchmarks.tsv"
        raise InputError(f"{n_needed} devices ({kind}) needed, {len(available)} here", fix=fix)
    return [tuple(available[start : start + n_each]) for start in starts]


def nvml_handle(device: int | str) -> object:
    """Return NVML's handle of a GPU by index or UUID, once NVML is there; raises `NVMLError`."""
    if isinstance(device, int):
        return pynvml.nvmlDeviceGetHandleByIndex(device)
    return pynvml.nvmlDeviceGetHandleByUUID(device)


class FreeMemory(threading.Thread):
    """Looks every 20 ms how much memory is left, until it is stopped."""

    def __init__(self, read: Callable[[], int | None]) -> None:
        super().__init__(daemon=True)
        self._read, self._stopped = read, threading.Event()
        self.least_bytes: int | None = None

    def run(self) -> None:
        """Look (called by `start`)."""
        while not self._stopped.wait(_PERIOD_S):
            self.look()

    def look(self) -> int | None:
        """Return what is left at this moment, in bytes; None if that is unknown."""
        now_bytes = self._read()
        readings = [n for n in (now_bytes, self.least_bytes) if n is not None]
        self.least_bytes = min(readings, default=None)
        return now_bytes

    def stop(self) -> None:
        """Stop looking; what was seen stays. Without effect the second time."""
        self._stopped.set()
        if self.is_alive():
            self.join()


def limited_processes(pid: int, limit_bytes: int) -> Callable[[], int | None]:
    """Return a reader of the bytes that are left of a limit on a process's data.

    It reads the process below `pid` with the most data: `VmData` (proc_pid_status(5)), which
    RLIMIT_DATA (getrlimit(2)) counts.
    """

    def read() -> int | None:
        used = []
        for process in _below(pid):
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{process}/status").read_text()
                if said := re.search(r"^VmData:\s*(\d+)", status, re.MULTILINE):
                    used.append(int(said[1]) * 1024)
        return limit_bytes - max(used) if used else None

    return read


def gpus(devices: Sequence[int | str]) -> Callable[[], int | None]:
    """Return a reader of the memory left on the fullest of these GPUs, None if NVML cannot say."""

    def read() -> int | None:
        with contextlib.suppress(pynvml.NVMLError):
            return min(pynvml.nvmlDeviceGetMemoryInfo(nvml_handle(it)).free for it in devices)
        return None

    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
    return read


def n_oom_kills() -> int | None:
    """Return how many processes the kernel of this node has killed for want of memory.

    Kills of memory cgroups count (`oom_kill` of /proc/vmstat, Linux 4.13 and later). None: unknown.
    """
    with contextlib.suppress(OSError):
        if said := re.search(r"^oom_kill (\d+)", _VMSTAT.read_text(), re.MULTILINE):
            return int(said[1])
    return None


def _below(pid: int) -> list[int]:
    """Return the processes below `pid`, by the kernel's own lists, which cost little to read."""
    processes = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                processes += [int(child), *_below(int(child))]
    return processes


def host_facts() -> "HostFacts":
    """Return what identifies the machine; null is what NVML does not report."""
    from sextant.points.run import HostFacts, HostGPU  # which takes a second to load

    machine = HostFacts(
        name=platform.node(),
        system=platform.platform(),
        processor=_processor(),
        python=platform.python_version(),
        is_mps_running=is_mps_running(),
    )
    try:
        pynvml.nvmlInit()
        handles = list(map(nvml_handle, range(pynvml.nvmlDeviceGetCount())))
    except pynvml.NVMLError:
        return machine
    cuda = _or_none(pynvml.nvmlSystemGetCudaDriverVersion)
    names = [_or_none(pynvml.nvmlDeviceGetName, handle) for handle in handles]
    return replace(
        machine,
        gpu_driver=_or_none(pynvml.nvmlSystemGetDriverVersion),
        # 12040 is CUDA 12.4.
        cuda_version=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        gpus=tuple(map(HostGPU, names, map(_is_mig_enabled, handles))),
    )


def hardware(kind: str, devices: Sequence[int | str]) -> str:
    """Return the names of the processor and of these GPUs: results of different ones do not mix."""
    names = [_processor()]
    for device in devices if kind == "gpu" else ():
        try:
            pynvml.nvmlInit()
            names.append(pynvml.nvmlDeviceGetName(nvml_handle(device)))
        except pynvml.NVMLError:
            names.append("unknown GPU")
    return ", ".join(names)


def hardware_of(run: "CellRun") -> str | None:
    """Return what `hardware` said where a cell was measured; None if that is not known."""
    host = run.origin.host
    if host is None or host.processor is None:
        return None
    definition = run.origin.definition or {}
    indices: list[int | str] = []
    if definition.get("devices", {}).get("kind") == "gpu" and run.server:
        indices = sorted({it for of_server in run.server.devices for it in of_server}, key=str)

    names = [gpu.name or "unknown GPU" for gpu in host.gpus or ()] or ["unknown GPU"]
    if len({*names}) == 1:  # whichever they were
        return ", ".join([host.processor, *(names[0] for _ in indices)])
    try:
        return ", ".join([host.processor, *(names[int(index)] for index in indices)])
    except (ValueError, IndexError):
        return None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} × {len(names)}" if names else platform.processor() or "unknown"


def _is_mig_enabled(handle: object) -> bool | None:
    try:
        return pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    except pynvml.NVMLError as error:  # a device that cannot be divided does not support it
        return False if error.value == pynvml.NVML_ERROR_NOT_SUPPORTED else None


def _or_none(get: Callable[..., Any], *arguments: object) -> Any:
    try:
        return get(*arguments)
    except pynvml.NVMLError:
        return None


def is_mps_running() -> bool | None:
    """Return whether CUDA's Multi-Process Service runs here.

    None: its pipe is there but no daemon, which may have ended, or run outside of this container.
    """
    names = (process.info["name"] or "" for process in psutil.process_iter(["name"]))
    # Linux cuts names off after 15 characters unless it may be asked for the command.
    if any(name.startswith(_MPS_DAEMON[:15]) for name in names):
        return True
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control"
    return None if pipe.exists() else False
