"""Percentiles of users' latencies over what load tests publish."""

from dataclasses import replace

import numpy as np
import pytest

from sextant.law.user_percentiles import UserLatencies, UserRequests, percentile_factors
from sextant.simulate.server import Scheduler, StepLaw

LAW = StepLaw(6.0, 0.0, 0.05, 1e-5, 0.03, request_ms=5.0)
SCHEDULER = Scheduler(kv_tokens=1_000_000, max_num_seqs=1024, max_num_batched_tokens=8192)
CHATS = UserRequests(np.array([1000.0]), np.array([200.0]))


def asked(percentile: int, later: str = "tpot", first: str = "ttft") -> UserLatencies:
    return UserLatencies(first, (later,), (percentile, percentile))


def over_mean(users: int, asked: UserLatencies, requests: UserRequests = CHATS) -> np.ndarray:
    return percentile_factors(LAW, SCHEDULER, users, requests, asked, seed=1).over_mean


def test_one_user_waits_for_nobody() -> None:
    np.testing.assert_allclose(over_mean(1, asked(50)), 1.0, rtol=0.05)


def test_the_first_wave_makes_means_of_load_tests_longer_than_what_users_wait() -> None:
    ttft, tpot = np.transpose([over_mean(users, asked(50)) for users in (4, 16, 64, 256)])
    assert (np.diff(ttft) < 0).all() and ttft[-1] < 0.5
    # The wave comes once: later tokens hardly notice.
    np.testing.assert_allclose(tpot, 1.0, atol=0.1)


def test_percentiles_rise_and_those_of_a_request_stay_close_together() -> None:
    ttft, tpot = np.transpose([over_mean(64, asked(percentile)) for percentile in (50, 90, 95, 99)])
    assert (np.diff(ttft) > 0).all()
    assert 1 < tpot[-1] / tpot[0] < 1.2
    _, gaps = over_mean(64, asked(99, "itl"))
    assert gaps > 2 * tpot[-1]  # a step with a prompt


def test_medians_know_nothing_of_the_first_wave() -> None:
    found = percentile_factors(LAW, SCHEDULER, 64, CHATS, asked(50), seed=1)
    np.testing.assert_array_equal(found.over_median, 1.0)


def test_requests_that_differ_have_longer_tails() -> None:
    rng = np.random.default_rng(0)
    varied = UserRequests(*np.ceil(np.exp(rng.normal([[6.66], [5.05]], 0.7, (2, 5000)))))
    assert over_mean(16, asked(95), varied)[0] > 1.3 * over_mean(16, asked(95))[0]


def test_both_latencies_make_up_the_percentile_of_answers_that_differ_in_length() -> None:
    outputs = np.ceil(np.exp(np.random.default_rng(0).normal(5.05, 0.7, 5000)))
    varied = UserRequests(np.full(5000, 1000.0), outputs)
    of_answers = asked(95)._replace(is_of_e2e=True)
    ratios = over_mean(16, of_answers, varied) / over_mean(16, asked(95), varied)
    # Nearly all of an answer are its later tokens; one in twenty has three times the mean.
    assert ratios[0] == pytest.approx(ratios[1])
    assert ratios[1] == pytest.approx(np.quantile(outputs, 0.95) / outputs.mean(), rel=0.15)


def test_the_same_seed_gives_the_same_factors() -> None:
    np.testing.assert_array_equal(over_mean(16, asked(99)), over_mean(16, asked(99)))


def test_requests_of_a_server_with_a_short_context_are_no_longer_than_it() -> None:
    tight = replace(SCHEDULER, max_model_len=1200)
    found = percentile_factors(LAW, tight, 8, CHATS, asked(95), seed=1)
    assert (found.over_mean > 0.5).all()
