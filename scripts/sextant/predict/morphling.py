"""Morphling (Wang et al., SoCC 2021): a network fine-tuned on a few measurements."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Self

import numpy as np
import pandas as pd

from sextant.points.frame import TARGETS
from sextant.predict.network import NetworkInputs, keras_on_cpu, network_latencies, output
from sextant.predict.predictor import Settings, TrainingRows
from sextant.predict.tuning import HeldOutRows, Tunable, choose_settings, mape_error

BATCH_SIZE = 128

CHOICES: tuple[Settings, ...] = tuple(
    {"epochs": epochs, "alpha": alpha, "beta": beta}
    for epochs, alpha, beta in product((500, 1000), (0.005, 0.01, 0.05), (0.005, 0.01))
)
"""Settings of one network: its epochs, its step, and its step while it is fine-tuned."""


class Morphling(Tunable):
    """The baseline Morphling of LLM-Pilot (section V-C).

    Per target two layers of 128 ReLU and one ReLU without bias, trained on the percentage
    error by plain gradient descent, then once more through the new LLM's reference
    measurements. Each target has settings of its own. LLM-Pilot's authors published what
    they had chosen, not what they had chosen from: the values here are those that occur
    there. Batches always have 128 rows, or tuning would take three times as long; the authors
    chose 128 rows 9 times of 20, 256 rows 8 times and 64 rows 3 times.
    """

    uses_references = True
    GRID = tuple(
        dict(zip(TARGETS, pair, strict=True)) for pair in product(CHOICES, repeat=len(TARGETS))
    )

    def fit(self, training: TrainingRows, references: TrainingRows | None = None) -> Self:
        """Train and fine-tune, with settings chosen on the training rows unless given."""
        self.settings_ = self.settings or choose_settings(self, training)
        self.inputs_ = NetworkInputs().fit(training.X)
        self.networks_ = {}
        for target, choice in self.settings_.items():
            network = _Network(self.inputs_, target, self.seed)
            for _ in network.train(training, choice["alpha"], [choice["epochs"]]):
                if references is not None:
                    network.fine_tune(references, choice["beta"])
            self.networks_[target] = network.keras
        return self

    def predict(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return `nttft_ms` and `itl_ms`, one row per row of `X`."""
        return network_latencies(self.networks_, self.inputs_.transform(X), X.index)

    def validation_errors(
        self, training: TrainingRows, held_out: Sequence[HeldOutRows]
    ) -> np.ndarray:
        """Return the error of each setting on each LLM held out, (LLMs, settings).

        The error in two targets is the mean of both errors, so a choice is trained once per
        target, not once per pair of choices.
        """
        inputs = NetworkInputs().fit(training.X)
        nttft, itl = (
            _Network(inputs, target, self.seed).errors(training, held_out) for target in TARGETS
        )
        return ((nttft[:, :, None] + itl[:, None, :]) / 2).reshape(len(held_out), -1)


class _Network:
    """The network of one target; every training starts from the same first weights."""

    def __init__(self, inputs: NetworkInputs, target: str, seed: int) -> None:
        self.inputs = inputs
        self.target = target
        self.seed = seed
        keras = keras_on_cpu()
        # Weights and the order of rows are drawn from global generators.
        keras.utils.set_random_seed(seed)
        layers = keras.layers
        self.keras = keras.Sequential(
            [
                layers.Input((inputs.n_columns,)),
                layers.Dense(128, activation="relu"),
                layers.Dense(128, activation="relu"),
                layers.Dense(1, activation="relu", use_bias=False),
            ]
        )
        loss = keras.losses.MeanAbsolutePercentageError()
        self.keras.compile(loss=loss, optimizer=keras.optimizers.SGD())
        self.start = self.keras.get_weights()

    def train(self, rows: TrainingRows, alpha: float, lengths: Sequence[int]) -> Iterator[int]:
        """Train from the first weights; yield after each number of epochs, as if it were the last.

        Between yields the caller may change nothing but the weights, and has to put them back.
        """
        keras_on_cpu().utils.set_random_seed(self.seed)
        self.keras.set_weights(self.start)
        done = 0
        for epochs in lengths:
            fitting = {"batch_size": BATCH_SIZE, "initial_epoch": done, "epochs": epochs}
            self._descend(rows, alpha, fitting)
            done = epochs
            yield epochs

    def fine_tune(self, references: TrainingRows, beta: float) -> None:
        """Go once through the reference measurements in their order, 8 at a time."""
        if len(references.X):
            self._descend(references, beta, {"batch_size": 8, "epochs": 1, "shuffle": False})

    def _descend(self, rows: TrainingRows, step: float, fitting: dict[str, Any]) -> None:
        """Descend by steps of this size; `fitting` are keywords of Keras' `fit`."""
        self.keras.optimizer.learning_rate = step
        latencies_ms = rows.y[[self.target]].to_numpy(np.float32)
        self.keras.fit(self.inputs.transform(rows.X), latencies_ms, verbose=0, **fitting)

    def errors(self, training: TrainingRows, held_out: Sequence[HeldOutRows]) -> np.ndarray:
        """Return the error of each choice on each LLM held out, (LLMs, choices)."""
        errors = np.empty((len(held_out), len(CHOICES)))
        lengths = sorted({choice["epochs"] for choice in CHOICES})
        for alpha in dict.fromkeys(choice["alpha"] for choice in CHOICES):
            for epochs in self.train(training, alpha, lengths):
                trained = self.keras.get_weights()
                for position, choice in enumerate(CHOICES):
                    if (choice["alpha"], choice["epochs"]) != (alpha, epochs):
                        continue
                    for row, (rows, references) in enumerate(held_out):
                        self.fine_tune(references, choice["beta"])
                        predicted = output(self.keras, self.inputs.transform(rows.X))
                        truth = rows.y[[self.target]].to_numpy()
                        errors[row, position] = mape_error(truth, predicted)
                        self.keras.set_weights(trained)
        # A network that diverged is never chosen.
        return np.nan_to_num(errors, nan=np.inf)
