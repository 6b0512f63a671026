"""Points that state more work than their GPUs can do, or more users than ran, are set aside."""

import numpy as np
import pytest

from sextant.ask.source import load_sources
from sextant.judge.task import task_of_characterization
from sextant.law.fact_rows import fact_rows
from sextant.law.plausible import (
    impossible,
    kept_back,
    points_notes,
    set_aside_note,
    work_over_time,
)
from sextant.law.roofline import Roofline
from sextant.points.frame import TARGETS, at_percentile
from sextant.predict.predictor import TrainingRows

SMALL = "nvidia__Llama-3.1-8B-Instruct-FP8"


@pytest.fixture(scope="module")
def characterization():
    return load_sources(["archive:inferencex"])[0]


@pytest.fixture(scope="module")
def measured(characterization):
    task = task_of_characterization(characterization)
    points = at_percentile(task.points, (50, 50)).reset_index(drop=True)
    return fact_rows(points, task.facts), points[TARGETS].to_numpy(float)


def test_rows_with_a_prefix_cache_are_told_from_all_others(characterization, measured):
    X, y_ms = measured
    is_set_aside = impossible(X, y_ms)
    # Prefill alone would take 68% of the time, and TPOT shows none of it.
    assert is_set_aside[(X["llm_id"] == SMALL).to_numpy()].all()
    others = is_set_aside & (X["llm_id"] != SMALL).to_numpy()
    assert others.sum() < 0.02 * len(X)
    (note,) = points_notes(characterization)
    assert f"{is_set_aside.sum()} points" in note and f"21 of {SMALL}" in note
    assert not impossible(X[~is_set_aside], y_ms[~is_set_aside]).any()
    assert set_aside_note(X.loc[[], "llm_id"]) == []


def test_work_grows_as_the_measured_time_falls(measured):
    X, y_ms = measured
    share = work_over_time(X, y_ms)
    np.testing.assert_allclose(work_over_time(X, y_ms / 2), 2 * share)
    assert 0.3 < np.median(share) < 0.9


def test_users_whose_requests_were_kept_back_are_told_from_users_who_ran(measured) -> None:
    X, y_ms = measured
    many = (X["users"] == 512).to_numpy()
    # Of 512 users, 400 wait for a first token while 100 decode and the memory holds more.
    of_h100 = many & X["gpu_profile_id"].str.endswith("H100-80GB").to_numpy()
    assert impossible(X, y_ms)[of_h100].all() and of_h100.sum() == 9
    assert not kept_back(X, y_ms)[~many].any()


def test_users_who_wait_for_memory_or_for_prompts_were_not_kept_back() -> None:
    (other,) = load_sources(["archive:inferencex-other-engines"])[:1]
    task = task_of_characterization(other)
    points = at_percentile(task.points, (50, 50)).reset_index(drop=True)
    X = fact_rows(points, task.facts)
    y_ms = points[TARGETS].to_numpy(float)
    ttft_ms = y_ms[:, 0] * X["input_tokens"]
    waits = (ttft_ms > 0.5 * (ttft_ms + X["output_tokens"] * y_ms[:, 1])).to_numpy()
    assert waits.any() and not kept_back(X, y_ms)[waits].any()


def test_a_point_with_more_users_than_ran_is_one_of_them(measured) -> None:
    X, y_ms = measured
    rows = np.flatnonzero((X["llm_id"] == "openai__gpt-oss-120b") & (X["users"] == 64))
    ran = X.loc[rows].reset_index(drop=True)
    ran_ms = y_ms[rows]
    assert not kept_back(ran, ran_ms).any()

    # 512 users, of whom a server runs 64: the others wait for seven answers before their own.
    answer_ms = ran["input_tokens"] * ran_ms[:, 0] + ran["output_tokens"] * ran_ms[:, 1]
    queue_ms = 7 * answer_ms / ran["input_tokens"]
    stated = ran_ms + np.column_stack([queue_ms, np.zeros(len(ran))])
    short = (ran["input_tokens"] == 922).to_numpy()
    assert kept_back(ran.assign(users=512.0), stated)[short].mean() > 0.9


def test_a_fit_does_not_see_them(characterization, measured):
    X, _ = measured
    task = task_of_characterization(characterization)
    points = at_percentile(task.points, (50, 50)).reset_index(drop=True)
    keep = X["llm_id"].isin([SMALL, "Qwen__Qwen3-32B", "meta-llama__Llama-3.1-70B"])
    model = Roofline.__new__(Roofline)
    model.seed = 1
    model.fit(TrainingRows(X[keep], points[keep]))
    assert not any(SMALL in name for _, name in model.posterior_.names)
