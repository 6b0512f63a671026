"""LLM-Pilot's predictor on latencies that follow a known law."""

import numpy as np
import pandas as pd
import pytest

from roofline import LIMITS, PROFILES, SIZES, rows_of
from sextant.facts.slo import SLO
from sextant.points.frame import TARGETS
from sextant.predict import Rows
from sextant.predict.llm_pilot import LLMPilot
from sextant.predict.tuning import HeldOut, mape_error


@pytest.fixture(scope="module")
def noisy() -> tuple[LLMPilot, pd.DataFrame]:
    rows = rows_of(SIZES, noise=0.3)
    return LLMPilot(LIMITS, PROFILES, seed=1).fit(rows), rows.X


def test_an_unseen_llm_is_predicted_better_than_by_a_constant():
    rows = rows_of(SIZES)
    unseen, known = rows.of(["c"]), rows.without(["c"])
    truth = unseen.y[TARGETS].to_numpy()
    predicted = LLMPilot(LIMITS, PROFILES, seed=1).fit(known).predict(unseen.X).to_numpy()
    constant = np.tile(known.y[TARGETS].mean(), (len(truth), 1))
    assert mape_error(truth, predicted) < 0.5 * mape_error(truth, constant)


def test_predictions_never_fall_with_more_users_though_the_data_do(noisy):
    model, X = noisy
    pairs = X.drop_duplicates(["llm_id", "gpu_profile_id"])
    dense = pairs.drop(columns="users").merge(
        pd.DataFrame({"users": np.arange(1, 129)}), how="cross"
    )
    predicted = model.predict(dense[X.columns])
    steps = predicted.groupby([dense["llm_id"], dense["gpu_profile_id"]]).diff().dropna()
    assert (steps >= 0).all().all()
    assert (steps > 0).any().all()


def test_the_same_seed_gives_the_same_bytes(noisy):
    model, X = noisy
    again = LLMPilot(LIMITS, PROFILES, seed=1).fit(rows_of(SIZES, noise=0.3))
    assert again.settings_ == model.settings_
    assert again.predict(X).to_numpy().tobytes() == model.predict(X).to_numpy().tobytes()


def test_the_error_of_every_setting_is_that_of_a_model_trained_with_it():
    """The short cut, one training for all numbers of trees, changes no number."""
    rows = rows_of(SIZES, noise=0.3)
    training, unseen = rows.without(["b", "d"]), [rows.of(["b"]), rows.of(["d"])]
    model = LLMPilot(LIMITS, PROFILES, seed=1)
    errors = model.validation_errors(training, [HeldOut(own, own.on([])) for own in unseen])
    assert errors.shape == (2, 120)
    for position in (0, 7, 60, 71, 119):
        alone = LLMPilot(LIMITS, PROFILES, 1, LLMPilot.GRID[position]).fit(training)
        for row, own in enumerate(unseen):
            # Settings are judged by what trees say, though it be less than 0 ms.
            predicted = alone.model_.inplace_predict(alone.encoder_.transform(own.X))
            expected = mape_error(own.y[TARGETS].to_numpy(), predicted)
            assert errors[row, position] == pytest.approx(expected, rel=1e-12)


def test_points_near_the_limits_are_fitted_best():
    """No feature tells the LLMs apart, so the weights of eq. 4 alone decide."""
    names = [name for name in "abcdefgh" for _ in range(3)]
    X = pd.DataFrame({"llm_id": names, "gpu_profile_id": "g", "users": [1, 16, 64] * 8})
    values = [10.0, 400.0, 1000.0] * 4 + [500.0, 510.0, 520.0] * 4
    y = pd.DataFrame({target: values for target in ("nttft_ms", "itl_ms")})
    settings = {"n_estimators": 50, "max_depth": 4, "learning_rate": 0.5}

    def at_one_user(limit_ms: float) -> pd.Series:
        slo = SLO("s", nttft_ms=limit_ms, itl_ms=limit_ms, percentile=50, users=1)
        return LLMPilot(slo, PROFILES, 1, settings).fit(Rows(X, y)).predict(X.head(1)).iloc[0]

    # Weights at one user, of 10 and 500 ms: 0.62 and 0.67 where the limit is 10 ms (mean
    # 264), 0.024 and 0.67 where it is 500 ms (mean 483), for 10 ms is then far off.
    assert at_one_user(10.0).tolist() == pytest.approx([264] * 2, rel=0.1)
    assert at_one_user(500.0).tolist() == pytest.approx([483] * 2, rel=0.1)
