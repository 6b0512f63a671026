"""What kernels reach on a GPU: shares of its bandwidth and FLOP/s, and the least time of one.

`resources/kernels.csv` has a row per GPU, engine, precision and kind of kernel, which
`resources/kernels/make.py` makes from tables of measured times. `kernel_ms` says what a row means.
`reached` returns the constants of a device: its own, or what GPUs of its architecture reach.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import log
from statistics import median
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from sextant.base.resources import resource
from sextant.base.sheets import load_sheet
from sextant.facts.gpu import GPU, GPUS, load_gpu

KERNELS = "kernels.csv"
_ROOF = 4.0
"""Exponent of the smooth maximum of memory traffic and products, which overlap in a kernel."""
_NEAREST = {
    "fp32": ("bf16",),
    "fp16": ("bf16",),
    "fp8": ("fp8_block", "bf16"),
    "fp8_block": ("fp8", "bf16"),
    "int8": ("fp8", "bf16"),
    "int4": ("mxfp4", "bf16"),
    "mxfp4": ("int4", "bf16"),
    "mxfp4_mxfp8": ("mxfp4", "nvfp4", "fp8", "bf16"),
    "nvfp4": ("mxfp4_mxfp8", "fp8", "bf16"),
}
"""Precisions whose kernels stand for those of a precision that no table has, the first first."""
_OWN_NEXT = (0, 0.5)
"""Distance of an engine's own kernels of the next precision: before those of another engine."""
_USUAL_ENGINE = "vllm"

MOST_SHARE = 5
"""No share of the sheet is more: what moves as fast comes from a cache, and binds nothing."""
Share = Annotated[float, Field(gt=0, le=MOST_SHARE)]
Microseconds = Annotated[float, Field(ge=0, lt=1e4)]


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    """resources/kernels.csv: each row is what kernels of one kind reach on a GPU."""

    gpu_id: str  #: a device type
    engine: str | None = None  #: whose kernels; empty: of a library
    engine_version: str | None = None  #: its version
    kind: Literal[
        "dense",
        "experts",
        "decode_attention",
        "prefill_attention",
        "decode_mla",
        "prefill_mla",
        "all_reduce",
    ]  #: of kernels
    precision: str  #: of the products; of decode, of the KV cache
    n_gpus: Annotated[int, Field(ge=1)] = 1  #: GPUs that an all-reduce sums over
    fixed_us: Microseconds | None = None  #: least time of a kernel in microseconds
    expert_us: Microseconds | None = None  #: time that an expert in use adds
    bandwidth_share: Share | None = None
    """share of the data sheet's memory bandwidth; of an all-reduce, of the links'"""
    flops_share: Share | None = None  #: share of the data sheet's FLOP/s; of attention, in 16 bits
    states_share: Share | None = None
    """share of the memory bandwidth at which states of tokens move: into and out of attention, into
    a quantized form, to experts and back"""
    spread: Annotated[float, Field(ge=0)] | None = None
    """standard deviation of the logarithm of measured times around these constants"""
    rows: Annotated[int, Field(ge=0)] | None = None  #: number of measured times
    source: str | None = None  #: where the row is from, if not from the tables


class Reached(NamedTuple):
    """What a kind of kernel reaches on a GPU."""

    fixed_ms: float  #: Least time of a kernel.
    expert_ms: float  #: Time that an expert in use adds.
    bandwidth_share: float
    flops_share: float
    states_share: float = 1.0  #: Of the memory bandwidth, for states that move beside products.


def kernel_ms(
    reached: Reached,
    moved_ms: np.ndarray,
    product_ms: np.ndarray,
    experts: np.ndarray,
    states_ms: np.ndarray,
) -> np.ndarray:
    """Return the time of kernels: fixed + experts + states + the longer of traffic and products.

    Args:
        reached: the constants.
        moved_ms: time of the memory traffic at the data sheet's bandwidth.
        product_ms: time of the products at the data sheet's rate.
        experts: experts in use.
        states_ms: time of the states of all tokens that move beside the products, at the data
            sheet's bandwidth; to experts once for each expert that a token uses.
    """
    moved = moved_ms / reached.bandwidth_share
    product = product_ms / reached.flops_share
    longer_ms = (moved**_ROOF + product**_ROOF) ** (1 / _ROOF)
    beside_ms = reached.expert_ms * experts + states_ms / reached.states_share
    return np.asarray(reached.fixed_ms + beside_ms + longer_ms)


@cache
def reached(gpu: GPU, engine: str, kind: str, precision: str, n_gpus: int = 1) -> Reached:
    """Return what kernels of a kind reach on a GPU under an engine.

    Measured times are noisy: a GPU that has no less of anything than a relative, but not over twice
    its bandwidth, is taken to reach no less, so that the better one is never slower.
    """
    best = _measured(gpu, engine, kind, precision, n_gpus)
    for lesser in _lesser_relatives(gpu):
        other = _measured(lesser, engine, kind, precision, n_gpus)
        faster = peak_gb_s(lesser, kind) / peak_gb_s(gpu, kind)
        better = peak_tflops(lesser, kind, precision) / peak_tflops(gpu, kind, precision)
        best = Reached(
            fixed_ms=min(best.fixed_ms, other.fixed_ms),
            expert_ms=min(best.expert_ms, other.expert_ms),
            bandwidth_share=max(best.bandwidth_share, other.bandwidth_share * faster),
            flops_share=max(best.flops_share, other.flops_share * better),
            states_share=max(best.states_share, other.states_share * faster),
        )
    return best


@cache  # a GPU is a lesser relative of several
def _measured(gpu: GPU, engine: str, kind: str, precision: str, n_gpus: int) -> Reached:
    """Return each constant from the rows that come nearest.

    They are those of the GPU itself, else of the GPU of its architecture that is nearest in
    bandwidth, else the median of all; of the precision, else of the next one in `_NEAREST`; of the
    engine, else of vLLM. An engine's own kernels of the next precision come before another engine's
    of the precision, if their products have the same peak.
    """
    nearest = _nearest_gpu(gpu, kind)
    precisions = (precision, *_NEAREST.get(precision, ()))
    peak = peak_tflops(gpu, kind, precision)

    def distance(row: KernelRow) -> tuple[int, float, int, float]:
        of_precision = len(precisions)
        if row.precision in precisions:
            of_precision = precisions.index(row.precision)
        of_gpu = 0 if row.gpu_id == gpu.gpu_id else 1 if row.gpu_id == nearest else 2
        of_engine = 0 if row.engine == engine else 1 if row.engine == _USUAL_ENGINE else 2
        far: tuple[int, float] = (of_precision, of_engine)
        if far == (1, 0) and peak_tflops(gpu, kind, row.precision) == peak:
            far = _OWN_NEXT
        return of_gpu, abs(log(row.n_gpus / n_gpus)), *far

    distances = [(distance(row), row) for row in _rows() if row.kind == kind]

    def constant(name: str, otherwise: float) -> float:
        stated = [
            (far, value) for far, row in distances if (value := getattr(row, name)) is not None
        ]
        least = min((far for far, _ in stated), default=None)
        return median(value for far, value in stated if far == least) if stated else otherwise

    return Reached(
        fixed_ms=constant("fixed_us", 0.0) / 1e3,
        expert_ms=constant("expert_us", 0.0) / 1e3,
        bandwidth_share=constant("bandwidth_share", 1.0),
        flops_share=constant("flops_share", 1.0),
        states_share=constant("states_share", 1.0),
    )


_LEAST_BANDWIDTH = 0.5
"""Of a relative, over the GPU's. Cards of an architecture read small matrices from large caches:
their least times are none for its GPUs with fast memory."""
_ABILITIES = (
    "memory_gib",
    "memory_bandwidth_gb_s",
    "interconnect_gb_s",
    "dense_16bit_tflops",
    "dense_fp8_tflops",
    "dense_int8_tflops",
    "dense_fp4_tflops",
)


@cache
def _lesser_relatives(gpu: GPU) -> tuple[GPU, ...]:
    """Return the other GPUs of the architecture that have more of nothing, nor far less."""
    relatives = [load_gpu(GPUS, path.stem) for path in sorted(GPUS.glob("*.yaml"))]

    def has_no_more(other: GPU) -> bool:
        if other.memory_bandwidth_gb_s < _LEAST_BANDWIDTH * gpu.memory_bandwidth_gb_s:
            return False
        pairs = ((getattr(other, name) or 0, getattr(gpu, name) or 0) for name in _ABILITIES)
        return other.architecture == gpu.architecture and all(has <= most for has, most in pairs)

    return tuple(other for other in relatives if other != gpu and has_no_more(other))


def peak_gb_s(gpu: GPU, kind: str) -> float:
    """Return the bandwidth of which a kind's rows state the share."""
    return gpu.interconnect_gb_s if kind == "all_reduce" else gpu.memory_bandwidth_gb_s


def peak_tflops(gpu: GPU, kind: str, precision: str) -> float:
    """Return the peak rate of which a kind's rows state the share."""
    of_16_bits = kind not in ("dense", "experts")
    return gpu.dense_16bit_tflops if of_16_bits else gpu.dense_tflops(_multiplied(precision))


def _multiplied(precision: str) -> str:
    """Return in which precision kernels for a precision of weights multiply."""
    return {"fp8_block": "fp8", "mxfp4": "bf16", "mxfp4_mxfp8": "fp8"}.get(precision, precision)


@cache
def _rows() -> tuple[KernelRow, ...]:
    return tuple(
        KernelRow(**row) for row in load_sheet(resource(KERNELS), KernelRow, delimiter=",")
    )


def _measured_gpus(kind: str) -> Iterator[GPU]:
    for gpu_id in sorted({row.gpu_id for row in _rows() if row.kind == kind and row.fixed_us}):
        yield load_gpu(GPUS, gpu_id)


@cache
def _nearest_gpu(gpu: GPU, kind: str) -> str:
    """Return the measured GPU of the same architecture that is nearest in bandwidth; or ""."""
    relatives = [it for it in _measured_gpus(kind) if it.architecture == gpu.architecture]
    if not relatives:
        return ""

    def distance(other: GPU) -> float:
        return abs(log(other.memory_bandwidth_gb_s / gpu.memory_bandwidth_gb_s))

    return min(relatives, key=distance).gpu_id
