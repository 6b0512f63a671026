"""Choosing profile and replicas under uncertainty: sums that can be done by hand."""

from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest

from sextant.decide.decision import best_probe, choose, measured_draws, weigh, with_probabilities
from sextant.decide.sizing import candidates, recommend_cheapest
from sextant.facts.gpu import GPU, GPUProfile
from sextant.facts.slo import SLO
from sextant.points.frame import IDENTIFIERS, complete, judged
from sextant.points.metrics import PERCENTILES, metric_intervals
from sextant.predict.predictor import Draws

LIMITS = SLO("s", nttft_ms=10.0, itl_ms=10.0, percentile=50, users=8)
DEVICE = GPU("g", "gpu", "a", 16.0, 300.0, 60.0, 16.0, "invented")
PROFILES = {
    "cheap": GPUProfile("cheap", DEVICE, 1, 1.0),
    "dear": GPUProfile("dear", DEVICE, 2, 3.0),
}
USERS = (1, 2, 4, 8)
X = pd.DataFrame(
    [("m", profile, users) for profile in PROFILES for users in USERS],
    columns=["llm_id", "gpu_profile_id", "users"],
)


def latencies(*served: tuple[int, int]) -> Draws:
    """Return draws in which the profiles serve this many users each (cheap, dear)."""
    good = [[users <= n for n in draw for users in USERS] for draw in served]
    values = np.where(good, 5.0, 20.0)
    return Draws(X, np.stack([values, np.full_like(values, 5.0)], axis=2))


def option(options: pd.DataFrame, profile: str, replicas: int) -> pd.Series:
    return options.set_index(["gpu_profile_id", "replicas"]).loc[(profile, replicas)]


def test_probability_and_worth_of_an_option() -> None:
    # The cheap profile serves 4 users in three draws of four and 1 in the last; so two replicas
    # (2 USD/h) do in three, eight (8 USD/h) always. Two dear ones (6 USD/h) always do.
    options = weigh(latencies((4, 4), (4, 4), (4, 4), (1, 4)), PROFILES, LIMITS)
    assert option(options, "cheap", 2)["probability_met"] == 0.75
    assert option(options, "cheap", 2)["expected_utility"] == pytest.approx(0.75 * (2 - 1))
    assert option(options, "cheap", 8)["probability_met"] == 1.0
    # The best price is 2 USD/h in three draws, 6 USD/h in one.
    worth = 0.75 * (2 - 8 / 2) + 0.25 * (2 - 8 / 6)
    assert option(options, "cheap", 8)["expected_utility"] == pytest.approx(worth)
    dear = 0.75 * (2 - 6 / 2) + 0.25 * (2 - 1)
    assert option(options, "dear", 2)["expected_utility"] == pytest.approx(dear)
    assert option(options, "cheap", 2)["users_per_replica"] == 4
    bounds = option(options, "cheap", 2)[["users_lo", "users_median", "users_hi"]]
    assert bounds.tolist() == [1, 4, 4]
    # The choice is the worthiest, or the cheapest within the risk.
    best = choose(options).iloc[0]
    assert (best["gpu_profile_id"], best["replicas"]) == ("cheap", 2)
    assert best["probability_met"] == 0.75
    never = weigh(latencies((0, 0), (0, 0)), PROFILES, LIMITS)
    assert all(pd.isna(choose(never, risk).iloc[0]["gpu_profile_id"]) for risk in (None, 0.5))
    sure = choose(options, risk=0.1).iloc[0]
    assert (sure["gpu_profile_id"], sure["replicas"]) == ("dear", 2)
    assert sure["usd_per_hour"] == 6.0


def test_of_options_at_one_price_the_likelier_wins_then_fewer_devices() -> None:
    tied = pd.DataFrame(
        [("a", 4, 8, 0.8), ("b", 2, 8, 0.9), ("c", 1, 4, 0.9), ("d", 1, 5, 0.9)],
        columns=["gpu_profile_id", "replicas", "devices", "probability_met"],
    ).assign(
        llm_id="m", users_per_replica=1, usd_per_hour=6.0, expected_utility=0.7, status="meets"
    )
    for choice in (choose(tied), choose(tied, 0.3), recommend_cheapest(tied)):
        assert choice.iloc[0]["gpu_profile_id"] == "c"
    assert option(weigh(latencies((4, 4)), PROFILES, LIMITS), "dear", 2)["devices"] == 4


def test_without_doubt_the_choice_is_that_of_the_paper() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        draws = latencies(tuple(rng.choice([0, 1, 2, 4, 8], 2)))
        chosen = choose(weigh(draws, PROFILES, LIMITS)).iloc[0]
        frame = X.assign(nttft_ms=draws.samples_ms[0, :, 0], itl_ms=draws.samples_ms[0, :, 1])
        paper = recommend_cheapest(candidates(frame, ["m"], PROFILES, LIMITS)).iloc[0]
        if pd.isna(paper["gpu_profile_id"]):
            assert pd.isna(chosen["gpu_profile_id"])
        else:
            assert chosen["usd_per_hour"] == paper["usd_per_hour"]


def test_the_probe_is_the_profile_that_tells_of_the_others() -> None:
    rng = np.random.default_rng(1)
    names = ("alone", "leader", "follower", "other")
    rows = pd.DataFrame(
        [("m", name, users) for name in names for users in (1, 2)],
        columns=["llm_id", "gpu_profile_id", "users"],
    )
    common, own = rng.normal(0, 1, (500, 1)), rng.normal(0, 0.5, (500, 4))
    share = np.array([0.0, 1.0, 0.6, 0.6])
    own[:, 1] *= 0.1
    level = common * share + own
    samples = np.exp(np.repeat(level, 2, axis=1)[..., None].repeat(2, axis=2))

    draws = Draws(rows, samples)
    profiles = dict.fromkeys(names, PROFILES["cheap"])
    assert best_probe(draws, profiles) == "leader"
    assert best_probe(draws, profiles, [LIMITS]) in names


P90 = [*PERCENTILES].index("p90")


@pytest.mark.parametrize("n_requests", [8, 20, 60, 300])
def test_the_truth_is_inside_nine_times_of_ten(n_requests):
    rng, truth = np.random.default_rng(n_requests), np.exp(NormalDist().inv_cdf(0.9) / 2)
    n_inside = dict.fromkeys(("median", "p90"), 0)
    for _ in range(200):
        found = metric_intervals(np.exp(rng.normal(size=n_requests) / 2), np.ones(n_requests, int))
        for name, place, true in (("median", 0, 1.0), ("p90", P90, truth)):
            low, high = found[place]
            # An end that is not known excludes nothing.
            n_inside[name] += not (low > true or high < true)
    assert min(n_inside.values()) >= 175


def test_requests_served_one_after_the_other_are_not_taken_for_independent():
    rng, n_inside, n_draws = np.random.default_rng(5), 0, 300
    for _ in range(n_draws):
        values = rng.normal(size=100)
        for place in range(1, 100):  # each is correlated by 0.5 with the one before
            values[place] = 0.5 * values[place - 1] + 0.75**0.5 * values[place]
        low, high = metric_intervals(values, np.ones(100, int))[0]
        n_inside += low <= 0 <= high
    # Taken for independent, 78% would be.
    assert n_inside / n_draws >= 0.83


ASKED = SLO("s", nttft_ms=2.0, itl_ms=22.0, percentile=50, users=16)


def points(bounds_ms, itl_ms=(10.0, 20.0)):
    """Return points of 1 and 8 users whose ITL has these bounds; nTTFT is exact."""
    frame = pd.DataFrame({"llm_id": "m", "gpu_profile_id": "p", "users": [1, 8]})
    frame = frame.assign(median_itl_ms=itl_ms, median_nttft_ms=1.0)
    frame = frame.assign(median_nttft_lo_ms=1.0, median_nttft_hi_ms=1.0)
    frame[["median_itl_lo_ms", "median_itl_hi_ms"]] = bounds_ms
    return judged(complete(frame), ASKED)


def test_draws_have_the_intervals_of_their_points():
    draws = measured_draws(points([[9, 12], [15, 40]]), ASKED, seed=1).limited_ms
    low, median, high = np.quantile(draws["itl"], [0.05, 0.5, 0.95], axis=0)
    assert low == pytest.approx([9, 15], rel=0.03) and high == pytest.approx([12, 40], rel=0.06)
    assert median == pytest.approx([10, 20], rel=0.03)
    assert (draws["nttft"] == 1).all()


def test_what_bounds_a_point_of_few_requests_is_the_next_larger_load():
    unknown = np.nan
    draws = measured_draws(points([[9, unknown], [15, 40]]), ASKED, seed=1)
    fewest, more = draws.limited_ms["itl"].T
    assert np.isfinite(fewest).all() and (fewest <= np.maximum(more, 10)).all()
    open_ended = points([[9, 12], [15, unknown]])
    largest = measured_draws(open_ended, ASKED, seed=1).limited_ms["itl"][:, 1]
    assert np.isinf(largest).mean() == pytest.approx(0.5, abs=0.05)
    bare = points([[unknown, unknown]] * 2)
    slo = SLO("s", itl_ms=22.0, percentile=50, users=16)
    assert measured_draws(bare, slo, seed=1) is None


def test_the_probability_of_a_measured_option_and_the_risk_that_it_allows():
    gpu = GPU("g", "gpu", "none", 40, 1000, 100, 10, "a test")
    profiles = {"p": GPUProfile("p", gpu, 1, 2.0)}
    slo, curve = SLO("s", itl_ms=22.0, percentile=50, users=16), points([[9, 12], [15, 40]])
    found = candidates(curve, ["m"], profiles, slo)
    draws = measured_draws(curve, slo, seed=1)
    (row,) = with_probabilities(found, draws, slo).to_dict("records")
    # Two replicas of 8 users; log(22/20) is 0.23 standard deviations of that side.
    assert (row["replicas"], row["usd_per_hour"]) == (2, 4.0)
    assert row["probability_met"] == pytest.approx(0.59, abs=0.03)
    assert row["probability_met"] == (draws.limited_ms["itl"][:, 1] <= 22).mean()
    (safe,) = choose(weigh(draws, profiles, slo), risk=0.1).to_dict("records")
    assert (safe["replicas"], safe["users_per_replica"]) == (16, 1)
    assert [safe[name] for name in IDENTIFIERS] == ["m", "p"]
