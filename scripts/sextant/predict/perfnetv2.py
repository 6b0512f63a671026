"""PerfNetV2 (Wang et al., ACM SIGAPP Applied Computing Review 2021): PerfNet with convolutions."""

from types import ModuleType
from typing import Any

from sextant.predict.network import keras_on_cpu
from sextant.predict.perfnet import PerfNet


class PerfNetV2(PerfNet):
    """The baseline PerfNetV2 of LLM-Pilot (section V-C).

    PerfNet after two convolutions over the row of inputs, 32 of width 3 and 128 of width 2;
    the loss is the mean squared error of log(1 + latency).
    """

    def first_layers(self, layers: ModuleType, n_inputs: int) -> list[Any]:
        """Return the convolutions; neighbours are columns that happen to stand together."""
        return [
            layers.Input((n_inputs, 1)),
            layers.Conv1D(32, 3, activation="relu"),
            layers.Conv1D(128, 2, activation="relu"),
            layers.Flatten(),
        ]

    def loss(self) -> Any:
        """Return the loss."""
        return keras_on_cpu().losses.MeanSquaredLogarithmicError()
