"""The predictor of LLM-Pilot (arXiv 2410.02425, section IV-B): XGBoost tuned to the limits."""

import logging
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.model_selection import ParameterGrid
from xgboost import XGBRegressor

from sextant.gpu import GPUProfile
from sextant.predict.features import FeatureEncoder, leave_one_out
from sextant.predict.weights import sample_weights
from sextant.recommend import SLO, TARGETS, has_latency

logger = logging.getLogger(__name__)

GRID = ParameterGrid(
    {
        "max_depth": [2, 4, 6],
        "learning_rate": [0.1, 0.3],
        "n_estimators": [50, 100],
    }
)

Params = dict[str, Any]


def weighted_mape(truth: np.ndarray, predicted: np.ndarray, weights: np.ndarray) -> float:
    """Return the mean of |predicted - truth| / truth over rows weighted by `weights`, a fraction.

    `truth` and `predicted` are (rows, targets) in ms; targets count alike.
    """
    error = np.abs(predicted - truth) / truth
    return float(np.average(error.mean(axis=1), weights=weights))


class LLMPilot:
    """Predicts nTTFT and ITL of an LLM that was not measured, near the limits best of all.

    As in the paper: both targets in one XGBoost model, sample weights of eq. 4, latencies
    that never fall with more users, hyperparameters by leave-one-LLM-out over the training
    LLMs with the weighted MAPE. Unlike the paper, trees fit the logarithm of the latency:
    predictions are positive, and a squared error of the logarithm is close to the squared
    relative error that the tuning and the ratio to a limit speak of. The logarithm is
    monotone, so the constraint carries over.
    """

    depends_on = ("nttft_ms", "itl_ms", "percentile")
    min_training_llms = 2

    def __init__(self, slo: SLO, profiles: Mapping[str, GPUProfile], seed: int) -> None:
        self.slo, self.seed = slo, seed

    def fit(self, X: pd.DataFrame, y: pd.DataFrame) -> Self:
        """Tune and train.

        Args:
            X: design matrix (`sextant.predict.features.design_matrix`) of at least 2 LLMs.
            y: `nttft_ms` and `itl_ms`, aligned with `X`. Rows where either is missing or not
                above 0 teach nothing about latency; they are left out and counted in
                `n_unused_`.
        """
        usable = has_latency(y)
        self.n_unused_ = int((~usable).sum())
        if self.n_unused_:
            logger.info("llm_pilot: %d training rows have no latency", self.n_unused_)
        X, y = X[usable], y.loc[usable, TARGETS]
        weights = sample_weights(X, y, self.slo.nttft_ms, self.slo.itl_ms)
        self.params_ = self._tune(X, y, weights)
        self.encoder_ = FeatureEncoder()
        encoded = self.encoder_.fit_transform(X, np.log(y))
        self.model_ = self._train(self.params_, encoded, np.log(y), weights)
        return self

    def predict(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return `nttft_ms` and `itl_ms`, both above 0, one row per row of `X`."""
        latencies = _latencies(self.model_, self.encoder_.transform(X))
        return pd.DataFrame(latencies, columns=TARGETS, index=X.index)

    def _tune(self, X: pd.DataFrame, y: pd.DataFrame, weights: np.ndarray) -> Params:
        """Return the parameters of the least mean validation error; ties: the grid's first."""
        errors = np.zeros(len(GRID))
        for training, held_out in leave_one_out(X["llm_id"]):
            known = np.log(y.iloc[training])
            encoder = FeatureEncoder()
            encoded = encoder.fit_transform(X.iloc[training], known)
            unseen, truth = encoder.transform(X.iloc[held_out]), y.iloc[held_out].to_numpy()
            for position, params in enumerate(GRID):
                model = self._train(params, encoded, known, weights[training])
                predicted = _latencies(model, unseen)
                errors[position] += weighted_mape(truth, predicted, weights[held_out])
        return GRID[int(errors.argmin())]

    def _train(
        self, params: Params, encoded: np.ndarray, log_ms: pd.DataFrame, weights: np.ndarray
    ) -> XGBRegressor:
        model = XGBRegressor(
            **params,
            # Only trees of one target each support constraints; `users` is the first column.
            multi_strategy="one_output_per_tree",
            monotone_constraints=(1,) + (0,) * (encoded.shape[1] - 1),
            tree_method="hist",
            n_jobs=1,
            random_state=self.seed,
        )
        # Regularisation counts in units of weight: a mean of 1 makes it mean rows.
        return model.fit(encoded, log_ms, sample_weight=weights / weights.mean())


def _latencies(model: XGBRegressor, encoded: np.ndarray) -> np.ndarray:
    return np.exp(model.predict(encoded).astype(float))
