"""Llama and its kind: RMS norms, rotary positions, a gated MLP; they differ in a few traits."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from sextant.facts.llm.config import Config
from sextant.facts.llm.facts import LLM
from sextant.facts.llm.layers import (
    Experts,
    Sizes,
    WindowRule,
    all_but_every_fourth,
    all_but_every_nth,
    all_layers,
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
    s = _sizes(config, traits)
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
    s = _sizes(config, Traits(has_head_dim=True))
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
    s = _sizes(config, Traits(has_head_dim=True))
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


def _sizes(config: Config, traits: Traits) -> Sizes:
    own: dict[str, int | str] = {}
    if config.optional("head_dim") is None and not traits.has_head_dim and not traits.defaults:
        heads = config.integer("num_attention_heads")
        own["head_dim"] = head_dim(config, config.integer("hidden_size"), heads)
    if traits.kv_heads_follow and config.optional("num_key_value_heads") is None:
        own["kv_heads"] = "num_attention_heads"
    return read_sizes(config, traits.defaults, **own)


FAMILIES: dict[str, Callable[[Config], LLM]] = {
    **dict.fromkeys(_TRAITS, _llama_like),
    "gpt_oss": _gpt_oss,
    "llama4_text": _llama4,
}
