"""Eq. 1-3 on examples computed by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from sextant.answer.words import headroom_lines, loss_words, next_words
from sextant.ask.caveats import estimates
from sextant.decide.decision import choose, weigh
from sextant.decide.headroom import LostReplica, compare_options, measure_headroom
from sextant.decide.sizing import candidates, recommend_cheapest, size_replicas, u_max
from sextant.facts.gpu import GPU, GPUProfile, token_prices
from sextant.facts.slo import SLO
from sextant.points.frame import at_percentile, estimated, has_latency
from sextant.predict.predictor import Draws

GPU_X = GPU("x", "gpu", "x", 16.0, 300.0, 60.0, 32.0, "invented")
PROFILES = {
    "cheap": GPUProfile("cheap", GPU_X, 1, 1.0),
    "dear": GPUProfile("dear", GPU_X, 2, 2.5),
    "empty": GPUProfile("empty", GPU_X, 4, 0.1),
}
SLO_200 = SLO("chat", nttft_ms=100.0, itl_ms=50.0, percentile=50, users=200)


def latencies(llm_id: str, profile_id: str, rows: list[tuple]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["users", "nttft_ms", "itl_ms"])
    return frame.assign(llm_id=llm_id, gpu_profile_id=profile_id)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(1, 10, 10), (2, 20, 20), (4, 30, 60)], 2),
        ([(1, 10, 10), (2, 100, 50)], 2),  # a limit reached exactly is kept
        ([(1, 101, 10), (2, 10, 10)], 0),  # a smaller user count that fails counts
        ([(1, 10, 10), (2, 10, 51), (4, 10, 10)], 1),
        ([(4, 10, 60), (1, 10, 10), (2, 20, 20)], 2),  # in any order
        ([(1, 10, 10), (2, np.nan, np.nan), (4, 10, 10)], 1),  # nothing succeeded at 2
        ([(1, 10, 10), (8, 20, 20)], 8),  # 2 and 4 were never tried
        ([(1, np.nan, np.nan)], 0),
        ([(1, 10, 10), (2, 10, 0.0)], 1),  # no time passed: the client saw tokens in a bunch
    ],
)
def test_u_max_holds_both_limits_at_every_smaller_user_count(rows, expected):
    assert u_max(latencies("m", "cheap", rows), SLO_200) == expected


@pytest.mark.parametrize(("served", "expected"), [(32, 7), (64, 4), (200, 1), (256, 1), (1, 200)])
def test_replicas_round_up(served, expected):
    assert size_replicas(200, served) == expected


def test_levels_that_are_no_powers_of_two_and_differ_between_profiles_decide():
    cheap = latencies("m", "cheap", [(3, 10, 20), (48, 20, 45), (56, 25, 55)])  # 5 x 1.0 USD
    dear = latencies("m", "dear", [(45, 10, 20), (91, 20, 50)])  # 3 x 2.5 USD
    frame = pd.concat([cheap, dear], ignore_index=True)
    rows = candidates(frame, ["m"], PROFILES, SLO_200)
    needed = rows.set_index("gpu_profile_id")["replicas"].dropna().to_dict()
    assert needed == {"cheap": 5, "dear": 3}
    X = frame[["llm_id", "gpu_profile_id", "users"]]
    known = Draws(X, frame[["nttft_ms", "itl_ms"]].to_numpy(float)[None])
    options = weigh(known, PROFILES, SLO_200)
    met = options[options["probability_met"] == 1].groupby("gpu_profile_id")["replicas"].min()
    assert met.to_dict() == needed
    assert (
        choose(options).iloc[0]["usd_per_hour"]
        == recommend_cheapest(rows).iloc[0]["usd_per_hour"]
        == 5.0
    )


def test_a_rejected_profile_says_why_and_by_how_much():
    tried = {"cheap": [(1, 150, 40), (2, 160, 45)], "dear": [(1, 110, 75), (2, 160, 80)]}
    frame = pd.concat(latencies("slow", name, rows) for name, rows in tried.items())
    rows = candidates(frame, ["slow"], PROFILES, SLO_200, {("slow", name) for name in tried})
    table = rows.set_index("gpu_profile_id")
    said = {"cheap": "too_slow", "dear": "too_slow", "empty": "does_not_fit"}
    assert table["status"].to_dict() == said
    ratios = table.loc["cheap", ["nttft_ratio", "itl_ratio", "limit_ratio"]]
    assert ratios.tolist() == [1.5, 0.8, 1.5]
    assert table.loc["dear", "limit_ratio"] == 1.5  # 75 ms over 50 ms
    assert table["replicas"].isna().all()
    best = recommend_cheapest(rows).iloc[0]
    assert best["llm_id"] == "slow"
    assert pd.isna(best["gpu_profile_id"]) and pd.isna(best["usd_per_hour"])


def test_the_percentile_chooses_the_columns():
    names = [f"{p}_{t}_ms" for p in ("median", "p90", "p99") for t in ("nttft", "itl")]
    points = pd.DataFrame([["m", "cheap", 1, 1, 2, 3, 4, None, 6]])
    points.columns = ["llm_id", "gpu_profile_id", "users", *names]
    points["throughput_tok_s"] = 7
    assert at_percentile(points, (50, 50))[["nttft_ms", "itl_ms"]].iloc[0].tolist() == [1, 2]
    assert at_percentile(points, (90, 90))[["nttft_ms", "itl_ms"]].iloc[0].tolist() == [3, 4]
    mixed = at_percentile(points, (50, 90))
    assert mixed[["nttft_ms", "itl_ms"]].iloc[0].tolist() == [1, 4]
    assert estimated(points, {"nttft_ms": 50, "itl_ms": 90}) == {}
    assert not has_latency(mixed.assign(itl_ms=np.nan)).any()


def test_a_percentile_that_a_source_lacks_is_estimated_from_the_nearest_that_it_has():
    known = {"median_nttft_ms": [1, 2], "p90_nttft_ms": [4, np.nan], "p99_nttft_ms": [8, np.nan]}
    points = pd.DataFrame({"users": [1, 2], "source": ["old", "new"], **known})
    points = points.assign(llm_id="m", gpu_profile_id="cheap", mean_itl_ms=[10.0, 20.0])
    points = points.assign(throughput_tok_s=1.0)
    first, second = at_percentile(points, (95, 99))[["nttft_ms", "itl_ms"]].to_numpy()
    # Between p90 and p99 on the normal scale, log-linear: (1.645 - 1.282) / (2.326 - 1.282).
    assert first == pytest.approx([4.0 * 2**0.348, 10 * 2.5], rel=1e-3)
    assert second == pytest.approx([2 * 1.91, 20 * 2.5])
    used = {"nttft_ms": [*known], "itl_ms": ["mean_itl_ms"]}
    assert estimated(points, {"nttft_ms": 95, "itl_ms": 50}) == used
    mixed = points.assign(p95_nttft_ms=[7.0, np.nan])
    (said,) = estimates(mixed, SLO("s", nttft_ms=9.0, percentile=95, users=1))
    assert said.startswith("Some points lack the p95 of the TTFT: there it is estimated from the m")


def test_a_limit_of_ttft_is_compared_with_ttft_where_lengths_differ():
    points = pd.DataFrame({"llm_id": "m", "gpu_profile_id": "cheap", "users": [1, 2]})
    points = points.assign(input_tokens=100.0, p90_nttft_ms=9.0, p90_ttft_ms=[300.0, np.nan])
    for first_token, expected in (("nttft", [9, 9]), ("ttft", [3, 9])):
        found = at_percentile(points, (90, 90), first_token)["nttft_ms"]
        assert found.tolist() == expected
    made = {name: SLO("s", percentile=50, users=1, **{name: 9.0}) for name in ("ttft_ms", "itl_ms")}
    assert [slo.first_token for slo in made.values()] == ["ttft", "nttft"]


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
    assert (found.users_per_replica, found.level_users) == (3, 4)
    ttft, itl = found.limits
    assert (ttft.metric, ttft.latency_ms, ttft.lo_ms) == ("ttft", 100.0, 90.0)
    assert (ttft.headroom, ttft.load, ttft.is_most_tried) == (0.8, 32.0, True)
    assert (itl.latency_ms, itl.hi_ms) == (20.0, 21.0)
    assert itl.headroom == pytest.approx(0.2)
    assert (itl.load, found.load, found.is_most_tried) == (16.0, 16.0, False)
    assert found.to_dict()["without_one"] == {"replicas": 3, "load": 12.0, "is_kept": True}
    # By Little's law 4 users of 2.1 s: 1.905 requests/s, so 3 of them carry three quarters of it.
    assert found.requests_per_s == pytest.approx(4 * 3 / 2.1)
    # Each serves 4 users within the limits.
    assert found.most_requests_per_s == pytest.approx(4 * 4 / 2.1)
    assert found.usd_per_month == pytest.approx(5329)
    by_hand = 7.3 / 3600 / (4 * 3 / 2.1) / 201 * 1e6
    assert found.usd_per_million_tokens == pytest.approx(by_hand)
    ten = measure_headroom(CURVE, replace(LIMITS, users=10), replicas=3, usd_per_hour=7.3)
    assert ten.users_per_replica == 4 and ten.requests_per_s == pytest.approx(10 / 2.1)
    lines = headroom_lines(found, LIMITS)
    assert (
        "gets 3 users (judged at 4 users, the nearest load above that was tried); 90%" in lines[1]
    )
    rooms = [replace(room, lo_ms=None, hi_ms=None) for room in found.limits]
    unknown = replace(found, limits=tuple(rooms))
    assert headroom_lines(unknown, LIMITS)[1].endswith("the nearest load above that was tried):")
    assert lines[2] == (
        "  TTFT 100 ms (90 to 120), limit 500 ms at p50: 80 % below it; at least 32 users, as no "
        "more than 8 users a replica were tried (20 more than asked)"
    )
    assert lines[-1] == "If one replica is lost, the SLO is still kept: the 3 left carry 12 users."


def test_a_rate_is_shared_by_the_replicas_that_are_left():
    slo = SLO("s", itl_ms=25.0, percentile=50, request_rate_rps=3.0)
    found = measure_headroom(CURVE, slo, replicas=2, usd_per_hour=2.0)
    # 1.5 requests/s take the second point, which carries 4 / 2.1.
    assert (found.users_per_replica, found.level_users) == (4, 4)
    assert found.load == pytest.approx(2 * 4 / 2.1)
    assert found.without_one.is_kept is False
    assert found.requests_per_s == 3.0
    said = "is not kept: the 1 left carries 1.9 requests/s within the limits, 63.5 % of the load"
    assert loss_words(found, slo) == f"the SLO {said}"
    assert measure_headroom(CURVE, slo, 1, 1.0).without_one is None
    # Of a simulated rate 134% of the load is not enough: a probability is said, and no share.
    for replicas, verb in ((3, "keep"), (1, "keeps")):
        left = LostReplica(replicas, load=40.2, is_kept=False, probability_met=0.861)
        said = loss_words(replace(found, without_one=left), slo)
        assert said == f"the {replicas} left {verb} the SLO with probability 0.86"


def test_the_price_at_which_another_option_wins():
    chosen = {"gpu_profile_id": "a", "replicas": 2, "usd_per_hour": 0.2}
    other = {"gpu_profile_id": "b", "replicas": 1, "users_per_replica": 8, "usd_per_hour": 0.3}
    found = compare_options(chosen, other)
    assert (found.extra_usd_per_hour, found.wins_below_usd_per_hour) == (0.1, 0.2)
    said = "wins below 0.20 USD/h a replica (now 0.30, 33.3 % less)"
    assert next_words(found) == f"1 replica × b, 0.10 USD/h more; {said}"


def test_tokens_share_a_price_as_they_are_told():
    assert token_prices(3.6, 1.0, (100, 300)) == pytest.approx((2.5, 2.5))
    assert token_prices(3.6, 1.0, (100, 300), 0.1) == pytest.approx((1.0, 3.0))
