"""The baselines that learn without a network, on LLMs whose latencies follow a known law."""

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import ParameterGrid

from roofline import LIMITS, PROFILES, SIZES, STRONGEST, USERS, WEAKEST, references_of, rows_of
from sextant.facts.slo import SLO
from sextant.points.frame import FLOOR_MS, TARGETS, has_latency
from sextant.predict.features import UNKNOWN
from sextant.predict.llm_pilot import LLMPilot
from sextant.predict.paris import PARIS
from sextant.predict.predictor import TrainingRows, latency_frame
from sextant.predict.rf import RandomForest
from sextant.predict.selecta import Selecta
from sextant.predict.tuning import HeldOutRows, Tunable, mape_error
from support import needs_baselines

NOISY = rows_of(SIZES, noise=0.3)
ROWS = rows_of(SIZES)
UNSEEN, KNOWN = ROWS.of(["c"]), ROWS.without(["c"])
TREES = {"n_estimators": [2, 5], "max_depth": [2, 30], "bootstrap": [True, False]}
TREES |= {"criterion": ["absolute_error", "friedman_mse", "poisson"]}
DEEP = {"n_estimators": 10, "max_depth": 30, "bootstrap": False, "criterion": "squared_error"}
SLOW = [pytest.mark.slow, needs_baselines]


class SmallForest(RandomForest):
    GRID = tuple(ParameterGrid(TREES))


class OneParis(PARIS):
    GRID = (DEEP,)


class TwoSelecta(Selecta):
    GRID = (Selecta.GRID[0], Selecta.GRID[-1])


def fitted(
    kind: type[Tunable],
    position: int,
    rows: TrainingRows,
    told: TrainingRows | None = None,
    seed: int = 1,
):
    return kind(LIMITS, PROFILES, seed, kind.GRID[position]).fit(rows, told)


@pytest.mark.parametrize(
    ("kind", "positions"),
    [
        (SmallForest, range(24)),
        (OneParis, (0,)),
        (LLMPilot, (0, 7, 60, 71, 119)),
        pytest.param(TwoSelecta, (0, 1), marks=SLOW),
    ],
)
def test_a_validation_error_is_that_of_a_fit_with_these_settings(kind, positions) -> None:
    """Though trainings are shared between settings and LLMs held out."""
    training = NOISY.without(["b", "d"])
    held_out = [HeldOutRows(own, references_of(own)) for own in (NOISY.of(["b"]), NOISY.of(["d"]))]
    errors = kind(LIMITS, PROFILES, seed=1).validation_errors(training, held_out)
    assert errors.shape == (2, len(kind.GRID))
    for position in positions:
        for row, (own, references) in enumerate(held_out):
            model = fitted(kind, position, training, references)
            predicted = model.predict(own.X)
            if kind is LLMPilot:  # judged by what trees say, though it be less than 0 ms
                predicted[:] = model.model_.inplace_predict(model.encoder_.transform(own.X))
            if kind is TwoSelecta:  # the truth replaces the prediction where there is a reference
                predicted.loc[references.X.index] = references.y[TARGETS]
            expected = mape_error(own.y[TARGETS].to_numpy(), predicted.to_numpy())
            assert errors[row, position] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", [SmallForest, LLMPilot])
def test_an_unseen_llm_is_predicted_better_than_by_a_constant(kind) -> None:
    model = kind(LIMITS, PROFILES, seed=1).fit(KNOWN)
    assert model.settings_ in kind.GRID
    truth, predicted = UNSEEN.y[TARGETS].to_numpy(), model.predict(UNSEEN.X)
    constant = np.tile(KNOWN.y[TARGETS].mean(), (len(truth), 1))
    assert predicted.index.equals(UNSEEN.X.index)
    assert mape_error(truth, predicted.to_numpy()) < 0.5 * mape_error(truth, constant)


@pytest.mark.parametrize("kind", [LLMPilot, pytest.param(Selecta, marks=SLOW)])
def test_the_same_seed_gives_the_same_bytes(kind) -> None:
    def bytes_of(seed: int) -> bytes:
        model = fitted(kind, -1, NOISY.without(["c"]), seed=seed)
        return model.predict(NOISY.of(["a"]).X).to_numpy().tobytes()

    assert bytes_of(1) == bytes_of(1)
    assert bytes_of(1) != bytes_of(2) or kind is LLMPilot


def test_measurements_tell_paris_apart_what_facts_do_not_and_change_no_forest() -> None:
    rows = rows_of({"a": 1.0, "b": 1.1, "c": 8.0, "d": 8.8, "e": 9.0, "f": 1.2})
    rows.X["size"], rows.X["llm_type"] = 1.0, "same"
    unseen, known = rows.of(["c"]), rows.without(["c"])
    truth, references = unseen.y[TARGETS].to_numpy(), references_of(unseen)
    paris, forest = (kind(LIMITS, PROFILES, 1, DEEP) for kind in (PARIS, RandomForest))
    told = forest.fit(known, references).predict(unseen.X)
    informed = paris.fit(known, references).predict(unseen.X)
    assert mape_error(truth, informed.to_numpy()) < 0.7 * mape_error(truth, told.to_numpy())
    assert told.equals(forest.fit(known).predict(unseen.X))


def test_a_row_has_its_llms_measurements_on_both_reference_profiles() -> None:
    training, unseen = rows_of({"a": 1.0, "b": 2.0}), rows_of({"c": 4.0})
    describe = PARIS(LIMITS, PROFILES, 1).describe
    described = describe(unseen.X, [training, unseen.on([STRONGEST])])
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
    # A row of training has its own LLM's measurements only.
    own = describe(training.X, [training]).groupby(training.X["llm_id"])[f"{WEAKEST}_itl_ms_1"]
    assert own.nunique().tolist() == [1, 1]
    assert own.first()["b"] == pytest.approx(2 * own.first()["a"])


def test_predictions_never_fall_with_more_users_though_the_data_do() -> None:
    X = NOISY.X
    pairs = X.drop_duplicates(["llm_id", "gpu_profile_id"]).drop(columns="users")
    dense = pairs.merge(pd.DataFrame({"users": np.arange(1, 129)}), how="cross")
    predicted = LLMPilot(LIMITS, PROFILES, seed=1).fit(NOISY).predict(dense[X.columns])
    steps = predicted.groupby([dense["llm_id"], dense["gpu_profile_id"]]).diff().dropna()
    assert (steps >= 0).all().all()
    assert (steps > 0).any().all()


def test_points_near_the_limits_are_fitted_best() -> None:
    """No feature tells the LLMs apart, so the weights of eq. 4 alone decide."""
    names = [name for name in "abcdefgh" for _ in range(3)]
    X = pd.DataFrame({"llm_id": names, "gpu_profile_id": "g", "users": [1, 16, 64] * 8})
    values = [10.0, 400.0, 1000.0] * 4 + [500.0, 510.0, 520.0] * 4
    y = pd.DataFrame({target: values for target in TARGETS})
    settings = {"n_estimators": 50, "max_depth": 4, "learning_rate": 0.5}

    def at_one_user(limit_ms: float) -> pd.Series:
        slo = SLO("s", nttft_ms=limit_ms, itl_ms=limit_ms, percentile=50, users=1)
        return (
            LLMPilot(slo, PROFILES, 1, settings).fit(TrainingRows(X, y)).predict(X.head(1)).iloc[0]
        )

    # Weights at one user, of 10 and 500 ms: 0.62 and 0.67 where the limit is 10 ms (mean
    # 264), 0.024 and 0.67 where it is 500 ms (mean 483), for 10 ms is then far off.
    assert at_one_user(10.0).tolist() == pytest.approx([264] * 2, rel=0.1)
    assert at_one_user(500.0).tolist() == pytest.approx([483] * 2, rel=0.1)


@pytest.mark.slow
@needs_baselines
def test_references_move_what_is_predicted_in_between() -> None:
    unseen, known = ROWS.of(["e"]), ROWS.without(["e"])
    gap = unseen.X["gpu_profile_id"] == "2xmiddle"
    truth, errors = unseen.y.loc[gap, TARGETS].to_numpy(), []
    for references in (unseen.where(~gap), unseen.where(gap & ~gap)):
        model = fitted(Selecta, 0, known, references)
        errors.append(mape_error(truth, model.predict(unseen.X)[gap].to_numpy()))
    assert errors[0] < 0.5 * errors[1]


@pytest.mark.slow
@needs_baselines
def test_estimates_stay_below_the_largest_entry_and_are_latencies() -> None:
    # So large that gradient descent diverges: the largest entry, not NaN.
    rows = rows_of({"a": 1.0, "b": 500.0, "c": 2.0})
    known = rows.without(["c"])
    predicted = fitted(Selecta, -1, known).predict(rows.X)
    assert has_latency(predicted).all()
    for users, same in predicted.groupby(rows.X["users"]):
        largest = known.y.loc[known.X["users"] == users, TARGETS].max()
        assert (same <= largest).all(axis=None)
        assert (same == largest).any(axis=None)


@pytest.mark.slow
@needs_baselines
def test_each_number_of_users_is_a_matrix_of_its_own() -> None:
    every = fitted(Selecta, 0, KNOWN).predict(UNSEEN.X)
    is_one = UNSEEN.X["users"] == 1
    alone = fitted(Selecta, 0, KNOWN.where(KNOWN.X["users"] == 1)).predict(UNSEEN.X)
    assert alone[is_one].equals(every[is_one])
    assert alone[~is_one].isna().all(axis=None)


def test_a_latency_of_no_time_becomes_the_floor_and_a_missing_one_stays() -> None:
    frame = latency_frame([[-3.0, 0.0], [5.0, np.nan]], pd.Index([7, 9]))
    assert frame.loc[7].tolist() == [FLOOR_MS, FLOOR_MS]
    assert frame.loc[9, "nttft_ms"] == 5.0
    assert np.isnan(frame.loc[9, "itl_ms"])
    assert has_latency(frame).tolist() == [True, False]
