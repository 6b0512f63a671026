"""The request model: a joint histogram of all request parameters (LLM-Pilot, III-B)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from sextant.errors import InputError

PARAMETERS = (
    "input_tokens",
    "output_tokens",
    "batch_size",
    "is_greedy",
    "temperature",
    "top_k",
    "top_p",
)
"""Columns of a trace that describe a request to the server."""

N_BINS = 64
WEIGHT_COLUMNS = ("count", "probability")
_INTEGERS = {"input_tokens", "output_tokens", "batch_size", "top_k"}
_BOOLEANS = {"is_greedy"}

Seed = int | np.random.SeedSequence


@dataclass(frozen=True)
class RequestModel:
    """A sparse joint histogram over request parameters.

    `frame` has one row a non-empty joint bin: a value per parameter (its bin's centre; null
    is a bin of its own) and `count`, the requests in the bin, or `probability` for a model
    published without counts.
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

    def sample(self, n: int, *, seed: Seed) -> pd.DataFrame:
        """Draw `n` independent requests: one row each, a column per parameter."""
        cumulative = np.cumsum(self.weights)
        drawn = np.random.default_rng(seed).random(n) * cumulative[-1]
        rows = np.searchsorted(cumulative, drawn, side="right")
        # u·total can round up to the total itself, which lies in the last bin.
        rows = np.minimum(rows, len(cumulative) - 1)
        return self.frame[self.parameters].take(rows).reset_index(drop=True)


def fit_request_model(
    trace: pd.DataFrame | str | Path,
    n_bins: int = N_BINS,
    parameters: Sequence[str] | None = None,
) -> RequestModel:
    """Fit the joint histogram to the requests of a trace that did not fail.

    Each parameter is cut into at most `n_bins` intervals of about equal count, or one per
    value where it has no more values than that. A request's value becomes the middle of
    [lowest, highest] value seen in its interval; for a whole-number parameter the middle is
    rounded, halves up. A parameter that is null in all of the trace is left out.

    Args:
        trace: a frame in the trace contract, or the path of its Parquet file.
        n_bins: most intervals per parameter. Truth values are never merged into one.
        parameters: columns to model; all of `PARAMETERS` that the trace has by default.

    Raises:
        InputError: no bins, or no request that succeeded.
    """
    if n_bins < 1:
        raise InputError(f"{n_bins} bins", field="n_bins", fix="give 1 or more, as a rule 64")
    frame = trace if isinstance(trace, pd.DataFrame) else read_requests(trace)
    wanted = PARAMETERS if parameters is None else parameters
    frame = frame[frame["status"] != "failed"] if "status" in frame else frame
    names = [name for name in wanted if name in frame and frame[name].notna().any()]
    if not names:
        file = None if isinstance(trace, pd.DataFrame) else trace
        fix = "give a trace with requests that succeeded"
        raise InputError("no request to fit a model to", file=file, fix=fix)
    binned = pd.DataFrame({name: _centres(frame[name], n_bins) for name in names})
    joint = binned.groupby(names, dropna=False, sort=True).size().rename("count").reset_index()
    return RequestModel(joint)


def load_request_model(path: str | Path) -> RequestModel:
    """Read a request model from a workload's folder or its `requests.parquet`.

    Raises:
        InputError: there is no such file, or it has no weights.
    """
    path = Path(path)
    path = path / "requests.parquet" if path.is_dir() else path
    if not path.is_file():
        raise InputError("there is no request model", file=path, fix="fit the workload first")
    frame = pq.read_table(path).to_pandas()
    if not set(WEIGHT_COLUMNS) & set(frame.columns):
        fix = f"add one of {', '.join(WEIGHT_COLUMNS)}"
        raise InputError("the joint bins have no weight", file=path, field="count", fix=fix)
    return RequestModel(frame.assign(**{name: _typed(frame[name]) for name in frame}))


def read_requests(trace: str | Path) -> pd.DataFrame:
    """Read the columns of a trace that workloads are fitted to."""
    stored = pq.read_schema(trace).names
    wanted = ("arrival_s", *PARAMETERS, "status")
    return pq.read_table(trace, columns=[name for name in wanted if name in stored]).to_pandas()


def bin_starts(counts: np.ndarray, n_bins: int) -> np.ndarray:
    """Cut a sequence of values into at most `n_bins` runs of about equal count.

    Args:
        counts: occurrences of each distinct value, in the order of the values.
        n_bins: most runs.

    Returns:
        Index of each run's first value. Of all cuts into so few runs it is one whose most
        crowded run is smallest; a value that alone is more frequent than that has a run of
        its own, so a frequent value does not swallow its neighbours.
    """
    if len(counts) <= n_bins:
        return np.arange(len(counts))
    cumulative = np.concatenate([[0], np.cumsum(counts)])
    low, high = 1, int(cumulative[-1])
    while low < high:
        middle = (low + high) // 2
        if len(_runs(cumulative, middle, n_bins + 1)) <= n_bins:
            high = middle
        else:
            low = middle + 1
    return np.array(_runs(cumulative, low, n_bins))


def _runs(cumulative: np.ndarray, most: int, limit: int) -> list[int]:
    """Return the starts of the longest runs of at most `most` each; stop after `limit`."""
    starts, n_values = [0], len(cumulative) - 1
    while len(starts) < limit:
        begin = starts[-1]
        reach = np.searchsorted(cumulative, cumulative[begin] + most, side="right") - 1
        following = max(int(reach), begin + 1)
        if following >= n_values:
            break
        starts.append(following)
    return starts


def _centres(column: pd.Series, n_bins: int) -> pd.Series:
    """Replace each value by the centre of its bin."""
    is_known = column.notna().to_numpy()
    known = column[is_known].to_numpy(float)
    distinct, position, counts = np.unique(known, return_inverse=True, return_counts=True)
    starts = bin_starts(counts, max(n_bins, 2) if column.name in _BOOLEANS else n_bins)
    ends = np.append(starts[1:], len(distinct)) - 1
    centres = (distinct[starts] + distinct[ends]) / 2
    if column.name in _INTEGERS:
        centres = np.floor(centres + 0.5)
    values = np.full(len(column), np.nan)
    values[is_known] = centres[np.searchsorted(starts, position, side="right") - 1]
    return _typed(pd.Series(values, name=column.name))


def _typed(column: pd.Series) -> pd.Series:
    """Give a parameter its type; a nullable one only where nulls need it."""
    has_null = column.isna().any()
    if column.name in _INTEGERS:
        return column.astype("Int32" if has_null else "int32")
    if column.name in _BOOLEANS:
        return column.astype("boolean" if has_null else "bool")
    return column
