"""The report in one screen: the deployment for each LLM and SLO, then how predictors did."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from sextant.base.files import Row, group_by
from sextant.facts.slo import METRICS
from sextant.pages.blocks import Block, Document, Facts, Note, Section, Table
from sextant.pages.wording import number, percent, plural
from sextant.predict import MEASURED
from sextant.report.answers import decision_points, deployment, slo_answers, slo_words, sources
from sextant.report.store_tables import Tables, detailed_slos, price_lines, read_tables

_SCORES = {
    "S": "success_rate",
    "O": "overspend",
    "S/O": "so_score",
    "MAPE nTTFT": "mape_nttft",
    "MAPE ITL": "mape_itl",
}
_COUNTS, _PLACE = ("n_ok", "n_failed"), ("llm_id", "gpu_profile_id")
_SCORE_HEADER = ("predictor", *_SCORES)
_SCORE_WORDS = (
    "S: share of the LLMs whose recommended deployment meets the SLO. O: its extra cost over the "
    "cheapest one that does. S/O: harmonic mean of S and 1 − O."
)


def summary(database: Path) -> Document:
    """Return what a store recommends, and scores; raises InputError as `read_tables` does.

    Of a long sheet of SLOs the first has a column, and the predictors' means are over all.
    """
    tables = read_tables(database)

    def blocks_of(tables: Tables, source: str) -> list[Block]:
        if not (parts := answer_blocks(tables, source)):
            return []
        if points := [each for each in decision_points(tables) if each["source"] == source]:
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
        chosen = {row["llm_id"]: row for row in of_slo if row["is_chosen"]}
        columns[slo_id] = {
            llm: f"{deployment(row)} {number(row['usd_per_hour'])}" if row else "none"
            for llm in dict.fromkeys(row["llm_id"] for row in of_slo)
            for row in [chosen.get(llm)]
        }
        legend.append(f"{slo_id}: {slo_words(slos[slo_id])}, simulated")
    if not columns:
        return []
    answered = {llm for cells in columns.values() for llm in cells}
    llms = sorted(answered | {row["llm_id"] for row in tables["llm"]})
    lines = [[llm, *(cells.get(llm, "not known") for cells in columns.values())] for llm in llms]
    answers = Table(["LLM", *columns], lines, range(len(columns) + 1))
    n_slos = len(tables["slo"])
    which = "each SLO" if len(detailed_slos(tables)) == n_slos else f"the first of {n_slos} SLOs"
    title = f"Cheapest deployment that meets {which} (replicas × GPU profile, USD per hour)"
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
    judged = "Predictors, judged on each LLM without having seen it"
    rows = [_score_cells(row) for row in means]
    blocks = [
        Section(f"{judged}, means over {plural(n_slos, 'SLO')}", [Table(_SCORE_HEADER, rows)])
    ]
    if len(detailed_slos(tables)) < n_slos:
        first = tables["slo"][0]["slo_id"]
        of_first = [
            row for row in scores if row["slo_id"] == first and row["predictor"] != MEASURED
        ]
        cells = [[*_score_cells(row), row["note"] or ""] for row in of_first]
        table = Table([*_SCORE_HEADER, "note"], cells, (0, len(_SCORE_HEADER)))
        blocks.insert(0, Section(f"{judged}, for {first}", [table]))
    return [*blocks, Note(_SCORE_WORDS)]


def _score_cells(row: Row) -> list[str]:
    return [marked(row["predictor"]), *(percent(row[name]) for name in _SCORES.values())]


REFERENCE_PREDICTORS = frozenset({"paris", "selecta", "morphling"})
"""Predictors that first measure a new LLM on the two reference profiles. A test compares them
with the registry of predictors, which would load their training libraries."""


def marked(predictor: str) -> str:
    """Return a predictor's name, with a triangle if it measures the reference profiles."""
    return f"{predictor} ▲" if predictor.split(" · ")[-1] in REFERENCE_PREDICTORS else predictor


def predictor_means(scores: Sequence[Row]) -> list[Row]:
    """Return a row per predictor of one source: means over the SLOs that have a value, the best
    S/O first.

    Columns: `predictor, success_rate, overspend` (over the SLOs with a success), `so_score,
    mape_nttft` and `mape_itl`.
    """
    rows = [
        {"predictor": predictor}
        | {name: _mean(row[name] for row in own) for name in _SCORES.values()}
        for (predictor,), own in group_by(scores, "predictor").items()
        if predictor != MEASURED
    ]
    return sorted(rows, key=lambda row: (-(row["so_score"] or 0), row["predictor"]))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
