"""How many bits a quantized weight takes, and which weights are quantized.

By convention all matrices of the layers are, and embeddings, output head, routers, norms and
biases are not: so do the common checkpoints. Scales (and zero points) are spread over the weights
that share them; where a whole row or matrix shares one, it is left out: less than 1 % of a bit.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sextant.base.errors import InputError
from sextant.llm.config import Config

_SCALE_BITS = 16
_MOST_BITS = 16
# Parts that are never counted as quantized: naming them as exceptions changes nothing.
_NEVER_QUANTIZED = re.compile(
    r"lm_head|embed|norm|vision|visual|multi_?modal|mm_projector|e_score_correction_bias"
    r"|(^|[.*])(gate|router|shared_expert_gate)\$?$"
)
# Modules that a checkpoint may leave unquantized, by field of `Matrices`.
_PARTS = {
    "attention": re.compile(r"(^|[.*])(self_)?attn$"),
    "shared_experts": re.compile(r"(^|[.*])shared_experts?$"),
    "mlp": re.compile(r"(^|[.*])mlp\.\(gate\|up\|gate_up\|down\)_proj$"),
}
_EXCEPTIONS = ("modules_to_not_convert", "ignore", "llm_int8_skip_modules", "ignored_layers")


class Matrices(NamedTuple):
    """Parameters of the layers' matrices, the only ones that are ever quantized."""

    attention: int
    mlp: int
    """MLPs of the layers without experts."""
    shared_experts: int = 0
    experts: int = 0
    """Routed experts."""


class Scheme(NamedTuple):
    """How a quantized weight is stored and multiplied."""

    name: str
    """One of `precision.QUANTIZED`."""
    bits: float
    """Bits of a weight, its share of the scales included."""
    is_weight_only: bool = False
    """Whether the products are those of 16-bit numbers."""


FP8 = Scheme("fp8", 8.0)
NVFP4 = Scheme("nvfp4", 4 + 8 / 16)
"""16 weights share a scale of 8 bits."""
MXFP4 = Scheme("mxfp4", 4 + 8 / 32)
"""32 weights share an exponent of 8 bits (OCP Microscaling Formats 1.0)."""
_ALGORITHMS = {"NVFP4": NVFP4, "FP8": FP8}


def quantization(config: Config, matrices: Matrices) -> dict[str, Any]:
    """Return the fields of `LLM` that tell how its weights are quantized; none if they are not.

    Raises:
        InputError: the method or one of its variants is unknown.
    """
    values = config.optional("quantization_config")
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise config.error("not a JSON object", "quantization_config", "save the config again")
    inner = _Method(values, config.file)
    method = inner.word("quant_method")
    if method not in METHODS:
        problem = f"unknown method {method!r}"
        raise inner.error(problem, "quant_method", f"use one of {', '.join(sorted(METHODS))}")
    scheme = METHODS[method](inner)
    kept = _kept_parts(inner)
    if method == "mxfp4":  # packs experts alone, which are most of such an LLM
        kept = set(_PARTS)
    return quantized(scheme, matrices._replace(**dict.fromkeys(kept, 0)))


def quantized(scheme: Scheme, matrices: Matrices) -> dict[str, Any]:
    """Return the fields of `LLM` for matrices that are all stored in one scheme."""
    return {
        "weight_format": scheme.name,
        "weight_bits": scheme.bits,
        "is_weight_only": scheme.is_weight_only,
        "n_quantized_parameters": sum(matrices),
        "n_quantized_expert_parameters": matrices.experts,
    }


class _Method(Config):
    """`quantization_config`: errors name its fields as `quantization_config.<field>`."""

    def error(self, problem: str, field: str | None, fix: str) -> InputError:
        return super().error(problem, f"quantization_config.{field}", fix)


def _kept_parts(inner: _Method) -> set[str]:
    """Return the parts left unquantized; refuse other exceptions to the convention."""
    kept = set()
    for field in _EXCEPTIONS:
        for name in inner.listing(field, str, default=[]):
            module = name.removeprefix("re:").replace("\\", "").rstrip(".*")
            parts = {part for part, pattern in _PARTS.items() if pattern.search(module)}
            if not parts and not _NEVER_QUANTIZED.search(name):
                fix = "quantize all matrices of the layers, or add the exception to sextant/llm/"
                raise inner.error(f"{name!r} is left unquantized: cannot be sized", field, fix)
            kept |= parts
    return kept


def _gptq(inner: _Method) -> Scheme:
    inner.require("dynamic", {})
    return _integers(_grouped(inner, "bits", "group_size", has_zeros=True))


def _awq(inner: _Method) -> Scheme:
    return _integers(_grouped(inner, "bits", "group_size", has_zeros=inner.flag("zero_point")))


def _integers(bits: float) -> Scheme:
    return Scheme("int4" if bits < 8 else "int8", bits, is_weight_only=True)


def _grouped(inner: _Method, bits_name: str, group_name: str, *, has_zeros: bool) -> float:
    """Return the bits with a 16-bit scale, and a zero point of a weight's width, per group."""
    bits, group = _bits(inner, bits_name), inner.integer(group_name, least=-1)
    if group < 1:  # -1: the weights of a whole row share a scale
        return float(bits)
    return bits + (_SCALE_BITS + bits * has_zeros) / group


def _bits(inner: _Method, name: str) -> int:
    return inner.integer(name, most=_MOST_BITS)


def _bitsandbytes(inner: _Method) -> Scheme:
    four, eight = (inner.flag(f"load_in_{n}bit", default=False) for n in (4, 8))
    if four == eight:
        fix = "set one of load_in_4bit and load_in_8bit"
        raise inner.error("neither 4 nor 8 bits, or both", "load_in_4bit", fix)
    if eight:
        return Scheme("int8", 8.0)
    # 64 weights share a 32-bit maximum; double quantization stores it in 8 bits, and a 32-bit
    # number for 256 of them (Dettmers et al., QLoRA, NeurIPS 2023, section 3).
    is_double = inner.flag("bnb_4bit_use_double_quant", default=False)
    return _integers(4 + (8 / 64 + 32 / (64 * 256) if is_double else 32 / 64))


def _fp8(inner: _Method) -> Scheme:
    if inner.optional("weight_block_size") is None:
        return FP8
    return Scheme("fp8", 8 + _block_scale_bits(inner, "weight_block_size"))


def _block_scale_bits(inner: _Method, name: str) -> float:
    """Return a weight's share of the 32-bit scale of a block [rows, columns]."""
    block = inner.listing(name, int)
    if len(block) != 2 or min(block) < 1:
        fix = "give [rows, columns], each 1 or more"
        raise inner.error(f"{block!r} is not a block", name, fix)
    return 32 / (block[0] * block[1])


def _compressed_tensors(inner: _Method) -> Scheme:
    group = _only_group(inner)
    if group.get("targets") != ["Linear"]:
        fix = 'only quantized weights of the targets ["Linear"] are supported'
        raise inner.error("unknown group", "config_groups", fix)
    sparsity = inner.optional("sparsity_config", {})
    if sparsity and not (isinstance(sparsity, dict) and sparsity.get("format") == "dense"):
        raise inner.error("sparse weights", "sparsity_config", "only dense weights are supported")
    weights = _Method(group["weights"], inner.file)
    bits = _scheme_bits(weights)
    is_float = weights.optional("type", "int") == "float"
    kind = "fp8" if bits >= 8 else "nvfp4"
    name = kind if is_float else _integers(bits).name
    return Scheme(name, bits, is_weight_only=group.get("input_activations") is None)


def _only_group(inner: _Method) -> dict[str, Any]:
    """Return the one group of weights, which describes its `weights`."""
    groups = inner.get("config_groups")
    if not isinstance(groups, dict) or len(groups) != 1:
        fix = "only one group of weights is supported"
        raise inner.error("weights of several kinds", "config_groups", fix)
    (group,) = groups.values()
    if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
        fix = 'only quantized weights of the targets ["Linear"] are supported'
        raise inner.error("unknown group", "config_groups", fix)
    return group


def _scheme_bits(weights: _Method) -> float:
    strategy, bits = weights.get("strategy"), _bits(weights, "num_bits")
    if strategy in ("tensor", "channel"):
        return float(bits)
    if strategy == "group":
        has_zeros = not weights.flag("symmetric")
        return _grouped(weights, "num_bits", "group_size", has_zeros=has_zeros)
    if strategy == "tensor_group":  # NVFP4: an 8-bit scale per group
        return bits + 8 / weights.integer("group_size")
    if strategy == "block":
        return bits + _block_scale_bits(weights, "block_structure")
    fix = "use tensor, channel, group, tensor_group or block"
    raise weights.error(f"unknown strategy {strategy!r}", "config_groups", fix)


def _modelopt(inner: _Method) -> Scheme:
    algorithm = inner.word("quant_algo")
    if algorithm not in _ALGORITHMS:
        problem = f"unknown algorithm {algorithm!r}"
        raise inner.error(problem, "quant_algo", f"use one of {', '.join(_ALGORITHMS)}")
    return _ALGORITHMS[algorithm]


METHODS: Mapping[str, Callable[[Any], Scheme]] = {
    "gptq": _gptq,
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "mxfp4": lambda _: MXFP4,
}
