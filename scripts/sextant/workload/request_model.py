"""The request model: a joint histogram of all request parameters (LLM-Pilot, III-B)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from sextant.base.errors import InputError
from sextant.base.files import write_parquet
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
class RequestModel:
    """A sparse joint histogram over request parameters.

    `frame` has one row per non-empty joint bin: a value per parameter (its bin's mean; null
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

    def sample(self, n: int, *, seed: Seed, sampler: str = "joint") -> pd.DataFrame:
        """Draw `n` independent requests: one row each, a column per parameter.

        The sampler `joint` draws whole joint bins. `independent` is the ablation of LLM-Pilot, V-A:
        each parameter comes from its own marginal distribution, with a stream of random numbers of
        its own.

        Raises InputError: there is no such sampler, or `n` is below 0.
        """
        if n < 0:
            raise InputError(f"{n} requests", field="n", fix="give 0 or more")
        if sampler == "joint":
            rows = _draw_places(self.weights, n, seed)
            return self.frame[self.parameters].take(rows).reset_index(drop=True)
        if sampler != "independent":
            fix = f"use one of {', '.join(SAMPLERS)}"
            raise InputError(f"unknown sampler {sampler!r}", field="sampler", fix=fix)
        drawn = {}
        for number, name in enumerate(self.parameters):
            # Values in ascending order, null last.
            place, values = pd.factorize(self.frame[name], sort=True, use_na_sentinel=False)
            weights = np.bincount(place, self.weights)
            drawn[name] = values.array.take(_draw_places(weights, n, child_seed(seed, number)))
        return pd.DataFrame(drawn)

    def save(self, path: str | Path, origin: Mapping[str, Any]) -> None:
        """Write the model as `requests.parquet`, with `origin` in its metadata.

        Types and the order of the bins are kept, so the model that is read draws the same.
        """
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


def check_cap(name: str, cap: int | None) -> None:
    """Refuse a cap on a length that no request can keep."""
    if cap is not None and cap < 1:
        fix = "give 1 or more tokens, or no cap"
        raise InputError(f"a cap of {cap}", field=f"max_{name}", fix=fix)


def bin_starts(counts: np.ndarray, n_bins: int) -> np.ndarray:
    """Cut values, `counts` of each in their order, into at most `n_bins` runs of about equal count.

    Returns the index of each run's first value. Of all cuts into so few runs it is one whose most
    crowded run is smallest; a value that alone is more frequent than that has a run of its own.
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
