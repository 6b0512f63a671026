"""Prometheus text: what vLLM and dcgm-exporter say of themselves."""

import http.client
import math
import re
import urllib.request

_LABELS = r'\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\}'
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ITL = "vllm:inter_token_latency_seconds"
# A server beside us is not to be sought behind the cluster's proxy.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def samples(text: str, name: str) -> list[tuple[dict[str, str], float]]:
    """Return a metric's label sets and values; what is no finite number is left out."""
    pattern = rf"^{re.escape(name)}(?:{_LABELS})? +(\S+)"
    found = re.findall(pattern, text, flags=re.MULTILINE)
    values = [(dict(_LABEL.findall(labels)), _number(value)) for labels, value in found]
    return [(labels, value) for labels, value in values if math.isfinite(value)]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def total(text: str, name: str) -> float | None:
    """Return the sum of a metric over its label sets, None if the server has no such metric."""
    values = [value for _, value in samples(text, name)]
    return sum(values) if values else None


def server_gauges(text: str) -> dict[str, float | None]:
    """Return what vLLM says of its queue and KV cache, over the engines of a server.

    `kv_cache_usage` is a fraction, hence the mean of the engines; the others are their sum.
    """
    usage = [value for _, value in samples(text, "vllm:kv_cache_usage_perc")]
    return {
        "n_running": total(text, "vllm:num_requests_running"),
        "n_waiting": total(text, "vllm:num_requests_waiting"),
        "kv_cache_usage": sum(usage) / len(usage) if usage else None,
        "n_preemptions": total(text, "vllm:num_preemptions_total"),
    }


def mean_itl_ms(before: str, after: str) -> float | None:
    """Return the server's own mean inter-token latency between two readings of its metrics."""
    readings = [
        (total(text, f"{_ITL}_sum"), total(text, f"{_ITL}_count")) for text in (before, after)
    ]
    if any(value is None for pair in readings for value in pair):
        return None
    (sum_before, n_before), (sum_after, n_after) = readings
    return (sum_after - sum_before) / (n_after - n_before) * 1e3 if n_after > n_before else None


def fetch(base_url: str, timeout_s: float = 5.0) -> str:
    """Return the text of `/metrics`.

    Raises:
        OSError: the server did not answer, or not in whole.
    """
    try:
        with _OPENER.open(f"{base_url}/metrics", timeout=timeout_s) as answer:
            return answer.read().decode(errors="replace")
    except http.client.HTTPException as error:  # half an answer of a server that dies
        raise ConnectionError(f"no metrics from {base_url}: {error!r}") from error
