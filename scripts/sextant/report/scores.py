"""Scores of predictors over many SLOs: means, and how S/O depends on the latency limits."""

from collections.abc import Iterable, Sequence

from sextant.base.rows import Row, group_by
from sextant.facts.slo import SLO
from sextant.pages.blocks import Section, Table
from sextant.pages.wording import number, percent
from sextant.report.store_tables import MEASURED, Tables, detailed_slos

REFERENCE_PREDICTORS = frozenset({"paris", "selecta", "morphling"})
"""Predictors that first measure a new LLM on the two reference profiles. A test compares them
with the registry of predictors, which would load their training libraries."""


def marked(predictor: str) -> str:
    """Return a predictor's name, with a triangle if it measures the reference profiles."""
    return f"{predictor} ▲" if predictor.split(" · ")[-1] in REFERENCE_PREDICTORS else predictor


_NAMES = ("slo_id", "nttft_ms", "itl_ms")
_MEANS = ("success_rate", "overspend", "so_score", "mape_nttft", "mape_itl")


def predictor_means(scores: Sequence[Row]) -> list[Row]:
    """Return a row per predictor of one source: means over the SLOs that have a value, the best
    S/O first.

    Columns: `predictor, success_rate, overspend` (over the SLOs with a success), `so_score,
    mape_nttft, mape_itl, n_slos, n_slos_judged` (some LLM could be judged) and
    `n_slos_with_success`.
    """
    rows = [
        {
            "predictor": predictor,
            **{name: _mean(row[name] for row in own) for name in _MEANS},
            "n_slos": len(own),
            "n_slos_judged": sum(row["so_score"] is not None for row in own),
            "n_slos_with_success": sum(bool(row["success_rate"]) for row in own),
        }
        for (predictor,), own in group_by(scores, "predictor").items()
        if predictor != MEASURED
    ]
    return sorted(rows, key=lambda row: (-(row["so_score"] or 0), row["predictor"]))


def grid_sections(tables: Tables) -> list[Section]:
    """Return, of a long sheet, tables of each predictor's mean S/O by latency limits."""
    if len(detailed_slos(tables)) == len(tables["slo"]):
        return []
    sections = []
    for (source, predictor), scores in group_by(tables["score"], "source", "predictor").items():
        table = limit_grid(tables["slo"], scores) if predictor != MEASURED else None
        if table:
            title = f"S/O by latency limits: {marked(predictor)}, {source}"
            sections.append(Section(title, [table], is_detail=True))
    return sections


def limit_grid(slos: Sequence[Row], scores: Sequence[Row]) -> Table | None:
    """Return one predictor's mean S/O by limits of nTTFT and ITL, over loads and percentiles.

    The same SLO under two names counts once; one with other limits does not. None unless there
    are several limits of either latency, whose combinations fill at least half of the grid.
    """
    slo_of = {slo["slo_id"]: slo for slo in slos}
    so_scores: dict[tuple, float | None] = {}
    for score in scores:
        slo = slo_of[score["slo_id"]]
        limits = (slo["nttft_ms"], slo["itl_ms"])
        if set(SLO(**slo).limits) == {"nttft", "itl"}:
            others = tuple(value for name, value in slo.items() if name not in _NAMES)
            so_scores[(limits, *others)] = score["so_score"]
    cells: dict[tuple[float, float], list[float | None]] = {}
    for (limits, *_), so_score in so_scores.items():
        cells.setdefault(limits, []).append(so_score)
    nttft_ms, itl_ms = (sorted({limits[side] for limits in cells}) for side in (0, 1))
    if min(len(nttft_ms), len(itl_ms)) < 2 or 2 * len(cells) < len(nttft_ms) * len(itl_ms):
        return None
    rows = [
        [
            f"nTTFT ≤ {number(row)} ms",
            *(percent(_mean(cells.get((row, each), []))) for each in itl_ms),
        ]
        for row in nttft_ms
    ]
    return Table(["", *(f"ITL ≤ {number(each)} ms" for each in itl_ms)], rows)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
