"""The burst study's phases on a server, and the search for its rate."""

import time

import pytest

from sextant.base.errors import InputError
from sextant.bench import burst
from sextant.bench.burst import KVWatch, Trial, find_rate, next_rate
from sextant.engine.http import Target
from sextant.experiment.scenarios import Burst
from sextant.workload.prompts import RandomTokens
from sextant.workload.published import zipf_request_model
from stub_server import StubServer, answer_tokens


def trial(rate_rps, kv_usage):
    return Trial(rate_rps, kv_usage, 0.0)


class Linear:
    """A server whose cache is used in proportion to the rate."""

    def __init__(self, usage_per_rps):
        self.usage_per_rps, self.rates = usage_per_rps, []

    def __call__(self, rate_rps):
        self.rates.append(rate_rps)
        return trial(rate_rps, min(1.0, self.usage_per_rps * rate_rps))


def test_the_first_rate_follows_from_littles_law():
    server = Linear(0.1)
    search = find_rate(server, single_kv_usage=0.05, single_request_s=2.0)
    assert server.rates == pytest.approx([3.5])  # 7 in flight for 2 s each
    assert search.rate_rps == pytest.approx(3.5)
    assert search.kv_usage_limits == (0.2, 0.5)


@pytest.mark.parametrize(
    ("trials", "rate_rps"),
    [
        # Scaled by target over use, at most fourfold.
        ([(2.0, 0.1)], 7.0),
        ([(2.0, 0.7)], 1.0),
        ([(2.0, 0.05)], 8.0),
        ([(2.0, 0.0)], 8.0),
        # Between two sides interpolated in logarithms.
        ([(4.0, 0.7), (1.0, 0.175)], 2.0),
        ([(1.0, 0.0), (9.0, 0.9)], 3.0),
        # Chance: the higher rate used less. The last trial is scaled.
        ([(1.0, 0.7), (2.0, 0.175)], 4.0),
    ],
)
def test_the_next_rate(trials, rate_rps):
    assert next_rate([trial(*each) for each in trials]) == pytest.approx(rate_rps)


def test_a_steep_server_is_searched_ten_times_and_the_closest_taken():
    def steep(rate_rps):
        return trial(rate_rps, 0.25 if rate_rps < 10.0 else 0.95)

    search = find_rate(steep, single_kv_usage=0.1, single_request_s=1.0)
    assert len(search.trials) == 10
    assert search.rate_rps < 10.0


def test_a_cache_that_one_request_fills_is_refused():
    with pytest.raises(InputError, match="one request alone uses 60% of the KV cache"):
        find_rate(Linear(0.1), single_kv_usage=0.6, single_request_s=1.0)


def test_a_cache_that_no_rate_fills_is_refused_with_what_was_reached():
    with pytest.raises(InputError, match="10 trials came to 5% to 5%") as error:
        find_rate(lambda rate: trial(rate, 0.05), 0.01, 1.0)
    assert "smaller batch weight" in str(error.value)


def test_no_rate_above_the_highest_is_tried():
    server = Linear(0.001)
    with pytest.raises(InputError, match="highest at 50 requests/s"):
        find_rate(server, 0.0, 0.1, max_rate_rps=50.0)
    assert server.rates == [10.0, 40.0, 50.0]


def test_the_watch_leaves_out_what_is_not_available():
    answers = iter([0.2, None, 0.4])

    def read():
        answer = next(answers, OSError)
        if answer is OSError:
            raise OSError
        return answer

    with KVWatch(read, 0.01, time.monotonic_ns()) as watch:
        time.sleep(0.2)
    assert [usage for _, usage in watch.readings] == [0.2, 0.4]
    first_s = watch.readings[0][0]
    assert watch.mean(0.0, 60.0) == pytest.approx(0.3)
    assert watch.mean(0.0, first_s) == 0.2
    assert watch.mean(50.0, 60.0) is None


MODEL = zipf_request_model(1.1, 1, 30, 10)
ALL = Burst(levels=(1.0, 6.0), warmup_s=9.0, duration_s=9.0)


@pytest.fixture
def quick_trials(monkeypatch):
    monkeypatch.setattr(burst, "_SHORTEST_TRIAL_S", 1.0)


def phases(server, plan, kv_usage, timeout_s=5.0):
    targets = [Target(server.url, "m")]
    prompts, epoch_ns = RandomTokens(1000), time.monotonic_ns()
    return list(burst.run_phases(targets, MODEL, prompts, plan, timeout_s, epoch_ns, 7, kv_usage))


def test_phases_run_one_after_another_at_the_rate_that_was_found(quick_trials):
    plan = Burst(levels=(4.0, 6.0), warmup_s=2.0, burstiness=0.5, duration_s=9.0, n_requests=3)
    with StubServer(answer_tokens(ttft_s=0.1, itl_s=0.01)) as server:
        done = phases(server, plan, lambda: min(1.0, server.in_flight / 8))
    assert [facts["name"] for facts, _ in done] == ["warm-up", "alpha", "theta"]
    assert [result.run.level for _, result in done] == [1.0, 4.0, 6.0]
    warmup, alpha, theta = (facts for facts, _ in done)
    assert max(t["kv_usage"] for t in warmup["search"]["trials"]) >= 0.2
    assert warmup["search"]["single_request_kv_usage"] == 0.125
    assert warmup["search"]["single_request_s"] > 0.19  # 0.1 s and nine gaps of 10 ms
    assert warmup["is_within_limits"] == (0.2 <= warmup["mean_kv_cache_usage"] <= 0.5)
    assert alpha["rate_rps"] == theta["rate_rps"] == warmup["search"]["rate_rps"]
    assert alpha["n_requests"] == 27
    assert done[1][1].log.n_ok == 27
    starts = [result.started_s for _, result in done]
    ends = [result.run.ended_s for _, result in done]
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))


def test_a_server_that_does_not_tell_its_use_is_refused(quick_trials):
    with (
        StubServer(answer_tokens()) as server,
        pytest.raises(InputError, match="do not say how much of the KV cache"),
    ):
        phases(server, ALL, lambda: None)
    assert server.requests == []


def test_a_request_that_fails_alone_is_refused(quick_trials):
    with (
        StubServer(answer_tokens(ttft_s=5.0)) as server,
        pytest.raises(InputError, match=r"served alone, failed: no end within 0\.2 s"),
    ):
        phases(server, ALL, lambda: 0.1, timeout_s=0.2)
