"""What differs: between two load runs beyond chance, or between the recommendations of two stores.

Each load run is cut into blocks of as many successive answers. If the runs are alike, it makes no
difference which blocks belong to which: the blocks are dealt out again many times, and a figure
differs if its distance, in standard errors, is beyond the largest one of any figure of the level in
all but 5% of the deals (a studentized permutation test, Westfall and Young's maximum). So one level
in twenty shows a difference where nothing differs. What differs from one start of a server to the
next is not in it.
"""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.base.files import Row, jsonable, provenance, read_json
from sextant.experiment.scenarios import START_SQL, level_to_json
from sextant.pages.blocks import Block, Document, Facts, Headline, Note, Section, Table
from sextant.pages.words import interval, joined, number, percent, plural
from sextant.points.cell_files import MeasuredCell, damaged_files, read_cell
from sextant.points.metrics import LATENCIES, N_BLOCKS, SHOWN
from sextant.report.answers import deployment_cell, read_tables, recommendations

_FAILED = "failed requests, share"
_OF_FAILURES, _OF_FIGURES = 0.01, 0.04  # chance of a difference where there is none
_N_DEALS = 4000
_LEAST_REQUESTS = 2 * N_BLOCKS
_FACTS = {
    "llm_id": "key.llm_id",
    "gpu_profile_id": "key.gpu_profile_id",
    "workload_id": "key.workload_id",
    "engine": "engine",
    "prompts": "requests.prompts",
}
"""By the name that answers say, the fields of `CellRun` in which two runs may differ."""
_LOAD = ("duration_s", "n_requests", "burstiness", "max_in_flight")
_HEADER = ["", "A", "B", "B / A", "interval", "difference"]
_KEY = ("source", "slo_id", "llm_id", "predictor")

Level = tuple[pd.DataFrame, float | None]  # all requests, and duration (s)


def compare_runs(first: Path, second: Path) -> Document:
    """Return two load runs side by side: by level a row per figure, failed requests first, with `a,
    b, ratio` (b / a), `low, high` (its interval) and `is_real` (whether it is more than chance),
    None: not known. InputError: a damaged run, or other ways of load."""
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
    levels: list[Row] = [
        {"level": level_to_json(level), "rows": compare_levels(a[level], b[level])}
        for level in a
        if level in b
    ]
    differs = {name: [*map(attrgetter(path), runs)] for name, path in _FACTS.items()}
    differs |= {name: [str(run.scenario.get(name)) for run in runs] for name in _LOAD}
    facts: Row = {
        "kind": "runs",
        "a": str(first),
        "b": str(second),
        "differs": {name: pair for name, pair in differs.items() if pair[0] != pair[1]},
        "levels": levels,
        "only_in_one": [f"{level:g}" for level in sorted({*a} ^ {*b})],
        "confidence": 1 - _OF_FAILURES - _OF_FIGURES,
    }
    notes = [f"{name}: {old} in A, {new} in B" for name, (old, new) in facts["differs"].items()]
    if facts["only_in_one"]:
        notes.append(f"levels of one run only: {', '.join(facts['only_in_one'])}")
    warnings = []
    sections = []
    for level in levels:
        failed = level["rows"][0]
        title = f"level {float(level['level']):g}"
        if failed["a"] or failed["b"]:
            text = (
                f"{title}: {percent(failed['a'])} of the requests failed in A, "
                f"{percent(failed['b'])} in B; other figures are of answers alone"
            )
            warnings.append(Note(text, "warning"))
        table = Table(_HEADER, [_run_cells(row) for row in level["rows"]], {0, 5})
        sections.append(Section(title, [table]))
    rows = [row for level in levels for row in level["rows"]]
    lead = (
        f"{sum(bool(row['is_real']) for row in rows)} of {plural(len(rows), 'figure')} differ by "
        "more than chance (permutations of blocks; 95% for all figures of a level together)"
    )
    blocks: list[Block] = [*warnings, Headline(lead), *map(Note, notes), *sections]
    return Document("Two load runs", blocks, facts, f"A: {first}; B: {second}", provenance())


def _levels(cell: MeasuredCell) -> dict[float, Level]:
    """Return requests by level, ordered by end, with their latencies; `itl_ms` is a list."""
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


def compare_levels(a: Level, b: Level) -> list[Row]:
    """Return a row per figure of a level (`compare_runs`), that of failures first."""
    failures = []
    figures = []
    answers = [rows[rows["status"] == "ok"] for rows, _ in (a, b)]
    n_sent = min(len(a[0]), len(b[0]))
    n_answered = min(map(len, answers))
    for (rows, duration_s), ok in zip((a, b), answers, strict=True):
        # In the order in which they were sent: one that failed has no last token.
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
    return [*_judge(failures, n_sent, _OF_FAILURES), *_judge(figures, n_answered, _OF_FIGURES)]


def _blocks(n: int, n_least: int) -> list[np.ndarray]:
    """Return the places of successive requests in blocks of a size that both runs have."""
    return np.array_split(np.arange(n), max(1, n // max(1, n_least // N_BLOCKS)))


def _figures(ok: pd.DataFrame, duration_s: float | None) -> dict[str, float]:
    """Return the statistics of each latency in ms (ITL is that of all gaps), and the rates."""
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


def _judge(sides: Sequence[pd.DataFrame], n_least: int, chance: float) -> list[Row]:
    """Return a row per figure of two runs: the whole level first, then blocks."""
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
        row: Row = {"figure": figure, "a": old, "b": new, "low": None, "high": None}
        row |= {"ratio": None, "is_real": None}
        if old is not None and new is not None:
            row["ratio"] = new / old if old else None
            if is_enough:
                row["is_real"] = bool(abs(distance[index]) > most)
            if is_enough and row["ratio"] and base[index]:
                wide = most * error[index] / base[index]
                row |= {"low": row["ratio"] - wide, "high": row["ratio"] + wide}
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


def _run_cells(row: Row) -> list[str]:
    between = "–" if row["low"] is None else interval(row["low"], row["high"])
    said = {None: "too few requests", False: "none that is sure"}
    verdict = said.get(row["is_real"]) or ("more" if row["b"] > row["a"] else "less")
    show = percent if row["figure"] == _FAILED else number
    return [row["figure"], show(row["a"]), show(row["b"]), number(row["ratio"]), between, verdict]


def compare_answers(first: Path, second: Path) -> Document:
    """Return which recommendations changed, and why; InputError for other files."""
    reports = [_read_answers(path) for path in (first, second)]
    slos = [{slo["slo_id"]: slo for slo in report["slos"]} for report in reports]
    a, b = (
        {tuple(row[name] for name in _KEY): row for row in report["recommendations"]}
        for report in reports
    )
    names = ("gpu_profile_id", "replicas", "usd_per_hour")
    common = [key for key in a if key in b]
    changes = [
        dict(zip(_KEY, key, strict=True))
        | _change(a[key], b[key], *(slo_by_id[key[1]] for slo_by_id in slos))
        for key in common
        if any(a[key][name] != b[key][name] for name in names)
    ]
    facts: dict[str, Any] = {
        "kind": "recommendations",
        "a": str(first),
        "b": str(second),
        "n_same": len(common) - len(changes),
        "changes": changes,
        "only_in_a": [" ".join(key) for key in a if key not in b],
        "only_in_b": [" ".join(key) for key in b if key not in a],
    }
    lead = f"{plural(len(changes), 'recommendation')} changed, {facts['n_same']} as before"
    changed = [
        Section(
            f"{row['llm_id']}, {row['slo_id']} ({row['source']}, {row['predictor']})",
            [Headline(f"{row['was']} → {row['is_now']}"), Facts(row["why"])],
        )
        for row in changes
    ]
    only = [
        Section(f"Only in {side.upper()}", [Facts(facts[f"only_in_{side}"])])
        for side in ("a", "b")
        if facts[f"only_in_{side}"]
    ]
    blocks: list[Block] = [Headline(lead), *changed, *only]
    return Document("What changed", blocks, facts, f"A: {first}; B: {second}", provenance())


def _read_answers(path: Path) -> Mapping[str, Any]:
    if path.is_dir():
        names = ("sextant.duckdb", "recommendations.json")
        path = next((path / name for name in names if (path / name).exists()), path / names[0])
    if path.suffix == ".duckdb":
        tables = read_tables(path)
        return {"slos": tables["slo"], "recommendations": recommendations(tables)}
    content = read_json(path)
    if not (isinstance(content, dict) and {"slos", "recommendations"} <= {*content}):
        fix = "give a store (.duckdb), a report (its recommendations.json), or load runs"
        raise InputError("is not a report", file=path, fix=fix)
    return content


def _change(was: Row, now: Row, slo_before: Row, slo_after: Row) -> Row:
    """Return what was recommended, what is now, and why."""
    why = []
    for name in sorted(slo_before.keys() | slo_after.keys()):
        values = [slo.get(name) for slo in (slo_before, slo_after)]
        if values[0] != values[1]:
            old, new = (
                number(value) if isinstance(value, int | float) else value or "not set"
                for value in values
            )
            why.append(f"the SLO's {name} was {old}, is {new}")
    if was["gpu_profile_id"] is not None:
        why.append(f"A's choice, {was['gpu_profile_id']}, {_fate(was, now, 'B')}")
    if now["gpu_profile_id"] not in (None, was["gpu_profile_id"]):
        why.append(f"B's choice, {now['gpu_profile_id']}, {_fate(now, was, 'A')}")
    words = [
        f"{deployment_cell(row)} at {number(row['usd_per_hour'])} USD/h"
        if row["gpu_profile_id"]
        else "no profile meets it"
        for row in (was, now)
    ]
    return {"was": words[0], "is_now": words[1], "why": why}


def _fate(here: Row, there: Row, other: str) -> str:
    """Return how one side's choice does on the other side, or why it is no option."""
    name = here["gpu_profile_id"]
    options = [there, *there["alternatives"]]
    option = next((row for row in options if row["gpu_profile_id"] == name), None)
    if option is None:
        for status, words in (("does_not_fit", "does not fit"), ("not_measured", "has no points")):
            if name in there[status]:
                return f"{words} in {other}"
        return f"does not meet the SLO in {other}, or is not on offer"
    prices = [round(row["usd_per_hour"] / row["replicas"], 9) for row in (here, option)]
    pairs = {
        "users a replica": (here["users_per_replica"], option["users_per_replica"]),
        "USD/h a replica": (prices[0], prices[1]),
        "replicas": (here["replicas"], option["replicas"]),
        "USD/h in all": (here["usd_per_hour"], option["usd_per_hour"]),
    }
    moved = [
        f"{number(new)} {what} in place of {number(old)}"
        for what, (old, new) in pairs.items()
        if old != new
    ]
    return f"in {other}: {joined(moved) or 'as here, but something else is cheaper'}"
