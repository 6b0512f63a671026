"""Hybrids: layers of attention among layers that keep a state of fixed size for a whole request.

Qwen 3-Next and 3.5 have gated delta nets (Yang et al., ICLR 2025), Nemotron-H has Mamba 2 (Dao and
Gu, ICML 2024). Only the layers of attention have a KV cache; the states are counted per request.
"""

from collections import Counter
from collections.abc import Callable

from sextant.facts.llm.config import Config
from sextant.facts.llm.facts import DTYPE_BYTES, LLM
from sextant.facts.llm.layers import (
    Experts,
    Sizes,
    decoder,
    qwen2_experts,
    read_experts,
    read_sizes,
)

_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def _qwen_next(config: Config) -> LLM:
    """Qwen 3-Next, 3.5 and 3.6: three delta nets to one attention, whose output has a gate."""
    is_moe = config.optional("num_experts") is not None
    s = read_sizes(config, ffn="moe_intermediate_size" if is_moe else "intermediate_size")
    config.require("attention_bias", False)
    config.require("attn_output_gate", True)
    config.ignore("intermediate_size")  # of the layers that `mlp_only_layers` would name
    config.ignore("mtp_num_hidden_layers", "mlp_only_layers")
    key_heads = config.integer("linear_num_key_heads")
    value_heads = config.integer("linear_num_value_heads")
    key_dim, value_dim = (config.integer(f"linear_{name}_head_dim") for name in ("key", "value"))
    kernel = config.integer("linear_conv_kernel_dim")
    n_attention = _attention_layers(config, s.layers)
    n_delta = s.layers - n_attention
    value, mixed = value_heads * value_dim, 2 * key_heads * key_dim + value_heads * value_dim
    delta = s.hidden * (mixed + value + 2 * value_heads) + value * s.hidden
    # Q has a gate of its own size.
    attention = s.hidden * (3 * s.heads + 2 * s.kv_heads) * s.head_dim
    delta_vectors = mixed * kernel + 2 * value_heads + value_dim
    state = _state_bytes(config, value_heads * key_dim * value_dim, mixed * (kernel - 1))
    vectors = n_delta * delta_vectors + n_attention * 2 * s.head_dim
    return decoder(
        config,
        s,
        vectors=vectors + (2 * s.layers + 1) * s.hidden,
        attention=n_delta * delta + n_attention * attention,
        experts=qwen2_experts(config, s, step=1) if is_moe else None,
        n_attention_layers=n_attention,
        state_bytes_per_request=n_delta * state,
    )


def _attention_layers(config: Config, layers: int) -> int:
    interval = config.integer("full_attention_interval", default=4)
    if config.optional("layer_types") is None:
        return layers // interval
    kinds = ("full_attention", "linear_attention")
    return config.by_layer("layer_types", layers, kinds).count("full_attention")


def _state_bytes(config: Config, state: int, convolution: int) -> int:
    """Return the bytes of one layer's state, whose type may be its own, and of its inputs."""
    dtype = config.optional("dtype", "bfloat16")
    own = config.optional("mamba_ssm_dtype") or config.optional("mamba_ssm_cache_dtype") or dtype
    if own not in DTYPE_BYTES:
        raise config.error(f"unknown type {own!r}", "mamba_ssm_dtype", "use float32 or bfloat16")
    return state * DTYPE_BYTES[own] + convolution * DTYPE_BYTES.get(dtype, 2)


def _nemotron_h(config: Config) -> LLM:
    """Nemotron-H and Nemotron 3: a layer is one of Mamba, attention, MLP and experts."""
    kinds = _kinds(config)
    n, h = Counter(kinds), config.integer("hidden_size")
    of_attention = config.optional("attention_head_dim") is not None
    head_dim = "attention_head_dim" if of_attention else "head_dim"
    s = read_sizes(config, layers=len(kinds), head_dim=head_dim)
    for bias in ("attention_bias", "mlp_bias", "use_bias", "mamba_proj_bias"):
        config.require(bias, False)
    config.require("use_conv_bias", True)
    config.ignore("num_nextn_predict_layers", "rescale_prenorm_residual", "num_hidden_layers")
    config.ignore("mtp_hybrid_override_pattern", "mtp_layers_block_type")
    config.ignore("moe_shared_expert_overlap", "mamba_hidden_act", "use_mamba_kernels")
    heads, size = config.integer("mamba_num_heads"), config.integer("ssm_state_size")
    inner, kernel = heads * config.integer("mamba_head_dim"), config.integer("conv_kernel")
    mixed = inner + 2 * config.integer("n_groups") * size
    mamba = h * (inner + mixed + heads) + inner * h
    attention = 2 * h * (s.heads + s.kv_heads) * s.head_dim
    mixture = _nemotron_experts(config, s, n["moe"]) if n["moe"] else Experts()
    return decoder(
        config,
        s,
        vectors=s.layers * h
        + n["mamba"] * (mixed * (kernel + 1) + 3 * heads + inner)
        + mixture.layers * mixture.n
        + h,
        mlp_matrices=2,
        attention=n["mamba"] * mamba + n["attention"] * attention,
        mlp=n["mlp"] * 2 * h * s.ffn,
        experts=mixture,
        n_attention_layers=n["attention"],
        state_bytes_per_request=n["mamba"]
        * _state_bytes(config, inner * size, mixed * (kernel - 1)),
    )


def _kinds(config: Config) -> list[str]:
    """Return the kind of each layer, one of the values of `_PATTERN`."""
    if config.optional("layers_block_type") is not None:
        name, kinds = "layers_block_type", config.listing("layers_block_type", str)
    else:
        name = "hybrid_override_pattern"
        kinds = [_PATTERN.get(letter, letter) for letter in config.word(name)]
    if not kinds or not set(kinds) <= set(_PATTERN.values()):
        unknown = ", ".join(sorted(set(kinds) - set(_PATTERN.values())))
        fix = f"use {', '.join(_PATTERN.values())}"
        raise config.error(f"unknown kinds of layers: {unknown}", name, fix)
    if "attention" not in kinds:
        raise config.error("no layer has attention", name, "only hybrids are supported")
    return kinds


def _nemotron_experts(config: Config, s: Sizes, layers: int) -> Experts:
    """Read experts that may work on a projection of the hidden state (Nemotron 3 Super)."""
    latent = config.integer("moe_latent_size", 0, least=0)
    config.require("n_shared_experts", 1)
    shared = config.integer("moe_shared_expert_intermediate_size")
    experts = read_experts(config, s, layers, "n_routed_experts", shared_ffn=shared)
    return experts._replace(router=experts.router + 2 * s.hidden * latent, width=latent)


FAMILIES: dict[str, Callable[[Config], LLM]] = {
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _qwen_next),
    "nemotron_h": _nemotron_h,
}
