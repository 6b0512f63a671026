"""Each metric's formula and names in one place; intervals of percentiles, and doubts about points.

docs/benchmarking.md explains the formulas; the store computes from the table here.

An interval is Woodruff's (Journal of the American Statistical Association 47, 1952, page 635): the
share of values at or below the percentile is a mean, whose error is estimated by batch means over
blocks of successive requests, and its ends are read back from the values. Tokens of a request, and
requests that were served together, are not independent: so whole blocks of them are counted.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sextant.base.errors import InputError
from sextant.base.files import Row, group_by
from sextant.experiment.scenarios import level_to_json
from sextant.facts.slo import ENDS, end_column

if TYPE_CHECKING:  # the load client does without
    import duckdb
    import pyarrow as pa

PERCENTILES = {"median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}  # of the store's columns
STATISTICS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}  # besides the mean
SHOWN = {"ttft_ms": "TTFT, ms", "itl_ms": "ITL, ms", "tpot_ms": "TPOT, ms", "e2e_ms": "E2E, ms"}
"""The latencies of these tables, and their labels."""
N_BLOCKS = 10  # few enough that a block of a small run still has some tokens
CONFIDENCE = 0.9


class Metric(NamedTuple):
    """A latency of a request, or of each gap between tokens."""

    name: str  # column suffix, with its unit
    label: str
    sql: str
    """DuckDB expression over the columns of `requests.parquet`; a list of one value per token.

    `start_s` is `sent_s` of a closed loop, else `scheduled_s`: users wait for their answers, so a
    closed loop has no schedule. Otherwise what a request waited before it was sent counts: for a
    place under a cap, or for a client that was late."""


# To the clock's nanosecond: 0.162 s after another time are 162 ms, not 162.00000000000003.
_TTFT_SQL, _E2E_SQL = (
    f"round(({end} - start_s) * 1000, 6)" for end in ("first_token_s", "last_token_s")
)
# Pooled over all requests; the first token, which TTFT measures, opens no gap. Doubles: a
# difference of two 32-bit floats would lose digits it has.
_GAPS_SQL = """list_transform(range(2, len(token_offsets_ms) + 1),
    lambda i: token_offsets_ms[i]::DOUBLE - token_offsets_ms[i - 1]::DOUBLE)"""
LATENCIES = (
    Metric("ttft_ms", "TTFT", _TTFT_SQL),
    Metric("nttft_ms", "nTTFT", f"{_TTFT_SQL} / input_tokens"),
    Metric("itl_ms", "ITL", _GAPS_SQL),
    Metric("tpot_ms", "TPOT", f"({_E2E_SQL} - {_TTFT_SQL}) / nullif(output_tokens - 1, 0)"),
    Metric("e2e_ms", "E2E", _E2E_SQL),
)
_MEANS = ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms")  # latencies that have a mean, too
REQUEST_COLUMNS = (
    *("level", "first_token_s", "last_token_s", "token_offsets_ms"),
    *("input_tokens", "output_tokens", "status"),
)
"""What the formulas read of `requests.parquet`, besides `start_s`."""


def points_query(requests: str, levels: str) -> str:
    """Return the query that summarises requests to one row per cell and level.

    `requests` is a relation of `cell`, `start_s` and `REQUEST_COLUMNS`, `levels` one of `cell,
    level, duration_s`. Failed requests are counted and enter no latency.
    """
    selected = []
    computed = []
    joined = []
    for name, _, sql in LATENCIES:
        value = f"unnest({sql})" if name == "itl_ms" else sql
        mean = f", avg(value) AS mean_{name}" if name in _MEANS else ""
        # All quantiles of a metric at once: its values are gathered and sorted only once.
        computed.append(
            f"""{name}_values AS (
            SELECT cell, level, {value} AS value FROM requests WHERE status = 'ok'),
        {name} AS (
            SELECT cell, level, quantile_cont(value, {[*PERCENTILES.values()]}) AS {name}{mean}
            FROM {name}_values GROUP BY cell, level)"""
        )
        selected += [
            f"{name}[{number}] AS {statistic}_{name}"
            for number, statistic in enumerate(PERCENTILES, 1)
        ]
        joined.append(f"LEFT JOIN {name} USING (cell, level)")
    # Mean lengths are of the successful requests of a point; null without any.
    return f"""
    WITH requests AS (FROM {requests}), {", ".join(computed)},
        counts AS (SELECT cell, level, any_value(duration_s) AS duration_s,
            count(*) FILTER (status = 'ok') AS n_ok,
            count(*) FILTER (status != 'ok') AS n_failed,
            coalesce(sum(output_tokens) FILTER (status = 'ok'), 0) / duration_s
                AS throughput_tok_s,
            count(*) FILTER (status = 'ok') / duration_s AS request_rate_rps,
            avg(input_tokens) FILTER (status = 'ok') AS mean_input_tokens,
            avg(output_tokens) FILTER (status = 'ok') AS mean_output_tokens
            FROM {levels} LEFT JOIN requests USING (cell, level)
            GROUP BY cell, level, duration_s)
    SELECT cell, level, n_ok, n_failed, duration_s, throughput_tok_s, request_rate_rps,
        mean_input_tokens, mean_output_tokens, {", ".join(selected)},
        {", ".join(f"mean_{name}" for name in _MEANS)}
    FROM counts {" ".join(joined)}"""


def interval_rows(database: "duckdb.DuckDBPyConnection", requests: str) -> "pa.Table":
    """Return the intervals of each cell and level; null: unknown.

    `requests` are as of `points_query`.
    """
    import pyarrow as pa

    names = [
        end_column(f"{statistic}_{metric.name}", end)
        for metric in LATENCIES
        for statistic in PERCENTILES
        for end in ENDS
    ]
    types = {"cell": pa.int64()} | dict.fromkeys(("level", *names), pa.float64())
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
        bounds: list[float | None] = []
        for metric in LATENCIES:
            column = level[metric.name].combine_chunks().drop_null()
            sizes = np.ones(len(column), int)
            values = column
            if pa.types.is_list(column.type):
                sizes = column.value_lengths().to_numpy()
                values = column.flatten()
            ends = metric_intervals(values.to_numpy(zero_copy_only=False), sizes)
            bounds += [None if np.isnan(bound) else bound for bound in ends.ravel().tolist()]
        row = {name: level[name][0].as_py() for name in ("cell", "level")}
        rows.append(row | dict(zip(names, bounds, strict=True)))
    return pa.Table.from_pylist(rows, schema=pa.schema(types))


def metric_intervals(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the ends of the 90% intervals of `PERCENTILES`, shape (percentiles, 2).

    `values` are of all requests, in the order in which the requests ended; `sizes` are the numbers
    of values of each request. An end is NaN where too few values bound it: a median needs 6
    requests, the upper end of p90 about 50, of p95 100, of p99 500.
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


def statistics(values: np.ndarray) -> dict[str, float | None]:
    """Return mean and `STATISTICS` of the values that are not NaN; None without any."""
    values = values[~np.isnan(values)]
    if not len(values):
        return dict.fromkeys(("mean", *STATISTICS))
    quantiles = np.quantile(values, list(STATISTICS.values())).tolist()
    return {"mean": float(values.mean()), **dict(zip(STATISTICS, quantiles, strict=True))}


def meets_limits(
    latencies_ms: Mapping[str, np.ndarray], limits_ms: Mapping[str, float]
) -> np.ndarray:
    """Return whether each request meets all limits; InputError: requests lack a limited latency."""
    is_met: np.ndarray = ~np.isnan(latencies_ms["e2e_ms"])
    for name, limit in limits_ms.items():
        if name not in latencies_ms:
            fix = f"give limits of {', '.join(latencies_ms)}"
            raise InputError(f"a request has no {name} of its own", field=name, fix=fix)
        is_met &= ~(latencies_ms[name] > limit)
    return is_met


POINT_LABELS = {
    "llm_id": "LLM",
    "gpu_profile_id": "GPU profile",
    "workload_id": "Workload",
    "scenario_id": "Scenario",
    "variant_id": "Variant",
    "batch_weight_tokens": "Batch weight (tokens)",
    "n_ok": "Requests",
    "n_failed": "Failed",
    "throughput_tok_s": "Output tokens/s",
    "request_rate_rps": "Requests/s",
    "mean_input_tokens": "Input tokens, mean",
    "mean_output_tokens": "Output tokens, mean",
    "energy_per_output_token_j": "Energy per output token (J)",
    "energy_per_request_j": "Energy per request (J)",
} | {
    f"{statistic}_{name}": f"{label}, {statistic} "
    + ("(ms/token)" if name == "nttft_ms" else "(ms)")
    for name, label, _ in LATENCIES
    for statistic in (*PERCENTILES, "mean")
}
"""What pages call the columns of points, with their units."""
SETTING = ("source", "workload_id", "scenario_id", "variant_id")  # of points in one figure
SHAPING_FRACTION = 0.1  # a lag (p99) above this share of a latency may have shaped it
FEW_REQUESTS = 20  # with fewer successful requests even a median is rough
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
    "n_other_processes": "Other processes used the same GPUs, so the latencies are partly theirs",
}
"""What makes a point doubtful, by the column that shows it."""


def doubts(point: Row) -> set[str]:
    """Return the columns that make a point doubtful, keys of `WARNINGS`."""

    def ratio(name: str, of: str) -> float:
        return np.nan if point[name] is None or not point[of] else point[name] / point[of]

    off_server = abs(ratio("mean_itl_ms", "server_mean_itl_ms") - 1)
    is_doubtful = {
        "n_failed": bool(point["n_failed"]),
        "n_ok": point["n_ok"] is not None and point["n_ok"] < FEW_REQUESTS,
        "client_lag_p99_ms": ratio("client_lag_p99_ms", "median_itl_ms") > SHAPING_FRACTION,
        "send_lag_p99_ms": ratio("send_lag_p99_ms", "median_ttft_ms") > SHAPING_FRACTION,
        "mean_itl_ms": off_server > SHAPING_FRACTION or point["median_itl_ms"] == 0,
        # Stores from before this column lack it.
        "n_other_processes": (point.get("n_other_processes") or 0) > 0,
    }
    return {column for column, doubtful in is_doubtful.items() if doubtful}


def warnings(points: Sequence[Row]) -> list[Row]:
    """Return `column, text, n_points, places` for each doubt; `places` are cells and `levels`."""
    rows = []
    key = ("llm_id", "gpu_profile_id", *SETTING, "scenario_kind")
    for column, text in WARNINGS.items():
        doubtful = [point for point in points if column in doubts(point)]
        cells = [
            dict(zip(key, ids, strict=True))
            | {"levels": [level_to_json(point["level"]) for point in of_cell]}
            for ids, of_cell in group_by(doubtful, *key).items()
        ]
        if cells:
            row = {"column": column, "text": text, "n_points": len(doubtful), "places": cells}
            rows.append(row)
    return rows
