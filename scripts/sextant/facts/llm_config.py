"""Reads an LLM's `config.json` strictly: its fields, and how its weights are quantized.

By convention all matrices of the layers are quantized, and embeddings, output head, routers, norms
and biases are not: so do the common checkpoints. A checkpoint may name further modules that keep
their data type: attention, shared experts and MLPs, of all layers or of some, and whole layers.
Scales (and zero points) are spread over the weights that share them; where a whole row or matrix
shares one, it is left out: less than 1 % of a bit.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple, Self

from sextant.base.errors import InputError
from sextant.base.files import read_object

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_ALIASES = (
    ("hidden_size", "n_embd", "n_embed", "d_model"),
    ("intermediate_size", "n_inner", "ffn_dim", "d_ff"),
    ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv"),
    ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length"),
    ("num_experts", "num_local_experts", "n_routed_experts"),
    ("num_experts_per_tok", "experts_per_token"),
    ("dtype", "torch_dtype"),
)
_GROUPS = {name: group for group in _ALIASES for name in group}
# Fields whose value changes the size or the cost. If a family's code does not read such a field and
# it is set, the config belongs to a variant that would be sized wrongly.
_SIZING = re.compile(
    r"bias$|^tie_|hidden_size|intermediate|ffn|n_inner|vocab_size|head_dim|heads$|_layers$|n_layer"
    r"|n_head|expert|moe|lora|mamba|ssm|conv|cross_attention|multi_query|pruned_heads|layer_types"
    r"|^sliding_window$|q(uery|k)_(layer)?norm|qk_ln|^_remove_final_layer_norm$|^compression_config$"
)
_ENCODERS = {"vision_config": "images", "audio_config": "sound"}
# Fields of the text part that a vision-language config may have outside of it.
_SHARED = ("dtype", "torch_dtype", "tie_word_embeddings", "quantization_config")
_MOST = 10**9  # far above any size of an LLM: a larger number has a digit too many
_LONGEST = 100  # characters of each end of a problem that repeats a long value
_PLACE = "sextant/facts/llm_families.py"


class Config:
    """An LLM's config, or a section of it: a missing field is an error that names it."""

    def __init__(self, values: Any, file: Path | str, section: str = "") -> None:
        self.values = values
        self.file = file
        self._section = section
        self._read: set[str] = set()
        if not isinstance(values, dict):
            problem = "not a JSON object"
            raise InputError(problem, file=file, field=section or None, fix="save it again")

    def section(self, field: str, values: Any = None) -> "Config":
        """Return a part, by default the value of a field; errors name `<section>.<field>`."""
        name = f"{self._section}.{field}" if self._section else field
        return Config(self.get(field) if values is None else values, self.file, name)

    def error(self, problem: str, field: str, fix: str) -> InputError:
        """Return the error to raise about a field of this config."""
        if len(problem) > 2 * _LONGEST:
            problem = f"{problem[:_LONGEST]} … {problem[-_LONGEST:]}"
        field = f"{self._section}.{field}" if self._section else field
        return InputError(problem, file=self.file, field=field, fix=fix)

    def optional(self, name: str, default: Any = None) -> Any:
        """Return a field that may be absent or `null`; the family's code gives that a meaning."""
        group = _GROUPS.get(name, (name,))
        self._read.update(group)
        values = {key: self.values[key] for key in group if self.values.get(key) is not None}
        if len({repr(value) for value in values.values()}) > 1:
            names = ", ".join(f"{key} = {value}" for key, value in values.items())
            raise self.error(f"names of one thing disagree ({names})", name, "keep the right one")
        return next(iter(values.values()), default)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field that has to be there, unless it has a default."""
        value = self.optional(name, default)
        if value is None:
            raise self.error("the field is missing", name, f"add '{name}' as Hugging Face names it")
        return value

    def integer(
        self, name: str, default: int | None = None, least: int = 1, most: int = _MOST
    ) -> int:
        """Return a size from `least` to `most`; it may be absent if it has a default."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            fix = f"give a whole number of at least {least} and at most {most:,}"
            raise self.error(f"{value!r} is not a size", name, fix)
        return value

    def integers(self, *names: str) -> list[int]:
        """Return sizes that have to be there."""
        return [*map(self.integer, names)]

    def word(self, name: str) -> str:
        """Return a name that has to be there."""
        value = self.get(name)
        if not isinstance(value, str):
            raise self.error(f"{value!r} is not a name", name, "write one name in quotes")
        return value

    def flag(self, name: str, default: bool | None = None) -> bool:
        """Return a switch; it may be absent if it has a default."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.error(f"{value!r} is not true or false", name, "write true or false")
        return value

    def listing(self, name: str, kind: type, default: list[Any] | None = None) -> list[Any]:
        """Return a list of names (`str`) or whole numbers (`int`); it may have a default."""
        value = self.get(name, default)
        # By the exact type: `true` is an `int` to Python.
        if not isinstance(value, list) or any(type(item) is not kind for item in value):
            what = {str: "names", int: "whole numbers"}[kind]
            raise self.error(f"{value!r} is not a list of {what}", name, f"give {what} in [ ]")
        return value

    def by_layer(
        self, name: str, layers: int, allowed: tuple[Any, ...], default: list[Any] | None = None
    ) -> list[Any]:
        """Return the value of each layer, one of `allowed`, from a field that lists them."""
        values = self.listing(name, type(allowed[0]), default)
        if len(values) != layers or not set(values) <= set(allowed):
            words = " or ".join(map(str, allowed))
            fix = f"give {words} for each of the {layers} layers"
            raise self.error("unknown kinds of layers", name, fix)
        return values

    def require(self, **expected: Any) -> None:
        """Raise InputError if a field has a value that the family's formula does not cover."""
        for name, value in expected.items():
            if self.optional(name, value) != value:
                text = str(value).lower() if isinstance(value, bool) else value
                fix = f"only {text} is supported; add the variant to {_PLACE}"
                raise self.error("unsupported variant", name, fix)

    def ignore(self, *names: str) -> None:
        """Mark fields as read: they change nothing in this family."""
        self._read.update(names)

    def refuse_unread_fields(self) -> None:
        """Raise InputError if a field that changes size or cost was not read."""
        for name, value in self.values.items():
            if value and name not in self._read and _SIZING.search(name):
                family = self.values["model_type"]
                problem = f"{value!r} may change the size, and nothing is known of it in {family}"
                fix = f"remove it if it has no effect, or add the variant to {_PLACE}"
                raise self.error(problem, name, fix)


def read_config(path: str | Path, dtype: str | None = None) -> Config:
    """Read the text part of a `config.json`; InputError: not JSON, or the LLM generates no text."""
    try:
        values = read_object(path, fix="save the config again")
    except FileNotFoundError:
        fix = "save the LLM's config.json under this name"
        raise InputError("there is no such file", file=path, fix=fix) from None

    text = values
    if "text_config" in values:
        outer = Config(values, path)
        inner = outer.section("text_config").values
        architectures = outer.listing("architectures", str)
        if not all(name.endswith(("Generation", "ForCausalLM")) for name in architectures):
            problem = f"{architectures} does not generate text"
            raise outer.error(problem, "architectures", "use a config of a generating LLM")
        for name in _SHARED:
            if None not in (ours := (values.get(name), inner.get(name))) and ours[0] != ours[1]:
                problem = f"{ours[0]!r}, but {ours[1]!r} inside text_config"
                raise outer.error(problem, name, "keep the right one")
        text = {name: values[name] for name in _SHARED if name in values}
        text |= {name: value for name, value in inner.items() if value is not None}

    file = Path(path).with_name("hf_quant_config.json")  # of NVIDIA's ModelOpt
    if Path(path).name == "config.json" and file.is_file():
        config = Config(read_object(file, fix="save the file again"), file)
        stated = config.section("quantization")
        packed = {
            "quant_method": "modelopt",
            "quant_algo": stated.optional("quant_algo"),
            "ignore": stated.optional("exclude_modules"),
            "kv_cache_scheme": stated.optional("kv_cache_quant_algo"),
        }
        text = {"quantization_config": packed, **text}

    if dtype is not None:
        text = {**text, "torch_dtype": None, "dtype": dtype}
    return Config(text, path)


def encoded_inputs(path: str | Path) -> list[str]:
    """Return the inputs beside text that an LLM takes, e.g. images; its facts leave them out."""
    values = read_object(path, fix="save the config again")
    return [what for name, what in _ENCODERS.items() if values.get(name)]


class Scheme(NamedTuple):
    """How a quantized weight is stored and multiplied."""

    name: str  # one of `sextant.facts.llm.QUANTIZED`
    bits: float  # bits of a weight, its share of the scales included
    is_weight_only: bool = False  # whether the products are those of 16-bit numbers


FP8 = Scheme("fp8", 8.0)
NVFP4 = Scheme("nvfp4", 4 + 8 / 16)  # 16 weights share a scale of 8 bits
MXFP4 = Scheme("mxfp4", 4 + 8 / 32)  # 32 share an exponent of 8 bits (OCP MX Formats 1.0)
_ALGORITHMS = {"NVFP4": NVFP4, "FP8": FP8}
_METHODS = "awq, bitsandbytes, compressed-tensors, fbgemm_fp8, fp8, gptq, modelopt, mxfp4"


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
_PIECES = {"attention": 4, "shared_experts": 3, "mlp": 3}
_WHOLE_LAYER = re.compile(r"(^|[.*])layers\.\d+$")
_LAYER = re.compile(r"layers\.(\d+)(\.|$)")
_PIECE = re.compile(r"\.([a-z]+)_proj$")
_EXCEPTIONS = ("modules_to_not_convert", "ignore", "llm_int8_skip_modules", "ignored_layers")


class Matrices(NamedTuple):
    """Parameters of the layers' matrices, the only ones that are ever quantized."""

    attention: int
    mlp: int  # MLPs of the layers without experts, and dense MLPs in layers with experts
    shared_experts: int = 0
    experts: int = 0  # routed experts
    n_layers: int = 0
    n_dense_layers: int = 0  # without experts; first, unless they alternate with others
    is_even: bool = True  # whether attention has the same size in all layers

    def without_exceptions(self, inner: Config) -> Self:
        """Return the parameters that are quantized: `inner` names modules that are not."""
        # By part and layer, the pieces that are left unquantized; layer "" means all layers.
        kept: dict[str, dict[str, set[str]]] = {part: {} for part in _PARTS}
        for field in _EXCEPTIONS:
            for name in inner.listing(field, str, default=[]):
                module = name.removeprefix("re:").replace("\\", "").rstrip(".*$")
                layer = _LAYER.search(module)
                piece = _PIECE.search(module)
                # Layers beyond the last predict further tokens.
                is_beyond = layer is not None and int(layer[1]) >= self.n_layers
                if is_beyond or _NEVER_QUANTIZED.search(module):
                    continue
                for part in self._parts_of(inner, field, module):
                    pieces = kept[part].setdefault(layer[1] if layer else "", set())
                    pieces.add(piece[1] if piece else "")

        n_sparse = self.n_layers - self.n_dense_layers
        n_mlps = self.n_dense_layers or self.n_layers
        layers = {"attention": self.n_layers, "shared_experts": n_sparse, "mlp": n_mlps}
        left = {}
        for part, by_layer in kept.items():
            shares = {
                layer: 1.0 if "" in pieces else len(pieces) / _PIECES[part]
                for layer, pieces in by_layer.items()
            }
            # Q, K, V and output differ in size; the matrices of an MLP do not.
            if part == "attention" and any(share % 1 for share in shares.values()):
                fix = "leave all of a layer's attention unquantized, or none of it"
                raise inner.error("parts of attention are left unquantized", "ignore", fix)
            of_all = shares.pop("", 0.0)
            left[part] = 1 - min(1.0, max(of_all, sum(shares.values()) / (layers[part] or 1)))

        if not self.is_even and 0 < left["attention"] < 1:
            fix = "leave the attention of all layers unquantized, or none of it"
            raise inner.error("layers of different sizes are left unquantized", "ignore", fix)
        kept_sizes = {part: round(share * getattr(self, part)) for part, share in left.items()}
        return self._replace(**kept_sizes)

    def _parts_of(self, inner: Config, field: str, module: str) -> list[str]:
        """Return the parts that an exception in `field` names."""
        parts = [part for part, pattern in _PARTS.items() if pattern.search(module)]
        layer = _LAYER.search(module)
        if layer and _WHOLE_LAYER.search(module) and int(layer[1]) < self.n_dense_layers:
            parts = ["attention", "mlp"]
        # In a mixture of experts `mlp` may mean all experts as well.
        is_unclear = module.endswith(("mlp", "feed_forward")) and self.experts and not self.mlp
        if not parts or is_unclear:
            fix = f"quantize all matrices of the layers, or add the exception to {_PLACE}"
            raise inner.error(f"{module!r} is left unquantized: cannot be sized", field, fix)
        return parts


def quantization(config: Config, matrices: Matrices) -> dict[str, Any]:
    """Return the fields of `LLM` on quantization, none without; InputError: unknown method."""
    if config.optional("quantization_config") is None:
        return {}
    inner = config.section("quantization_config")
    # The first checkpoints of ModelOpt name their tool alone.
    has_method = "quant_method" in inner.values or "producer" not in inner.values
    method = inner.word("quant_method") if has_method else "modelopt"
    scheme = _scheme(inner, method)
    experts = None
    if inner.optional("moe_quant_algo") is not None:
        # The exceptions are those of the experts' scheme.
        config.ignore("expert_dtype")
        experts = _algorithm(inner, "moe_quant_algo")
    elif config.optional("expert_dtype") is not None:
        config.require(expert_dtype="fp4")
        experts = MXFP4
    if method == "mxfp4":  # packs experts alone, which are most of such an LLM
        matrices = matrices._replace(attention=0, mlp=0, shared_experts=0)
    if inner.optional("moe_quant_algo") is None:
        matrices = matrices.without_exceptions(inner)
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
        "n_quantized_parameters": sum(matrices[:4]),
        "n_quantized_expert_parameters": matrices.experts,
    }


def _scheme(inner: Config, method: str) -> Scheme:
    match method:
        case "gptq" | "awq":
            inner.require(dynamic={})
            has_zeros = method == "gptq" or inner.flag("zero_point")
            return _integers(_grouped(inner, "bits", has_zeros=has_zeros))
        case "bitsandbytes":
            four, eight = (inner.flag(f"load_in_{n}bit", default=False) for n in (4, 8))
            if four == eight:
                fix = "set one of load_in_4bit and load_in_8bit"
                raise inner.error("neither 4 nor 8 bits, or both", "load_in_4bit", fix)
            # 64 weights share a 32-bit maximum; double quantization stores it in 8 bits, and a
            # 32-bit number for 256 of them (Dettmers et al., QLoRA, NeurIPS 2023, section 3).
            is_double = four and inner.flag("bnb_4bit_use_double_quant", default=False)
            scales = 8 / 64 + 32 / (64 * 256) if is_double else 32 / 64
            return _integers(4 + scales) if four else Scheme("int8", 8.0)
        case "fp8" if inner.optional("weight_block_size") is not None:
            return Scheme("fp8", 8 + _block_scale_bits(inner, "weight_block_size"))
        case "fp8" | "fbgemm_fp8":
            return FP8
        case "compressed-tensors":
            return _compressed_tensors(inner)
        case "modelopt":
            return _algorithm(inner, "quant_algo")
        case "mxfp4":
            return MXFP4
    raise inner.error(f"unknown method {method!r}", "quant_method", f"use one of {_METHODS}")


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


def _compressed_tensors(inner: Config) -> Scheme:
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
        match weights.get("strategy"):
            case "tensor" | "channel":
                stored = float(bits)
            case "group":
                has_zeros = not weights.flag("symmetric")
                stored = _grouped(weights, "num_bits", has_zeros=has_zeros)
            case "tensor_group":  # NVFP4: an 8-bit scale per group
                stored = bits + 8 / weights.integer("group_size")
            case "block":
                stored = bits + _block_scale_bits(weights, "block_structure")
            case strategy:
                fix = "use tensor, channel, group, tensor_group or block"
                raise weights.error(f"unknown strategy {strategy!r}", "config_groups", fix)
        scheme = Scheme("fp8", stored) if is_float else _integers(stored)
    return scheme._replace(is_weight_only=group.get("input_activations") is None)
