"""Each metric's formula, unit and names, in one place: the store computes from this table."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sextant.base.errors import InputError
from sextant.experiment.scenarios import WITH_USERS_SQL

PERCENTILES = {"median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
"""Of the store's columns."""
STATISTICS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
"""Of tables of a load or a simulation, beside the mean."""
SHOWN = {"ttft_ms": "TTFT, ms", "itl_ms": "ITL, ms", "tpot_ms": "TPOT, ms", "e2e_ms": "E2E, ms"}
"""The latencies of these tables, and their labels."""

SHAPING_FRACTION = 0.1
"""A lag (p99) above this fraction of the latency that it adds to could have shaped it."""


@dataclass(frozen=True)
class Metric:
    """A latency of a request, or of each gap between tokens."""

    name: str
    """Column suffix, with its unit."""
    meaning: str
    formula: str
    """As a person reads it."""
    sql: str
    """DuckDB expression over the columns of `requests.parquet`; a list for one value a token."""
    vllm: str
    aiperf: str
    guidellm: str


def _ms_between(start: str, end: str) -> str:
    # To the clock's nanosecond: 0.162 s after another time are 162 ms, not 162.00000000000003.
    return f"round(({end} - {start}) * 1000, 6)"


LATENCIES = (
    Metric(
        "ttft_ms",
        "time to first token: queueing and prefill",
        "first_token_s − start_s, in ms",
        _ms_between("start_s", "first_token_s"),
        "ttft",
        "time_to_first_token",
        "time_to_first_token_ms",
    ),
    Metric(
        "nttft_ms",
        "TTFT per input token (LLM-Pilot, section III-C3)",
        "ttft_ms / input_tokens",
        f"{_ms_between('start_s', 'first_token_s')} / input_tokens",
        "none",
        "none",
        "none",
    ),
    Metric(
        "itl_ms",
        "gap between consecutive output tokens, pooled over all requests; the first token, "
        "which TTFT measures, opens no gap",
        "token_offsets_ms[i] − token_offsets_ms[i−1], i ≥ 2",
        # Doubles: a difference of two 32-bit floats would lose digits it has.
        "list_transform(range(2, len(token_offsets_ms) + 1), "
        "lambda i: token_offsets_ms[i]::DOUBLE - token_offsets_ms[i - 1]::DOUBLE)",
        "itl",
        "inter_token_latency (mean of each request)",
        "inter_token_latency_ms (mean of each request)",
    ),
    Metric(
        "e2e_ms",
        "whole request, until its last token",
        "last_token_s − start_s, in ms",
        _ms_between("start_s", "last_token_s"),
        "e2el",
        "request_latency",
        "request_latency",
    ),
)

TPOT_SQL = "(e2e_ms - ttft_ms) / nullif(output_tokens - 1, 0)"
"""Time per output token after the first, of the latencies above; null of a single token."""

START_FORMULA = "sent_s of a closed loop, else scheduled_s"
"""Users wait for their answers, so a closed loop has no schedule. Otherwise what a request
waited before it was sent counts: for a place under a cap, or for a client that was late."""
START_SQL = f"CASE WHEN {WITH_USERS_SQL} THEN sent_s ELSE scheduled_s END"

# Latencies whose mean is kept beside the quantiles.
MEANS = ("ttft_ms", "itl_ms", "e2e_ms")

# What the formulas read of `requests.parquet`, beside `start_s`.
REQUEST_COLUMNS = (
    "level",
    "first_token_s",
    "last_token_s",
    "token_offsets_ms",
    "input_tokens",
    "output_tokens",
    "status",
)

THROUGHPUT_FORMULA = "Σ output_tokens of ok requests / duration_s"
THROUGHPUT_SQL = "coalesce(sum(output_tokens) FILTER (status = 'ok'), 0) / duration_s"
REQUEST_RATE_FORMULA = "number of ok requests / duration_s"
REQUEST_RATE_SQL = "count(*) FILTER (status = 'ok') / duration_s"
# The lengths that the workload had at a point; null where nothing succeeded.
MEAN_LENGTHS_SQL = ", ".join(
    f"avg({name}) FILTER (status = 'ok') AS mean_{name}"
    for name in ("input_tokens", "output_tokens")
)


def points_query(requests: str, levels: str) -> str:
    """Return the query that summarises requests to one row a cell and level.

    `requests` is a relation of `cell`, `start_s` (`START_SQL`) and `REQUEST_COLUMNS`, `levels` one
    of `cell, level, duration_s`. Failed requests are counted and enter no latency.
    """
    selected, computed, joined = [], [], []
    for metric in LATENCIES:
        value = f"unnest({metric.sql})" if metric.name == "itl_ms" else metric.sql
        computed.append(
            f"{metric.name}_values AS (SELECT cell, level, {value} AS value FROM requests "
            "WHERE status = 'ok')"
        )
        # All quantiles of a metric at once: its values are gathered and sorted only once.
        mean = f", avg(value) AS mean_{metric.name}" if metric.name in MEANS else ""
        computed.append(
            f"{metric.name} AS (SELECT cell, level, "
            f"quantile_cont(value, {list(PERCENTILES.values())}) AS {metric.name}{mean} "
            f"FROM {metric.name}_values GROUP BY cell, level)"
        )
        selected += [
            f"{metric.name}[{number}] AS {statistic}_{metric.name}"
            for number, statistic in enumerate(PERCENTILES, 1)
        ]
        joined.append(f"LEFT JOIN {metric.name} USING (cell, level)")
    return f"""
    WITH requests AS (FROM {requests}), {", ".join(computed)},
        counts AS (SELECT cell, level, any_value(duration_s) AS duration_s,
            count(*) FILTER (status = 'ok') AS n_ok,
            count(*) FILTER (status != 'ok') AS n_failed,
            {THROUGHPUT_SQL} AS throughput_tok_s, {REQUEST_RATE_SQL} AS request_rate_rps,
            {MEAN_LENGTHS_SQL}
            FROM {levels} LEFT JOIN requests USING (cell, level)
            GROUP BY cell, level, duration_s)
    SELECT cell, level, n_ok, n_failed, duration_s, throughput_tok_s, request_rate_rps,
        mean_input_tokens, mean_output_tokens, {", ".join(selected)},
        {", ".join(f"mean_{name}" for name in MEANS)}
    FROM counts {" ".join(joined)}"""


def statistics(values: np.ndarray) -> dict[str, float | None]:
    """Return mean and `STATISTICS` of the values that are known, None where none is."""
    values = values[~np.isnan(values)]
    if not len(values):
        return dict.fromkeys(("mean", *STATISTICS))
    quantiles = np.quantile(values, list(STATISTICS.values())).tolist()
    return {"mean": float(values.mean()), **dict(zip(STATISTICS, quantiles, strict=True))}


def keeps(each_ms: Mapping[str, np.ndarray], limits_ms: Mapping[str, float]) -> np.ndarray:
    """Tell of each request whether it keeps all limits; one that is not known is kept.

    Raises InputError for a limit of another latency than those of `each_ms`.
    """
    are_kept = np.ones(len(each_ms["e2e_ms"]), bool)
    for name, limit in limits_ms.items():
        if name not in each_ms:
            fix = f"give limits of {', '.join(each_ms)}"
            raise InputError(f"a request has no {name} of its own", field=name, fix=fix)
        are_kept &= ~(each_ms[name] > limit)
    return are_kept


LATENCY_NAMES = {"ttft": "TTFT", "nttft": "nTTFT", "itl": "ITL", "e2e": "E2E"}
"""Names of `LATENCIES`, by the column's name without its unit."""
_UNITS = {"nttft_ms": "ms/token"}


def latency_label(column: str) -> str:
    """Return the label of a latency's column, e.g. `TTFT, median (ms)` of `median_ttft_ms`.

    Without a statistic, e.g. `itl_ms`, it is `ITL (ms)`.
    """
    statistic, _, metric = column.rpartition("_ms")[0].rpartition("_")
    of_statistic = f", {statistic}" if statistic else ""
    return f"{LATENCY_NAMES[metric]}{of_statistic} ({_UNITS.get(f'{metric}_ms', 'ms')})"


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
    column: latency_label(column)
    for metric in LATENCIES
    for column in (f"{statistic}_{metric.name}" for statistic in (*PERCENTILES, "mean"))
}
