"""An answer as one page that refers to no other file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sextant.answer import answer_text
from sextant.answer.what_if import Basis, assets, section
from sextant.pages.charts import Curve, Panel, panels_figure
from sextant.pages.figure import Axis
from sextant.pages.write import render, write_page

_TEMPLATE = Path(__file__).with_name("advice.html.j2")
_PRICE = Axis("USD per hour", is_log=True)
_PROBABILITY = Axis(
    "Probability to meet the SLO",
    ticks=(0, 0.25, 0.5, 0.75, 1),
    names=("0", "0.25", "0.5", "0.75", "1"),
    low=-0.04,
    high=1.09,
)

Answer = Mapping[str, Any]


def write_answer(answer: Answer, out: Path, basis: Basis | None = None) -> None:
    """Write an answer as HTML; the same answer gives the same bytes.

    With what it rests on (`answered`) the page answers again for other loads, limits, prices and
    GPU profiles on offer.
    """
    title = f"{answer['llm_id']}: recommendation"
    figure = _figure(answer) if answer.get("options") else None
    facts = {
        "title": title,
        "answer": answer,
        "text": answer_text,
        "figure": figure,
        "what_if": None,
    }
    if basis is not None:
        facts["what_if"] = assets() | {"section": section(basis, answer.get("risk"))}
    write_page(out, render(_TEMPLATE, facts))


def _figure(answer: Answer) -> str:
    """Draw price against probability: the line of the best options, and the other profiles."""
    options = answer["options"]
    others = [
        row
        for row in answer["alternatives"]
        if row["usd_per_hour"] is not None and not _is_one_of(row, options)
    ]
    is_chosen = [_is_one_of(row, [answer]) for row in options]
    labels = [
        f"{row['replicas']} × {row['gpu_profile_id']}" if chosen else ""
        for row, chosen in zip(options, is_chosen, strict=True)
    ]
    best = _curve("no cheaper option is as likely", options)
    best = best._replace(labels=labels, ringed=[is_chosen.index(True)] if any(is_chosen) else [])
    rest = _curve("other GPU profiles", others)._replace(is_marks=True)
    curves = [best, rest] if others else [best]
    panel = Panel("", _PRICE, _PROBABILITY, curves)
    return panels_figure(
        [panel], "Options by price and probability", height_in=3.2, has_points=True
    )


def _curve(name: str, rows: Sequence[Answer]) -> Curve:
    x, y = ([row[column] for row in rows] for column in ("usd_per_hour", "probability_met"))
    return Curve(name, x, y)


def _is_one_of(row: Answer, rows: Sequence[Answer]) -> bool:
    keys = ("gpu_profile_id", "replicas")
    return any(all(row[key] == other[key] for key in keys) for other in rows)
