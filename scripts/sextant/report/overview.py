"""The report in one screen: the deployment for each LLM and SLO, then how predictors did."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from sextant.base.files import Row, group_by
from sextant.facts.slo import METRICS
from sextant.pages.blocks import Block, Document, Facts, Note, Section, Table
from sextant.pages.wording import number, percent, plural
from sextant.predict import MEASURED
from sextant.report.answers import (
    Tables,
    deployment,
    detailed_slos,
    price_lines,
    read_tables,
    slo_answers,
    slo_words,
    sources,
)

_SCORES = {
    "S": "success_rate",
    "O": "overspend",
    "S/O": "so_score",
    "MAPE nTTFT": "mape_nttft",
    "MAPE ITL": "mape_itl",
}
_HEADER = ["predictor", *_SCORES]
REFERENCE_PREDICTORS = frozenset({"paris", "selecta", "morphling"})
"""Predictors that first measure a new LLM on the two reference profiles. A test compares them
with the registry of predictors, which would load their training libraries."""


def summary(database: Path) -> Document:
    """Return what a store recommends (of a long sheet for its first SLO), and mean scores."""
    tables = read_tables(database)

    def blocks_of(tables: Tables, source: str) -> list[Block]:
        if not (parts := answer_blocks(tables, source)):
            return []
        if points := [point for point in tables["deciding"] if point["source"] == source]:
            n_ok, n_failed = (sum(each[name] or 0 for each in points) for name in _COUNTS)
            llms, profiles = ({each[name] for each in points} for name in _PLACE)
            text = (
                f"{plural(len(llms), 'LLM')} on {plural(len(profiles), 'GPU profile')}: "
                f"{plural(len(points), 'point')}, {plural(n_ok + n_failed, 'request')}, "
                f"{n_failed or 'none'} failed."
            )
            parts.append(Note(text))
        return [*parts, *score_blocks(tables, source)]

    blocks = by_source(tables, blocks_of)
    if not blocks:
        blocks.append(Note("The store has no SLO, so there is nothing to recommend."))
    return Document("Sextant report", [*blocks, Facts(price_lines(tables))])


_COUNTS, _PLACE = ("n_ok", "n_failed"), ("llm_id", "gpu_profile_id")


def by_source(tables: Tables, blocks_of: Callable[[Tables, str], list[Block]]) -> list[Block]:
    """Return the blocks of each source, in a section of its own where there are several."""
    names = sources(tables)
    blocks: list[Block] = []
    for source in names:
        parts = blocks_of(tables, source)
        blocks += [Section(source, parts)] if parts and len(names) > 1 else parts
    return blocks


def answer_blocks(tables: Tables, source: str) -> list[Block]:
    """Return what a source's points and predictions recommend: LLMs by SLOs, and the limits."""
    columns: dict[str, dict[str, str]] = {}
    legend = []
    for answer in slo_answers(tables):
        if answer["source"] == source:
            slo_id = answer["slo"]["slo_id"]
            # Where predictors answer for an LLM, the one with the best score comes first.
            columns[slo_id] = {row["llm_id"]: _cell(row) for row in reversed(answer["answers"])}
            legend.append(f"{slo_id}: {slo_words(answer['slo'])}")
    slos = {row["slo_id"]: row for row in (*tables["slo"], *tables["trace_slo"])}
    simulated = [row for row in tables["capacity"] if row["source"] == source]
    for (slo_id,), of_slo in group_by(simulated, "slo_id").items():
        chosen = {
            row["llm_id"]: f"{deployment(row)} {number(row['usd_per_hour'])}"
            for row in of_slo
            if row["is_chosen"]
        }
        columns[slo_id] = {row["llm_id"]: "none" for row in of_slo} | chosen
        legend.append(f"{slo_id}: {slo_words(slos[slo_id])}, simulated")
    if not columns:
        return []
    llms = {row["llm_id"] for row in tables["llm"]}.union(*columns.values())
    lines = [
        [llm, *(cells.get(llm, "not known") for cells in columns.values())] for llm in sorted(llms)
    ]
    n_slos = len(tables["slo"])
    which = "each SLO" if len(detailed_slos(tables)) == n_slos else f"the first of {n_slos} SLOs"
    title = f"Cheapest deployment that meets {which} (replicas × GPU profile, USD per hour)"
    answers = Table(["LLM", *columns], lines, range(len(columns) + 1))
    return [Section(title, [answers, Facts(legend)])]


def _cell(row: Row) -> str:
    """Write an answer, or by how much the nearest profile misses."""
    basis = "" if row["basis"] == MEASURED else " predicted"
    if row["gpu_profile_id"] is not None:
        return f"{deployment(row)} {number(row['usd_per_hour'])}{basis}"
    miss = row["nearest_miss"]
    reason = f", {METRICS[miss['limit']]} {number(miss['ratio'])}× its limit" if miss else ""
    return f"none{reason}{basis}"


def score_blocks(tables: Tables, source: str) -> list[Block]:
    """Return how predictors were judged on LLMs they had not seen."""
    scores = [row for row in tables["score"] if row["source"] == source]
    means, n_slos = predictor_means(scores), len(tables["slo"])
    if not means:
        return []

    def cells(row: Row) -> list[str]:
        return [marked(row["predictor"]), *(percent(row[name]) for name in _SCORES.values())]

    judged, blocks = "Predictors, judged on each LLM without having seen it", list[Block]()
    if len(detailed_slos(tables)) < n_slos:
        first = tables["slo"][0]["slo_id"]
        of_first = [row for row in scores if row["slo_id"] == first]
        rows = [[*cells(r), r["note"] or ""] for r in of_first if r["predictor"] != MEASURED]
        table = Table([*_HEADER, "note"], rows, (0, len(_HEADER)))
        blocks.append(Section(f"{judged}, for {first}", [table]))
    table = Table(_HEADER, [cells(row) for row in means])
    words = (
        "S: share of the LLMs whose recommended deployment meets the SLO. O: its extra cost over "
        "the cheapest one that does. S/O: harmonic mean of S and 1 − O."
    )
    title = f"{judged}, means over {plural(n_slos, 'SLO')}"
    return [*blocks, Section(title, [table]), Note(words)]


def marked(predictor: str) -> str:
    """Return a predictor's name, with a triangle if it measures the reference profiles."""
    return f"{predictor} ▲" if predictor.split(" · ")[-1] in REFERENCE_PREDICTORS else predictor


def predictor_means(scores: Sequence[Row]) -> list[Row]:
    """Return a row per predictor, the best S/O first: means over the SLOs with a value."""

    def mean(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    rows = [
        {"predictor": predictor}
        | {name: mean(row[name] for row in own) for name in _SCORES.values()}
        for (predictor,), own in group_by(scores, "predictor").items()
        if predictor != MEASURED
    ]
    return sorted(rows, key=lambda row: (-(row["so_score"] or 0), row["predictor"]))
