"""The predictor of LLM-Pilot (arXiv 2410.02425, section IV-B): XGBoost tuned to the limits."""

from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
import pandas as pd
import xgboost
from sklearn.model_selection import ParameterGrid

from sextant.points.frame import TARGETS
from sextant.predict.features import FeatureEncoder, sample_weights
from sextant.predict.predictor import Settings, TrainingRows, latency_frame
from sextant.predict.tuning import HeldOutRows, Tunable, choose_settings, errors_of_trees


class LLMPilot(Tunable):
    """Predicts nTTFT and ITL of an LLM that was not measured, best of all near the limits.

    As published (github.com/IBM/LLM-performance-prediction, commit 3c66483): categories
    replaced by means of the targets, both targets in one XGBoost model with squared errors
    of milliseconds, sample weights of eq. 4, latencies that never fall with more users, and
    120 settings to choose among by leave-one-LLM-out. The authors used XGBoost 2.0, which
    starts all trees from one intercept, the weighted mean of both targets; later versions
    have one per target, so it is given. With seed 42 the predictions are then the published
    ones to the last digit of a 32-bit number.
    """

    depends_on = ("target_limits_ms", "percentiles", "first_token")
    GRID = tuple(
        ParameterGrid(
            {
                "n_estimators": [5, 50],
                "max_depth": [4, 6, 10, 8, 12],
                "learning_rate": [0.5, 0.1],
                "subsample": [0.5, 0.8, 1.0],
                "colsample_bytree": [0.8, 1.0],
            }
        )
    )

    def fit(self, training: TrainingRows, references: TrainingRows | None = None) -> Self:
        """Train, with settings chosen on the training rows unless they were given."""
        self.settings_ = self.settings or choose_settings(self, training)
        self.encoder_ = FeatureEncoder()
        matrix, fixed = self._prepare(self.encoder_, training)
        trees = dict(self.settings_)
        n_estimators = trees.pop("n_estimators")
        self.model_ = xgboost.train(fixed | trees, matrix, n_estimators)
        return self

    def predict(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return `nttft_ms` and `itl_ms`, one row per row of `X`."""
        return latency_frame(self.model_.inplace_predict(self.encoder_.transform(X)), X.index)

    def validation_errors(
        self, training: TrainingRows, held_out: Sequence[HeldOutRows]
    ) -> np.ndarray:
        """Return the error of each setting on each LLM held out, (LLMs, settings)."""
        encoder = FeatureEncoder()
        matrix, fixed = self._prepare(encoder, training)  # the same for all settings
        unseen = encoder.transform(pd.concat([llm.rows.X for llm in held_out]))

        def grow(settings: Settings, most: int) -> Callable[[int], np.ndarray]:
            model = xgboost.train(fixed | settings, matrix, most)
            return lambda n: model.inplace_predict(unseen, iteration_range=(0, n))

        return errors_of_trees(self.GRID, held_out, grow)

    def _prepare(
        self, encoder: FeatureEncoder, training: TrainingRows
    ) -> tuple[xgboost.DMatrix, Settings]:
        """Return the encoded training rows, and the parameters that all settings share."""
        encoded = encoder.fit_transform(*training)
        y = training.y[TARGETS].to_numpy()
        weights = sample_weights(*training, self.slo.target_limits_ms)
        fixed = {
            "objective": "reg:squarederror",
            "tree_method": "hist",
            "max_bin": 256,
            "monotone_constraints": encoder.monotone_in_users(),
            "base_score": float(np.average(y.mean(axis=1), weights=weights)),
            "seed": self.seed,
            "nthread": 1,
        }
        return xgboost.DMatrix(encoded, y, weight=weights, nthread=1), fixed
