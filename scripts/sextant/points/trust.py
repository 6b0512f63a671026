"""How far a measured percentile can be trusted: its 90% interval, from the requests behind it.

Woodruff's interval (Journal of the American Statistical Association 47, 1952, page 635): the share
of values at or below the percentile is a mean, whose error is estimated by batch means over blocks
of successive requests, and its ends are read back from the values. Tokens of a request, and
requests that were served together, are not independent: so whole blocks of them are counted.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from sextant.base.rows import Row, group_by
from sextant.experiment.scenarios import level_to_json
from sextant.facts.slo import ENDS, end_column
from sextant.points.metrics import LATENCIES, PERCENTILES, SHAPING_FRACTION

if TYPE_CHECKING:
    import duckdb

N_BLOCKS = 10
"""Few enough that a block of a small run still has some tokens."""
CONFIDENCE = 0.9


def intervals(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the ends of the intervals of `PERCENTILES`, shape (percentiles, 2).

    An end is NaN where the values do not bound it: 6 requests are needed for a median, about 50 for
    the upper end of p90, 100 for that of p95 and 500 for that of p99.

    Args:
        values: of all requests, one after the other in the order in which these ended.
        sizes: how many values each request has.
    """
    from scipy.special import stdtrit  # its import takes longer than a page without intervals

    sizes = sizes[sizes > 0]
    n_blocks = min(N_BLOCKS, len(sizes))
    probabilities = [*PERCENTILES.values()]
    ends = np.full((len(probabilities), 2), np.nan)
    if n_blocks < 2:
        return ends
    block = np.repeat(np.arange(len(sizes)) * n_blocks // len(sizes), sizes)
    n_values = np.bincount(block)
    t = stdtrit(n_blocks - 1, (1 + CONFIDENCE) / 2)
    for row, p in enumerate(probabilities):
        n_below = np.bincount(block, values <= np.quantile(values, p))
        deviations = n_below - n_values * n_below.sum() / len(values)
        of_blocks = np.sqrt(n_blocks / (n_blocks - 1) * (deviations**2).sum()) / len(values)
        # Never below the error of independent values: blocks may be alike by chance.
        error = max(of_blocks, np.sqrt(p * (1 - p) / len(values)))
        shares = np.array([p - t * error, p + t * error])
        is_bounded = (shares >= 0) & (shares <= 1)
        ends[row, is_bounded] = np.quantile(values, shares[is_bounded])
    return ends


_COLUMNS = [
    end_column(f"{statistic}_{metric.name}", end)
    for metric in LATENCIES
    for statistic in PERCENTILES
    for end in ENDS
]
_SCHEMA = pa.schema(
    {"cell": pa.int64(), "level": pa.float64()} | dict.fromkeys(_COLUMNS, pa.float64())
)


def interval_rows(database: "duckdb.DuckDBPyConnection", requests: str) -> pa.Table:
    """Return one row per cell and level: its intervals, null where an end is not known.

    `requests` is a relation as that of `metrics.points_query`.
    """
    latencies = ", ".join(f"{metric.sql} AS {metric.name}" for metric in LATENCIES)
    table = database.sql(
        f"""SELECT cell, level, {latencies} FROM {requests} WHERE status = 'ok'
        ORDER BY cell, level, last_token_s, start_s, input_tokens, output_tokens"""
    ).to_arrow_table()
    keys = [table[name].to_numpy() for name in ("cell", "level")]
    is_new = np.logical_or(*(key[1:] != key[:-1] for key in keys))
    starts = [0, *(np.flatnonzero(is_new) + 1)] if len(table) else []
    rows = []
    for start, end in zip(starts, [*starts[1:], len(table)], strict=False):
        level = table.slice(start, end - start)
        row = {name: level[name][0].as_py() for name in ("cell", "level")}
        bounds: list[float | None] = []
        for metric in LATENCIES:
            column = level[metric.name].combine_chunks().drop_null()
            sizes, values = np.ones(len(column), int), column
            if pa.types.is_list(column.type):
                sizes, values = column.value_lengths().to_numpy(), column.flatten()
            ends = intervals(values.to_numpy(zero_copy_only=False), sizes)
            bounds += [None if np.isnan(bound) else bound for bound in ends.ravel().tolist()]
        rows.append(row | dict(zip(_COLUMNS, bounds, strict=True)))
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


SETTING = ("source", "workload_id", "scenario_id", "variant_id")
"""What points share that may be compared in one figure."""

FEW_REQUESTS = 20
"""With fewer successful requests even a median is rough."""
WARNINGS = {
    "n_failed": "Requests failed; they are in no latency",
    "n_ok": f"Fewer than {FEW_REQUESTS} successful requests, so the latencies are rough",
    "client_lag_p99_ms": (
        f"The load client's lag (p99) exceeds {SHAPING_FRACTION:.0%} of the median ITL, so the "
        "latencies are partly its own"
    ),
    "send_lag_p99_ms": (
        "Requests left late: the load client's lag in sending (p99) exceeds "
        f"{SHAPING_FRACTION:.0%} of the median TTFT"
    ),
    "mean_itl_ms": (
        f"The client's mean ITL differs from the server's own by more than {SHAPING_FRACTION:.0%}, "
        "or its median is 0: tokens waited for the client and were seen in bunches"
    ),
}
"""What makes a point doubtful, by the column that shows it."""


def doubts(point: Row) -> set[str]:
    """Return the columns that make a point doubtful, keys of `WARNINGS`."""
    columns = {"n_failed"} if point["n_failed"] else set()
    if point["n_ok"] is not None and point["n_ok"] < FEW_REQUESTS:
        columns.add("n_ok")
    for lag, latency in (("client_lag", "itl"), ("send_lag", "ttft")):
        share = ratio(point[f"{lag}_p99_ms"], point[f"median_{latency}_ms"])
        if share is not None and share > SHAPING_FRACTION:
            columns.add(f"{lag}_p99_ms")
    agreement = ratio(point["mean_itl_ms"], point["server_mean_itl_ms"])
    differs = agreement is not None and abs(agreement - 1) > SHAPING_FRACTION
    if differs or point["median_itl_ms"] == 0:
        columns.add("mean_itl_ms")
    return columns


def ratio(a: float | None, b: float | None) -> float | None:
    """Return a / b, None where either is not known or b is 0."""
    return None if a is None or not b else a / b


def warnings(points: Sequence[Row]) -> list[Row]:
    """Return `column, text, n_points, places` for each doubt that any point raises.

    A place is an LLM on a GPU profile in a setting, with the `levels` concerned.
    """
    rows, key = [], ("llm_id", "gpu_profile_id", *SETTING, "scenario_kind")
    for column, text in WARNINGS.items():
        doubtful = [point for point in points if column in doubts(point)]
        places = [
            dict(zip(key, place, strict=True))
            | {"levels": [level_to_json(point["level"]) for point in of_place]}
            for place, of_place in group_by(doubtful, *key).items()
        ]
        if places:
            row = {"column": column, "text": text, "n_points": len(doubtful), "places": places}
            rows.append(row)
    return rows
