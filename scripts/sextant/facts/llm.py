"""Facts of an LLM, computed from the shapes in its Hugging Face `config.json`.

In: a `config.json`, or sizes that the user states. Out: an `LLM` (layers, heads, parameters, bytes
of weights and KV cache) in the precision in which it is served, and what was assumed; or an
InputError that names the missing or unknown field. `llm_config` reads the file, `llm_decoder`
counts.
"""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from sextant.base.errors import InputError
from sextant.base.resources import resource
from sextant.base.sheets import check_fields
from sextant.facts.gpu import GIB
from sextant.facts.llm_config import DTYPE_BYTES, read_config
from sextant.facts.llm_families import UNBOUNDED_TOKENS, family_of
from sextant.facts.llm_quantization import FP8, INT4, INT8, MXFP4, NVFP4, Scheme, quantized
from sextant.facts.llm_variants import facts_of

SHIPPED = resource("llms")
DTYPE_PRECISION = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
DTYPES = {precision: dtype for dtype, precision in DTYPE_PRECISION.items()}  # by precision
QUANTIZED = {
    "fp8": FP8,
    "nvfp4": NVFP4,
    "mxfp4": MXFP4,
    "int4": INT4,
    "int8": INT8,
}
"""The common checkpoints: NVFP4 and MXFP4 with their scales, INT4 in groups of 128 weights."""
PRECISIONS = (*DTYPES, *QUANTIZED)
KV_PRECISIONS = (*DTYPES, "fp8", "nvfp4", "int8")
# NVFP4: 16 numbers share a scale of 8 bits.
_KV_DTYPE_BYTES = DTYPE_BYTES | {"fp8": 1, "int8": 1, "nvfp4": 9 / 16}


LATENT_ROTARY = 64
"""Numbers of the vector of latent attention that hold positions."""


@dataclass(frozen=True)
class LLM:
    """An LLM's architecture. Sizes are counts and do not depend on where the LLM runs.

    It is one type of 38 fields, for they are the columns of table `llm` and the keys of a cell's
    definition in `run.json`, and the law, memory and simulations use fields of all kinds together.
    The defaults describe a dense, unquantized decoder with ordinary attention. Bounds are checked
    when facts are read from a cell's file, not by `LLM(…)`.
    """

    llm_type: str  # `model_type` of the config, e.g. `opt`; of its text part if it has others
    n_layers: PositiveInt  # layers of the decoder, which generate
    hidden_size: PositiveInt
    ffn_size: PositiveInt  # width of a layer's MLP; in a mixture of experts, of one routed expert
    n_heads: PositiveInt
    n_kv_heads: PositiveInt
    head_dim: PositiveInt  # numbers in a head's query and key
    vocab_size: PositiveInt
    context_tokens: PositiveInt  # longest sequence, input plus output; may be `UNBOUNDED_TOKENS`
    dtype: Annotated[str, Field(pattern=f"^({'|'.join(DTYPE_BYTES)})$")]
    n_parameters: PositiveInt  # with embeddings and every expert; tied matrices count once
    n_flop_parameters: PositiveInt
    """Parameters that a token is multiplied with on its way through the decoder.

    They are all matrices but look-up tables; of the routed experts only as many as a token uses.
    In an encoder-decoder they are the decoder's matrices for an output token, with Q and the output
    matrix of cross-attention."""
    is_encoder_decoder: bool = False
    n_encoder_layers: NonNegativeInt = 0
    n_encoder_flop_parameters: NonNegativeInt = 0
    """Parameters that an input token of an encoder-decoder is multiplied with, once.

    They are the encoder's matrices, and K and V of the decoder's cross-attention."""
    n_experts: NonNegativeInt = 0  # routed experts of a layer; 0 if dense; shared ones do not count
    n_experts_per_token: NonNegativeInt = 0  # routed experts of a layer that one token uses
    n_expert_parameters: NonNegativeInt = 0  # matrices of all routed experts of all layers
    n_attention_parameters: NonNegativeInt = 0  # matrices of the attention of all layers
    n_mlp_parameters: NonNegativeInt = 0  # matrices of all MLPs, shared experts included
    kv_latent_size: NonNegativeInt = 0
    """Numbers in the vector that multi-head latent attention (MLA) keeps per token and layer; 0 for
    attention that keeps K and V of every KV head."""
    kv_dtype: Annotated[str, Field(pattern=f"^({'|'.join(_KV_DTYPE_BYTES)})?$")] = ""
    """Data type of the KV cache, which the server chooses; empty: `dtype`."""
    weight_bits: NonNegativeFloat = 0.0
    """Bits of a quantized weight, its share of scales and zero points included; 0: unquantized."""
    n_quantized_parameters: NonNegativeInt = 0  # all other parameters are stored as `dtype`
    n_quantized_expert_parameters: NonNegativeInt = 0  # quantized parameters of routed experts
    weight_format: str = ""  # type of the quantized weights, one of `QUANTIZED`; empty: unquantized
    expert_format: str = ""  # type of the routed experts' weights; empty: `weight_format`
    expert_bits: NonNegativeFloat = 0.0
    """Bits of a quantized weight of the routed experts; 0: `weight_bits`."""
    is_weight_only: bool = False  # weights are multiplied as 16-bit numbers (GPTQ, AWQ, INT4)
    sliding_window_tokens: NonNegativeInt = 0  # tokens in a layer's window; 0: no layer has one
    n_sliding_layers: NonNegativeInt = 0
    n_attention_layers: NonNegativeInt = 0  # 0: all; other layers keep a state of fixed size
    state_bytes_per_request: NonNegativeInt = 0  # of layers of linear attention and Mamba
    kv_values: NonNegativeFloat = 0.0
    """Numbers that one token leaves in the KV cache of all layers; 0: all layers are alike."""
    sliding_kv_values: NonNegativeFloat = 0.0  # the part of `kv_values` in layers with a window
    beside_weight_bytes: int = 0
    """Bytes of weights in memory beyond those of the parameters: an encoder of images, or what the
    checkpoint's files have more; below 0 where they have less."""
    n_products: NonNegativeInt = 0
    """Kernels of one step that multiply with dense matrices, over all layers; 0: not counted."""
    n_small_kernels: NonNegativeInt = 0  # beside them: norms, rotations, activations, choices

    @property
    def value_dim(self) -> int:
        """Numbers in a head's value.

        They are those of its query and key; in latent attention, whose values have no positions,
        fewer, but for LLMs whose heads are as wide as the vector (DeepSeek-V4).
        """
        is_projected = self.head_dim < self.kv_latent_size
        return self.head_dim - LATENT_ROTARY * is_projected

    @property
    def attention(self) -> str:
        """The kind of attention: MHA, GQA, MQA (grouped, one KV head) or MLA (a latent vector)."""
        grouped = "MQA" if self.n_kv_heads == 1 else "GQA"
        plain = "MHA" if self.n_kv_heads == self.n_heads else grouped
        return "MLA" if self.kv_latent_size else plain

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights: quantized ones, the others at the data type, and those beside."""
        return self.dense_weight_bytes + self.expert_weight_bytes + self.beside_weight_bytes

    @property
    def dense_weight_bytes(self) -> int:
        """Bytes of all weights, embeddings included, without the routed experts."""
        return self._dense_bytes(self.n_parameters - self.n_expert_parameters)

    @property
    def expert_weight_bytes(self) -> int:
        """Bytes of all routed experts of all layers."""
        n = self.n_quantized_expert_parameters
        bits = self.expert_bits or self.weight_bits
        return (self.n_expert_parameters - n) * DTYPE_BYTES[self.dtype] + round(n * bits / 8)

    @property
    def step_weight_bytes(self) -> int:
        """Bytes of the matrices that each step reads: no routed experts, no look-up tables."""
        dense = self.n_flop_parameters - self.n_active_expert_parameters
        share = dense / ((dense + self.n_encoder_flop_parameters) or 1)
        return self._dense_bytes(dense, share)

    @property
    def attention_weight_bytes(self) -> float:
        """The part of `step_weight_bytes` that belongs to attention."""
        dense = max(self.n_flop_parameters - self.n_active_expert_parameters, 1)
        return min(self.n_attention_parameters / dense, 1.0) * self.step_weight_bytes

    def _dense_bytes(self, n_parameters: int, share: float = 1.0) -> int:
        n = share * (self.n_quantized_parameters - self.n_quantized_expert_parameters)
        return round((n_parameters - n) * DTYPE_BYTES[self.dtype] + n * self.weight_bits / 8)

    @property
    def n_active_expert_parameters(self) -> int:
        """Parameters of the routed experts that one token is multiplied with."""
        return self.n_expert_parameters * self.n_experts_per_token // (self.n_experts or 1)

    @property
    def n_active_parameters(self) -> int:
        """Parameters without the experts that a token does not use, as makers count them."""
        return self.n_parameters - self.n_expert_parameters + self.n_active_expert_parameters

    @property
    def flop_parameters(self) -> dict[str, float]:
        """`n_flop_parameters` by the precision (`PRECISIONS`) of their products."""
        plain = DTYPE_PRECISION[self.dtype]
        packed = self.weight_format
        if self.is_weight_only or not packed:
            return {plain: float(self.n_flop_parameters)}
        dense: float = self.n_quantized_parameters - self.n_quantized_expert_parameters
        share = self.n_quantized_expert_parameters / (self.n_expert_parameters or 1)
        active = self.n_active_expert_parameters * share
        decoder = self.n_flop_parameters - self.n_active_expert_parameters
        dense *= decoder / ((decoder + self.n_encoder_flop_parameters) or 1)
        by_precision = {plain: self.n_flop_parameters - dense - active, packed: float(dense)}
        experts = self.expert_format or packed
        by_precision[experts] = by_precision.get(experts, 0.0) + active
        return {name: n for name, n in by_precision.items() if n}

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of a token's KV cache over all layers, an encoder-decoder's cross-attention too."""
        alike = (self.n_attention_layers or self.n_layers) * self._kv_values_of_layer
        return round((self.kv_values or alike) * self._kv_number_bytes)

    @property
    def sliding_kv_bytes_per_token(self) -> float:
        """The part of `kv_bytes_per_token` in layers that keep `sliding_window_tokens` tokens."""
        alike = self.n_sliding_layers * self._kv_values_of_layer
        return (self.sliding_kv_values if self.kv_values else alike) * self._kv_number_bytes

    @property
    def _kv_values_of_layer(self) -> int:
        return self.kv_latent_size or 2 * self.n_kv_heads * self.head_dim

    @property
    def _kv_number_bytes(self) -> float:
        return _KV_DTYPE_BYTES[self.kv_dtype or self.dtype]


@dataclass(frozen=True, kw_only=True)
class Speculating(LLM):
    """An LLM whose steps verify drafts (`facts.speculation`)."""

    method: str  # what drafts
    draft_tokens: int
    accepted_length: float  # mean tokens that a step emits, the LLM's own included
    accepted_sd: float  # standard deviation of the logarithm of the accepted draft tokens
    draft: LLM | None  # what runs on the GPUs to draft; None: nothing does


def load_llm(path: str | Path, dtype: str | None = None) -> LLM:
    """Read the facts of an LLM from its `config.json`, served in `dtype`, by default the config's.

    A vision-language config counts by its text part, without the vision tower. A family that is
    not in the table is read by the usual names of fields. InputError: not JSON, no LLM, a missing
    size, or fields that do not tell attention, state or experts.
    """
    config = read_config(path, dtype)
    return LLM(**facts_of(config, family_of(config)))


def config_file(hf_config: Path) -> Path:
    """Return the file of an LLM's config; a folder has it as `config.json`.

    A path `resources/llms/NAME` that is not here is the file that ships, also with a wheel.
    """
    shipped = SHIPPED / hf_config.name
    if hf_config.parent == Path("resources/llms") and not hf_config.exists() and shipped.is_file():
        return shipped
    return hf_config / "config.json" if hf_config.is_dir() else hf_config


def name_of(hf_config: Path) -> str:
    """Return the name of an LLM: its file's, or its folder's if the file is `config.json`."""
    path = config_file(hf_config)
    folder = path.resolve().parent.name if path.name == "config.json" else ""
    return folder or path.stem


def shipped_llms() -> set[str]:
    """Return the LLMs whose config ships with this project."""
    return {path.stem for path in SHIPPED.glob("*.json")}


def shipped_config(llm_id: str) -> Path | None:
    """Return the config of an LLM that ships with this project, None if there is none."""
    path = SHIPPED / f"{Path(llm_id).name}.json"
    return path if path.stem == llm_id and path.is_file() else None


# Sizes that the user does not state; most of today's mixtures of experts have these.
_HEAD_DIM = 128
_VOCABULARY = 128_000
_EXPERTS = 128
_EXPERTS_PER_TOKEN = 8
EXPERT_MATRICES = 3
"""Matrices of an expert: gate, up and down."""
_DENSE_SHARE = 0.25
"""Least share of a token's parameters that are not of experts."""
_HIDDEN_SQUARES = 12  # A layer has about 12 · hidden size² parameters: 4 in attention, 8 in the MLP
_FORMATS = ((6.0, "int4"), (12.0, "fp8"))  # format by the most bits of a weight; above: none
_Size = Annotated[float, Field(gt=0, le=1e15)]


GIVEN_TYPE = "given"
"""Type of an LLM of which sizes alone are known."""


@dataclass(frozen=True)
class GivenSizes:
    """Sizes of an LLM that the user states; all others are those of a usual decoder."""

    n_parameters: _Size  #: give all parameters, above 0 to 1e15
    n_layers: Annotated[int, Field(ge=1, le=10_000)]  #: give 1 to 10,000 layers
    kv_bytes_per_token: _Size
    """give the bytes over all layers, of a KV cache of 16-bit numbers, above 0 to 1e15"""
    n_active_parameters: _Size | None = None
    """give the parameters that a token is multiplied with, above 0; all if left out"""
    weight_gib: _Size | None = None  #: give GiB above 0 to 1e15; 2 bytes a parameter if left out

    def __post_init__(self) -> None:
        check_fields(GivenSizes, {k: v for k, v in vars(self).items() if v is not None}, "")
        if (self.n_active_parameters or 0) > self.n_parameters:
            problem = f"{self.n_active_parameters:g} of {self.n_parameters:g} parameters are active"
            raise InputError(problem, field="n_active_parameters", fix="give no more than all")

    def llm(self) -> LLM:
        """Return the facts.

        If fewer parameters are active than there are, the LLM is a mixture of experts. With A
        active parameters of P, its experts have (P − A) / (1 − k / n), where a token uses k of n
        experts: 128, or so many times twice as many that a fourth of A or more are no experts'.
        """
        active = self.n_active_parameters or self.n_parameters
        is_moe = active < self.n_parameters
        n_experts = _EXPERTS
        while self._experts(n_experts) > self.n_parameters - _DENSE_SHARE * active:
            n_experts *= 2
        experts = self._experts(n_experts)
        dense = round(self.n_parameters - experts)
        hidden = math.sqrt(active / self.n_layers / _HIDDEN_SQUARES)
        n_heads = max(1, round(hidden / _HEAD_DIM))
        hidden_size = n_heads * _HEAD_DIM
        width = round(experts / n_experts / self.n_layers / EXPERT_MATRICES / hidden_size)
        bits = 8 * self.weight_gib * GIB / self.n_parameters if self.weight_gib else math.inf
        packed = next((name for most, name in _FORMATS if bits <= most), None)
        scheme = Scheme(packed or "", bits, is_weight_only=packed == "int4")
        n_dense = round(self.n_parameters) - round(experts)
        quantization = quantized(scheme, n_dense, round(experts)) if packed else {}
        kv_values = self.kv_bytes_per_token / DTYPE_BYTES["bfloat16"]
        kv_heads = round(kv_values / self.n_layers / 2 / _HEAD_DIM)
        return LLM(
            llm_type=GIVEN_TYPE,
            n_layers=self.n_layers,
            hidden_size=hidden_size,
            ffn_size=max(width, 1) if is_moe else 4 * hidden_size,
            n_heads=n_heads,
            n_kv_heads=min(max(kv_heads, 1), n_heads),
            head_dim=_HEAD_DIM,
            vocab_size=_VOCABULARY,
            context_tokens=UNBOUNDED_TOKENS,
            dtype="bfloat16",
            n_parameters=round(self.n_parameters),
            n_flop_parameters=round(active),
            n_experts=n_experts * is_moe,
            n_experts_per_token=_EXPERTS_PER_TOKEN * is_moe,
            n_expert_parameters=round(experts),
            n_attention_parameters=dense // 3,
            n_mlp_parameters=dense - dense // 3,
            kv_values=kv_values,
            **quantization,
        )

    def _experts(self, n_experts: int) -> float:
        """Return the parameters of this many experts in each layer; 0 if all are active."""
        idle = self.n_parameters - (self.n_active_parameters or self.n_parameters)
        return idle / (1 - _EXPERTS_PER_TOKEN / n_experts)

    def description(self) -> str:
        """Return a sentence for answers: which sizes the user gave, and where others come from."""
        sizes = ", ".join(f"{k} {v:g}" for k, v in vars(self).items() if v is not None)
        return f"The LLM's sizes were given ({sizes}); all others are those of a usual decoder."


_NAMED = re.compile(r"(?<![a-z0-9])(fp8|nvfp4|mxfp4|int8|int4|awq|gptq)(?![a-z0-9])")


def precision_in_name(name: str, llm: LLM) -> str | None:
    """Return the precision in an LLM's name, where its config names none, or None."""
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
    """Return the facts of an LLM served in a precision, by default its config's.

    A checkpoint of this precision stays as it is. Otherwise all matrices of the layers are
    quantized. In a mixture of experts, as in published checkpoints, NVFP4 leaves out attention, and
    MXFP4 all but the routed experts. InputError: an unknown precision.
    """
    for field, value, precisions in (
        ("kv_precision", kv_precision, KV_PRECISIONS),
        ("precision", precision, PRECISIONS),
    ):
        if value not in (None, *precisions):
            fix = f"use one of {', '.join(precisions)}"
            raise InputError(f"unknown precision {value!r}", field=field, fix=fix)
    if kv_precision is not None:
        llm = replace(llm, kv_dtype=DTYPES.get(kv_precision, kv_precision))
    if precision is None or precision == precision_of(llm):
        return llm
    unquantized = quantized(Scheme("", 0.0), 0)
    plain = replace(llm, expert_format="", expert_bits=0.0, **unquantized)
    plain = replace(plain, beside_weight_bytes=max(llm.beside_weight_bytes, 0))
    if precision in DTYPES:
        return replace(plain, dtype=DTYPES[precision])
    n_dense = llm.n_attention_parameters + llm.n_mlp_parameters
    if llm.n_experts and precision in ("nvfp4", "mxfp4"):
        n_dense = 0 if precision == "mxfp4" else llm.n_mlp_parameters
    return replace(plain, **quantized(QUANTIZED[precision], n_dense, llm.n_expert_parameters))
