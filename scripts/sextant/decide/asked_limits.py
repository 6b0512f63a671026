"""What a target asks of the latencies of requests at a steady rate, limit by limit."""

from collections.abc import Mapping, Sequence

import numpy as np

from sextant.decide.windows import ServingResults, Target, histogram_quantile, per_request_ms
from sextant.facts.slo import Limit

_MEDIAN = 50

Asked = tuple[Mapping[str, Limit], float]
"""Limits, and the percentile of a request's largest latency over its limit that has to keep."""


def asked_of(target: Target) -> list[Asked]:
    """Return what a target asks of latencies: each limit, and with a goodput all at once."""
    asked: list[Asked] = [
        ({name: limit}, limit.percentile) for name, limit in target.limits.items()
    ]
    if target.goodput is not None:
        asked.append((target.limits, 100 * target.goodput))
    return asked


def is_smooth(target: Target) -> bool:
    """Return whether a surface can tell the latencies of a target.

    Percentiles of the gaps between tokens above the median jump where steps with a prompt become so
    frequent.
    """
    return "itl" not in target.limits or target.limits["itl"].percentile <= _MEDIAN


def unit_limits(asked: Sequence[Asked]) -> tuple[list[Asked], np.ndarray]:
    """Return what is asked with a largest limit of 1 ms each, and the largest limits, (asked,)."""
    units: list[Asked] = []
    largest_ms = [max(limit.limit_ms for limit in limits.values()) for limits, _ in asked]
    for (limits, percentile), most_ms in zip(asked, largest_ms, strict=True):
        scaled = {
            name: limit._replace(limit_ms=limit.limit_ms / most_ms)
            for name, limit in limits.items()
        }
        units.append((scaled, percentile))
    return units, np.array(largest_ms)


def shape_of(asked: Sequence[Asked]) -> object:
    """Return what a surface depends on: not the limits themselves, but their ratios."""
    units, _ = unit_limits(asked)
    return tuple((tuple(limits.items()), percentile) for limits, percentile in units)


def worst_of(result: ServingResults, limits: Mapping[str, Limit], percentile: float) -> float:
    """Return a percentile of requests' largest latency over its limit; of ITL alone, of gaps.

    NaN: all requests are refused.
    """
    if [*limits] == ["itl"]:
        counts = result.itl_counts.sum(axis=0, keepdims=True)
        (quantile_ms,) = histogram_quantile(result.itl_edges_ms, counts, percentile / 100)
        return float(quantile_ms / limits["itl"].limit_ms)
    names = {"tpot" if name == "itl" else name: limit for name, limit in limits.items()}
    by_name = per_request_ms(result, names)
    ratios = [values / names[name].limit_ms for name, values in by_name.items()]
    worst = np.fmax.reduce(ratios)[result.is_ok]
    worst = worst[~np.isnan(worst)]  # a request of one token has no TPOT
    if not len(worst):
        return np.nan
    return float(np.quantile(worst, percentile / 100, method="inverted_cdf"))
