"""How close predictions of held-out points come, for any folder of points."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from test_law import LLMS, latencies, rows

from points_folder import write_points_folder
from sextant.base.errors import InputError
from sextant.facts.slo import SLO
from sextant.judge.accuracy import predict_held_out
from sextant.judge.comparison import evaluate_predictors
from sextant.judge.configurations import separate_configurations
from sextant.judge.evaluate import evaluate_predictor
from sextant.judge.figures import accuracy, prediction_table
from sextant.judge.random_slos import random_slos
from sextant.judge.task import Task, task_of_characterization
from sextant.law.energy import energy_rows, log_energy
from sextant.law.posterior import columns_of
from sextant.points.folder import load_folder
from sextant.points.frame import FactTables, at_percentile

PROFILES = ("2xH100-80GB", "8xH200-141GB")
SHIPPED = ("meta-llama__Llama-3.1-70B", "Qwen__Qwen3-32B", "nvidia__Llama-3.1-8B-Instruct-FP8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write a folder of points that follow the law: three LLMs, one of them in two precisions."""
    parts = []
    rng = np.random.default_rng(1)
    for llm_id in SHIPPED:
        shift = rng.normal(0, 0.1, 2)
        for lengths in ((1024, 512), (4096, 512)):
            for precision in ("bf16", "fp8") if llm_id == SHIPPED[1] else ("fp8",):
                X = rows([llm_id], PROFILES, (1, 4, 16, 64), lengths, precision=precision)
                y = latencies(X) * np.exp(shift + rng.normal(0, 0.02, (len(X), 2)))
                frame = X[["llm_id", "gpu_profile_id", "users"]].astype({"users": int})
                frame[["input_tokens", "output_tokens"]] = lengths
                frame["mean_ttft_ms"], frame["mean_tpot_ms"] = y[:, 0] * lengths[0], y[:, 1]
                parts.append(frame.assign(precision=precision))
    usd_per_hour = dict(zip(PROFILES, (6.0, 30.0), strict=True))
    return write_points_folder(
        tmp_path_factory.mktemp("points"), SHIPPED, usd_per_hour, pd.concat(parts)
    )


def task(folder) -> Task:
    return task_of_characterization(load_folder(folder))


@pytest.fixture(scope="module")
def held_out(folder):
    return predict_held_out(task(folder), "roofline", 42)


def test_every_point_is_predicted_from_the_other_llms(held_out, folder):
    table = prediction_table(held_out)
    assert len(table) == len(load_folder(folder).points) == 64
    assert (table["fold"] == table["llm_id"]).all()
    assert (table["ttft_lo_ms"] < table["ttft_predicted_ms"]).all()
    found = accuracy(table)
    errors = (table["ttft_predicted_ms"] / table["ttft_ms"] - 1).abs()
    assert found["mape_ttft"] == pytest.approx(errors.mean())
    assert found["mdape_ttft"] == pytest.approx(errors.median())
    inside = table["tpot_ms"].between(table["tpot_lo_ms"], table["tpot_hi_ms"])
    assert found["coverage_tpot"] == pytest.approx(inside.mean())
    assert found["mdape_tpot"] < 0.25


def test_a_latency_that_was_not_measured_is_null_and_the_other_is_judged(folder):
    full = task(folder)
    points = full.points.drop(columns=[name for name in full.points if "ttft" in name])
    held_out = predict_held_out(replace(full, points=points), "roofline", 42)
    found = accuracy(prediction_table(held_out))
    assert found["mape_ttft"] is None
    assert found["n_tpot"] == 64
    assert found["mdape_tpot"] < 0.25


def test_llms_of_one_architecture_are_one_fold(folder):
    known = task(folder)
    twin = known.points.assign(llm_id=known.points["llm_id"].replace(SHIPPED[0], "twin"))
    facts = FactTables({**known.facts.llms, "twin": LLMS[SHIPPED[0]]}, known.facts.profiles)
    points = pd.concat([known.points, twin], ignore_index=True)
    held_out = predict_held_out(replace(known, points=points, facts=facts), "roofline", 1)
    (fold,) = (set(held.points["llm_id"]) for held in held_out if held.fold == SHIPPED[0])
    assert fold == {SHIPPED[0], "twin"}


def test_an_engine_is_predicted_from_the_others(folder):
    known = task(folder)
    other = known.points.assign(engine="sglang", engine_version="0.5.9")
    both = replace(known, points=pd.concat([known.points, other], ignore_index=True))
    folds = predict_held_out(both, "roofline", 1, "engine")
    assert [(held.fold, len(held.points)) for held in folds] == [("sglang", 64), ("vllm", 64)]


def test_random_slos_lie_within_what_was_measured_and_follow_the_seed(folder):
    known = task(folder)
    drawn = random_slos(known, 50, 3)
    assert drawn == random_slos(known, 50, 3) != random_slos(known, 50, 4)
    for name in ("ttft_ms", "tpot_ms"):
        low, high = known.points[f"mean_{name}"].quantile([0.05, 0.95])
        limits = [getattr(slo, name) for slo in drawn]
        assert low <= min(limits) < np.sqrt(low * high) < max(limits) <= high
    users = [slo.users for slo in drawn]
    assert known.points["users"].min() <= min(users)
    assert known.points["users"].max() < max(users) <= 8 * known.points["users"].max()
    shared = random_slos(replace(known, has_fixed_lengths=False), 1, 3)[0]
    assert shared.first_token == "nttft" and shared.itl_ms and not shared.tpot_ms
    without = replace(known, points=known.points.assign(users=np.nan))
    with pytest.raises(InputError, match=r"'--random-slos': archive:made-up lacks .* users\."):
        random_slos(without, 1, 3)


@pytest.mark.parametrize("hold_out", ["engine", "engine_version"])
def test_too_little_to_hold_out_is_an_error_that_says_so(folder, hold_out):
    told = f"points are of 1 {hold_out.replace('_', ' ')}: roofline needs 2 LLMs or more"
    with pytest.raises(InputError, match=told):
        predict_held_out(task(folder), "roofline", 42, hold_out)
    alone = task(folder)
    points = alone.points[alone.points["llm_id"] == SHIPPED[0]]
    told = "2 GPU types: 1 LLMs are left without one of them; roofline needs 2 LLMs or more"
    with pytest.raises(InputError, match=told):
        predict_held_out(replace(alone, points=points), "roofline", 42, "gpu")


def test_each_length_is_decided_for_by_itself_and_each_way_to_serve_is_an_option(folder):
    made = separate_configurations(task(folder))
    assert sorted(made.points["llm_id"].unique())[0] == "Qwen__Qwen3-32B 1024/512"
    served = made.points[made.points["llm_id"] == "Qwen__Qwen3-32B 1024/512"]
    assert served["gpu_profile_id"].nunique() == 4, "two GPU profiles in two precisions"
    slo = SLO("s", ttft_ms=2000, tpot_ms=60, percentile=50, users=64)
    result = evaluate_predictor(task(folder), [slo], "roofline", 42)
    (score,) = result.scores.to_dict("records")
    assert score["n_llms"] + score["n_left_out"] == 6
    assert score["so_score"] > 0.3
    best = evaluate_predictor(task(folder), [slo], "measured", 42).recommendations
    assert set(best["llm_id"]) == set(result.recommendations["llm_id"])


def test_users_in_flight_follow_from_a_request_rate(folder):
    full = task(folder)
    points = full.points.copy()
    e2e_ms = points["mean_ttft_ms"] + (points["output_tokens"] - 1) * points["mean_itl_ms"]
    rate = points["users"].astype(float) / e2e_ms * 1000
    rated = points.assign(users=pd.array([pd.NA] * len(points), "Int64"), request_rate_rps=rate)
    by_users, by_rate = (
        prediction_table(predict_held_out(replace(full, points=each), "roofline", 42))
        for each in (points, rated)
    )
    assert by_rate["users"].tolist() == by_users["users"].tolist()
    columns = ["ttft_predicted_ms", "tpot_predicted_ms"]
    assert by_rate[columns].to_numpy() == pytest.approx(by_users[columns].to_numpy())


def test_points_without_any_load_are_left_out_and_counted(folder):
    full, told = task(folder), []
    points = full.points.copy()
    points.loc[points.index[:3], "users"] = pd.NA
    held_out = predict_held_out(replace(full, points=points), "roofline", 42, progress=told.append)
    assert sum(len(held.points) for held in held_out) == 61
    assert told[0] == "3 of 64 points have no latency or load: left out"


def test_energy_is_judged_where_the_source_has_it_and_left_out_where_not(held_out, folder):
    full = task(folder)
    assert "mape_energy" not in accuracy(prediction_table(held_out))
    keys = at_percentile(full.points, (50, 50))
    X = energy_rows(keys, full.facts)
    shares = np.tile(np.log([0.5, 0.4, 1.0]), (len(X), 1))
    joules = np.exp(log_energy(shares, columns_of(X), keys["itl_ms"].to_numpy()))
    measured = keys.assign(energy_j_per_token=joules, median_itl_ms=keys["itl_ms"])
    measured.loc[0, "energy_j_per_token"] = np.nan
    points = measured.assign(median_nttft_ms=measured["nttft_ms"])
    table = prediction_table(predict_held_out(replace(full, points=points), "roofline", 42))
    found = accuracy(table)
    errors = (table["energy_predicted_j_per_token"] / table["energy_j_per_token"] - 1).abs()
    assert found["mdape_energy"] == pytest.approx(errors.median())
    assert found["mdape_energy"] < 0.25
    assert found["coverage_energy"] > 0.5
    assert found["n_energy"] == 63


def test_slos_and_accuracy_that_ask_the_same_are_fitted_once(folder, monkeypatch):
    fits = []

    def counted(*args, **how):
        fits.append((args[3], how["statistic"].first_token))
        return predict_held_out(*args, **how)

    monkeypatch.setattr("sextant.judge.comparison.predict_held_out", counted)
    known = load_folder(folder)
    (row,) = evaluate_predictors(known, 2, ["roofline"], 42).predictors
    assert row["n_scenarios"] == 2 and row["n_tpot"] == 64 and fits == [("llm", "ttft")]
