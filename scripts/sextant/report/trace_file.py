"""What a report reads: counts of a trace and few of its rows, and the workloads fitted to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import scipy

from sextant.base import files
from sextant.base.errors import InputError
from sextant.base.files import Row, frame_rows
from sextant.base.sheets import id_of_file_name
from sextant.trace.trace_format import parquet_rows
from sextant.workload.generators import ArrivalModel
from sextant.workload.trace_arrivals import load_arrivals, read_stored

MAX_SHOWN = 6  # LLMs and services that are drawn; the most frequent ones
MAX_SAMPLE = 200_000  # requests looked at one by one; more add no digit
_SETTINGS = """SET memory_limit = '700MB'; SET preserve_insertion_order = false;
    SET enable_progress_bar = false"""
_SERVED = "status IS DISTINCT FROM 'failed'"


def query(trace: Path, sql: str) -> duckdb.DuckDBPyConnection:
    """Run a query in which `trace` names a trace's rows and `row` a row's position."""
    stored = parquet_rows(trace, has_row_number=True)
    connection = duckdb.connect()
    connection.execute(_SETTINGS)
    with files.reading(trace, duckdb.Error, fix=files.MAKE_TRACE_AGAIN):
        rows = f"(SELECT * RENAME (file_row_number AS row) FROM {stored})"
        return connection.execute(f"WITH trace AS {rows} {sql}")


def groups_of(trace: Path) -> list[Row]:
    """Return a row per LLM and service, the most frequent pair first.

    Keys: `name`, `llm`, `service` (None: not named), `n_requests`, `n_failed`, and the means of the
    requests that did not fail, `mean_input_tokens` and `mean_output_tokens` (None: all failed).
    """
    groups = query(
        trace,
        f"""SELECT llm, service, count(*) AS n_requests,
        count(*) FILTER (status = 'failed') AS n_failed,
        avg(input_tokens) FILTER ({_SERVED}) AS mean_input_tokens,
        avg(output_tokens) FILTER ({_SERVED}) AS mean_output_tokens
        FROM trace GROUP BY ALL ORDER BY n_requests DESC, llm, service""",
    )
    rows = frame_rows(groups.df())
    nameless = "all requests" if len(rows) == 1 else "not named"
    for row in rows:
        named = [row[key] for key in ("llm", "service") if row[key] is not None]
        row["name"] = " · ".join(named) or nameless
    return rows


def rows_of(frame: pd.DataFrame, group: Row) -> pd.DataFrame:
    """Return the rows of an LLM and service, without these columns."""
    is_member = np.ones(len(frame), bool)
    for key in ("llm", "service"):
        column = frame[key]
        is_member &= (column.isna() if group[key] is None else column == group[key]).to_numpy(bool)
    return frame[is_member].drop(columns=["llm", "service"])


def value_counts(trace: Path, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a column's distinct values, ascending, and how many served requests have each."""
    rows = query(
        trace,
        f"""SELECT {column}::DOUBLE AS value, count(*)::DOUBLE AS weight FROM trace
        WHERE {_SERVED} GROUP BY ALL ORDER BY value""",
    ).fetchnumpy()
    return rows["value"], rows["weight"]


def sample_requests(trace: Path, columns: Sequence[str], n_served: int, seed: int) -> pd.DataFrame:
    """Return columns of all, or about `MAX_SAMPLE`, of the `n_served` requests that succeeded."""
    # A hash of position and seed, below 2^64, draws a row without a list of rows in memory.
    most = 2**64 * MAX_SAMPLE // max(n_served, 1)
    drawn = "" if n_served <= MAX_SAMPLE else f"AND hash(row, {seed}) < {most}"
    return query(
        trace, f"SELECT {', '.join(columns)} FROM trace WHERE {_SERVED} {drawn} ORDER BY row"
    ).df()


def explained(values: np.ndarray, groups: np.ndarray) -> tuple[float, float] | None:
    """Return how much of the variance of values their groups explain (one-way ANOVA).

    Both have shape (n,); `groups` has labels. The result is the adjusted R², at least 0, and the
    p-value of the F test; None if all values are equal, or too few.
    """
    n = len(values)
    n_groups = len(np.unique(groups))
    if n <= n_groups or np.ptp(values) == 0:
        return None
    means = pd.Series(values).groupby(np.asarray(groups)).transform("mean").to_numpy()
    within = float(((values - means) ** 2).sum()) / (n - n_groups)
    between = float(((means - np.mean(values)) ** 2).sum()) / max(n_groups - 1, 1)
    ratio = between / within if within > 0 else np.inf
    fraction = max(1 - within / float(np.var(values, ddof=1)), 0.0)
    p_value = scipy.special.fdtrc(n_groups - 1, n - n_groups, ratio) if n_groups > 1 else 1.0
    return fraction, float(p_value)


@dataclass(frozen=True)
class FittedWorkload:
    """A fitted workload, as read from its folder."""

    name: str
    folder: Path
    arrivals: ArrivalModel
    validation: Mapping[str, Any]  # how faithful it is: what `fit.fit_workload` returned
    facts: Mapping[str, Any]  # how it was fitted: its caps, and what the trace came from


def open_workloads(folders: Sequence[str | Path]) -> list[FittedWorkload]:
    """Read fitted workloads, each named as its folder.

    InputError: a folder is not a fitted workload, or two have the same name.
    """
    workloads: dict[str, FittedWorkload] = {}
    for folder in map(Path, folders):
        fix = "give the folder of a workload that was fitted to a trace (see `sextant fit`)"
        if not folder.is_dir():
            problem = "is not a folder" if folder.exists() else "there is no such folder"
            raise InputError(problem, file=folder, fix=fix)
        name = id_of_file_name(folder.resolve().name)
        if name in workloads:
            fix = "give folders with names of their own"
            raise InputError(f"there are two workloads '{name}'", file=folder, fix=fix)
        arrivals = load_arrivals(folder)
        stored = read_stored(folder)
        file = folder / "validation.json"
        validation = files.read_json(file, fix=files.MAKE_WORKLOAD_AGAIN) if file.is_file() else {}
        if not (isinstance(validation, dict) and "arrivals" in validation):
            raise InputError("has no fidelity to a trace", file=file, fix=fix)
        workloads[name] = FittedWorkload(name, folder, arrivals, validation, stored["fit"])
    return list(workloads.values())
