"""A server and how to reach it; GET requests to it, and its Prometheus metrics."""

import math
import os
import re
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

import httptools

from sextant.base.errors import InputError
from sextant.base.network import host_and_port, tls_context, without_keys
from sextant.trace.metric_names import metric_sheet

GET_TIMEOUT_S = 5.0
MOST_METRICS_BYTES = 16 << 20


@dataclass(frozen=True)
class ServerAddress:
    """An OpenAI-compatible server."""

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    ca_file: Path | None = None  # certificates (PEM) to trust for https in place of the system's
    path: str = "/v1/completions"  # where requests go, below the base URL

    def address(self) -> tuple[str, int, ssl.SSLContext | None]:
        """Return host, port, TLS context (None: plain); InputError: a wrong URL or `ca_file`."""
        host, port = host_and_port(self.base_url)
        return host, port, self._tls

    @cached_property
    def _tls(self) -> ssl.SSLContext | None:
        return tls_context(self.ca_file) if urlsplit(self.base_url).scheme == "https" else None

    @cached_property
    def head(self) -> bytes:
        """What every request to this server begins with; it holds the API key."""
        return self.request("POST", self.path, "Content-Type: application/json")

    def request(self, method: str, path: str, header: str) -> bytes:
        """Return the head of a request with one more header, but for the line that ends it."""
        parts = urlsplit(self.base_url)
        request_line = f"{method} {parts.path.rstrip('/')}{path} HTTP/1.1"
        key = [f"Authorization: Bearer {self.api_key}"] if self.api_key else []
        return "\r\n".join([request_line, f"Host: {parts.netloc}", header, *key, ""]).encode()


def api_key_of(variable: str, field: str) -> str | None:
    """Return the API key that an environment variable holds, None if it is not set or empty. White
    space around it does not belong to it. Raises InputError for what no header can hold."""
    key = os.environ.get(variable, "").strip()
    if not all("!" <= letter <= "~" for letter in key):
        problem = "the API key holds spaces, control characters or letters beyond ASCII"
        raise InputError(problem, field=field, fix="set the variable to the key alone, on one line")
    return key or None


class _Answer:
    """What `httptools` calls while it parses the answer to a GET."""

    def __init__(self) -> None:
        self.body, self.is_whole = bytearray(), False
        self.may_end_with_connection = self._has_length = False
        self.parser = httptools.HttpResponseParser(self)

    def on_header(self, name: bytes, _: bytes) -> None:
        self._has_length |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self.may_end_with_connection = not self._has_length

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_whole = self.parser.get_status_code() >= 200  # 100 only announces another


def get(
    target: ServerAddress,
    path: str,
    *,
    timeout_s: float = GET_TIMEOUT_S,
    most_bytes: int = 64 << 10,
) -> tuple[int | None, str]:
    """Return status and body of `path` below a server's base URL, without its API key.

    Without a whole answer in these limits the status is None, and the body why, or empty. No proxy
    and no redirect: an API key goes nowhere else.
    """
    end_s = time.monotonic() + timeout_s
    answer = _Answer()
    n_bytes = 0
    host, port, tls = target.address()
    request = target.request("GET", path, "Connection: close") + b"\r\n"
    try:
        with (
            socket.create_connection((host, port), timeout_s) as plain,
            tls.wrap_socket(plain, server_hostname=host) if tls else plain as connection,
        ):
            connection.sendall(request)
            while not answer.is_whole and n_bytes <= most_bytes:
                connection.settimeout(max(end_s - time.monotonic(), 1e-3))
                data = connection.recv(most_bytes)
                n_bytes += len(data)
                if not data:
                    answer.is_whole = answer.may_end_with_connection
                    break
                answer.parser.feed_data(data)
    except OSError as error:  # refused, or too late
        return None, error.strerror or ""
    except (UnicodeError, httptools.HttpParserError):
        return None, ""
    if not answer.is_whole or n_bytes > most_bytes:
        return None, ""
    text = answer.body.decode(errors="replace")
    return answer.parser.get_status_code(), without_keys(text, [target.api_key])


_LABELS = r'\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\}'
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class MetricNames:
    """What an engine calls its metrics; None where it has none."""

    n_running: str
    n_waiting: str
    kv_cache_usage: str | None = None  # a fraction
    n_preemptions: str | None = None
    itl_s: str | None = None  # a histogram of the times between tokens
    n_drafts: str | None = None  # of speculative decoding: drafts that were verified
    n_accepted_tokens: str | None = None  # of these drafts, tokens that were accepted


def metric_names(engine: str) -> MetricNames:
    """Return the newest names of an engine's metrics (`resources/traces/metrics.yaml`)."""
    sheet = metric_sheet()
    names = sheet.engines[engine]
    return MetricNames(
        n_running=names.running[0],
        n_waiting=names.waiting[0],
        itl_s=next(iter(names.itl_s), None),
        **sheet.telemetry.get(engine, {}),
    )


VLLM_METRICS = metric_names("vllm")
SGLANG_METRICS = metric_names("sglang")
TGI_METRICS = metric_names("tgi")


def samples(text: str, name: str | None) -> list[tuple[dict[str, str], float]]:
    """Return a metric's label sets and values, without those that are not finite numbers."""
    if name is None:
        return []
    pattern = rf"^{re.escape(name)}(?:{_LABELS})? +({_NUMBER})(?!\S)"
    matches = re.findall(pattern, text, flags=re.MULTILINE)
    values = [(dict(_LABEL.findall(labels)), float(value)) for labels, value in matches]
    return [(labels, value) for labels, value in values if math.isfinite(value)]


def total(text: str, name: str | None) -> float | None:
    """Return the sum of a metric over its label sets, None if the server has no such metric."""
    values = [value for _, value in samples(text, name)]
    return sum(values) if values else None


def server_gauges(text: str, metric_names: Sequence[MetricNames]) -> dict[str, float | None]:
    """Return a server's queue and KV cache use: `kv_cache_usage`, a fraction, is the mean of its
    engines, the others are their sum. The first of `metric_names` that the text has count."""
    names = _names_in(text, metric_names)
    usage = [value for _, value in samples(text, names.kv_cache_usage)]
    return {
        "n_running": total(text, names.n_running),
        "n_waiting": total(text, names.n_waiting),
        "kv_cache_usage": sum(usage) / len(usage) if usage else None,
        "n_preemptions": total(text, names.n_preemptions),
    }


def mean_itl_ms(before: str, after: str, metric_names: Sequence[MetricNames]) -> float | None:
    """Return the server's own mean inter-token latency between two readings of its metrics."""
    name = _names_in(after, metric_names).itl_s
    mean_s = _ratio(before, after, *(name and f"{name}_{part}" for part in ("sum", "count")))
    return None if mean_s is None else 1e3 * mean_s


def accepted_length(before: str, after: str, metric_names: Sequence[MetricNames]) -> float | None:
    """Return the mean tokens of a step with a draft, the LLM's own included, between two readings
    of a server's metrics; None where it does not speculate."""
    names = _names_in(after, metric_names)
    accepted = _ratio(before, after, names.n_accepted_tokens, names.n_drafts)
    return None if accepted is None else 1 + accepted


def _ratio(before: str, after: str, upper: str | None, lower: str | None) -> float | None:
    """Return by what one metric grew over by what another did; None where one is not known."""
    growths = []
    for name in (upper, lower):
        first, last = (total(text, name) for text in (before, after))
        if first is None or last is None:
            return None
        growths.append(last - first)
    return growths[0] / growths[1] if growths[1] > 0 else None


def _names_in(text: str, metric_names: Sequence[MetricNames]) -> MetricNames:
    return next(
        (names for names in metric_names if samples(text, names.n_running)), metric_names[0]
    )


def fetch_response(base_url: str) -> str:
    """Return the text of `/metrics`; raises `OSError` without a whole answer."""
    status, text = get(ServerAddress(base_url, ""), "/metrics", most_bytes=MOST_METRICS_BYTES)
    if status != 200:
        raise ConnectionError(f"no metrics from {base_url}: {status or 'no whole answer'}")
    return text
