"""The burst study's phases on a server, and the search for its rate."""

import time

import pytest

from sextant.base.errors import InputError
from sextant.bench import burst
from sextant.bench.burst import Trial, find_rate, mean_usage, next_rate, watched_usage
from sextant.engine.http import ServerAddress
from sextant.experiment.scenarios import Burst
from sextant.load.measure import LoadTargets
from sextant.workload.prompts import RandomTokens
from sextant.workload.published import zipf_request_model
from stub_server import StubServer, answer_tokens
from support import wait_for


def trial(rate_rps, kv_usage):
    return Trial(rate_rps, kv_usage, 0.0)


def linear(usage_per_rps):
    """Return a server whose cache is used in proportion to the rate."""
    return lambda rate_rps: trial(rate_rps, min(1.0, usage_per_rps * rate_rps))


def test_the_first_rate_follows_from_littles_law():
    search = find_rate(linear(0.1), single_kv_usage=0.05, single_request_s=2.0)
    assert [each.rate_rps for each in search.trials] == pytest.approx([3.5])  # 7 for 2 s each
    assert search.rate_rps == pytest.approx(3.5)
    assert search.kv_usage_limits == (0.2, 0.5)


@pytest.mark.parametrize(
    ("trials", "rate_rps"),
    [
        # Scaled by target over use, at most fourfold.
        *(([(2.0, use)], rate) for use, rate in ((0.1, 7.0), (0.7, 1.0), (0.05, 8.0), (0, 8.0))),
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


def test_a_cache_that_one_request_or_no_rate_fills_is_refused_with_what_was_reached():
    with pytest.raises(InputError, match="one request alone uses 60% of the KV cache"):
        find_rate(linear(0.1), single_kv_usage=0.6, single_request_s=1.0)
    with pytest.raises(InputError, match="10 trials came to 5% to 5%") as error:
        find_rate(lambda rate: trial(rate, 0.05), 0.01, 1.0)
    assert "smaller batch weight" in str(error.value)


def test_no_rate_above_the_highest_is_tried():
    rates = []
    with pytest.raises(InputError, match="highest at 50 requests/s"):
        find_rate(lambda r: rates.append(r) or linear(0.001)(r), 0.0, 0.1, max_rate_rps=50.0)
    assert rates == [10.0, 40.0, 50.0]


def test_the_watch_leaves_out_what_is_not_available():
    answers = iter([0.2, None, 0.4, OSError])

    def read():
        if (answer := next(answers, None)) is OSError:
            raise OSError
        return answer

    with watched_usage(read, 0.01, time.monotonic_ns()) as readings:
        wait_for(lambda: len(readings) == 2, "readings")
    assert [usage for _, usage in readings] == [0.2, 0.4]
    first_s = readings[0][0]
    assert mean_usage(readings, 0.0, 60.0) == pytest.approx(0.3)
    assert mean_usage(readings, 0.0, first_s) == 0.2
    assert mean_usage(readings, 50.0, 60.0) is None


MODEL = zipf_request_model(1.1, 1, 30, 10)


@pytest.fixture
def quick_trials(monkeypatch):
    monkeypatch.setattr(burst, "_SHORTEST_TRIAL_S", 1.0)


def phases(server, plan, kv_usage, timeout_s=5.0):
    targets = LoadTargets([ServerAddress(server.url, "m")], timeout_s, time.monotonic_ns())
    return list(burst.run_phases(targets, MODEL, RandomTokens(1000), plan, 7, kv_usage))


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


@pytest.mark.parametrize(
    ("kv_usage", "told"),
    [(None, "do not say how much of the KV cache"), (0.1, "alone, failed: no end within 0.2")],
)
def test_a_server_that_tells_no_use_or_fails_one_request_is_refused(quick_trials, kv_usage, told):
    plan = Burst(levels=(1.0, 6.0), warmup_s=9.0, duration_s=9.0)
    with StubServer(answer_tokens(ttft_s=5.0)) as server, pytest.raises(InputError, match=told):
        phases(server, plan, lambda: kv_usage, timeout_s=0.2)
    assert bool(server.requests) == (kv_usage is not None)
