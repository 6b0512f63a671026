"""What a store recommends, in words and tables; and in one screen (`store_summary`): deployments,
then how predictors did."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from sextant.answer.option import Option
from sextant.base.files import Row, group_by
from sextant.decide.decision import SAFE
from sextant.decide.headroom import NextBest
from sextant.experiment.servers import REHEARSAL_NOTE, SIMULATED
from sextant.facts.gpu import PriceOrigin, old_price_lines, origin_line, price_origins
from sextant.facts.slo import METRICS, PERCENTILE_PREFIX, SLO
from sextant.judge.score_figures import SCORE_WORDS
from sextant.pages.blocks import (
    Beside,
    Block,
    Cell,
    Document,
    Facts,
    Headline,
    KeyFigure,
    KeyFigures,
    Note,
    Section,
    Table,
    Tone,
)
from sextant.pages.words import chance, joined, number, percent, plural, usd_words
from sextant.points.metrics import doubts
from sextant.predict.predictor import MEASURED
from sextant.report.price_map import price_chart
from sextant.report.stored import (
    StoredRecommendation,
    Tables,
    detailed_slos,
    measured_word,
    read_tables,
    slos_by_id,
    sources,
)
from sextant.report.verdicts import Verdict, caps_words, decided_workloads, verdicts_by_slo
from sextant.workload.request_model import MOSTLY_CUT

_SCORES = {
    "S": "success_rate",
    "O": "overspend",
    "S/O": "so_score",
    "MAPE nTTFT": "mape_nttft",
    "MAPE ITL": "mape_itl",
}
_HEADER = ["predictor", *_SCORES]
_HOW = {
    "measured": "",
    "predicted": "predicted",
    "steady": "as a steady load",
    "simulated": "",
}
"""Words by what a verdict rests on; a steady load has no simulation: no law of a step is known."""
_MOST_LEVELS = 4
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
    """Write replicas, profile and price, e.g. `2 × 1xA100, 8.20 USD/h`."""
    cell = deployment_cell(option)
    return cell if option.gpu_profile_id is None else f"{cell}, {usd_words(option.usd_per_hour)}"


def verdict_cell(verdict: Verdict) -> Cell:
    """Return the deployment, its price and its probability; below 0.5 nothing meets the SLO."""
    option = verdict.option
    probability = option.probability_met
    sure = "" if probability is None else chance(probability)
    if option.gpu_profile_id is None:
        miss = verdict.nearest_miss
        missed = f"{METRICS[miss.limit]} {number(miss.ratio)}× its limit" if miss else ""
        return Cell("none", missed, "bad", f"with {miss.gpu_profile_id}" if miss else "")
    if not verdict.is_met:
        return Cell("none", f"nearest {priced_cell(option)}, {sure}", "bad")

    deployment = deployment_cell(option)
    hint = ""
    if verdict.last_level is not None:
        deployment = f"≤ {deployment}"
        hint = f"levels end at {plural(verdict.last_level, 'user')}"
    how = _HOW[verdict.basis]
    detail = ", ".join(filter(None, [usd_words(option.usd_per_hour), sure, how]))
    is_sure = probability is None or probability >= SAFE
    return Cell(deployment, detail, "good" if is_sure else "doubt", hint)


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
            parts.append(Note(f"{_points_words(points)}."))
        return [*parts, *score_blocks(tables, source)]

    blocks = by_source(tables, blocks_of)
    if not blocks:
        blocks.append(Note("The store has no SLO, so there is nothing to recommend."))
    return Document("Sextant report", [*blocks, Facts(price_lines(tables))])


def _points_words(points: Sequence[Row]) -> str:
    n_ok = sum(point["n_ok"] or 0 for point in points)
    n_failed = sum(point["n_failed"] or 0 for point in points)
    llms = {point["llm_id"] for point in points}
    profiles = {point["gpu_profile_id"] for point in points}
    return (
        f"{plural(len(llms), 'LLM')} on {plural(len(profiles), 'GPU profile')}: "
        f"{plural(len(points), 'point')}, {plural(n_ok + n_failed, 'request')}, "
        f"{n_failed or 'none'} failed"
    )


def by_source(tables: Tables, blocks_of: Callable[[Tables, str], list[Block]]) -> list[Block]:
    """Return the blocks of each source, in a section of its own where there are several."""
    names = sources(tables)
    blocks: list[Block] = []
    for source in names:
        parts = blocks_of(tables, source)
        if parts and source.startswith(SIMULATED):
            parts = [Note(REHEARSAL_NOTE, "warning"), *parts]
        blocks += [Section(source, parts)] if parts and len(names) > 1 else parts
    return blocks


def key_figures(tables: Tables) -> KeyFigures:
    """Return how many cases are met and for how much, what was measured, and who predicts best."""
    verdicts = [
        verdict
        for source in sources(tables)
        for of_slo in verdicts_by_slo(tables, source).values()
        for verdict in of_slo.values()
    ]
    met = [it for it in verdicts if it.is_met]
    figures = []
    if verdicts:
        tone: Tone = "good" if len(met) == len(verdicts) else "doubt" if met else "bad"
        detail = "an LLM under an SLO, met with probability 0.5 or more"
        figures.append(
            KeyFigure("Cases met", f"{len(met)} of {number(len(verdicts))}", detail, tone)
        )
    usd = sorted(it.option.usd_per_hour or 0.0 for it in met)
    if usd:
        ends = dict.fromkeys(number(end) for end in (usd[0], usd[-1]))
        figures.append(KeyFigure("Price of a case", f"{' to '.join(ends)} USD/h"))
    if points := tables["deciding"]:
        detail = _points_words(points)
        words = sorted({measured_word(row["source"]) for row in points})
        title = " and ".join(words).capitalize()
        figures.append(KeyFigure(title, plural(len(points), "point"), detail))
    if means := predictor_means(tables["score"]):
        best = means[0]
        detail = f"{marked(best['predictor'])}, on LLMs that it had not seen"
        figures.append(KeyFigure("Best S/O of a predictor", percent(best["so_score"]), detail))
    return KeyFigures(figures)


def answer_blocks(tables: Tables, source: str) -> list[Block]:
    """Return what a source's points and predictions recommend: the finding, a map of price against
    probability, LLMs by SLOs, what to doubt, and the limits."""
    by_slo = verdicts_by_slo(tables, source)
    if not by_slo:
        return []
    llms = {row["llm_id"] for row in tables["llm"]}.union(*by_slo.values())
    lines = [
        [llm, *(_cell_of(verdicts.get(llm)) for verdicts in by_slo.values())]
        for llm in sorted(llms)
    ]
    n_slos = len(tables["slo"])
    which = "each SLO" if len(detailed_slos(tables)) == n_slos else f"the first of {n_slos} SLOs"
    title = f"Cheapest deployment for {which}, its price and the probability that it meets the SLO"
    doubts = doubt_words(tables, source, by_slo)
    return [
        Headline(finding_words(by_slo)),
        Beside([*price_chart(by_slo, source), Facts(_legend(tables, source, by_slo))]),
        Section(
            title,
            [
                Table(["LLM", *by_slo], lines, range(len(by_slo) + 1)),
                *([Note(doubts, "warning")] if doubts else []),
            ],
        ),
    ]


def _cell_of(verdict: Verdict | None) -> Cell:
    return Cell("not known") if verdict is None else verdict_cell(verdict)


def _legend(tables: Tables, source: str, by_slo: Mapping[str, Mapping[str, Verdict]]) -> list[str]:
    """Return each SLO's limits and load, once."""
    caps = [*filter(None, map(caps_words, decided_workloads(tables, source)))]
    simulated = {row["slo_id"] for row in tables["capacity"] if row["source"] == source}
    lines = []
    for slo_id in by_slo:
        slo = slos_by_id(tables)[slo_id]
        words = f"{slo_id}: {slo_words(slo)}"
        if slo.trace_id is not None and caps:
            words += f", its requests cut to {caps[0]}"
        lines.append(f"{words}, simulated" if slo_id in simulated else words)
    return lines


def finding_words(by_slo: Mapping[str, Mapping[str, Verdict]]) -> str:
    """Return which SLOs can be met, at what price, and which GPU profile does it how often."""
    n_llms = len(set().union(*by_slo.values()))
    n_met = {slo_id: sum(it.is_met for it in of.values()) for slo_id, of in by_slo.items()}
    met = [it for of in by_slo.values() for it in of.values() if it.is_met]
    everybody = [slo_id for slo_id, n in n_met.items() if n == n_llms]
    nobody = [slo_id for slo_id, n in n_met.items() if n == 0]
    some = [f"{slo_id} for {n} of {n_llms}" for slo_id, n in n_met.items() if 0 < n < n_llms]
    llms = "the LLM" if n_llms == 1 else f"all {n_llms} LLMs"
    parts = [f"{joined(everybody)} for {llms}"] if everybody else []
    parts += some
    if nobody and met:
        parts.append(f"{joined(nobody)} for none")
    if not met:
        return f"No GPU profile meets {joined(nobody)} for any of {plural(n_llms, 'LLM')}."

    prices = sorted(it.option.usd_per_hour or 0.0 for it in met)
    cost = usd_words(prices[0])
    if prices[-1] > prices[0]:
        cost = f"{usd_words(prices[0]).removesuffix(' USD/h')} to {usd_words(prices[-1])}"
    wins = Counter(it.option.gpu_profile_id for it in met).most_common()
    best, n_best = wins[0]
    others = joined([f"{name} {n} times" if n > 1 else f"{name} once" for name, n in wins[1:3]])
    cheapest = f"{best} is the cheapest choice in {n_best} of {plural(len(met), 'case')}"
    if len(wins) == 1:
        cheapest = f"{best} is the cheapest choice each time"
    return (
        f"Limits met: {', '.join(parts)}; a deployment costs {cost}. "
        f"{cheapest}{f', {others}' if others else ''}."
    )


def doubt_words(tables: Tables, source: str, by_slo: Mapping[str, Mapping[str, Verdict]]) -> str:
    """Return what the table's reader has to know of its numbers: all in one paragraph."""
    words = []
    ended = [it for of in by_slo.values() for it in of.values() if it.last_level and it.is_met]
    if ended:
        level = max(it.last_level or 0 for it in ended)
        further = sorted({level for it in ended for level in it.further_levels})
        listed = joined([number(level) for level in further[:_MOST_LEVELS]])
        words.append(
            f"≤: no replica was loaded with more than {plural(level, 'user')}, so fewer replicas "
            f"may do: add {'levels' if len(further) > 1 else 'level'} {listed} to the scenario and "
            "measure again before you pay for as many."
        )
    for workload in decided_workloads(tables, source):
        if caps := caps_words(workload):
            n_cut = max(workload["n_clipped_input"] or 0, workload["n_clipped_output"] or 0)
            share = n_cut / workload["n_requests"]
            shown = " (a demonstration of the method, not of this traffic)" * (share > MOSTLY_CUT)
            words.append(
                f"Requests of {workload['workload_id']} are cut to {caps}; {percent(share)} of "
                f"them were longer{shown}."
            )
    points = [point for point in tables["deciding"] if point["source"] == source]
    n_doubtful = sum(bool(doubts(point)) for point in points)
    if n_doubtful:
        reasons = "few requests, failures or a late load client"
        words.append(
            f"{number(n_doubtful)} of {plural(len(points), 'point')} are doubtful: {reasons}."
        )
    return " ".join(words)


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
    title = f"{judged}, means over {plural(n_slos, 'SLO')}"
    reasons = {f"{row['predictor']}: {row['note']}." for row in scores if row["note"]}
    return [*blocks, Section(title, [table]), Facts(sorted(reasons)), Note(SCORE_WORDS)]


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
