"""Percentiles of latencies: how columns name them, and how one is estimated from another."""

from statistics import NormalDist

PERCENTILE_PREFIX = {50: "median", 90: "p90", 95: "p95", 99: "p99"}
"""How the columns of a `point` name a percentile."""
ENDS = ("lo", "hi")
"""Of the 90% interval of a latency, measured or predicted."""

_TTFT = {50: 1.0, 90: 1.65, 95: 1.91, 99: 2.51}
_TIMES_MEDIAN = {
    "ttft_ms": _TTFT,
    "nttft_ms": _TTFT,
    "itl_ms": {50: 1.0, 90: 1.17, 95: 1.43, 99: 2.50},
}
"""Percentiles of a first-token and a per-token latency, as multiples of their median.

Medians over the points of sources that publish both. First token: TTFT of LLM-Pilot's
characterization (528 points; its p95 interpolated as `between` does). Per token: ITL of the
ML.ENERGY leaderboard, task lm-arena-chat (vLLM 0.11.1 on H100 and B200). TPOT, a mean over each
request, spreads less than ITL, so for it the factors err on the safe side.
"""


def end_column(column: str, end: str) -> str:
    """Return the column of an end of an interval, e.g. `p90_itl_lo_ms` of `p90_itl_ms`."""
    return f"{column.removesuffix('_ms')}_{end}_ms"


def factor(target: str, known: int, wanted: int) -> float:
    """Return by what to multiply a latency at the percentile `known` to estimate it at `wanted`.

    Args:
        target: `ttft_ms` or `nttft_ms` (first token), or `itl_ms` (per token).
        known: 50, 90, 95 or 99.
        wanted: the same.
    """
    return _TIMES_MEDIAN[target][wanted] / _TIMES_MEDIAN[target][known]


def between(low: int, high: int, wanted: int) -> float:
    """Return the weight of the percentile `high` in the logarithm of the one between it and `low`.

    Exact for a lognormal latency: its logarithm is linear in the normal quantile.
    """
    z = NormalDist().inv_cdf
    first, last, inside = (z(percentile / 100) for percentile in (low, high, wanted))
    return (inside - first) / (last - first)
