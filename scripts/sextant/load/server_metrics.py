"""What the server says of itself: vLLM's Prometheus metrics."""

import contextlib
import http.client
import re
import threading
import time
import urllib.request

import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("level", pa.int32()),
        pa.field("time_s", pa.float64()),
        pa.field("n_running", pa.float64()),
        pa.field("n_waiting", pa.float64()),
        pa.field("kv_cache_usage", pa.float64()),
        pa.field("n_preemptions", pa.float64()),
    ]
)
_GAUGES = {
    "n_running": "vllm:num_requests_running",
    "n_waiting": "vllm:num_requests_waiting",
    "kv_cache_usage": "vllm:kv_cache_usage_perc",
    "n_preemptions": "vllm:num_preemptions_total",
}
_ITL = "vllm:inter_token_latency_seconds"
# A server beside us is not to be sought behind the cluster's proxy.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def read(text: str, name: str) -> float | None:
    """Return the sum of a metric over its label sets, None if the server has no such metric."""
    pattern = rf"^{re.escape(name)}(?:\{{[^}}]*\}})? ([-+.\deEinfNa]+)$"
    values = re.findall(pattern, text, flags=re.MULTILINE)
    return sum(map(float, values)) if values else None


def fetch(base_url: str, timeout_s: float = 5.0) -> str:
    """Return the text of `/metrics`.

    Raises:
        OSError: the server did not answer, or not in whole.
    """
    try:
        with _OPENER.open(f"{base_url}/metrics", timeout=timeout_s) as answer:
            return answer.read().decode()
    except http.client.HTTPException as error:  # half an answer of a server that dies
        raise ConnectionError(f"no metrics from {base_url}: {error!r}") from error


def mean_itl_ms(before: str, after: str) -> float | None:
    """Return the server's own mean inter-token latency between two readings of its metrics."""
    readings = [
        (read(text, f"{_ITL}_sum"), read(text, f"{_ITL}_count")) for text in (before, after)
    ]
    if any(value is None for pair in readings for value in pair):
        return None
    (sum_before, n_before), (sum_after, n_after) = readings
    return (sum_after - sum_before) / (n_after - n_before) * 1e3 if n_after > n_before else None


class Poller(threading.Thread):
    """Reads the server's gauges once a period until it is stopped; a missed reading is a gap."""

    def __init__(self, base_url: str, level: int, epoch_ns: int, period_s: float = 1.0) -> None:
        super().__init__(daemon=True)
        self._base_url, self._level, self._epoch_ns = base_url, level, epoch_ns
        self._period_s = period_s
        self._stopped = threading.Event()
        self.rows: list[dict] = []

    def run(self) -> None:
        """Poll (called by `start`)."""
        while not self._stopped.wait(self._period_s):
            with contextlib.suppress(OSError):
                text = fetch(self._base_url)
                at_s = (time.monotonic_ns() - self._epoch_ns) / 1e9
                gauges = {column: read(text, name) for column, name in _GAUGES.items()}
                self.rows.append({"level": self._level, "time_s": at_s, **gauges})

    def stop(self) -> list[dict]:
        """Stop polling and return the rows."""
        self._stopped.set()
        self.join()
        return self.rows
