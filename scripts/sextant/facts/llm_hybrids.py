"""Families of latent attention (MLA), hybrids, and LLMs whose layers differ in size.

A hybrid's layers without attention keep a state of fixed size. Layers differ where there are two
kinds of attention, or where sizes were chosen layer by layer.
"""

from collections import Counter
from dataclasses import replace

from sextant.facts import llm_families as base
from sextant.facts.llm_config import DTYPE_BYTES, Config


def deepseek(config: Config, family: base.Family) -> base.Facts:
    """DeepSeek V2 to V3.2, Kimi K2 and GLM-5."""
    h, heads, latent = config.integers("hidden_size", "num_attention_heads", "kv_lora_rank")
    plain, rotary, v = config.integers("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    # V2-Lite has no latent vector of the queries: its config says null.
    q_latent = config.integer("q_lora_rank", default=0, least=0)
    s = base.read_sizes(config, kv_heads=heads, head_dim=plain + rotary)
    query = heads * s.head_dim
    queries = q_latent * (h + query) if q_latent else h * query
    experts = base.experts_by(config, s, "deepseek")
    # V3 balances the load of its experts with a bias each, in place of a loss.
    balance = experts.layers * experts.n if config.get("model_type") != "deepseek_v2" else 0
    attention = queries + h * (latent + rotary) + latent * heads * (plain + v) + heads * v * h
    vectors = s.layers * (2 * h + latent + q_latent) + h + balance
    matrices = s.layers * attention
    kv_values = 0.0
    if family.is_sparse:
        # Indexers choose the tokens to look at: a few small heads with one key per token. A key has
        # numbers of 8 bits and a scale of 32 bits, whatever the KV cache has. Here all are counted
        # in numbers of 16 bits.
        index_heads, dim = config.integers("index_n_heads", "index_head_dim")
        kinds = config.by_layer("indexer_types", s.layers, ("full", "shared"), ["full"] * s.layers)
        n = kinds.count("full")
        matrices += n * (q_latent * index_heads * dim + h * (dim + index_heads))
        vectors += n * 2 * dim
        kv_values = s.layers * (latent + rotary) + n * (dim / 2 + 2)
    parts = base.Parts(vectors, attention=matrices, experts=experts)
    cache = base.CacheFacts(kv_latent_size=latent + rotary, kv_values=kv_values)
    return base.decoder(config, s, parts, cache)


def deepseek_v4(config: Config, family: base.Family) -> base.Facts:
    """DeepSeek V4 (technical report, 2026): every layer keeps a window of tokens.

    Of older tokens a layer keeps one vector, which is both K and V, per group of `compress_ratios`
    tokens. At ratio 4 an indexer with compressed keys chooses among the vectors. The small matrices
    of `hc_mult` are left out.
    """
    h, heads, dim = config.integers("hidden_size", "num_attention_heads", "head_dim")
    layers = config.integer("num_hidden_layers")
    q_latent, groups, out_latent = config.integers("q_lora_rank", "o_groups", "o_lora_rank")
    index_heads, key = config.integers("index_n_heads", "index_head_dim")
    ratios = config.listing("compress_ratios", int)[:layers]  # one more is that of the extra layer
    if len(ratios) != layers or not set(ratios) <= {0, 4, 128}:
        fix = f"give 0, 4 or 128 for each of the {layers} layers"
        raise config.error("unknown ratios", "compress_ratios", fix)
    query = heads * dim
    attention = q_latent * (h + query) + h * dim + out_latent * (query + groups * h)
    # Keys and gates; at ratio 4 neighbouring windows overlap, which takes two of each.
    compressors = ratios.count(128) * 2 * h * dim + ratios.count(4) * 4 * h * (dim + key)
    indexers = ratios.count(4) * (q_latent * index_heads * key + h * index_heads)
    kept = sum(dim / ratio for ratio in ratios if ratio) + ratios.count(4) * key / 4
    s = base.read_sizes(config, ffn="moe_intermediate_size")
    shared = config.integer("n_shared_experts") * s.ffn
    experts = base.routed_experts(config, s, layers, "n_routed_experts", shared_ffn=shared)
    parts = base.Parts(
        vectors=layers * (2 * h + q_latent + dim + heads + experts.n) + h,
        attention=layers * attention + compressors + indexers,
        experts=experts,
    )
    cache = base.CacheFacts(
        kv_latent_size=dim,
        kv_values=kept + layers * dim,
        sliding_kv_values=layers * dim,
        sliding_window_tokens=config.integer("sliding_window"),
        n_sliding_layers=layers,
    )
    return base.decoder(config, s, parts, cache)


def qwen_next(config: Config, family: base.Family) -> base.Facts:
    """Qwen 3-Next, 3.5 and 3.6: three delta nets to one attention, whose output has a gate."""
    is_moe = config.optional("num_experts") is not None
    s = base.read_sizes(config, ffn="moe_intermediate_size" if is_moe else "intermediate_size")
    key_heads, value_heads = config.integers("linear_num_key_heads", "linear_num_value_heads")
    key_dim, value_dim = config.integers("linear_key_head_dim", "linear_value_head_dim")
    kernel = config.integer("linear_conv_kernel_dim")
    n_attention = s.layers // config.integer("full_attention_interval", default=4)
    if config.optional("layer_types") is not None:
        kinds = ("full_attention", "linear_attention")
        n_attention = config.by_layer("layer_types", s.layers, kinds).count("full_attention")
    n_delta = s.layers - n_attention
    value = value_heads * value_dim
    mixed = 2 * key_heads * key_dim + value
    delta = s.hidden * (mixed + value + 2 * value_heads) + value * s.hidden
    # Q has a gate of its own size.
    attention = s.hidden * (3 * s.heads + 2 * s.kv_heads) * s.head_dim
    delta_vectors = mixed * kernel + 2 * value_heads + value_dim
    state = _state_bytes(config, value_heads * key_dim * value_dim, mixed * (kernel - 1))
    vectors = n_delta * delta_vectors + n_attention * 2 * s.head_dim
    parts = base.Parts(
        vectors=vectors + (2 * s.layers + 1) * s.hidden,
        attention=n_delta * delta + n_attention * attention,
        experts=base.experts_by(config, s, "qwen2", step=1) if is_moe else base.Experts(),
    )
    cache = base.CacheFacts(n_attention_layers=n_attention, state_bytes_per_request=n_delta * state)
    return base.decoder(config, s, parts, cache)


def _state_bytes(config: Config, state: int, convolution: int) -> int:
    """Return the bytes of one layer's state and of the convolution's inputs.

    The state may have its own data type.
    """
    dtype = config.optional("dtype", "bfloat16")
    state_dtype = config.optional("mamba_ssm_dtype") or config.optional("mamba_ssm_cache_dtype")
    state_dtype = state_dtype or dtype
    if str(state_dtype) not in DTYPE_BYTES:
        fix = "use float32 or bfloat16"
        raise config.error(f"unknown type {state_dtype!r}", "mamba_ssm_dtype", fix)
    return state * DTYPE_BYTES[state_dtype] + convolution * DTYPE_BYTES.get(str(dtype), 2)


_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def nemotron_h(config: Config, family: base.Family) -> base.Facts:
    """Nemotron-H and Nemotron 3: a layer is one of Mamba, attention, MLP and experts."""
    name = "layers_block_type"
    if config.optional(name) is not None:
        kinds = config.listing(name, str)
    else:
        name = "hybrid_override_pattern"
        kinds = [_PATTERN.get(letter, letter) for letter in config.word(name)]
    if not kinds or not set(kinds) <= set(_PATTERN.values()):
        unknown = ", ".join(sorted(set(kinds) - set(_PATTERN.values())))
        fix = f"use {', '.join(_PATTERN.values())}"
        raise config.error(f"unknown kinds of layers: {unknown}", name, fix)
    if "attention" not in kinds:
        raise config.error("no layer has attention", name, "only hybrids are supported")
    n = Counter(kinds)
    h = config.integer("hidden_size")
    dim = "head_dim" if config.optional("attention_head_dim") is None else "attention_head_dim"
    s = base.read_sizes(config, layers=len(kinds), head_dim=dim)
    heads, size = config.integers("mamba_num_heads", "ssm_state_size")
    inner = heads * config.integer("mamba_head_dim")
    kernel = config.integer("conv_kernel")
    mixed = inner + 2 * config.integer("n_groups") * size
    mamba = h * (inner + mixed + heads) + inner * h
    attention = 2 * h * (s.heads + s.kv_heads) * s.head_dim
    state = _state_bytes(config, inner * size, mixed * (kernel - 1))
    experts = base.Experts()
    if n["moe"]:
        config.require(n_shared_experts=1)
        shared = config.integer("moe_shared_expert_intermediate_size")
        experts = base.routed_experts(config, s, n["moe"], "n_routed_experts", shared_ffn=shared)
        # Experts may work on a projection of the hidden state (Nemotron 3 Super).
        latent = config.integer("moe_latent_size", 0, least=0)
        experts = experts._replace(router=experts.router + 2 * h * latent, width=latent)
    in_mamba = mixed * (kernel + 1) + 3 * heads + inner
    parts = base.Parts(
        vectors=(s.layers + 1) * h + n["mamba"] * in_mamba + experts.layers * experts.n,
        mlp_matrices=2,
        attention=n["mamba"] * mamba + n["attention"] * attention,
        mlp=n["mlp"] * 2 * h * s.ffn,
        experts=experts,
    )
    cache = base.CacheFacts(
        n_attention_layers=n["attention"], state_bytes_per_request=n["mamba"] * state
    )
    return base.decoder(config, s, parts, cache)


def gemma4(config: Config, family: base.Family) -> base.Facts:
    """Gemma 4: layers that see all tokens have fewer, larger KV heads, and use K as V."""
    s = base.read_sizes(config)
    config.listing("layer_types", str)
    window = base.sliding_window(config, s.layers, family)
    n_sliding = window.n_sliding_layers
    n_full = s.layers - n_sliding
    wide = config.integer("global_head_dim")
    # K serves as V where layers that see all tokens have their own number of KV heads.
    is_shared = config.flag("attention_k_eq_v")
    kv_heads = config.integer("num_global_key_value_heads") if is_shared else s.kv_heads
    full = s.hidden * (2 * s.heads + (1 if is_shared else 2) * kv_heads) * wide
    sliding = 2 * s.hidden * (s.heads + s.kv_heads) * s.head_dim
    experts = base.Experts()
    norms = 4
    if config.flag("enable_moe_block"):
        experts = base.routed_experts(config, s, s.layers, per_token="top_k_experts")
        norms = 8
    in_sliding = n_sliding * 2 * s.kv_heads * s.head_dim
    qk_norms = 2 * (n_sliding * s.head_dim + n_full * wide)
    parts = base.Parts(
        vectors=s.layers * (norms * s.hidden + experts.n) + qk_norms + s.hidden,
        is_tied=family.is_tied,
        attention=n_sliding * sliding + n_full * full,
        mlp=s.layers * 3 * s.hidden * s.ffn,
        experts=experts,
    )
    cache = replace(
        window,
        kv_values=float(in_sliding + n_full * 2 * kv_heads * wide),
        sliding_kv_values=float(in_sliding),
    )
    return base.decoder(config, s, parts, cache)


def mimo_v2(config: Config, family: base.Family) -> base.Facts:
    """MiMo V2 Flash: layers with a window have KV heads of their own; V is smaller than K."""
    s = base.read_sizes(config)
    v = config.integer("v_head_dim")
    layers = s.layers
    config.require(swa_num_attention_heads=s.heads, swa_head_dim=s.head_dim, swa_v_head_dim=v)
    n_sliding = sum(config.by_layer("hybrid_layer_pattern", layers, (0, 1)))
    n_moe = sum(config.by_layer("moe_layer_freq", layers, (0, 1)))
    kv_sliding = config.integer("swa_num_key_value_heads") * (s.head_dim + v)
    kv_full = s.kv_heads * (s.head_dim + v)
    kv = n_sliding * kv_sliding + (layers - n_sliding) * kv_full
    experts = base.routed_experts(config, s, n_moe, "n_routed_experts")
    parts = base.Parts(
        vectors=layers * 2 * s.hidden + n_sliding * s.heads + n_moe * experts.n + s.hidden,
        attention=s.hidden * (layers * s.heads * (s.head_dim + v) + kv),
        experts=experts,
    )
    cache = base.CacheFacts(
        kv_values=float(kv),
        sliding_kv_values=float(n_sliding * kv_sliding),
        sliding_window_tokens=config.integer("sliding_window"),
        n_sliding_layers=n_sliding,
    )
    return base.decoder(config, s, parts, cache)


def minimax_m3(config: Config, family: base.Family) -> base.Facts:
    """MiniMax M3: its layers of sparse attention keep one more key per token, which selects it."""
    s = base.read_sizes(config, ffn="dense_intermediate_size")
    sparse = config.section("sparse_attention_config")
    n_sparse = sum(sparse.by_layer("sparse_attention_freq", s.layers, (0, 1)))
    heads, key = sparse.integers("sparse_num_index_heads", "sparse_index_dim")
    n_moe = sum(config.by_layer("moe_layer_freq", s.layers, (0, 1)))
    shared = config.integer("shared_intermediate_size")
    experts = base.routed_experts(config, s, n_moe, "num_local_experts", shared_ffn=shared)
    bias = experts.n if config.flag("use_routing_bias", default=False) else 0
    attention = s.layers * 2 * s.hidden * (s.heads + s.kv_heads) * s.head_dim
    parts = base.Parts(
        vectors=s.layers * 2 * (s.hidden + s.head_dim) + n_moe * bias + s.hidden,
        attention=attention + n_sparse * s.hidden * (heads + 1) * key,
        experts=experts,
    )
    kv_values = float(s.layers * 2 * s.kv_heads * s.head_dim + n_sparse * key)
    return base.decoder(config, s, parts, base.CacheFacts(kv_values=kv_values))


def nemotron_nas(config: Config, family: base.Family) -> base.Facts:
    """Nemotron Super of 2025: a Llama whose layers were pruned one by one (architecture search)."""
    h, heads = config.integers("hidden_size", "num_attention_heads")
    blocks = config.get("block_configs")
    layers = config.integer("num_hidden_layers")
    if not isinstance(blocks, list) or len(blocks) != layers:
        fix = f"give each of the {layers} layers"
        raise config.error("not a list of layers", "block_configs", fix)
    kv_heads: list[int] = []
    widths: list[int] = []
    for block in (config.section("block_configs", values) for values in blocks):
        attention = block.section("attention")
        ffn = block.section("ffn")
        for part in (attention, ffn):
            part.require(replace_with_linear=False)
        if not attention.flag("no_op"):
            kv_heads.append(heads // attention.integer("n_heads_in_group"))
        factor = ffn.optional("ffn_mult", 0)
        if not isinstance(factor, int | float) or not 0 <= factor <= 1000:
            raise ffn.error(f"{factor!r} is not a factor", "ffn_mult", "give 0 to 1000")
        # Two thirds of a multiple of the hidden state.
        widths += [] if ffn.flag("no_op") else [-(-int(2 * factor * h / 3) // 256) * 256]
    if not all(kv_heads) or not kv_heads:
        fix = "give heads in a group that divide the heads"
        raise config.error("a layer without KV heads, or none with any", "block_configs", fix)
    head_dim = h // heads
    widest = max(widths, default=0)
    s = base.read_sizes(config, ffn=widest, kv_heads=max(kv_heads), head_dim=head_dim)
    parts = base.Parts(
        vectors=(len(kv_heads) + sum(width > 0 for width in widths) + 1) * h,
        attention=2 * h * head_dim * (len(kv_heads) * heads + sum(kv_heads)),
        mlp=3 * h * sum(widths),
    )
    cache = base.CacheFacts(
        n_attention_layers=len(kv_heads), kv_values=float(2 * head_dim * sum(kv_heads))
    )
    return base.decoder(config, s, parts, cache)
