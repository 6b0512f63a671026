"""Figures of the report: latency over load, predictions against measurements, scores."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd

from sextant.base.files import Row, group_by
from sextant.facts.slo import ENDS, METRICS, PERCENTILE_PREFIX, SLO
from sextant.pages.blocks import Chart, number, percent, plural
from sextant.pages.charts import Axis, Curve, Panel, panels_figure
from sextant.points.frame import FLOOR_MS, TARGETS, limited, load_of
from sextant.predict import MEASURED
from sextant.report.answers import TARGET_NAMES, Tables, marked, prediction_pairs

_MAX_TICKS = 10
_MOST_OVERSPEND = 200  # what overspends more, in percent, is drawn at the edge of the figure
_EQUAL_SCORES = (0.2, 0.4, 0.6, 0.8)


def load_chart(curves: pd.DataFrame, heading: str, slo: SLO, card: Row) -> Chart | None:
    """Return an LLM's latencies over load, a panel per limit; None: not known."""
    llm_id, predictor = card["llm_id"], card["predictor"]
    own = curves[(curves["llm_id"] == llm_id) & (curves["predictor"] == predictor)]
    if not own[TARGETS].notna().any(axis=None):
        return None
    name = llm_id if card["basis"] == MEASURED else f"{llm_id}, predicted by {predictor}"
    title = f"Latency over load, {heading}, {name}"

    def draw() -> str:
        panels = [_load_panel(metric, own, slo, card) for metric in slo.limits]
        return panels_figure(panels, title, has_points=True)

    return Chart(draw, name=f"load {heading} {llm_id}")


def _load_panel(metric: str, curves: pd.DataFrame, slo: SLO, card: Row) -> Panel:
    limit_ms, percentile = slo.limits[metric]
    lines, drawn, loads = [], [limit_ms], []
    for profile_id, curve in curves.groupby("gpu_profile_id"):
        y, low, high = (limited(curve, slo, end)[metric] for end in ("", *ENDS))
        x = load_of(curve, slo)
        ringed: list[int] = []
        if card["gpu_profile_id"] == profile_id and card["headroom"]:
            is_there = curve["users"].to_numpy() == card["headroom"]["level_users"]
            ringed = np.flatnonzero(is_there).tolist()
        # Where an end is not known the interval stops at the latency itself.
        bottom, top = (np.where(np.isnan(end), y, end) for end in (low, high))
        lines.append(Curve(profile_id, x, y, bottom, top, ringed=ringed))
        # A wide interval would squeeze the curves: what lies beyond a factor of 2 is cut.
        drawn += [value for end in (y, low.clip(min=y / 2), high.clip(max=y * 2)) for value in end]
        loads += x[np.isfinite(x)].tolist()
    sides = [0.9 * min(loads, default=1), 1.1 * max(loads, default=1)]
    label = f"limit {number(limit_ms)} ms"
    lines.append(Curve(label, sides, [limit_ms, limit_ms], is_reference=True))
    name, unit = METRICS[metric], "ms/token" if metric == "nttft" else "ms"
    low_ms, high_ms = np.nanmin(drawn) / 1.3, np.nanmax(drawn) * 1.4
    levels = sorted(set(curves["users"])) if slo.users is not None else []
    ticks = levels if 0 < len(levels) <= _MAX_TICKS else None
    load = "Users" if slo.users is not None else "Requests a second"
    x_axis = Axis(f"{load} of a replica", True, ticks, ticks and [str(level) for level in ticks])
    label = f"{PERCENTILE_PREFIX[percentile]} {name} ({unit})"
    return Panel("", x_axis, Axis(label, is_log=True, low=low_ms, high=high_ms), lines)


def score_charts(answers: Sequence[Row]) -> list[Chart]:
    """Return success against overspend (LLM-Pilot, Fig. 8) of each SLO with a success."""
    charts = []
    for answer in answers:
        drawn = [score for score in answer["scores"] if score["overspend"] is not None]
        heading = answer["heading"]
        if drawn:
            drawing = partial(_score_figure, drawn, f"Success against overspend, {heading}")
            charts.append(Chart(drawing, title=heading, name=f"so_scores {heading}"))
    return charts


def _score_figure(scores: Sequence[Row], title: str) -> str:
    """Draw success over overspend in percent, a mark per predictor; lines join equal S/O."""
    lines = [
        Curve(
            f"{marked(row['predictor'])}: S/O {percent(row['so_score'])}",
            [min(100 * row["overspend"], _MOST_OVERSPEND)],
            [100 * row["success_rate"]],
        )
        for row in scores
    ]
    for so_score in _EQUAL_SCORES:
        # Eq. 7 of LLM-Pilot solved for S, from where S is 1.
        thrift = np.linspace(so_score / (2 - so_score), 1, 60)
        success = so_score * thrift / (2 * thrift - so_score)
        name = f"S/O {100 * so_score:.0f} %"
        lines.append(Curve(name, 100 * (1 - thrift), 100 * success, is_reference=True))
    x, y = Axis("Relative overspend O (%)"), Axis("Success rate S (%)", low=-4, high=106)
    return panels_figure([Panel("", x, y, lines)], title, height_in=3.6, has_points=True)


def prediction_charts(tables: Tables, answers: Sequence[Row]) -> list[Chart]:
    """Return predicted against measured latencies, of each SLO and predictor of latencies."""
    charts = []
    for answer in answers:
        for predictor in (score["predictor"] for score in answer["scores"]):
            pairs = prediction_pairs(tables, answer["slo"], answer["source"], predictor)
            if pairs:
                name = f"{answer['heading']} · {predictor}"
                drawing = partial(prediction_figure, pairs, f"Predicted against measured, {name}")
                caption = f"{plural(len(pairs), 'point')}."
                charts.append(Chart(drawing, caption, marked(name), f"prediction {name}"))
    return charts


def prediction_figure(pairs: Sequence[Row], title: str) -> str:
    """Draw `prediction_pairs`, a panel per LLM and latency, with its MAPE."""
    panels = []
    for name, words in TARGET_NAMES.items():
        true, predicted = f"true_{name}_ms", f"{name}_ms"
        known = [pair for pair in pairs if pair[true] and pair[predicted] is not None]
        values = [pair[column] for pair in known for column in (true, predicted)]
        shown = [value for value in values if value > FLOOR_MS] or [0.5, 2.0]
        ends = [min(shown) / 1.3, max(shown) * 1.3]
        axis = Axis("", is_log=True, low=ends[0], high=ends[1])
        labels = (f"Measured {words} (ms)", f"Predicted {words}")
        x, y = (axis._replace(label=label) for label in labels)
        for (llm_id,), own in group_by(known, "llm_id").items():
            errors = [abs(pair[predicted] - pair[true]) / pair[true] for pair in own]
            drawn = [pair for pair in own if pair[predicted] > FLOOR_MS]
            across, up = ([pair[column] for pair in drawn] for column in (true, predicted))
            points = Curve("a GPU profile and load", across, up, is_marks=True)
            lines = [points, Curve("", ends, ends, is_reference=True)]
            panels.append(Panel(f"{llm_id}: {percent(float(np.mean(errors)))}", x, y, lines))
    return panels_figure(panels, title, n_columns=3, height_in=2.2)
