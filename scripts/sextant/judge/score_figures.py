"""The figures of scores: S/O of each predictor, and success over overspend."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sextant.pages.blocks import Chart, KeyFigure, KeyFigures
from sextant.pages.words import percent

_MOST_OVERSPEND = 200
"""What overspends more, in percent, is drawn at the edge of the figure."""
_EQUAL_SCORES = (0.2, 0.4, 0.6, 0.8)
SCORE_WORDS = (
    "S: share of the LLMs whose recommended deployment meets the SLO. O: its extra cost over the "
    "cheapest one that does. S/O: harmonic mean of S and 1 − O."
)


def score_key_figures(scores: Sequence[Mapping[str, Any]]) -> KeyFigures:
    """Return S/O of each predictor, the best first, with S and O."""
    ranked = sorted(scores, key=lambda row: -(row["so_score"] or 0.0))
    return KeyFigures(
        [
            KeyFigure(
                f"S/O of {row['predictor']}",
                percent(row["so_score"]),
                f"S {percent(row['success_rate'])}, O {percent(row['overspend'])}",
            )
            for row in ranked
        ]
    )


def score_charts(source: str, scores: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Draw success over overspend in percent (LLM-Pilot, Fig. 8); lines join equal S/O.

    Predictors on one spot have one mark, with all their names; where all are on one, no figure.
    """
    named: dict[tuple[float, float], list[str]] = {}
    for row in scores:
        overspend = min(100 * row["overspend"], _MOST_OVERSPEND)
        place = round(overspend, 3), round(100 * row["success_rate"], 3)
        named.setdefault(place, []).append(f"{row['predictor']}: S/O {percent(row['so_score'])}")
    if len(named) < 2:
        return []
    caption = (
        "Each mark is a predictor: the farther up and left, the better it recommends. Lines join "
        "equal S/O."
    )
    title = f"{source}, means over the SLOs"
    return [Chart(lambda: _draw_scores(source, named), caption, title, f"so_scores {source}")]


def _draw_scores(source: str, named: Mapping[tuple[float, float], Sequence[str]]) -> str:
    from sextant.pages.charts import NARROW_IN, Axis, Curve, Panel, panels_figure

    lines = [Curve(", ".join(names), [x], [y]) for (x, y), names in named.items()]
    for so_score in _EQUAL_SCORES:
        # Eq. 7 of LLM-Pilot solved for S, from where S is 1.
        thrift = np.linspace(so_score / (2 - so_score), 1, 60)
        success = so_score * thrift / (2 * thrift - so_score)
        name = f"S/O {100 * so_score:.0f} %"
        lines.append(Curve(name, 100 * (1 - thrift), 100 * success, is_reference=True))
    x = Axis("Relative overspend O (%)")
    y = Axis("Success rate S (%)", low=-4, high=106)
    title = f"Success against overspend, {source}"
    return panels_figure(
        [Panel("", x, y, lines)], title, height_in=3.2, width_in=NARROW_IN, has_points=True
    )
