"""Lengths of requests: mean and long ones on each side."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

DAY_S = 86400
MOST_TOKENS = 1e8
"""Of the input, or of the output, of a request that may be asked about."""
LONG = 99
"""Percentile of a long request's tokens."""


class Length(NamedTuple):
    """Tokens of a request, on one side."""

    mean: float
    high: float  # of a long request: the 99th percentile, or the mean where nothing else is known


class RequestLengths(NamedTuple):
    """The requests of a question."""

    inputs: Length
    outputs: Length

    def per_second(self, tokens_per_day: float) -> float:
        """Return the request rate at which this many tokens, of input and output, pass a day."""
        return tokens_per_day / DAY_S / (self.inputs.mean + self.outputs.mean)


def length_sampler(requests: RequestLengths) -> Callable[..., pd.DataFrame]:
    """Return a function that draws requests of these lengths: lognormal by mean and p99. With z the
    normal's 99th percentile, log(p99 / mean) = z sigma - sigma^2 / 2."""
    import pandas as pd

    z = NormalDist().inv_cdf(LONG / 100)

    def lengths(length: Length, n: int, rng: np.random.Generator) -> np.ndarray:
        sigma = z - max(z**2 - 2 * math.log(length.high / length.mean), 0.0) ** 0.5
        drawn = length.mean * np.exp(sigma * rng.standard_normal(n) - sigma**2 / 2)
        return np.asarray(np.maximum(drawn.round(), 1).astype(np.int64))

    def sample(n: int, *, seed: int | np.random.SeedSequence) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        drawn = [lengths(side, n, rng) for side in requests]
        return pd.DataFrame(dict(zip(("input_tokens", "output_tokens"), drawn, strict=True)))

    return sample
