"""A server and how to reach it; GET requests to it, and its Prometheus metrics."""

import http.client
import math
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

from sextant.base.network import host_and_port, tls_context


@dataclass(frozen=True)
class Target:
    """An OpenAI-compatible server."""

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    """Certificates (PEM) to trust for https in place of the system's."""
    path: str = "/v1/completions"
    """Where requests go, below the base URL."""

    def address(self) -> tuple[str, int, ssl.SSLContext | None]:
        """Return host, port and the TLS context (None for plain HTTP).

        Raises InputError: a URL of another kind, or no certificates in `ca_file`.
        """
        host, port = host_and_port(self.base_url)
        return host, port, self._tls if urlsplit(self.base_url).scheme == "https" else None

    @cached_property
    def head(self) -> bytes:
        """What every request to this server begins with; it holds the API key."""
        parts = urlsplit(self.base_url)
        lines = [
            f"POST {parts.path.rstrip('/')}{self.path} HTTP/1.1",
            f"Host: {parts.netloc}",
            "Content-Type: application/json",
        ]
        if self.api_key:
            lines.append(f"Authorization: Bearer {self.api_key}")
        return "\r\n".join(lines).encode() + b"\r\n"

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return tls_context(self.ca_file)


def get(
    base_url: str,
    path: str,
    api_key: str | None = None,
    *,
    ca_file: Path | None = None,
    timeout_s: float = 5.0,
) -> tuple[int | None, bytes]:
    """Return status and body of `path` below a base URL; None without a whole answer.

    No proxy and no redirect is followed: an API key goes nowhere else.
    """
    parts = urlsplit(base_url)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    connection = http.client.HTTPConnection(parts.netloc, timeout=timeout_s)
    if parts.scheme == "https":
        context = tls_context(ca_file)
        connection = http.client.HTTPSConnection(parts.netloc, timeout=timeout_s, context=context)
    try:
        connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):  # refused, timed out, or half an answer
        return None, b""
    finally:
        connection.close()


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
