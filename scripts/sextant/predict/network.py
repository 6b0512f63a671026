"""What the three networks share: their inputs, their answers, and Keras on JAX.

Keras is imported inside functions only: it takes seconds, which no command that trains no network
should pay.
"""

import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from sextant.points.frame import TARGETS
from sextant.predict.features import column_kinds, numbers_of
from sextant.predict.predictor import latency_frame


def keras_on_cpu() -> ModuleType:
    """Import Keras with JAX on the CPU: thousands of tiny steps gain nothing from a GPU."""
    # Both are read once, at the first import.
    os.environ["KERAS_BACKEND"] = "jax"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import keras

    return keras


def network_latencies(
    networks: Mapping[str, Any], inputs: np.ndarray, index: pd.Index
) -> pd.DataFrame:
    """Return `nttft_ms, itl_ms` that the networks of both targets predict."""
    return latency_frame(np.hstack([output(networks[name], inputs) for name in TARGETS]), index)


def output(network: Any, inputs: np.ndarray) -> np.ndarray:
    """Return what a network says in milliseconds, (rows, 1)."""
    # One batch: each further shape of a batch would be compiled again.
    return network.predict(inputs, batch_size=len(inputs), verbose=0)


class NetworkInputs:
    """Turns a design matrix into numbers of mean 0 and variance 1 over the training rows.

    Columns are `users`, the other numbers, then one per category and value seen in training.
    A value never seen has none, so it excites no weight that nothing trained.
    """

    def fit(self, X: pd.DataFrame) -> Self:
        """Learn the values of categories, the means and the variances from training rows."""
        self.numbers_, self.categories_ = column_kinds(X)
        self.one_hot_ = OneHotEncoder(sparse_output=False, handle_unknown="ignore")
        self.one_hot_.fit(X[self.categories_])
        self.scaler_ = StandardScaler().fit(self._columns(X))
        self.n_columns = self.scaler_.n_features_in_
        return self

    def transform(self, X: pd.DataFrame) -> np.ndarray:
        """Return the inputs, (rows, columns) in float32."""
        return self.scaler_.transform(self._columns(X)).astype(np.float32)

    def _columns(self, X: pd.DataFrame) -> np.ndarray:
        categories = self.one_hot_.transform(X[self.categories_])
        return np.hstack([numbers_of(X, self.numbers_), categories])
