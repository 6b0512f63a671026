"""DeepSeek V2 and V3: multi-head latent attention, and experts after the first layers.

K and V of all heads come from one latent vector per token and layer, and the positions from one
rotary key that the heads share; the cache keeps these two. The extra layer that predicts further
tokens (`num_nextn_predict_layers`) is not part of V3's main model and is not counted.
"""

from collections.abc import Callable

from sextant.llm import experts
from sextant.llm.config import Config
from sextant.llm.facts import LLM
from sextant.llm.layers import Sizes, decoder


def _deepseek(config: Config) -> LLM:
    h, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    plain, rotary, v = (
        config.integer(name) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    latent = config.integer("kv_lora_rank")
    # V2-Lite has no latent vector of the queries: its config says null.
    q_latent = config.integer("q_lora_rank", default=0, least=0)
    config.ignore("num_nextn_predict_layers", "num_key_value_heads", "head_dim", "qk_head_dim")
    config.require("attention_bias", False)
    s = Sizes(
        hidden=h,
        ffn=config.integer("intermediate_size"),
        layers=config.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=plain + rotary,
        vocab=config.integer("vocab_size"),
        context=config.integer("max_position_embeddings"),
    )
    query = heads * s.head_dim
    queries = q_latent * (h + query) if q_latent else h * query
    mixture = experts.deepseek(config, s)
    # V3 balances the load of its experts with a bias each, in place of a loss.
    balance = mixture.layers * mixture.n if config.get("model_type") != "deepseek_v2" else 0
    attention = queries + h * (latent + rotary) + latent * heads * (plain + v) + heads * v * h
    return decoder(
        config,
        s,
        is_tied=config.flag("tie_word_embeddings", default=False),
        vectors=s.layers * (2 * h + latent + q_latent) + h + balance,
        attention=attention,
        experts=mixture,
        kv_latent_size=latent + rotary,
    )


FAMILIES: dict[str, Callable[[Config], LLM]] = {
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
}
