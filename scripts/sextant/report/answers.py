"""What a store recommends, in words and tables; and in one screen (`store_summary`): deployments,
then how predictors did."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from sextant.answer.option import Option
from sextant.base.files import Row, group_by
from sextant.decide.decision import FAIR
from sextant.decide.headroom import NextBest
from sextant.facts.gpu import PriceOrigin, old_price_lines, origin_line, price_origins
from sextant.facts.slo import METRICS, PERCENTILE_PREFIX, SLO
from sextant.pages.blocks import Block, Document, Facts, Note, Section, Table
from sextant.pages.words import chance, number, percent, plural
from sextant.predict.predictor import MEASURED
from sextant.report.stored import (
    StoredRecommendation,
    Tables,
    detailed_slos,
    read_tables,
    simulated_llms,
    slo_reports,
    slos_by_id,
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
_STEADY = " as a steady load"
"""Of a request rate that was not simulated: no law of a step is known."""
REFERENCE_PREDICTORS = frozenset({"paris", "selecta", "morphling"})
"""Predictors that first measure a new LLM on the two reference profiles. A test compares them
with the registry of predictors, which would load their training libraries."""


def prices(tables: Tables) -> list[PriceOrigin]:
    """Return whose prices the GPU profiles have, and of when."""
    return price_origins((row["price_source"], row["price_as_of"]) for row in tables["gpu_profile"])


def price_lines(tables: Tables) -> list[str]:
    """Return whose prices the GPU profiles have as lines for a person, old prices last."""
    price_rows = prices(tables)
    return [origin_line(price_rows), *old_price_lines(price_rows)] if price_rows else []


def deployment_cell(option: Option | NextBest) -> str:
    """Write replicas and profile, e.g. `2 × 1xA100`."""
    if option.gpu_profile_id is None:
        return "none"
    return f"{number(option.replicas)} × {option.gpu_profile_id}"


def priced_cell(option: Option) -> str:
    """Write replicas, profile and USD per hour, e.g. `2 × 1xA100 8.2`."""
    cell = deployment_cell(option)
    return cell if option.gpu_profile_id is None else f"{cell} {number(option.usd_per_hour)}"


def unsure_words(option: Option) -> str:
    """Write a probability below 0.5 to meet the SLO, e.g. `, unsure (0.29)`; else nothing."""
    probability = option.probability_met
    if probability is None or probability >= FAIR:
        return ""
    return f", unsure ({chance(probability)})"


def miss_words(answer: StoredRecommendation) -> str:
    """Say why an LLM has no recommendation, and by how much the nearest profile misses."""
    if miss := answer.nearest_miss:
        return (
            f"nearest: {miss.gpu_profile_id} misses {METRICS[miss.limit]} "
            f"by {number(miss.ratio)}× with {plural(miss.users, 'user')}"
        )
    if answer.fails:
        return f"more requests failed than may on {', '.join(answer.fails)}"
    if answer.does_not_fit and not answer.not_measured:
        return "fits on no GPU profile"
    return "no latency is known"


def slo_words(slo: SLO) -> str:
    """Write an SLO's limits and load as a sentence would."""
    limits = [
        f"{PERCENTILE_PREFIX[limit.percentile]} {METRICS[name]} ≤ {number(limit.limit_ms)} ms"
        f"{' per input token' if name == 'nttft' else ''}"
        for name, limit in slo.limits.items()
    ]
    load = f"the traffic of {slo.trace_id}"
    chosen = {"LLM": slo.llm, "service": slo.service}
    load += "".join(f", {name} {value} alone" for name, value in chosen.items() if value)
    if slo.trace_id is None:
        unit = "users" if slo.users is not None else "requests a second"
        load = f"{number(slo.load)} {unit}"
    words = f"{' and '.join(limits)}, for {load}"
    if not slo.lengths:
        return words
    inputs, outputs = (number(value) for value in slo.lengths.values())
    return f"{words} of {inputs} input and {outputs} output tokens"


def store_summary(database: Path) -> Document:
    """Return what a store recommends (of a long sheet for its first SLO), and mean scores."""
    tables = read_tables(database)

    def blocks_of(tables: Tables, source: str) -> list[Block]:
        if not (parts := answer_blocks(tables, source)):
            return []
        if points := [point for point in tables["deciding"] if point["source"] == source]:
            n_ok = sum(point["n_ok"] or 0 for point in points)
            n_failed = sum(point["n_failed"] or 0 for point in points)
            llms = {point["llm_id"] for point in points}
            profiles = {point["gpu_profile_id"] for point in points}
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
    legend: dict[str, str] = {}
    for report in slo_reports(tables):
        if report.source != source:
            continue
        cells: dict[str, str] = {}
        for answer in report.recommendations:
            cell = priced_cell(answer.option) + unsure_words(answer.option)
            if miss := answer.nearest_miss:
                cell += f", {METRICS[miss.limit]} {number(miss.ratio)}× its limit"
            # The first recommendation for an LLM is the best judged predictor's.
            cells.setdefault(answer.llm_id, cell if answer.is_measured else f"{cell} predicted")

        columns[report.slo.slo_id] = cells
        legend[report.slo.slo_id] = f"{report.slo.slo_id}: {slo_words(report.slo)}"

    slos = slos_by_id(tables)
    simulated = [row for row in tables["capacity"] if row["source"] == source]
    for (slo_id,), of_slo in group_by(simulated, "slo_id").items():
        chosen = {row["llm_id"]: priced_cell(Option.of(row)) for row in of_slo if row["is_chosen"]}
        steady = columns.get(slo_id, {})
        for llm_id in simulated_llms(tables, source, slo_id):
            steady.pop(llm_id, None)
        none = {row["llm_id"]: "none" for row in of_slo}
        columns[slo_id] = none | {llm: f"{cell}{_STEADY}" for llm, cell in steady.items()} | chosen
        legend[slo_id] = f"{slo_id}: {slo_words(slos[slo_id])}, simulated"

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
    return [Section(title, [answers, Facts([*legend.values()])])]


def score_blocks(tables: Tables, source: str) -> list[Block]:
    """Return how predictors were judged on LLMs they had not seen."""
    scores = [row for row in tables["score"] if row["source"] == source]
    means = predictor_means(scores)
    n_slos = len(tables["slo"])
    if not means:
        return []

    def cells(row: Row) -> list[str]:
        return [marked(row["predictor"]), *(percent(row[name]) for name in _SCORES.values())]

    judged = "Predictors, judged on each LLM without having seen it"
    blocks = list[Block]()
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
        numbers = [value for value in values if value is not None]
        return sum(numbers) / len(numbers) if numbers else None

    rows = [
        {"predictor": predictor}
        | {name: mean(row[name] for row in predictor_scores) for name in _SCORES.values()}
        for (predictor,), predictor_scores in group_by(scores, "predictor").items()
        if predictor != MEASURED
    ]
    return sorted(rows, key=lambda row: (-(row["so_score"] or 0), row["predictor"]))
