"""PerfNet (Wang et al., RACS 2020): a dense network per latency."""

from types import ModuleType
from typing import Any, Self

import numpy as np
import pandas as pd

from sextant.points.frame import TARGETS
from sextant.predict.network import NetworkInputs, keras_on_cpu, network_latencies
from sextant.predict.predictor import PointPredictor, Settings, TrainingRows

SETTINGS: Settings = {"epochs": 1000, "batch_size": 128}


class PerfNet(PointPredictor):
    """The baseline PerfNet of LLM-Pilot (section V-C), with the settings PerfNet's authors chose.

    Layers of 32, 64, 128 and 256 ReLU, dropout of 0.3, one ReLU without bias; the loss is
    MAPLE; Adam takes steps of 0.1, of 0.05 from the 400th and of 0.025 from the 800th. The
    last unit may die, as steps are large: the network then predicts 0 ms everywhere.
    """

    min_training_llms = 1

    def fit(self, training: TrainingRows, references: TrainingRows | None = None) -> Self:
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
