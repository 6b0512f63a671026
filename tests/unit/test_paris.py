"""PARIS: what it adds to a random forest."""

import pytest

from roofline import LIMITS, PROFILES, STRONGEST, USERS, WEAKEST, references_of, rows_of
from sextant.points.frame import TARGETS
from sextant.predict.features import UNKNOWN
from sextant.predict.paris import PARIS
from sextant.predict.rf import RandomForest
from sextant.predict.tuning import HeldOut, mape_error

SETTINGS = {"n_estimators": 10, "max_depth": 30, "bootstrap": False, "criterion": "squared_error"}


def test_a_row_has_its_llms_measurements_on_both_reference_profiles():
    training = rows_of({"a": 1.0, "b": 2.0})
    unseen = rows_of({"c": 4.0})
    references = unseen.on([STRONGEST])
    described = PARIS(LIMITS, PROFILES, 1).describe(unseen.X, [training, references])
    added = described.columns.drop(unseen.X.columns)
    assert len(added) == 2 * 3 * len(USERS)
    assert described.index.equals(unseen.X.index)
    # Size 4 at speed 4: a load of 1.
    row = described.iloc[0]
    assert row[f"{STRONGEST}_nttft_ms_4"] == pytest.approx(1.5)
    assert row[f"{STRONGEST}_itl_ms_64"] == pytest.approx(30)
    assert row[f"{STRONGEST}_throughput_tok_s_16"] == pytest.approx(1600)
    assert (described.filter(like=WEAKEST) == UNKNOWN).all(axis=None)
    assert described[added].nunique().max() == 1


def test_measurements_tell_apart_what_facts_do_not():
    rows = rows_of({"a": 1.0, "b": 1.1, "c": 8.0, "d": 8.8, "e": 9.0, "f": 1.2})
    rows.X["size"], rows.X["llm_type"] = 1.0, "same"
    unseen, known = rows.of(["c"]), rows.without(["c"])
    truth = unseen.y[TARGETS].to_numpy()
    errors = [
        mape_error(truth, model.fit(known, references_of(unseen)).predict(unseen.X).to_numpy())
        for model in (
            PARIS(LIMITS, PROFILES, 1, SETTINGS),
            RandomForest(LIMITS, PROFILES, 1, SETTINGS),
        )
    ]
    assert errors[0] < 0.7 * errors[1]


def test_a_validation_error_is_that_of_a_fit_told_the_references():
    class OneSetting(PARIS):
        GRID = (SETTINGS,)

    rows = rows_of({"a": 1.0, "b": 2.0, "c": 4.0, "d": 8.0}, noise=0.2)
    training = rows.without(["b", "d"])
    held_out = [HeldOut(rows.of([name]), references_of(rows.of([name]))) for name in "bd"]
    errors = OneSetting(LIMITS, PROFILES, 1).validation_errors(training, held_out)
    for row, llm in enumerate(held_out):
        model = PARIS(LIMITS, PROFILES, 1, SETTINGS).fit(training, llm.references)
        predicted = model.predict(llm.rows.X).to_numpy()
        assert errors[row, 0] == pytest.approx(
            mape_error(llm.rows.y[TARGETS].to_numpy(), predicted)
        )


def test_a_row_of_training_has_its_own_llms_measurements_only():
    training = rows_of({"a": 1.0, "b": 2.0})
    described = PARIS(LIMITS, PROFILES, 1).describe(training.X, [training])
    column = described.groupby(training.X["llm_id"])[f"{WEAKEST}_itl_ms_1"]
    assert column.nunique().tolist() == [1, 1]
    assert column.first()["b"] == pytest.approx(2 * column.first()["a"])
