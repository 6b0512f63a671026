"""PerfNet (Wang et al., RACS 2020), and the networks that PerfNetV2 and Morphling share with it.

Keras is imported inside functions only, through `keras_on_cpu`: it takes seconds, which no
command that trains no network should pay.
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
from sextant.predict.latencies import LatencyPredictor, latency_frame
from sextant.predict.protocols import Rows
from sextant.predict.tuning import Settings


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
        return self

    def transform(self, X: pd.DataFrame) -> np.ndarray:
        """Return the inputs, (rows, columns) in float32."""
        return self.scaler_.transform(self._columns(X)).astype(np.float32)

    @property
    def n_columns(self) -> int:
        """Number of inputs."""
        return self.scaler_.n_features_in_

    def _columns(self, X: pd.DataFrame) -> np.ndarray:
        return np.hstack(
            [numbers_of(X, self.numbers_), self.one_hot_.transform(X[self.categories_])]
        )


SETTINGS: Settings = {"epochs": 1000, "batch_size": 128}


class PerfNet(LatencyPredictor):
    """The baseline PerfNet of LLM-Pilot (section V-C), with the settings PerfNet's authors chose.

    Layers of 32, 64, 128 and 256 ReLU, dropout of 0.3, one ReLU without bias; the loss is
    MAPLE; Adam takes steps of 0.1, of 0.05 from the 400th and of 0.025 from the 800th. The
    last unit may die, for so large steps: its network then predicts 0 ms everywhere.
    """

    min_training_llms = 1

    def fit(self, training: Rows, references: Rows | None = None) -> Self:
        """Train a network per target."""
        self.inputs_ = NetworkInputs().fit(training.X)
        inputs = self.inputs_.transform(training.X)
        self.networks_ = {
            target: self._train(inputs, training.y[[target]].to_numpy(np.float32))
            for target in TARGETS
        }
        return self

    def predict(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return `nttft_ms` and `itl_ms`, one row per row of `X`."""
        return network_latencies(self.networks_, self.inputs_.transform(X), X.index)

    def first_layers(self, layers: ModuleType, n_inputs: int) -> list[Any]:
        """Return the layers before the dense ones."""
        return [layers.Input((n_inputs,))]

    def loss(self) -> Any:
        """Return the loss."""
        return maple

    def _train(self, inputs: np.ndarray, target_ms: np.ndarray) -> Any:
        keras = keras_on_cpu()
        layers = keras.layers
        # Weights, dropout and the order of rows are drawn from global generators.
        keras.utils.set_random_seed(self.seed)
        network = keras.Sequential(
            [
                *self.first_layers(layers, inputs.shape[1]),
                *(layers.Dense(width, activation="relu") for width in (32, 64, 128, 256)),
                layers.Dropout(0.3),
                layers.Dense(1, activation="relu", use_bias=False),
            ]
        )
        steps = keras.optimizers.schedules.PiecewiseConstantDecay([400, 800], [0.1, 0.05, 0.025])
        network.compile(loss=self.loss(), optimizer=keras.optimizers.Adam(steps))
        network.fit(inputs, target_ms, verbose=0, **(self.settings or SETTINGS))
        return network


def maple(truth: Any, predicted: Any) -> Any:
    """Return the mean absolute percentage error of log(1 + latency), PerfNet's loss."""
    ops = keras_on_cpu().ops
    log_truth = ops.log1p(truth)
    return ops.mean(ops.abs(log_truth - ops.log1p(predicted)) / log_truth)
