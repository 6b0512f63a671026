"""What would be recommended for other values of a question's numbers, as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sextant.answer.option import Option
from sextant.pages.blocks import Section, Table
from sextant.pages.words import chance, usd_words


@dataclass(frozen=True)
class Variation:
    """The option of one combination of values."""

    values: Mapping[str, float]
    """By the name that `--vary` gives them."""
    option: Option
    chosen: Option
    """The answer to the question as it was asked."""

    @property
    def change(self) -> str:
        """How it differs from the answer: `none`, `replicas`, `gpu_profile` or `no_option`."""
        if self.option.gpu_profile_id is None and self.chosen.gpu_profile_id is not None:
            return "no_option"
        if self.option.gpu_profile_id != self.chosen.gpu_profile_id:
            return "gpu_profile"
        return "none" if self.option.replicas == self.chosen.replicas else "replicas"

    def to_dict(self) -> dict[str, Any]:
        """Return its row in the JSON."""
        return {"values": dict(self.values), **self.option._asdict(), "change": self.change}


_CHANGES = {
    "none": "",
    "replicas": "other replicas",
    "gpu_profile": "another GPU profile",
    "no_option": "nothing is likely enough",
}


def variations_sections(variations: Sequence[Variation]) -> list[Section]:
    """Return a table with a row per combination; nothing without any."""
    if not variations:
        return []
    names = [*variations[0].values]
    header = [*map(_name_words, names), "Deployment", "Price", "Probability", "Beside the answer"]
    rows = [
        [*(f"{value:g}" for value in variation.values.values()), *_cells(variation)]
        for variation in variations
    ]
    n_changed = sum(variation.change != "none" for variation in variations)
    note = f"{n_changed} of {len(variations)} change the answer."
    text_columns = {len(names), len(names) + 1, len(names) + 2, len(names) + 3}
    return [Section("Varied", [Table(header, rows, text_columns, note=note)])]


def _name_words(name: str) -> str:
    words = {"input-tokens": "Input tokens", "output-tokens": "Output tokens"}
    if name.endswith("-ms"):
        return f"{name.removesuffix('-ms').upper().replace('NTTFT', 'nTTFT')}, ms"
    if name.startswith("price:"):
        return f"Price of {name.removeprefix('price:')} ×"
    return words.get(name, f"{name.capitalize()} ×")


def _cells(variation: Variation) -> list[str]:
    option = variation.option
    if option.gpu_profile_id is None:
        return ["–", "", "", _CHANGES[variation.change]]
    likely = "" if option.probability_met is None else chance(option.probability_met)
    plan = f"{option.replicas} × {option.gpu_profile_id}"
    price = usd_words(option.usd_per_hour)
    return [plan, price, likely, _CHANGES[variation.change]]
