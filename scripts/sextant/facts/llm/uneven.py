"""LLMs whose layers differ in size: two kinds of attention, or sizes chosen layer by layer."""

from collections.abc import Callable
from typing import Any

from sextant.facts.llm.config import Config, Section
from sextant.facts.llm.facts import LLM
from sextant.facts.llm.layers import Experts, decoder, read_experts, read_sizes, window_facts


def _gemma4(config: Config) -> LLM:
    """Gemma 4: layers that see all tokens have larger and fewer KV heads, and V equals K.

    The KV cache stores K and V all the same. In a mixture every layer also has a dense MLP.
    """
    s = read_sizes(config)
    for name in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        config.require(name, 0)
    for name in ("attention_bias", "use_double_wide_mlp"):
        config.require(name, False)
    config.ignore("vocab_size_per_layer_input")
    config.listing("layer_types", str)
    window = window_facts(config, s.layers, lambda *_: 0)
    n_sliding = window.get("n_sliding_layers", 0)
    n_full, wide = s.layers - n_sliding, config.integer("global_head_dim")
    # K is V where KV heads have a number of their own.
    is_shared = config.flag("attention_k_eq_v")
    kv_heads = config.integer("num_global_key_value_heads") if is_shared else s.kv_heads
    full = s.hidden * (2 * s.heads + (1 if is_shared else 2) * kv_heads) * wide
    sliding = 2 * s.hidden * (s.heads + s.kv_heads) * s.head_dim
    mixture, norms = Experts(), 4
    if config.flag("enable_moe_block"):
        mixture, norms = read_experts(config, s, s.layers, per_token="top_k_experts"), 8
    in_sliding = n_sliding * 2 * s.kv_heads * s.head_dim
    return decoder(
        config,
        s,
        is_tied=True,
        vectors=s.layers * (norms * s.hidden + mixture.n)
        + n_sliding * 2 * s.head_dim
        + n_full * 2 * wide
        + s.hidden,
        attention=n_sliding * sliding + n_full * full,
        mlp=s.layers * 3 * s.hidden * s.ffn,
        experts=mixture,
        kv_values=float(in_sliding + n_full * 2 * kv_heads * wide),
        sliding_kv_values=float(in_sliding),
        **window,
    )


def _mimo_v2(config: Config) -> LLM:
    """MiMo V2 Flash: layers with a window have KV heads of their own; V is smaller than K."""
    s = read_sizes(config)
    v, layers = config.integer("v_head_dim"), s.layers
    config.require("attention_bias", False)
    for name, size in (("heads", s.heads), ("head_dim", s.head_dim), ("v_head_dim", v)):
        config.require("swa_num_attention_heads" if name == "heads" else f"swa_{name}", size)
    config.require("n_shared_experts", None)
    config.ignore("sliding_window_size", "add_swa_attention_sink_bias")
    config.require("add_full_attention_sink_bias", False)
    n_sliding = sum(config.by_layer("hybrid_layer_pattern", layers, (0, 1)))
    n_moe = sum(config.by_layer("moe_layer_freq", layers, (0, 1)))
    kv_sliding = config.integer("swa_num_key_value_heads") * (s.head_dim + v)
    kv_full = s.kv_heads * (s.head_dim + v)
    kv = n_sliding * kv_sliding + (layers - n_sliding) * kv_full
    mixture = read_experts(config, s, n_moe, "n_routed_experts")
    return decoder(
        config,
        s,
        vectors=layers * 2 * s.hidden + n_sliding * s.heads + n_moe * mixture.n + s.hidden,
        attention=s.hidden * (layers * s.heads * (s.head_dim + v) + kv),
        experts=mixture,
        kv_values=float(kv),
        sliding_kv_values=float(n_sliding * kv_sliding),
        sliding_window_tokens=config.integer("sliding_window"),
        n_sliding_layers=n_sliding,
    )


def _minimax_m3(config: Config) -> LLM:
    """MiniMax M3: its layers of sparse attention keep one more key per token, which selects it."""
    s = read_sizes(config, ffn="dense_intermediate_size")
    config.require("attention_output_gate", False)
    config.require("use_qk_norm", True)
    config.require("qk_norm_type", "per_head")
    config.require("n_shared_experts", 1)
    config.ignore("intermediate_size", "first_k_dense_replace", "num_nextn_predict_layers")
    sparse = Section(config.get("sparse_attention_config"), config.file, "sparse_attention_config")
    n_sparse = sum(sparse.by_layer("sparse_attention_freq", s.layers, (0, 1)))
    heads, key = (sparse.integer(name) for name in ("sparse_num_index_heads", "sparse_index_dim"))
    n_moe = sum(config.by_layer("moe_layer_freq", s.layers, (0, 1)))
    shared = config.integer("shared_intermediate_size")
    mixture = read_experts(config, s, n_moe, "num_local_experts", shared_ffn=shared)
    bias = mixture.n if config.flag("use_routing_bias", default=False) else 0
    return decoder(
        config,
        s,
        vectors=s.layers * 2 * (s.hidden + s.head_dim) + n_moe * bias + s.hidden,
        attention=s.layers * 2 * s.hidden * (s.heads + s.kv_heads) * s.head_dim
        + n_sparse * s.hidden * (heads + 1) * key,
        experts=mixture,
        kv_values=float(s.layers * 2 * s.kv_heads * s.head_dim + n_sparse * key),
    )


def _nemotron_nas(config: Config) -> LLM:
    """Nemotron Super of 2025: a Llama whose layers were pruned one by one (architecture search)."""
    h, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    config.require("attention_bias", False)
    config.require("mlp_bias", False)
    blocks = config.get("block_configs")
    layers = config.integer("num_hidden_layers")
    if not isinstance(blocks, list) or len(blocks) != layers:
        fix = f"give each of the {layers} layers"
        raise config.error("not a list of layers", "block_configs", fix)
    head_dim = h // heads
    kv_heads = [heads // group for group in map(_group, blocks) if group]
    widths = [_width(config, block, h) for block in blocks]
    return decoder(
        config,
        read_sizes(config, ffn=max(widths), kv_heads=max(kv_heads), head_dim=head_dim),
        vectors=(len(kv_heads) + sum(width > 0 for width in widths) + 1) * h,
        attention=2 * h * head_dim * (len(kv_heads) * heads + sum(kv_heads)),
        mlp=3 * h * sum(widths),
        n_attention_layers=len(kv_heads),
        kv_values=float(2 * head_dim * sum(kv_heads)),
    )


def _group(block: dict[str, Any]) -> int:
    """Return how many heads share K and V in a layer; 0: it has no attention."""
    attention = block["attention"]
    return 0 if attention["no_op"] else int(attention["n_heads_in_group"])


def _width(config: Config, block: dict[str, Any], hidden: int) -> int:
    """Return the width of a layer's MLP: two thirds of a multiple of the hidden state."""
    if block["ffn"]["replace_with_linear"] or block["attention"]["replace_with_linear"]:
        fix = "add the variant to sextant/facts/llm/"
        raise config.error("a layer is one matrix", "block_configs", fix)
    exact = int(2 * (block["ffn"]["ffn_mult"] or 0) * hidden / 3)
    return 0 if block["ffn"]["no_op"] else -(-exact // 256) * 256


FAMILIES: dict[str, Callable[[Config], LLM]] = {
    "gemma4_text": _gemma4,
    "mimo_v2_flash": _mimo_v2,
    "minimax_m3": _minimax_m3,
    "nemotron-nas": _nemotron_nas,
}
