"""Prometheus text: what servers and dcgm-exporter say of themselves."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from sextant.engine.http import get

_LABELS = r'\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\}'
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class MetricNames:
    """What an engine calls its metrics; None where it has none."""

    n_running: str
    n_waiting: str
    kv_cache_usage: str | None = None
    """A fraction."""
    n_preemptions: str | None = None
    itl_s: str | None = None
    """A histogram of the times between tokens."""


VLLM_METRICS = MetricNames(
    n_running="vllm:num_requests_running",
    n_waiting="vllm:num_requests_waiting",
    kv_cache_usage="vllm:kv_cache_usage_perc",
    n_preemptions="vllm:num_preemptions_total",
    itl_s="vllm:inter_token_latency_seconds",
)
# https://docs.sglang.io/references/production_metrics.html
SGLANG_METRICS = MetricNames(
    n_running="sglang:num_running_reqs",
    n_waiting="sglang:num_queue_reqs",
    kv_cache_usage="sglang:token_usage",
    itl_s="sglang:inter_token_latency_seconds",
)
# https://huggingface.co/docs/text-generation-inference/reference/metrics
TGI_METRICS = MetricNames(n_running="tgi_batch_current_size", n_waiting="tgi_queue_size")


def samples(text: str, name: str) -> list[tuple[dict[str, str], float]]:
    """Return a metric's label sets and values, without those that are not finite numbers."""
    pattern = rf"^{re.escape(name)}(?:{_LABELS})? +(\S+)"
    found = re.findall(pattern, text, flags=re.MULTILINE)
    values = [(dict(_LABEL.findall(labels)), _number(value)) for labels, value in found]
    return [(labels, value) for labels, value in values if math.isfinite(value)]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def total(text: str, name: str | None) -> float | None:
    """Return the sum of a metric over its label sets, None if the server has no such metric."""
    values = [value for _, value in samples(text, name)] if name else []
    return sum(values) if values else None


def server_gauges(text: str, known: Sequence[MetricNames]) -> dict[str, float | None]:
    """Return a server's queue and KV cache use, over its engines.

    `kv_cache_usage` is a fraction, hence the mean of the engines; the others are their sum. Of the
    `known` names the first whose number of running requests is in the text count.
    """
    names = _names_in(text, known)
    usage_name = names.kv_cache_usage
    usage = [value for _, value in samples(text, usage_name)] if usage_name else []
    return {
        "n_running": total(text, names.n_running),
        "n_waiting": total(text, names.n_waiting),
        "kv_cache_usage": sum(usage) / len(usage) if usage else None,
        "n_preemptions": total(text, names.n_preemptions),
    }


def mean_itl_ms(before: str, after: str, known: Sequence[MetricNames]) -> float | None:
    """Return the server's own mean inter-token latency between two readings of its metrics."""
    name = _names_in(after, known).itl_s
    if name is None:
        return None
    sum_before, sum_after = (total(text, f"{name}_sum") for text in (before, after))
    n_before, n_after = (total(text, f"{name}_count") for text in (before, after))
    if sum_before is None or sum_after is None or n_before is None or n_after is None:
        return None
    return (sum_after - sum_before) / (n_after - n_before) * 1e3 if n_after > n_before else None


def _names_in(text: str, known: Sequence[MetricNames]) -> MetricNames:
    return next((names for names in known if samples(text, names.n_running)), known[0])


def fetch(base_url: str, timeout_s: float = 5.0) -> str:
    """Return the text of `/metrics`; raises `OSError` without a whole answer."""
    status, content = get(base_url, "/metrics", timeout_s=timeout_s)
    if status != 200:
        raise ConnectionError(f"no metrics from {base_url}: {status or 'no whole answer'}")
    return content.decode(errors="replace")
