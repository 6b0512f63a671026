"""Choosing profile and replicas under uncertainty: sums that can be done by hand."""

import numpy as np
import pandas as pd
import pytest

from sextant.decide.decision import best_probe, choose, sustained, weigh
from sextant.decide.sizing import candidates, recommend
from sextant.facts.gpu import GPU, GPUProfile
from sextant.facts.slo import SLO
from sextant.predict.latencies import Draws

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


def test_users_sustained_stop_at_the_first_broken_limit() -> None:
    draws = latencies((8, 8))
    draws.samples_ms[0, 1, 1] = 11.0  # two users on the cheap profile break the ITL limit
    assert sustained(draws, LIMITS).to_numpy().tolist() == [[1, 8]]


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


def test_the_choice_is_the_worthiest_or_the_cheapest_within_the_risk() -> None:
    options = weigh(latencies((4, 4), (4, 4), (4, 4), (1, 4)), PROFILES, LIMITS)
    best = choose(options).iloc[0]
    assert (best["gpu_profile_id"], best["replicas"]) == ("cheap", 2)
    assert best["probability_met"] == 0.75
    sure = choose(options, risk=0.1).iloc[0]
    assert (sure["gpu_profile_id"], sure["replicas"]) == ("dear", 2)
    assert sure["usd_per_hour"] == 6.0


def test_without_doubt_the_choice_is_that_of_the_paper() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        draws = latencies(tuple(rng.choice([0, 1, 2, 4, 8], 2)))
        chosen = choose(weigh(draws, PROFILES, LIMITS)).iloc[0]
        frame = X.assign(nttft_ms=draws.samples_ms[0, :, 0], itl_ms=draws.samples_ms[0, :, 1])
        paper = recommend(candidates(frame, ["m"], PROFILES, LIMITS)).iloc[0]
        if pd.isna(paper["gpu_profile_id"]):
            assert pd.isna(chosen["gpu_profile_id"])
        else:
            assert chosen["usd_per_hour"] == paper["usd_per_hour"]


def test_what_no_draw_allows_is_no_answer() -> None:
    options = weigh(latencies((0, 0), (0, 0)), PROFILES, LIMITS)
    for risk in (None, 0.5):
        assert pd.isna(choose(options, risk).iloc[0]["gpu_profile_id"])


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
