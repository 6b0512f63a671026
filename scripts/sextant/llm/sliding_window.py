"""Which layers attend to a sliding window only."""

from collections.abc import Callable
from typing import TypedDict

from sextant.llm.config import Config


class WindowFacts(TypedDict, total=False):
    """The facts of an LLM's sliding window."""

    sliding_window_tokens: int
    n_sliding_layers: int


WindowRule = Callable[[Config, int], int]
"""Returns how many of the layers have a window where the config does not list their types."""


def window_facts(config: Config, layers: int, rule: WindowRule | None) -> WindowFacts:
    """Return the facts `sliding_window_tokens` and `n_sliding_layers`; none without a window."""
    if rule is None:
        return {}
    n_sliding = rule(config, layers)
    if config.optional("layer_types") is not None:
        types = config.listing("layer_types", str)
        if len(types) != layers or not set(types) <= {"full_attention", "sliding_attention"}:
            fix = f"give full_attention or sliding_attention for each of the {layers} layers"
            raise config.error("unknown kinds of attention", "layer_types", fix)
        n_sliding = types.count("sliding_attention")
    if not n_sliding:
        config.ignore("sliding_window")
        return {}
    tokens = config.integer("sliding_window")
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
