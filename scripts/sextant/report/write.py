"""The report as a page that needs no network, as figures beside it, and as JSON."""

from collections.abc import Sequence
from pathlib import Path

from sextant.answer.page import assets
from sextant.answer.text import limit_words, room_words
from sextant.base.files import provenance
from sextant.base.ids import file_name
from sextant.base.rows import Row, group_by
from sextant.pages.write import Filters, render, write_page
from sextant.points.trust import SETTING, doubts, warnings
from sextant.report.all_figures import ReportFigures, draw_all
from sextant.report.capacity_answers import capacity_answers
from sextant.report.decision_section import card_lines, decisions
from sextant.report.feasibility import feasibility_matrices
from sextant.report.recommendations import (
    LEVEL_NAMES,
    held_out,
    points_with_costs,
    recommendations,
)
from sextant.report.score_means import REFERENCE_PREDICTORS
from sextant.report.slo_answers import (
    deployment,
    miss_words,
    slo_answers,
    slo_words,
    summaries,
    verdict,
)
from sextant.report.store_tables import (
    Tables,
    price_lines,
    prices,
    provenance_facts,
    read_tables,
)

_DECISION = ("source", "slo_id", "llm_id", "predictor", "gpu_profile_id", "replicas", "outlook")
_TEMPLATE = Path(__file__).with_name("report.html.j2")
_FILTERS: Filters = {
    "file_name": file_name,
    "deployment": deployment,
    "verdict": verdict,
    "miss": miss_words,
    "slo_words": slo_words,
    "card_lines": card_lines,
    "limit_words": limit_words,
    "room_words": room_words,
}


def write_report(database: Path, html_out: Path, json_out: Path, figures_out: Path) -> None:
    """Write the report of a store; the same store gives the same bytes.

    The page needs no other file, and links to the pages of capacity. JSON has the decisions of SLOs
    shown in full (`decide.outlook`), SLOs, recommendations, held-out recommendations, scores,
    capacity, feasibility, prices, warnings and provenance, with the store's column names, for every
    SLO.
    What was in the folder of the figures, an SVG file each, goes.
    Raises InputError as `read_tables` does.
    """
    tables = read_tables(database)
    origin = provenance({"store": database}) | {"store": provenance_facts(tables)}
    answers = slo_answers(tables)
    decided = decisions(tables, answers)
    html, figures = _page(tables, origin, answers, decided)
    facts = _as_json(tables, origin, decided)
    write_page(html_out, html, json_out, facts, figures_out, figures.files)


def _as_json(tables: Tables, origin: Row, decided: Sequence[Row]) -> Row:
    cards = (
        {"source": each["source"], "slo_id": each["slo"]["slo_id"], **card}
        for each in decided
        for card in each["cards"]
    )
    return {
        "decisions": [{name: card[name] for name in _DECISION} for card in cards],
        "slos": [*tables["slo"], *tables["trace_slo"]],
        "recommendations": recommendations(tables),
        "held_out": held_out(tables),
        "scores": tables["score"],
        "capacity": tables["capacity"],
        "feasibility": tables["feasibility"],
        "prices": [each._asdict() for each in prices(tables)],
        "warnings": warnings(tables["point"]),
        "provenance": origin,
    }


def _page(
    tables: Tables, origin: Row, answers: Sequence[Row], decided: Sequence[Row]
) -> tuple[str, ReportFigures]:
    points, overviews = points_with_costs(tables), summaries(tables)
    matrices = feasibility_matrices(tables)
    figures = draw_all(tables, points, answers, decided, overviews, matrices)
    facts = {
        "title": "Sextant report",
        "tables": tables,
        "summaries": overviews,
        "decisions": decided,
        "answers": answers,
        "capacities": capacity_answers(tables),
        "warnings": warnings(points),
        "figures": figures,
        "feasibility": matrices,
        "reference_predictors": REFERENCE_PREDICTORS,
        "n_settings": len(group_by(points, *SETTING)),
        "n_published_medians": sum(bool(point["is_published_median"]) for point in points),
        "doubts": doubts,
        "level_names": LEVEL_NAMES,
        "price_lines": price_lines(tables),
        "what_if": assets(),
        "origin": origin,
    }
    return render(_TEMPLATE, facts, _FILTERS), figures
