"""What a report reads: counts of a trace and few of its rows, and the workloads fitted to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pandas as pd
import scipy

from sextant.base.errors import InputError
from sextant.base.files import MAKE_TRACE_AGAIN, MAKE_WORKLOAD_AGAIN, read_json, reading
from sextant.base.sheets import id_of
from sextant.pages.wording import MINUTE_S
from sextant.trace.trace_format import parquet_rows, require_trace
from sextant.workload.generators import ArrivalModel
from sextant.workload.profiles import start_time
from sextant.workload.trace_arrivals import load_arrivals, read_stored

MAX_SAMPLE = 200_000
"""Requests that are looked at one by one (rank correlations); more add no digit."""
SHORTEST_BUCKET_S = 5 * MINUTE_S
"""Doublings are counted in these, whatever the trace's duration."""
_SETTINGS = """SET memory_limit = '700MB'; SET preserve_insertion_order = false;
    SET enable_progress_bar = false"""


@dataclass(frozen=True)
class TraceFile:
    """A trace in the contract."""

    path: Path

    def query(self, query: str) -> duckdb.DuckDBPyConnection:
        """Run a query in which `trace` names the rows and `row` a row's position."""
        stored = parquet_rows(self.path, has_row_number=True)
        rows = f"(SELECT * RENAME (file_row_number AS row) FROM {stored})"
        connection = duckdb.connect()
        connection.execute(_SETTINGS)
        with reading(self.path, duckdb.Error, fix=MAKE_TRACE_AGAIN):
            return connection.execute(f"WITH trace AS {rows} {query}")

    def query_row(self, query: str) -> tuple[Any, ...]:
        """Run a query that gives one row, and return it."""
        (row,) = self.query(query).fetchall()
        return row


def open_trace(path: str | Path) -> TraceFile:
    """Open a trace. Raises InputError if there is no such file, it is not a Parquet file with the
    columns of the contract, or it has no row.
    """
    require_trace(path)
    return TraceFile(Path(path))


def overview(trace: TraceFile, report: str | Path | None) -> dict[str, Any]:
    """Return the counts of a trace, and what ingest set aside by its `.report.json`: the one
    given, else the one in the trace's folder, if any.
    """
    n_rows, n_failed, first_s, last_s = trace.query_row(
        """SELECT count(*), count(*) FILTER (status = 'failed'), min(arrival_s), max(arrival_s)
        FROM trace"""
    )
    path = report_path(trace, report)
    is_there = report is not None or path.is_file()
    ingested = read_json(path, fix=MAKE_TRACE_AGAIN) if is_there else {}
    start = start_time(trace.path)
    return {
        "trace": trace.path.name,
        "n_requests": n_rows,
        "n_failed": n_failed,
        "duration_s": last_s - first_s,
        "start_time": None if start is None else start.isoformat(sep=" "),
        "n_rejected": ingested.get("n_rejected"),
        "rejected_by_reason": ingested.get("n_rejected_by_reason", {}),
        "n_moved": ingested.get("n_moved"),
        "most_late_s": ingested.get("most_late_s"),
        "groups": groups(trace),
    }


def report_path(trace: TraceFile, report: str | Path | None) -> Path:
    """Return where ingest's report of a trace is, or would be."""
    return trace.path.with_suffix(".report.json") if report is None else Path(report)


def groups(trace: TraceFile) -> list[dict[str, Any]]:
    """Return the LLMs and services of the requests, the most frequent pair first: `name`, `llm`,
    `service` (None: not named), `n_requests`, `n_failed`, and of those that did not fail
    `mean_input_tokens` and `mean_output_tokens` (None: all failed).
    """
    served = "FILTER (status IS DISTINCT FROM 'failed')"
    cursor = trace.query(
        f"""SELECT llm, service, count(*) AS n_requests,
        count(*) FILTER (status = 'failed') AS n_failed,
        avg(input_tokens) {served} AS mean_input_tokens,
        avg(output_tokens) {served} AS mean_output_tokens
        FROM trace GROUP BY ALL ORDER BY n_requests DESC, llm, service"""
    )
    columns = [name for name, *_ in cursor.description]
    rows = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
    nameless = "all requests" if len(rows) == 1 else "not named"
    for row in rows:
        named = [row[key] for key in ("llm", "service") if row[key] is not None]
        row["name"] = " · ".join(named) or nameless
    return rows


def rows_of(frame: pd.DataFrame, group: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows of an LLM and service, of a frame with columns `llm` and `service`."""
    is_own = np.ones(len(frame), bool)
    for key in ("llm", "service"):
        column = frame[key]
        is_own &= (column.isna() if group[key] is None else column == group[key]).to_numpy(bool)
    return frame[is_own]


def row_of(frame: pd.DataFrame, group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the one row of an LLM and service, without these columns."""
    return rows_of(frame, group).drop(columns=["llm", "service"]).iloc[0].to_dict()


def value_counts(trace: TraceFile, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct values of a column, ascending, over the requests that did not fail, and
    how many of these have each.
    """
    rows = trace.query(
        f"""SELECT {column}::DOUBLE AS value, count(*)::DOUBLE AS weight FROM trace
        WHERE status IS DISTINCT FROM 'failed' GROUP BY ALL ORDER BY value"""
    ).fetchnumpy()
    return rows["value"], rows["weight"]


def sample_requests(
    trace: TraceFile, columns: Sequence[str], n_served: int, *, seed: int, n_most: int = MAX_SAMPLE
) -> pd.DataFrame:
    """Return these columns of the `n_served` requests that did not fail, or about `n_most` of
    them.

    Whether a request is drawn is decided by a hash of its position and the seed, so that no
    request has to be remembered.
    """
    # A hash is one of 2^64 numbers.
    drawn = "" if n_served <= n_most else f"AND hash(row, {seed}) < {2**64 * n_most // n_served}"
    return trace.query(
        f"""SELECT {", ".join(columns)} FROM trace
        WHERE status IS DISTINCT FROM 'failed' {drawn} ORDER BY row"""
    ).df()


def known_columns(trace: TraceFile, names: Sequence[str]) -> list[str]:
    """Return those of the columns in which some request has a value."""
    counted = trace.query_row(f"SELECT {', '.join(f'count({name})' for name in names)} FROM trace")
    return [name for name, count in zip(names, counted, strict=True) if count]


class Explained(NamedTuple):
    """What groups explain of the variance of values, as in a one-way analysis of variance."""

    fraction: float
    """Share of the variance that lies between groups, less what chance would put there
    (adjusted R²); 0 if that is below 0."""
    p_value: float
    """Of the F test that all groups have one mean."""


def explained(values: np.ndarray, groups: np.ndarray) -> Explained | None:
    """Return what groups, a label of each value, explain of values, shape (n,); None where values
    are all equal, or no more than groups.
    """
    n, n_groups = len(values), len(np.unique(groups))
    total = float(((values - np.mean(values)) ** 2).sum()) if n else 0.0
    if n <= n_groups or total == 0:
        return None
    means = pd.Series(values).groupby(np.asarray(groups)).transform("mean").to_numpy()
    within = float(((values - means) ** 2).sum()) / (n - n_groups)
    fraction = max(1 - within / (total / (n - 1)), 0.0)
    if n_groups == 1:
        return Explained(fraction, 1.0)
    between = float(((means - np.mean(values)) ** 2).sum()) / (n_groups - 1)
    ratio = between / within if within > 0 else np.inf
    return Explained(fraction, float(scipy.special.fdtrc(n_groups - 1, n - n_groups, ratio)))


FILES = ("arrivals.json", "validation.json")


@dataclass(frozen=True)
class FittedWorkload:
    """A workload as its folder has it."""

    name: str
    folder: Path
    arrivals: ArrivalModel
    validation: Mapping[str, Any]
    """How faithful it is to its trace: what `fit.fit_workload` returned."""
    facts: Mapping[str, Any]
    """How it was fitted: its caps, and what the trace came from."""

    @property
    def files(self) -> dict[str, Path]:
        """Return the files that were read, by a name for each."""
        return {f"{self.name}/{name}": self.folder / name for name in FILES}


def open_workloads(folders: Sequence[str | Path]) -> list[FittedWorkload]:
    """Read fitted workloads, named by the last part of their folder's path.

    Raises InputError if there is no such folder, a file in it is absent or malformed, it was not
    fitted to a trace, or two are of one name.
    """
    workloads: dict[str, FittedWorkload] = {}
    for folder in map(Path, folders):
        fix = "give the folder of a workload that was fitted to a trace (see `sextant fit`)"
        if not folder.is_dir():
            problem = "is not a folder" if folder.exists() else "there is no such folder"
            raise InputError(problem, file=folder, fix=fix)
        name = id_of(folder.resolve().name)
        if name in workloads:
            fix = "give folders with names of their own"
            raise InputError(f"there are two workloads '{name}'", file=folder, fix=fix)
        arrivals, stored = load_arrivals(folder), read_stored(folder)
        file = folder / "validation.json"
        validation = read_json(file, fix=MAKE_WORKLOAD_AGAIN) if file.is_file() else {}
        if not (isinstance(validation, dict) and "arrivals" in validation):
            raise InputError("has no fidelity to a trace", file=file, fix=fix)
        workloads[name] = FittedWorkload(name, folder, arrivals, validation, stored["fit"])
    return list(workloads.values())
