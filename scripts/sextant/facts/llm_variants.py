"""Families that a table cannot describe: rows that depend on the config, and two own counts.

A variant (`variant` of families.yaml) returns changes to the family's row. T5 and DeepSeek V4 are
counted on their own (`counted`).
"""

from collections.abc import Callable, Mapping
from typing import Any

from sextant.facts.llm_config import Config
from sextant.facts.llm_decoder import (
    CacheFacts,
    Facts,
    Parameters,
    add_ends,
    assembled,
    cache_facts,
    common_facts,
    decoder,
    sums_by_part,
)
from sextant.facts.llm_experts import Experts, read_experts
from sextant.facts.llm_families import UNBOUNDED_TOKENS, Family
from sextant.facts.llm_mixers import Mixer, mamba2
from sextant.facts.llm_modules import Matrix
from sextant.facts.llm_sizes import Sizes

Row = Mapping[str, Any]


def facts_of(config: Config, family: Family) -> Facts:
    """Return the fields of `LLM` of a config of a family."""
    config.fill(family.sizes.defaults)
    if config.is_nested:
        config.fill(family.sizes.class_sizes)
    if family.variant:
        family = _VARIANTS[family.variant](config, family)
    config.require(**family.requires)
    config.ignore(*family.ignores)
    facts = _COUNTS[family.counted](config, family)
    config.judge_unread_fields()
    return facts


def _named(family: Family, **names: str | int) -> Family:
    """Return the family with further names of sizes, or sizes themselves."""
    sizes = family.sizes._replace(size_names={**family.sizes.size_names, **names})
    return family._replace(sizes=sizes)


def _opt(config: Config, family: Family) -> Family:
    """OPT, which may project its embeddings; without norms before a layer it has no last one."""
    return family.with_row({"has_final_norm": config.flag("do_layer_norm_before")})


def _gpt2(config: Config, family: Family) -> Family:
    """GPT-2, and GPT-BigCode, where all heads may share one K and V."""
    heads = config.integer("num_attention_heads")
    is_shared = config.optional("multi_query") is not None and config.flag("multi_query")
    kv_heads = 1 if is_shared else heads
    config.require(num_key_value_heads=kv_heads)  # newer configs write it out
    return _named(family, kv_heads=kv_heads)


def _bloom(config: Config, family: Family) -> Family:
    """BLOOM, whose MLP has one width."""
    config.require(n_inner=4 * config.integer("hidden_size"))
    return family


def _falcon(config: Config, family: Family) -> Family:
    """Falcon, of the old and the new architecture."""
    has_bias = config.flag("bias")
    row = {"qkv_bias": has_bias, "out_bias": has_bias, "mlp_bias": has_bias}
    if config.flag("new_decoder_architecture"):
        norms = config.integer("num_ln_in_parallel_attn", 2)
        config.flag("multi_query")
        family = _named(family, kv_heads="num_kv_heads")
        return family.with_row({**row, "norms": norms})
    # The number of KV heads has a meaning in the new architecture only.
    is_shared = config.flag("multi_query")
    config.ignore("num_kv_heads")
    kv_heads = 1 if is_shared else config.integer("num_attention_heads")
    # Attention and MLP side by side share one norm.
    norms = 1 if config.flag("parallel_attn") else 2
    return _named(family, kv_heads=kv_heads).with_row({**row, "norms": norms})


def _mpt(config: Config, family: Family) -> Family:
    """MPT, without biases; ALiBi has no table of positions."""
    if not config.get("no_bias"):
        fix = "set no_bias to true, as every published MPT has it"
        raise config.error("biases are not supported", "no_bias", fix)
    kind = config.optional("attn_type", "multihead_attention")
    if kind != "multihead_attention" or config.optional("qk_ln"):
        fix = "only multihead_attention without qk_ln is supported"
        raise config.error("unsupported variant", "attn_config.attn_type", fix)
    return _named(family, ffn=config.integer("expansion_ratio") * config.integer("d_model"))


def _gemma4(config: Config, family: Family) -> Family:
    """Gemma 4: layers that see all tokens have fewer, larger KV heads, and may use K as V."""
    if config.optional("layer_types") is None:
        config.assume("No field lists the kinds of layers: every sixth, and the last, see all.")
    full = dict(family.attention.by_kind["full"])
    if config.flag("attention_k_eq_v", default=False):
        config.integer("num_global_key_value_heads")
    else:
        del full["kv_heads"]
        config.ignore("num_global_key_value_heads")
    row: dict[str, Any] = {"by_kind": {"full": full}}
    if config.optional("enable_moe_block") is True:
        row |= {"norms": 8, "beside_experts": "intermediate_size", "router_bias": True}
    return family.with_row(row)


def _granite_hybrid(config: Config, family: Family) -> Family:
    """Granite 4: an MLP beside experts; without experts it is the only one."""
    if config.optional("num_experts"):
        return family
    config.ignore("num_experts_per_tok", "intermediate_size")
    return _named(family, ffn="shared_intermediate_size")


def _qwen_next(config: Config, family: Family) -> Family:
    """Qwen 3-Next, 3.5 and 3.6: a mixture of experts, or dense."""
    if config.optional("num_experts") is not None:
        config.ignore("intermediate_size")
    return family


def _nemotron_h(config: Config, family: Family) -> Family:
    """Nemotron-H and Nemotron 3, whose attention may name the size of its heads."""
    has_own = config.optional("attention_head_dim") is not None
    return _named(family, head_dim="attention_head_dim") if has_own else family


_RATES = {"heavily_compressed_attention": 128, "compressed_sparse_attention": 4}


def _compression_ratios(config: Config, layers: int) -> list[int]:
    """Return for how many tokens each layer keeps one vector; 0: for none."""
    if config.optional("compress_ratios") is None and config.optional("compress_rates") is not None:
        kinds = config.listing("layer_types", str)[:layers]
        return [_RATES.get(kind, 0) for kind in kinds]
    # One more is that of the layer that predicts a further token.
    return list(config.listing("compress_ratios", int)[:layers])


def _deepseek_v4(config: Config, family: Family) -> Facts:
    """DeepSeek V4 (technical report, 2026): every layer keeps a window of tokens.

    Of older tokens a layer keeps one vector, which is both K and V, per group of `compress_ratios`
    tokens. At ratio 4 an indexer with compressed keys chooses among the vectors. Each
    half of a layer mixes `hc_mult` streams of hidden states by a small matrix.
    """
    h, heads, dim = config.integers("hidden_size", "num_attention_heads", "head_dim")
    layers = config.integer("num_hidden_layers")
    q_latent, groups, out_latent = config.integers("q_lora_rank", "o_groups", "o_lora_rank")
    index_heads, key = config.integers("index_n_heads", "index_head_dim")
    ratios = _compression_ratios(config, layers)
    if len(ratios) != layers or not set(ratios) <= {0, 4, 128}:
        fix = f"give 0, 4 or 128 for each of the {layers} layers"
        raise config.error("unknown ratios", "compress_ratios", fix)
    config.ignore("num_key_value_heads")
    query = heads * dim
    s = Sizes(
        hidden=h,
        ffn=0,
        layers=layers,
        heads=heads,
        kv_heads=config.integer("num_key_value_heads"),
        head_dim=dim,
        vocab=config.integer("vocab_size"),
        context=config.context() or config.integer("max_position_embeddings"),
    )
    experts = read_experts(config, family, h, 0)
    streams = config.integer("hc_mult", 0, least=0)
    mixing = streams * (2 + streams) * streams * h
    total = Parameters()
    for i, ratio in enumerate(ratios):
        # Keys and gates; at ratio 4 neighbouring windows overlap, which takes two of each.
        compressor = {0: 0, 128: 2 * h * dim, 4: 4 * h * (dim + key)}[ratio]
        index = (q_latent * index_heads * key + h * index_heads) * (ratio == 4)
        pieces = {
            "wqa_wkv": q_latent * h + h * dim,
            "wq_b": q_latent * query,
            "wo_a": out_latent * query,
            "wo_b": out_latent * groups * h,
            "compressor": compressor,
            "indexer": index,
        }
        total.matrices += [Matrix(i, "attention", name, n) for name, n in pieces.items()]
        total.matrices += 2 * [Matrix(i, "other", "hyper", mixing)]
        total.matrices.append(Matrix(i, "router", "", experts.router))
        for piece in ("down", "up", "gate"):
            total.matrices += [
                Matrix(i, "shared_experts", piece, h * experts.shared_ffn),
                Matrix(i, "experts", piece, experts.n * h * experts.ffn),
            ]
        total.vectors += 2 * h + q_latent + dim + heads + experts.n
    total.vectors += h
    total.matrices.append(Matrix(-1, "head", "", s.vocab * h))
    if not config.flag("tie_word_embeddings", default=False):
        total.lookups += s.vocab * h
    kept = sum(dim / ratio for ratio in ratios if ratio) + ratios.count(4) * key / 4
    cache = CacheFacts(
        kv_latent_size=dim,
        kv_values=kept + layers * dim,
        sliding_kv_values=layers * dim,
        sliding_window_tokens=config.integer("sliding_window"),
        n_sliding_layers=layers,
    )
    return assembled(config, total, cache, s, experts)


def _t5(config: Config, _: Family) -> Facts:
    """T5 and mT5: an encoder beside the decoder."""
    h, ffn, head_dim = config.integers("d_model", "d_ff", "d_kv")
    layers, heads = config.integers("num_layers", "num_heads")
    vocab, buckets = config.integers("vocab_size", "relative_attention_num_buckets")
    decoder_layers = config.integer("num_decoder_layers", default=layers)
    # The first T5 configs have no `feed_forward_proj`; the default differs by family.
    original = {"t5": "relu", "mt5": "gated-gelu"}[config.word("model_type")]
    kind = config.optional("feed_forward_proj", original)
    n_matrices = {"relu": 2, "gelu": 2, "gated-gelu": 3, "gated-silu": 3, "gated-relu": 3}
    if kind not in [*n_matrices]:
        fix = f"use {', '.join(n_matrices)}"
        raise config.error(f"unknown MLP {kind!r}", "feed_forward_proj", fix)
    mlp = n_matrices[kind] * h * ffn
    product = h * heads * head_dim  # `d_kv` is free: the heads need not add up to the hidden size
    matrices = [
        Matrix(-1, "attention", "", (4 * layers + 8 * decoder_layers) * product),
        Matrix(-1, "mlp", "", (layers + decoder_layers) * mlp),
        Matrix(-1, "head", "", vocab * h),
    ]
    encoder = layers * (4 * product + mlp) + decoder_layers * 2 * product
    # RMS norms before each sublayer and after each stack; a table of relative positions each.
    vectors = layers * 2 * h + decoder_layers * 3 * h + 2 * h + 2 * buckets * heads
    lookup = 0 if config.flag("tie_word_embeddings", default=True) else vocab * h
    n_matrices_of_all = sum(sums_by_part(matrices).values())
    return common_facts(config, matrices) | {
        "n_parameters": lookup + n_matrices_of_all + vectors,
        "n_flop_parameters": n_matrices_of_all - encoder,
        "is_encoder_decoder": True,
        "n_encoder_layers": layers,
        "n_encoder_flop_parameters": encoder,
        "n_layers": decoder_layers,
        "hidden_size": h,
        "ffn_size": ffn,
        "n_heads": heads,
        "n_kv_heads": heads,
        "head_dim": head_dim,
        "vocab_size": vocab,
        # Relative positions: far tokens share the last bucket. `n_positions`, which half of the
        # configs lack, is the length in training; Flan-T5 serves longer inputs than its 512.
        "context_tokens": UNBOUNDED_TOKENS,
    }


def _zamba2(config: Config, family: Family) -> Facts:
    """Zamba 2: Mamba in each layer; some layers add one of a few blocks of attention and MLP.

    A block works on the hidden state beside the embedding, so it is twice as wide; each layer has
    small adapters of its own to it.
    """
    layers = config.integer("num_hidden_layers")
    h, heads, ffn = config.integers("hidden_size", "num_attention_heads", "intermediate_size")
    wide = config.integer("attention_hidden_size", 2 * h)
    dim = config.integer("attention_head_dim", wide // heads)
    kv_heads = config.integer("num_key_value_heads", heads)
    with_block = [i for i in config.listing("hybrid_layer_ids", int) if 0 <= i < layers]
    n_blocks = config.integer("num_mem_blocks", 1)
    config.ignore("layers_block_type", "use_conv_bias", "kv_channels", "num_query_groups")
    s = Sizes(
        hidden=h,
        ffn=ffn,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        vocab=config.integer("vocab_size"),
        context=config.context() or UNBOUNDED_TOKENS,
    )
    block = {
        "attention": wide * (heads + 2 * kv_heads) * dim + heads * dim * h,
        "mlp": 3 * h * ffn,
    }
    rank = config.integer("adapter_rank", 0, least=0)
    adapters = rank * (h + 2 * ffn)
    if config.flag("use_shared_attention_adapter", default=False):
        adapters += 3 * rank * 2 * wide
    mamba = mamba2(config, s)
    total = Parameters(vectors=layers * h)
    mixers = [[mamba] for _ in range(layers)]
    for i in range(layers):
        total.vectors += mamba.vectors
        total.matrices += [Matrix(i, "attention", name, n) for name, n in mamba.matrices.items()]
    for k, i in enumerate(with_block):
        total.matrices.append(Matrix(i, "other", "adapters", h * h + adapters))
        kept = Mixer({}, kv_values=2.0 * kv_heads * dim, is_attention=True)
        mixers[i] = [mamba, kept]
        if k >= n_blocks:
            total.reused += sum(block.values())
            continue
        total.matrices += [Matrix(i, part, "block", n) for part, n in block.items()]
        total.vectors += wide + h
    add_ends(config, family, total, s)
    return assembled(config, total, cache_facts(config, mixers, s), s, Experts())


_COUNTS: dict[str, Callable[[Config, Family], Facts]] = {
    "decoder": decoder,
    "deepseek_v4": _deepseek_v4,
    "t5": _t5,
    "zamba2": _zamba2,
}
_VARIANTS: dict[str, Callable[[Config, Family], Family]] = {
    "bloom": _bloom,
    "falcon": _falcon,
    "gemma4": _gemma4,
    "gpt2": _gpt2,
    "granite_hybrid": _granite_hybrid,
    "mpt": _mpt,
    "nemotron_h": _nemotron_h,
    "opt": _opt,
    "qwen_next": _qwen_next,
}
