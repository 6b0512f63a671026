"""The report as a page that needs no network, as figures beside it, and as JSON."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sextant.base.files import atomic_path, provenance, write_json
from sextant.base.ids import file_name
from sextant.pages.render import render
from sextant.pages.words import Row, number, percent
from sextant.report.drawings import Drawings, draw
from sextant.report.feasibility import feasibility_matrices
from sextant.report.promises import deployment, miss_words, promises, slo_words, summaries, verdict
from sextant.report.read import Tables, group_by, provenance_facts, read_tables
from sextant.report.summary import REFERENCE_PREDICTORS
from sextant.report.tables import (
    LEVEL_NAMES,
    SETTING,
    decision_points,
    doubts,
    held_out,
    points_with_costs,
    recommendations,
    warnings,
)

_TEMPLATE = Path(__file__).with_name("page.html.j2")
_FILTERS = {
    "file_name": file_name,
    "number": number,
    "percent": percent,
    "deployment": deployment,
    "verdict": verdict,
    "miss": miss_words,
    "slo_words": slo_words,
}


def write_report(
    database: Path,
    html_out: Path,
    json_out: Path,
    figures_out: Path,
    *,
    title: str = "Sextant report",
    progress: Callable[[str], None] | None = None,
) -> None:
    """Write the report of a store; the same store gives the same bytes.

    Args:
        database: the store, opened read-only.
        html_out: the page, one file that refers to no other.
        json_out: SLOs, recommendations, held-out recommendations, scores, feasibility,
            warnings and provenance, with the store's column names, for every SLO.
        figures_out: folder for the page's figures, an SVG file each; what was in it goes.
        title: heading of the page.
        progress: is told of each step.

    Raises:
        InputError: there is no store, or it lacks a table.
    """
    tell = progress or (lambda step: None)
    tell("reading the store")
    tables = read_tables(database)
    origin = provenance({"store": database}) | {"store": provenance_facts(tables)}
    tell("drawing the figures")
    html, drawings = _page(tables, origin, title)
    tell("writing the report")
    with atomic_path(html_out) as temporary:
        temporary.write_text(html, encoding="utf-8")
    write_json(json_out, _as_json(tables, origin))
    _write_figures(figures_out, drawings.files)


def _write_figures(folder: Path, files: Mapping[str, str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, svg in files.items():
        with atomic_path(folder / f"{name}.svg") as temporary:
            temporary.write_text(svg, encoding="utf-8")


def _as_json(tables: Tables, origin: Row) -> Row:
    return {
        "slos": tables["slo"],
        "recommendations": recommendations(tables),
        "held_out": held_out(tables),
        "scores": tables["score"],
        "feasibility": tables["feasibility"],
        "warnings": warnings(tables["point"]),
        "provenance": origin,
    }


def _page(tables: Tables, origin: Row, title: str) -> tuple[str, Drawings]:
    points = points_with_costs(tables)
    shown, overviews = promises(tables), summaries(tables)
    matrices = feasibility_matrices(tables)
    drawings = draw(tables, points, shown, overviews, matrices)
    html = render(
        _TEMPLATE,
        _FILTERS,
        title=title,
        tables=tables,
        summaries=overviews,
        promises=shown,
        warnings=warnings(points),
        most_tried=_most_users(decision_points(tables)),
        drawings=drawings,
        feasibility=matrices,
        reference_predictors=REFERENCE_PREDICTORS,
        n_settings=len(group_by(points, *SETTING)),
        n_published_medians=sum(bool(point["is_published_median"]) for point in points),
        doubts=doubts,
        level_names=LEVEL_NAMES,
        origin=origin,
    )
    return html, drawings


def _most_users(points: Sequence[Row]) -> dict[tuple, int]:
    """Return the most users tried, by (source, LLM, profile)."""
    groups = group_by(points, "source", "llm_id", "gpu_profile_id")
    return {place: max(row["users"] or 0 for row in rows) for place, rows in groups.items()}
