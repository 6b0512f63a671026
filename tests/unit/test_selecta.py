"""Selecta on matrices whose gaps are known."""

import numpy as np
import pandas as pd
import pytest

from roofline import LIMITS, PROFILES, SIZES, STRONGEST, WEAKEST, references_of, rows_of
from sextant.points.frame import FLOOR_MS, TARGETS, has_latency
from sextant.predict import latency_frame
from sextant.predict.selecta import Selecta
from sextant.predict.tuning import HeldOut, mape_error
from support import needs_baselines

pytestmark = [pytest.mark.slow, needs_baselines]
SETTINGS = Selecta.GRID[0]


def test_references_move_what_is_predicted_in_between():
    rows = rows_of(SIZES)
    unseen, known = rows.of(["e"]), rows.without(["e"])
    gap = unseen.X["gpu_profile_id"] == "2xmiddle"
    truth = unseen.y.loc[gap, TARGETS].to_numpy()
    errors = []
    for references in (unseen.where(~gap), unseen.where(gap & ~gap)):
        model = Selecta(LIMITS, PROFILES, 1, SETTINGS).fit(known, references)
        errors.append(mape_error(truth, model.predict(unseen.X)[gap].to_numpy()))
    assert errors[0] < 0.5 * errors[1]


def test_estimates_stay_below_the_largest_entry_and_are_latencies():
    # So large that gradient descent diverges: the largest entry, not NaN.
    rows = rows_of({"a": 1.0, "b": 500.0, "c": 2.0})
    model = Selecta(LIMITS, PROFILES, 1, Selecta.GRID[-1]).fit(rows.without(["c"]))
    predicted = model.predict(rows.X)
    assert has_latency(predicted).all()
    known = rows.without(["c"])
    for users, same in predicted.groupby(rows.X["users"]):
        largest = known.y.loc[known.X["users"] == users, TARGETS].max()
        assert (same <= largest).all(axis=None)
        assert (same == largest).any(axis=None)


def test_each_number_of_users_is_a_matrix_of_its_own():
    rows = rows_of(SIZES)
    settings = Selecta.GRID[0]
    model = Selecta(LIMITS, PROFILES, 1, settings).fit(rows.without(["c"]))
    unseen = rows.of(["c"]).X
    only_one = rows.where(rows.X["users"] == 1).without(["c"])
    alone = Selecta(LIMITS, PROFILES, 1, settings).fit(only_one).predict(unseen)
    is_one = unseen["users"] == 1
    assert alone[is_one].equals(model.predict(unseen)[is_one])
    assert alone[~is_one].isna().all(axis=None)


def test_a_validation_error_takes_the_truth_on_reference_profiles():
    class TwoSettings(Selecta):
        GRID = (Selecta.GRID[0], Selecta.GRID[-1])

    rows = rows_of(SIZES, noise=0.2)
    training = rows.without(["b", "d"])
    held_out = [HeldOut(rows.of([name]), references_of(rows.of([name]))) for name in "bd"]
    errors = TwoSettings(LIMITS, PROFILES, 1).validation_errors(training, held_out)
    assert errors.shape == (2, 2)
    for row, (own, references) in enumerate(held_out):
        for position, settings in enumerate(TwoSettings.GRID):
            model = Selecta(LIMITS, PROFILES, 1, settings).fit(training, references)
            predicted = model.predict(own.X)
            measured = own.X["gpu_profile_id"].isin([WEAKEST, STRONGEST])
            predicted[measured] = own.y.loc[measured, TARGETS]
            expected = mape_error(own.y[TARGETS].to_numpy(), predicted.to_numpy())
            assert errors[row, position] == pytest.approx(expected)


def test_the_same_seed_gives_the_same_bytes_and_another_does_not():
    rows = rows_of(SIZES, noise=0.2)

    def bytes_of(seed: int) -> bytes:
        model = Selecta(LIMITS, PROFILES, seed, Selecta.GRID[-1]).fit(rows.without(["c"]))
        return np.asarray(model.predict(rows.of(["a"]).X)).tobytes()

    assert bytes_of(1) == bytes_of(1)
    assert bytes_of(1) != bytes_of(2)


def test_a_latency_of_no_time_becomes_the_floor_and_a_missing_one_stays():
    frame = latency_frame([[-3.0, 0.0], [5.0, np.nan]], pd.Index([7, 9]))
    assert frame.loc[7].tolist() == [FLOOR_MS, FLOOR_MS]
    assert frame.loc[9, "nttft_ms"] == 5.0
    assert np.isnan(frame.loc[9, "itl_ms"])
    assert has_latency(frame).tolist() == [True, False]
