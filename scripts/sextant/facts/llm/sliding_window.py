"""Which layers attend to a sliding window only."""

from collections.abc import Callable
from typing import TypedDict

from sextant.facts.llm.config import Config


class WindowFacts(TypedDict, total=False):
    """The facts of an LLM's sliding window."""

    sliding_window_tokens: int
    n_sliding_layers: int


WindowRule = Callable[[Config, int], int]
"""Returns how many of the layers have a window where the config does not list their types."""


def window_facts(
    config: Config,
    layers: int,
    rule: WindowRule | None,
    name: str = "sliding_window",
    kind: str = "sliding_attention",
) -> WindowFacts:
    """Return the facts `sliding_window_tokens` and `n_sliding_layers`; none without a window.

    `name` is the config's for the window's tokens, `kind` that of its layers in `layer_types`.
    """
    if rule is None:
        return {}
    n_sliding = rule(config, layers)
    if config.optional("layer_types") is not None:
        types = config.listing("layer_types", str)
        if len(types) != layers or not set(types) <= {"full_attention", kind}:
            fix = f"give full_attention or {kind} for each of the {layers} layers"
            raise config.error("unknown kinds of attention", "layer_types", fix)
        n_sliding = types.count(kind)
    if not n_sliding:
        config.ignore(name)
        return {}
    tokens = config.integer(name)
    return {"sliding_window_tokens": tokens, "n_sliding_layers": n_sliding}


def all_layers(config: Config, layers: int) -> int:
    """Mistral and its kind: a `sliding_window` that is set holds for all layers."""
    return layers if config.optional("sliding_window") is not None else 0


def upper_layers(config: Config, layers: int) -> int:
    """Qwen: the layers from `max_window_layers` on, and only if `use_sliding_window`."""
    config.ignore("max_window_layers")
    if not config.flag("use_sliding_window", default=False):
        return 0
    return max(0, layers - config.integer("max_window_layers", least=0))


def every_other(config: Config, layers: int) -> int:
    """Gemma 2 and GPT-OSS: the first layer, the third, and so on."""
    return -(-layers // 2)


def all_but_every_nth(config: Config, layers: int) -> int:
    """Gemma 3: every sixth layer (`sliding_window_pattern`) sees all tokens."""
    return layers - layers // config.integer("sliding_window_pattern", default=6)


def all_but_every_fourth(config: Config, layers: int) -> int:
    """Llama 4: every fourth layer, without rotary positions, sees all tokens, others a chunk."""
    config.require("no_rope_layer_interval", 4)
    return layers - layers // 4 if config.optional("attention_chunk_size") is not None else 0
