"""The protocol of predictors: what they are fitted on, and what they return."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from sextant.facts.gpu import GPUProfile
from sextant.facts.slo import SLO
from sextant.points.frame import FactTables

Settings = dict[str, Any]
"""Hyperparameters by name."""
Profiles = Mapping[str, GPUProfile]


class TrainingRows(NamedTuple):
    """Points as predictors take them, sorted by LLM, GPU profile and users."""

    X: pd.DataFrame
    """Design matrix: `llm_id, gpu_profile_id, users`, then features (NaN: not known)."""
    y: pd.DataFrame
    """`nttft_ms, itl_ms` and `throughput_tok_s` (NaN: not published), indexed as `X`."""

    def where(self, is_kept: pd.Series) -> Self:
        """Return the rows of a boolean mask."""
        return type(self)(self.X[is_kept], self.y[is_kept])

    def of(self, llm_ids: Collection[str]) -> Self:
        """Return the rows of these LLMs."""
        return self.where(self.X["llm_id"].isin(llm_ids))

    def without(self, llm_ids: Collection[str]) -> Self:
        """Return the rows of all other LLMs."""
        return self.where(~self.X["llm_id"].isin(llm_ids))

    def on(self, profile_ids: Collection[str]) -> Self:
        """Return the rows on these GPU profiles."""
        return self.where(self.X["gpu_profile_id"].isin(profile_ids))


def reference_profiles(profiles: Profiles) -> tuple[str, str]:
    """Return the weakest and the strongest GPU profile, where a new LLM is measured first.

    PARIS (Yadwadkar et al., SoCC 2017) measures on the two ends of the range; LLM-Pilot (section
    V-C) takes 1×T4 and 4×H100. They are ordered by the memory of all devices, then by bandwidth,
    arithmetic and identifier.
    """

    def strength(name: str) -> tuple[float, float, float]:
        gpu = profiles[name].gpu
        n = profiles[name].n_gpus
        return n * gpu.memory_gib, n * gpu.memory_bandwidth_gb_s, n * gpu.dense_16bit_tflops

    ordered = sorted(sorted(profiles), key=strength)
    return ordered[0], ordered[-1]


class Predictor:
    """What both kinds share. A predictor is made for one SLO and fitted on measured points."""

    depends_on: tuple[str, ...] = ("percentiles", "first_token")
    """Attributes of the SLO that a fit depends on: SLOs with equal ones share one fit."""
    min_training_llms = 2
    """With fewer measured LLMs it cannot be fitted."""
    uses_references = False
    """Whether a new LLM is measured on the two reference profiles before it is predicted."""

    def __init__(
        self, slo: SLO, profiles: Profiles, seed: int, settings: Settings | None = None
    ) -> None:
        self.slo = slo
        self.profiles = profiles
        self.seed = seed
        self.settings = settings

    def design(self, keys: pd.DataFrame, facts: FactTables) -> pd.DataFrame:
        """Return what the predictor learns from: `llm_id, gpu_profile_id, users`, then features.

        `keys` have `llm_id, gpu_profile_id, users, input_tokens, output_tokens`, one row per point;
        the lengths are the workload's means, NaN where they are not known.
        """
        from sextant.predict.features import design_matrix  # laws are given facts, not features

        return design_matrix(keys, facts.features)

    def fit(self, training: TrainingRows, references: TrainingRows | None = None) -> Self:
        """Fit on points, and on the few measurements of the LLM that is to be predicted."""
        raise NotImplementedError


class PointPredictor(Predictor):
    """Predicts one latency for each row: eq. 1-3 of LLM-Pilot recommend from it."""

    def predict(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return `nttft_ms, itl_ms`, above 0 and indexed as `X`, which `design` returned."""
        raise NotImplementedError


class JointPredictor(Predictor):
    """Draws latencies that the LLM may have: medians, intervals and probabilities follow."""

    def sample(self, X: pd.DataFrame) -> np.ndarray:
        """Return joint draws of nTTFT and ITL in ms, shape (draws, rows of `X`, 2).

        They are joint over all rows: an LLM that is slower than expected on one GPU profile is
        slower on the others. The draws of a row do not depend on the other rows.
        """
        raise NotImplementedError

    def energy(
        self, training: pd.DataFrame, keys: pd.DataFrame, facts: FactTables, itl_ms: np.ndarray
    ) -> pd.DataFrame | None:
        """Return `JOULES` of an output token, indexed as `keys`; null where TDP is not known.

        None where too few LLMs have energy.

        Args:
            training: measured points with `itl_ms, energy_j_per_token`.
            keys: rows to predict, as `design` takes them.
            facts: of the LLMs and GPU profiles.
            itl_ms: draws of the rows' ITL, (draws, rows).
        """
        return None
