"""What the figures say of predictions, and by what the points are told apart."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from test_law import LLMS

from sextant.facts.gpu import profile_of_id
from sextant.judge.comparison import Comparison
from sextant.judge.document import comparison_document
from sextant.judge.figures import accuracy, crps_of_logs, group_figures
from sextant.judge.known import how_known, llm_kind
from sextant.pages.blocks import as_text
from sextant.points.frame import LENGTHS, SERVING, FactTables


def table(n: int = 40, **columns) -> pd.DataFrame:
    """Return predictions of TTFT whose error grows with the width of the interval."""
    wide = np.linspace(0.1, 1.0, n)
    frame = pd.DataFrame({"ttft_ms": np.full(n, 100.0), "engine": "vllm", "llm_kind": "dense"})
    frame["ttft_predicted_ms"] = 100 * np.exp(0.4 * wide)
    for end, sign in (("lo", -1), ("hi", 1)):
        frame[f"ttft_{end}_ms"] = frame["ttft_predicted_ms"] * np.exp(sign * wide)
        frame[f"tpot_{end}_ms"] = np.nan
    frame[["tpot_ms", "tpot_predicted_ms"]] = np.nan
    frame[["is_version_new", "is_maker_new", "is_impossible"]] = False
    return frame.assign(ttft_crps=0.2, tpot_crps=np.nan, **columns)


def test_the_score_of_draws_is_that_of_a_normal_distribution() -> None:
    draws = np.exp(np.random.default_rng(1).normal(0, 0.5, (20_000, 1)))
    # Gneiting & Raftery 2007, eq. 5: the score of a normal distribution at its mean.
    at_mean = 0.5 * (2 / np.sqrt(2 * np.pi) - 1 / np.sqrt(np.pi))
    assert crps_of_logs(draws, np.array([1.0])) == pytest.approx(at_mean, rel=0.02)
    assert crps_of_logs(draws, np.array([20.0])) > crps_of_logs(draws, np.array([2.0]))
    assert np.isnan(crps_of_logs(draws, np.array([np.nan])))


def test_a_prediction_without_spread_scores_its_error_and_width_costs() -> None:
    same = np.full((100, 1), np.e)
    assert crps_of_logs(same, np.array([1.0])) == pytest.approx(1.0)
    rng = np.random.default_rng(2)
    narrow, wide = (np.exp(rng.normal(0, sd, (5000, 1))) for sd in (0.1, 0.4))
    assert crps_of_logs(narrow, np.ones(1)) < crps_of_logs(wide, np.ones(1))


def test_widths_that_know_where_the_errors_are_have_rank_one() -> None:
    found = accuracy(table())
    assert found["spearman_ttft"] == pytest.approx(1)
    assert found["coverage_ttft"] == 1
    assert found["high_over_low_ttft"] == pytest.approx(np.exp(2 * 0.55), rel=1e-3)
    assert found["crps_ttft"] == pytest.approx(0.2)
    assert found["mape_tpot"] is None and found["spearman_tpot"] is None and found["n_tpot"] == 0
    equal = table().assign(ttft_lo_ms=50.0, ttft_hi_ms=200.0)
    assert accuracy(equal)["spearman_ttft"] is None, "widths that are all equal have no rank"


def test_points_are_told_apart_by_engine_kind_and_training() -> None:
    frame = table()
    frame.loc[:9, "engine"] = "sglang"
    frame.loc[:4, "llm_kind"] = "4 bits"
    frame.loc[30:, "is_maker_new"] = True
    frame.loc[39, "is_impossible"] = True
    found = {each.group: each.figures.n for each in group_figures(frame)}
    assert found == {
        "all points": 39,
        "sglang": 10,
        "vllm": 29,
        "dense": 34,
        "4 bits": 5,
        "GPU's maker seen": 30,
        "GPU's maker never seen": 9,
        "cannot be": 1,
    }
    assert accuracy(frame)["n_ttft"] == 39


def test_the_text_has_a_row_for_each_group_and_says_what_is_set_aside() -> None:
    frame = table()
    frame.loc[39, "is_impossible"] = True
    judged = group_figures(frame)
    note = "Set aside: 1 points (1 of a) that cannot be."
    found = Comparison([{"predictor": "roofline"}], [], {"roofline": judged}, [note])
    document = comparison_document(found)
    text = as_text(document)
    assert text.startswith("roofline, each LLM predicted from the other LLMs:\n  TTFT ")
    assert "CRPS" in text and "rank: Spearman's" in text and text.endswith(note)
    assert [line.split()[:2] for line in text.splitlines()[2:6]] == [
        ["all", "points"],
        ["engine", "vllm"],
        ["LLM:", "dense"],
        ["cannot", "be"],
    ]
    assert max(map(len, text.splitlines()[:6])) <= 100
    row = document.data["groups"][0]
    assert (row["predictor"], row["metric"], row["by"], row["n"]) == ("roofline", "ttft", "all", 39)
    assert {"mape", "mdape", "coverage", "high_over_low", "crps", "spearman"} <= set(row)


def test_an_llm_is_of_the_kind_that_is_known_least() -> None:
    dense = LLMS["Qwen__Qwen3-32B"]
    assert llm_kind(dense) == "dense"
    assert llm_kind(replace(dense, weight_bits=8.0)) == "dense"
    assert llm_kind(replace(dense, n_experts=8)) == "experts"
    for new in ({"kv_latent_size": 512}, {"n_sliding_layers": 4}, {"state_bytes_per_request": 9}):
        assert llm_kind(replace(dense, n_experts=8, **new)) == "new attention"
    assert llm_kind(replace(dense, kv_latent_size=512, expert_bits=4.25)) == "4 bits"


def test_versions_and_makers_are_new_where_the_training_had_none() -> None:
    names = ("1xH100-80GB", "1xMI300X-192GB")
    profiles = {name: profile_of_id(name) for name in names}
    rows = {
        "llm_id": "Qwen__Qwen3-32B",
        "users": 4,
        "nttft_ms": [1.0, 1e-6],
        "itl_ms": [30.0, 1e-6],
    }
    points = pd.DataFrame(rows).assign(**dict.fromkeys(SERVING), **dict.fromkeys(LENGTHS, 500.0))
    points["engine"], points["gpu_profile_id"] = "vllm", names
    points["engine_version"] = ["0.11.0", "0.19.0"]
    known = how_known(points, points.iloc[:1], FactTables(LLMS, profiles))
    assert known["is_version_new"].tolist() == [False, True]
    assert known["is_maker_new"].tolist() == [False, True]
    assert known["is_impossible"].tolist() == [False, True]
    assert set(known["llm_kind"]) == {"dense"}
