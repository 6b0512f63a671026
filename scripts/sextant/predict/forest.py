"""Random forests for both latencies: what RF and PARIS share."""

from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestRegressor

from sextant.points.frame import TARGETS
from sextant.predict.features import FeatureEncoder
from sextant.predict.predictor import Settings, TrainingRows, latency_frame
from sextant.predict.tuning import HeldOutRows, Tunable, choose_settings, errors_of_trees

_FRIEDMAN = "friedman_mse"
_TINY = 2.0**-20
"""A power of 2, so that scaling loses no digit."""


class ForestPredictor(Tunable):
    """One random forest for both targets in milliseconds."""

    def fit(self, training: TrainingRows, references: TrainingRows | None = None) -> Self:
        """Train, with settings chosen on the training rows unless they were given."""
        self.settings_ = self.settings or choose_settings(self, training)
        self.measured_ = [training] if references is None else [training, references]
        self.encoder_ = FeatureEncoder()
        X = self.describe(training.X, self.measured_)
        encoded = self.encoder_.fit_transform(X, training.y[TARGETS])
        self.forest_ = _grow(self.settings_, self.seed, encoded, training.y[TARGETS].to_numpy())
        return self

    def predict(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return `nttft_ms` and `itl_ms`, one row per row of `X`."""
        encoded = self.encoder_.transform(self.describe(X, self.measured_))
        predicted = _latencies(self.settings_["criterion"], self.forest_.predict(encoded))
        return latency_frame(predicted, X.index)

    def validation_errors(
        self, training: TrainingRows, held_out: Sequence[HeldOutRows]
    ) -> np.ndarray:
        """Return the error of each setting on each LLM held out, (LLMs, settings)."""
        measured = [training, *(llm.references for llm in held_out)]
        encoder = FeatureEncoder()
        X = self.describe(training.X, measured)
        encoded = encoder.fit_transform(X, training.y[TARGETS])
        unseen = pd.concat([llm.rows.X for llm in held_out])
        unseen = encoder.transform(self.describe(unseen, measured))
        y = training.y[TARGETS].to_numpy()

        # Seeds of trees are drawn in sequence, so a forest's first trees are the smaller forest.
        def grow(settings: Settings, most: int) -> Callable[[int], np.ndarray]:
            forest = _grow(settings | {"n_estimators": most}, self.seed, encoded, y)
            sums = np.cumsum([tree.predict(unseen) for tree in forest.estimators_], axis=0)
            return lambda n: _latencies(settings["criterion"], sums[n - 1] / n)

        return errors_of_trees(self.GRID, held_out, grow)

    def describe(self, X: pd.DataFrame, measured: Sequence[TrainingRows]) -> pd.DataFrame:
        """Return the features of rows `X`, given all points that may be known of their LLMs."""
        return X


def _latencies(criterion: str, predicted: np.ndarray) -> np.ndarray:
    """Return both latencies from what a forest of `_grow` predicts."""
    if criterion != _FRIEDMAN:
        return predicted
    first = predicted[:, 1] / _TINY
    return np.column_stack([first, predicted[:, 0] - first])


def _grow(settings: Settings, seed: int, X: np.ndarray, y: np.ndarray) -> RandomForestRegressor:
    """Return a forest; with `friedman_mse` its trees split by the sum of both targets.

    That is what scikit-learn did until 1.8 with more than one target (1.9 takes it for
    `squared_error`). The first latency is added so small that it changes no split.
    """
    if settings["criterion"] == _FRIEDMAN:
        settings = settings | {"criterion": "squared_error"}
        y = np.column_stack([y.sum(axis=1), _TINY * y[:, 0]])
    return RandomForestRegressor(**settings, random_state=seed, n_jobs=1).fit(X, y)
