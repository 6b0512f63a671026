"""Slices of a GPU (MIG): devices of their own, with a part of its memory and of its compute."""

import re
from dataclasses import replace

from sextant.base.errors import InputError
from sextant.facts.gpu import GPU

_PROFILE = re.compile(r"([1-7])g\.([0-9]+)gb")
_SLICES = {"A30-24GB": (4, 4)}
"""Compute slices and parts of memory, where these are not 7 and 8."""
_NAME = "-MIG-"
_FAMILIES = ("A100", "A30", "H100", "H200", "B200", "B300", "GB200", "GB300", "RTX-PRO-6000")


def mig_slice(gpu: GPU, profile: str) -> GPU:
    """Return the slice of a GPU that a MIG profile names, e.g. `3g.20gb` of an A100-40GB.

    It has that many of the seven compute slices (an A30 has four), and the eighths (fourths) of
    memory and of its bandwidth next to the gigabytes in the name (NVIDIA, Multi-Instance GPU User
    Guide). What a slice draws in watts is not known.

    Raises:
        InputError: the GPU has no MIG, or no such profile.
    """
    match = _PROFILE.fullmatch(profile)
    if not match or not gpu.gpu_id.startswith(_FAMILIES):
        problem = f"{gpu.gpu_id} has no MIG profile {profile!r}"
        fix = f"leave it empty, or write e.g. 3g.20gb for a GPU of {', '.join(_FAMILIES)}"
        raise InputError(problem, field="mig_profile", fix=fix)
    n_compute, n_memory = _SLICES.get(gpu.gpu_id, (7, 8))
    memory = round(int(match[2]) / gpu.memory_gib * n_memory)
    if not 1 <= memory <= n_memory or int(match[1]) > n_compute:
        problem = (
            f"{profile} is not a slice of {gpu.memory_gib:g} GiB and {n_compute} compute slices"
        )
        fix = "write the name that `nvidia-smi mig -lgip` prints"
        raise InputError(problem, field="mig_profile", fix=fix)
    compute, part = int(match[1]) / n_compute, memory / n_memory
    rates = ("dense_16bit_tflops", "dense_fp8_tflops", "dense_int8_tflops", "dense_fp4_tflops")
    parts = {name: value * compute for name in rates if (value := getattr(gpu, name)) is not None}
    return replace(
        gpu,
        gpu_id=f"{gpu.gpu_id}{_NAME}{profile}",
        memory_gib=gpu.memory_gib * part,
        memory_bandwidth_gb_s=gpu.memory_bandwidth_gb_s * part,
        tdp_w=None,
        **parts,
    )


def is_slice(gpu_id: str) -> bool:
    """Return whether an id is that of a slice."""
    return _NAME in gpu_id
