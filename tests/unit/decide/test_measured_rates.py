"""Requests that came at measured rates bound what a replica bears."""

import numpy as np
import pandas as pd
import pytest

from sextant.decide.measured_rates import measured_bounds, rate_latencies, rate_points
from sextant.facts.slo import SLO
from sextant.points.frame import complete

LIMITS = SLO(
    "x", ttft_ms=1000.0, tpot_ms=40.0, ttft_percentile=95, tpot_percentile=50, request_rate_rps=20.0
)


def points(*rates, **columns) -> pd.DataFrame:
    """Return points of one GPU profile: rate, TTFT at p95, failed requests of 1,000."""
    rows = [
        {
            "llm_id": "m", "gpu_profile_id": "1xH100-80GB", "request_rate_rps": rate,
            "p95_ttft_ms": ttft_ms, "median_ttft_ms": ttft_ms and ttft_ms / 2,
            "median_tpot_ms": 20.0, "n_ok": 1000 - failed, "n_failed": failed,
            "input_tokens": 1000.0, "output_tokens": 200.0,
        }
        | columns
        for rate, ttft_ms, failed in rates
    ]  # fmt: skip
    return complete(pd.DataFrame(rows))


@pytest.mark.parametrize(
    ("rates", "served", "missed", "by"),
    [
        ([(2, 100, 0), (8, 400, 0), (12, 3500, 0)], 8, 12, "TTFT 3,500 ms"),
        ([(2, 100, 0), (8, 400, 0)], 8, None, None),
        ([(2, 1200, 0), (8, 400, 0)], None, 2, "TTFT 1,200 ms"),
        # Failures bound it, however fast the other answers were.
        ([(2, 100, 0), (8, 90, 500), (12, 95, 0)], 2, 8, "50 % of the requests failed"),
        # A rate that was measured twice is borne where both runs met the limits.
        ([(2, 100, 0), (8, 400, 0), (8, 1100, 0)], 2, 8, "TTFT 1,100 ms"),
        ([(2, 100, 0), (8, None, 0)], 2, 8, "TTFT is not known"),
        ([(2, None, 1000)], None, 2, "100 % of the requests failed"),
    ],
)
def test_served_and_missed_rates_bound_what_a_replica_bears(rates, served, missed, by):
    (bound,) = measured_bounds(points(*rates), LIMITS)
    assert (bound.served_rps, bound.missed_rps, bound.missed_by) == (served, missed, by)


def test_bounds_in_words():
    served, least, unborne = (
        measured_bounds(points(*rates), LIMITS)[0].words
        for rates in ([(4, 90, 0), (6, 2e3, 0)], [(4, 90, 0)], [(4, 2e3, 0)])
    )
    missed = "missed the limits (TTFT 2,000 ms): a replica bears"
    assert served == f"On 1xH100-80GB 6 requests/s {missed} between 4 and 6 requests/s."
    assert least == "No more than 4 requests/s were tried on 1xH100-80GB: a replica may bear more."
    assert unborne == f"On 1xH100-80GB 4 requests/s {missed} less."


def test_points_of_several_servers_or_lengths_say_nothing():
    one = points((2, 100, 0), (8, 400, 0))
    assert measured_bounds(one, LIMITS)
    for column, value in (("output_tokens", 400.0), ("engine_version", "0.9")):
        other = one.copy()
        other.loc[1, column] = value
        assert measured_bounds(other, LIMITS) == []
    assert measured_bounds(points((2, 100, 0), users=4), LIMITS) == []  # of users
    assert measured_bounds(one, SLO("x", ttft_ms=1000.0, percentile=50, users=8)) == []


def test_users_in_flight_do_not_fall_with_the_rate():
    """A faster run at a higher rate, or one without E2E, leaves the order of the rates."""
    frame = points((2, 900, 0), (4, 100, 0), (6, None, 1000), mean_e2e_ms=np.nan)
    frame["mean_e2e_ms"] = [9000.0, 1000.0, np.nan]
    frame[["median_ttft_ms", "median_tpot_ms", "median_itl_ms"]] = np.nan
    latencies = rate_latencies(rate_points(frame), LIMITS)
    assert latencies["request_rate_rps"].tolist() == [2, 4, 6]
    assert latencies["users"].tolist() == [18, 18, 18]
