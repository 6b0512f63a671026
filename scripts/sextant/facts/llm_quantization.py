"""How the weights of a checkpoint are quantized: which, with how many bits.

By convention all matrices of the layers are quantized, and embeddings, output head, routers, norms
and biases are not: so do the common checkpoints. A checkpoint may name modules that keep their data
type, or that have another scheme (`llm_modules` finds what a name means). Scales (and zero points)
are spread over the weights that share them; where a whole row or matrix shares one, it is left out:
less than 1 % of a bit.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sextant.facts.llm_config import Config
from sextant.facts.llm_modules import PARTS, Matrix, Module, read_module


class Scheme(NamedTuple):
    """How a quantized weight is stored and multiplied."""

    name: str  # one of `sextant.facts.llm.QUANTIZED`
    bits: float  # bits of a weight, its share of the scales included
    is_weight_only: bool = False  # whether the products are those of 16-bit numbers


FP8 = Scheme("fp8", 8.0)
NVFP4 = Scheme("nvfp4", 4 + 8 / 16)  # 16 weights share a scale of 8 bits
MXFP4 = Scheme("mxfp4", 4 + 8 / 32)  # 32 share an exponent of 8 bits (OCP MX Formats 1.0)
INT4 = Scheme("int4", 4 + 16 / 128, is_weight_only=True)  # groups of 128 weights
INT8 = Scheme("int8", 8.0)
_ALGORITHMS = {
    "NVFP4": NVFP4,
    "FP8": FP8,
    "NVFP4_AWQ": NVFP4,
    "W4A16_NVFP4": NVFP4._replace(is_weight_only=True),
    "W4A8_NVFP4_FP8": NVFP4,
    "FP8_PB_WO": FP8,
    "FP8_PER_CHANNEL_PER_TOKEN": FP8,
    "MXFP8": Scheme("fp8", 8 + 8 / 32),
    "MXFP4": MXFP4,
    "W4A8_MXFP4_FP8": MXFP4,
    "INT4_AWQ": INT4,
    "W4A16_AWQ": INT4,
    "W4A8_AWQ": INT4,
    "W8A16": INT8._replace(is_weight_only=True),
    "INT8_SQ": INT8,
    "W8A8_SQ_PER_CHANNEL": INT8,
}
_MIXED = "MIXED_PRECISION"
_METHODS = "awq, auto-round, bitsandbytes, compressed-tensors, fp8, gptq, modelopt and mxfp4"
_EXCEPTIONS = (
    *("modules_to_not_convert", "ignore", "llm_int8_skip_modules", "ignored_layers"),
    *("exclude_modules", "modules_to_not_quantize"),
)
_Schemes = dict[Matrix, Scheme]


def quantization(config: Config, matrices: Sequence[Matrix]) -> dict[str, Any]:
    """Return the fields of `LLM` on quantization, none without; InputError: unknown method."""
    if config.optional("quantization_config") is None:
        return {}
    inner = config.section("quantization_config")
    # The first checkpoints of ModelOpt name their tool alone.
    has_method = "quant_method" in inner.values or "producer" not in inner.values
    method = inner.word("quant_method") if has_method else "modelopt"
    # By convention: the matrices of the layers.
    in_layers = [matrix for matrix in matrices if matrix.part in PARTS]

    if inner.optional("quant_algo") == _MIXED and method == "modelopt":
        schemes = _by_layer(inner, matrices)
    elif method == "compressed-tensors":
        schemes = _by_group(inner, in_layers, matrices)
    elif (scheme := _scheme(inner, method)) is None:
        schemes = {}
    else:
        # MXFP4 packs experts alone, which are most of such an LLM.
        parts = ("experts",) if method == "mxfp4" else PARTS
        schemes = {matrix: scheme for matrix in in_layers if matrix.part in parts}
        schemes = _with_dynamic_rules(inner, scheme, schemes)
    experts = _scheme_of_experts(config, inner, method)
    if schemes and inner.optional("moe_quant_algo") is None:
        schemes = _without_exceptions(inner, matrices, schemes)
    if experts is not None:
        of_experts = {matrix: experts for matrix in schemes if matrix.part == "experts"}
        schemes = {**schemes, **of_experts}
    return summary(schemes) | _kv_cache(inner)


def _scheme_of_experts(config: Config, inner: Config, method: str) -> Scheme | None:
    """Return the scheme that the experts alone have, if any."""
    if inner.optional("moe_quant_algo") is not None:
        # The exceptions are those of the experts' scheme.
        config.ignore("expert_dtype")
        return _algorithm(inner, "moe_quant_algo")
    if config.optional("expert_dtype") is None or method == "compressed-tensors":
        return None  # groups of modules say it
    config.require(expert_dtype="fp4")
    return MXFP4


def _kv_cache(inner: Config) -> dict[str, Any]:
    cache = inner.optional("kv_cache_scheme")  # what the checkpoint has scales for
    if isinstance(cache, dict) and (cache.get("num_bits"), cache.get("type")) == (8, "float"):
        cache = "FP8"
    if cache not in (None, "FP8"):
        raise inner.error(f"unknown KV cache {cache!r}", "kv_cache_scheme", "use 8-bit floats")
    return {"kv_dtype": "fp8"} if cache else {}


def summary(schemes: _Schemes) -> dict[str, Any]:
    """Return the fields of `LLM` for matrices and their schemes.

    Dense matrices of several schemes have the mean of their bits, and the name of the scheme that
    most of them have; experts likewise.
    """
    dense = _mean({m: s for m, s in schemes.items() if m.part != "experts"})
    experts = _mean({m: s for m, s in schemes.items() if m.part == "experts"})
    most = dense if dense.n else experts
    n_weight_only = sum(m.n for m, s in schemes.items() if s.is_weight_only)
    facts = {
        "weight_format": most.name,
        "weight_bits": most.bits,
        "is_weight_only": n_weight_only > (dense.n + experts.n) / 2,
        "n_quantized_parameters": dense.n + experts.n,
        "n_quantized_expert_parameters": experts.n,
    }
    if experts.n and (experts.name, experts.bits) != (most.name, most.bits):
        facts |= {"expert_format": experts.name, "expert_bits": experts.bits}
    return facts


class _Mean(NamedTuple):
    n: int
    name: str
    bits: float


def _mean(schemes: _Schemes) -> _Mean:
    by_name: dict[str, int] = {}
    for matrix, scheme in schemes.items():
        by_name[scheme.name] = by_name.get(scheme.name, 0) + matrix.n
    n = sum(by_name.values())
    all_bits = {scheme.bits for scheme in schemes.values()}
    bits = all_bits.pop() if len(all_bits) == 1 else 0.0
    if not bits and n:
        bits = sum(matrix.n * scheme.bits for matrix, scheme in schemes.items()) / n
    return _Mean(n, max(by_name, key=lambda name: by_name[name], default=""), bits)


def quantized(scheme: Scheme, n_dense: int, n_experts: int = 0) -> dict[str, Any]:
    """Return the fields of `LLM` for matrices that are all stored in one scheme."""
    return {
        "weight_format": scheme.name,
        "weight_bits": scheme.bits,
        "is_weight_only": scheme.is_weight_only,
        "n_quantized_parameters": n_dense + n_experts,
        "n_quantized_expert_parameters": n_experts,
    }


def _without_exceptions(inner: Config, matrices: Sequence[Matrix], schemes: _Schemes) -> _Schemes:
    """Return the schemes of the matrices that are quantized: `inner` names modules that are not."""
    # Thousands of names may mean few modules, e.g. one for each expert.
    names = {
        read_module(name): name
        for field in _EXCEPTIONS
        for name in inner.listing(field, str, default=[])
    }
    kept: set[Matrix] = set()
    unknown = []
    for module, name in names.items():
        chosen = module.select(matrices)
        kept.update(chosen)
        is_known = module.is_never_quantized or module.part == "head"
        if not chosen and not is_known and not module.is_beyond(matrices):
            unknown.append(name)
    if unknown:
        listed = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" * (len(unknown) > 3))
        inner.assume(f"Left unquantized, but not a part of this LLM: {listed}.")
    return {matrix: scheme for matrix, scheme in schemes.items() if matrix not in kept}


def _with_dynamic_rules(inner: Config, scheme: Scheme, schemes: _Schemes) -> _Schemes:
    """Return the schemes after GPTQ's rules by module: `-:` leaves it out, `+:` changes bits."""
    rules = inner.optional("dynamic", {})
    if not isinstance(rules, dict):
        fix = "give an object of rules by module"
        raise inner.error(f"{rules!r} is not a set of rules", "dynamic", fix)
    for name, values in rules.items():
        chosen = read_module(name.removeprefix("-:").removeprefix("+:")).select([*schemes])
        if name.startswith("-:"):
            schemes = {matrix: of for matrix, of in schemes.items() if matrix not in chosen}
            continue
        section = Config({**inner.values, **(values or {})}, inner.file, "quantization_config")
        schemes = {**schemes, **dict.fromkeys(chosen, _packed_integers(section, "gptq"))}
    return schemes


def _by_layer(inner: Config, matrices: Sequence[Matrix]) -> _Schemes:
    """Return the schemes that ModelOpt lists, module by module."""
    listed = inner.optional("quantized_layers")
    if not isinstance(listed, dict) or not listed:
        inner.assume(
            "Weights have mixed precisions, but no field says which: all are counted in 16 bits. "
            "Put the hf_quant_config.json beside the config, or give --dtype."
        )
        return {}
    modules = {}
    for name, values in listed.items():
        section = inner.section("quantized_layers", values)
        modules[read_module(name)] = _algorithm(section, "quant_algo")
    schemes: _Schemes = {}
    for module, scheme in modules.items():
        schemes |= dict.fromkeys(module.select(matrices), scheme)
    return schemes


def _by_group(inner: Config, in_layers: Sequence[Matrix], matrices: Sequence[Matrix]) -> _Schemes:
    """Return the schemes of compressed-tensors: groups of modules, of which `Linear` means all."""
    groups = inner.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise inner.error("no group of weights", "config_groups", "give one or more groups")
    sparsity = inner.optional("sparsity_config", {})
    if sparsity and not (isinstance(sparsity, dict) and sparsity.get("format") == "dense"):
        raise inner.error("sparse weights", "sparsity_config", "only dense weights are supported")
    schemes: _Schemes = {}
    for group in groups.values():
        targets = group.get("targets") if isinstance(group, dict) else None
        is_known = isinstance(targets, list) and all(isinstance(it, str) for it in targets)
        if not targets or not is_known or not isinstance(group.get("weights"), dict):
            fix = 'give "targets", e.g. ["Linear"], and "weights" of each group'
            raise inner.error("unknown group", "config_groups", fix)
        scheme = _scheme_of_group(inner, group)
        for target in targets:
            module: Module | None = None if target == "Linear" else read_module(target)
            chosen = in_layers if module is None else module.select(matrices, is_target=True)
            schemes = {**dict.fromkeys(chosen, scheme), **schemes}
    return schemes


def _scheme(inner: Config, method: str) -> Scheme | None:
    """Return the scheme that a method names for all quantized weights; None: it is not known."""
    match method.removesuffix("_marlin"):
        case "gptq" | "awq" | "auto-round" as kind:
            return _packed_integers(inner, kind)
        case "bitsandbytes":
            return _bitsandbytes(inner)
        case "fp8" if inner.optional("weight_block_size") is not None:
            return Scheme("fp8", 8 + _block_scale_bits(inner, "weight_block_size"))
        case "fp8" | "fbgemm_fp8":
            return FP8
        case "modelopt" | "modelopt_fp4" | "modelopt_mixed":
            return _algorithm(inner, "quant_algo")
        case "mxfp4":
            return MXFP4
    inner.assume(
        f"The quantization {method!r} is not known: weights are counted in 16 bits. --dtype says "
        f"otherwise, e.g. int4. Known are {_METHODS}."
    )
    return None


def _packed_integers(inner: Config, method: str) -> Scheme:
    has_zeros = inner.flag("zero_point", default=True) if method == "awq" else True
    return _integers(_grouped(inner, "bits", has_zeros=has_zeros))


def _bitsandbytes(inner: Config) -> Scheme:
    four, eight = (inner.flag(f"load_in_{n}bit", default=False) for n in (4, 8))
    if four == eight:
        fix = "set one of load_in_4bit and load_in_8bit"
        raise inner.error("neither 4 nor 8 bits, or both", "load_in_4bit", fix)
    # 64 weights share a 32-bit maximum; double quantization stores it in 8 bits, and a 32-bit
    # number for 256 of them (Dettmers et al., QLoRA, NeurIPS 2023, section 3).
    is_double = four and inner.flag("bnb_4bit_use_double_quant", default=False)
    scales = 8 / 64 + 32 / (64 * 256) if is_double else 32 / 64
    return _integers(4 + scales) if four else INT8


def _algorithm(inner: Config, field: str) -> Scheme:
    algorithm = inner.word(field)
    if algorithm not in _ALGORITHMS:
        problem = f"unknown algorithm {algorithm!r}"
        raise inner.error(problem, field, f"use one of {', '.join(_ALGORITHMS)}")
    return _ALGORITHMS[algorithm]


def _integers(bits: float) -> Scheme:
    return Scheme("int4" if bits < 8 else "int8", bits, is_weight_only=True)


def _grouped(inner: Config, bits_name: str, *, has_zeros: bool) -> float:
    """Return the bits with a 16-bit scale, and a zero point of a weight's width, per group."""
    bits = inner.integer(bits_name, most=16)
    group = inner.integer("group_size", least=-1)
    if group < 1:  # -1: the weights of a whole row share a scale
        return float(bits)
    return bits + (16 + bits * has_zeros) / group


def _block_scale_bits(inner: Config, name: str) -> float:
    """Return a weight's share of the 32-bit scale of a block [rows, columns]."""
    block = inner.listing(name, int)
    if len(block) != 2 or min(block) < 1:
        fix = "give [rows, columns], each 1 or more"
        raise inner.error(f"{block!r} is not a block", name, fix)
    rows, columns = block
    return 32 / (rows * columns)


def _scheme_of_group(inner: Config, group: dict[str, Any]) -> Scheme:
    """Return the scheme of a group of compressed-tensors."""
    weights = Config(group["weights"], inner.file, "quantization_config")
    is_float = weights.optional("type") == "float"
    bits = weights.integer("num_bits", most=16)
    if is_float and bits != 8:
        by_group = {16: NVFP4, 32: MXFP4}
        size = weights.integer("group_size")
        if bits != 4 or size not in by_group:
            fix = "use 8 bits, or 4 in groups of 16 (NVFP4) or 32 (MXFP4)"
            raise weights.error("unknown floats", "config_groups", fix)
        scheme = by_group[size]
    else:
        stored = _stored_bits(weights, bits)
        scheme = Scheme("fp8", stored) if is_float else _integers(stored)
    return scheme._replace(is_weight_only=group.get("input_activations") is None)


def _stored_bits(weights: Config, bits: int) -> float:
    strategy = weights.optional("strategy")
    if strategy is None:
        strategy = "group" if (weights.optional("group_size") or -1) > 0 else "tensor"
    match strategy:
        case "tensor" | "channel":
            return float(bits)
        case "group":
            has_zeros = not weights.flag("symmetric", default=True)
            return _grouped(weights, "num_bits", has_zeros=has_zeros)
        case "tensor_group":  # NVFP4: an 8-bit scale per group
            return bits + 8 / weights.integer("group_size")
        case "block":
            return bits + _block_scale_bits(weights, "block_structure")
    fix = "use tensor, channel, group, tensor_group or block"
    raise weights.error(f"unknown strategy {strategy!r}", "config_groups", fix)
