"""The precision in which an LLM is served: names, and the facts of the LLM served so."""

import re
from dataclasses import replace

from sextant.base.errors import InputError
from sextant.facts.llm.facts import DTYPE_PRECISION, LLM
from sextant.facts.llm.quantization import FP8, MXFP4, NVFP4, Scheme, quantized
from sextant.facts.llm.unquantized import Matrices

DTYPES = {precision: dtype for dtype, precision in DTYPE_PRECISION.items()}
"""Data types by their precision."""
QUANTIZED = {
    "fp8": FP8,
    "nvfp4": NVFP4,
    "mxfp4": MXFP4,
    "int4": Scheme("int4", 4 + 16 / 128, is_weight_only=True),
    "int8": Scheme("int8", 8.0),
}
"""The common checkpoints: NVFP4 and MXFP4 with their scales, INT4 in groups of 128 weights."""
PRECISIONS = (*DTYPES, *QUANTIZED)
KV_PRECISIONS = (*DTYPES, "fp8", "nvfp4", "int8")


_NAMED = re.compile(r"(?<![a-z0-9])(fp8|nvfp4|mxfp4|int8|int4|awq|gptq)(?![a-z0-9])")


def unsaid_precision(name: str, llm: LLM) -> str | None:
    """Return the precision that an LLM's name has, where its config quantizes nothing.

    Some publishers write what is quantized into a file beside the config, which gets lost.
    """
    found = None if llm.weight_format else _NAMED.search(name.lower())
    return {"awq": "int4", "gptq": "int4"}.get(found[1], found[1]) if found else None


def precision_of(llm: LLM) -> str:
    """Return the precision of most of an LLM's weights, one of `PRECISIONS`."""
    return llm.expert_format or llm.weight_format or DTYPE_PRECISION[llm.dtype]


def kv_precision_of(llm: LLM) -> str:
    """Return the precision of an LLM's KV cache, one of `KV_PRECISIONS`."""
    dtype = llm.kv_dtype or llm.dtype
    return DTYPE_PRECISION.get(dtype, dtype)


def served(llm: LLM, precision: str | None = None, kv_precision: str | None = None) -> LLM:
    """Return the facts of an LLM that is served in a precision, its config's if None.

    A checkpoint that has the precision keeps what it quantizes. Otherwise all matrices of the
    layers are quantized, but in 4-bit floats (NVFP4, MXFP4) of a mixture of experts attention
    keeps its data type, and in MXFP4 all but the routed experts does, as in the checkpoints that
    are published.

    Raises:
        InputError: a precision is unknown.
    """
    if kv_precision is not None:
        _check(kv_precision, KV_PRECISIONS, "kv_precision")
        llm = replace(llm, kv_dtype=DTYPES.get(kv_precision, kv_precision))
    if precision is None:
        return llm
    _check(precision, PRECISIONS, "precision")
    if precision == precision_of(llm):
        return llm
    plain = replace(
        llm,
        weight_format="",
        weight_bits=0.0,
        expert_format="",
        expert_bits=0.0,
        is_weight_only=False,
        n_quantized_parameters=0,
        n_quantized_expert_parameters=0,
    )
    if precision in DTYPES:
        return replace(plain, dtype=DTYPES[precision])
    parts = Matrices(llm.n_attention_parameters, llm.n_mlp_parameters, 0, llm.n_expert_parameters)
    if llm.n_experts and precision in ("nvfp4", "mxfp4"):
        parts = parts._replace(attention=0)
    if llm.n_experts and precision == "mxfp4":
        parts = parts._replace(mlp=0)
    return replace(plain, **quantized(QUANTIZED[precision], parts))


def _check(value: str, known: tuple[str, ...], field: str) -> None:
    if value not in known:
        fix = f"use one of {', '.join(known)}"
        raise InputError(f"unknown precision {value!r}", field=field, fix=fix)
