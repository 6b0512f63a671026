"""DeepSeek, Kimi K2 and GLM-5: multi-head latent attention, experts after the first layers.

K and V of all heads come from one latent vector per token and layer, and the positions from one
rotary key that the heads share; the cache keeps these two. The extra layer that predicts further
tokens (`num_nextn_predict_layers`) is not part of the main model and is not counted.
"""

from collections.abc import Callable
from typing import NamedTuple

from sextant.facts.llm.config import Config
from sextant.facts.llm.facts import LLM
from sextant.facts.llm.layers import Sizes, decoder, deepseek_experts, read_experts, read_sizes


def _deepseek(config: Config) -> LLM:
    h, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    plain, rotary, v = (
        config.integer(name) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    latent = config.integer("kv_lora_rank")
    # V2-Lite has no latent vector of the queries: its config says null.
    q_latent = config.integer("q_lora_rank", default=0, least=0)
    config.ignore("num_nextn_predict_layers", "num_key_value_heads", "head_dim", "qk_head_dim")
    # `mlp_layer_types` says again what `first_k_dense_replace` does.
    config.ignore("mlp_layer_types")
    config.ignore("moe_router_dtype", "layer_types")
    config.require("attention_bias", False)
    s = read_sizes(config, kv_heads=heads, head_dim=plain + rotary)
    query = heads * s.head_dim
    queries = q_latent * (h + query) if q_latent else h * query
    mixture = deepseek_experts(config, s)
    # V3 balances the load of its experts with a bias each, in place of a loss.
    balance = mixture.layers * mixture.n if config.get("model_type") != "deepseek_v2" else 0
    attention = queries + h * (latent + rotary) + latent * heads * (plain + v) + heads * v * h
    indexers = _indexers(config, s, q_latent)
    return decoder(
        config,
        s,
        vectors=s.layers * (2 * h + latent + q_latent) + h + balance + indexers.vectors,
        attention=s.layers * attention + indexers.matrices,
        experts=mixture,
        kv_latent_size=latent + rotary,
        kv_values=s.layers * (latent + rotary) + indexers.kv_values if indexers.kv_values else 0.0,
    )


class _Indexers(NamedTuple):
    """What the layers of sparse attention have to choose the tokens that they look at."""

    matrices: int = 0
    vectors: int = 0
    kv_values: float = 0.0


def _indexers(config: Config, s: Sizes, q_latent: int) -> _Indexers:
    """Read the indexers of DeepSeek V3.2 and GLM-5: a few small heads with one key a token.

    The key's numbers have 8 bits and a scale of 32 bits, whatever the KV cache has; it is counted
    as numbers of 16 bits.
    """
    if config.get("model_type") not in _SPARSE:
        return _Indexers()
    heads, dim = config.integer("index_n_heads"), config.integer("index_head_dim")
    full = ["full"] * s.layers
    n = config.by_layer("indexer_types", s.layers, ("full", "shared"), full).count("full")
    matrices = q_latent * heads * dim + s.hidden * (dim + heads)
    return _Indexers(n * matrices, n * 2 * dim, n * (dim / 2 + 2))


def _deepseek_v4(config: Config) -> LLM:
    """DeepSeek V4: every layer keeps a window, and all but a few one entry for several tokens.

    K and V are one vector of `head_dim` numbers. Of the older tokens a layer keeps one such vector
    for each `compress_ratios` of them (DeepSeek-V4 technical report, 2026); where the ratio is 4 an
    indexer, with compressed keys of its own, chooses among them. Counts leave out the small
    matrices that mix the copies of the hidden state (`hc_mult`).
    """
    h, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    dim, q_latent = config.integer("head_dim"), config.integer("q_lora_rank")
    groups, out_latent = config.integer("o_groups"), config.integer("o_lora_rank")
    layers, window = config.integer("num_hidden_layers"), config.integer("sliding_window")
    config.require("attention_bias", False)
    config.ignore("qk_rope_head_dim", "num_nextn_predict_layers", "num_hash_layers")
    index = config.integer("index_n_heads") * config.integer("index_head_dim")
    key = config.integer("index_head_dim")
    ratios = config.listing("compress_ratios", int)[:layers]  # one more is that of the extra layer
    if len(ratios) != layers or not set(ratios) <= {0, 4, 128}:
        fix = f"give 0, 4 or 128 for each of the {layers} layers"
        raise config.error("unknown ratios", "compress_ratios", fix)
    query = heads * dim
    attention = q_latent * (h + query) + h * dim + out_latent * (query + groups * h)
    # Keys and gates; at ratio 4 neighbouring windows overlap, which takes two of each.
    compressors = ratios.count(128) * 2 * h * dim + ratios.count(4) * 4 * h * (dim + key)
    indexers = ratios.count(4) * (q_latent * index + h * index // key)
    kept = sum(dim / ratio for ratio in ratios if ratio) + ratios.count(4) * key / 4
    s = read_sizes(config, ffn="moe_intermediate_size")
    shared = config.integer("n_shared_experts") * s.ffn
    mixture = read_experts(config, s, layers, "n_routed_experts", shared_ffn=shared)
    return decoder(
        config,
        s,
        vectors=layers * (2 * h + q_latent + dim + heads + mixture.n) + h,
        attention=layers * attention + compressors + indexers,
        experts=mixture,
        kv_latent_size=dim,
        kv_values=kept + layers * dim,
        sliding_kv_values=layers * dim,
        sliding_window_tokens=window,
        n_sliding_layers=layers,
    )


_SPARSE = ("deepseek_v32", "glm_moe_dsa")
FAMILIES: dict[str, Callable[[Config], LLM]] = {
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2", *_SPARSE), _deepseek),
    **dict.fromkeys(("deepseek_v4", "deepseek_ref"), _deepseek_v4),
}
