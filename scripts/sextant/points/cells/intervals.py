"""How far a measured percentile can be trusted: its 90% interval, from the requests behind it.

Woodruff's interval (Journal of the American Statistical Association 47, 1952, page 635): the share
of values at or below the percentile is a mean, whose error is estimated by batch means over blocks
of successive requests, and its ends are read back from the values. Tokens of a request, and
requests that were served together, are not independent: so whole blocks of them are counted.
"""

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import scipy

from sextant.facts.slo import ENDS, end_column
from sextant.points.cells.metrics import LATENCIES, PERCENTILES

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
    sizes = sizes[sizes > 0]
    n_blocks = min(N_BLOCKS, len(sizes))
    probabilities = [*PERCENTILES.values()]
    found = np.full((len(probabilities), 2), np.nan)
    if n_blocks < 2:
        return found
    block = np.repeat(np.arange(len(sizes)) * n_blocks // len(sizes), sizes)
    n_values = np.bincount(block)
    quantiles = np.quantile(values, probabilities)
    t = scipy.special.stdtrit(n_blocks - 1, (1 + CONFIDENCE) / 2)
    for place, (p, quantile) in enumerate(zip(probabilities, quantiles, strict=True)):
        n_below = np.bincount(block, values <= quantile)
        apart = n_below - n_values * n_below.sum() / len(values)
        of_blocks = np.sqrt(n_blocks / (n_blocks - 1) * (apart**2).sum()) / len(values)
        # Blocks that happen to be alike do not tell more than independent values would.
        error = max(of_blocks, np.sqrt(p * (1 - p) / len(values)))
        ends = np.array([p - t * error, p + t * error])
        inside = (ends >= 0) & (ends <= 1)
        found[place, inside] = np.quantile(values, ends[inside])
    return found


INTERVAL_COLUMNS = [
    end_column(f"{statistic}_{metric.name}", end)
    for metric in LATENCIES
    for statistic in PERCENTILES
    for end in ENDS
]
_SCHEMA = pa.schema(
    [("cell", pa.int64()), ("level", pa.float64())]
    + [(name, pa.float64()) for name in INTERVAL_COLUMNS]
)


def interval_rows(database: duckdb.DuckDBPyConnection, requests: str) -> pa.Table:
    """Return `cell, level` and `INTERVAL_COLUMNS`, null where an end is not known.

    `requests` is a relation as that of `metrics.points_query`.
    """
    latencies = ", ".join(f"{metric.sql} AS {metric.name}" for metric in LATENCIES)
    found = database.sql(
        f"""SELECT cell, level, {latencies} FROM {requests} WHERE status = 'ok'
        ORDER BY cell, level, last_token_s, start_s, input_tokens, output_tokens"""
    ).to_arrow_table()
    keys = [found[name].to_numpy() for name in ("cell", "level")]
    is_new = np.logical_or(*(key[1:] != key[:-1] for key in keys))
    starts = [0, *(np.flatnonzero(is_new) + 1)] if len(found) else []
    levels = [
        found.slice(start, end - start)
        for start, end in zip(starts, [*starts[1:], len(found)], strict=False)
    ]
    return pa.Table.from_pylist([_row(level) for level in levels], schema=_SCHEMA)


def _row(level: pa.Table) -> dict[str, Any]:
    row = {name: level[name][0].as_py() for name in ("cell", "level")}
    found: list[float | None] = []
    for metric in LATENCIES:
        column = level[metric.name].combine_chunks().drop_null()
        sizes, values = np.ones(len(column), int), column
        if pa.types.is_list(column.type):
            sizes, values = column.value_lengths().to_numpy(), column.flatten()
        ends = intervals(values.to_numpy(zero_copy_only=False), sizes)
        found += [None if np.isnan(end) else end for end in ends.ravel().tolist()]
    return row | dict(zip(INTERVAL_COLUMNS, found, strict=True))
