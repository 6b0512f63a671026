"""What a predictor is given: rows to learn from, and measurements on two reference profiles."""

from collections.abc import Collection, Mapping
from typing import NamedTuple, Self

import pandas as pd

from sextant.facts.gpu import GPUProfile


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
