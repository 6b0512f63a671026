"""How far one run can be trusted: batch means over its blocks, and the ratio of two runs.

Batch means are the usual estimate for one long simulation or measurement, whose successive values
depend on each other: blocks hardly do (Law: Simulation Modeling and Analysis, section 9.5.3). What
differs from one start of a server to the next is not in them.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy

from sextant.points.cell_files import MeasuredCell
from sextant.points.run import CELL_KEY
from sextant.points.trust import N_BLOCKS
from sextant.studies.study import StudyData

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


LEVEL_KEY = [*CELL_KEY, "level"]
_FEW_READINGS = 5
_USES = ("utilization", "memory_utilization", "sm_active", "sm_occupancy")


def with_measures(
    points: pd.DataFrame,
    data: StudyData,
    measures: Sequence[Callable[[MeasuredCell], pd.DataFrame]],
) -> pd.DataFrame:
    """Return points with the columns that each measure gives of a cell by `level`, and those of
    `device_use`.
    """
    for measure in measures:
        parts = [
            measure(cell).assign(**dict(zip(CELL_KEY, cell.key, strict=True)))
            for cell in data.cells
        ]
        # Infeasible cells have no rows, which would decide the types of columns.
        found = pd.concat([part for part in parts if len(part)] or parts[:1])
        points = points.merge(found.astype({"level": float}), on=LEVEL_KEY, how="left")
    return points.merge(device_use(data.telemetry), on=LEVEL_KEY, how="left")


def request_times(cell: MeasuredCell) -> pd.DataFrame:
    """Return by level `mean_processing_ms`, `mean_latency_ms` and `request_tokens`.

    Processing is from sent to last token, the latency of Recasens et al. (section 3.3);
    `mean_latency_ms` counts from when a request was due, so with the wait for a place in the
    batch; both are of ok requests. `request_tokens` is the largest sum of requested input and
    output.
    """
    times = ("scheduled_s", "sent_s", "last_token_s", "status")
    lengths = ["requested_input_tokens", "requested_output_tokens"]
    rows = cell.requests(["level", *times, *lengths])
    ok = rows["status"] == "ok"
    rows["request_tokens"] = rows[lengths].sum(axis=1)
    rows["mean_processing_ms"] = ((rows["last_token_s"] - rows["sent_s"]) * 1e3).where(ok)
    rows["mean_latency_ms"] = ((rows["last_token_s"] - rows["scheduled_s"]) * 1e3).where(ok)
    by_level = rows.groupby("level")
    means = by_level[["mean_processing_ms", "mean_latency_ms"]].mean()
    return means.assign(request_tokens=by_level["request_tokens"].max()).reset_index()


def fits_memory(points: pd.DataFrame) -> pd.Series:
    """Return, per point, whether the requests of its level fit the batch weights as a whole."""
    weight_tokens = points["batch_weight_tokens"] * points["replicas"]
    # Of servers that ran already the weight is unknown, and compares as no limit.
    return ~(points["level"] * points["request_tokens"] > weight_tokens)


def device_use(telemetry: pd.DataFrame) -> pd.DataFrame:
    """Return by point `{mean,max}_{utilization,memory_utilization,sm_active,sm_occupancy}`: the
    mean over devices and the highest maximum, fractions, null where no device reports them.
    """
    statistics = {f"{what}_{name}": what for name in _USES for what in ("mean", "max")}
    known = telemetry.astype(dict.fromkeys(statistics, float))
    return known.groupby(LEVEL_KEY).agg(statistics).reset_index()


def server_load(cell: MeasuredCell) -> pd.DataFrame:
    """Return by level what the servers held, all replicas together.

    Columns: `mean_running`, requests in the batch on average; `n_preemptions`;
    `max_kv_cache_usage`, a fraction of the fullest. Servers are asked once a second: of a level of
    few readings the mean is not known, of a single one the counter's gain neither.
    """
    windows = pd.DataFrame(
        [(level.level, level.started_s, level.ended_s) for level in cell.run.levels],
        columns=["level", "from_s", "to_s"],
        dtype=float,
    )
    # What was read before a level began, during its warm-up or a search, is not of it.
    rows = cell.server().merge(windows, on="level")
    rows = rows[rows["time_s"].between(rows["from_s"], rows["to_s"])]
    by_replica = rows.groupby(["level", "replica"])
    counter = by_replica["n_preemptions"]
    n_readings = by_replica.size()
    found = pd.DataFrame(
        {
            "mean_running": by_replica["n_running"].mean().where(n_readings >= _FEW_READINGS),
            "n_preemptions": (counter.max() - counter.min()).where(n_readings > 1),
            "max_kv_cache_usage": by_replica["kv_cache_usage"].max(),
        }
    )
    by_level = found.groupby("level")
    # A sum is unknown if one replica's part is.
    sums = by_level[["mean_running", "n_preemptions"]].agg(lambda own: own.sum(skipna=False))
    return sums.assign(max_kv_cache_usage=by_level["max_kv_cache_usage"].max()).reset_index()
