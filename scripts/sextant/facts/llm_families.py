"""Families of LLMs: what is unusual about each, as data (`families.yaml`).

A family that is not in the table is read by the usual names of fields: what its fields leave open
is decided here (`Family` has the usual values, `unknown_family` the rest) and noted as assumed.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from sextant.base.sheets import read_yaml
from sextant.facts.llm_config import Config

UNBOUNDED_TOKENS = 2**31 - 1  # the context of an LLM whose positions set no limit


class SizeRules(NamedTuple):
    """Where a family's config has its sizes."""

    size_names: Mapping[str, str | int] = {}  # the config's names of sizes, where not `FIELDS`
    defaults: Mapping[str, int] = {}  # sizes that the published configs leave to the class
    class_sizes: Mapping[str, int] = {}  # sizes of the class, for configs inside another config
    ffn_ratio: int = 0  # MLP over hidden size where its field is absent; 0: it has to be there
    ffn_parts: int = 1  # matrices of an MLP whose widths the field adds up


class AttentionRules(NamedTuple):
    """What is unusual about a family's attention."""

    qkv_bias: bool = False  # Q, K and V have biases unless a field says no
    out_bias: bool = False  # so has the output matrix
    attention_bias: str = "all"  # what the field `attention_bias` is about: `all`, or `qkv`
    qk_norm: str = ""
    """Norms of Q and K: `head` over a head, `all` over all heads at once, `none` without
    parameters; empty: as the field `use_qk_norm` says."""
    gate: str = ""  # gates of the output: `value` for each number, `head` for each head
    sinks: str = ""  # layers that have a sink per head: `all`, or `sliding`
    by_kind: Mapping[str, Mapping[str, str]] = {}
    """By kind of layer (full, sliding): fields of heads, kv_heads, head_dim and v_dim."""
    has_unused_kv: bool = False  # layers that share K and V have matrices for them all the same


class LayerRules(NamedTuple):
    """Of what kinds a family's layers are."""

    window: str = ""  # which layers have a sliding window, where no list says so
    window_fields: Sequence[str] = ("sliding_window", "sliding_attention")  # width, name of layers
    state: str = ""  # what layers of linear attention are (`llm_mixers.STATES`); by its fields
    norms: int = 2  # norms of a layer
    norm_vectors: int = 1  # vectors of a norm: 2 with a bias
    repeats: int = 1  # layers that the config counts as one; only the first of them has experts


class FfnRules(NamedTuple):
    """What is unusual about a family's MLPs and experts."""

    mlp_matrices: int = 3  # 3 in a gated MLP, 2 in a plain one
    mlp_bias: bool = False
    expert_ffn: str = "moe_intermediate_size"  # field of an expert's width
    n_shared: int = 0  # shared experts where no field counts them
    shared_gate: bool = False  # whether a gate scales the shared expert
    router_bias: bool = False  # whether each expert has a bias that balances the load
    expert_bias: bool = False  # whether matrices of experts have biases
    beside_experts: str = ""  # the field of an MLP's width beside the experts of a layer


class EndRules(NamedTuple):
    """What is before the first layer and after the last."""

    is_tied: bool = False  # whether the embeddings are tied where the config does not say
    head_bias: bool = False
    positions: int | None = None  # a learned table of positions begins at this one; None: no table
    embedding_norm: bool = False
    has_final_norm: bool = True
    embedding_field: str = ""  # field of the embedding's width, which may differ
    extra_rows: int = 0  # further rows of the input embedding


class Family(NamedTuple):
    """A row of families.yaml, which has the fields of the groups one by one."""

    counted: str = "decoder"  # what counts the parameters: `decoder`, or of `llm_variants`
    variant: str = ""  # the function of `llm_variants` that changes the row by the config
    requires: Mapping[str, Any] = {}
    ignores: Sequence[str] = ()
    sizes: SizeRules = SizeRules()
    attention: AttentionRules = AttentionRules()
    layers: LayerRules = LayerRules()
    ffn: FfnRules = FfnRules()
    ends: EndRules = EndRules()
    is_known: bool = True
    refused: str = ""  # why no count is right, if it is so

    def with_row(self, row: Mapping[str, Any]) -> "Family":
        """Return the family with the values of a row of families.yaml in place of its own."""
        changes = dict(row)
        for group in ("sizes", "attention", "layers", "ffn", "ends"):
            rules = getattr(self, group)
            of_group = {name: changes.pop(name) for name in rules._fields if name in changes}
            changes[group] = rules._replace(**of_group)
        return self._replace(**changes)


@cache
def families() -> dict[str, Family]:
    """Return all families by `model_type`; a family with `same_as` comes after its model."""
    by_type: dict[str, Family] = {}
    table = read_yaml(Path(__file__).with_name("families.yaml"))
    by_type |= dict.fromkeys(table.pop("usual"), Family())
    encoder = Family(refused="an encoder, which generates no text")
    by_type |= dict.fromkeys(table.pop("encoders"), encoder)
    for name, row in table.items():
        model = by_type[row.pop("same_as")] if "same_as" in row else Family()
        by_type[name] = model.with_row(row)
    return by_type


def family_of(config: Config) -> Family:
    """Return the family of a config; of a text part without `model_type`, what it lies in."""
    table = families()
    stated = config.optional("model_type")
    name = config.word("model_type") if stated is not None else ""
    outer = [*reversed(config.outer_types)]
    names = [name] if name else [text for kind in outer for text in (f"{kind}_text", kind)]
    if family := next((table[name] for name in names if name in table), None):
        return family
    architectures = config.optional("architectures")
    if not names and isinstance(architectures, list):
        by_class = {re.sub(r"[_-]", "", row): family for row, family in table.items()}
        for architecture in map(str, architectures):
            short = re.sub(r"For(CausalLM|ConditionalGeneration)$", "", architecture).lower()
            if short in by_class:
                return by_class[short]
    return unknown_family(config, name or next(iter(outer), ""))


# Activations of MLPs that have no gate.
_PLAIN = re.compile(r"relu|xielu|^gelu(_new|_fast|_python)?$|quick_gelu")
_PLAIN_WIDTHS = {"n_inner", "ffn_dim", "d_ff"}


def unknown_family(config: Config, name: str) -> Family:
    """Return the row of a family that is not in the table, by what its config says."""
    activation = config.first("hidden_act", "hidden_activation", "activation_function", "mlp_act")
    width = config.name_of("intermediate_size")
    is_plain = bool(activation and _PLAIN.search(str(activation))) or width in _PLAIN_WIDTHS
    row: dict[str, Any] = {"mlp_matrices": 2 if is_plain else 3, "is_known": False}
    if is_plain:
        row |= {"ffn_ratio": 4}
    words = "plain MLPs of 2 matrices" if is_plain else "gated MLPs of 3 matrices"
    subject = f"{name!r} is not a known family" if name else "The config names no family"
    config.assume(f"{subject}: it is read as a usual decoder with {words}.")
    # Hugging Face writes one of these; other formats leave no field out.
    is_of_hugging_face = any(
        config.optional(field) for field in ("model_type", "architectures", "transformers_version")
    )
    if config.optional("tie_word_embeddings") is None and is_of_hugging_face:
        # Hugging Face's base class ties the embeddings, and writes what differs from it.
        row["is_tied"] = True
        config.assume("The config does not say whether input and output embedding are one: yes.")
    return Family().with_row(row)
