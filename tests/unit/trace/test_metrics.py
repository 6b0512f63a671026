"""Metrics of engines become a trace: counts as observed, lengths from histograms."""

import json
import math

import numpy as np
import pytest

from served_metrics import LAYOUTS, Server, matrix
from sextant.base.errors import InputError
from sextant.base.files import read_provenance
from sextant.trace.choice import TraceChoice
from sextant.trace.histogram import Histogram, draw_values, merged
from sextant.trace.metric_samples import MetricText, parse_readings
from sextant.trace.metrics_trace import draw_trace, ingest_metrics
from sextant.trace.model_metrics import metrics_by_model
from sextant.trace.observed import read_observed
from support import ROOT


def served(engine: str, n: int, llm: str | None = "Qwen/Qwen3-8B", **extra: str) -> Server:
    """A server that answered n requests of 100 to 1,999 input and 20 to 299 output tokens."""
    random = np.random.default_rng(n)
    server = Server(engine, llm, extra=extra)
    for _ in range(n):
        ttft_s = random.uniform(0.05, 0.3)
        outputs = random.integers(20, 300)
        server.serve(random.integers(100, 2000), outputs, ttft_s, ttft_s + 0.02 * (outputs - 1))
    return server


def grown(server: Server, n: int, seed: int = 1) -> Server:
    """The same server after n more requests."""
    more = served(server.engine, n, server.llm, **server.extra)
    after = Server(server.engine, server.llm, extra=server.extra, running=server.running)
    for name in ("inputs", "outputs", "ttft_s", "e2e_s"):
        setattr(after, name, getattr(server, name) + getattr(more, name))
    after.n_failed = server.n_failed
    after.cached_tokens = server.cached_tokens
    return after


def snapshots(*servers: Server) -> list[MetricText]:
    return [MetricText(f"{number}.txt", it.text()) for number, it in enumerate(servers)]


@pytest.mark.parametrize("engine", LAYOUTS)
def test_two_snapshots_of_each_engine_give_its_requests(engine: str) -> None:
    before = served(engine, 50, None if engine == "tgi" else "Qwen/Qwen3-8B")
    after = grown(before, 400)
    after.n_failed = before.n_failed + 7
    trace = draw_trace(parse_readings(snapshots(before, after), interval_s=600), seed=0)
    table = trace.table.to_pandas()
    ok = table[table["status"] == "ok"]
    assert len(ok) == 400
    assert (table["status"] == "failed").sum() == 7
    assert table["arrival_s"].between(0, 600).all()
    assert table["arrival_s"].is_monotonic_increasing
    for name, true in (("input_tokens", after.inputs), ("output_tokens", after.outputs)):
        assert ok[name].mean() == pytest.approx(np.mean(true[50:]), rel=0.02)
    if engine != "tgi":
        assert set(table["llm"]) == {"Qwen/Qwen3-8B"}
    if engine != "tensorrt-llm":  # it has no histogram of lengths
        assert ok["input_tokens"].quantile(0.9) == pytest.approx(
            np.quantile(after.inputs[50:], 0.9), rel=0.1
        )


def test_without_a_histogram_of_lengths_all_have_the_mean_and_it_is_said() -> None:
    before = served("tensorrt-llm", 5)
    trace = draw_trace(parse_readings(snapshots(before, grown(before, 50)), 60), seed=0)
    assert trace.table["input_tokens"].to_pandas().nunique() == 1
    assert any("no histogram of input tokens" in note for note in trace.notes)


def test_the_same_seed_draws_the_same_trace() -> None:
    texts = snapshots(before := served("vllm", 5), grown(before, 50))
    first, again, other = (
        draw_trace(parse_readings(texts, 60), seed=seed).table for seed in (0, 0, 1)
    )
    assert first.equals(again)
    assert not first.equals(other)


def test_latencies_of_a_renamed_metric_are_read_by_either_name() -> None:
    for engine in ("vllm", "vllm-0.6"):
        before = served(engine, 5)
        after = grown(before, 50)
        (model,) = metrics_by_model(parse_readings(snapshots(before, after), 60))
        assert model.histograms["itl_s"].within(slice(None)).mean == pytest.approx(0.02, rel=1e-6)


def test_colons_and_endings_that_collectors_change_make_no_difference() -> None:
    before = served("vllm", 5)
    texts = [
        MetricText(text.origin, text.text.replace("vllm:", "ray_vllm_"))
        for text in snapshots(before, grown(before, 50))
    ]
    (model,) = metrics_by_model(parse_readings(texts, 60))
    assert model.n_answered.sum() == 50
    tgi = served("tgi", 5, None)
    texts = [
        MetricText(
            text.origin, text.text.replace("tgi_request_success{", "tgi_request_success_total{")
        )
        for text in snapshots(tgi, grown(tgi, 30))
    ]
    (model,) = metrics_by_model(parse_readings(texts, 60))
    assert model.n_answered.sum() == 30


def test_a_restart_adds_what_is_counted_afterwards() -> None:
    before = served("vllm", 100)
    texts = snapshots(before, grown(before, 40), served("vllm", 60))
    (model,) = metrics_by_model(parse_readings(texts, 60))
    assert model.n_answered.tolist() == [40, 60]
    assert model.n_restarts == 1
    assert model.histograms["input_tokens"].counts.sum() == 100
    assert any("restart" in note for note in model.notes)


def test_instances_are_summed_and_one_that_restarts_is_seen_alone() -> None:
    first, second = (served("vllm", 100, instance=name) for name in ("a:8000", "b:8000"))
    steps = [(first, second), (grown(first, 10), grown(second, 20)), (served("vllm", 5), second)]
    texts = []
    for at_s, (one, two) in enumerate(steps):
        one.extra, two.extra = {"instance": "a:8000"}, {"instance": "b:8000"}
        texts.append((60.0 * at_s, one.text() + two.text()))
    steps[2][1].inputs += steps[1][1].inputs[100:]
    answer = matrix(texts)
    (model,) = metrics_by_model(parse_readings([MetricText("range", json.dumps(answer))]))
    assert model.n_engines == 2
    assert model.n_answered[0] == 30
    assert model.n_answered[1] >= 5


def test_a_reading_that_one_instance_lacks_is_no_burst() -> None:
    first = served("vllm", 10)
    readings = [first, then := grown(first, 10), grown(then, 20)]
    other = [served("vllm", 10), None, grown(served("vllm", 10), 40)]
    texts = []
    for at_s, (one, two) in enumerate(zip(readings, other, strict=True)):
        one.extra = {"instance": "a"}
        text = one.text()
        if two is not None:
            two.extra = {"instance": "b"}
            text += two.text()
        texts.append((60.0 * at_s, text))
    (model,) = metrics_by_model(parse_readings([MetricText("range", json.dumps(matrix(texts)))]))
    assert model.n_answered.tolist() == [10 + 20, 20 + 20]


def test_a_series_that_its_first_count_makes_appear_counts_from_zero() -> None:
    before = served("sglang", 10)
    text = "\n".join(it for it in before.text().splitlines() if "aborted" not in it)
    after = grown(before, 10)
    after.n_failed = 3
    texts = [MetricText("1", text), MetricText("2", after.text())]
    (model,) = metrics_by_model(parse_readings(texts, 60))
    assert model.n_failed.sum() == 3


def test_requests_still_in_flight_came_too() -> None:
    before = served("vllm", 10)
    middle = grown(before, 10)
    middle.running, middle.waiting = 30, 50
    after = grown(middle, 40)
    after.running, after.waiting = 60, 0
    texts = snapshots(before, middle, after)
    (model,) = metrics_by_model(parse_readings(texts, 60))
    assert model.n_answered.tolist() == [10, 40]
    assert model.n_arrived.tolist() == [10 + 80, 40 - 20]
    trace = draw_trace(parse_readings(texts, 60), seed=0)
    assert trace.table.num_rows == 110


def test_ranks_of_one_engine_count_once() -> None:
    before = served("sglang", 10)
    before.running = 12
    (model,) = metrics_by_model(parse_readings(snapshots(before, grown(before, 10)), 60))
    assert model.gauges["running"].tolist() == [12]


def test_llms_stay_apart_and_one_has_to_be_chosen(tmp_path) -> None:
    one, two = served("vllm", 20, "small"), served("vllm", 30, "large")
    texts = [
        MetricText("1", one.text() + two.text()),
        MetricText("2", grown(one, 15).text() + grown(two, 25).text()),
    ]
    outputs = [tmp_path / name for name in ("t.parquet", "r.parquet", "t.json")]
    report = ingest_metrics(texts, outputs, interval_s=60)
    assert report["n_accepted"] == 40
    assert any("large, small" in note and "--llm-in-trace" in note for note in report["notes"])
    with pytest.raises(InputError, match="large, small"):
        read_observed(outputs[0])
    assert read_observed(outputs[0], TraceChoice("small")).whole().n_answered == 15


def test_the_trace_holds_what_was_observed(tmp_path) -> None:
    before = served("vllm", 20)
    after = grown(before, 200)
    after.cached_tokens = sum(after.inputs[20:]) // 4
    outputs = [tmp_path / name for name in ("t.parquet", "r.parquet", "t.json")]
    ingest_metrics(snapshots(before, after), outputs, interval_s=100)
    origin = read_provenance(outputs[0])
    assert origin["drawn"] == ["arrival_s within each interval", "input_tokens", "output_tokens"]
    observed = read_observed(outputs[0])
    assert observed.cached_share == pytest.approx(0.25, abs=0.01)
    whole = observed.whole()
    assert whole.rate_rps == pytest.approx(2.0)
    assert whole.latencies_ms["ttft"].mean == pytest.approx(1e3 * np.mean(after.ttft_s[20:]))
    reached = whole.latencies_ms["e2e"].quantile(0.95)
    assert reached.low <= 1e3 * np.quantile(after.e2e_s[20:], 0.95) <= reached.high


def test_headers_of_curl_date_the_snapshots() -> None:
    before = served("vllm", 5)
    head = "HTTP/1.1 200 OK\r\ndate: Mon, 02 Mar 2026 09:{}:00 GMT\r\nserver: uvicorn\r\n\r\n"
    texts = [
        MetricText("1", head.format("00") + before.text()),
        MetricText("2", head.format("10") + grown(before, 60).text()),
    ]
    trace = draw_trace(parse_readings(texts), seed=0)
    assert trace.facts["start_time"] == "2026-03-02T09:00:00+00:00"
    assert trace.duration_s == 600


def test_every_refusal_says_what_to_do() -> None:
    before = served("vllm", 5)
    after = grown(before, 10)
    computed = matrix([(0.0, before.text()), (60.0, after.text())])
    for result in computed["data"]["result"]:
        del result["metric"]["__name__"]
    cases = [
        (snapshots(before), None, "one snapshot tells no rate"),
        (snapshots(before, after), None, "--interval 10min"),
        (snapshots(before, before), 60, "no request was finished"),
        ([MetricText("x", "go_goroutines 8\n")] * 2, 60, "none of its 1 samples"),
        ([MetricText("x", "<html>\n")] * 2, 60, "line 1.*'<html>' is not a sample"),
        ([MetricText("x", json.dumps(computed))], None, "has no name.*without rate"),
        ([MetricText("x", '{"status":"error","error":"bad_data"}')], None, "bad_data"),
        ([MetricText("x", '{"data": 3}')], None, "data.result"),
        ([MetricText("x", "{")], None, "not JSON"),
    ]
    for texts, interval_s, said in cases:
        with pytest.raises(InputError, match=said) as caught:
            metrics_by_model(parse_readings(texts, interval_s))
        assert caught.value.fix


def test_values_that_are_no_numbers_leave_gaps() -> None:
    before = served("vllm", 5)
    answer = matrix([(0.0, before.text()), (60.0, grown(before, 10).text())])
    for result in answer["data"]["result"]:
        result["values"].insert(1, [30.0, "NaN"])
    (model,) = metrics_by_model(parse_readings([MetricText("x", json.dumps(answer))]))
    assert model.n_answered.tolist() == [10]


def test_a_histogram_tells_its_mean_and_between_what_a_percentile_lies() -> None:
    histogram = Histogram(np.array([1.0, 2.0, math.inf]), np.array([10.0, 80.0, 10.0]), 170.0)
    assert histogram.mean == 1.7
    median = histogram.quantile(0.5)
    assert (median.low, median.high) == (1.0, 2.0)
    assert median.value == pytest.approx(1.5)
    assert histogram.quantile(0.95).high == math.inf
    again = Histogram.of_plain(histogram.to_plain())
    assert again.counts.tolist() == histogram.counts.tolist()


def test_histograms_of_other_buckets_merge_at_those_they_share() -> None:
    one = Histogram(np.array([1.0, 2.0, 5.0, math.inf]), np.array([1.0, 2.0, 3.0, 4.0]), 40.0)
    two = Histogram(np.array([2.0, 5.0, 9.0, math.inf]), np.array([1.0, 1.0, 1.0, 1.0]), 20.0)
    both = merged([one, two])
    assert both is not None
    assert both.edges.tolist() == [2.0, 5.0, math.inf]
    assert both.counts.tolist() == [4.0, 4.0, 6.0]
    assert both.total == 60.0


@pytest.mark.parametrize("place", [0.05, 0.3, 0.5, 0.8])
def test_drawn_values_have_the_mean_that_the_sum_says(place: float) -> None:
    low, high = np.full(20000, 10.0), np.full(20000, 20.0)
    values = draw_values(low, high, place, np.random.default_rng(0))
    assert values.mean() == pytest.approx(10 + 10 * place, abs=0.1)
    assert values.min() >= 10
    assert values.max() <= 20


def test_metrics_that_vllm_0_32_wrote_are_its_requests() -> None:
    """24 requests of 20 + 7 n input and 4 + n output tokens (`test_vllm_metrics.py`)."""
    paths = [ROOT / "tests/unit/trace/metrics" / f"vllm-0.32-{n}.txt" for n in (1, 2)]
    texts = [MetricText(str(path), path.read_text()) for path in paths]
    (model,) = metrics_by_model(parse_readings(texts, interval_s=60))
    assert (model.engine, model.llm, model.n_engines) == ("vllm", "sextant", 1)
    assert model.n_answered.tolist() == [24]
    assert model.n_failed.tolist() == [0]
    assert model.cached_share is None  # its prefix cache was off
    whole = slice(None)
    assert model.histograms["input_tokens"].within(whole).mean == 20 + 7 * 23 / 2
    assert model.histograms["output_tokens"].within(whole).mean == 4 + 23 / 2
    assert model.histograms["itl_s"].within(whole).n == 24 * (3 + 23 / 2)
    trace = draw_trace(parse_readings(texts, interval_s=60), seed=0).table.to_pandas()
    assert trace["input_tokens"].mean() == pytest.approx(20 + 7 * 23 / 2, rel=0.05)


def test_what_vllm_turned_away_failed() -> None:
    before = served("vllm", 5)
    name = (
        'vllm:admission_rejections_total{model_name="Qwen/Qwen3-8B",reason="max_num_queued_reqs"}'
    )
    texts = [
        MetricText("1", f"{before.text()}{name} 2.0\n"),
        MetricText("2", f"{grown(before, 10).text()}{name} 9.0\n"),
    ]
    (model,) = metrics_by_model(parse_readings(texts, 60))
    assert model.n_failed.tolist() == [7]
