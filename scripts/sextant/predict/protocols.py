"""What a predictor is given: rows to learn from, and measurements on two reference profiles."""

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import pandas as pd

from sextant.facts.gpu import GPUProfile
from sextant.facts.slo import SLO
from sextant.points.features import Facts


class Rows(NamedTuple):
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


def reference_profiles(profiles: Mapping[str, GPUProfile]) -> tuple[str, str]:
    """Return the weakest and the strongest GPU profile, where a new LLM is measured first.

    PARIS (Yadwadkar et al., SoCC 2017) measures on the two ends of the range; LLM-Pilot
    (section V-C) takes 1×T4 and 4×H100. Profiles are ordered by the memory of all devices,
    then by bandwidth, then by arithmetic; the first by identifier of equal ones.
    """
    ordered = sorted(sorted(profiles), key=lambda name: _strength(profiles[name]))
    return ordered[0], ordered[-1]


def _strength(profile: GPUProfile) -> tuple[float, float, float]:
    gpu, n = profile.gpu, profile.n_gpus
    return n * gpu.memory_gib, n * gpu.memory_bandwidth_gb_s, n * gpu.dense_16bit_tflops


class Predictor(Protocol):
    """What both kinds share. A predictor is made for one SLO and fitted on measured points."""

    depends_on: tuple[str, ...]
    """Attributes of the SLO that a fit depends on: SLOs alike in them share one fit."""
    min_training_llms: int
    """With fewer measured LLMs it cannot be fitted."""
    uses_references: bool
    """Whether a new LLM is measured on the two reference profiles before it is predicted."""

    def __init__(self, slo: SLO, profiles: Mapping[str, GPUProfile], seed: int) -> None: ...

    def design(self, keys: pd.DataFrame, facts: Facts) -> pd.DataFrame:
        """Return what the predictor learns from: `llm_id, gpu_profile_id, users`, then columns.

        Args:
            keys: `llm_id, gpu_profile_id, users, input_tokens, output_tokens`, one row
                per point; the lengths are the workload's means, NaN where they are not known.
            facts: facts of these LLMs and GPU profiles.
        """

    def fit(self, training: Rows, references: Rows | None = None) -> Self:
        """Fit on points, and on those few that were measured of the LLM to be predicted."""


@runtime_checkable
class PointPredictor(Predictor, Protocol):
    """Predicts one latency for each row: eq. 1-3 of LLM-Pilot recommend from it."""

    def predict(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return `nttft_ms, itl_ms`, above 0 and indexed as `X`, which `design` returned."""


@runtime_checkable
class JointPredictor(Predictor, Protocol):
    """Draws what the latencies may be: medians, intervals and probabilities follow."""

    def sample(self, X: pd.DataFrame) -> np.ndarray:
        """Return joint draws of nTTFT and ITL in ms, shape (draws, rows of `X`, 2).

        They are joint over all rows: an LLM that is slower than expected on one GPU profile is
        so on the others. A row has the same draws whatever other rows are asked for.
        """


@runtime_checkable
class EnergyPredictor(JointPredictor, Protocol):
    """Goes from draws of ITL to the energy of an output token."""

    def energy(
        self, training: pd.DataFrame, asked: pd.DataFrame, facts: Facts, itl_ms: np.ndarray
    ) -> pd.DataFrame | None:
        """Return `sextant.predict.latencies.JOULES`, indexed as `asked`.

        Null for devices whose TDP is not known; None where too few LLMs have energy.

        Args:
            training: measured points: keys as `design` takes them, `itl_ms, energy_j_per_token`.
            asked: keys of the rows to predict.
            facts: facts of the LLMs and GPU profiles of both.
            itl_ms: draws of the asked rows' ITL, shape (draws, rows).
        """
