"""Fits are kept beside their results: a price or an SLO of the same kind makes none again."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from test_evaluate import LLMS, POINTS, PROFILES, SLOS

from sextant.judge.evaluate import evaluate_predictor, fit_of
from sextant.judge.kept_fits import keeping
from sextant.judge.task import Task
from sextant.points.frame import FactTables

CODE = [Path(__file__)]


def task(points: pd.DataFrame = POINTS, price_factor: float = 1.0) -> Task:
    profiles = {
        name: replace(profile, usd_per_hour=price_factor * profile.usd_per_hour)
        for name, profile in PROFILES.items()
    }
    every = {(llm_id, profile_id) for llm_id in LLMS for profile_id in PROFILES}
    return Task("synthetic", points, FactTables(LLMS, profiles), every)


@pytest.mark.parametrize("predictor", ["roofline", "rf"])
def test_a_kept_fit_gives_the_same_results_at_other_prices_and_for_other_slos(tmp_path, predictor):
    made = []

    def evaluate(task: Task, seed: int = 1):
        fit = fit_of(task, predictor, seed)

        def counted(slo):
            made.append(slo.slo_id)
            return fit(slo)

        kept = keeping(counted, tmp_path, task, predictor, seed, CODE)
        return evaluate_predictor(task, SLOS[:2], predictor, seed, fit=kept)

    first = evaluate(task())
    assert made == ["chat"]  # both SLOs share a fit
    for before, after in zip(first, evaluate(task()), strict=True):
        pd.testing.assert_frame_equal(before, after)
    dearer = evaluate(task(price_factor=2))
    assert made == ["chat"]
    paid, paid_before = (it.recommendations["usd_per_hour"].sum() for it in (dearer, first))
    assert paid == pytest.approx(2 * paid_before)

    evaluate(task(POINTS.assign(median_itl_ms=1.1 * POINTS["median_itl_ms"])))
    evaluate(task(), seed=2)
    assert made == ["chat"] * 3
