"""What identifies the machine of a measurement."""

import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pynvml

from sextant.engine.devices import nvml_handle
from sextant.points.run import HostFacts, HostGPU

_MPS_DAEMON = "nvidia-cuda-mps-control"


def host_facts() -> HostFacts:
    """Return what identifies the machine; what NVML does not report is null, as are all GPU facts
    without NVML.
    """
    machine = HostFacts(
        name=platform.node(),
        system=platform.platform(),
        processor=_processor(),
        python=sys.version.split()[0],
        is_mps_running=is_mps_running(),
    )
    try:
        pynvml.nvmlInit()
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
    except pynvml.NVMLError:
        return machine
    cuda = _or_none(pynvml.nvmlSystemGetCudaDriverVersion)
    return replace(
        machine,
        gpu_driver=_or_none(pynvml.nvmlSystemGetDriverVersion),
        # 12040 is CUDA 12.4.
        cuda_version=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        gpus=tuple(
            HostGPU(_or_none(pynvml.nvmlDeviceGetName, handle), _is_mig_enabled(handle))
            for handle in handles
        ),
    )


def hardware(kind: str, devices: Sequence[int | str]) -> str:
    """Return the names of the processor and of these GPUs (NVML indices or UUIDs, of kind `gpu`):
    levels of others do not mix.
    """
    names = [_processor()]
    for device in devices if kind == "gpu" else ():
        try:
            pynvml.nvmlInit()
            names.append(pynvml.nvmlDeviceGetName(nvml_handle(device)))
        except pynvml.NVMLError:
            names.append("unknown GPU")
    return ", ".join(names)


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} × {len(names)}" if names else platform.processor() or "unknown"


def _is_mig_enabled(handle: object) -> bool | None:
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError_NotSupported:  # a device that cannot be divided
        return False
    except pynvml.NVMLError:
        return None
    return current == pynvml.NVML_DEVICE_MIG_ENABLE


def _or_none(get: Callable, *arguments: object) -> Any:
    try:
        return get(*arguments)
    except pynvml.NVMLError:
        return None


def is_mps_running() -> bool | None:
    """Return whether CUDA's Multi-Process Service runs here; None where its pipe is there but no
    daemon: it may have ended, or run outside of this container.
    """
    for process in psutil.process_iter(["name"]):
        # Linux cuts names off after 15 characters unless it may be asked for the command.
        if (process.info["name"] or "").startswith(_MPS_DAEMON[:15]):
            return True
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control"
    return None if pipe.exists() else False
