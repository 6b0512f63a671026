"""All figures of a report, each with the name of its file."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from sextant.base.ids import file_name
from sextant.base.rows import Row, group_by
from sextant.facts.slo import SLO
from sextant.points.frame import TARGETS
from sextant.points.trust import SETTING
from sextant.report.feasibility import Matrix, feasibility_figure
from sextant.report.latency_figures import (
    ProfileLooks,
    latency_axes,
    latency_figure,
    load_figure,
    n_not_drawn,
    prediction_figure,
    profile_looks,
)
from sextant.report.recommendations import prediction_pairs
from sextant.report.score_figures import limit_grid_figure, score_figure
from sextant.report.store_tables import MEASURED, Tables, detailed_slos

_LONGEST_NAME = 100


@dataclass
class ReportFigures:
    """The figures as SVG, and what the page says beside them."""

    files: dict[str, str] = field(default_factory=dict)
    """SVG by the name of its file, without the ending."""
    settings: list[Row] = field(default_factory=list)
    """`name, kind, levels, points, figures` (LLM and SVG) of each setting."""
    scores: list[Row] = field(default_factory=list)
    """`name, svg` of each SLO shown in full, where a predictor had a success."""
    grids: dict[str, str] = field(default_factory=dict)
    """SVG by source."""
    predictions: list[Row] = field(default_factory=list)
    """`name, predictor, n_pairs, n_hidden, svg` of each SLO and predictor of latencies."""

    def add(self, name: str, svg: str) -> str:
        """Keep a figure for its file, under a name that no other has; return it."""
        # Names of LLMs and SLOs are free text: what a path cannot hold is replaced, which may
        # make two of them alike, as may a file system that ignores case.
        words = re.sub(r"[^\w.+-]+", "_", name).strip("._")
        stem = file_name(words)[:_LONGEST_NAME] or "figure"
        unique, count, taken = stem, 1, {file.casefold() for file in self.files}
        while unique.casefold() in taken:
            count += 1
            unique = f"{stem}_{count}"
        self.files[unique] = svg
        return svg


def draw_all(
    tables: Tables,
    points: Sequence[Row],
    answers: Sequence[Row],
    decisions: Sequence[Row],
    summaries: Sequence[Row],
    matrices: Sequence[Matrix],
) -> ReportFigures:
    """Draw everything: `points` of `points_with_costs`, `answers` of the SLOs shown in full with
    their `decisions`, `summaries` of a long sheet, and `feasibility_matrices`.
    """
    profile_ids = [row["gpu_profile_id"] for row in tables["gpu_profile"]]
    # Points may be on profiles that the sheet no longer has.
    drawn = {row["gpu_profile_id"] for row in (*points, *tables["prediction"])}
    profile_ids += sorted(drawn - {*profile_ids})
    looks = profile_looks(profile_ids, tables["gpu_profile"])
    figures = ReportFigures()
    for decision in decisions:
        _draw_loads(figures, decision, looks)
    _draw_settings(figures, points, looks, detailed_slos(tables))
    for matrix in matrices:
        name = matrix.name if len(matrices) > 1 else ""
        title = f"Feasibility, {matrix.name}"
        figures.add(f"feasibility {name}", feasibility_figure(matrix, title))
    for summary in summaries:
        if summary["grids"]:
            source = summary["source"]
            svg = limit_grid_figure(summary["grids"], f"S/O by latency limits, {source}")
            name = f"so_by_limits {source if len(summaries) > 1 else ''}"
            figures.grids[source] = figures.add(name, svg)
    for answer in answers:
        _draw_predictions(figures, tables, answer, looks)
    return figures


def _draw_loads(figures: ReportFigures, decision: Row, looks: ProfileLooks) -> None:
    """Draw the curves of a decision's cards, and keep them as its `figures`: name and SVG."""
    slo, heading, curves = SLO(**decision["slo"]), decision["heading"], decision["curves"]
    decision["figures"] = []
    for card in decision["cards"]:
        llm_id, predictor = card["llm_id"], card["predictor"]
        own = curves[(curves["llm_id"] == llm_id) & (curves["predictor"] == predictor)]
        if own[TARGETS].notna().any(axis=None):
            name = llm_id if card["basis"] == MEASURED else f"{llm_id}, predicted by {predictor}"
            svg = load_figure(own, slo, looks, card, f"Latency over load, {heading}, {name}")
            svg = figures.add(f"load {heading} {llm_id}", svg)
            decision["figures"].append((name, svg))


def _draw_settings(
    figures: ReportFigures, points: Sequence[Row], looks: ProfileLooks, slos: Sequence[Row]
) -> None:
    # The curves are medians: a limit on another percentile says nothing about them.
    limits = {slo["slo_id"]: SLO(**slo).limits.get("itl") for slo in slos}
    itl_limits = {
        slo_id: limit.limit_ms
        for slo_id, limit in limits.items()
        if limit and limit.percentile == 50
    }
    settings = group_by(points, *SETTING)
    for key, rows in settings.items():
        axes, name, latencies = latency_axes(rows), " · ".join(key), []
        for (llm_id,), own in group_by(rows, "llm_id").items():
            svg = latency_figure(own, looks, axes, itl_limits, f"{llm_id}, {name}")
            file = f"latency {llm_id} {name if len(settings) > 1 else ''}"
            latencies.append((llm_id, figures.add(file, svg)))
        about = {"kind": rows[0]["scenario_kind"], "levels": sorted({row["level"] for row in rows})}
        figures.settings.append({"name": name, **about, "points": rows, "figures": latencies})


def _draw_predictions(
    figures: ReportFigures, tables: Tables, answer: Row, looks: ProfileLooks
) -> None:
    heading = answer["heading"]
    if any(score["overspend"] is not None for score in answer["scores"]):
        svg = score_figure(answer["scores"], f"Success against overspend, {heading}")
        figures.scores.append({"name": heading, "svg": figures.add(f"so_scores {heading}", svg)})
    for score in answer["scores"]:
        predictor = score["predictor"]
        pairs = prediction_pairs(tables, answer["slo"], answer["source"], predictor)
        if pairs:
            name = f"{heading} · {predictor}"
            svg = prediction_figure(pairs, looks, f"Predicted against measured, {name}")
            counts = {"n_pairs": len(pairs), "n_hidden": n_not_drawn(pairs)}
            svg = figures.add(f"prediction {name}", svg)
            figures.predictions.append({"name": name, "predictor": predictor, **counts, "svg": svg})
