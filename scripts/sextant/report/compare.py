"""What differs: between two load runs beyond chance, or between the recommendations of two stores.

Each load run is cut into blocks of equally many successive answers. If the runs are alike, it makes
no difference which run a block belongs to. The blocks are therefore dealt out again many times. Per
deal the largest distance of any figure of the level counts, in standard errors. A figure differs if
its distance is above this maximum in all but 5% of the deals (a studentized permutation test,
Westfall and Young's maximum). So one level in twenty shows a difference where nothing differs.
Differences between two starts of a server are not in it.
"""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pandas as pd

from sextant.answer.option import Option
from sextant.base.errors import InputError
from sextant.base.files import Row, jsonable, provenance, read_json
from sextant.decide.headroom import NextBest
from sextant.experiment.scenarios import START_SQL, level_to_json
from sextant.pages.blocks import Block, Document, Facts, Headline, Note, Section, Table
from sextant.pages.words import interval, joined, number, percent, plural
from sextant.points.cell_files import MeasuredCell, damaged_files, read_cell
from sextant.points.metrics import LATENCIES, N_BLOCKS, SHOWN
from sextant.report.answers import deployment_cell
from sextant.report.stored import StoredRecommendation, read_tables, recommendations

_FAILED = "failed requests, share"
# Chance that a level shows a difference where nothing differs.
_CHANCE_FAILURES = 0.01
_CHANCE_FIGURES = 0.04
_N_DEALS = 4000
_LEAST_REQUESTS = 2 * N_BLOCKS
_FIX = "give a store (.duckdb), a report (its recommendations.json), or load runs"
_FACTS = {
    "llm_id": "key.llm_id",
    "gpu_profile_id": "key.gpu_profile_id",
    "workload_id": "key.workload_id",
    "engine": "engine",
    "prompts": "requests.prompts",
}
"""The fields of `CellRun` in which two runs may differ, by their name in the answer."""
_LOAD = ("duration_s", "n_requests", "burstiness", "max_in_flight")
_HEADER = ["", "A", "B", "B / A", "interval", "difference"]

Level = tuple[pd.DataFrame, float | None]  # all requests, and duration (s)


class FigureDifference(NamedTuple):
    """A figure of one level in two load runs, A and B; None: not known."""

    figure: str
    a: float | None
    b: float | None
    low: float | None = None
    """Ends of the interval of the ratio."""
    high: float | None = None
    ratio: float | None = None
    """B / A."""
    is_real: bool | None = None
    """Whether the difference is more than chance."""

    @property
    def cells(self) -> list[str]:
        """Its row of a table with `_HEADER`."""
        between = "–" if self.low is None or self.high is None else interval(self.low, self.high)
        verdict = {None: "too few requests", False: "none that is sure"}.get(self.is_real)
        if self.is_real and self.a is not None and self.b is not None:
            verdict = "more" if self.b > self.a else "less"
        show = percent if self.figure == _FAILED else number
        return [self.figure, show(self.a), show(self.b), number(self.ratio), between, str(verdict)]


def compare_runs(first: Path, second: Path) -> Document:
    """Return two load runs side by side: a row per level and figure, failed requests first.

    InputError: a run is damaged, or the runs put load on in different ways.
    """
    for folder in (first, second):
        if damage := damaged_files(folder):
            problem = f"a load run whose files are damaged: {', '.join(damage)}"
            raise InputError(problem, file=folder, fix="load again")
    cells = [read_cell(folder) for folder in (first, second)]
    runs = [cell.run for cell in cells]
    if runs[0].scenario_kind != runs[1].scenario_kind:
        problem = f"{first} is a {runs[0].scenario_kind}, {second} a {runs[1].scenario_kind}"
        raise InputError(problem, fix="compare runs of the same way to put load on")
    a, b = map(_levels, cells)
    differences = {level: compare_levels(a[level], b[level]) for level in a if level in b}
    differs = {name: [*map(attrgetter(path), runs)] for name, path in _FACTS.items()}
    differs |= {name: [str(run.scenario.get(name)) for run in runs] for name in _LOAD}
    facts: Row = {
        "kind": "runs",
        "a": str(first),
        "b": str(second),
        "differs": {name: pair for name, pair in differs.items() if pair[0] != pair[1]},
        "levels": [
            {"level": level_to_json(level), "rows": [row._asdict() for row in rows]}
            for level, rows in differences.items()
        ],
        "only_in_one": [f"{level:g}" for level in sorted({*a} ^ {*b})],
        "confidence": 1 - _CHANCE_FAILURES - _CHANCE_FIGURES,
    }
    notes = [f"{name}: {old} in A, {new} in B" for name, (old, new) in facts["differs"].items()]
    if facts["only_in_one"]:
        notes.append(f"levels of one run only: {', '.join(facts['only_in_one'])}")
    warnings = []
    sections = []
    for level, rows in differences.items():
        failed = rows[0]
        title = f"level {level:g}"
        if failed.a or failed.b:
            text = (
                f"{title}: {percent(failed.a)} of the requests failed in A, "
                f"{percent(failed.b)} in B; other figures are of answers alone"
            )
            warnings.append(Note(text, "warning"))
        sections.append(Section(title, [Table(_HEADER, [row.cells for row in rows], {0, 5})]))

    is_real = [bool(row.is_real) for rows in differences.values() for row in rows]
    lead = (
        f"{sum(is_real)} of {plural(len(is_real), 'figure')} differ by "
        "more than chance (permutations of blocks; 95% for all figures of a level together)"
    )
    blocks: list[Block] = [*warnings, Headline(lead), *map(Note, notes), *sections]
    return Document("Two load runs", blocks, facts, f"A: {first}; B: {second}", provenance())


def _levels(cell: MeasuredCell) -> dict[float, Level]:
    """Return requests by level, ordered by their end, with latencies; `itl_ms` has all gaps."""
    requests = cell.requests().assign(scenario_kind=cell.run.scenario_kind)
    latencies = ", ".join(f"{metric.sql} AS {metric.name}" for metric in LATENCIES)
    with duckdb.connect() as database:
        database.register("requests", requests)
        values = database.sql(
            f"""SELECT level, status, sent_s, last_token_s, output_tokens, {latencies}
            FROM (SELECT *, {START_SQL} AS start_s FROM requests) ORDER BY last_token_s, sent_s"""
        ).df()
    return {
        level.level: (values[values["level"] == level.level], level.duration_s)
        for level in cell.run.levels
    }


def compare_levels(a: Level, b: Level) -> list[FigureDifference]:
    """Return the difference of each figure of a level, the share of failed requests first."""
    failures = []
    figures = []
    answers = [rows[rows["status"] == "ok"] for rows, _ in (a, b)]
    n_sent = min(len(a[0]), len(b[0]))
    n_answered = min(map(len, answers))
    for (rows, duration_s), ok in zip((a, b), answers, strict=True):
        # In the order of sending: a failed request has no last token.
        failed = rows.sort_values("sent_s")["status"].ne("ok")
        parts = [failed, *(failed.iloc[places] for places in _blocks(len(rows), n_sent))]
        failures.append(pd.DataFrame({_FAILED: [part.mean() for part in parts]}))
        block_figures = [_figures(ok, duration_s)]
        start_s = ok["sent_s"].min()
        for places in _blocks(len(ok), n_answered):
            part = ok.iloc[places]
            end_s = part["last_token_s"].max()
            block_figures.append(_figures(part, max(end_s - start_s, 1e-9)))
            start_s = end_s
        figures.append(pd.DataFrame(block_figures))
    return [
        *_judge(failures, n_sent, _CHANCE_FAILURES),
        *_judge(figures, n_answered, _CHANCE_FIGURES),
    ]


def _blocks(n: int, n_least: int) -> list[np.ndarray]:
    """Return the positions of `n` successive requests in blocks; both runs' blocks are as large."""
    return np.array_split(np.arange(n), max(1, n // max(1, n_least // N_BLOCKS)))


def _figures(ok: pd.DataFrame, duration_s: float | None) -> dict[str, float]:
    """Return the statistics of each latency in ms (of ITL over all gaps), and the rates."""
    statistics = {}
    for name, label in SHOWN.items():
        values = ok[name].dropna().to_numpy()
        if name == "itl_ms":
            values = np.concatenate([*ok[name], np.empty(0)])
        values = values.astype(float) if len(values) else np.array([np.nan])
        middle, high = np.quantile(values, [0.5, 0.95])
        for statistic, value in (("mean", np.mean(values)), ("p50", middle), ("p95", high)):
            statistics[f"{label.replace(', ms', '')} {statistic}, ms"] = float(value)
    span_s = duration_s if len(ok) and duration_s else np.nan
    statistics["output tokens a second"] = ok["output_tokens"].sum() / span_s
    statistics["requests a second"] = len(ok) / span_s
    return statistics


def _judge(sides: Sequence[pd.DataFrame], n_least: int, chance: float) -> list[FigureDifference]:
    """Return the difference of each figure, a column of `sides`.

    Row 0 of a side is the whole level, the other rows are blocks. `n_least` requests are in the
    smaller run; `chance` is the share of levels that may show a difference by chance.
    """
    a, b = sides
    is_enough = n_least >= _LEAST_REQUESTS
    if is_enough:
        values = np.vstack([a.iloc[1:].to_numpy(float), b.iloc[1:].to_numpy(float)])
        is_of_b = np.arange(len(values)) >= len(a) - 1
        random = np.random.default_rng(0)
        deals = [_distances(values, random.permutation(is_of_b))[0] for _ in range(_N_DEALS)]
        most = np.quantile([np.max(np.abs(deal), initial=0) for deal in deals], 1 - chance)
        distance, error, base = _distances(values, is_of_b)
    rows = []
    for index, figure in enumerate(a):
        old, new = (jsonable(side[figure].iloc[0]) for side in (a, b))
        row = FigureDifference(str(figure), old, new)
        if old is not None and new is not None:
            ratio = new / old if old else None
            row = row._replace(ratio=ratio)
            if is_enough:
                row = row._replace(is_real=bool(abs(distance[index]) > most))
            if is_enough and ratio and base[index]:
                wide = most * error[index] / base[index]
                row = row._replace(low=ratio - wide, high=ratio + wide)
        rows.append(row)

    return rows


def _distances(values: np.ndarray, is_of_b: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return B's distance from A in standard errors, the standard error, and A's mean."""
    a = values[~is_of_b]
    b = values[is_of_b]
    error = np.sqrt(a.var(axis=0, ddof=1) / len(a) + b.var(axis=0, ddof=1) / len(b))
    apart = b.mean(axis=0) - a.mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = np.where(error > 0, apart / error, np.where(apart == 0, 0.0, np.inf * apart))
    return np.nan_to_num(distance, nan=0.0, posinf=1e9, neginf=-1e9), error, a.mean(axis=0)


class StoredAnswers(NamedTuple):
    """What a store or a report recommends, and for which SLOs (rows of the sheet, by id)."""

    slos: Mapping[str, Row]
    recommendations: Sequence[StoredRecommendation]

    @classmethod
    def read(cls, path: Path) -> "StoredAnswers":
        """Return the answers of a store, of a report's JSON, or of a folder with either."""
        if path.is_dir():
            names = ("sextant.duckdb", "recommendations.json")
            files = [path / name for name in names if (path / name).exists()]
            if not files:
                raise InputError("there is no store, report or load run", file=path, fix=_FIX)
            path = files[0]
        if path.suffix == ".duckdb":
            tables = read_tables(path)
            return cls({slo["slo_id"]: slo for slo in tables["slo"]}, recommendations(tables))

        content = read_json(path, fix=_FIX)
        if not (isinstance(content, dict) and {"slos", "recommendations"} <= {*content}):
            raise InputError("it is not a report", file=path, fix=_FIX)
        slos = {slo["slo_id"]: slo for slo in content["slos"]}
        return cls(slos, [*map(StoredRecommendation.of_dict, content["recommendations"])])


class ChangedRecommendation(NamedTuple):
    """What two stores recommend for an LLM under an SLO, where it differs."""

    source: str
    slo_id: str
    llm_id: str
    predictor: str
    was: str
    is_now: str
    why: list[str]

    @classmethod
    def of(
        cls,
        was: StoredRecommendation,
        now: StoredRecommendation,
        slo_before: Row,
        slo_after: Row,
    ) -> "ChangedRecommendation":
        """Return what was recommended in A, what is now in B, and why."""
        why = []
        for name in sorted(slo_before.keys() | slo_after.keys()):
            values = [slo.get(name) for slo in (slo_before, slo_after)]
            if values[0] != values[1]:
                old, new = (
                    number(value) if isinstance(value, int | float) else value or "not set"
                    for value in values
                )
                why.append(f"the SLO's {name} was {old}, is {new}")

        chosen_in_a = was.option.gpu_profile_id
        chosen_in_b = now.option.gpu_profile_id
        if chosen_in_a is not None:
            why.append(f"A's choice, {chosen_in_a}, {_fate(was.option, now, 'B')}")
        if chosen_in_b not in (None, chosen_in_a):
            why.append(f"B's choice, {chosen_in_b}, {_fate(now.option, was, 'A')}")

        words = [
            f"{deployment_cell(option)} at {number(option.usd_per_hour)} USD/h"
            if option.gpu_profile_id
            else "no profile meets it"
            for option in (was.option, now.option)
        ]
        return cls(*was.key, was=words[0], is_now=words[1], why=why)


def compare_answers(first: Path, second: Path) -> Document:
    """Return which recommendations changed, and why; InputError for other files."""
    before = StoredAnswers.read(first)
    after = StoredAnswers.read(second)
    a = {answer.key: answer for answer in before.recommendations}
    b = {answer.key: answer for answer in after.recommendations}
    common = [key for key in a if key in b]
    changes = []
    for key in common:
        was = a[key]
        now = b[key]
        sizes = [
            (option.gpu_profile_id, option.replicas, option.usd_per_hour)
            for option in (was.option, now.option)
        ]
        if sizes[0] != sizes[1]:
            slos = (before.slos[was.slo_id], after.slos[now.slo_id])
            changes.append(ChangedRecommendation.of(was, now, *slos))

    facts: dict[str, Any] = {
        "kind": "recommendations",
        "a": str(first),
        "b": str(second),
        "n_same": len(common) - len(changes),
        "changes": [change._asdict() for change in changes],
        "only_in_a": [" ".join(key) for key in a if key not in b],
        "only_in_b": [" ".join(key) for key in b if key not in a],
    }
    lead = f"{plural(len(changes), 'recommendation')} changed, {facts['n_same']} as before"
    changed = [
        Section(
            f"{change.llm_id}, {change.slo_id} ({change.source}, {change.predictor})",
            [Headline(f"{change.was} → {change.is_now}"), Facts(change.why)],
        )
        for change in changes
    ]
    only = [
        Section(f"Only in {side.upper()}", [Facts(facts[f"only_in_{side}"])])
        for side in ("a", "b")
        if facts[f"only_in_{side}"]
    ]
    blocks: list[Block] = [Headline(lead), *changed, *only]
    return Document("What changed", blocks, facts, f"A: {first}; B: {second}", provenance())


def _fate(chosen: Option, there: StoredRecommendation, other: str) -> str:
    """Return how one side's choice does on the `other` side, or why it is no option there."""
    name = chosen.gpu_profile_id
    options: list[Option | NextBest] = [there.option, *there.alternatives]
    option = next((option for option in options if option.gpu_profile_id == name), None)
    if option is None:
        for profile_ids, words in (
            (there.does_not_fit, "does not fit"),
            (there.not_measured, "has no points"),
        ):
            if name in profile_ids:
                return f"{words} in {other}"
        return f"does not meet the SLO in {other}, or is not on offer"

    prices = [
        round(deployment.usd_per_hour / deployment.replicas, 9)  # type: ignore[operator]  # chosen
        for deployment in (chosen, option)
    ]
    pairs = {
        "users a replica": (chosen.users_per_replica, option.users_per_replica),
        "USD/h a replica": (prices[0], prices[1]),
        "replicas": (chosen.replicas, option.replicas),
        "USD/h in all": (chosen.usd_per_hour, option.usd_per_hour),
    }
    moved = [
        f"{number(new)} {what} in place of {number(old)}"
        for what, (old, new) in pairs.items()
        if old != new
    ]
    return f"in {other}: {joined(moved) or 'as here, but something else is cheaper'}"
