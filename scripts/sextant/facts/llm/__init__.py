"""Facts of an LLM, computed from the shapes in its Hugging Face `config.json`.

In: a `config.json`, or sizes that the user states. Out: an `LLM` (layers, heads, parameters, bytes
of weights and KV cache), in the precision it is served in, or an error that names the field that
is missing or unknown. Read `facts` (strict reading, and the result), `layers` and
`quantization` (counting), then the families: `plain` (layers alike: Llama, GPT and their kind) and
`hybrid` (latent attention, states, layers that differ).
"""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from sextant.base.errors import InputError
from sextant.base.sheets import check
from sextant.facts.llm import hybrid, plain
from sextant.facts.llm.facts import DTYPE_BYTES as DTYPE_BYTES
from sextant.facts.llm.facts import DTYPE_PRECISION, read_config
from sextant.facts.llm.facts import LLM as LLM
from sextant.facts.llm.facts import UNBOUNDED_TOKENS as UNBOUNDED_TOKENS
from sextant.facts.llm.layers import families
from sextant.facts.llm.quantization import FP8, MXFP4, NVFP4, Matrices, Scheme, quantized

# Of an LLM whose sizes its user gives.
_HEAD_DIM = 128
_EXPERTS, _EXPERTS_PER_TOKEN = 128, 8
"""Of a mixture of experts: what most of today's have."""
_VOCABULARY = 128_000
_HIDDEN_SQUARES = 12
"""A layer has about 12 · hidden size² parameters: 4 in attention, 8 in the MLP."""
_GIB = 2**30
_FORMATS = ((6.0, "int4"), (12.0, "fp8"))
"""Up to how many bits a weight is taken to have this type; above, it is not quantized."""
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
_Size = Annotated[float, Field(gt=0, le=1e15)]
_NAMED = re.compile(r"(?<![a-z0-9])(fp8|nvfp4|mxfp4|int8|int4|awq|gptq)(?![a-z0-9])")


def load_llm(path: str | Path, dtype: str | None = None) -> LLM:
    """Read the facts of an LLM from its `config.json`.

    Weights and KV cache have the `dtype` they are served in; without one, that of the config.

    Of a vision-language config the text part (`text_config`) is read: the vision tower and its
    projector are counted nowhere.

    Raises InputError: the file is not JSON, its family is unknown, a field is missing, or one that
    changes the size or the cost is not known in its family.
    """
    config = read_config(path, dtype)
    name = config.word("model_type")
    if (family := families().get(name)) is None:
        fix = (
            f"use one of {', '.join(sorted(families()))}, give --parameters, --layers and "
            "--kv-bytes-per-token in place of it, or add the family to sextant/facts/llm/"
        )
        raise config.error(f"unknown family {name!r}", "model_type", fix)
    for field, expected in family.requires.items():
        config.require(field, expected)
    config.ignore(*family.ignores)
    module = plain if hasattr(plain, family.counted) else hybrid
    llm: LLM = getattr(module, family.counted)(config, family)
    config.refuse_unread_fields()
    return llm


@dataclass(frozen=True)
class GivenSizes:
    """Sizes that the user gives of an LLM; the others are those of a usual decoder of this size."""

    n_parameters: _Size
    """give all parameters, above 0 to 1e15"""
    n_layers: Annotated[int, Field(ge=1, le=10_000)]
    """give 1 to 10,000 layers"""
    kv_bytes_per_token: _Size
    """give the bytes over all layers, of a KV cache of 16-bit numbers, above 0 to 1e15"""
    n_active_parameters: _Size | None = None
    """give the parameters that a token is multiplied with, above 0; all if left out"""
    weight_gib: _Size | None = None
    """give GiB above 0 to 1e15; 2 bytes a parameter if left out"""

    def __post_init__(self) -> None:
        check(GivenSizes, {k: v for k, v in vars(self).items() if v is not None}, "")
        if (self.n_active_parameters or 0) > self.n_parameters:
            problem = f"{self.n_active_parameters:g} of {self.n_parameters:g} parameters are active"
            raise InputError(problem, field="n_active_parameters", fix="give no more than all")

    def llm(self) -> LLM:
        """Return the facts.

        Where fewer parameters are active than there are, the others are experts: of A active and P
        in all, experts are (P - A) / (1 - k / n), of which a token uses k of n.
        """
        active = self.n_active_parameters or self.n_parameters
        is_moe = active < self.n_parameters
        idle = self.n_parameters - active
        experts = min(idle / (1 - _EXPERTS_PER_TOKEN / _EXPERTS), self.n_parameters)
        dense = round(self.n_parameters - experts)
        hidden = math.sqrt(active / self.n_layers / _HIDDEN_SQUARES)
        n_heads = max(1, round(hidden / _HEAD_DIM))
        bits = 8 * self.weight_gib * _GIB / self.n_parameters if self.weight_gib else math.inf
        packed = next((name for most, name in _FORMATS if bits <= most), None)
        quantization: dict[str, Any] = {}
        if packed is not None:
            quantization = {
                "weight_bits": bits,
                "n_quantized_parameters": round(self.n_parameters),
                "n_quantized_expert_parameters": round(experts),
                "weight_format": packed,
                "is_weight_only": packed == "int4",
            }
        kv_values = self.kv_bytes_per_token / DTYPE_BYTES["bfloat16"]
        kv_heads = round(kv_values / self.n_layers / 2 / _HEAD_DIM)
        return LLM(
            llm_type="given",
            n_layers=self.n_layers,
            hidden_size=n_heads * _HEAD_DIM,
            ffn_size=4 * n_heads * _HEAD_DIM,
            n_heads=n_heads,
            n_kv_heads=min(max(kv_heads, 1), n_heads),
            head_dim=_HEAD_DIM,
            vocab_size=_VOCABULARY,
            context_tokens=UNBOUNDED_TOKENS,
            dtype="bfloat16",
            n_parameters=round(self.n_parameters),
            n_flop_parameters=round(active),
            n_experts=_EXPERTS * is_moe,
            n_experts_per_token=_EXPERTS_PER_TOKEN * is_moe,
            n_expert_parameters=round(experts),
            n_attention_parameters=dense // 3,
            n_mlp_parameters=dense - dense // 3,
            kv_values=kv_values,
            **quantization,
        )

    def description(self) -> str:
        """Return a sentence for answers: which sizes the user gave, and where others come from."""
        given = ", ".join(f"{k} {v:g}" for k, v in vars(self).items() if v is not None)
        return f"The LLM's sizes were given ({given}); all others are those of a usual decoder."


def precision_in_name(name: str, llm: LLM) -> str | None:
    """Return the precision in an LLM's name, if its config has no quantization.

    Some publishers describe it in a second file next to the config, which often gets lost.
    """
    match = None if llm.weight_format else _NAMED.search(name.lower())
    return {"awq": "int4", "gptq": "int4"}.get(match[1], match[1]) if match else None


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

    Raises InputError: a precision is unknown.
    """
    if kv_precision is not None:
        _check(kv_precision, KV_PRECISIONS, "kv_precision")
        llm = replace(llm, kv_dtype=DTYPES.get(kv_precision, kv_precision))
    if precision is None:
        return llm
    _check(precision, PRECISIONS, "precision")
    if precision == precision_of(llm):
        return llm
    unquantized = quantized(Scheme("", 0.0), Matrices(0, 0))
    plain = replace(llm, expert_format="", expert_bits=0.0, **unquantized)
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
