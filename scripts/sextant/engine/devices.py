"""Which of the machine's devices a job may use, and how replicas share them."""

import os
from collections.abc import Mapping, Sequence

import pynvml

from sextant.errors import InputError
from sextant.gpu import Devices
from sextant.telemetry import MIG_PREFIX

_UUID_PREFIXES = ("GPU-", MIG_PREFIX)


def pick_devices(
    devices: Devices,
    replicas: int = 1,
    placement: str = "own",
    environ: Mapping[str, str] = os.environ,
) -> list[tuple[int | str, ...]]:
    """Return the devices of each replica: the first ones that this job may use.

    GPUs are indices or UUIDs, as `CUDA_VISIBLE_DEVICES` has them; on a CPU they are cores.

    Args:
        devices: what one replica runs on.
        replicas: number of servers.
        placement: `own`: each replica has devices of its own; `shared`: all have the same.
        environ: environment that tells which GPUs are visible.

    Raises:
        InputError: the job has fewer devices than the replicas need, or a replica would need
            several MIG instances, of which a process can use only one.
    """
    n_needed = devices.n_gpus * (replicas if placement == "own" else 1)
    available = _available(devices.kind, n_needed, environ)
    if len(available) < n_needed:
        fix = "run on a machine that has them, or remove the profile from benchmarks.tsv"
        problem = f"{n_needed} devices ({devices.kind}) needed, {len(available)} here"
        raise InputError(problem, fix=fix)
    picked = available[:n_needed]
    if devices.n_gpus > 1 and any(str(device).startswith(MIG_PREFIX) for device in picked):
        problem = f"a server of {devices.n_gpus} GPUs cannot use MIG instances"
        raise InputError(
            problem, field="CUDA_VISIBLE_DEVICES", fix="use whole GPUs, or a profile of one GPU"
        )
    starts = [n * devices.n_gpus if placement == "own" else 0 for n in range(replicas)]
    return [tuple(picked[start : start + devices.n_gpus]) for start in starts]


def _available(kind: str, n_needed: int, environ: Mapping[str, str]) -> Sequence[int | str]:
    if kind == "cpu":
        return sorted(os.sched_getaffinity(0))
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    return list(range(_n_gpus(n_needed))) if visible is None else _visible(visible)


def _visible(value: str) -> list[int | str]:
    """Return the devices that CUDA sees: those before the first entry that is none, e.g. -1."""
    found: list[int | str] = []
    for entry in map(str.strip, value.split(",")):
        if not (entry.isdigit() or entry.startswith(_UUID_PREFIXES)):
            break
        found.append(int(entry) if entry.isdigit() else entry)
    return list(dict.fromkeys(found))


def _n_gpus(n_needed: int) -> int:
    """Return the number of GPUs here; without NVML to tell, the server will find out."""
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return n_needed
