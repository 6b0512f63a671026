"""An answer as one page that refers to no other file."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sextant.advice import words
from sextant.pages.write import render, write_page

_TEMPLATE = Path(__file__).with_name("advice.html.j2")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 760, 300, 56, 44, 18, 24


class Dot(NamedTuple):
    """An option in the picture of price against probability, in pixels."""

    x: float
    y: float
    label: str
    title: str
    is_chosen: bool


def write_answer(answer: Mapping[str, Any], out: Path) -> None:
    """Write an answer of `recommend_llm` as HTML; the same answer gives the same bytes."""
    title = f"{answer['llm_id']}: recommendation"
    facts = {"title": title, "answer": answer, "words": words, "picture": _picture(answer)}
    write_page(out, render(_TEMPLATE, facts))


def _picture(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return dots, ticks and the line of the best options; None without probabilities."""
    if not answer.get("options"):
        return None
    line = answer["options"]
    others = [
        row
        for row in answer["alternatives"]
        if row["usd_per_hour"] is not None and not _stands_in(row, line)
    ]
    prices = [row["usd_per_hour"] for row in [*line, *others]]
    low, high = math.log(min(prices) / 1.15), math.log(max(prices) * 1.15)

    def place(usd_per_hour: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (math.log(usd_per_hour) - low) / (high - low)

    def dot(row: Mapping[str, Any]) -> Dot:
        is_chosen = _stands_in(row, [answer])
        label = f"{row['replicas']} × {row['gpu_profile_id']}"
        title = f"{words.deployment(row)}, probability {words.chance(row['probability_met'])}"
        return Dot(place(row["usd_per_hour"]), _y(row["probability_met"]), label, title, is_chosen)

    return {
        "size": (_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT),
        "line": [dot(row) for row in line],
        "others": [dot(row) for row in others],
        "x_ticks": [(place(usd), f"{usd:g}") for usd in _round_prices(min(prices), max(prices))],
        "y_ticks": [(_y(share), f"{share:g}") for share in (0, 0.25, 0.5, 0.75, 1)],
    }


def _y(probability: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * probability


def _stands_in(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> bool:
    keys = ("gpu_profile_id", "replicas")
    return any(all(row[key] == other[key] for key in keys) for other in rows)


def _round_prices(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    return [tick for tick in ticks if low / 1.1 <= tick <= high * 1.1]
