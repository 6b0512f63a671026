"""How far one run can be trusted: batch means over its blocks, and the ratio of two runs.

Batch means are the usual estimate for one long simulation or measurement, whose successive values
depend on each other: blocks hardly do (Law: Simulation Modeling and Analysis, section 9.5.3). What
differs from one start of a server to the next is not in them.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy

from sextant.points.trust import N_BLOCKS

_LEVEL = 0.95


class Ratio(NamedTuple):
    """One measured mean over another, with its 95% interval; NaN where it is not known."""

    value: float
    low: float
    high: float


def throughput_blocks(requests: pd.DataFrame) -> np.ndarray:
    """Return the output tokens in each of `N_BLOCKS` equal parts of a level's time.

    `requests` are the level's ok ones: `sent_s, last_token_s, token_offsets_ms`. For loads that
    come and go at any time; in a batch, whose requests begin and end together, see
    `processing_blocks`.
    """
    offsets = [np.asarray(row, float) for row in requests["token_offsets_ms"]]
    sent_s = np.repeat(requests["sent_s"].to_numpy(), [len(row) for row in offsets])
    times_s = sent_s + np.concatenate([*offsets, np.empty(0)]) / 1e3
    ends = (requests["sent_s"].min(), requests["last_token_s"].max())
    # Offsets are 32-bit: the last token may lie a rounding error beyond the end.
    return np.histogram(np.clip(times_s, *ends), N_BLOCKS, ends)[0].astype(float)


def mean_blocks(values: Sequence[float] | np.ndarray, n_blocks: int = N_BLOCKS) -> np.ndarray:
    """Return the means of `n_blocks` runs of successive values, fewer if there are fewer."""
    parts = np.array_split(np.asarray(values, float), max(1, min(n_blocks, len(values))))
    return np.array([part.mean() for part in parts if len(part)])


def processing_blocks(requests: pd.DataFrame, in_flight: float) -> np.ndarray:
    """Return mean processing times (s) of blocks of successive ok requests (`sent_s,
    last_token_s`).

    Requests that are in flight together share their fate, so that a block has at least as many: a
    run in which every request is in flight at once is a single block, which tells no spread.
    """
    ordered = requests.sort_values("last_token_s")
    processing_s = ordered["last_token_s"] - ordered["sent_s"]
    n_rounds = max(1, int(len(ordered) / max(1.0, in_flight)))
    return mean_blocks(processing_s, min(N_BLOCKS, n_rounds))


def ratio_of_means(
    value: float,
    blocks: np.ndarray,
    base: float,
    base_blocks: np.ndarray,
    confidence: float = _LEVEL,
) -> Ratio:
    """Return `value / base` with an interval from the spread of their blocks.

    On a logarithmic scale the two standard errors add in squares; Student's t has the degrees
    of freedom of both.
    """
    ratio = value / base if base else math.nan
    n_free = len(blocks) + len(base_blocks) - 2
    if min(len(blocks), len(base_blocks)) < 2 or not ratio > 0:
        return Ratio(ratio, math.nan, math.nan)
    error = math.hypot(_relative_error(blocks), _relative_error(base_blocks))
    factor = math.exp(scipy.special.stdtrit(n_free, (1 + confidence) / 2) * error)
    return Ratio(ratio, ratio / factor, ratio * factor)


def _relative_error(blocks: np.ndarray) -> float:
    return blocks.std(ddof=1) / math.sqrt(len(blocks)) / blocks.mean()
