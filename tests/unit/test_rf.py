"""RF, and every forest of a grid from shared trees."""

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor
from sklearn.model_selection import ParameterGrid

from roofline import LIMITS, PROFILES, SIZES, references_of, rows_of
from sextant.points.frame import TARGETS
from sextant.predict.forest import predict_grid
from sextant.predict.rf import RandomForest
from sextant.predict.tuning import HeldOut, mape_error

SMALL = {
    "n_estimators": [2, 5],
    "max_depth": [2, 5, 30],
    "bootstrap": [True, False],
    "criterion": ["absolute_error", "squared_error", "poisson"],
}


class SmallForest(RandomForest):
    GRID = tuple(ParameterGrid(SMALL | {"criterion": ["friedman_mse"]}))


def test_shared_trees_predict_what_a_forest_per_setting_does():
    rng = np.random.default_rng(0)
    # Few values in many columns: ties, which only the same random numbers break alike.
    X, unseen = rng.integers(0, 4, (60, 8)).astype(float), rng.integers(0, 4, (20, 8)).astype(float)
    y = rng.lognormal(size=(60, 2))
    grid = tuple(ParameterGrid(SMALL))
    found = dict(predict_grid(grid, 7, X, y, unseen))
    assert sorted(found) == list(range(len(grid)))
    depths = []
    for position, settings in enumerate(grid):
        forest = RandomForestRegressor(**settings, random_state=7).fit(X, y)
        np.testing.assert_array_equal(found[position], forest.predict(unseen), str(settings))
        depths += [tree.get_depth() for tree in forest.estimators_]
    # Some trees are cut by the limits of the grid and some end before.
    assert min(depths) == 2 and max(depths) > 5


def test_a_validation_error_is_that_of_a_forest_fitted_with_these_settings():
    rows = rows_of(SIZES, noise=0.3)
    training = rows.without(["b", "d"])
    held_out = [HeldOut(rows.of([name]), rows.of([])) for name in ("b", "d")]
    errors = SmallForest(LIMITS, PROFILES, seed=1).validation_errors(training, held_out)
    assert errors.shape == (2, len(SmallForest.GRID))
    for position in (0, len(SmallForest.GRID) - 1):
        model = SmallForest(LIMITS, PROFILES, 1, SmallForest.GRID[position]).fit(training)
        for row, llm in enumerate(held_out):
            truth = llm.rows.y[TARGETS].to_numpy()
            expected = mape_error(truth, model.predict(llm.rows.X).to_numpy())
            assert errors[row, position] == pytest.approx(expected, rel=1e-12)


def test_an_unseen_llm_is_predicted_better_than_by_a_constant():
    rows = rows_of(SIZES)
    unseen, known = rows.of(["c"]), rows.without(["c"])
    model = SmallForest(LIMITS, PROFILES, seed=1).fit(known)
    assert model.settings_ in SmallForest.GRID
    truth = unseen.y[TARGETS].to_numpy()
    constant = np.tile(known.y[TARGETS].mean(), (len(truth), 1))
    predicted = model.predict(unseen.X)
    assert predicted.index.equals(unseen.X.index)
    assert mape_error(truth, predicted.to_numpy()) < 0.5 * mape_error(truth, constant)


def test_reference_measurements_change_nothing():
    rows = rows_of(SIZES, noise=0.3)
    unseen, known = rows.of(["c"]), rows.without(["c"])
    settings = SmallForest.GRID[0]
    without = SmallForest(LIMITS, PROFILES, 1, settings).fit(known)
    told = SmallForest(LIMITS, PROFILES, 1, settings).fit(known, references_of(unseen))
    assert told.predict(unseen.X).equals(without.predict(unseen.X))
