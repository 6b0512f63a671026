"""The frame of predicted latencies, joint draws of them, and what all shipped predictors share."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from sextant.facts.gpu import GPUProfile
from sextant.facts.slo import SLO
from sextant.points.features import Facts
from sextant.points.frame import FLOOR_MS, TARGETS

if TYPE_CHECKING:
    from sextant.predict.tuning import Settings

INTERVAL = (0.05, 0.95)
JOULES = ["energy_j_per_token", "energy_lo_j_per_token", "energy_hi_j_per_token"]
"""Median and 90% interval of the joules that an output token takes, of all devices."""


class Draws(NamedTuple):
    """Joint draws of what the latencies of some rows may be."""

    X: pd.DataFrame
    """`llm_id, gpu_profile_id, users`, and the mean lengths of requests."""
    samples_ms: np.ndarray
    """nTTFT and ITL, shape (draws, rows, 2)."""

    def summary(self) -> pd.DataFrame:
        """Return medians `nttft_ms, itl_ms` and the bounds of their 90% intervals.

        The bounds are `nttft_lo_ms, nttft_hi_ms, itl_lo_ms, itl_hi_ms`; one row per row of `X`.
        """
        low, high = np.quantile(self.samples_ms, INTERVAL, axis=0)
        frame = latency_frame(np.median(self.samples_ms, axis=0), self.X.index)
        for column, target in enumerate(("nttft", "itl")):
            frame[f"{target}_lo_ms"] = low[:, column]
            frame[f"{target}_hi_ms"] = high[:, column]
        return frame


def latency_frame(
    latencies_ms: np.ndarray | Sequence[Sequence[float]], index: pd.Index
) -> pd.DataFrame:
    """Return `nttft_ms, itl_ms`, not below `FLOOR_MS`, from values of shape (rows, 2)."""
    values = np.asarray(latencies_ms, dtype=float).reshape(len(index), len(TARGETS))
    return pd.DataFrame(np.maximum(values, FLOOR_MS), columns=TARGETS, index=index)


class LatencyPredictor:
    """Base of the predictors; `sextant.predict.protocols` says what each attribute means."""

    depends_on: tuple[str, ...] = ("percentiles", "first_token")
    min_training_llms = 2
    uses_references = False

    def __init__(
        self,
        slo: SLO,
        profiles: Mapping[str, GPUProfile],
        seed: int,
        settings: "Settings | None" = None,
    ) -> None:
        self.slo, self.profiles, self.seed, self.settings = slo, profiles, seed, settings

    def design(self, keys: pd.DataFrame, facts: Facts) -> pd.DataFrame:
        """Return the design matrix of features (`features.design_matrix`)."""
        from sextant.predict.features import design_matrix  # laws are given facts, not features

        return design_matrix(keys, facts.features)
