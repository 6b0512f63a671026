"""Families whose layers are alike: Llama and its kind, GPT and its kind, and T5.

Llama's kind has RMS norms, rotary positions and a gated MLP, and differs in a few family. GPT's has
layer norms and an MLP of two matrices, mostly with biases.
"""

from typing import Any

from sextant.facts.llm.facts import LLM, UNBOUNDED_TOKENS, Config, Section
from sextant.facts.llm.layers import (
    EXPERTS,
    Family,
    Sizes,
    assemble,
    biases,
    decoder,
    experts_everywhere,
    head_dim,
    llama4_experts,
    read_sizes,
    window_facts,
)
from sextant.facts.llm.quantization import Matrices


def llama(config: Config, family: Family) -> LLM:
    """Return the facts of Llama's kind."""
    if family.qk_norm:
        config.require("use_qk_norm", True)
        config.require("qk_norm_type", "per_layer")
    # Layers that predict further tokens are not part of the main model.
    config.ignore("mtp_transformer_layers", "num_nextn_predict_layers")
    s = _llama_sizes(config, family)
    has_bias = family.reads_attention_bias and config.flag("attention_bias", default=False)
    has_qkv_bias = family.has_qkv_bias and config.flag("qkv_bias", default=True)
    if family.has_qkv_bias:
        config.require("attention_bias", True)
    bias = biases(s, qkv=has_bias or has_qkv_bias, out=has_bias)
    norms_of = {"": 0, "head": 2, "all": s.heads + s.kv_heads}
    qk_norm = norms_of[family.qk_norm] * s.head_dim
    mixture = EXPERTS[family.experts](config, s) if family.experts else None
    if mixture and config.flag("use_routing_bias", default=False):
        bias += mixture.n
    return decoder(
        config,
        s,
        is_tied=family.is_tied,
        vectors=s.layers * (family.norms * s.hidden + qk_norm + bias) + s.hidden,
        experts=mixture,
        **window_facts(config, s.layers, family.window),
    )


def gpt_oss(config: Config, family: Family) -> LLM:
    """GPT-OSS: biases everywhere, of the router and of each expert too; a sink per head."""
    s = _llama_sizes(config, family)
    mixture = experts_everywhere(config, s)
    expert_bias = mixture.n * (2 * s.ffn + s.hidden) + mixture.n
    in_layer = 2 * s.hidden + biases(s, qkv=True, out=True) + s.heads + expert_bias
    return decoder(
        config,
        s,
        vectors=s.layers * in_layer + s.hidden,
        experts=mixture,
        **window_facts(config, s.layers, family.window),
    )


def llama4(config: Config, family: Family) -> LLM:
    """Llama 4: a shared expert beside the routed ones; dense layers have a width of their own.

    Of a chunk's tokens most look back on fewer than all of it: it is taken as a window.
    """
    s = _llama_sizes(config, family)
    mixture = llama4_experts(config, s)
    return decoder(
        config,
        s._replace(ffn=config.integer("intermediate_size_mlp")),
        vectors=s.layers * 2 * s.hidden + s.hidden,
        experts=mixture,
        **window_facts(
            config, s.layers, family.window, "attention_chunk_size", "chunked_attention"
        ),
    )


def _llama_sizes(config: Config, family: Family) -> Sizes:
    own: dict[str, int | str] = {}
    if config.optional("head_dim") is None and not family.has_head_dim and not family.defaults:
        heads = config.integer("num_attention_heads")
        own["head_dim"] = head_dim(config, config.integer("hidden_size"), heads)
    if family.kv_heads_follow and config.optional("num_key_value_heads") is None:
        own["kv_heads"] = "num_attention_heads"
    return read_sizes(config, family.defaults, **own)


def _gpt_sizes(config: Config, family: Family, **own: int | str) -> Sizes:
    """Read the sizes of a decoder whose heads share the hidden size; `own` as of `read_sizes`."""
    names: dict[str, Any] = {**family.sizes, **own}
    h = config.integer(names.get("hidden", "hidden_size"))
    heads = config.integer(names.get("heads", "num_attention_heads"))
    defaults = {
        names.get("ffn", "intermediate_size"): family.ffn_ratio * h or None,
        "num_key_value_heads": heads if family.kv_heads_follow else None,
    }
    same = {"kv_heads": heads, "head_dim": head_dim(config, h, heads)}
    return read_sizes(config, defaults, **same | names)


def gpt(
    config: Config,
    family: Family,
    s: Sizes | None = None,
    *,
    has_bias: bool = True,
    norms: int | None = None,
    in_layer: int = 0,
    in_head: int = 0,
    **more: Any,
) -> LLM:
    """Return the facts of GPT's kind, whose layer norms have biases.

    Args:
        s: its sizes, if they are not just read.
        has_bias: whether matrices of a layer have biases.
        norms: norms of a layer, if not those of the family.
        in_layer: further vectors of a layer.
        in_head: further vectors outside of the layers, beside one norm and the head's bias.
    """
    s = s or _gpt_sizes(config, family)
    in_attention = has_bias and not family.has_mlp_bias_alone
    bias = biases(s, qkv=in_attention, out=in_attention, mlp=has_bias)
    in_layer += bias + (norms or family.norms) * 2 * s.hidden
    in_head += 2 * s.hidden + s.vocab * family.has_head_bias
    facts = {"is_tied": family.is_tied, **window_facts(config, s.layers, family.window), **more}
    return decoder(config, s, mlp_matrices=2, vectors=s.layers * in_layer + in_head, **facts)


def opt(config: Config, family: Family) -> LLM:
    """OPT, which may project its embeddings."""
    s = _gpt_sizes(config, family)
    h, projected = s.hidden, config.integer("word_embed_proj_dim")
    has_final_norm = config.flag("do_layer_norm_before")
    head = s.vocab * projected + (2 * h * projected if projected != h else 0)
    # OPT's learned positions start at 2.
    positions, in_head = (s.context + 2) * h, 0 if has_final_norm else -2 * h
    return gpt(config, family, s, head=head, positions=positions, in_head=in_head)


def gpt2(config: Config, family: Family) -> LLM:
    """GPT-2, and GPT-BigCode, where all heads may share one K and V."""
    is_shared = config.get("model_type") == "gpt_bigcode" and config.flag("multi_query")
    s = _gpt_sizes(config, family, **({"kv_heads": 1} if is_shared else {}))
    config.require("num_key_value_heads", s.kv_heads)  # newer configs write it out
    return gpt(config, family, s, positions=s.context * s.hidden)


def mpt(config: Config, family: Family) -> LLM:
    """MPT, without biases; ALiBi has no table of positions."""
    if not config.get("no_bias"):
        fix = "set no_bias to true, as every published MPT has it"
        raise config.error("biases are not supported", "no_bias", fix)
    attention = Section(config.get("attn_config"), config.file, "attn_config")
    attention.require("attn_type", "multihead_attention")
    attention.require("qk_ln", False)
    ffn = config.integer("expansion_ratio") * config.integer("d_model")
    s = _gpt_sizes(config, family, ffn=ffn)
    return decoder(config, s, is_tied=True, mlp_matrices=2, vectors=(2 * s.layers + 1) * s.hidden)


def bloom(config: Config, family: Family) -> LLM:
    """BLOOM, with a norm of the embedding."""
    # ALiBi sets no limit; `seq_length`, the length in training, is what servers go by.
    context = config.integer("seq_length", default=UNBOUNDED_TOKENS)
    s = _gpt_sizes(config, family, context=context)
    config.require("n_inner", 4 * s.hidden)
    return gpt(config, family, s, in_head=2 * s.hidden)


def falcon(config: Config, family: Family) -> LLM:
    """Falcon, of the old and the new architecture."""
    own: dict[str, int] = {}
    is_shared = config.flag("multi_query")
    if config.flag("new_decoder_architecture"):
        own["kv_heads"] = config.integer("num_kv_heads")
        norms = config.integer("num_ln_in_parallel_attn", default=2)
    else:
        config.ignore("num_kv_heads")  # has a meaning in the new architecture only
        own |= {"kv_heads": 1} if is_shared else {}
        norms = 1 if config.flag("parallel_attn") else 2  # side by side they share one
    # Falcon 7B and 40B leave the context to the class.
    own["context"] = config.integer("max_position_embeddings", default=2048)
    s = _gpt_sizes(config, family, **own)
    return gpt(config, family, s, has_bias=config.flag("bias"), norms=norms)


def phi(config: Config, family: Family) -> LLM:
    """Phi 1 and 2, which may have norms of Q and K."""
    s = _gpt_sizes(config, family)
    qk_norm = 4 * s.head_dim if config.flag("qk_layernorm", default=False) else 0
    return gpt(config, family, s, in_layer=qk_norm)


def starcoder2(config: Config, family: Family) -> LLM:
    """StarCoder 2."""
    return gpt(config, family, has_bias=config.flag("use_bias", default=True))


def t5(config: Config, _: Family) -> LLM:
    """T5 and mT5: an encoder beside the decoder."""
    h, ffn, head_dim = (config.integer(name) for name in ("d_model", "d_ff", "d_kv"))
    layers, heads = config.integer("num_layers"), config.integer("num_heads")
    decoder_layers = config.integer("num_decoder_layers", default=layers)
    vocab, buckets = (
        config.integer(name) for name in ("vocab_size", "relative_attention_num_buckets")
    )
    # The first T5 configs do not write it; what that means is the family's.
    original = {"t5": "relu", "mt5": "gated-gelu"}[config.get("model_type")]
    kind = config.optional("feed_forward_proj", original)
    n_matrices = {"relu": 2, "gelu": 2, "gated-gelu": 3, "gated-silu": 3, "gated-relu": 3}
    if kind not in [*n_matrices]:
        fix = f"use {', '.join(n_matrices)}"
        raise config.error(f"unknown MLP {kind!r}", "feed_forward_proj", fix)
    mlp = n_matrices[kind] * h * ffn
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
