"""The request model: a joint histogram of all request parameters (LLM-Pilot, III-B)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pandas.api.internals import create_dataframe_from_blocks

from sextant.base.errors import InputError
from sextant.base.files import MAKE_TRACE_AGAIN, read_parquet, reading, write_parquet
from sextant.workload.generators import Seed, child_seed

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
INTEGERS = frozenset({"input_tokens", "output_tokens", "batch_size", "top_k"})
BOOLEANS = frozenset({"is_greedy"})
N_BINS = 64
WEIGHT_COLUMNS = ("count", "probability")
SAMPLERS = ("joint", "independent")


@dataclass(frozen=True)
class _WeightedChoice:
    """Draws positions with replacement, in proportion to weights, by inverting their sum.

    A guide table (Chen and Asau, 1974) says where the search for a uniform number begins:
    [0, 1) is cut into a power of two of equal cells, and where a whole cell belongs to one
    position there is nothing left to search. Positions are those of a binary search.
    """

    cumulative: np.ndarray
    """Sum of the weights up to each position; infinite from the last that has a weight."""
    total: float
    guide: np.ndarray
    """First position that a number in each cell can mean."""

    @classmethod
    def of(cls, weights: np.ndarray) -> Self:
        """Prepare draws by `weights`, none negative and at least one positive."""
        cumulative = np.cumsum(weights, dtype=float)
        total = float(cumulative[-1])
        n_cells = 1 << int(len(weights) - 1).bit_length()
        cell_starts = np.arange(n_cells) / n_cells * total
        # A number times the total can round up to the total, which no position exceeds.
        cumulative[np.flatnonzero(weights)[-1] :] = np.inf
        guide = np.searchsorted(cumulative, cell_starts, side="right")
        return cls(cumulative, total, guide)

    def draw(self, n: int, seed: Seed) -> np.ndarray:
        """Return `n` independent positions."""
        uniform = np.random.default_rng(seed).random(n)
        drawn = uniform * self.total
        # The number of cells is a power of two: the product is exact, the cell the right one.
        positions = self.guide.take((uniform * len(self.guide)).astype(np.intp))
        later = np.flatnonzero(self.cumulative.take(positions) <= drawn)
        positions[later] = np.searchsorted(self.cumulative, drawn[later], side="right")
        return positions


@dataclass(frozen=True)
class _ColumnBlocks:
    """A frame's columns, grouped by type, so that rows are taken once per type.

    For a thousand rows, a frame made from separate columns costs more than all else in a draw;
    `create_dataframe_from_blocks` is pandas's public way around that.
    """

    columns: pd.Index
    blocks: list[tuple[Any, np.ndarray]]
    """Array of (rows, columns), or an extension array of rows; the places of its columns."""

    @classmethod
    def of(cls, frame: pd.DataFrame) -> Self:
        """Copy the columns of `frame`."""
        places: dict[Any, list[int]] = {}
        for place, dtype in enumerate(frame.dtypes):
            key = dtype if isinstance(dtype, np.dtype) else place
            places.setdefault(key, []).append(place)
        blocks: list[tuple[Any, np.ndarray]] = []
        for key, own in places.items():
            if isinstance(key, np.dtype):
                block: Any = np.stack([frame.iloc[:, place].to_numpy() for place in own], axis=1)
            else:
                block = frame.iloc[:, own[0]].array
            blocks.append((block, np.array(own, np.intp)))
        return cls(frame.columns, blocks)

    def take(self, rows: np.ndarray) -> pd.DataFrame:
        """Return these rows, numbered from 0; what is returned shares no memory."""
        taken = [
            # pandas has (columns, rows).
            (block.take(rows, 0).T if isinstance(block, np.ndarray) else block.take(rows), place)
            for block, place in self.blocks
        ]
        return create_dataframe_from_blocks(
            taken, index=pd.RangeIndex(len(rows)), columns=self.columns
        )


@dataclass(frozen=True)
class RequestModel:
    """A sparse joint histogram over request parameters.

    `frame` has one row per non-empty joint bin: a value per parameter (its bin's mean; null
    is a bin of its own) and `count`, the requests in the bin, or `probability` for a model
    published without counts. It is not to be changed: draws keep tables made from it.
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

        The sampler `joint` draws whole joint bins. `independent` is the ablation of LLM-Pilot, V-A:
        each parameter comes from its own marginal distribution, with a stream of random numbers of
        its own.

        Raises:
            InputError: there is no such sampler, or `n` is below 0.
        """
        if n < 0:
            raise InputError(f"{n} requests", field="n", fix="give 0 or more")
        if sampler == "joint":
            choice, table = self._joint
            return table.take(choice.draw(n, seed))
        if sampler != "independent":
            fix = f"use one of {', '.join(SAMPLERS)}"
            raise InputError(f"unknown sampler {sampler!r}", field="sampler", fix=fix)
        return pd.DataFrame(
            {
                name: values.take(choice.draw(n, child_seed(seed, number)))
                for number, (name, (choice, values)) in enumerate(self._marginals.items())
            }
        )

    @cached_property
    def _joint(self) -> tuple[_WeightedChoice, _ColumnBlocks]:
        return _WeightedChoice.of(self.weights), _ColumnBlocks.of(self.frame[self.parameters])

    @cached_property
    def _marginals(self) -> dict[str, tuple[_WeightedChoice, Any]]:
        """Each parameter's own distribution: values in ascending order, null last."""
        marginals = {}
        for name in self.parameters:
            place, values = pd.factorize(self.frame[name], sort=True, use_na_sentinel=False)
            marginals[name] = _WeightedChoice.of(np.bincount(place, self.weights)), values.array
        return marginals

    def save(self, path: str | Path, origin: Mapping[str, Any]) -> None:
        """Write the model as `requests.parquet`, with `origin` in its metadata.

        Types and the order of the bins are kept, so the model that is read draws the same.
        """
        table = pa.Table.from_pandas(self.frame, preserve_index=False)
        # pandas leaves its own version in the metadata.
        write_parquet(path, table.replace_schema_metadata(None), origin)


def resample_trace(trace: pd.DataFrame | str | Path, n: int, *, seed: Seed) -> pd.DataFrame:
    """Draw `n` served requests of a trace with replacement, whole rows (LLM-Pilot, V-A).

    The columns and the errors are those of `served_requests`.
    """
    served = served_requests(trace)
    rows = np.random.default_rng(seed).integers(len(served), size=n)
    return served.take(rows).reset_index(drop=True)


def served_requests(trace: pd.DataFrame | str | Path) -> pd.DataFrame:
    """Return the requests that did not fail: a typed column per parameter that is ever known.

    Raises:
        InputError: no request that succeeded.
    """
    if isinstance(trace, pd.DataFrame):
        frame = trace
    else:
        with reading(trace, fix=MAKE_TRACE_AGAIN):
            stored = pq.read_schema(trace).names
        wanted = [name for name in (*PARAMETERS, "status") if name in stored]
        frame = read_parquet(trace, wanted, fix=MAKE_TRACE_AGAIN).to_pandas()
    frame = frame[frame["status"] != "failed"] if "status" in frame else frame
    names = [name for name in PARAMETERS if name in frame and frame[name].notna().any()]
    if not names:
        file = None if isinstance(trace, pd.DataFrame) else trace
        fix = "give a trace with requests that succeeded"
        raise InputError("no request succeeded", file=file, fix=fix)
    return pd.DataFrame({name: typed(frame[name]) for name in names})


def check_cap(name: str, cap: int | None) -> None:
    """Refuse a cap on a length that no request can keep."""
    if cap is not None and cap < 1:
        fix = "give 1 or more tokens, or no cap"
        raise InputError(f"a cap of {cap}", field=f"max_{name}", fix=fix)


def bin_starts(counts: np.ndarray, n_bins: int) -> np.ndarray:
    """Cut a sequence of values into at most `n_bins` runs of about equal count.

    Args:
        counts: occurrences of each distinct value, in the order of the values.
        n_bins: most runs.

    Returns:
        Index of each run's first value. Of all cuts into so few runs it is one whose most
        crowded run is smallest; a value that alone is more frequent than that has a run of
        its own.
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
    """Merge neighbouring lengths into at most `n_bins` bins of about equal probability.

    A bin's value is the mean of what is in it, rounded, so that the mean is kept; a length
    that is frequent by itself keeps a bin of its own. `values` ascend, as do the distinct lengths
    that are returned with their probabilities.
    """
    starts = bin_starts(np.rint(probabilities * 1e12).astype(np.int64), n_bins)
    mass = np.add.reduceat(probabilities, starts)
    sums = np.add.reduceat(probabilities * values, starts)
    is_kept = mass > 0
    means = np.rint(sums[is_kept] / mass[is_kept]).astype(np.int32)
    return means, mass[is_kept]


def independent_model(
    inputs: tuple[np.ndarray, np.ndarray], outputs: tuple[np.ndarray, np.ndarray]
) -> RequestModel:
    """Return the request model of independent lengths: distinct ones and their probabilities."""
    (input_tokens, p_input), (output_tokens, p_output) = inputs, outputs
    frame = pd.DataFrame(
        {
            "input_tokens": np.repeat(input_tokens, len(output_tokens)).astype(np.int32),
            "output_tokens": np.tile(output_tokens, len(input_tokens)).astype(np.int32),
            "probability": np.outer(p_input, p_output).ravel(),
        }
    )
    return RequestModel(frame)
