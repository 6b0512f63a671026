"""GPT and its kind: layer norms, an MLP of two matrices, mostly with biases."""

from collections.abc import Callable

from sextant.llm.config import Config
from sextant.llm.facts import LLM, UNBOUNDED_TOKENS
from sextant.llm.layers import Sizes, biases, decoder, head_dim
from sextant.llm.sliding_window import all_layers, window_facts


def _hf_sizes(config: Config, kv_heads: int | None = None) -> Sizes:
    """Read the sizes of a family that names them as most do."""
    h, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    return Sizes(
        hidden=h,
        ffn=config.integer("intermediate_size"),
        layers=config.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads or heads,
        head_dim=head_dim(config, h, heads),
        vocab=config.integer("vocab_size"),
        context=config.integer("max_position_embeddings"),
    )


def _gpt2_sizes(config: Config, kv_heads: int | None = None) -> Sizes:
    """Read the sizes of a family that names them as GPT-2 does."""
    h, layers, heads = (config.integer(name) for name in ("n_embd", "n_layer", "n_head"))
    return Sizes(
        hidden=h,
        ffn=config.integer("n_inner", default=4 * h),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads or heads,
        head_dim=head_dim(config, h, heads),
        vocab=config.integer("vocab_size"),
        context=config.integer("n_positions"),
    )


def _opt(config: Config) -> LLM:
    h, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    s = Sizes(
        hidden=h,
        ffn=config.integer("ffn_dim"),
        layers=config.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim(config, h, heads),
        vocab=config.integer("vocab_size"),
        context=config.integer("max_position_embeddings"),
    )
    projected = config.integer("word_embed_proj_dim")
    for name in ("enable_bias", "layer_norm_elementwise_affine", "tie_word_embeddings"):
        config.require(name, True)
    final_norm = 2 * h if config.flag("do_layer_norm_before") else 0
    return decoder(
        config,
        s,
        is_tied=True,
        head=s.vocab * projected + (2 * h * projected if projected != h else 0),
        mlp_matrices=2,
        positions=(s.context + 2) * h,  # OPT's learned positions start at 2
        vectors=s.layers * (biases(s, qkv=True, out=True, mlp=True) + 4 * h) + final_norm,
    )


def _gpt_neox(config: Config) -> LLM:
    s = _hf_sizes(config)
    config.require("attention_bias", True)
    return decoder(
        config,
        s,
        is_tied=config.flag("tie_word_embeddings", default=False),
        mlp_matrices=2,
        vectors=s.layers * (biases(s, qkv=True, out=True, mlp=True) + 4 * s.hidden) + 2 * s.hidden,
    )


def _gpt2(config: Config) -> LLM:
    """GPT-2, and GPT-BigCode, where all heads may share one K and V."""
    is_shared = config.get("model_type") == "gpt_bigcode" and config.flag("multi_query")
    s = _gpt2_sizes(config, kv_heads=1 if is_shared else None)
    config.require("num_key_value_heads", s.kv_heads)  # newer configs write it out
    config.require("tie_word_embeddings", True)
    return decoder(
        config,
        s,
        is_tied=True,
        mlp_matrices=2,
        positions=s.context * s.hidden,
        vectors=s.layers * (biases(s, qkv=True, out=True, mlp=True) + 4 * s.hidden) + 2 * s.hidden,
    )


def _gptj(config: Config) -> LLM:
    """GPT-J and CodeGen: attention and MLP side by side behind one norm, rotary positions."""
    s = _gpt2_sizes(config)
    config.require("tie_word_embeddings", False)
    return decoder(
        config,
        s,
        is_tied=False,
        mlp_matrices=2,
        # Only the MLP and the head have biases.
        vectors=s.layers * (biases(s, mlp=True) + 2 * s.hidden) + 2 * s.hidden + s.vocab,
    )


def _mpt(config: Config) -> LLM:
    h, layers, heads = (config.integer(name) for name in ("d_model", "n_layers", "n_heads"))
    if not config.get("no_bias"):
        fix = "set no_bias to true, as every published MPT has it"
        raise config.error("biases are not supported", "no_bias", fix)
    attention = config.get("attn_config")
    if not isinstance(attention, dict) or attention.get("attn_type") != "multihead_attention":
        fix = "only multihead_attention is supported; add the other to sextant/llm/"
        raise config.error("unknown attention", "attn_config", fix)
    if attention.get("qk_ln"):
        raise config.error("norms of Q and K", "attn_config", "only qk_ln = false is supported")
    s = Sizes(
        hidden=h,
        ffn=config.integer("expansion_ratio") * h,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim(config, h, heads),
        vocab=config.integer("vocab_size"),
        context=config.integer("max_seq_len"),
    )
    config.require("tie_word_embeddings", True)
    # ALiBi has no table of positions.
    return decoder(config, s, is_tied=True, mlp_matrices=2, vectors=layers * 2 * h + h)


def _bloom(config: Config) -> LLM:
    h, heads = config.integer("hidden_size"), config.integer("n_head")
    s = Sizes(
        hidden=h,
        ffn=4 * h,
        layers=config.integer("n_layer"),
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim(config, h, heads),
        vocab=config.integer("vocab_size"),
        # ALiBi sets no limit; `seq_length`, the length in training, is what servers go by.
        context=config.integer("seq_length", default=UNBOUNDED_TOKENS),
    )
    config.require("n_inner", s.ffn)
    norms = 4 * h * s.layers + 2 * h + 2 * h  # one of the embedding, one at the end
    return decoder(
        config,
        s,
        is_tied=config.flag("tie_word_embeddings", default=True),
        mlp_matrices=2,
        vectors=s.layers * biases(s, qkv=True, out=True, mlp=True) + norms,
    )


def _falcon(config: Config) -> LLM:
    h, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    s = Sizes(
        hidden=h,
        ffn=config.integer("ffn_hidden_size", default=4 * h),
        layers=config.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=_falcon_kv_heads(config, heads),
        head_dim=head_dim(config, h, heads),
        vocab=config.integer("vocab_size"),
        # Falcon 7B and 40B leave it to the class.
        context=config.integer("max_position_embeddings", default=2048),
    )
    has_bias = config.flag("bias")
    return decoder(
        config,
        s,
        is_tied=config.flag("tie_word_embeddings", default=True),
        mlp_matrices=2,
        vectors=s.layers
        * (biases(s, qkv=has_bias, out=has_bias, mlp=has_bias) + _falcon_norms(config) * 2 * h)
        + 2 * h,
    )


def _falcon_kv_heads(config: Config, heads: int) -> int:
    is_grouped, is_shared = config.flag("new_decoder_architecture"), config.flag("multi_query")
    if is_grouped:
        return config.integer("num_kv_heads")
    config.ignore("num_kv_heads")  # has a meaning in the new architecture only
    return 1 if is_shared else heads


def _falcon_norms(config: Config) -> int:
    """Return the layer norms of a layer: one if attention and MLP run side by side behind it."""
    if config.flag("new_decoder_architecture"):
        return config.integer("num_ln_in_parallel_attn", default=2)
    return 1 if config.flag("parallel_attn") else 2


def _phi(config: Config) -> LLM:
    heads = config.integer("num_attention_heads")
    s = _hf_sizes(config, kv_heads=config.integer("num_key_value_heads", default=heads))
    qk_norm = 4 * s.head_dim if config.flag("qk_layernorm", default=False) else 0
    config.require("tie_word_embeddings", False)
    bias = biases(s, qkv=True, out=True, mlp=True)
    return decoder(
        config,
        s,
        is_tied=False,
        mlp_matrices=2,
        vectors=s.layers * (bias + 2 * s.hidden + qk_norm) + 2 * s.hidden + s.vocab,
    )


def _starcoder2(config: Config) -> LLM:
    s = _hf_sizes(config, kv_heads=config.integer("num_key_value_heads"))
    has_bias = config.flag("use_bias", default=True)
    bias = biases(s, qkv=has_bias, out=has_bias, mlp=has_bias)
    return decoder(
        config,
        s,
        is_tied=config.flag("tie_word_embeddings", default=True),
        mlp_matrices=2,
        vectors=s.layers * (bias + 4 * s.hidden) + 2 * s.hidden,
        **window_facts(config, s.layers, all_layers),
    )


FAMILIES: dict[str, Callable[[Config], LLM]] = {
    "opt": _opt,
    "gpt_neox": _gpt_neox,
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt2,
    "gptj": _gptj,
    "codegen": _gptj,
    "mpt": _mpt,
    "bloom": _bloom,
    "falcon": _falcon,
    "phi": _phi,
    "starcoder2": _starcoder2,
}
