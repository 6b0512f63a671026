"""The map of price against probability: a mark per option of an LLM, a colour per SLO."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from sextant.decide.decision import FAIR
from sextant.pages.blocks import Chart
from sextant.pages.charts import Axis, Curve, Panel, panels_figure
from sextant.pages.words import number
from sextant.report.verdicts import Verdict

_CAPTION = (
    "Probability to meet an SLO over price. A mark is the cheapest deployment of an LLM on a GPU "
    "profile, a ring a recommended one; hollow marks are less likely than not."
)
_WIDTH_IN = 5.8
_LEAST_HEIGHT = 0.15
"""Of the axis of probabilities, which else shows what the marks cover."""
_NEAR = 0.12
"""Part of both axes within which a second label is left out."""


class _Mark(NamedTuple):
    """An option on the map."""

    usd_per_hour: float
    probability: float
    deployment: str
    is_chosen: bool


def price_chart(by_slo: Mapping[str, Mapping[str, Verdict]], source: str) -> list[Chart]:
    """Return the map of a source; nothing where all options are on one spot."""
    marks = {slo_id: _marks([*verdicts.values()]) for slo_id, verdicts in by_slo.items()}
    spots = {(it.usd_per_hour, round(it.probability, 2)) for of in marks.values() for it in of}
    if len(spots) < 2:
        return []
    drawing = partial(price_map, marks, f"Price against probability, {source}")
    return [Chart(drawing, _CAPTION, "Price against probability", f"price_probability {source}")]


def _marks(verdicts: Sequence[Verdict]) -> list[_Mark]:
    return [
        _Mark(
            option.usd_per_hour or 0.0,
            option.probability_met or 0.0,
            f"{number(option.replicas)} × {option.gpu_profile_id}",
            verdict.is_met
            and (option.gpu_profile_id, option.replicas)
            == (verdict.option.gpu_profile_id, verdict.option.replicas),
        )
        for verdict in verdicts
        for option in verdict.options
    ]


def price_map(marks_by_slo: Mapping[str, Sequence[_Mark]], title: str) -> str:
    """Return the map as SVG. Marks too near to another one have no label."""
    marks = [mark for of_slo in marks_by_slo.values() for mark in of_slo]
    prices = [mark.usd_per_hour for mark in marks]
    low = max(min(min(mark.probability for mark in marks) - 0.05, 1 - _LEAST_HEIGHT), 0.0)
    high = 1.0 + (1.0 - low) * 0.12
    sides = [min(prices) / 1.35, max(prices) * 1.35]

    labelled: list[tuple[float, float]] = []
    curves = []
    for slo_id, of_slo in marks_by_slo.items():
        labels = []
        for mark in of_slo:
            across = math.log(mark.usd_per_hour / sides[0]) / math.log(sides[1] / sides[0])
            up = (mark.probability - low) / (high - low)
            is_far = all(
                abs(across - x) > 2 * _NEAR or abs(up - y) > _NEAR / 2 for x, y in labelled
            )
            is_labelled = mark.is_chosen and is_far
            labels.append(mark.deployment if is_labelled else "")
            labelled += [(across, up)] * is_labelled
        curve = Curve(
            slo_id,
            [mark.usd_per_hour for mark in of_slo],
            [mark.probability for mark in of_slo],
            is_marks=True,
            labels=labels,
            ringed=[i for i, mark in enumerate(of_slo) if mark.is_chosen],
            hollow=[i for i, mark in enumerate(of_slo) if mark.probability < FAIR],
        )
        curves.append(curve)
    if low < FAIR:
        curves.append(Curve("as likely as not", sides, [FAIR, FAIR], is_reference=True))
    x = Axis("Price (USD/h)", is_log=True, low=sides[0], high=sides[1])
    y = Axis("Probability to meet the SLO", low=low, high=high)
    return panels_figure(
        [Panel("", x, y, curves)], title, height_in=3.2, width_in=_WIDTH_IN, has_points=True
    )
