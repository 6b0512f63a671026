"""Two load runs side by side: what failed, and which other differences are more than chance.

Each run is cut into blocks of as many successive answers. If the runs are alike, it makes no
difference which blocks belong to which: the blocks are dealt out anew many times, and a figure
differs if its distance, in standard errors, is beyond the largest one of any figure of the level in
all but 5% of the deals (a studentized permutation test, Westfall and Young's maximum). So one level
in twenty shows a difference where nothing differs. What differs from one start of a server to the
next is not in it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.base.files import jsonable, provenance
from sextant.experiment.scenarios import START_SQL
from sextant.pages.blocks import Document, Headline, Note, Section, Table
from sextant.pages.wording import interval, number, percent, plural
from sextant.points.cell_files import MeasuredCell, damaged_files, read_cell
from sextant.points.metrics import LATENCIES, N_BLOCKS, SHOWN

_STATISTICS: dict[str, Callable[[np.ndarray], float]] = {
    "mean": np.mean,
    "p50": lambda values: np.quantile(values, 0.5),
    "p95": lambda values: np.quantile(values, 0.95),
}
_RATES = {"throughput_tok_s": "output tokens a second", "request_rate_rps": "requests a second"}
_FAILED = "failed requests, share"
_OF_FAILURES, _OF_FIGURES = 0.01, 0.04
"""Chance of a difference where there is none: of failures, and of all other figures together."""
_N_DEALS = 4000
_LEAST_REQUESTS = 2 * N_BLOCKS
_FACTS = ("llm_id", "gpu_profile_id", "workload_id", "engine", "prompts")
_LOAD = ("duration_s", "n_requests", "burstiness", "max_in_flight")
_HEADER = ["", "A", "B", "B / A", "interval", "difference"]


def compare_runs(first: Path, second: Path) -> Document:
    """Return two load runs side by side: `levels` with one row per figure.

    A row has `figure, a, b, ratio` (b / a), `low, high` (its interval, None if not known) and
    `is_real` (whether they differ by more than chance; None if not known). The first row is the
    share of requests that failed, which are in no other figure.

    Raises InputError: a run is damaged, or load was put on in different ways.
    """
    a, b = _read(first), _read(second)
    if a.run.scenario_kind != b.run.scenario_kind:
        problem = f"{first} is a {a.run.scenario_kind}, {second} a {b.run.scenario_kind}"
        raise InputError(problem, fix="compare runs of the same way to put load on")
    sides = [_levels(cell) for cell in (a, b)]
    common = [level for level in sides[0] if level in sides[1]]
    levels = [
        {
            "level": "inf" if math.isinf(level) else level,
            "rows": _rows(*(side[level] for side in sides)),
        }
        for level in common
    ]
    differs = {name: [getattr(cell.run, name) for cell in (a, b)] for name in _FACTS}
    differs |= {name: [str(cell.run.scenario.get(name)) for cell in (a, b)] for name in _LOAD}
    facts = {
        "kind": "runs",
        "a": str(first),
        "b": str(second),
        "differs": {name: pair for name, pair in differs.items() if pair[0] != pair[1]},
        "levels": levels,
        "only_in_one": [f"{x:g}" for x in sorted({*sides[0]} ^ {*sides[1]})],
        "confidence": 1 - _OF_FAILURES - _OF_FIGURES,
    }
    return _document(facts)


def _read(folder: Path) -> MeasuredCell:
    if damage := damaged_files(folder):
        problem = f"a load run whose files are damaged: {', '.join(damage)}"
        raise InputError(problem, file=folder, fix="load again")
    return read_cell(folder)


_Level = tuple[pd.DataFrame, float | None]
"""Requests of a level, those that failed too, and its duration (s)."""
_Pair = tuple[pd.DataFrame, pd.DataFrame]
"""Of A and of B, a column per figure."""


def _levels(cell: MeasuredCell) -> dict[float, _Level]:
    """Return by level one row per measured request, ordered by end: `level, status, sent_s,
    last_token_s, output_tokens` and its latencies; `itl_ms` is a list.
    """
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


def _rows(a: _Level, b: _Level) -> list[dict[str, Any]]:
    answered = [(side[side["status"] == "ok"], duration_s) for side, duration_s in (a, b)]
    n_least = min(len(ok) for ok, _ in answered)
    blocks = [_block_figures(ok, max(1, n_least // N_BLOCKS)) for ok, _ in answered]
    found = []
    for ok, duration_s in answered:
        counts = {"throughput_tok_s": ok["output_tokens"].sum(), "request_rate_rps": len(ok)}
        is_known = len(ok) and duration_s
        rates = {
            label: counts[name] / duration_s if is_known else math.nan
            for name, label in _RATES.items()
        }
        found.append(pd.DataFrame([_latencies(ok) | rates]))
    # In the order in which they were sent: one that failed has no last token.
    failed = [side.sort_values("sent_s")["status"].ne("ok").to_numpy(float) for side, _ in (a, b)]
    n_sent = min(map(len, failed))
    shares = [_shares([each]) for each in failed]
    of_blocks = [_shares(_parts(each, max(1, n_sent // N_BLOCKS))) for each in failed]
    rows = _judge((shares[0], shares[1]), (of_blocks[0], of_blocks[1]), n_sent, _OF_FAILURES)
    return rows + _judge((found[0], found[1]), (blocks[0], blocks[1]), n_least, _OF_FIGURES)


def _shares(parts: Sequence[np.ndarray]) -> pd.DataFrame:
    return pd.DataFrame({_FAILED: [part.mean() if len(part) else math.nan for part in parts]})


def _latencies(ok: pd.DataFrame) -> dict[str, float]:
    """Return the statistics of each latency in ms; ITL is that of all gaps."""
    found = {}
    for name, label in SHOWN.items():
        values = ok[name].dropna().to_numpy()
        if name == "itl_ms":
            values = np.concatenate([*ok[name], np.empty(0)])
        for statistic, of in _STATISTICS.items():
            value = float(of(values.astype(float))) if len(values) else math.nan
            found[f"{label.replace(', ms', '')} {statistic}, ms"] = value
    return found


def _block_figures(ok: pd.DataFrame, size: int) -> pd.DataFrame:
    """Return the figures of blocks of this many successive answers, one row each."""
    rows = []
    start_s = ok["sent_s"].min()
    for place in _parts(np.arange(len(ok)), size):
        part = ok.iloc[place]
        end_s = part["last_token_s"].max()
        span_s = max(end_s - start_s, 1e-9)
        counts = {"throughput_tok_s": part["output_tokens"].sum(), "request_rate_rps": len(part)}
        rates = {label: counts[name] / span_s for name, label in _RATES.items()}
        rows.append(_latencies(part) | rates)
        start_s = end_s
    return pd.DataFrame(rows)


def _parts(values: np.ndarray, size: int) -> list[np.ndarray]:
    return np.array_split(values, max(1, len(values) // size))


def _judge(figures: _Pair, blocks: _Pair, n_least: int, chance: float) -> list[dict[str, Any]]:
    """Return a row per figure; `chance` is that of any difference where nothing differs."""
    is_enough = n_least >= _LEAST_REQUESTS
    values = np.vstack([side.to_numpy(float) for side in blocks]) if is_enough else None
    rows: list[dict[str, Any]] = []
    if values is not None:
        is_of_b = np.arange(len(values)) >= len(blocks[0])
        random = np.random.default_rng(0)
        deals = [_distances(values, random.permutation(is_of_b))[0] for _ in range(_N_DEALS)]
        most = np.quantile([np.max(np.abs(deal), initial=0) for deal in deals], 1 - chance)
        distance, error, base = _distances(values, is_of_b)
    for place, figure in enumerate(figures[0]):
        pair = [jsonable(side[figure].iloc[0]) for side in figures]
        is_both = None not in pair
        row = {"figure": figure, "a": pair[0], "b": pair[1], "low": None, "high": None}
        row |= {"ratio": pair[1] / pair[0] if is_both and pair[0] else None, "is_real": None}
        if values is not None and is_both:
            row["is_real"] = bool(abs(distance[place]) > most)
            if row["ratio"] and base[place]:
                wide = most * error[place] / base[place]
                row |= {"low": row["ratio"] - wide, "high": row["ratio"] + wide}
        rows.append(row)
    return rows


def _distances(values: np.ndarray, is_of_b: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return by figure how many standard errors B's blocks are above A's, the standard error, and
    the mean of A's blocks.
    """
    a, b = values[~is_of_b], values[is_of_b]
    error = np.sqrt(a.var(axis=0, ddof=1) / len(a) + b.var(axis=0, ddof=1) / len(b))
    apart = b.mean(axis=0) - a.mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = np.where(error > 0, apart / error, np.where(apart == 0, 0.0, np.inf * apart))
    return np.nan_to_num(distance, nan=0.0, posinf=1e9, neginf=-1e9), error, a.mean(axis=0)


def _cells(row: Mapping[str, Any]) -> list[str]:
    between = "–" if row["low"] is None else interval(row["low"], row["high"])
    said = {None: "too few requests", False: "none that is sure"}
    verdict = said.get(row["is_real"]) or ("more" if row["b"] > row["a"] else "less")
    show = percent if row["figure"] == _FAILED else number
    pair = ["–" if row[side] is None else show(row[side]) for side in ("a", "b")]
    return [row["figure"], *pair, number(row["ratio"]), between, verdict]


def _document(facts: Mapping[str, Any]) -> Document:
    rows = [row for level in facts["levels"] for row in level["rows"]]
    n_real = sum(bool(row["is_real"]) for row in rows)
    lead = f"{n_real} of {plural(len(rows), 'figure')} differ by more than chance"
    notes = [f"{name}: {a} in A, {b} in B" for name, (a, b) in facts["differs"].items()]
    if facts["only_in_one"]:
        notes.append(f"levels of one run only: {', '.join(facts['only_in_one'])}")
    failures = [
        f"level {float(level['level']):g}: {percent(row['a'])} of the requests failed in A, "
        f"{percent(row['b'])} in B; other figures are of answers alone"
        for level in facts["levels"]
        for row in level["rows"]
        if row["figure"] == _FAILED and (row["a"] or row["b"])
    ]
    sections = [
        Section(
            f"level {float(level['level']):g}",
            [Table(_HEADER, [_cells(row) for row in level["rows"]], {0, 5})],
        )
        for level in facts["levels"]
    ]
    return Document(
        "Two load runs",
        [
            *(Note(line, "warning") for line in failures),
            Headline(f"{lead} (permutations of blocks; 95% for all figures of a level together)"),
            *map(Note, notes),
            *sections,
        ],
        facts,
        f"A: {facts['a']}; B: {facts['b']}",
        provenance(),
    )
