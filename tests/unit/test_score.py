"""Eq. 5-7 on examples computed by hand."""

import pandas as pd
import pytest

from sextant.decide.score import is_success, judge, mape, relative_overspend, so_score, summarize


@pytest.mark.parametrize(
    ("replicas", "served", "expected"),
    [(4, 50, True), (4, 49, False), (7, 32, True), (9, 0, False)],
)
def test_success_needs_all_users_carried(replicas, served, expected):
    assert is_success(replicas, served, load=200) is expected


def test_relative_overspend_is_a_fraction_of_the_best_price():
    assert relative_overspend(15.0, 12.0) == pytest.approx(0.25)
    assert relative_overspend(12.0, 12.0) == 0.0


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
    truth = pd.DataFrame(
        [
            ("best", "a", 50),  # 4 x 1 USD is the optimum
            ("dear", "a", 25),  # 8 x 1 USD
            ("dear", "b", 100),  # 2 x 6 USD
            ("few", "a", 40),
            ("none", "a", 200),
            ("left_out", "a", 0),
        ],
        columns=["llm_id", "gpu_profile_id", "load_per_replica"],
    )
    optimum = pd.DataFrame(
        {
            "llm_id": ["best", "dear", "few", "none", "left_out"],
            "usd_per_hour": [4.0, 8.0, 5.0, 1.0, None],
        }
    )
    recommended = pd.DataFrame(
        [
            ("best", "a", 4, 4.0),
            ("dear", "b", 2, 12.0),
            ("few", "a", 4, 4.0),
            ("none", None, None, None),
            ("left_out", "a", 4, 4.0),
        ],
        columns=["llm_id", "gpu_profile_id", "replicas", "usd_per_hour"],
    )
    return judge(recommended, truth, optimum, load=200).set_index("llm_id")


def test_each_recommendation_is_judged_against_the_truth(judged):
    success = judged["is_success"].drop("left_out").astype(bool).to_dict()
    assert success == {"best": True, "dear": True, "few": False, "none": False}
    assert judged["overspend"].dropna().to_dict() == {"best": 0.0, "dear": 0.5}
    assert judged.loc["left_out", ["is_success", "overspend"]].isna().all()


def test_a_profile_that_truly_serves_nobody_or_was_not_measured_is_a_failure():
    truth = pd.DataFrame(
        {
            "llm_id": ["m", "m", "m"],
            "gpu_profile_id": ["a", "b", "c"],
            "load_per_replica": pd.array([10, 0, None], dtype="Int64"),
        }
    )
    optimum = pd.DataFrame({"llm_id": ["m"], "usd_per_hour": [1.0]})
    for profile_id in ("b", "c"):
        recommended = pd.DataFrame(
            [("m", profile_id, 99, 1.0)],
            columns=["llm_id", "gpu_profile_id", "replicas", "usd_per_hour"],
        )
        assert judge(recommended, truth, optimum, 10)["is_success"].tolist() == [False]


def test_the_summary_counts_failures_and_leaves_out_the_unservable(judged):
    summary = summarize(judged.reset_index())
    assert (summary["n_llms"], summary["n_left_out"]) == (4, 1)
    assert summary["success_rate"] == 0.5
    assert summary["overspend"] == 0.25
    assert summary["so_score"] == pytest.approx(0.6)


def test_without_success_the_overspend_is_undefined_and_the_score_zero(judged):
    summary = summarize(judged.loc[["few", "none"]].reset_index())
    assert (summary["success_rate"], summary["overspend"], summary["so_score"]) == (0.0, None, 0.0)


def test_with_nobody_to_judge_there_is_no_score(judged):
    summary = summarize(judged.loc[["left_out"]].reset_index())
    assert (summary["n_llms"], summary["n_left_out"], summary["so_score"]) == (0, 1, None)


def test_mape_is_a_fraction_over_shared_rows():
    measured = pd.DataFrame(
        [("m", "a", 1, 10.0, 20.0), ("m", "a", 2, 20.0, 40.0)],
        columns=["llm_id", "gpu_profile_id", "users", "nttft_ms", "itl_ms"],
    )
    predicted = measured.assign(nttft_ms=[15.0, 20.0], itl_ms=[10.0, 80.0])
    predicted.loc[2] = ["m", "b", 1, 1.0, 1.0]
    errors = mape(predicted, measured)
    assert errors["mape_nttft"] == pytest.approx(0.25)  # (0.5 + 0) / 2
    assert errors["mape_itl"] == pytest.approx(0.75)  # (0.5 + 1) / 2
