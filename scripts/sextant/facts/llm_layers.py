"""Of what kinds the layers of an LLM are: attention, state, MLP and experts, layer by layer.

In goes a config; out come `Layer`s. A kind of mixer is `full` or `sliding` (attention), `cross`
(attention to an encoder's output), or a kind of state (`llm_mixers.STATES`).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sextant.facts.llm_config import Config
from sextant.facts.llm_families import Family, LayerRules


class Layer(NamedTuple):
    """One layer; sizes of 0 are those of the whole LLM."""

    mixers: tuple[str, ...] = ("full",)
    has_mlp: bool = True
    has_experts: bool = False
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    shares_kv: bool = False  # whether K and V are those of an earlier layer
    has_index: bool = False  # whether one more key per token chooses what attention looks at
    own_fields: Mapping[str, Any] = {}  # fields of the config that differ in this layer

    def with_sizes(self, sizes: Mapping[str, int]) -> "Layer":
        """Return the layer with sizes of its own."""
        changes: dict[str, Any] = dict(sizes)
        return self._replace(**changes)


_MOST_LAYERS = 10_000
"""Far above the layers of any LLM: each of them is listed."""
_KINDS: dict[Any, tuple[str, ...]] = {
    "full_attention": ("full",),
    "attention": ("full",),
    "full": ("full",),
    "global": ("full",),
    "sliding_attention": ("sliding",),
    "chunked_attention": ("sliding",),
    "compressed_attention": ("full",),
    "deepseek_sparse_attention": ("full",),
    "indexed_attention": ("full",),
    "minimax_m3_sparse": ("full",),
    "reference_sliding_attention": ("sliding",),
    "local": ("sliding",),
    "linear_attention": ("linear",),
    "linear": ("linear",),
    "delta": ("linear",),
    "kda": ("linear",),
    "mamba": ("mamba",),
    "mamba2": ("mamba",),
    "conv": ("conv",),
    "recurrent": ("recurrent",),
    "hybrid": ("mamba", "full"),
}
_OF_KINDS = ("mamba_", "ssm_", "linear_", "kda_", "swa_", "global_")
_ALONE = {"mlp": "mlp", "moe": "moe"} | dict.fromkeys(
    ("mamba", "attention", "full_attention", "linear_attention"), ""
)
_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def read_layers(config: Config, family: Family) -> list[Layer]:
    """Return the layers, without experts and most sizes of their own.

    Raises:
        InputError: a kind of layer is unknown.
    """
    layers = _layers_of_one_part(config) or _layers_of_a_search(config)
    if layers:
        return layers
    name = str(family.sizes.size_names.get("layers", "num_hidden_layers"))
    n_layers = config.integer(name, most=_MOST_LAYERS) * family.layers.repeats
    layers = [Layer(mixers) for mixers in _kinds_of_layers(config, family, n_layers)]
    if config.optional("cross_attention_layers"):
        crossed = config.listing("cross_attention_layers", int)
        layers = [
            layer._replace(mixers=("cross",)) if i in crossed else layer
            for i, layer in enumerate(layers)
        ]
    shared = _layers_that_share_kv(config, n_layers)
    indexed = _layers_with_index(config, n_layers)
    return [
        layer._replace(shares_kv=i in shared, has_index=i in indexed)
        for i, layer in enumerate(layers)
    ]


def _layers_of_a_search(config: Config) -> list[Layer]:
    """Return layers that were pruned one by one (Nemotron Super of 2025: architecture search)."""
    if config.optional("block_configs") is None:
        return []
    blocks = config.get("block_configs")
    n_layers = config.integer("num_hidden_layers", most=_MOST_LAYERS)
    hidden, heads = config.integers("hidden_size", "num_attention_heads")
    if not isinstance(blocks, list) or len(blocks) != n_layers:
        fix = f"give each of the {n_layers} layers"
        raise config.error("not a list of layers", "block_configs", fix)
    layers = []
    for block in (config.section("block_configs", values) for values in blocks):
        attention, ffn = block.section("attention"), block.section("ffn")
        for part in (attention, ffn):
            part.require(replace_with_linear=False)
        kv_heads = 0
        if has_attention := not attention.flag("no_op", default=False):
            stated = attention.optional("num_key_value_heads")
            in_group = None if stated is not None else attention.integer("n_heads_in_group")
            kv_heads = heads // in_group if in_group else attention.integer("num_key_value_heads")
            if not kv_heads:
                fix = "give heads in a group that divide the heads"
                raise config.error("a layer without KV heads", "block_configs", fix)
        has_mlp = not ffn.flag("no_op", default=False)
        width = _searched_width(ffn, hidden) if has_mlp else 0
        mixers = ("full",) if has_attention else ()
        layers.append(Layer(mixers, has_mlp and width > 0, kv_heads=kv_heads, ffn=width))
    return layers


def _searched_width(ffn: Config, hidden: int) -> int:
    stated = ffn.optional("intermediate_size")
    if stated is not None:
        return ffn.integer("intermediate_size")
    factor = ffn.optional("ffn_mult", 0)
    if not isinstance(factor, int | float) or not 0 <= factor <= 1000:
        raise ffn.error(f"{factor!r} is not a factor", "ffn_mult", "give 0 to 1000")
    # Two thirds of a multiple of the hidden state.
    return -(-int(2 * factor * hidden / 3) // 256) * 256


def _is_of_one_part(config: Config) -> bool:
    """Return whether a layer is either a mixer or an MLP, as in Nemotron-H."""
    if config.optional("hybrid_override_pattern") is not None:
        return True
    kinds = config.optional("layers_block_type")
    return isinstance(kinds, list) and bool({"mlp", "moe"} & {*map(str, kinds)})


def _layers_of_one_part(config: Config) -> list[Layer]:
    if not _is_of_one_part(config):
        return []
    name = "layers_block_type"
    if config.optional(name) is not None:
        kinds = config.listing(name, str)
    else:
        name = "hybrid_override_pattern"
        kinds = [_PATTERN.get(letter, letter) for letter in config.word(name)]
    if not kinds or not set(kinds) <= set(_ALONE):
        unknown = ", ".join(sorted(set(kinds) - set(_ALONE)))
        fix = f"use {', '.join(_ALONE)}"
        raise config.error(f"unknown kinds of layers: {unknown}", name, fix)
    config.ignore("num_hidden_layers", "hybrid_override_pattern")
    return [
        Layer(_KINDS[kind] if not _ALONE[kind] else (), kind == "mlp", kind == "moe")
        for kind in kinds
    ]


def _kinds_of_layers(config: Config, family: Family, n: int) -> list[tuple[str, ...]]:
    """Return the mixers of each layer, from the config's list of them or a rule."""
    rules = family.layers
    for name in ("layer_types", "layers_block_type", "block_types", "_block_types"):
        if config.optional(name) is None:
            continue
        listed = config.listing(name, str)
        if name.endswith("block_types") and listed:  # a pattern that repeats
            listed = [listed[i % len(listed)] for i in range(n)]
        allowed = {**_KINDS, rules.window_fields[1]: ("sliding",)}
        if len(listed) > n and rules.repeats == 1:
            listed = listed[:n]  # further layers predict further tokens
        if len(listed) != n or not set(listed) <= set(allowed):
            fix = f"give {', '.join(map(str, _KINDS))} for each of the {n} layers"
            unknown = ", ".join(sorted(set(listed) - set(allowed)))
            raise config.error(f"unknown kinds of layers: {unknown}", name, fix)
        config.ignore_all(_OF_KINDS)  # of kinds that the list has not
        return _without_unused_windows(config, rules, [allowed[kind] for kind in listed])
    if family.layers.state == "parallel":
        return [("mamba", "full")] * n
    indices = _indices_of_full_layers(config, family, n)
    if indices is not None:
        other = _state_kind(config, family)
        return [("full",) if i in indices else (other,) for i in range(n)]
    return [("sliding",) if windowed else ("full",) for windowed in _windows(config, family, n)]


def _state_kind(config: Config, family: Family) -> str:
    if family.layers.state in ("conv", "recurrent"):
        return family.layers.state
    has_mamba = any(name.startswith(("mamba", "ssm")) for name in config.values)
    return "mamba" if has_mamba else "linear"


def _without_unused_windows(
    config: Config, rules: LayerRules, kinds: list[tuple[str, ...]]
) -> list[tuple[str, ...]]:
    """Return the kinds; a layer whose window has no width keeps all tokens."""
    width = rules.window_fields[0]
    if config.optional(width) is None and any("sliding" in kind for kind in kinds):
        config.assume(f"Layers with a window keep all tokens, as '{width}' is not given.")
        return [("full",) if kind == ("sliding",) else kind for kind in kinds]
    return kinds


def _indices_of_full_layers(config: Config, family: Family, n: int) -> set[int] | None:
    """Return the layers with attention among layers with a state; None: all have attention."""
    for name, first in (("full_attn_idxs", 0), ("attn_layer_indices", 0), ("full_attn_layers", 1)):
        if config.optional(name) is not None:
            config.ignore("kda_layers")
            return {index - first for index in config.listing(name, int)}
    if config.optional("attn_type_list") is not None:  # MiniMax M1: 0 is lightning attention
        kinds = config.listing("attn_type_list", int)
        return {i for i, kind in enumerate(kinds) if kind}
    if (period := config.optional("attn_layer_period")) is not None:
        offset = config.integer("attn_layer_offset", 0, least=0)
        period = config.integer("attn_layer_period")
        return {i for i in range(n) if i % period == offset}
    name = "full_attention_interval"
    if config.optional(name) is None:
        name = "layer_group_size"
    if config.optional(name) is not None or family.layers.state == "delta":
        period = config.integer(name, default=4)
        return {i for i in range(n) if (i + 1) % period == 0}
    return None


def _windows(config: Config, family: Family, n: int) -> list[bool]:
    """Return which layers have a sliding window, by a pattern or the family's rule."""
    rules = family.layers
    name = rules.window_fields[0]
    if config.optional("hybrid_layer_pattern") is not None:
        return [bool(it) for it in config.by_layer("hybrid_layer_pattern", n, (0, 1))]
    windowed = _windows_by_rule(config, rules, n)
    if not any(windowed):
        if not rules.window and config.optional(name) and config.values.get("use_sliding_window"):
            config.assume(f"All layers keep all tokens: no field says which have the '{name}'.")
        config.ignore(name)
    return windowed


def _windows_by_rule(config: Config, rules: LayerRules, n: int) -> list[bool]:
    name = rules.window_fields[0]
    has_window = config.optional(name) is not None
    pattern = config.first("sliding_window_pattern", "_sliding_window_pattern")
    if isinstance(pattern, str) and pattern and has_window:  # EXAONE 4: LLLG
        last = n - 1 if rules.window == "pattern" else n
        return [pattern[i % len(pattern)] == "L" and i != last for i in range(n)]
    if isinstance(pattern, int) and not rules.window and has_window and pattern > 1:
        return [(i + 1) % pattern != 0 for i in range(n)]
    match rules.window:
        case "all_layers":  # Mistral and its kind: a window that is set holds for all layers
            return [has_window] * n
        case "upper_layers":  # Qwen: from a layer on, and only if it is switched on
            config.ignore("max_window_layers")
            if config.flag("use_sliding_window", default=False):
                first = config.integer("max_window_layers", least=0)
                return [i >= first for i in range(n)]
        case "every_other":  # Gemma 2 and GPT-OSS: the first layer, the third, and so on
            config.integer(name)
            return [i % 2 == 0 for i in range(n)]
        # Gemma 3: every sixth layer sees all tokens; in Gemma 4 the last does, too.
        case "all_but_every_nth" | "all_but_every_nth_and_last" as rule:
            period = config.integer("sliding_window_pattern", default=6)
            config.integer(name)
            last = n - 1 if rule.endswith("last") else n
            return [(i + 1) % period != 0 and i != last for i in range(n)]
        case "all_but_every_fourth":  # OLMo 3; Llama 4: of the others, each sees a chunk
            config.require(no_rope_layer_interval=4)
            return [has_window and (i + 1) % 4 != 0 for i in range(n)]
    return [False] * n


def _layers_that_share_kv(config: Config, n: int) -> set[int]:
    """Return the layers that use K and V of an earlier layer."""
    if config.optional("use_cla") is True:  # Hunyuan Large
        factor = config.integer("cla_share_factor", 2)
        return {i for i in range(n) if i % factor}
    config.ignore("cla_share_factor")
    n_shared = config.integer("num_kv_shared_layers", 0, least=0)  # Gemma 3n and 4: the last ones
    return set(range(n - n_shared, n)) if n_shared else set()


def _layers_with_index(config: Config, n: int) -> set[int]:
    """Return the layers of MiniMax M3's sparse attention."""
    listed = config.optional("layer_types")
    if not isinstance(config.optional("sparse_attention_config"), dict):
        is_listed = isinstance(listed, list)
        return {i for i in range(n) if is_listed and "minimax_m3_sparse" in str(listed[i])}
    sparse = config.section("sparse_attention_config")
    chosen = sparse.by_layer("sparse_attention_freq", n, (0, 1))
    return {i for i, is_sparse in enumerate(chosen) if is_sparse}
