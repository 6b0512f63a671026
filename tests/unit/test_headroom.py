"""What a deployment costs, its room to the limits and a replica less, worked out by hand."""

import numpy as np
import pandas as pd
import pytest

from sextant.answer.text import headroom_lines, loss_words, next_words
from sextant.decide.headroom import compare_options, measure_headroom, token_prices
from sextant.facts.slo import SLO

# E2E of 100 input and 101 output tokens: 1.1, 2.1 and 4.2 s.
CURVE = pd.DataFrame({
    "users": [1, 4, 8],
    "nttft_ms": [1.0, 1.0, 2.0], "nttft_lo_ms": [0.9, 0.9, 1.5], "nttft_hi_ms": [1.1, 1.2, np.nan],
    "itl_ms": [10.0, 20.0, 40.0], "itl_lo_ms": [9.0, 19.0, 36.0], "itl_hi_ms": [11.0, 21.0, 44.0],
    "input_tokens": 100.0, "output_tokens": 101.0, "request_rate_rps": np.nan,
})  # fmt: skip
LIMITS = SLO("s", ttft_ms=500.0, itl_ms=25.0, percentile=50, users=12)


def test_room_price_and_loss_of_users_by_hand():
    found = measure_headroom(CURVE, LIMITS, replicas=4, usd_per_hour=7.3)
    assert (found["users_per_replica"], found["level_users"]) == (3, 4)
    ttft, itl = found["limits"]
    assert (ttft["metric"], ttft["latency_ms"], ttft["lo_ms"]) == ("ttft", 100.0, 90.0)
    assert (ttft["headroom"], ttft["load"], ttft["is_most_tried"]) == (0.8, 32.0, True)
    assert (itl["latency_ms"], itl["hi_ms"]) == (20.0, 21.0)
    assert itl["headroom"] == pytest.approx(0.2)
    assert (itl["load"], found["load"], found["is_most_tried"]) == (16.0, 16.0, False)
    assert found["without_one"] == {"replicas": 3, "load": 12.0, "is_kept": True}
    # By Little's law 4 users of 2.1 s: 1.905 requests/s, so 3 of them carry three quarters of it.
    assert found["requests_per_s"] == pytest.approx(4 * 3 / 2.1)
    assert found["usd_per_month"] == pytest.approx(5329)
    by_hand = 7.3 / 3600 / (4 * 3 / 2.1) / 201 * 1e6
    assert found["usd_per_million_tokens"] == pytest.approx(by_hand)
    lines = headroom_lines(found, LIMITS.facts())
    assert "A replica gets 3 users (judged at 4, the next load tried); 90% intervals" in lines[1]
    assert lines[2] == (
        "  TTFT 100 ms (90 to 120), limit 500 ms at p50: 80 % of room; at least 32 users, the most "
        "that was tried (20 more than asked)"
    )
    assert lines[-1] == "If one replica is lost, the SLO is still kept: the 3 left carry 12 users."


def test_what_was_measured_counts_before_littles_law():
    curve = CURVE.assign(request_rate_rps=[0.5, 1.0, 1.5])
    found = measure_headroom(curve, LIMITS, replicas=4, usd_per_hour=1.0)
    assert found["requests_per_s"] == pytest.approx(4 * 1.0 * 3 / 4)


def test_a_rate_is_shared_by_the_replicas_that_are_left():
    slo = SLO("s", itl_ms=25.0, percentile=50, request_rate_rps=3.0)
    found = measure_headroom(CURVE, slo, replicas=2, usd_per_hour=2.0)
    # 1.5 requests/s take the second point, which carries 4 / 2.1.
    assert (found["users_per_replica"], found["level_users"]) == (4, 4)
    assert found["load"] == pytest.approx(2 * 4 / 2.1)
    assert found["without_one"]["is_kept"] is False
    assert found["requests_per_s"] == 3.0
    assert loss_words(found, slo.facts()) == (
        "the SLO is not kept: the 1 left carries 1.9 requests/s within the limits, "
        "63.5 % of the load"
    )
    assert measure_headroom(CURVE, slo, 1, 1.0)["without_one"] is None


def test_the_price_at_which_another_option_wins():
    chosen = {"gpu_profile_id": "a", "replicas": 2, "usd_per_hour": 0.2}
    other = {"gpu_profile_id": "b", "replicas": 1, "users_per_replica": 8, "usd_per_hour": 0.3}
    found = compare_options(chosen, other)
    assert (found["extra_usd_per_hour"], found["wins_below_usd_per_hour"]) == (0.1, 0.2)
    assert next_words(found) == (
        "1 replica × b, 0.1 USD/h more; wins below 0.2 USD/h a replica (now 0.3, 33.3 % less)"
    )


def test_tokens_share_a_price_as_they_are_told():
    assert token_prices(3.6, 1.0, (100, 300)) == pytest.approx((2.5, 2.5))
    assert token_prices(3.6, 1.0, (100, 300), 0.1) == pytest.approx((1.0, 3.0))
