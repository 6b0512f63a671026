"""Families whose layers are alike: Llama and its kind, GPT and its kind, and T5.

Llama's kind has RMS norms, rotary positions and a gated MLP, and differs in a few traits. GPT's has
layer norms and an MLP of two matrices, mostly with biases.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sextant.facts.llm.facts import LLM, UNBOUNDED_TOKENS, Config
from sextant.facts.llm.layers import (
    Experts,
    Sizes,
    WindowRule,
    all_but_every_fourth,
    all_but_every_nth,
    all_layers,
    assemble,
    biases,
    decoder,
    every_other,
    experts_everywhere,
    head_dim,
    llama4_experts,
    qwen2_experts,
    qwen3_experts,
    read_sizes,
    step_experts,
    upper_layers,
    window_facts,
)
from sextant.facts.llm.quantization import Matrices


class Traits(NamedTuple):
    """What a family's class does whatever its config says, and what it reads from it."""

    is_tied: bool = False
    """Whether the embeddings are tied where the config does not say."""
    kv_heads_follow: bool = False
    """Whether a config without `num_key_value_heads` means that no heads share K and V."""
    has_head_dim: bool = False
    """Whether `head_dim` has to be there; otherwise the heads may share the hidden size."""
    has_qkv_bias: bool = False
    """Whether Q, K and V have biases unless `qkv_bias` says no."""
    reads_attention_bias: bool = False
    """Whether `attention_bias` gives Q, K, V and the output biases."""
    norms: int = 2
    """RMS norms of the hidden size in a layer."""
    qk_norm: str = ""
    """Norms of Q and K: `head` over a head, `all` over all heads at once, or none."""
    window: WindowRule | None = None
    experts: Callable[[Config, Sizes], Experts] | None = None
    defaults: Mapping[str, int] = {}
    """Sizes that the published configs leave to the class."""


# Gemma 3's text configs name only what differs from those of its 4B model.
_GEMMA_3 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
}
_QWEN_2 = Traits(has_qkv_bias=True, window=upper_layers)
_QWEN_3 = Traits(has_head_dim=True, reads_attention_bias=True, qk_norm="head", window=upper_layers)
_TRAITS = {
    "llama": Traits(kv_heads_follow=True, reads_attention_bias=True),
    "granite": Traits(kv_heads_follow=True, reads_attention_bias=True),
    "olmo2": Traits(kv_heads_follow=True, reads_attention_bias=True, qk_norm="all"),
    "phi3": Traits(kv_heads_follow=True, window=all_layers),
    "mistral": Traits(window=all_layers),
    "mixtral": Traits(window=all_layers, experts=experts_everywhere),
    "qwen2": _QWEN_2,
    "qwen2_moe": _QWEN_2._replace(experts=qwen2_experts),
    "qwen3": _QWEN_3,
    "qwen3_moe": _QWEN_3._replace(experts=qwen3_experts),
    "qwen3_vl_text": _QWEN_3,
    "qwen3_vl_moe_text": _QWEN_3._replace(experts=qwen3_experts),
    "mimo": _QWEN_2,
    "step3p7": Traits(has_head_dim=True, qk_norm="head", window=every_other, experts=step_experts),
    "gemma": Traits(is_tied=True, has_head_dim=True, reads_attention_bias=True),
    "minimax_m2": Traits(has_head_dim=True, qk_norm="all", experts=experts_everywhere),
    "gemma2": Traits(
        is_tied=True, has_head_dim=True, reads_attention_bias=True, norms=4, window=every_other
    ),
    "gemma3_text": Traits(
        is_tied=True,
        reads_attention_bias=True,
        norms=4,
        qk_norm="head",
        window=all_but_every_nth,
        defaults=_GEMMA_3,
    ),
}


def _llama_like(config: Config) -> LLM:
    traits = _TRAITS[config.get("model_type")]
    if traits.qk_norm:
        config.require("use_qk_norm", True)
        config.require("qk_norm_type", "per_layer")
    # Layers that predict further tokens are not part of the main model.
    config.ignore("mtp_transformer_layers", "num_nextn_predict_layers")
    s = _llama_sizes(config, traits)
    has_bias = traits.reads_attention_bias and config.flag("attention_bias", default=False)
    has_qkv_bias = traits.has_qkv_bias and config.flag("qkv_bias", default=True)
    if traits.has_qkv_bias:
        config.require("attention_bias", True)
    bias = biases(s, qkv=has_bias or has_qkv_bias, out=has_bias)
    norms_of = {"": 0, "head": 2, "all": s.heads + s.kv_heads}
    qk_norm = norms_of[traits.qk_norm] * s.head_dim
    mixture = traits.experts(config, s) if traits.experts else None
    if mixture and config.flag("use_routing_bias", default=False):
        bias += mixture.n
    return decoder(
        config,
        s,
        is_tied=traits.is_tied,
        vectors=s.layers * (traits.norms * s.hidden + qk_norm + bias) + s.hidden,
        experts=mixture,
        **window_facts(config, s.layers, traits.window),
    )


def _gpt_oss(config: Config) -> LLM:
    """GPT-OSS: biases everywhere, of the router and of each expert too; a sink per head."""
    s = _llama_sizes(config, Traits(has_head_dim=True))
    mixture = experts_everywhere(config, s)
    config.require("attention_bias", True)
    expert_bias = mixture.n * (2 * s.ffn + s.hidden) + mixture.n
    in_layer = 2 * s.hidden + biases(s, qkv=True, out=True) + s.heads + expert_bias
    return decoder(
        config,
        s,
        vectors=s.layers * in_layer + s.hidden,
        experts=mixture,
        **window_facts(config, s.layers, every_other),
    )


def _llama4(config: Config) -> LLM:
    """Llama 4: a shared expert beside the routed ones; dense layers have a width of their own.

    Of a chunk's tokens most look back on fewer than all of it: it is taken as a window.
    """
    s = _llama_sizes(config, Traits(has_head_dim=True))
    config.require("attention_bias", False)
    # Norms without parameters; the layers that have rotary positions.
    config.ignore("use_qk_norm", "no_rope_layers")
    mixture = llama4_experts(config, s)
    return decoder(
        config,
        s._replace(ffn=config.integer("intermediate_size_mlp")),
        vectors=s.layers * 2 * s.hidden + s.hidden,
        experts=mixture,
        **window_facts(
            config,
            s.layers,
            all_but_every_fourth,
            name="attention_chunk_size",
            kind="chunked_attention",
        ),
    )


def _llama_sizes(config: Config, traits: Traits) -> Sizes:
    own: dict[str, int | str] = {}
    if config.optional("head_dim") is None and not traits.has_head_dim and not traits.defaults:
        heads = config.integer("num_attention_heads")
        own["head_dim"] = head_dim(config, config.integer("hidden_size"), heads)
    if traits.kv_heads_follow and config.optional("num_key_value_heads") is None:
        own["kv_heads"] = "num_attention_heads"
    return read_sizes(config, traits.defaults, **own)


_GPT_2: dict[str, Any] = {
    "hidden": "n_embd",
    "heads": "n_head",
    "layers": "n_layer",
    "ffn": "n_inner",
    "context": "n_positions",
}
_MPT: dict[str, Any] = {
    "hidden": "d_model",
    "heads": "n_heads",
    "layers": "n_layers",
    "context": "max_seq_len",
}
_BLOOM: dict[str, Any] = {"heads": "n_head", "layers": "n_layer", "ffn": "n_inner"}


def _sizes(
    config: Config, *, kv_heads: int | None = None, ffn_ratio: int | None = None, **own: Any
) -> Sizes:
    """Read the sizes of a decoder, whose heads share the hidden size.

    Args:
        config: the config.
        kv_heads: KV heads, if not as many as heads.
        ffn_ratio: width of the MLP over the hidden size where its field is absent.
        own: as of `read_sizes`.
    """
    h = config.integer(own.get("hidden", "hidden_size"))
    heads = config.integer(own.get("heads", "num_attention_heads"))
    own = {"kv_heads": kv_heads or heads, "head_dim": head_dim(config, h, heads), **own}
    ffn = ffn_ratio and ffn_ratio * h
    return read_sizes(config, {own.get("ffn", "intermediate_size"): ffn}, **own)


def _gpt(
    config: Config,
    s: Sizes,
    *,
    has_bias: bool = True,
    norms: int = 2,
    in_layer: int = 0,
    in_head: int = 0,
    **more: Any,
) -> LLM:
    """Return the facts of a decoder whose layer norms have biases.

    Args:
        config: the config.
        s: its sizes.
        has_bias: whether all matrices of a layer have biases.
        norms: norms of a layer.
        in_layer: further vectors of a layer.
        in_head: further vectors outside of the layers, beside one norm.
        more: as of `decoder`.
    """
    bias = biases(s, qkv=has_bias, out=has_bias, mlp=has_bias)
    vectors = s.layers * (bias + norms * 2 * s.hidden + in_layer) + 2 * s.hidden + in_head
    return decoder(config, s, mlp_matrices=2, vectors=vectors, **more)


def _opt(config: Config) -> LLM:
    s = _sizes(config, ffn="ffn_dim")
    h, projected = s.hidden, config.integer("word_embed_proj_dim")
    for name in ("enable_bias", "layer_norm_elementwise_affine", "tie_word_embeddings"):
        config.require(name, True)
    has_final_norm = config.flag("do_layer_norm_before")
    head = s.vocab * projected + (2 * h * projected if projected != h else 0)
    # OPT's learned positions start at 2.
    positions, in_head = (s.context + 2) * h, 0 if has_final_norm else -2 * h
    return _gpt(config, s, is_tied=True, head=head, positions=positions, in_head=in_head)


def _gpt_neox(config: Config) -> LLM:
    config.require("attention_bias", True)
    return _gpt(config, _sizes(config))


def _gpt2(config: Config) -> LLM:
    """GPT-2, and GPT-BigCode, where all heads may share one K and V."""
    is_shared = config.get("model_type") == "gpt_bigcode" and config.flag("multi_query")
    s = _sizes(config, kv_heads=1 if is_shared else None, ffn_ratio=4, **_GPT_2)
    config.require("num_key_value_heads", s.kv_heads)  # newer configs write it out
    config.require("tie_word_embeddings", True)
    return _gpt(config, s, is_tied=True, positions=s.context * s.hidden)


def _gptj(config: Config) -> LLM:
    """GPT-J and CodeGen: attention and MLP side by side behind one norm, rotary positions."""
    s = _sizes(config, ffn_ratio=4, **_GPT_2)
    config.require("tie_word_embeddings", False)
    # Only the MLP and the head have biases.
    mlp = biases(s, mlp=True)
    return _gpt(config, s, has_bias=False, norms=1, in_layer=mlp, in_head=s.vocab)


def _mpt(config: Config) -> LLM:
    if not config.get("no_bias"):
        fix = "set no_bias to true, as every published MPT has it"
        raise config.error("biases are not supported", "no_bias", fix)
    attention = config.get("attn_config")
    if not isinstance(attention, dict) or attention.get("attn_type") != "multihead_attention":
        fix = "only multihead_attention is supported; add the other to sextant/facts/llm/"
        raise config.error("unknown attention", "attn_config", fix)
    if attention.get("qk_ln"):
        raise config.error("norms of Q and K", "attn_config", "only qk_ln = false is supported")
    s = _sizes(config, **_MPT, ffn=config.integer("expansion_ratio") * config.integer("d_model"))
    config.require("tie_word_embeddings", True)
    # ALiBi has no table of positions.
    return decoder(config, s, is_tied=True, mlp_matrices=2, vectors=(2 * s.layers + 1) * s.hidden)


def _bloom(config: Config) -> LLM:
    # ALiBi sets no limit; `seq_length`, the length in training, is what servers go by.
    context = config.integer("seq_length", default=UNBOUNDED_TOKENS)
    s = _sizes(config, ffn_ratio=4, **_BLOOM, context=context)
    config.require("n_inner", 4 * s.hidden)
    return _gpt(config, s, is_tied=True, in_head=2 * s.hidden)  # a norm of the embedding


def _falcon(config: Config) -> LLM:
    kv_heads: int | None
    is_shared = config.flag("multi_query")
    if config.flag("new_decoder_architecture"):
        kv_heads = config.integer("num_kv_heads")
        norms = config.integer("num_ln_in_parallel_attn", default=2)
    else:
        config.ignore("num_kv_heads")  # has a meaning in the new architecture only
        kv_heads = 1 if is_shared else None
        norms = 1 if config.flag("parallel_attn") else 2  # side by side they share one
    # Falcon 7B and 40B leave the context to the class.
    context = config.integer("max_position_embeddings", default=2048)
    s = _sizes(config, kv_heads=kv_heads, ffn_ratio=4, ffn="ffn_hidden_size", context=context)
    return _gpt(config, s, has_bias=config.flag("bias"), norms=norms, is_tied=True)


def _phi(config: Config) -> LLM:
    heads = config.integer("num_attention_heads")
    s = _sizes(config, kv_heads=config.integer("num_key_value_heads", default=heads))
    qk_norm = 4 * s.head_dim if config.flag("qk_layernorm", default=False) else 0
    config.require("tie_word_embeddings", False)
    return _gpt(config, s, norms=1, in_layer=qk_norm, in_head=s.vocab)


def _starcoder2(config: Config) -> LLM:
    s = _sizes(config, kv_heads=config.integer("num_key_value_heads"))
    has_bias = config.flag("use_bias", default=True)
    window = window_facts(config, s.layers, all_layers)
    return _gpt(config, s, has_bias=has_bias, is_tied=True, **window)


def _t5(config: Config) -> LLM:
    h, ffn, head_dim = (config.integer(name) for name in ("d_model", "d_ff", "d_kv"))
    layers, heads = config.integer("num_layers"), config.integer("num_heads")
    decoder_layers = config.integer("num_decoder_layers", default=layers)
    vocab, buckets = (
        config.integer(name) for name in ("vocab_size", "relative_attention_num_buckets")
    )
    config.require("is_encoder_decoder", True)
    mlp = _mlp_matrices(config) * h * ffn
    product = h * heads * head_dim  # `d_kv` is free: the heads need not add up to the hidden size
    matrices = vocab * h + decoder_layers * (6 * product + mlp)
    encoder = layers * (4 * product + mlp) + decoder_layers * 2 * product
    # RMS norms before each sublayer and after each stack; a table of relative positions each.
    vectors = layers * 2 * h + decoder_layers * 3 * h + 2 * h + 2 * buckets * heads
    lookup = 0 if config.flag("tie_word_embeddings", default=True) else vocab * h
    return assemble(
        config,
        Matrices((4 * layers + 8 * decoder_layers) * product, (layers + decoder_layers) * mlp),
        n_parameters=lookup + matrices + encoder + vectors,
        n_flop_parameters=matrices,
        is_encoder_decoder=True,
        n_encoder_layers=layers,
        n_encoder_flop_parameters=encoder,
        n_layers=decoder_layers,
        hidden_size=h,
        ffn_size=ffn,
        n_heads=heads,
        n_kv_heads=heads,
        head_dim=head_dim,
        vocab_size=vocab,
        # Relative positions: far tokens share the last bucket. `n_positions`, which half of the
        # configs lack, is the length in training; Flan-T5 serves longer inputs than its 512.
        context_tokens=UNBOUNDED_TOKENS,
    )


def _mlp_matrices(config: Config) -> int:
    # The first T5 configs do not write it; what that means is the family's.
    original = {"t5": "relu", "mt5": "gated-gelu"}[config.get("model_type")]
    kind = config.optional("feed_forward_proj", original)
    if kind in ("relu", "gelu"):
        return 2
    if kind in ("gated-gelu", "gated-silu", "gated-relu"):
        return 3
    fix = "use relu, gelu, gated-gelu, gated-silu or gated-relu"
    raise config.error(f"unknown MLP {kind!r}", "feed_forward_proj", fix)


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
    "t5": _t5,
    "mt5": _t5,
    **dict.fromkeys(_TRAITS, _llama_like),
    "gpt_oss": _gpt_oss,
    "llama4_text": _llama4,
}
