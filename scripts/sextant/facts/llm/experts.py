"""Reads mixtures of experts: which layers have them, and what one of them is made of."""

from sextant.facts.llm.config import Config
from sextant.facts.llm.layers import Experts, Sizes


def every_layer(config: Config, s: Sizes) -> Experts:
    """Mixtral, GPT-OSS and MiniMax: experts of the MLP's width in every layer."""
    n = config.integer("num_local_experts")
    return Experts(s.layers, n, config.integer("num_experts_per_tok"), s.ffn, 0, s.hidden * n)


def qwen2(config: Config, s: Sizes, step: int | None = None) -> Experts:
    """Qwen 1.5, 2 and Next: beside the routed experts a shared one behind a gate of its own."""
    routed = qwen3(config, s, step)
    shared = config.integer("shared_expert_intermediate_size")
    return routed._replace(shared_ffn=shared, router=routed.router + s.hidden)


def qwen3(config: Config, s: Sizes, step: int | None = None) -> Experts:
    """Experts in every `decoder_sparse_step`-th layer but those of `mlp_only_layers`.

    `step` is what a config without that field means.
    """
    n, step = config.integer("num_experts"), config.integer("decoder_sparse_step", default=step)
    dense = set(
        config.listing("mlp_only_layers", int, default=[])
    )  # Qwen 1.5 is older than this field
    layers = [i for i in range(s.layers) if i not in dense and (i + 1) % step == 0]
    per_token, ffn = config.integer("num_experts_per_tok"), config.integer("moe_intermediate_size")
    return Experts(len(layers), n, per_token, ffn, 0, s.hidden * n)


def llama4(config: Config, s: Sizes) -> Experts:
    """Llama 4: experts in every `interleave_moe_layer_step`-th layer, and a shared one there."""
    n, step = config.integer("num_local_experts"), config.integer("interleave_moe_layer_step")
    listed = config.listing("moe_layers", int, default=list(range(step - 1, s.layers, step)))
    layers = set(listed) & set(range(s.layers))
    per_token = config.integer("num_experts_per_tok")
    return Experts(len(layers), n, per_token, s.ffn, s.ffn, s.hidden * n)


def step(config: Config, s: Sizes) -> Experts:
    """Step 3.5 and 3.7: a shared expert beside the routed ones, after a few dense layers."""
    n, ffn = config.integer("num_experts"), config.integer("moe_intermediate_size")
    config.require("n_shared_experts", 1)
    config.require("use_moe_router_bias", True)
    config.ignore("moe_router_scaling_factor")
    layers = s.layers - config.integer("first_k_dense_replace", least=0, most=s.layers)
    shared, per_token = config.integer("share_expert_dim"), config.integer("num_experts_per_tok")
    return Experts(layers, n, per_token, ffn, shared, s.hidden * n)


def deepseek(config: Config, s: Sizes) -> Experts:
    """Shared experts beside the routed ones, after `first_k_dense_replace` dense layers."""
    n, ffn = config.integer("n_routed_experts"), config.integer("moe_intermediate_size")
    dense = config.integer("first_k_dense_replace", least=0)
    config.require("moe_layer_freq", 1)
    if dense > s.layers:
        fix = "correct one of the two"
        raise config.error(f"{dense} of {s.layers} layers", "first_k_dense_replace", fix)
    shared = config.integer("n_shared_experts", least=0) * ffn
    per_token = config.integer("num_experts_per_tok")
    return Experts(s.layers - dense, n, per_token, ffn, shared, s.hidden * n)
