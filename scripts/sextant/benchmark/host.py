"""What identifies the machine of a measurement."""

import platform
import sys
from pathlib import Path

import pynvml


def host_facts() -> dict[str, str | None]:
    """Return what identifies the machine: system, processor, Python, GPU driver if any."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "python": sys.version.split()[0],
        "gpu_driver": _gpu_driver(),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} × {len(names)}" if names else platform.processor() or "unknown"


def _gpu_driver() -> str | None:
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return None
