"""What mixes tokens in a layer: attention of several kinds, and states of a fixed size.

Each function returns a `Mixer` of one layer: its matrices, and what it keeps of a request.
"""

from collections.abc import Mapping
from typing import NamedTuple

from sextant.facts.llm_config import DTYPE_BYTES, Config
from sextant.facts.llm_families import Family
from sextant.facts.llm_layers import Layer
from sextant.facts.llm_sizes import Sizes


class Mixer(NamedTuple):
    """Parameters of what mixes tokens in a layer, and what it keeps of a request."""

    matrices: Mapping[str, int]  # parameters by name, e.g. `q`
    vectors: int = 0  # norms, biases, convolutions
    kv_values: float = 0.0  # numbers per token
    window_tokens: int = 0  # tokens that it keeps; 0: all
    state_bytes: int = 0
    latent: int = 0  # numbers of MLA's vector
    is_attention: bool = False


class Biases(NamedTuple):
    """Which matrices have biases."""

    qkv: bool
    out: bool
    mlp: bool


def read_biases(config: Config, family: Family) -> Biases:
    """Return which matrices have biases, by the config's fields and the family."""
    rules = family.attention
    qkv, out, mlp = rules.qkv_bias, rules.out_bias, family.ffn.mlp_bias
    whole = config.first("use_bias", "add_bias_linear", "bias", "attn_bias")
    if isinstance(whole, bool) and not family.ffn.mlp_bias:
        qkv, out, mlp = whole, whole, whole and config.optional("attn_bias") is None
    if config.optional("attention_bias") is not None:
        has_bias = config.flag("attention_bias")
        qkv = qkv or has_bias
        out = out or (has_bias and rules.attention_bias == "all")
    for name in ("qkv_bias", "add_qkv_bias", "use_qkv_bias"):
        if config.optional(name) is not None:
            qkv = config.flag(name)
    out = config.flag("attention_out_bias", default=out)
    return Biases(qkv, out, config.flag("mlp_bias", default=mlp))


def mixer_of(config: Config, family: Family, s: Sizes, layer: Layer, kind: str) -> Mixer:
    """Return a mixer of a layer; InputError: its sizes are not among the fields."""
    if kind in ("full", "sliding", "cross"):
        if kind != "cross" and config.optional("kv_lora_rank") is not None:
            return _latent(config, family, s, layer, kind)
        return _attention(config, family, s, layer, kind)
    if kind == "linear":
        kind = _kind_of_linear(config, family)
    if kind == "mamba" and family.layers.state in STATES:
        kind = family.layers.state
    if kind == "mamba":
        has_heads = any(name in config.values for name in _MAMBA2_FIELDS)
        kind = "mamba2" if has_heads else "mamba1"
    return STATES[kind](config, s)


_MAMBA2_FIELDS = ("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "mamba_headdim")


def _kind_of_linear(config: Config, family: Family) -> str:
    if family.layers.state in STATES:
        return family.layers.state
    if config.optional("linear_num_key_heads") is not None:
        return "delta"
    if config.first("linear_head_dim", "short_conv_kernel_size") is not None:
        return "kda"
    if config.first("ssm_state_size", "mamba_d_conv") is not None:
        return "mamba"
    if config.optional("attn_type_list") is not None:
        return "lightning"
    fix = "add linear_num_key_heads and the like as Hugging Face names them"
    field = next((name for name in ("layer_types", "attn_type_list") if name in config.values), "")
    raise config.error("the size of linear attention is not given", field or "layer_types", fix)


def _attention(config: Config, family: Family, s: Sizes, layer: Layer, kind: str) -> Mixer:
    """Attention that keeps K and V: of all tokens, of a window, or of an encoder's output."""
    rules = family.attention
    fields = rules.by_kind.get(kind, {})
    heads = layer.heads or _optional_size(config, fields.get("heads"), s.heads)
    kv_heads = layer.kv_heads or _optional_size(config, fields.get("kv_heads"), s.kv_heads)
    dim = layer.head_dim or _optional_size(config, fields.get("head_dim"), s.head_dim)
    v_dim = _optional_size(config, fields.get("v_dim"), dim)
    k, v = kv_heads * dim, kv_heads * v_dim
    matrices = {"q": s.hidden * heads * dim, "k": s.hidden * k, "v": s.hidden * v}
    if (shared := config.integer("share_q_dim", 0, least=0)) and shared < heads * dim:
        # Step 3: heads multiply one narrow query each in its own way.
        matrices["q"] = shared * (s.hidden + heads * dim)
    if fields.get("k_is_v") and config.optional(fields["k_is_v"]) is True:
        del matrices["v"]
    matrices["o"] = heads * v_dim * s.hidden
    gate = {"value": heads * v_dim, "head": heads, "": 0}[_gate(config, family)]
    if gate:
        matrices["g"] = s.hidden * gate
    if layer.shares_kv and not rules.has_unused_kv:
        for name in ("k", "v"):
            matrices.pop(name, None)
    biases = read_biases(config, family)
    vectors = biases.qkv * (heads * dim + k + v) + biases.out * s.hidden
    qk_norm = rules.qk_norm
    if not qk_norm and config.optional("use_qk_norm") is True:
        qk_norm = "head"
    normed = 1 if layer.shares_kv else 2
    vectors += {"": 0, "none": 0, "head": normed * dim, "all": heads * dim + k}[qk_norm]
    vectors += heads * (rules.sinks in ("all", kind))
    index, key = _index(config, s) if layer.has_index else ({}, 0)
    is_kept = kind != "cross" and not layer.shares_kv
    window = _window(config, family) if kind == "sliding" else 0
    return Mixer(
        matrices | index,
        vectors,
        kv_values=float(is_kept * (k + v)) + key,
        window_tokens=window,
        is_attention=kind != "cross",
    )


def _optional_size(config: Config, field: str | None, default: int) -> int:
    return config.integer(field, default) if field else default


def _gate(config: Config, family: Family) -> str:
    """Return which gates the output of attention has: `value`, `head` or none."""
    stated = config.first("attn_output_gate", "mla_use_output_gate", "use_output_gate")
    if stated is False:
        return ""
    gating = config.optional("gating")
    if isinstance(gating, bool | str):  # Laguna
        return "head" if gating in (True, "per-head") else "value" if gating else ""
    return "value" if stated is True else family.attention.gate


def _window(config: Config, family: Family) -> int:
    return config.integer(family.layers.window_fields[0])


def _index(config: Config, s: Sizes) -> tuple[dict[str, int], int]:
    """Return matrices and key of MiniMax M3's index, by which attention chooses its tokens."""
    if config.optional("index_n_heads") is not None:
        heads, key = config.integers("index_n_heads", "index_head_dim")
    else:
        sparse = config.section("sparse_attention_config")
        heads, key = sparse.integers("sparse_num_index_heads", "sparse_index_dim")
    return {"index": s.hidden * (heads + 1) * key}, key


def _latent(config: Config, family: Family, s: Sizes, layer: Layer, kind: str) -> Mixer:
    """Multi-head latent attention (DeepSeek V2): a token keeps one vector for all heads."""
    latent, plain, v = config.integers("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")
    rotary = config.integer("qk_rope_head_dim", least=0)
    config.ignore("head_dim", "qk_head_dim", "num_key_value_heads", "layer_types")
    # V2-Lite has no latent vector of the queries: its config says null.
    q_latent = config.integer("q_lora_rank", default=0, least=0)
    heads = layer.heads or s.heads
    query = heads * (plain + rotary)
    matrices = {"q_a": s.hidden * q_latent, "q_b": q_latent * query}
    if not q_latent:
        matrices = {"q": s.hidden * query}
    matrices |= {
        "kv_a": s.hidden * (latent + rotary),
        "kv_b": latent * heads * (plain + v),
        "o": heads * v * s.hidden,
    }
    gate = {"value": heads * v, "head": heads, "": 0}[_gate(config, family)]
    if gate:
        matrices["g"] = s.hidden * gate
    return Mixer(
        matrices,
        vectors=latent + q_latent,
        kv_values=float(latent + rotary),
        window_tokens=_window(config, family) if kind == "sliding" else 0,
        latent=latent + rotary,
        is_attention=True,
    )


def with_indexer(config: Config, s: Sizes, mixer: Mixer) -> Mixer:
    """Return MLA with an indexer that chooses the tokens to look at (DeepSeek V3.2, GLM-5).

    It has a few small heads with one key per token. A key has numbers of 8 bits and a scale of 32
    bits, whatever the KV cache has. Here all are counted in numbers of 16 bits.
    """
    heads, dim = config.integers("index_n_heads", "index_head_dim")
    q_latent = config.integer("q_lora_rank", s.hidden)  # of the hidden state where there is none
    matrices = q_latent * heads * dim + s.hidden * (dim + heads)
    return mixer._replace(
        matrices={**mixer.matrices, "indexer": matrices},
        vectors=mixer.vectors + 2 * dim,
        kv_values=mixer.kv_values + dim / 2 + 2,
    )


def state_bytes(config: Config, state: int, convolution: int) -> int:
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


def _delta(config: Config, s: Sizes) -> Mixer:
    """Gated delta net (Qwen 3-Next, 3.5)."""
    key_heads, value_heads = config.integers("linear_num_key_heads", "linear_num_value_heads")
    key_dim, value_dim = config.integers("linear_key_head_dim", "linear_value_head_dim")
    kernel = config.integer("linear_conv_kernel_dim")
    value = value_heads * value_dim
    mixed = 2 * key_heads * key_dim + value
    return Mixer(
        {"qkv": s.hidden * mixed, "z": s.hidden * value, "ba": s.hidden * 2 * value_heads}
        | {"out": value * s.hidden},
        vectors=mixed * kernel + 2 * value_heads + value_dim,
        state_bytes=state_bytes(config, value_heads * key_dim * value_dim, mixed * (kernel - 1)),
    )


def _kda(config: Config, s: Sizes) -> Mixer:
    """Kimi Delta Attention: a delta net whose decay differs by number."""
    section = config
    prefix = "linear_"
    if isinstance(config.optional("linear_attn_config"), dict):
        section, prefix = config.section("linear_attn_config"), ""
    dim, heads = section.integers(f"{prefix}head_dim", f"{prefix}num_heads")
    kernel = config.size(
        config.first("linear_conv_kernel_dim", "short_conv_kernel_size", default=4),
        "linear_conv_kernel_dim",
    )
    value = heads * dim
    narrow = s.hidden * dim + dim * value
    gate = s.hidden * value if section.optional("use_full_rank_gate") is True else narrow
    return Mixer(
        {"q": s.hidden * value, "k": s.hidden * value, "v": s.hidden * value}
        | {"f": narrow, "g": gate}
        | {"b": s.hidden * heads, "o": value * s.hidden},
        vectors=3 * value * kernel + value + heads + dim,
        state_bytes=state_bytes(config, heads * dim * dim, 3 * value * (kernel - 1)),
    )


def _lightning(config: Config, s: Sizes) -> Mixer:
    """Lightning attention (MiniMax Text-01 and M1): a state of each head, and a gate."""
    value = s.heads * s.head_dim
    return Mixer(
        {"qkv": 3 * s.hidden * value, "gate": s.hidden * value, "out": value * s.hidden},
        vectors=value,
        state_bytes=state_bytes(config, s.heads * s.head_dim**2, 0),
    )


def mamba2(config: Config, s: Sizes) -> Mixer:
    """Mamba 2: a scalar decay for each head."""
    size = config.integer("ssm_state_size")
    kernel = config.integer("conv_kernel")
    stated = config.first("mamba_d_ssm", "mamba_intermediate_size")
    expand = config.first("mamba_expand", "expand", default=2)
    heads = config.optional("mamba_num_heads")
    dim = config.optional("mamba_head_dim", 64)
    if stated is None:
        is_counted = isinstance(heads, int) and isinstance(dim, int)
        stated = heads * dim if is_counted else config.size(expand, "mamba_expand") * s.hidden
    inner = config.size(stated, "mamba_d_ssm")
    heads = config.size(heads or inner // config.size(dim, "mamba_head_dim"), "mamba_num_heads")
    mixed = inner + 2 * config.integer("n_groups", 1) * size
    config.ignore("mamba_chunk_size", "mamba_proj_bias", "use_mamba_kernels", "mamba_expand")
    return Mixer(
        {"in": s.hidden * (inner + mixed + heads), "out": inner * s.hidden},
        vectors=mixed * (kernel + 1) + 3 * heads + inner,
        state_bytes=state_bytes(config, inner * size, mixed * (kernel - 1)),
    )


def _mamba1(config: Config, s: Sizes) -> Mixer:
    """Mamba (Jamba): a decay for each number, through a narrow projection."""
    size = config.integer("ssm_state_size")
    kernel = config.integer("conv_kernel")
    inner = (
        config.size(config.first("mamba_expand", "expand", default=2), "mamba_expand") * s.hidden
    )
    rank = config.optional("mamba_dt_rank", "auto")
    rank = -(-s.hidden // 16) if rank == "auto" else config.size(rank, "mamba_dt_rank")
    return Mixer(
        {"in": 2 * s.hidden * inner, "x": inner * (rank + 2 * size), "dt": rank * inner}
        | {"out": inner * s.hidden},
        vectors=inner * (kernel + 1 + 1 + size + 1) + rank + 2 * size,
        state_bytes=state_bytes(config, inner * size, inner * (kernel - 1)),
    )


def _short_convolution(config: Config, s: Sizes) -> Mixer:
    """A gated convolution over a few tokens (LFM2)."""
    kernel = config.integer("conv_L_cache")
    return Mixer(
        {"in": 3 * s.hidden * s.hidden, "out": s.hidden * s.hidden},
        vectors=kernel * s.hidden + 4 * s.hidden * (config.optional("conv_bias") is True),
        state_bytes=state_bytes(config, 0, s.hidden * (kernel - 1)),
    )


def _recurrent(config: Config, s: Sizes) -> Mixer:
    """The gated linear recurrence of Griffin (RecurrentGemma)."""
    width = config.integer("lru_width", s.hidden)
    kernel = config.integer("conv1d_width", 4)
    gates = 2 * s.heads * (width // s.heads) ** 2
    return Mixer(
        {"y": s.hidden * width, "x": s.hidden * width, "gates": gates, "out": width * s.hidden},
        vectors=width * (kernel + 1) + 3 * width + 2 * width + s.hidden,
        state_bytes=state_bytes(config, 0, width * (kernel - 1)) + 4 * width,
    )


STATES = {
    "delta": _delta,
    "kda": _kda,
    "lightning": _lightning,
    "mamba1": _mamba1,
    "mamba2": mamba2,
    "conv": _short_convolution,
    "recurrent": _recurrent,
}
