"""How many bits a quantized weight takes, and which weights are quantized.

By convention all matrices of the layers are, and embeddings, output head, routers, norms and
biases are not: so do the common checkpoints. A checkpoint may name further modules that keep their
data type: attention, shared experts and MLPs, of all layers or of some, and whole layers. Scales
(and zero points) are spread over the weights that share them; where a whole row or matrix shares
one, it is left out: less than 1 % of a bit.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sextant.facts.llm.facts import Config, Section

# Parts that are never counted as quantized: naming them as exceptions changes nothing.
_NEVER_QUANTIZED = re.compile(
    r"(^|[.*])head$|lm_head|embed|norm|vision|visual|multi_?modal|mm_projector|mtp|conv1d"
    r"|e_score_correction_bias|indexers_proj|eh_proj|in_proj_(ba|[ab])$"
    r"|(^|[.*])(gate|router|shared_expert_gate)$"
)
# Modules that a checkpoint may leave unquantized, by field of `Matrices`.
_PARTS = {
    "attention": re.compile(r"(^|[.*])(self_|linear_)?attn(\.[qkvo]_proj)?$"),
    "shared_experts": re.compile(r"(^|[.*])shared_experts?$"),
    "mlp": re.compile(
        r"(^|[.*])(mlp|feed_forward)(\.(gate|up|down)_proj|\.\(gate\|up\|gate_up\|down\)_proj)?$"
    ),
}
_WHOLE_LAYER = re.compile(r"(^|[.*])layers\.\d+$")
_LAYER = re.compile(r"layers\.(\d+)(\.|$)")
_PIECE = re.compile(r"\.([a-z]+)_proj$")
_PIECES = {"attention": 4, "shared_experts": 3, "mlp": 3}
_EXCEPTIONS = ("modules_to_not_convert", "ignore", "llm_int8_skip_modules", "ignored_layers")
_SCALE_BITS = 16
_MOST_BITS = 16


class Matrices(NamedTuple):
    """Parameters of the layers' matrices, the only ones that are ever quantized."""

    attention: int
    mlp: int
    """MLPs of the layers without experts, and dense MLPs in layers with experts."""
    shared_experts: int = 0
    experts: int = 0
    """Routed experts."""
    n_layers: int = 0
    n_dense_layers: int = 0
    """The layers without experts, which come first where experts do not alternate with them."""

    is_even: bool = True
    """Whether attention, or what takes its place, has the same size in all layers."""

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return self.attention + self.mlp + self.shared_experts + self.experts


def without_exceptions(inner: Section, matrices: Matrices) -> Matrices:
    """Return the matrices less those that are left unquantized; refuse unknown exceptions."""
    kept: dict[str, dict[str, set[str]]] = {part: {} for part in _PARTS}
    for field in _EXCEPTIONS:
        for name in inner.listing(field, str, default=[]):
            module = name.removeprefix("re:").replace("\\", "").rstrip(".*$")
            layer, piece = _LAYER.search(module), _PIECE.search(module)
            # Layers beyond the last predict further tokens.
            is_beyond = layer is not None and int(layer[1]) >= matrices.n_layers
            if is_beyond or _NEVER_QUANTIZED.search(module):
                continue
            for part in _parts_of(inner, field, module, matrices):
                pieces = kept[part].setdefault(layer[1] if layer else "", set())
                pieces.add(piece[1] if piece else "")
    n_sparse = matrices.n_layers - matrices.n_dense_layers
    n_mlps = matrices.n_dense_layers or matrices.n_layers
    layers = {"attention": matrices.n_layers, "shared_experts": n_sparse, "mlp": n_mlps}
    left = {part: 1 - _share(inner, part, pieces, layers[part]) for part, pieces in kept.items()}
    if not matrices.is_even and 0 < left["attention"] < 1:
        fix = "leave the attention of all layers unquantized, or none of it"
        raise inner.error("layers of different sizes are left unquantized", "ignore", fix)
    return matrices._replace(
        **{part: round(share * getattr(matrices, part)) for part, share in left.items()}
    )


def _share(inner: Section, part: str, kept: dict[str, set[str]], n_layers: int) -> float:
    """Return the share of a part that is left unquantized; `kept`: pieces by layer ("": all)."""
    shares = {
        layer: 1.0 if "" in pieces else len(pieces) / _PIECES[part]
        for layer, pieces in kept.items()
    }
    # Q, K, V and output differ in size; the matrices of an MLP do not.
    if part == "attention" and any(share % 1 for share in shares.values()):
        fix = "leave all of a layer's attention unquantized, or none of it"
        raise inner.error("parts of attention are left unquantized", "ignore", fix)
    of_all = shares.pop("", 0.0)
    return min(1.0, max(of_all, sum(shares.values()) / (n_layers or 1)))


def _parts_of(inner: Section, field: str, module: str, matrices: Matrices) -> list[str]:
    parts = [part for part, pattern in _PARTS.items() if pattern.search(module)]
    layer = _LAYER.search(module)
    if layer and _WHOLE_LAYER.search(module) and int(layer[1]) < matrices.n_dense_layers:
        parts = ["attention", "mlp"]
    # In a mixture of experts `mlp` may mean all experts as well.
    is_unclear = module.endswith(("mlp", "feed_forward")) and matrices.experts and not matrices.mlp
    if not parts or is_unclear:
        fix = "quantize all matrices of the layers, or add the exception to sextant/facts/llm/"
        raise inner.error(f"{module!r} is left unquantized: cannot be sized", field, fix)
    return parts


class Scheme(NamedTuple):
    """How a quantized weight is stored and multiplied."""

    name: str
    """One of `load.QUANTIZED`."""
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

    Raises InputError: the method or one of its variants is unknown.
    """
    values = config.optional("quantization_config")
    if values is None:
        return {}
    inner = Section(values, config.file, "quantization_config")
    # The first checkpoints of ModelOpt name their tool alone.
    has_method = "quant_method" in values or "producer" not in values
    method = inner.word("quant_method") if has_method else "modelopt"
    if method not in METHODS:
        problem = f"unknown method {method!r}"
        raise inner.error(problem, "quant_method", f"use one of {', '.join(sorted(METHODS))}")
    scheme, experts = METHODS[method](inner), _experts_scheme(config, inner)
    if method == "mxfp4":  # packs experts alone, which are most of such an LLM
        matrices = matrices._replace(attention=0, mlp=0, shared_experts=0)
    if inner.optional("moe_quant_algo") is None:  # its exceptions are those of the experts' scheme
        matrices = without_exceptions(inner, matrices)
    facts = quantized(scheme, matrices)
    if experts:
        facts |= {"expert_format": experts.name, "expert_bits": experts.bits}
    cache = inner.optional("kv_cache_scheme")  # what the checkpoint has scales for
    if isinstance(cache, dict) and (cache.get("num_bits"), cache.get("type")) == (8, "float"):
        cache = "FP8"
    if cache not in (None, "FP8"):
        raise inner.error(f"unknown KV cache {cache!r}", "kv_cache_scheme", "use 8-bit floats")
    return facts | ({"kv_dtype": "fp8"} if cache else {})


def quantized(scheme: Scheme, matrices: Matrices) -> dict[str, Any]:
    """Return the fields of `LLM` for matrices that are all stored in one scheme."""
    return {
        "weight_format": scheme.name,
        "weight_bits": scheme.bits,
        "is_weight_only": scheme.is_weight_only,
        "n_quantized_parameters": matrices.total,
        "n_quantized_expert_parameters": matrices.experts,
    }


def _experts_scheme(config: Config, inner: Section) -> Scheme | None:
    """Return the scheme of the routed experts where it is not that of the other weights."""
    if inner.optional("moe_quant_algo") is not None:
        config.ignore("expert_dtype")
        return _algorithm(inner, "moe_quant_algo")
    if config.optional("expert_dtype") is None:
        return None
    config.require("expert_dtype", "fp4")
    return MXFP4


def _gptq_or_awq(inner: Section) -> Scheme:
    is_gptq = inner.get("quant_method") == "gptq"
    inner.require("dynamic", {})
    has_zeros = is_gptq or inner.flag("zero_point")
    return _integers(_grouped(inner, "bits", "group_size", has_zeros=has_zeros))


def _integers(bits: float) -> Scheme:
    return Scheme("int4" if bits < 8 else "int8", bits, is_weight_only=True)


def _grouped(inner: Section, bits_name: str, group_name: str, *, has_zeros: bool) -> float:
    """Return the bits with a 16-bit scale, and a zero point of a weight's width, per group."""
    bits = inner.integer(bits_name, most=_MOST_BITS)
    group = inner.integer(group_name, least=-1)
    if group < 1:  # -1: the weights of a whole row share a scale
        return float(bits)
    return bits + (_SCALE_BITS + bits * has_zeros) / group


def _bitsandbytes(inner: Section) -> Scheme:
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


def _fp8(inner: Section) -> Scheme:
    if inner.optional("weight_block_size") is None:
        return FP8
    return Scheme("fp8", 8 + _block_scale_bits(inner, "weight_block_size"))


def _block_scale_bits(inner: Section, name: str) -> float:
    """Return a weight's share of the 32-bit scale of a block [rows, columns]."""
    block = inner.listing(name, int)
    if len(block) != 2 or min(block) < 1:
        fix = "give [rows, columns], each 1 or more"
        raise inner.error(f"{block!r} is not a block", name, fix)
    bits: float = 32 / (block[0] * block[1])
    return bits


def _compressed_tensors(inner: Section) -> Scheme:
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
    weights = Section(group["weights"], inner.file, "quantization_config")
    bits = weights.integer("num_bits", most=_MOST_BITS)
    scheme = _floats(weights, bits) if weights.optional("type") == "float" else None
    scheme = scheme or _integers(_scheme_bits(weights, bits))
    return scheme._replace(is_weight_only=group.get("input_activations") is None)


def _floats(weights: Section, bits: int) -> Scheme:
    if bits == 8:
        return Scheme("fp8", _scheme_bits(weights, bits))
    by_group = {16: NVFP4, 32: MXFP4}
    group = weights.integer("group_size")
    if bits != 4 or group not in by_group:
        fix = "use 8 bits, or 4 in groups of 16 (NVFP4) or 32 (MXFP4)"
        raise weights.error("unknown floats", "config_groups", fix)
    return by_group[group]


def _scheme_bits(weights: Section, bits: int) -> float:
    strategy = weights.get("strategy")
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


def _algorithm(inner: Section, field: str) -> Scheme:
    algorithm = inner.word(field)
    if algorithm not in _ALGORITHMS:
        problem = f"unknown algorithm {algorithm!r}"
        raise inner.error(problem, field, f"use one of {', '.join(_ALGORITHMS)}")
    return _ALGORITHMS[algorithm]


METHODS: Mapping[str, Callable[[Any], Scheme]] = {
    "gptq": _gptq_or_awq,
    "awq": _gptq_or_awq,
    "bitsandbytes": _bitsandbytes,
    "fp8": _fp8,
    "fbgemm_fp8": lambda _: FP8,
    "compressed-tensors": _compressed_tensors,
    "modelopt": lambda inner: _algorithm(inner, "quant_algo"),
    "mxfp4": lambda _: MXFP4,
}
