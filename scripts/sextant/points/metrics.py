"""Each metric's formula, unit and names, in one place: the store computes from this table."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sextant.base.errors import InputError

PERCENTILES = {"median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
"""Of the store's columns."""
STATISTICS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
"""Of tables of a load or a simulation, besides the mean."""
SHOWN = {"ttft_ms": "TTFT, ms", "itl_ms": "ITL, ms", "tpot_ms": "TPOT, ms", "e2e_ms": "E2E, ms"}
"""The latencies of these tables, and their labels."""

SHAPING_FRACTION = 0.1
"""A lag (p99) above this fraction of the latency that it adds to could have shaped it."""


@dataclass(frozen=True)
class Metric:
    """A latency of a request, or of each gap between tokens."""

    name: str
    """Column suffix, with its unit."""
    label: str
    meaning: str
    formula: str
    sql: str
    """DuckDB expression over the columns of `requests.parquet`; a list of one value per token."""


def _ms_between(start: str, end: str) -> str:
    # To the clock's nanosecond: 0.162 s after another time are 162 ms, not 162.00000000000003.
    return f"round(({end} - {start}) * 1000, 6)"


_TTFT_SQL = _ms_between("start_s", "first_token_s")
_E2E_SQL = _ms_between("start_s", "last_token_s")
LATENCIES = (
    Metric(
        name="ttft_ms",
        label="TTFT",
        meaning="time to first token: queueing and prefill",
        formula="first_token_s − start_s, in ms",
        sql=_TTFT_SQL,
    ),
    Metric(
        name="nttft_ms",
        label="nTTFT",
        meaning="TTFT per input token (LLM-Pilot, section III-C3)",
        formula="ttft_ms / input_tokens",
        sql=f"{_TTFT_SQL} / input_tokens",
    ),
    Metric(
        name="itl_ms",
        label="ITL",
        meaning="gap between consecutive output tokens, pooled over all requests; the first token, "
        "which TTFT measures, opens no gap",
        formula="token_offsets_ms[i] − token_offsets_ms[i−1], i ≥ 2",
        # Doubles: a difference of two 32-bit floats would lose digits it has.
        sql="list_transform(range(2, len(token_offsets_ms) + 1), "
        "lambda i: token_offsets_ms[i]::DOUBLE - token_offsets_ms[i - 1]::DOUBLE)",
    ),
    Metric(
        name="tpot_ms",
        label="TPOT",
        meaning="time per output token after the first, one value a request; none of a single "
        "token",
        formula="(e2e_ms − ttft_ms) / (output_tokens − 1)",
        sql=f"({_E2E_SQL} - {_TTFT_SQL}) / nullif(output_tokens - 1, 0)",
    ),
    Metric(
        name="e2e_ms",
        label="E2E",
        meaning="whole request, until its last token",
        formula="last_token_s − start_s, in ms",
        sql=_E2E_SQL,
    ),
)

START_FORMULA = "sent_s of a closed loop, else scheduled_s"
"""Users wait for their answers, so a closed loop has no schedule. Otherwise what a request
waited before it was sent counts: for a place under a cap, or for a client that was late."""

MEANS = ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms")
"""Latencies of which the mean is computed, too."""
REQUEST_COLUMNS = (
    *("level", "first_token_s", "last_token_s", "token_offsets_ms"),
    *("input_tokens", "output_tokens", "status"),
)
"""What the formulas read of `requests.parquet`, besides `start_s`."""

THROUGHPUT_FORMULA = "Σ output_tokens of ok requests / duration_s"
REQUEST_RATE_FORMULA = "number of ok requests / duration_s"


def points_query(requests: str, levels: str) -> str:
    """Return the query that summarises requests to one row per cell and level.

    `requests` is a relation of `cell`, `start_s` (see `START_SQL`) and `REQUEST_COLUMNS`, `levels`
    one of `cell, level, duration_s`. Failed requests are counted and enter no latency.
    """
    selected, computed, joined = [], [], []
    for metric in LATENCIES:
        name = metric.name
        value = f"unnest({metric.sql})" if name == "itl_ms" else metric.sql
        mean = f", avg(value) AS mean_{name}" if name in MEANS else ""
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
    # Mean lengths are those that the workload had at a point; null where nothing succeeded.
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
        {", ".join(f"mean_{name}" for name in MEANS)}
    FROM counts {" ".join(joined)}"""


def statistics(values: np.ndarray) -> dict[str, float | None]:
    """Return mean and `STATISTICS` of the values that are known, None where none is."""
    values = values[~np.isnan(values)]
    if not len(values):
        return dict.fromkeys(("mean", *STATISTICS))
    quantiles = np.quantile(values, list(STATISTICS.values())).tolist()
    return {"mean": float(values.mean()), **dict(zip(STATISTICS, quantiles, strict=True))}


def meets_limits(each_ms: Mapping[str, np.ndarray], limits_ms: Mapping[str, float]) -> np.ndarray:
    """Return whether each request meets all limits: a request without tokens meets none, one
    of a single token has no time per token to miss.

    Raises InputError for a limit of another latency than those of `each_ms`.
    """
    is_met: np.ndarray = ~np.isnan(each_ms["e2e_ms"])
    for name, limit in limits_ms.items():
        if name not in each_ms:
            fix = f"give limits of {', '.join(each_ms)}"
            raise InputError(f"a request has no {name} of its own", field=name, fix=fix)
        is_met &= ~(each_ms[name] > limit)
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
    f"{statistic}_{metric.name}": f"{metric.label}, {statistic} "
    + ("(ms/token)" if metric.name == "nttft_ms" else "(ms)")
    for metric in LATENCIES
    for statistic in (*PERCENTILES, "mean")
}
"""What pages call the columns of points, with their units."""
