"""Reads a `config.json` strictly, and what is made of it: an LLM's shapes, bytes and products."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from sextant import PROJECT
from sextant.base.errors import InputError
from sextant.base.files import read_object

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

# Fields whose value changes the size or the cost. If a family's code does not read one that is
# set, the config is of a variant that would be sized wrongly.
_SIZING = re.compile(
    r"bias$|^tie_|hidden_size|intermediate|ffn|n_inner|vocab_size|head_dim|heads$|_layers$|n_layer"
    r"|n_head|expert|moe|lora|mamba|ssm|conv|cross_attention|multi_query|pruned_heads|layer_types"
    r"|^sliding_window$|q(uery|k)_(layer)?norm|qk_ln|^_remove_final_layer_norm$|^compression_config$"
)
# Fields of the text part that a vision-language config may have outside of it.
_SHARED = ("dtype", "torch_dtype", "tie_word_embeddings", "quantization_config")
_MOST = 10**9  # far above any size of an LLM: a larger number has a digit too many
_LONGEST = 100
"""Characters of each end of a problem that repeats a long value."""
SHIPPED = PROJECT / "resources" / "llms"


class Config:
    """An LLM's config: a missing field is an error that names it, never a default."""

    def __init__(self, values: Mapping[str, Any], file: Path | str) -> None:
        self.values, self.file = values, file
        self._read: set[str] = set()

    def error(self, problem: str, field: str | None, fix: str) -> InputError:
        """Return the error to raise about a field of this config."""
        if len(problem) > 2 * _LONGEST:
            problem = f"{problem[:_LONGEST]} … {problem[-_LONGEST:]}"
        return InputError(problem, file=self.file, field=field, fix=fix)

    def optional(self, name: str, default: Any = None) -> Any:
        """Return a field whose absence has a meaning that the family's own code defines.

        `null` is how Hugging Face writes "not set".
        """
        group = _GROUPS.get(name, (name,))
        self._read.update(group)
        given = {key: self.values[key] for key in group if self.values.get(key) is not None}
        if len({repr(value) for value in given.values()}) > 1:
            names = ", ".join(f"{key} = {value}" for key, value in given.items())
            raise self.error(f"names of one thing disagree ({names})", name, "keep the right one")
        return next(iter(given.values()), default)

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

    def word(self, name: str) -> str:
        """Return a name that has to be there."""
        value = self.get(name)
        if not isinstance(value, str):
            raise self.error(f"{value!r} is not a name", name, "write one name in quotes")
        return value

    def listing(self, name: str, kind: type, default: list[Any] | None = None) -> list[Any]:
        """Return a list of names (`str`) or whole numbers (`int`); it may have a default."""
        value = self.get(name, default)
        # By the exact type: `true` is an `int` to Python.
        if not isinstance(value, list) or any(type(each) is not kind for each in value):
            what = {str: "names", int: "whole numbers"}[kind]
            raise self.error(f"{value!r} is not a list of {what}", name, f"give {what} in [ ]")
        return value

    def by_layer(
        self, name: str, layers: int, allowed: tuple[Any, ...], default: list[Any] | None = None
    ) -> list[Any]:
        """Return what a field says of each layer, one of `allowed`."""
        values = self.listing(name, type(allowed[0]), default)
        if len(values) != layers or not set(values) <= set(allowed):
            words = " or ".join(map(str, allowed))
            fix = f"give {words} for each of the {layers} layers"
            raise self.error("unknown kinds of layers", name, fix)
        return values

    def flag(self, name: str, default: bool | None = None) -> bool:
        """Return a switch; it may be absent if it has a default."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.error(f"{value!r} is not true or false", name, "write true or false")
        return value

    def require(self, name: str, expected: Any) -> None:
        """Raise InputError if a field has another value than the one that the formula is for."""
        if self.optional(name, expected) != expected:
            text = str(expected).lower() if isinstance(expected, bool) else expected
            fix = f"only {text} is supported; add the variant to sextant/facts/llm/"
            raise self.error("unsupported variant", name, fix)

    def ignore(self, *names: str) -> None:
        """Mark fields as read that change nothing in this family."""
        self._read.update(names)

    def refuse_unread_fields(self) -> None:
        """Raise InputError if a field that changes size or cost was not read."""
        for name, value in self.values.items():
            if value and name not in self._read and _SIZING.search(name):
                family = self.values["model_type"]
                problem = f"{value!r} may change the size, and nothing is known of it in {family}"
                fix = "remove it if it has no effect, or add the variant to sextant/facts/llm/"
                raise self.error(problem, name, fix)


class Section(Config):
    """A part of a config: errors name its fields as `<name>.<field>`."""

    def __init__(self, values: Any, file: Path | str, name: str) -> None:
        super().__init__(values, file)
        self._name = name
        if not isinstance(values, dict):
            raise InputError("not a JSON object", file=file, field=name, fix="save it again")

    def error(self, problem: str, field: str | None, fix: str) -> InputError:
        """Return the error to raise about a field of this part."""
        return super().error(problem, f"{self._name}.{field}", fix)


def read_config(path: str | Path, dtype: str | None = None) -> Config:
    """Read the part of a `config.json` that describes the LLM, `dtype` in place of its own.

    Raises InputError: no such file, not JSON, or a nested config that generates no text.
    """
    try:
        values = read_object(path, fix="save the config again")
    except FileNotFoundError:
        fix = "save the LLM's config.json under this name"
        raise InputError("there is no such file", file=path, fix=fix) from None
    text = _quantized_by_modelopt(Path(path)) | _text_part(values, path)
    if dtype is not None:
        text = {**text, "torch_dtype": None, "dtype": dtype}
    return Config(text, path)


def _quantized_by_modelopt(config: Path) -> dict[str, Any]:
    """Return what NVIDIA's ModelOpt writes into `hf_quant_config.json` beside a `config.json`."""
    file = config.with_name("hf_quant_config.json")
    if config.name != "config.json" or not file.is_file():
        return {}
    values = read_object(file, fix="save the file again")
    given = Section(values.get("quantization"), file, "quantization")
    renamed = {
        "quant_algo": given.optional("quant_algo"),
        "ignore": given.optional("exclude_modules"),
        "kv_cache_scheme": given.optional("kv_cache_quant_algo"),
    }
    return {"quantization_config": {"quant_method": "modelopt", **renamed}}


def _text_part(values: dict[str, Any], file: Path | str) -> dict[str, Any]:
    """Return the config itself, or `text_config` of one that takes images as well."""
    if "text_config" not in values:
        return values
    outer = Config(values, file)
    text, architectures = outer.get("text_config"), outer.listing("architectures", str)
    if not isinstance(text, dict):
        raise outer.error("not a JSON object", "text_config", "save the config again")
    if not all(name.endswith(("Generation", "ForCausalLM")) for name in architectures):
        problem = f"{architectures} does not generate text"
        raise outer.error(problem, "architectures", "use a config of a generating LLM")
    for name in _SHARED:
        if None not in (ours := (values.get(name), text.get(name))) and ours[0] != ours[1]:
            problem = f"{ours[0]!r}, but {ours[1]!r} inside text_config"
            raise outer.error(problem, name, "keep the right one")
    both = {name: values[name] for name in _SHARED if name in values}
    return both | {name: value for name, value in text.items() if value is not None}


def config_file(hf_config: Path) -> Path:
    """Return the file of an LLM's config: the one that is given, or that of its folder."""
    return hf_config / "config.json" if hf_config.is_dir() else hf_config


def name_of(hf_config: Path) -> str:
    """Return the name of an LLM: its file's, or its folder's if the file is `config.json`."""
    path = config_file(hf_config)
    if path.name == "config.json":
        return path.resolve().parent.name or path.stem
    return path.stem


def shipped_config(llm_id: str) -> Path | None:
    """Return the config of an LLM that ships with this project, None if there is none."""
    path = SHIPPED / f"{Path(llm_id).name}.json"
    return path if path.stem == llm_id and path.is_file() else None


DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
DTYPE_PRECISION = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
# NVFP4: 16 numbers share a scale of 8 bits.
_KV_DTYPE_BYTES = DTYPE_BYTES | {"fp8": 1, "int8": 1, "nvfp4": 9 / 16}
UNBOUNDED_TOKENS = 2**31 - 1
"""The context of an LLM whose positions set no limit."""


@dataclass(frozen=True)
class LLM:
    """An LLM's architecture. Sizes are counts; nothing here depends on where it runs.

    Bounds are checked where facts are read from a file of a cell, not by `LLM(…)`.

    The fields with a default describe a dense, unquantized decoder with ordinary attention.
    """

    llm_type: str
    """`model_type` of the config, e.g. `opt`; of its text part if it has others."""
    n_layers: PositiveInt
    """Layers that generate: those of the decoder."""
    hidden_size: PositiveInt
    ffn_size: PositiveInt
    """Width of a layer's MLP; in a mixture of experts, of one routed expert."""
    n_heads: PositiveInt
    n_kv_heads: PositiveInt
    head_dim: PositiveInt
    """Numbers in a head's query and key."""
    vocab_size: PositiveInt
    context_tokens: PositiveInt
    """Longest sequence, input plus output; `UNBOUNDED_TOKENS` if there is no limit."""
    dtype: Annotated[str, Field(pattern=f"^({'|'.join(DTYPE_BYTES)})$")]
    n_parameters: PositiveInt
    """All parameters, embeddings and every expert included; tied matrices count once."""
    n_flop_parameters: PositiveInt
    """Parameters that a token is multiplied with on its way through the decoder.

    Decoder-only: every token, of input or output; all matrices but the look-up tables, and of
    the routed experts as many as a token uses.
    Encoder-decoder: every output token; the decoder's matrices, of cross-attention Q and O.
    """
    is_encoder_decoder: bool = False
    n_encoder_layers: NonNegativeInt = 0
    n_encoder_flop_parameters: NonNegativeInt = 0
    """Parameters that an input token of an encoder-decoder is multiplied with, once.

    The encoder's matrices, and K and V of the decoder's cross-attention; 0 if decoder-only.
    """
    n_experts: NonNegativeInt = 0
    """Routed experts of a layer; 0 if dense. Shared experts, used by every token, do not count."""
    n_experts_per_token: NonNegativeInt = 0
    """Routed experts of a layer that one token uses."""
    n_expert_parameters: NonNegativeInt = 0
    """Matrices of all routed experts of all layers."""
    n_attention_parameters: NonNegativeInt = 0
    """Matrices of the attention of all layers."""
    n_mlp_parameters: NonNegativeInt = 0
    """Matrices of the MLPs of all layers, shared experts included, routed experts not."""
    kv_latent_size: NonNegativeInt = 0
    """Numbers in the one vector that multi-head latent attention (MLA) keeps per token and layer.

    0 for attention that keeps K and V of every KV head.
    """
    kv_dtype: Annotated[str, Field(pattern=f"^({'|'.join(_KV_DTYPE_BYTES)})?$")] = ""
    """Data type of the KV cache (float32, float16, bfloat16, fp8, int8, nvfp4); empty for `dtype`.

    The server's choice, not the config's: `dataclasses.replace` sets it.
    """
    weight_bits: NonNegativeFloat = 0.0
    """Bits of a quantized weight, its share of scales and zero points included; 0: unquantized."""
    n_quantized_parameters: NonNegativeInt = 0
    """Quantized parameters; the others are stored as `dtype`."""
    n_quantized_expert_parameters: NonNegativeInt = 0
    """Of these, parameters of routed experts."""
    weight_format: str = ""
    """Type of the quantized weights, one of `load.QUANTIZED`; empty: unquantized."""
    expert_format: str = ""
    """Type of the routed experts' quantized weights, where it is not `weight_format`."""
    expert_bits: NonNegativeFloat = 0.0
    """Bits of the routed experts' quantized weights, where they are not `weight_bits`."""
    is_weight_only: bool = False
    """Whether quantized weights are multiplied as 16-bit numbers (GPTQ, AWQ, INT4)."""
    sliding_window_tokens: NonNegativeInt = 0
    """Tokens that a layer with sliding-window attention looks back on; 0 if no layer has it."""
    n_sliding_layers: NonNegativeInt = 0
    n_attention_layers: NonNegativeInt = 0
    """Layers with attention, of any kind; 0: all. The others keep a state of fixed size."""
    state_bytes_per_request: NonNegativeInt = 0
    """Bytes of the states of linear attention and Mamba layers, whatever a request's length."""
    kv_values: NonNegativeFloat = 0.0
    """Numbers that one token leaves in the KV cache of all layers; 0: all layers are alike."""
    sliding_kv_values: NonNegativeFloat = 0.0
    """Of `kv_values`, those of the layers with a sliding window."""

    @property
    def attention(self) -> str:
        """The kind of attention: MHA, GQA, MQA (grouped, one KV head) or MLA (a latent vector)."""
        if self.kv_latent_size:
            return "MLA"
        if self.n_kv_heads == self.n_heads:
            return "MHA"
        return "MQA" if self.n_kv_heads == 1 else "GQA"

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights: quantized ones, and the others at the data type."""
        return self.dense_weight_bytes + self.expert_weight_bytes

    @property
    def dense_weight_bytes(self) -> int:
        """Bytes of all weights but those of the routed experts; embeddings are among them."""
        return self._dense_bytes(self.n_parameters - self.n_expert_parameters)

    @property
    def expert_weight_bytes(self) -> int:
        """Bytes of all routed experts of all layers."""
        n, bits = self.n_quantized_expert_parameters, self.expert_bits or self.weight_bits
        return (self.n_expert_parameters - n) * DTYPE_BYTES[self.dtype] + round(n * bits / 8)

    @property
    def step_weight_bytes(self) -> int:
        """Bytes of the decoder's matrices that every step reads: routed experts do not count.

        Look-up tables do not count either. Of an encoder-decoder's quantized weights the decoder
        has its share of the matrices.
        """
        dense = self.n_flop_parameters - self.n_active_expert_parameters
        share = dense / ((dense + self.n_encoder_flop_parameters) or 1)
        return self._dense_bytes(dense, share)

    @property
    def attention_weight_bytes(self) -> float:
        """Of `step_weight_bytes`, those of attention."""
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
    def flop_parameters(self) -> dict[str, float]:
        """`n_flop_parameters` by the precision (`load.PRECISIONS`) of their products."""
        dense: float = self.n_quantized_parameters - self.n_quantized_expert_parameters
        active = self.n_active_expert_parameters * (
            self.n_quantized_expert_parameters / (self.n_expert_parameters or 1)
        )
        decoder = self.n_flop_parameters - self.n_active_expert_parameters
        dense *= decoder / ((decoder + self.n_encoder_flop_parameters) or 1)
        plain, packed = DTYPE_PRECISION[self.dtype], self.weight_format
        if self.is_weight_only or not packed:
            return {plain: float(self.n_flop_parameters)}
        by_precision = {plain: self.n_flop_parameters - dense - active, packed: float(dense)}
        experts = self.expert_format or packed
        by_precision[experts] = by_precision.get(experts, 0.0) + active
        return {name: n for name, n in by_precision.items() if n}

    @property
    def kv_values_per_token_layer(self) -> int:
        """Numbers that one token leaves in the KV cache of one layer, where layers are alike."""
        return self.kv_latent_size or 2 * self.n_kv_heads * self.head_dim

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of the KV cache that one token, of input or output, takes over all layers.

        In an encoder-decoder an output token has them in the decoder's self-attention, an input
        token in its cross-attention, which is of the same size.
        """
        return round(self._kv_values * self._kv_number_bytes)

    @property
    def sliding_kv_bytes_per_token(self) -> float:
        """Of `kv_bytes_per_token`, those of layers that keep `sliding_window_tokens` tokens."""
        alike = self.n_sliding_layers * self.kv_values_per_token_layer
        return (self.sliding_kv_values if self.kv_values else alike) * self._kv_number_bytes

    @property
    def _kv_values(self) -> float:
        layers = self.n_attention_layers or self.n_layers
        return self.kv_values or layers * self.kv_values_per_token_layer

    @property
    def _kv_number_bytes(self) -> float:
        return _KV_DTYPE_BYTES[self.kv_dtype or self.dtype]
