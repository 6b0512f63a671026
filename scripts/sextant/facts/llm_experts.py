"""Experts of an LLM: how many, how wide, in which layers, and which of them every token uses."""

from typing import Any, NamedTuple

from sextant.facts.llm_config import Config
from sextant.facts.llm_families import Family


class Experts(NamedTuple):
    """The experts of a layer; a dense LLM has none."""

    n: int = 0  # routed experts
    per_token: int = 0  # routed experts that one token uses
    ffn: int = 0  # width of a routed expert
    shared_ffn: int = 0  # width of the shared experts, which serve every token
    router: int = 0  # parameters of the routing, and between routing and experts
    width: int = 0  # numbers that go into an expert
    vectors: int = 0  # biases of the routing and of experts


def layers_with_experts(config: Config, n_layers: int) -> list[bool]:
    """Return which layers have experts, by the fields that say so; all, if none does.

    Raises:
        InputError: a field has no sense, or more layers are dense than there are.
    """
    if config.optional("mlp_layer_types") is not None:
        config.ignore("first_k_dense_replace", "num_dense_layers", "moe_layer_freq")
        kinds = config.by_layer("mlp_layer_types", n_layers, ("dense", "sparse", "moe"))
        return [kind != "dense" for kind in kinds]
    frequency = config.first("moe_layer_freq", "moe_layer_frequency")
    if isinstance(frequency, list):
        return [bool(it) for it in config.by_layer("moe_layer_freq", n_layers, (0, 1))]
    if (listed := _listed_layers(config, n_layers)) is not None:
        return [i in listed for i in range(n_layers)]
    if config.optional("expert_layer_period") is not None:  # Jamba
        period = config.integer("expert_layer_period")
        offset = config.integer("expert_layer_offset", 0, least=0)
        return [i % period == offset for i in range(n_layers)]
    return _by_prefix_and_step(config, n_layers, frequency)


def _listed_layers(config: Config, n_layers: int) -> set[int] | None:
    """Return the layers that a config lists, or those of Llama 4's and Ernie's fields."""
    text = config.optional("moe_layers_enum")
    if isinstance(text, str) and all(item.strip().isdecimal() for item in text.split(",")):
        return {int(item) for item in text.split(",")}
    step = config.optional("interleave_moe_layer_step")
    if step is not None or config.optional("moe_layers") is not None:
        step = config.integer("interleave_moe_layer_step", 1, least=0)
        every_nth = [*range(step - 1, n_layers, step)] if step else []
        return set(config.listing("moe_layers", int, default=every_nth))
    if config.optional("moe_layer_start_index") is None:
        return None
    first = _least(config, "moe_layer_start_index")
    last = config.optional("moe_layer_end_index", n_layers - 1)
    last = max(last) if isinstance(last, list) and last else last
    last = n_layers - 1 if last == -1 else config.size(last, "moe_layer_end_index", least=0)
    step = config.integer("moe_layer_interval", 1)
    return {i for i in range(first, min(last + 1, n_layers)) if (i + 1) % step == 0}


def _least(config: Config, name: str) -> int:
    value = config.optional(name)
    return config.size(min(value) if isinstance(value, list) and value else value, name, least=0)


def _by_prefix_and_step(config: Config, n_layers: int, frequency: Any) -> list[bool]:
    """Return all layers but a dense prefix, and of these every n-th (DeepSeek, Qwen)."""
    prefix = config.integer("first_k_dense_replace", 0, least=0)
    if prefix > n_layers:
        problem = f"{prefix} of {n_layers} layers"
        raise config.error(problem, "first_k_dense_replace", "correct one of the two")
    every = 1 if frequency is None else config.size(frequency, "moe_layer_freq")
    step = config.integer("decoder_sparse_step", 1)
    mlps = set(config.listing("mlp_only_layers", int, default=[]))
    return [
        i >= prefix and i % every == 0 and (i + 1) % step == 0 and i not in mlps
        for i in range(n_layers)
    ]


def read_experts(config: Config, family: Family, hidden: int, ffn: int) -> Experts:
    """Return the experts of each layer that has some; none if the LLM is dense.

    Args:
        config: the config.
        family: its family.
        hidden: numbers in the hidden state.
        ffn: width of the MLP: experts are as wide where no field says otherwise. 0: not stated.

    Raises:
        InputError: experts cannot be told from the fields.
    """
    n = _alike(config, "num_experts")
    if n < 2:
        return no_experts(config)
    per_token = _alike(config, "num_experts_per_tok", needed=True)
    if per_token > n:
        problem = f"a token uses {per_token} of {n} experts"
        raise config.error(problem, "num_experts_per_tok", "correct one of the two")
    rules = family.ffn
    width = _alike(config, rules.expert_ffn)
    if not width and family.is_known and rules.expert_ffn != "moe_intermediate_size":
        config.integer(rules.expert_ffn)
    if not width and not ffn:
        config.integer("moe_intermediate_size")
    if not width and not family.is_known:
        config.assume(f"Experts are as wide as the MLP, {ffn:,}: no field has their width.")
    shared = _shared_width(config, family, width or ffn)
    # Experts may work on a projection of the hidden state (Nemotron 3 Super).
    latent = config.integer("moe_latent_size", 0, least=0)
    outputs = n + config.integer("zero_expert_num", 0, least=0)  # LongCat: some do nothing
    gate = hidden * (rules.shared_gate and shared > 0)
    balance = rules.router_bias or config.optional("use_routing_bias") is True
    in_expert = 2 * (width or ffn) + hidden if rules.expert_bias else 0
    return Experts(
        n=n,
        per_token=per_token,
        ffn=width or ffn,
        shared_ffn=shared,
        router=hidden * outputs + gate + 2 * hidden * latent,
        width=latent or hidden,
        vectors=n * balance + n * in_expert,
    )


def no_experts(config: Config) -> Experts:
    """Return that an LLM is dense; fields on experts change nothing if it says it has none."""
    if config.has("num_experts"):
        config.ignore(config.name_of("num_experts_per_tok"), *_OF_EXPERTS)
    return Experts()


_OF_EXPERTS = (
    *("moe_intermediate_size", "shared_expert_intermediate_size", "moe_layer_freq", "n_group"),
    *("first_k_dense_replace", "decoder_sparse_step", "mlp_only_layers", "n_shared_experts"),
    *("num_shared_experts", "moe_topk", "moe_layer_num_skipped", "expert_layer_period"),
    *("expert_layer_offset", "moe_k", "moe_num_shared_experts", "num_experts"),
)


def _shared_width(config: Config, family: Family, width: int) -> int:
    """Return the width of all shared experts together."""
    stated = _alike(config, "shared_expert_intermediate_size")
    n = _alike(config, "n_shared_experts", default=1 if stated else family.ffn.n_shared)
    return n * (stated or width)


def _alike(config: Config, name: str, *, default: int = 0, needed: bool = False) -> int:
    """Return a size, which a list may have for each layer; InputError: layers differ."""
    value = config.get(name) if needed else config.optional(name, default)
    if isinstance(value, list) and value and len({*map(repr, value)}) == 1:
        value = value[0]
    return config.size(value, name, least=0)
