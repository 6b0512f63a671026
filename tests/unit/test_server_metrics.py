"""What the server says of itself: readings of vLLM's Prometheus text."""

import asyncio
import time

import pyarrow as pa
import pytest

from sextant.load import server_metrics
from stub_server import StubServer

# As vLLM writes them: several engines, help lines, buckets, exponents.
TEXT = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="sextant"} 3.0
vllm:num_requests_running{engine="1",model_name="sextant"} 4.0
vllm:num_requests_waiting{engine="0",model_name="sextant"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="sextant"} 6.25e-02
vllm:num_preemptions_total{engine="0",model_name="sextant"} 1.0
vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name="sextant"} 100.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="sextant"} 2.5
vllm:inter_token_latency_seconds_count{engine="0",model_name="sextant"} 100.0
python_gc_objects_collected_total 17
"""


def itl(total_s: float, count: float) -> str:
    name = "vllm:inter_token_latency_seconds"
    return f'{name}_sum{{engine="0"}} {total_s}\n{name}_count{{engine="0"}} {count}\n'


def answering(body: str, status: str = "200 OK", length: int | None = None):
    async def answer(_, writer):
        data = body.encode()
        head = f"HTTP/1.1 {status}\r\nContent-Length: {length or len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        if length is not None:
            writer.close()

    return answer


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vllm:num_requests_running", 7.0),
        ("vllm:kv_cache_usage_perc", 0.0625),
        ("vllm:inter_token_latency_seconds_count", 100.0),
        ("python_gc_objects_collected_total", 17.0),
        ("vllm:num_requests", None),
        ("vllm:num_requests_run", None),
        ("num_requests_running", None),
        ("vllm.num_requests_waiting", None),
    ],
)
def test_a_metric_is_read_by_its_whole_name(name, value):
    assert server_metrics.read(TEXT, name) == value


def test_the_mean_itl_is_that_of_the_time_between_two_readings():
    # 100 gaps took 2.5 s before; the next 50 take 2 s: 40 ms each.
    assert server_metrics.mean_itl_ms(TEXT, itl(4.5, 150)) == pytest.approx(40.0)


def test_no_token_between_two_readings_has_no_mean():
    assert server_metrics.mean_itl_ms(TEXT, TEXT) is None
    assert server_metrics.mean_itl_ms("", TEXT) is None
    assert server_metrics.mean_itl_ms(TEXT, "") is None


def test_metrics_are_fetched(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # a cluster's proxy is not asked
    monkeypatch.delenv("no_proxy", raising=False)
    with StubServer(answering(TEXT)) as server:
        assert server_metrics.fetch(server.url) == TEXT
    assert server.requests[0].head.startswith("GET /metrics ")


@pytest.mark.parametrize(
    "answer",
    [
        answering("busy", status="503 Service Unavailable"),
        answering(TEXT, length=len(TEXT) + 100),
        answering("", status="nonsense"),
    ],
)
def test_what_is_no_answer_is_an_os_error(answer):
    with StubServer(answer) as server, pytest.raises(OSError):
        server_metrics.fetch(server.url)


def test_the_poller_records_gauges_over_time():
    with StubServer(answering(TEXT)) as server:
        began_ns = time.monotonic_ns()
        poller = server_metrics.Poller(server.url, 8, began_ns, period_s=0.05)
        poller.start()
        while len(poller.rows) < 3:
            assert time.monotonic_ns() - began_ns < 20e9
            time.sleep(0.02)
        rows = poller.stop()
    table = pa.Table.from_pylist(rows, schema=server_metrics.SCHEMA).to_pandas()
    assert set(rows[0]) == set(server_metrics.SCHEMA.names)
    assert (table["level"] == 8).all()
    assert table["time_s"].is_monotonic_increasing and table["time_s"].iloc[0] >= 0.05
    first = table.iloc[0]
    assert (first["n_running"], first["n_waiting"], first["kv_cache_usage"]) == (7, 2, 0.0625)
    assert first["n_preemptions"] == 1


def test_a_missed_reading_is_a_gap():
    answers = iter([answering("", length=50), answering(TEXT), answering("", "500 Oops")])

    async def answer(request, writer):
        await next(answers, answering(TEXT))(request, writer)

    with StubServer(answer) as server:
        poller = server_metrics.Poller(server.url, 1, time.monotonic_ns(), period_s=0.02)
        poller.start()
        deadline = time.monotonic() + 20
        while len(poller.rows) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        rows = poller.stop()
        n_asked = len(server.requests)
    assert 2 <= len(rows) <= n_asked - 2


def test_a_server_without_such_metrics_has_nulls():
    with StubServer(answering("other_metric 1\n")) as server:
        poller = server_metrics.Poller(server.url, 1, time.monotonic_ns(), period_s=0.02)
        poller.start()
        deadline = time.monotonic() + 20
        while not poller.rows and time.monotonic() < deadline:
            time.sleep(0.02)
        row = poller.stop()[0]
    assert row["n_running"] is None and row["kv_cache_usage"] is None


def test_a_server_that_hangs_does_not_keep_the_poller():
    async def hang(*_):
        await asyncio.sleep(60)

    with StubServer(hang) as server, pytest.raises(OSError):
        server_metrics.fetch(server.url, timeout_s=0.3)
