"""Queries of Prometheus over vLLM's metrics: what one reads, as a trigger, and the reverse.

A query is written so that reading it gives the trigger again: metric, labels, window, quantile and
how replicas are added up.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple, get_args

from sextant.simulate.scaling import Aggregate, Gauge, Metric, Trigger

METRICS: Mapping[str, Metric] = {
    "num_requests_waiting": "requests_waiting",
    "num_requests_running": "requests_running",
    "cache_usage_perc": "kv_used_fraction",
    "time_to_first_token_seconds": "ttft_s",
    "generation_tokens": "throughput_tok_s",
    "request_success": "request_rate_rps",
}
"""What each name of a vLLM metric measures."""
_WRITTEN: Mapping[Metric, tuple[str, ...]] = {
    "requests_waiting": ("vllm:num_requests_waiting",),
    "requests_running": ("vllm:num_requests_running",),
    "requests_in_flight": ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    "kv_used_fraction": ("vllm:kv_cache_usage_perc",),
    "ttft_s": ("vllm:time_to_first_token_seconds_bucket",),
    "throughput_tok_s": ("vllm:generation_tokens_total",),
    "request_rate_rps": ("vllm:request_success_total",),
}
"""The metrics whose sum is read."""
_AGGREGATES: Mapping[str, Aggregate] = {"sum": "sum", "avg": "mean", "max": "max"}
_FUNCTIONS: Mapping[Aggregate, str] = {name: function for function, name in _AGGREGATES.items()}
_UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
RATE_WINDOW_S = 60.0
"""Of a rate without a window."""
_SELECTED = re.compile(r"(vllm[:_]\w+)\s*(?:\{([^{}]*)\})?")
_WINDOW = re.compile(r"\[([0-9]+)(ms|s|m|h)\]")
_QUANTILE = re.compile(r"histogram_quantile\(\s*([0-9.]*)\s*,")


class Unread(NamedTuple):
    """A query that is not simulated."""

    problem: str
    fix: str


class Reading(NamedTuple):
    """What a query reads."""

    metric: Metric
    aggregate: Aggregate
    window_s: float
    share: float
    """The quantile of a latency."""
    labels: tuple[str, ...]
    """The selector of each metric, without braces; empty: none has one."""

    def trigger(self, target: float, *, is_average: bool) -> Trigger:
        """Return the trigger with this target."""
        return Trigger(
            self.metric,
            target,
            is_average,
            self.aggregate,
            self.window_s,
            self.share,
            self.labels,
        )


def read_query(query: str) -> Reading | Unread:
    """Return what a query, or a metric's name, reads of vLLM."""
    selected = [(name, labels.strip(" ,")) for name, labels in _SELECTED.findall(query)]
    metrics = [(_metric_of(name), labels) for name, labels in selected]
    by_metric = {metric: labels for metric, labels in metrics if metric is not None}
    is_sum = sorted(by_metric) == ["requests_running", "requests_waiting"]
    rest = _SELECTED.sub(" ", query)
    functions = set(re.findall(r"\w+", _QUANTILE.sub(" ", rest)))
    rest = _QUANTILE.sub(" ", _WINDOW.sub(" ", rest))
    rest = re.sub(r"\b(by|without)\s*\([^)]*\)", " ", rest)
    rest = re.sub(r"\b(sum|avg|max|rate|avg_over_time)\b|[\s(),]", "", rest)
    is_other = len(metrics) != len(by_metric) or rest != "+" * is_sum
    if is_other or (len(by_metric) != 1 and not is_sum):
        known = ", ".join(f"vllm:{name}" for name in METRICS)
        fix = f"use one of {known}, or running + waiting; or give replicas over time as .csv"
        return Unread(f"{query!r} is not simulated", fix)

    metric: Metric = "requests_in_flight" if is_sum else next(iter(by_metric))
    order: tuple[Metric, ...] = ("requests_running", "requests_waiting") if is_sum else (metric,)
    labels = tuple(by_metric[name] for name in order)
    reading = Reading(
        metric,
        _aggregate_of(query, metric),
        _window_of(query, metric),
        0.5,
        labels if any(labels) else (),
    )
    return _with_quantile(query, _checked(query, reading, functions))


def query_of(trigger: Trigger) -> str:
    """Return the query of Prometheus whose value a trigger looks at."""
    names = _WRITTEN[trigger.metric]
    selectors = trigger.labels or ("",) * len(names)
    parts = [
        f"{name}{{{labels}}}" if labels else name
        for name, labels in zip(names, selectors, strict=True)
    ]
    window = _window_words(trigger.window_s)
    if trigger.metric == "ttft_s":
        rate = f"sum by (le) (rate({parts[0]}[{window}]))"
        return f"histogram_quantile({trigger.share:g}, {rate})"
    if trigger.metric not in get_args(Gauge):
        return f"sum(rate({parts[0]}[{window}]))"
    if trigger.window_s:
        parts = [f"avg_over_time({part}[{window}])" for part in parts]
    function = _FUNCTIONS[trigger.aggregate]
    if trigger.aggregate == "sum":
        return " + ".join(f"sum({part})" for part in parts)
    return f"{function}({' + '.join(parts)})"


def with_labels(trigger: Trigger, selector: str) -> Trigger:
    """Return a trigger that looks at the servers of a selector, unless it names others."""
    return (
        trigger
        if trigger.labels
        else trigger._replace(labels=(selector,) * len(_WRITTEN[trigger.metric]))
    )


def _metric_of(name: str) -> Metric | None:
    return next((metric for part, metric in METRICS.items() if part in name), None)


def _aggregate_of(query: str, metric: Metric) -> Aggregate:
    """Return how replicas are added up; a latency and a rate are of all replicas."""
    first = re.match(r"\s*(avg|max)\b", query)
    return _AGGREGATES[first[1]] if first and metric in get_args(Gauge) else "sum"


def _window_of(query: str, metric: Metric) -> float:
    """Return the window in s; 0: the value of the moment."""
    match = _WINDOW.search(query)
    window_s = float(match[1]) * _UNITS_S[match[2]] if match else 0.0
    return window_s if metric in get_args(Gauge) else window_s or RATE_WINDOW_S


def _checked(query: str, reading: Reading, functions: set[str]) -> Reading | Unread:
    """Return the reading, unless Prometheus computes something else than is simulated."""
    is_gauge = reading.metric in get_args(Gauge)
    has_window = _WINDOW.search(query) is not None
    if is_gauge and "rate" in functions:
        fix = "use avg_over_time, or the value of the moment"
        return Unread(f"{query!r}: the rate of a gauge is no mean", fix)
    if is_gauge and has_window != ("avg_over_time" in functions):
        return Unread(f"{query!r}: a window of a gauge needs avg_over_time", "write both")
    if is_gauge and has_window and reading.aggregate == "max":
        return Unread(f"{query!r}: the largest of means is not simulated", "use sum or avg")
    is_rate = reading.metric in ("throughput_tok_s", "request_rate_rps")
    if is_rate and functions & {"avg", "max"}:
        fix = "use sum, and metricType AverageValue for a target of each replica"
        return Unread(f"{query!r}: the mean or the largest rate is not simulated", fix)
    return reading


def _with_quantile(query: str, reading: Reading | Unread) -> Reading | Unread:
    """Return the reading with the quantile that the query names."""
    match = _QUANTILE.search(query)
    if match is None or isinstance(reading, Unread):
        return reading
    if reading.metric != "ttft_s":
        fix = "leave histogram_quantile out: it is for histograms, as of TTFT"
        return Unread(f"{query!r}: no histogram has this metric", fix)
    try:
        share = float(match[1])
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        return Unread(f"{match[1]} in {query!r} is no quantile", "give one from 0 to 1, e.g. 0.95")
    return reading._replace(share=share)


def _window_words(window_s: float) -> str:
    """Return a window as Prometheus has it, e.g. 1m, 30s or 1500ms."""
    milliseconds = round(1e3 * window_s)
    if milliseconds % 1000:
        return f"{milliseconds}ms"
    seconds = milliseconds // 1000
    return f"{seconds // 60}m" if seconds and not seconds % 60 else f"{seconds}s"
