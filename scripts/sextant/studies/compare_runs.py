"""Two load runs side by side, and which of their differences are more than chance.

Intervals are of batch means over blocks of successive requests (`uncertainty`), of all figures of a
level together (Bonferroni): if nothing differs, one level in twenty shows a difference all the
same. What differs from one start of a server to the next is not in them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.base.files import provenance
from sextant.base.rows import jsonable
from sextant.pages.blocks import Document, Headline, Note, Section, Table
from sextant.pages.wording import interval, number, plural
from sextant.points.cell_files import MeasuredCell, damaged_files, read_cell
from sextant.points.metrics import LATENCIES, SHOWN, START_SQL, TPOT_SQL
from sextant.points.trust import N_BLOCKS
from sextant.studies.study import ratio_of_means, throughput_blocks

_STATISTICS: dict[str, Callable[[np.ndarray], float]] = {
    "mean": np.mean,
    "p50": lambda values: np.quantile(values, 0.5),
    "p95": lambda values: np.quantile(values, 0.95),
}
_RATES = {"throughput_tok_s": "output tokens a second", "request_rate_rps": "requests a second"}
_FAMILY_CONFIDENCE = 0.95
_CONFIDENCE = 1 - (1 - _FAMILY_CONFIDENCE) / (len(SHOWN) * len(_STATISTICS) + len(_RATES))
_LEAST_REQUESTS = 2 * N_BLOCKS
_FACTS = ("llm_id", "gpu_profile_id", "workload_id", "engine", "prompts")
_HEADER = ["", "A", "B", "B / A", "interval", "difference"]


def compare_runs(first: Path, second: Path) -> Document:
    """Return two load runs side by side: `levels` with one row per figure.

    A row has `figure, a, b, ratio` (b / a), `low, high` (its interval, None if not known) and
    `is_real` (the interval leaves out 1; None if not known).

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
            "rows": _rows([side[level] for side in sides]),
        }
        for level in common
    ]
    facts = {
        "kind": "runs",
        "a": str(first),
        "b": str(second),
        "differs": _differences(a, b),
        "levels": levels,
        "only_in_one": [f"{x:g}" for x in sorted({*sides[0]} ^ {*sides[1]})],
        "confidence": _CONFIDENCE,
    }
    return _document(facts)


def _read(folder: Path) -> MeasuredCell:
    if damage := damaged_files(folder):
        problem = f"a load run whose files are damaged: {', '.join(damage)}"
        raise InputError(problem, file=folder, fix="load again")
    return read_cell(folder)


_Level = tuple[pd.DataFrame, float | None]
"""Answers of a level, and its duration (s)."""
_Side = tuple[float, np.ndarray]
"""A figure, and the same of blocks."""


def _request_values(cell: MeasuredCell) -> pd.DataFrame:
    """Return one row per measured request, ordered by end: `level, status, error, sent_s,
    last_token_s, output_tokens, token_offsets_ms`, and its latencies; `itl_ms` is a list.
    """
    requests = cell.requests().assign(scenario_kind=cell.run.scenario_kind)
    latencies = ", ".join(f"{metric.sql} AS {metric.name}" for metric in LATENCIES)
    with duckdb.connect() as database:
        database.register("requests", requests)
        return database.sql(
            f"""SELECT *, {TPOT_SQL} AS tpot_ms FROM (
                SELECT level, status, error, sent_s, last_token_s, output_tokens,
                    token_offsets_ms, {latencies}
                FROM (SELECT *, {START_SQL} AS start_s FROM requests))
            ORDER BY last_token_s, sent_s"""
        ).df()


def _pooled(values: pd.DataFrame, name: str) -> np.ndarray:
    """Return a latency of requests in ms, known ones only; ITL is that of all gaps."""
    if name == "itl_ms":
        return np.concatenate([*values["itl_ms"], np.empty(0)]).astype(float)
    return values[name].dropna().to_numpy(float)


def _levels(cell: MeasuredCell) -> dict[float, _Level]:
    values = _request_values(cell)
    ok = values[values["status"] == "ok"]
    return {
        level.level: (ok[ok["level"] == level.level], level.duration_s) for level in cell.run.levels
    }


def _differences(a: MeasuredCell, b: MeasuredCell) -> dict[str, list[str | None]]:
    """Return in what the runs differ, by name."""
    pairs = {name: [getattr(cell.run, name) for cell in (a, b)] for name in _FACTS}
    pairs |= {
        name: [str(cell.run.scenario.get(name)) for cell in (a, b)]
        for name in ("duration_s", "n_requests", "burstiness", "max_in_flight")
    }
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _rows(sides: Sequence[_Level]) -> list[dict[str, Any]]:
    n_least, rows = min(len(ok) for ok, _ in sides), []
    for name, label in SHOWN.items():
        for statistic, of in _STATISTICS.items():
            figure = f"{label.replace(', ms', '')} {statistic}, ms"
            found = [_statistic_blocks(ok, name, of) for ok, _ in sides]
            rows.append(_row(figure, found, n_least))
    for name, label in _RATES.items():
        rows.append(_row(label, [_rate_blocks(name, *side) for side in sides], n_least))
    return rows


def _statistic_blocks(
    ok: pd.DataFrame, name: str, statistic: Callable[[np.ndarray], float]
) -> _Side:
    places = np.array_split(np.arange(len(ok)), N_BLOCKS)
    parts = [_pooled(ok.iloc[place], name) for place in places]
    values = np.concatenate(parts)
    whole = float(statistic(values)) if len(values) else math.nan
    return whole, np.array([statistic(part) for part in parts if len(part)])


def _rate_blocks(name: str, ok: pd.DataFrame, duration_s: float | None) -> _Side:
    if not len(ok) or not duration_s:
        return math.nan, np.empty(0)
    if name == "throughput_tok_s":
        return ok["output_tokens"].sum() / duration_s, throughput_blocks(ok)
    ends = (ok["sent_s"].min(), ok["last_token_s"].max())
    blocks = np.histogram(ok["last_token_s"], N_BLOCKS, ends)[0].astype(float)
    return len(ok) / duration_s, blocks


def _row(figure: str, sides: Sequence[_Side], n_least: int) -> dict[str, Any]:
    a, b = sides
    ratio = ratio_of_means(*b, *a, _CONFIDENCE)
    is_known = math.isfinite(ratio.low) and n_least >= _LEAST_REQUESTS
    return {
        "figure": figure,
        "a": jsonable(a[0]),
        "b": jsonable(b[0]),
        "ratio": jsonable(ratio.value),
        "low": ratio.low if is_known else None,
        "high": ratio.high if is_known else None,
        "is_real": not ratio.low <= 1 <= ratio.high if is_known else None,
    }


def _cells(row: Mapping[str, Any]) -> list[str]:
    low, high = row["low"], row["high"]
    between = "–" if low is None else interval(low, high)
    said = {None: "too few requests", False: "none that is sure"}
    verdict = said.get(row["is_real"]) or ("more" if row["ratio"] > 1 else "less")
    return [row["figure"], *map(number, (row["a"], row["b"], row["ratio"])), between, verdict]


def _document(facts: Mapping[str, Any]) -> Document:
    n_real = sum(bool(row["is_real"]) for level in facts["levels"] for row in level["rows"])
    n_rows = sum(len(level["rows"]) for level in facts["levels"])
    lead = f"{n_real} of {plural(n_rows, 'figure')} differ by more than chance"
    notes = [f"{name}: {a} in A, {b} in B" for name, (a, b) in facts["differs"].items()]
    if facts["only_in_one"]:
        notes.append(f"levels of one run only: {', '.join(facts['only_in_one'])}")
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
            Headline(f"{lead} (batch means; 95% for all figures of a level together)"),
            *map(Note, notes),
            *sections,
        ],
        facts,
        f"A: {facts['a']}; B: {facts['b']}",
        provenance(),
    )
