"""Points that state more work than their GPUs can do are set aside, counted and named."""

import numpy as np
import pytest

from sextant.ask.source import load_sources
from sextant.judge.task import task_of_characterization
from sextant.law.fact_rows import fact_rows
from sextant.law.plausible import impossible, points_notes, set_aside_note, work_over_time
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


def test_a_fit_does_not_see_them(characterization, measured):
    X, _ = measured
    task = task_of_characterization(characterization)
    points = at_percentile(task.points, (50, 50)).reset_index(drop=True)
    keep = X["llm_id"].isin([SMALL, "Qwen__Qwen3-32B", "meta-llama__Llama-3.1-70B"])
    model = Roofline.__new__(Roofline)
    model.seed = 1
    model.fit(TrainingRows(X[keep], points[keep]))
    assert not any(SMALL in name for _, name in model.posterior_.names)
