"""The sizes of a decoder, by the names that its config has for them.

In go a config, its family and its layers; out come `Sizes` of the whole LLM, and the layers with
the sizes that are listed layer by layer.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sextant.facts.llm_config import Config
from sextant.facts.llm_families import UNBOUNDED_TOKENS, Family
from sextant.facts.llm_layers import Layer

FIELDS = {
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab": "vocab_size",
    "ffn": "intermediate_size",
}


class Sizes(NamedTuple):
    """The sizes that every decoder has."""

    hidden: int
    ffn: int  # width of an MLP; 0: no layer has one
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int


class _SizeReader:
    """Reads sizes by the family's names for them, some of which are the sizes themselves."""

    def __init__(self, config: Config, family: Family) -> None:
        self.config = config
        self.names: dict[str, str | int] = {**FIELDS, **family.sizes.size_names}

    def field(self, size: str) -> str:
        """Return the name of a size's field."""
        return str(self.names[size])

    def is_stated(self, size: str) -> bool:
        """Return whether the config has a size."""
        name = self.names[size]
        return isinstance(name, int) or self.config.optional(name) is not None

    def read(self, size: str) -> int:
        """Return a size; of sizes by layer, which `with_own_sizes` reads, the largest."""
        name = self.names[size]
        if isinstance(name, int):
            return name
        value = self.config.optional(name)
        if isinstance(value, list) and value:
            value = max(value, key=lambda item: item if isinstance(item, int) else 0)
            return self.config.size(value, name)
        return self.config.integer(name)


def read_sizes(config: Config, family: Family, layers: Sequence[Layer]) -> Sizes:
    """Return the sizes of a decoder; InputError: one is missing."""
    reader = _SizeReader(config, family)
    hidden = reader.read("hidden")
    heads = reader.read("heads")
    kv_heads = max((layer.kv_heads for layer in layers), default=0)
    kv_heads = kv_heads or _kv_heads(config, family, reader, heads)
    if config.optional("kv_lora_rank") is not None:
        head_dim = config.integer("qk_nope_head_dim") + config.integer("qk_rope_head_dim", least=0)
        kv_heads = heads
    elif reader.is_stated("head_dim"):
        head_dim = reader.read("head_dim")
    else:
        head_dim = _even_head_dim(config, hidden, heads)
    if heads % kv_heads:
        problem = f"{heads} heads cannot share {kv_heads} KV heads evenly"
        fix = "correct it or num_attention_heads"
        raise config.error(problem, "num_key_value_heads", fix)
    return Sizes(
        hidden=hidden,
        ffn=_mlp_width(config, family, reader, hidden, layers),
        layers=len(layers),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=reader.read("vocab"),
        context=_context(config, family),
    )


def _kv_heads(config: Config, family: Family, reader: _SizeReader, heads: int) -> int:
    """Return the KV heads; where no field has them, each head has its own."""
    if reader.is_stated("kv_heads"):
        return reader.read("kv_heads")
    if config.first("multi_query_attention", "multi_query") is True:
        return config.integer("multi_query_group_num", 1)
    if reader.field("kv_heads") in family.sizes.class_sizes:  # the class shares K and V
        return reader.read("kv_heads")
    if not family.is_known:
        config.assume(f"Each of the {heads} heads has its own K and V: no field has fewer.")
    return heads


def _even_head_dim(config: Config, hidden: int, heads: int) -> int:
    if hidden % heads:
        problem = f"{heads} heads do not divide the hidden size {hidden}"
        raise config.error(problem, "num_attention_heads", "correct one of the two")
    return hidden // heads


def _context(config: Config, family: Family) -> int:
    context = config.context()
    if context is None and family.ends.positions is not None:
        return config.integer("max_position_embeddings")
    if context is None:
        config.assume("No field has the longest sequence: it is taken as unlimited.")
    return context or UNBOUNDED_TOKENS


def _mlp_width(
    config: Config, family: Family, reader: _SizeReader, hidden: int, layers: Sequence[Layer]
) -> int:
    """Return the width of an MLP; 0 where only experts have widths."""
    name = reader.field("ffn")
    stated = [layer.ffn for layer in layers if layer.ffn]
    if stated or (not any(layer.has_mlp for layer in layers) and config.optional(name) is None):
        return max(stated, default=0)
    if not reader.is_stated("ffn") or config.optional(name) == 0:
        if not any(layer.has_mlp for layer in layers):
            return 0
        if ratio := family.sizes.ffn_ratio:
            return ratio * hidden
    width = reader.read("ffn") // family.sizes.ffn_parts
    if config.optional("block_auto_adjust_ff_dim") is True:  # LFM2
        multiple = config.integer("block_multiple_of", 256)
        width = -(-int(2 * width / 3) // multiple) * multiple
    return width


def with_own_sizes(config: Config, s: Sizes, layers: list[Layer]) -> list[Layer]:
    """Return the layers with the sizes that the config lists layer by layer."""
    for field_name, size in (
        ("intermediate_size", "ffn"),
        ("num_attention_heads_per_layer", "heads"),
        ("num_query_heads", "heads"),
        ("num_key_value_heads_per_layer", "kv_heads"),
        ("num_key_value_heads", "kv_heads"),
    ):
        if isinstance(config.optional(field_name), list):
            values = config.sizes_by_layer(field_name, len(layers))
            layers = [
                layer.with_sizes({size: value}) for layer, value in zip(layers, values, strict=True)
            ]
    layers = _with_exceptions(config, layers)
    if config.optional("use_double_wide_mlp") is True:  # Gemma 4
        layers = [layer._replace(ffn=2 * s.ffn) if layer.shares_kv else layer for layer in layers]
    return layers


_SIZES_OF_A_LAYER = {
    "head_dim": "head_dim",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "intermediate_size": "ffn",
}


def _with_exceptions(config: Config, layers: list[Layer]) -> list[Layer]:
    """Return the layers with the sizes of `per_layer_config`, which names layers that differ."""
    stated = config.optional("per_layer_config")
    if not isinstance(stated, dict):
        return layers
    layers = [*layers]
    for index, values in stated.items():
        section = config.section("per_layer_config", values)
        i = config.size(int(index) if index.isdecimal() else index, "per_layer_config", least=0)
        sizes = {
            size: section.integer(name)
            for name, size in _SIZES_OF_A_LAYER.items()
            if section.optional(name) is not None
        }
        if i < len(layers):
            layers[i] = layers[i].with_sizes(sizes)._replace(own_fields=section.values)
    return layers
