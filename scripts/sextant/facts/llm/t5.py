"""T5 and mT5: an encoder and a decoder."""

from collections.abc import Callable

from sextant.facts.llm.config import Config
from sextant.facts.llm.facts import LLM, UNBOUNDED_TOKENS
from sextant.facts.llm.layers import assemble
from sextant.facts.llm.unquantized import Matrices


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


FAMILIES: dict[str, Callable[[Config], LLM]] = {"t5": _t5, "mt5": _t5}
