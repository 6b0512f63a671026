"""Readings of Prometheus text, as vLLM writes it."""

import pytest

from sextant.engine import http
from stub_server import StubServer, answer_text

VLLM = [http.VLLM_METRICS]
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
    assert http.total(TEXT, name) == value


def test_the_mean_itl_is_that_of_the_time_between_two_readings():
    # 100 gaps took 2.5 s before; the next 50 take 2 s: 40 ms each.
    assert http.mean_itl_ms(TEXT, itl(4.5, 150), VLLM) == pytest.approx(40.0)
    for before, after in ((TEXT, TEXT), ("", TEXT), (TEXT, "")):
        assert http.mean_itl_ms(before, after, VLLM) is None


def test_the_accepted_length_is_that_of_the_drafts_between_two_readings():
    def drafts(n: int, accepted: int) -> str:
        names = ("num_drafts", "num_accepted_tokens")
        rows = zip(names, (n, accepted), strict=True)
        return TEXT + "".join(f'vllm:spec_decode_{m}_total{{engine="0"}} {v}\n' for m, v in rows)

    # 200 drafts, of whose tokens 130 were accepted: 1.65 tokens a step.
    assert http.accepted_length(drafts(100, 50), drafts(300, 180), VLLM) == pytest.approx(1.65)
    assert http.accepted_length(drafts(100, 50), drafts(100, 50), VLLM) is None
    assert http.accepted_length(TEXT, TEXT, VLLM) is None


@pytest.mark.parametrize(
    "answer",
    [
        answer_text("busy", status="503 Service Unavailable"),
        answer_text(TEXT, length=len(TEXT) + 100),
        answer_text("", status="nonsense"),
    ],
)
def test_what_is_no_answer_is_an_os_error(answer):
    with StubServer(answer) as server, pytest.raises(OSError):
        http.fetch_response(server.url)


def test_gauges_of_several_engines_are_those_of_their_server():
    two_engines = TEXT + 'vllm:kv_cache_usage_perc{engine="1",model_name="sextant"} 0.4375\n'
    # Requests add up; a usage is a part of a cache, and both caches are of one size.
    found = http.server_gauges(two_engines, VLLM)
    assert found == {"n_running": 7, "n_waiting": 2, "kv_cache_usage": 0.25, "n_preemptions": 1}
    assert set(http.server_gauges("other_metric 1\n", VLLM).values()) == {None}


def test_what_is_no_number_is_not_available():
    assert http.total("a NaN\nb 1\n", "a") is None
    assert http.total('a NaN\na{x="1"} 2\n', "a") == 2
    assert http.total("a +Inf\n", "a") is None
    assert http.total("a <html>\n", "a") is None


def test_an_engine_that_is_not_known_beforehand_is_told_by_its_metrics():
    known = [http.VLLM_METRICS, http.SGLANG_METRICS, http.TGI_METRICS]
    sglang = "sglang:num_running_reqs 3\nsglang:num_queue_reqs 1\nsglang:token_usage 0.25\n"
    found = http.server_gauges(sglang, known)
    assert found == {"n_running": 3, "n_waiting": 1, "kv_cache_usage": 0.25, "n_preemptions": None}
    assert http.server_gauges("tgi_batch_current_size 2\n", known)["n_running"] == 2
    assert http.mean_itl_ms("", "tgi_batch_current_size 2\n", known) is None
