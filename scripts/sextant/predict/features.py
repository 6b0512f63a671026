"""Features of an LLM on a GPU profile serving some users, as predictors take them.

A design matrix has one row per (LLM, GPU profile, users): the two identifiers, which are
never features, numbers, and categories as strings. Which columns it holds beyond
`IDENTIFIERS` and `users` is the tables' affair, so facts from elsewhere fit in as well.
"""

from collections.abc import Iterator, Mapping
from typing import Self

import numpy as np
import pandas as pd
from sklearn.preprocessing import TargetEncoder

from sextant.gpu import GPUProfile
from sextant.llm import LLM
from sextant.recommend import IDENTIFIERS

_LLM_FACTS = (
    "llm_type",
    "dtype",
    "n_parameters",
    "n_layers",
    "hidden_size",
    "ffn_size",
    "n_heads",
    "n_kv_heads",
    "head_dim",
    "vocab_size",
    "context_tokens",
    "weight_bytes",
    "kv_bytes_per_token",
)


def llm_table(llms: Mapping[str, LLM]) -> pd.DataFrame:
    """Return one row of facts per LLM, indexed by `llm_id`."""
    rows = [{name: getattr(llm, name) for name in _LLM_FACTS} for llm in llms.values()]
    return pd.DataFrame(rows, index=pd.Index(llms, name="llm_id"), columns=list(_LLM_FACTS))


def profile_table(profiles: Mapping[str, GPUProfile]) -> pd.DataFrame:
    """Return one row of facts per GPU profile, indexed by `gpu_profile_id`.

    `total_*` sum over the devices of the profile. The price is left out: it moves no token.
    """
    rows = [_profile_facts(profile) for profile in profiles.values()]
    return pd.DataFrame(rows, index=pd.Index(profiles, name="gpu_profile_id"))


def _profile_facts(profile: GPUProfile) -> dict[str, str | float]:
    gpu, n = profile.gpu, profile.n_gpus
    return {
        "gpu_id": gpu.gpu_id,
        "architecture": gpu.architecture,
        "n_gpus": n,
        "memory_gib": gpu.memory_gib,
        "memory_bandwidth_gb_s": gpu.memory_bandwidth_gb_s,
        "dense_bf16_tflops": gpu.dense_bf16_tflops,
        "total_memory_gib": n * gpu.memory_gib,
        "total_memory_bandwidth_gb_s": n * gpu.memory_bandwidth_gb_s,
        "total_dense_bf16_tflops": n * gpu.dense_bf16_tflops,
    }


def design_matrix(rows: pd.DataFrame, llms: pd.DataFrame, profiles: pd.DataFrame) -> pd.DataFrame:
    """Return `llm_id, gpu_profile_id, users` of `rows` with the facts of both tables beside them.

    The index is that of `rows`; `llms` and `profiles` are indexed by their identifiers.

    Raises:
        KeyError: a row names an LLM or a profile that its table lacks.
    """
    parts = [
        rows[[*IDENTIFIERS, "users"]],
        llms.loc[rows["llm_id"]].set_axis(rows.index),
        profiles.loc[rows["gpu_profile_id"]].set_axis(rows.index),
    ]
    return pd.concat(parts, axis=1)


def leave_one_out(llm_ids: pd.Series) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (training, held-out) positions, one LLM held out at a time, LLMs in sorted order."""
    for llm_id in sorted(llm_ids.unique()):
        held_out = (llm_ids == llm_id).to_numpy()
        yield np.flatnonzero(~held_out), np.flatnonzero(held_out)


class FeatureEncoder:
    """Turns a design matrix into numbers: categories become target means, per target.

    A category is replaced by scikit-learn's shrunken mean of the target over the training
    rows of that category; one never seen becomes the overall mean. In training, the means
    of an LLM's rows come from the other LLMs only, because that is all there is to know
    about an LLM at prediction. So `llm_type`, often unique to one LLM, cannot give away
    that LLM's latency.
    """

    def fit_transform(self, X: pd.DataFrame, y: pd.DataFrame) -> np.ndarray:
        """Learn the encodings from training rows `X` and their targets `y`; encode `X`."""
        self._learn(X)
        if not self.categories_:
            return self.transform(X)
        splits = list(leave_one_out(X["llm_id"]))
        if len(splits) == 1:
            # A single LLM leaves no others to take the means from.
            self.encoders_ = [self._encoder().fit(X[self.categories_], y[t]) for t in y]
            return self.transform(X)
        self.encoders_ = [self._encoder(splits) for _ in y]
        encoded = [
            encoder.fit_transform(X[self.categories_], y[target])
            for encoder, target in zip(self.encoders_, y, strict=True)
        ]
        return np.hstack([X[self.numbers_].to_numpy(float), *encoded])

    def transform(self, X: pd.DataFrame) -> np.ndarray:
        """Encode rows with what `fit_transform` learned; `users` is the first column."""
        encoded = [encoder.transform(X[self.categories_]) for encoder in self.encoders_]
        return np.hstack([X[self.numbers_].to_numpy(float), *encoded])

    def _learn(self, X: pd.DataFrame) -> Self:
        facts = X.drop(columns=[*IDENTIFIERS, "users"])
        self.numbers_ = ["users", *facts.select_dtypes(["number", "bool"]).columns]
        self.categories_ = [name for name in facts if name not in self.numbers_]
        self.encoders_: list[TargetEncoder] = []
        return self

    @staticmethod
    def _encoder(splits: list | None = None) -> TargetEncoder:
        return TargetEncoder(target_type="continuous", cv=splits)
