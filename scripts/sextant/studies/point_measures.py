"""What studies compute of each point beyond the store's columns."""

from collections.abc import Callable, Sequence

import pandas as pd

from sextant.points.cell_files import MeasuredCell
from sextant.points.run import CELL_KEY
from sextant.studies.study_data import StudyData

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
    """Tell of each point whether whole requests of its level are within the batch weights."""
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
