"""Eq. 5-7 on examples computed by hand."""

import numpy as np
import pandas as pd
import pytest

from sextant.decide.sizing import candidates, recommend_cheapest
from sextant.facts.gpu import GPU, GPUProfile
from sextant.facts.slo import SLO
from sextant.judge.score import best_policy, mape, score_recommendation, so_score, summarize
from sextant.points.frame import TARGETS


@pytest.mark.parametrize(
    ("success_rate", "overspend", "expected"),
    [
        (1.0, 0.0, 1.0),
        (0.8, 0.2, 0.8),
        (0.5, 0.0, 2 / 3),
        (0.5, 0.25, 0.6),  # 2 x 0.5 x 0.75 / 1.25
        (1.0, 1.7, 0.0),  # an overspend above 100 % is as bad as 100 %
        (0.0, None, 0.0),
    ],
)
def test_so_score_is_the_harmonic_mean(success_rate, overspend, expected):
    assert so_score(success_rate, overspend) == pytest.approx(expected)


@pytest.fixture
def judged() -> pd.DataFrame:
    """Five LLMs: two successes, too few replicas, no recommendation, nobody serves it."""
    # Loads of a replica: best 4 x 1 USD, the optimum; dear 8 x 1 or 2 x 6 USD.
    served = [("best", "a", 50), ("dear", "a", 25), ("dear", "b", 100), ("few", "a", 40)]
    served += [("none", "a", 200), ("left_out", "a", 0)]
    ids = ["llm_id", "gpu_profile_id"]
    truth = pd.DataFrame(served, columns=[*ids, "load_per_replica"])
    cheapest = {"best": 4.0, "dear": 8.0, "few": 5.0, "none": 1.0, "left_out": None}
    optimum = pd.DataFrame({"llm_id": [*cheapest], "usd_per_hour": [*cheapest.values()]})
    chosen = [("best", "a", 4, 4.0), ("dear", "b", 2, 12.0), ("few", "a", 4, 4.0)]
    chosen += [("none", None, None, None), ("left_out", "a", 4, 4.0)]
    recommended = pd.DataFrame(chosen, columns=[*ids, "replicas", "usd_per_hour"])
    return score_recommendation(recommended, truth, optimum, load=200).set_index("llm_id")


def test_each_recommendation_is_judged_against_the_truth(judged):
    success = judged["is_success"].drop("left_out").astype(bool).to_dict()
    assert success == {"best": True, "dear": True, "few": False, "none": False}
    assert judged["overspend"].dropna().to_dict() == {"best": 0.0, "dear": 0.5}
    assert judged.loc["left_out", ["is_success", "overspend"]].isna().all()


def test_the_summary_counts_failures_and_leaves_out_the_unservable(judged):
    summary = summarize(judged.reset_index())
    assert summary._asdict() == pytest.approx(
        {"n_llms": 4, "n_left_out": 1, "success_rate": 0.5, "overspend": 0.25, "so_score": 0.6}
    )
    # Without success the overspend is undefined and the score 0.
    summary = summarize(judged.loc[["few", "none"]].reset_index())
    assert (summary.success_rate, summary.overspend, summary.so_score) == (0.0, None, 0.0)


def test_mape_is_a_fraction_over_shared_rows():
    measured = pd.DataFrame(
        [("m", "a", 1, 10.0, 20.0), ("m", "a", 2, 20.0, 40.0)],
        columns=["llm_id", "gpu_profile_id", "users", "nttft_ms", "itl_ms"],
    )
    predicted = measured.assign(nttft_ms=[15.0, 20.0], itl_ms=[10.0, 80.0])
    predicted.loc[2] = ["m", "b", 1, 1.0, 1.0]
    errors = mape(predicted, measured)
    assert errors.mape_nttft == pytest.approx(0.25)  # (0.5 + 0) / 2
    assert errors.mape_itl == pytest.approx(0.75)  # (0.5 + 1) / 2


GPU_X = GPU("x", "gpu", "x", 16.0, 300.0, 60.0, 32.0, "invented")
PROFILES = {"a": GPUProfile("a", GPU_X, 1, 1.0), "b": GPUProfile("b", GPU_X, 2, 2.5)}
LIMITS = SLO("s", nttft_ms=10.0, itl_ms=10.0, percentile=50, users=12)


def world(served: dict[tuple[str, str], int]) -> pd.DataFrame:
    """Return latencies whose true u_max is as given; user counts are 1, 2, 4 and 6."""
    rows = [
        (llm_id, profile_id, users, 1.0 if users <= most else 99.0)
        for (llm_id, profile_id), most in served.items()
        for users in (1, 2, 4, 6)
    ]
    frame = pd.DataFrame(rows, columns=["llm_id", "gpu_profile_id", "users", "nttft_ms"])
    return frame.assign(itl_ms=1.0)


def decide(latencies: pd.DataFrame, llm_ids: list[str], profiles=PROFILES) -> pd.DataFrame:
    truth = candidates(latencies, sorted(latencies["llm_id"].unique()), profiles, LIMITS)
    return best_policy(truth, recommend_cheapest(truth), LIMITS.users).decide(llm_ids)


def test_the_policy_with_the_best_so_score_wins():
    # Replicas needed for 12 users, USD:  m1: a 2 = 2.0   m2: a 3 = 3.0   m3: a 12 = 12.0
    # 2 x a: S 1/3, O 0.    3 x a: S 2/3, O mean(0.5, 0) = 0.25, S/O 0.7059.
    # 12 x a: overspends by 5, 3 and 0, S/O 0.
    rows = world({("m1", "a"): 6, ("m2", "a"): 4, ("m3", "a"): 1})
    decided = decide(rows, ["new", "other"])
    assert decided["llm_id"].tolist() == ["new", "other"]
    assert decided.drop(columns="llm_id").drop_duplicates().values.tolist() == [["a", 3, 3.0]]


def test_a_dearer_profile_wins_where_it_serves_everybody():
    # 2 x b = 5.0 serves both; the optima are 3.0 (a) and 5.0 (b): S 1, O 1/3, S/O 0.8.
    # 3 x a = 3.0 serves m1 only: S 1/2, O 0, S/O 0.667.
    rows = world({("m1", "a"): 4, ("m1", "b"): 6, ("m2", "a"): 0, ("m2", "b"): 6})
    decided = decide(rows, ["new"])
    assert decided.iloc[0].tolist() == ["new", "b", 2, 5.0]


def test_an_llm_that_nothing_serves_has_no_say_and_missing_latencies_meet_nothing():
    rows = world({("m1", "a"): 6, ("hopeless", "a"): 0, ("failed", "a"): 6})
    rows.loc[rows["llm_id"] == "failed", TARGETS] = np.nan
    assert decide(rows, ["n"])["replicas"].tolist() == [2]
    # Without any served LLM there is no policy.
    decided = decide(world({("m1", "a"): 0, ("m1", "b"): 0}), ["n"])
    assert decided["llm_id"].tolist() == ["n"]
    assert decided.drop(columns="llm_id").isna().all(axis=None)
