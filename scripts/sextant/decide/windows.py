"""What has to hold in every window of time, and whether the results of requests do."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from sextant.base.errors import InputError
from sextant.facts.slo import MAX_FAILED, Limit

WINDOW_S = 300.0


@dataclass(frozen=True)
class Target:
    """What replicas have to meet. Raises InputError for a wrong share or window."""

    limits: Mapping[str, Limit]  #: By metric, as `SLO.limits`.
    goodput: float | None = None
    """Least share of the requests that are answered within all limits."""
    max_failed: float = MAX_FAILED
    """Largest share of the requests that are refused or time out."""
    window_s: float | None = WINDOW_S
    """Each window of this length is judged by itself; None judges the whole time at once."""

    def __post_init__(self) -> None:
        for name, low in (("goodput", 0.0), ("max_failed", -1e-12)):
            value = getattr(self, name)
            if value is not None and not low < value <= 1:
                fix = "give a share of the requests, from 0 to 1, e.g. 0.99"
                raise InputError(f"{value:g} is not a share", field=name, fix=fix)
        if self.window_s is not None and not 1 <= self.window_s < np.inf:
            fix = "give seconds from 1 on, e.g. 5min, or whole"
            raise InputError(f"{self.window_s:g} s is not a window", field="window", fix=fix)

    def facts(self) -> dict[str, Any]:
        """Return everything but the limits, for an answer."""
        return {field.name: getattr(self, field.name) for field in fields(self)[1:]}


class ServingResults(NamedTuple):
    """Results of requests, in the order of their arrival."""

    arrival_s: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    ttft_s: np.ndarray
    e2e_s: np.ndarray
    is_ok: np.ndarray
    itl_edges_ms: np.ndarray  #: Ends of the bins of the gaps between tokens, shape (bins + 1,).
    itl_counts: np.ndarray  #: Gaps in each window of time, shape (windows or 1, bins).


class Judged(NamedTuple):
    """Results by window. A window without requests is met; its latencies are NaN."""

    start_s: np.ndarray
    n_requests: np.ndarray
    n_failed: np.ndarray
    latencies_ms: dict[str, np.ndarray]
    """Of answered requests, by metric, at the percentile of its limit."""
    is_met: np.ndarray

    @property
    def n_missed(self) -> int:
        """Windows in which the target was missed."""
        return int((~self.is_met).sum())

    def at(self, windows: np.ndarray) -> "Judged":
        """Return the results of these windows, by their numbers."""
        latencies_ms = {name: values[windows] for name, values in self.latencies_ms.items()}
        columns = (self.start_s, self.n_requests, self.n_failed)
        start_s, n_requests, n_failed = (column[windows] for column in columns)
        return Judged(start_s, n_requests, n_failed, latencies_ms, self.is_met[windows])

    def worst_ratio(self, target: Target) -> dict[str, float]:
        """Return the largest latency over its limit, by metric; 0 where nothing was answered."""
        return {
            name: float(np.nanmax(values, initial=0.0)) / target.limits[name].limit_ms
            for name, values in self.latencies_ms.items()
        }


def judge_windows(outcome: ServingResults, target: Target, n_windows: int) -> Judged:
    """Judge each window by the requests that arrive in it, and by the gaps that end in it."""
    window_s = target.window_s or np.inf
    starts = np.arange(n_windows) * (window_s if n_windows > 1 else 1.0)
    ends = np.searchsorted(outcome.arrival_s, np.append(starts[1:], np.inf))
    begins = np.append(0, ends[:-1])

    def count(flags: np.ndarray) -> Any:
        reached = np.append(0, np.cumsum(flags))
        return reached[ends] - reached[begins]

    n_requests = ends - begins
    n_failed = n_requests - count(outcome.is_ok)
    is_met = n_failed <= target.max_failed * n_requests
    latencies_ms = {}
    requests_ms = per_request_ms(outcome, target.limits)
    for name, limit in target.limits.items():
        share = limit.percentile / 100
        windows_ms = np.full(n_windows, np.nan)
        if name == "itl":
            has_any = outcome.itl_counts.any(axis=1)
            counts = outcome.itl_counts[has_any]
            quantiles_ms = histogram_quantile(outcome.itl_edges_ms, counts, share)
            windows_ms[np.broadcast_to(has_any, n_windows)] = quantiles_ms
        else:
            answered_ms = np.where(outcome.is_ok, requests_ms[name], np.nan)
            for window, (begin, end) in enumerate(zip(begins, ends, strict=True)):
                values = answered_ms[begin:end]
                if (values := values[~np.isnan(values)]).size:
                    windows_ms[window] = np.quantile(values, share, method="inverted_cdf")
        latencies_ms[name] = windows_ms
        is_met &= ~(windows_ms > limit.limit_ms)
    if target.goodput is not None:
        share_good = count(are_good(outcome, target)) / np.maximum(n_requests, 1)
        is_met &= (share_good >= target.goodput) | (n_requests == 0)
    return Judged(starts, n_requests, n_failed, latencies_ms, is_met)


def are_good(outcome: ServingResults, target: Target) -> np.ndarray:
    """Return which requests were answered within all limits; ITL is a request's mean gap."""
    limits_ms = {name: limit.limit_ms for name, limit in target.limits.items()}
    if "itl" in limits_ms:
        limits_ms["tpot"] = min(limits_ms.pop("itl"), limits_ms.get("tpot", np.inf))
    is_good = outcome.is_ok.copy()
    for name, values in per_request_ms(outcome, limits_ms).items():
        is_good &= ~(values > limits_ms[name])
    return is_good


def per_request_ms(outcome: ServingResults, names: Container[str]) -> dict[str, np.ndarray]:
    """Return each request's latencies of these names, in ms; NaN: one token has no TPOT."""
    ttft = 1e3 * outcome.ttft_s
    e2e = 1e3 * outcome.e2e_s
    later = np.where(outcome.output_tokens > 1, outcome.output_tokens - 1, np.nan)
    latencies_ms = {
        "ttft": ttft,
        "nttft": ttft / outcome.input_tokens,
        "tpot": (e2e - ttft) / later,
        "e2e": e2e,
    }
    return {name: values for name, values in latencies_ms.items() if name in names}


def histogram_quantile(edges: np.ndarray, counts: np.ndarray, share: float) -> np.ndarray:
    """Return a quantile of each row of counts, NaN for an empty row.

    Within its bin the quantile is interpolated on the logarithm: bins are narrow and positive.
    """
    reached = np.cumsum(counts, axis=1)
    total = reached[:, -1]
    wanted = share * total
    bins = np.minimum((reached < wanted[:, None]).sum(axis=1), counts.shape[1] - 1)
    rows = np.arange(len(counts))
    inside = counts[rows, bins]
    before = reached[rows, bins] - inside
    part = np.divide(wanted - before, inside, out=np.zeros(len(counts)), where=inside > 0)
    low = np.log(edges[bins])
    high = np.log(edges[bins + 1])
    return np.where(total > 0, np.exp(low + part * (high - low)), np.nan)
