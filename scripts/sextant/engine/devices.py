"""Which of the machine's devices a job may use."""

import os
from collections.abc import Mapping

from sextant.errors import InputError
from sextant.gpu import Devices


def pick_devices(devices: Devices, environ: Mapping[str, str] = os.environ) -> tuple[int, ...]:
    """Return the devices for a server: the first n that this job may use.

    Raises:
        InputError: the job has fewer devices than the profile needs.
    """
    if devices.kind == "cpu":
        available = sorted(os.sched_getaffinity(0))
    else:
        visible = environ.get("CUDA_VISIBLE_DEVICES")
        available = (
            [int(index) for index in visible.split(",") if index.strip().isdigit()]
            if visible is not None
            else list(range(devices.n_gpus))
        )
    if len(available) < devices.n_gpus:
        fix = "run on a machine that has them, or remove the profile from benchmarks.tsv"
        problem = f"{devices.n_gpus} devices ({devices.kind}) needed, {len(available)} here"
        raise InputError(problem, fix=fix)
    return tuple(available[: devices.n_gpus])
