"""How many bits a quantized weight takes, and which weights are quantized.

By convention all matrices of the layers are, and embeddings, output head, routers, norms and
biases are not: so do the common checkpoints. Scales (and zero points) are spread over the weights
that share them; where a whole row or matrix shares one, it is left out: less than 1 % of a bit.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from sextant.base.errors import InputError
from sextant.llm.config import Config

_SCALE_BITS = 16
_MOST_BITS = 16
# Parts that are never counted as quantized: naming them as exceptions changes nothing.
_NEVER_QUANTIZED = re.compile(
    r"lm_head|embed|norm|vision|visual|multi_?modal|(^|[.*])(gate|router|shared_expert_gate)\$?$"
)
_ATTENTION = re.compile(r"(^|[.*])(self_)?attn\*?$")
_EXCEPTIONS = ("modules_to_not_convert", "ignore", "llm_int8_skip_modules", "ignored_layers")


def quantization(config: Config, attention: int, mlp: int, experts: int) -> tuple[float, int]:
    """Return `weight_bits` and `n_quantized_parameters`; zeros if unquantized.

    Args:
        config: the config; its `quantization_config` is read.
        attention: parameters of the layers' attention matrices.
        mlp: parameters of the layers' MLP matrices, all experts' included.
        experts: of these, the parameters of the routed experts.

    Raises:
        InputError: the method or one of its variants is unknown.
    """
    values = config.optional("quantization_config")
    if values is None:
        return 0.0, 0
    if not isinstance(values, dict):
        raise config.error("not a JSON object", "quantization_config", "save the config again")
    inner = _Method(values, config.file)
    method = inner.word("quant_method")
    if method not in METHODS:
        problem = f"unknown method {method!r}"
        raise inner.error(problem, "quant_method", f"use one of {', '.join(sorted(METHODS))}")
    bits = METHODS[method](inner)
    if _keeps_attention(inner):
        attention = 0
    # MXFP4 packs experts alone, which are most of such an LLM.
    n_quantized = experts if method == "mxfp4" else attention + mlp
    return bits, n_quantized


class _Method(Config):
    """`quantization_config`: errors name its fields as `quantization_config.<field>`."""

    def error(self, problem: str, field: str | None, fix: str) -> InputError:
        return super().error(problem, f"quantization_config.{field}", fix)


def _keeps_attention(inner: _Method) -> bool:
    """Return whether attention is left unquantized; refuse other exceptions to the convention."""
    keeps = False
    for field in _EXCEPTIONS:
        for name in inner.listing(field, str, default=[]):
            if _ATTENTION.search(name):
                keeps = True
            elif not _NEVER_QUANTIZED.search(name):
                fix = "quantize all matrices of the layers, or add the exception to sextant/llm/"
                raise inner.error(f"{name!r} is left unquantized: cannot be sized", field, fix)
    return keeps


def _gptq(inner: _Method) -> float:
    inner.require("dynamic", {})
    return _grouped(inner, "bits", "group_size", has_zeros=True)


def _awq(inner: _Method) -> float:
    return _grouped(inner, "bits", "group_size", has_zeros=inner.flag("zero_point"))


def _grouped(inner: _Method, bits_name: str, group_name: str, *, has_zeros: bool) -> float:
    """Return the bits with a 16-bit scale, and a zero point of a weight's width, per group."""
    bits, group = _bits(inner, bits_name), inner.integer(group_name, least=-1)
    if group < 1:  # -1: the weights of a whole row share a scale
        return float(bits)
    return bits + (_SCALE_BITS + bits * has_zeros) / group


def _bits(inner: _Method, name: str) -> int:
    return inner.integer(name, most=_MOST_BITS)


def _bitsandbytes(inner: _Method) -> float:
    four, eight = (inner.flag(f"load_in_{n}bit", default=False) for n in (4, 8))
    if four == eight:
        fix = "set one of load_in_4bit and load_in_8bit"
        raise inner.error("neither 4 nor 8 bits, or both", "load_in_4bit", fix)
    if eight:
        return 8.0
    # 64 weights share a 32-bit maximum; double quantization stores it in 8 bits, and a 32-bit
    # number for 256 of them (Dettmers et al., QLoRA, NeurIPS 2023, section 3).
    is_double = inner.flag("bnb_4bit_use_double_quant", default=False)
    return 4 + (8 / 64 + 32 / (64 * 256) if is_double else 32 / 64)


def _fp8(inner: _Method) -> float:
    if inner.optional("weight_block_size") is None:
        return 8.0
    return 8 + _block_scale_bits(inner, "weight_block_size")


def _block_scale_bits(inner: _Method, name: str) -> float:
    """Return a weight's share of the 32-bit scale of a block [rows, columns]."""
    block = inner.listing(name, int)
    if len(block) != 2 or min(block) < 1:
        fix = "give [rows, columns], each 1 or more"
        raise inner.error(f"{block!r} is not a block", name, fix)
    return 32 / (block[0] * block[1])


def _compressed_tensors(inner: _Method) -> float:
    groups = inner.get("config_groups")
    if not isinstance(groups, dict) or len(groups) != 1:
        fix = "only one group of weights is supported"
        raise inner.error("weights of several kinds", "config_groups", fix)
    (group,) = groups.values()
    is_known = isinstance(group, dict) and group.get("targets") == ["Linear"]
    if not is_known or not isinstance(group.get("weights"), dict):
        fix = 'only quantized weights of the targets ["Linear"] are supported'
        raise inner.error("unknown group", "config_groups", fix)
    sparsity = inner.optional("sparsity_config", {})
    if sparsity and not (isinstance(sparsity, dict) and sparsity.get("format") == "dense"):
        raise inner.error("sparse weights", "sparsity_config", "only dense weights are supported")
    return _scheme_bits(_Method(group["weights"], inner.file))


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


def _mxfp4(inner: _Method) -> float:
    return 4 + 8 / 32  # 32 weights share an 8-bit exponent (OCP Microscaling Formats 1.0)


METHODS: Mapping[str, Callable[[Any], float]] = {
    "gptq": _gptq,
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
    "mxfp4": _mxfp4,
}
