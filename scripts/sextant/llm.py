"""Facts of an LLM, computed from the shapes in its Hugging Face `config.json`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sextant.errors import InputError
from sextant.files import read_json

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
UNBOUNDED_TOKENS = 2**31 - 1
"""The context of an LLM whose positions set no limit."""


@dataclass(frozen=True)
class LLM:
    """An LLM's architecture. Sizes are counts; nothing here depends on where it runs."""

    llm_type: str
    """`model_type` of the config, e.g. `opt`."""
    n_layers: int
    """Layers that generate: those of the decoder."""
    hidden_size: int
    ffn_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    context_tokens: int
    """Longest sequence, input and output together; `UNBOUNDED_TOKENS` if there is no limit."""
    dtype: str
    n_parameters: int
    """All parameters, embeddings included; tied matrices count once."""
    n_flop_parameters: int
    """Parameters that a token is multiplied with on its way through the decoder.

    Decoder-only: every token, of input or output; all matrices but the look-up tables.
    Encoder-decoder: every output token; the decoder's matrices, of cross-attention Q and O.
    """
    is_encoder_decoder: bool = False
    n_encoder_layers: int = 0
    n_encoder_flop_parameters: int = 0
    """Parameters that an input token of an encoder-decoder is multiplied with, once.

    The encoder's matrices, and K and V of the decoder's cross-attention; 0 if decoder-only.
    """

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights at the config's data type."""
        return self.n_parameters * DTYPE_BYTES[self.dtype]

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of the KV cache that one token, of input or output, takes: K and V of every layer.

        In an encoder-decoder an output token has them in the decoder's self-attention, an input
        token in its cross-attention, which is of the same size.
        """
        return 2 * self.n_layers * self.n_kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]


class _Config:
    """Reads a config by name; a missing field is an error that names it, never a default."""

    def __init__(self, values: Mapping[str, Any], file: Path | str) -> None:
        self.values, self.file = values, file

    def get(self, *names: str) -> Any:
        for name in names:
            if self.values.get(name) is not None:
                return self.values[name]
        fix = f"add '{names[0]}' as Hugging Face names it"
        raise InputError("the field is missing", file=self.file, field=names[0], fix=fix)

    def optional(self, name: str, default: Any) -> Any:
        """Return a field whose absence has a meaning that the family's own code defines."""
        value = self.values.get(name)
        return default if value is None else value

    def integer(self, *names: str, default: int | None = None) -> int:
        value = self.get(*names) if default is None else self.optional(names[0], default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            fix = "give a whole number above 0"
            raise InputError(f"{value!r} is not a size", file=self.file, field=names[0], fix=fix)
        return value

    def require(self, name: str, expected: bool) -> None:
        """Refuse a variant that the family's formula would size wrongly."""
        if self.optional(name, expected) != expected:
            fix = f"only {str(expected).lower()} is supported; add the variant to sextant/llm.py"
            raise InputError("unsupported variant", file=self.file, field=name, fix=fix)


def load_llm(path: str | Path) -> LLM:
    """Read the facts of an LLM from its `config.json`.

    Raises:
        InputError: the file is not JSON, its family is unknown, or a field is missing.
    """
    try:
        values = read_json(path)
    except FileNotFoundError:
        fix = "save the LLM's config.json under this name"
        raise InputError("there is no such file", file=path, fix=fix) from None
    except ValueError as error:
        raise InputError(f"not JSON ({error})", file=path, fix="save the config again") from None
    if not isinstance(values, dict):
        raise InputError("not a JSON object", file=path, fix="save the config again")
    config = _Config(values, path)
    if "quantization_config" in values:
        fix = "give the unquantized config; quantized weights cannot be sized yet"
        raise InputError("not supported", file=path, field="quantization_config", fix=fix)
    family = config.get("model_type")
    if family not in _FAMILIES:
        fix = f"use one of {', '.join(sorted(_FAMILIES))}, or add the family to sextant/llm.py"
        raise InputError(f"unknown family {family!r}", file=path, field="model_type", fix=fix)
    return _FAMILIES[family](config)


def _facts(config: _Config, lookup: int, matrices: int, vectors: int, **shape: Any) -> LLM:
    """Assemble an `LLM`; the output head is in `matrices` even where it is tied.

    Heads have K and V of their own, and share the hidden size, unless `shape` says otherwise.
    """
    heads = shape["n_heads"]
    shape.setdefault("n_kv_heads", heads)
    if "head_dim" not in shape:
        shape["head_dim"] = _head_dim(config, shape["hidden_size"], heads)
    dtype = config.get("dtype", "torch_dtype")
    if dtype not in DTYPE_BYTES:
        fix = f"use one of {', '.join(DTYPE_BYTES)}"
        raise InputError(f"unknown type {dtype!r}", file=config.file, field="dtype", fix=fix)
    if heads % shape["n_kv_heads"]:
        problem = f"{heads} heads cannot share {shape['n_kv_heads']} KV heads evenly"
        raise InputError(problem, file=config.file, fix="correct the numbers of heads")
    return LLM(
        llm_type=config.get("model_type"),
        dtype=dtype,
        vocab_size=config.integer("vocab_size"),
        n_parameters=lookup + matrices + shape.get("n_encoder_flop_parameters", 0) + vectors,
        n_flop_parameters=matrices,
        **shape,
    )


def _head_dim(config: _Config, hidden: int, heads: int) -> int:
    if hidden % heads:
        problem = f"{heads} heads do not divide the hidden size {hidden}"
        raise InputError(problem, file=config.file, fix="correct one of the two")
    return hidden // heads


def _opt(config: _Config) -> LLM:
    h, ffn = config.integer("hidden_size"), config.integer("ffn_dim")
    layers, heads = config.integer("num_hidden_layers"), config.integer("num_attention_heads")
    positions, vocab = config.integer("max_position_embeddings"), config.integer("vocab_size")
    projected = config.integer("word_embed_proj_dim")
    for name in ("enable_bias", "layer_norm_elementwise_affine", "tie_word_embeddings"):
        config.require(name, True)
    projections = 2 * h * projected if projected != h else 0
    final_norm = 2 * h if config.get("do_layer_norm_before") else 0
    return _facts(
        config,
        # OPT's learned positions start at 2. Input and output embeddings are one matrix.
        lookup=(positions + 2) * h,
        matrices=vocab * projected + projections + layers * (4 * h * h + 2 * h * ffn),
        vectors=layers * (4 * h + ffn + h + 4 * h) + final_norm,
        n_layers=layers,
        hidden_size=h,
        ffn_size=ffn,
        n_heads=heads,
        context_tokens=positions,
    )


def _llama(config: _Config) -> LLM:
    h, ffn = config.integer("hidden_size"), config.integer("intermediate_size")
    layers, heads = config.integer("num_hidden_layers"), config.integer("num_attention_heads")
    vocab, context = config.integer("vocab_size"), config.integer("max_position_embeddings")
    # Llama 1 and 2 write no `num_key_value_heads` and no `head_dim` where these follow.
    kv_heads = config.integer("num_key_value_heads", default=heads)
    head_dim = (
        _head_dim(config, h, heads)
        if config.optional("head_dim", None) is None
        else config.integer("head_dim")
    )
    config.require("mlp_bias", False)
    attention = 2 * h * heads * head_dim + 2 * h * kv_heads * head_dim
    bias = 0
    if config.get("model_type") == "qwen2" or config.optional("attention_bias", False):
        bias = (heads + 2 * kv_heads) * head_dim
    if config.optional("attention_bias", False):
        bias += h  # the output projection, which Qwen2 leaves without
    tied = config.optional("tie_word_embeddings", False)
    return _facts(
        config,
        lookup=0 if tied else vocab * h,
        matrices=vocab * h + layers * (attention + 3 * h * ffn),
        vectors=layers * (2 * h + bias) + h,
        n_layers=layers,
        hidden_size=h,
        ffn_size=ffn,
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=head_dim,
        context_tokens=context,
    )


def _gpt_neox(config: _Config) -> LLM:
    h, ffn = config.integer("hidden_size"), config.integer("intermediate_size")
    layers, heads = config.integer("num_hidden_layers"), config.integer("num_attention_heads")
    vocab, context = config.integer("vocab_size"), config.integer("max_position_embeddings")
    config.require("attention_bias", True)
    tied = config.optional("tie_word_embeddings", False)
    return _facts(
        config,
        lookup=0 if tied else vocab * h,
        matrices=vocab * h + layers * (4 * h * h + 2 * h * ffn),
        vectors=layers * (4 * h + ffn + h + 4 * h) + 2 * h,
        n_layers=layers,
        hidden_size=h,
        ffn_size=ffn,
        n_heads=heads,
        context_tokens=context,
    )


def _gpt_bigcode(config: _Config) -> LLM:
    h, layers, heads = (config.integer(name) for name in ("n_embd", "n_layer", "n_head"))
    vocab, positions = config.integer("vocab_size"), config.integer("n_positions")
    ffn = config.integer("n_inner", default=4 * h)
    config.require("tie_word_embeddings", True)
    head_dim = _head_dim(config, h, heads)
    kv_heads = 1 if config.get("multi_query") else heads
    qkv = h + 2 * kv_heads * head_dim
    return _facts(
        config,
        lookup=positions * h,
        matrices=vocab * h + layers * (h * qkv + h * h + 2 * h * ffn),
        vectors=layers * (qkv + h + ffn + h + 4 * h) + 2 * h,
        n_layers=layers,
        hidden_size=h,
        ffn_size=ffn,
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=head_dim,
        context_tokens=positions,
    )


def _mpt(config: _Config) -> LLM:
    h, layers, heads = (config.integer(name) for name in ("d_model", "n_layers", "n_heads"))
    vocab, context = config.integer("vocab_size"), config.integer("max_seq_len")
    if not config.get("no_bias"):
        fix = "set no_bias to true, as every published MPT has it"
        raise InputError("biases are not supported", file=config.file, field="no_bias", fix=fix)
    attention = config.get("attn_config")
    if not isinstance(attention, dict) or attention.get("attn_type") != "multihead_attention":
        fix = "only multihead_attention is supported; add the other to sextant/llm.py"
        raise InputError("unknown attention", file=config.file, field="attn_config", fix=fix)
    ffn = config.integer("expansion_ratio") * h
    return _facts(
        config,
        lookup=0,  # ALiBi has no table of positions, and the embeddings are tied
        matrices=vocab * h + layers * (4 * h * h + 2 * h * ffn),
        vectors=layers * 2 * h + h,
        n_layers=layers,
        hidden_size=h,
        ffn_size=ffn,
        n_heads=heads,
        context_tokens=context,
    )


def _codegen(config: _Config) -> LLM:
    h, layers, heads = (config.integer(name) for name in ("n_embd", "n_layer", "n_head"))
    vocab, context = config.integer("vocab_size"), config.integer("n_positions")
    ffn = config.integer("n_inner", default=4 * h)
    config.require("tie_word_embeddings", False)
    return _facts(
        config,
        lookup=vocab * h,  # rotary positions have no table
        matrices=vocab * h + layers * (4 * h * h + 2 * h * ffn),
        # Attention and MLP are parallel behind one norm; only the MLP and the head have biases.
        vectors=layers * (2 * h + ffn + h) + 2 * h + vocab,
        n_layers=layers,
        hidden_size=h,
        ffn_size=ffn,
        n_heads=heads,
        context_tokens=context,
    )


def _t5(config: _Config) -> LLM:
    h, ffn, head_dim = (config.integer(name) for name in ("d_model", "d_ff", "d_kv"))
    layers, heads = config.integer("num_layers"), config.integer("num_heads")
    decoder_layers = config.integer("num_decoder_layers", default=layers)
    vocab, buckets = (
        config.integer(name) for name in ("vocab_size", "relative_attention_num_buckets")
    )
    config.require("is_encoder_decoder", True)
    mlp = _t5_mlp_matrices(config) * h * ffn
    product = h * heads * head_dim  # `d_kv` is free: the heads need not add up to the hidden size
    tied = config.optional("tie_word_embeddings", True)
    return _facts(
        config,
        lookup=0 if tied else vocab * h,
        matrices=vocab * h + decoder_layers * (6 * product + mlp),
        # RMS norms before each sublayer and after each stack; a table of relative positions each.
        vectors=layers * 2 * h + decoder_layers * 3 * h + 2 * h + 2 * buckets * heads,
        is_encoder_decoder=True,
        n_encoder_layers=layers,
        n_encoder_flop_parameters=layers * (4 * product + mlp) + decoder_layers * 2 * product,
        n_layers=decoder_layers,
        hidden_size=h,
        ffn_size=ffn,
        n_heads=heads,
        head_dim=head_dim,
        # Relative positions: far tokens share the last bucket. `n_positions`, which half of the
        # configs lack, is the length in training; Flan-T5 serves longer inputs than its 512.
        context_tokens=UNBOUNDED_TOKENS,
    )


def _t5_mlp_matrices(config: _Config) -> int:
    # The first T5 configs do not write it; what that means is the family's.
    original = {"t5": "relu", "mt5": "gated-gelu"}[config.get("model_type")]
    kind = config.optional("feed_forward_proj", original)
    if kind in ("relu", "gelu"):
        return 2
    if kind in ("gated-gelu", "gated-silu", "gated-relu"):
        return 3
    fix = "use relu, gelu, gated-gelu, gated-silu or gated-relu"
    raise InputError(f"unknown MLP {kind!r}", file=config.file, field="feed_forward_proj", fix=fix)


_FAMILIES: dict[str, Callable[[_Config], LLM]] = {
    "opt": _opt,
    "llama": _llama,
    "qwen2": _llama,
    "gpt_neox": _gpt_neox,
    "gpt_bigcode": _gpt_bigcode,
    "mpt": _mpt,
    "codegen": _codegen,
    "t5": _t5,
    "mt5": _t5,
}
