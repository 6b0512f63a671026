"""The request model: a joint histogram of all request parameters (LLM-Pilot, III-B).

DuckDB counts the requests of a trace that did not fail, without holding the trace in memory.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa

from sextant.base.errors import InputError
from sextant.base.files import MAKE_TRACE_AGAIN, reading, write_parquet
from sextant.trace.trace_format import parquet_rows, require_trace, sql_text
from sextant.workload.generators import Seed, child_seed

PARAMETERS = (
    *("input_tokens", "output_tokens", "batch_size"),
    *("is_greedy", "temperature", "top_k", "top_p"),
)
"""Columns of a trace that describe a request to the server."""
INTEGERS = frozenset({"input_tokens", "output_tokens", "batch_size", "top_k"})
BOOLEANS = frozenset({"is_greedy"})
N_BINS = 64
_MEMORY = "300MB"  # of counting a trace; what does not fit into it goes to the disk
WEIGHT_COLUMNS = ("count", "probability")
SAMPLERS = ("joint", "independent")
Trace: TypeAlias = pd.DataFrame | str | Path  # the requests of a trace, or its file


@dataclass(frozen=True, kw_only=True)
class LengthCaps:
    """Most tokens of a request on each side; longer requests are cut to it. None: no cap."""

    max_input_tokens: int | None = None
    max_output_tokens: int | None = None

    def __post_init__(self) -> None:
        for field_name, cap in asdict(self).items():
            if cap is not None and cap < 1:
                fix = "give 1 or more tokens, or no cap"
                raise InputError(f"a cap of {cap}", field=field_name, fix=fix)

    def by_column(self) -> dict[str, int | None]:
        """Return the cap on each column of lengths."""
        return {"input_tokens": self.max_input_tokens, "output_tokens": self.max_output_tokens}


NO_CAPS = LengthCaps()
MOSTLY_CUT = 0.5
"""Share of requests that are cut, above which a workload is hardly its trace's."""


@dataclass(frozen=True)
class RequestModel:
    """A sparse joint histogram over request parameters.

    `frame` has one row per non-empty joint bin: a value per parameter (its bin's mean; null is a
    bin of its own) and `count`, or `probability` for a model published without counts.
    """

    frame: pd.DataFrame

    @property
    def parameters(self) -> list[str]:
        """Names of the modelled parameters."""
        return [name for name in self.frame.columns if name not in WEIGHT_COLUMNS]

    @property
    def weights(self) -> np.ndarray:
        """Weight of each joint bin, in proportion to its probability."""
        name = next(name for name in WEIGHT_COLUMNS if name in self.frame)
        return self.frame[name].to_numpy(float)

    def sample(self, n: int, *, seed: Seed, sampler: str = "joint") -> pd.DataFrame:
        """Draw `n` independent requests: one row each, a column per parameter.

        The sampler `joint` draws whole joint bins. The sampler `independent`, the ablation of
        LLM-Pilot (V-A), draws each parameter by itself. Raises InputError: no such sampler.
        """
        if sampler == "joint":
            rows = _draw_places(self.weights, n, seed)
            return self.frame[self.parameters].take(rows).reset_index(drop=True)
        if sampler != "independent":
            fix = f"use one of {', '.join(SAMPLERS)}"
            raise InputError(f"unknown sampler {sampler!r}", field="sampler", fix=fix)

        drawn = {}
        for number, name in enumerate(self.parameters):
            # Values in ascending order, null last.
            index, values = pd.factorize(self.frame[name], sort=True, use_na_sentinel=False)
            weights = np.bincount(index, self.weights)
            drawn[name] = values.array.take(_draw_places(weights, n, child_seed(seed, number)))

        return pd.DataFrame(drawn)

    def save(self, path: str | Path, origin: Mapping[str, Any]) -> None:
        """Write the model as `requests.parquet`, with `origin` in its metadata."""
        table = pa.Table.from_pandas(self.frame, preserve_index=False)
        # pandas leaves its own version in the metadata.
        write_parquet(path, table.replace_schema_metadata(None), origin)


def _draw_places(weights: np.ndarray, n: int, seed: Seed) -> np.ndarray:
    """Draw `n` independent places by weights, none of them negative and not all 0."""
    cumulative = np.cumsum(weights, dtype=float)
    drawn = np.random.default_rng(seed).random(n) * cumulative[-1]
    # A number times the total can round up to the total, which no place exceeds.
    cumulative[np.flatnonzero(weights)[-1] :] = np.inf
    return np.searchsorted(cumulative, drawn, side="right")


def bin_starts(counts: np.ndarray, n_bins: int) -> np.ndarray:
    """Cut ascending values into at most `n_bins` runs of about equal count.

    `counts` has the number of each value. Returns the index of each run's first value. Of all cuts,
    the one is taken whose most crowded run is smallest.
    """
    if len(counts) <= n_bins:
        return np.arange(len(counts))

    cumulative = np.concatenate([[0], np.cumsum(counts)])
    low = 1
    high = int(cumulative[-1])
    while low < high:
        middle = (low + high) // 2
        if len(_runs(cumulative, middle, n_bins + 1)) <= n_bins:
            high = middle
        else:
            low = middle + 1

    return np.array(_runs(cumulative, low, n_bins))


def _runs(cumulative: np.ndarray, most: int, limit: int) -> list[int]:
    """Return the starts of the longest runs of at most `most` each; stop after `limit`."""
    starts = [0]
    n_values = len(cumulative) - 1
    while len(starts) < limit:
        begin = starts[-1]
        reach = np.searchsorted(cumulative, cumulative[begin] + most, side="right") - 1
        following = max(int(reach), begin + 1)
        if following >= n_values:
            break
        starts.append(following)
    return starts


def typed(column: pd.Series) -> pd.Series:
    """Give a parameter its type; a nullable one only where nulls need it."""
    has_null = column.isna().any()
    if column.name in INTEGERS:
        return column.astype("Int32" if has_null else "int32")
    if column.name in BOOLEANS:
        return column.astype("boolean" if has_null else "bool")
    return column


def in_bins(
    values: np.ndarray, probabilities: np.ndarray, n_bins: int
) -> tuple[np.ndarray, np.ndarray]:
    """Merge neighbouring lengths into at most `n_bins` bins of about equal probability. `values`
    ascend, as do the bins' rounded means, which are returned with their probabilities."""
    starts = bin_starts(np.rint(probabilities * 1e12).astype(np.int64), n_bins)
    mass = np.add.reduceat(probabilities, starts)
    sums = np.add.reduceat(probabilities * values, starts)
    is_kept = mass > 0
    return np.rint(sums[is_kept] / mass[is_kept]).astype(np.int32), mass[is_kept]


def independent_model(
    inputs: tuple[np.ndarray, np.ndarray], outputs: tuple[np.ndarray, np.ndarray]
) -> RequestModel:
    """Return the request model of independent lengths: distinct ones and their probabilities."""
    input_tokens, p_input = inputs
    output_tokens, p_output = outputs
    columns = {
        "input_tokens": np.repeat(input_tokens, len(output_tokens)).astype(np.int32),
        "output_tokens": np.tile(output_tokens, len(input_tokens)).astype(np.int32),
        "probability": np.outer(p_input, p_output).ravel(),
    }
    return RequestModel(pd.DataFrame(columns))


@dataclass(frozen=True)
class ServedRequests:
    """The requests of a trace that did not fail, counted."""

    frame: pd.DataFrame
    """One row per combination, in ascending order; a float64 column (NaN: null) per parameter that
    has any value."""
    counts: np.ndarray  # (rows,) requests of each
    n_failed: int
    n_clipped: Mapping[str, int]  # requests above the cap on a parameter, which were cut to it

    @classmethod
    def of(cls, trace: Trace, caps: LengthCaps = NO_CAPS) -> "ServedRequests":
        """Count the requests of a trace, lengths cut to `caps`. InputError: none succeeded."""
        capped = {name: cap for name, cap in caps.by_column().items() if cap is not None}
        with _served(trace) as (database, names, n_failed):
            over = "".join(f", count(*) FILTER ({name} > {cap})" for name, cap in capped.items())
            _, *n_over = database.execute(f"SELECT count(*){over} FROM served").fetchall()[0]
            # A cap that is null leaves a value as it is.
            columns = "".join(
                f"least({name}, {capped.get(name, 'NULL')})::DOUBLE AS {name}, " for name in names
            )
            query = f"SELECT {columns} count(*) AS n FROM served GROUP BY ALL ORDER BY ALL"
            frame = database.execute(f"{query} NULLS LAST").df()

        n_clipped = dict.fromkeys(caps.by_column(), 0) | dict(zip(capped, n_over, strict=True))
        return cls(frame[names], frame["n"].to_numpy(), n_failed, n_clipped)

    def fit(self, n_bins: int = N_BINS) -> RequestModel:
        """Return the joint histogram.

        Each parameter is cut into at most `n_bins` intervals of about equal count. A value becomes
        its interval's mean, whole numbers rounded, halves up (docs/workloads.md says why not the
        centre).
        """
        if n_bins < 1:
            raise InputError(f"{n_bins} bins", field="n_bins", fix="give 1 or more, as a rule 64")

        bins = pd.DataFrame({"count": self.counts})
        means = {}
        for name, column in self.frame.items():
            value_index, values = pd.factorize(column, sort=True)
            is_known = value_index >= 0
            counts = np.bincount(value_index[is_known], self.counts[is_known]).astype(np.int64)
            starts = bin_starts(counts, max(n_bins, 2) if name in BOOLEANS else n_bins)
            bin_means = np.add.reduceat(values * counts, starts) / np.add.reduceat(counts, starts)
            # Summing may move the mean of equal values by a rounding error.
            bin_means = np.where(
                np.diff(starts, append=len(values)) == 1, values[starts], bin_means
            )
            bin_means = np.floor(bin_means + 0.5) if name in INTEGERS else bin_means
            # Null is the last bin.
            means[name] = np.append(bin_means, np.nan)
            bin_index = np.searchsorted(starts, value_index, side="right") - 1
            bins[name] = np.where(is_known, bin_index, len(starts))

        joint = bins.groupby(list(means), as_index=False)["count"].sum()
        columns = (
            pd.Series(bin_means[joint[name]], name=name) for name, bin_means in means.items()
        )
        frame = pd.DataFrame({column.name: typed(column) for column in columns})

        return RequestModel(frame.assign(count=joint["count"]))


@contextmanager
def _served(trace: Trace) -> Iterator[tuple[duckdb.DuckDBPyConnection, list[str], int]]:
    """Yield a database with the view `served`, and two facts of the trace.

    The facts are the parameters with any value, and the number of failed requests.
    """
    if isinstance(trace, pd.DataFrame):
        # A column without any value has no type of its own.
        file = None
        rows = "given"
        frame = trace.dropna(axis="columns", how="all")
        stored = list(frame.columns)
    else:
        stored = require_trace(trace).schema_arrow.names
        file = Path(trace)
        rows = parquet_rows(trace)
        frame = None
    with duckdb.connect() as database, reading(file or "", duckdb.Error, fix=MAKE_TRACE_AGAIN):
        database.execute(f"SET memory_limit = '{_MEMORY}'; SET enable_progress_bar = false")
        database.execute(f"SET temp_directory = {sql_text(tempfile.gettempdir())}")
        if frame is not None:
            database.register("given", frame)
        succeeded = "status IS DISTINCT FROM 'failed'" if "status" in stored else "true"
        database.execute(f"CREATE TEMP VIEW served AS FROM {rows} WHERE {succeeded}")
        names = [name for name in PARAMETERS if name in stored]
        value_counts = "".join(f", count({name})" for name in names)
        n, *n_known = database.execute(f"SELECT count(*){value_counts} FROM served").fetchall()[0]
        names = [name for name, n_own in zip(names, n_known, strict=True) if n_own]
        if not names:
            fix = "give a trace with requests that succeeded"
            raise InputError("no request succeeded", file=file, fix=fix)
        n_all = database.execute(f"SELECT count(*) FROM {rows}").fetchall()[0][0]
        yield database, names, n_all - n


def served_requests(trace: Trace) -> pd.DataFrame:
    """Return the requests that did not fail, by the parameters ever known; InputError: none."""
    with _served(trace) as (database, names, _):
        frame = database.execute(f"SELECT {', '.join(names)} FROM served").df()
    return pd.DataFrame({name: typed(frame[name]) for name in frame})


def resample_trace(trace: Trace, n: int, *, seed: Seed) -> pd.DataFrame:
    """Draw `n` rows of `served_requests` with replacement (LLM-Pilot, V-A)."""
    served = served_requests(trace)
    rows = np.random.default_rng(seed).integers(len(served), size=n)
    return served.take(rows).reset_index(drop=True)


def fit_request_model(trace: Trace, n_bins: int = N_BINS) -> RequestModel:
    """Fit the joint histogram to the requests of a trace that did not fail."""
    return ServedRequests.of(trace).fit(n_bins)
