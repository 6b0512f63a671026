"""LLM-Pilot's predictor on latencies that follow a known law."""

import numpy as np
import pandas as pd
import pytest

from sextant.predict.llm_pilot import GRID, LLMPilot, weighted_mape
from sextant.recommend import SLO

LIMITS = SLO("s", nttft_ms=4.0, itl_ms=25.0, percentile=50, users=100)
USERS = (1, 4, 16, 64)


def roofline(sizes: dict[str, float], noise: float = 0.0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Latency = size over speed, growing with users: the shape real servers have."""
    rows = pd.DataFrame(
        [
            (llm_id, f"g{speed}", users, size, float(speed), f"gpu{speed}")
            for llm_id, size in sizes.items()
            for speed in (1, 3)
            for users in USERS
        ],
        columns=["llm_id", "gpu_profile_id", "users", "size", "speed", "gpu_id"],
    )
    load = rows["size"] / rows["speed"]
    y = pd.DataFrame(
        {
            "nttft_ms": load * (1 + rows["users"] / 8),
            "itl_ms": 10 * load * (1 + rows["users"] / 32),
        }
    )
    return rows, y * np.random.default_rng(3).lognormal(0, noise, y.shape)


SIZES = {"a": 1.0, "b": 1.5, "c": 2.2, "d": 3.0, "e": 4.5}


@pytest.fixture(scope="module")
def noisy() -> tuple[LLMPilot, pd.DataFrame]:
    X, y = roofline(SIZES, noise=0.3)
    return LLMPilot(LIMITS, {}, seed=1).fit(X, y), X


def test_weighted_mape_by_hand():
    truth = np.array([[10.0, 20.0], [10.0, 20.0]])
    predicted = np.array([[15.0, 20.0], [10.0, 40.0]])
    # Rows err by (0.5 + 0) / 2 and (0 + 1) / 2; the first weighs three times as much.
    assert weighted_mape(truth, predicted, np.array([3.0, 1.0])) == pytest.approx(0.3125)


def test_an_unseen_llm_is_predicted_better_than_by_a_constant():
    X, y = roofline(SIZES)
    unseen = X["llm_id"] == "c"
    model = LLMPilot(LIMITS, {}, seed=1).fit(X[~unseen], y[~unseen])
    truth, flat = y[unseen].to_numpy(), np.ones(unseen.sum())
    error = weighted_mape(truth, model.predict(X[unseen]).to_numpy(), flat)
    constant = np.tile(np.exp(np.log(y[~unseen]).mean()), (unseen.sum(), 1))
    assert error < 0.35
    assert error < 0.5 * weighted_mape(truth, constant, flat)


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


def test_predictions_are_positive_and_keep_the_index(noisy):
    model, X = noisy
    predicted = model.predict(X.set_index(X.index[::-1]))
    assert predicted.index.tolist() == X.index[::-1].tolist()
    assert (predicted > 0).all().all()


def test_the_same_seed_gives_the_same_bytes(noisy):
    model, X = noisy
    again = LLMPilot(LIMITS, {}, seed=1).fit(*roofline(SIZES, noise=0.3))
    assert again.params_ == model.params_
    assert again.predict(X).to_numpy().tobytes() == model.predict(X).to_numpy().tobytes()


def test_the_parameters_come_from_the_grid_and_two_llms_suffice():
    X, y = roofline({"a": 1.0, "b": 2.0})
    model = LLMPilot(LIMITS, {}, seed=1).fit(X, y)
    assert model.params_ in list(GRID)


def test_rows_without_a_latency_are_counted_and_teach_nothing():
    X, y = roofline({"a": 1.0, "b": 2.0, "c": 3.0})
    broken = y.copy()
    broken.iloc[3] = np.nan
    broken.iloc[9, 1] = 0.0
    whole = np.setdiff1d(np.arange(len(X)), [3, 9])
    model = LLMPilot(LIMITS, {}, seed=1).fit(X, broken)
    expected = LLMPilot(LIMITS, {}, seed=1).fit(X.iloc[whole], y.iloc[whole])
    assert (model.n_unused_, expected.n_unused_) == (2, 0)
    pd.testing.assert_frame_equal(model.predict(X), expected.predict(X))


def test_of_two_contradicting_llms_the_one_near_the_limits_is_believed():
    """No feature tells the LLMs apart, so the weights of eq. 4 alone decide."""
    X = pd.DataFrame({"llm_id": list("aabb"), "gpu_profile_id": "g", "users": [1, 16, 1, 16]})
    y = pd.DataFrame({target: [10.0, 1000.0, 500.0, 510.0] for target in ("nttft_ms", "itl_ms")})

    def at_one_user(limit_ms: float) -> pd.Series:
        slo = SLO("s", limit_ms, limit_ms, 50, 1)
        return LLMPilot(slo, {}, 1).fit(X, y).predict(X.head(1)).iloc[0]

    # Without weights the answer would be near 71 ms, the geometric mean of 10 and 500.
    assert (at_one_user(10.0) < 25).all()
    assert (at_one_user(500.0) > 200).all()
