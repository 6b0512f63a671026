"""The best static policy of a world small enough to work out by hand."""

import numpy as np
import pandas as pd

from sextant.decide.score import best_policy
from sextant.decide.sizing import candidates, recommend
from sextant.facts.gpu import GPU, GPUProfile
from sextant.facts.slo import SLO
from sextant.points.frame import TARGETS

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
    return best_policy(truth, recommend(truth), LIMITS.users).decide(llm_ids)


def test_the_policy_with_the_best_so_score_wins():
    # Replicas needed for 12 users, USD:  m1: a 2 = 2.0   m2: a 3 = 3.0   m3: a 12 = 12.0
    # 2 x a: S 1/3, O 0.    3 x a: S 2/3, O mean(0.5, 0) = 0.25, S/O 0.7059.
    # 12 x a: overspends by 5, 3 and 0, S/O 0.
    rows = world({("m1", "a"): 6, ("m2", "a"): 4, ("m3", "a"): 1})
    decided = decide(rows, ["new", "other"])
    assert decided["llm_id"].tolist() == ["new", "other"]
    assert decided["gpu_profile_id"].tolist() == ["a", "a"]
    assert decided["replicas"].tolist() == [3, 3]
    assert decided["usd_per_hour"].tolist() == [3.0, 3.0]


def test_a_dearer_profile_wins_where_it_serves_everybody():
    # 2 x b = 5.0 serves both; the optima are 3.0 (a) and 5.0 (b): S 1, O 1/3, S/O 0.8.
    # 3 x a = 3.0 serves m1 only: S 1/2, O 0, S/O 0.667.
    rows = world({("m1", "a"): 4, ("m1", "b"): 6, ("m2", "a"): 0, ("m2", "b"): 6})
    decided = decide(rows, ["new"])
    assert decided.iloc[0].tolist() == ["new", "b", 2, 5.0]


def test_equal_scores_go_to_the_cheaper_then_to_the_first_by_identifier():
    same = PROFILES | {"b": GPUProfile("b", GPU_X, 2, 1.0)}
    rows = world({("m1", "b"): 6, ("m1", "a"): 6})
    assert decide(rows, ["n"], same)["gpu_profile_id"][0] == "a"
    # m1 needs 2 x a = 2.0, m2 needs 2 x b = 5.0: either serves one of two at no overspend.
    rows = world({("m1", "a"): 6, ("m2", "b"): 6})
    assert decide(rows, ["n"]).iloc[0, 1:].tolist() == [
        "a",
        2,
        2.0,
    ]


def test_an_llm_that_nothing_serves_has_no_say_and_missing_latencies_meet_nothing():
    rows = world({("m1", "a"): 6, ("hopeless", "a"): 0, ("failed", "a"): 6})
    rows.loc[rows["llm_id"] == "failed", TARGETS] = np.nan
    decided = decide(rows, ["n"])
    assert decided["replicas"].tolist() == [2]


def test_without_any_served_llm_there_is_no_policy():
    rows = world({("m1", "a"): 0, ("m1", "b"): 0})
    decided = decide(rows, ["n"])
    assert decided["llm_id"].tolist() == ["n"]
    assert decided.drop(columns="llm_id").isna().all(axis=None)
