"""Features of an LLM on a GPU profile serving some users, as predictors take them.

A design matrix has one row per (LLM, GPU profile, users): the two identifiers, which are
never features, numbers, and categories as strings. Which columns it holds beyond
`IDENTIFIERS` and `users` is the tables' affair, so facts from elsewhere fit in as well.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from sklearn.model_selection import KFold
from sklearn.preprocessing import TargetEncoder

from sextant.gpu import GPUProfile
from sextant.llm import LLM
from sextant.recommend import IDENTIFIERS, TARGETS

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


class Features(NamedTuple):
    """What is known of each LLM and each GPU profile before anything is measured."""

    llms: pd.DataFrame
    """One row per LLM, indexed by `llm_id`."""
    profiles: pd.DataFrame
    """One row per GPU profile, indexed by `gpu_profile_id`."""

    @classmethod
    def of_facts(cls, llms: Mapping[str, LLM], profiles: Mapping[str, GPUProfile]) -> Self:
        """Return the features computed from facts."""
        return cls(llm_table(llms), profile_table(profiles))

    @classmethod
    def published(
        cls,
        llm_rows: Sequence[Mapping[str, Any]],
        gpu_rows: Sequence[Mapping[str, Any]],
        profiles: Mapping[str, GPUProfile],
    ) -> Self:
        """Return features that came with a characterization, from its two sheets.

        Profiles get those of their device, the number of devices and their memory together
        (`memory_capacity_gb_total`), as LLM-Pilot's features do. A `note` is no feature.
        """
        gpus = _table(gpu_rows, "gpu_id")
        each = gpus.loc[[profile.gpu.gpu_id for profile in profiles.values()]]
        n_gpus = pd.Series({name: profile.n_gpus for name, profile in profiles.items()})
        each = each.set_axis(n_gpus.index.rename("gpu_profile_id")).assign(n_gpus=n_gpus)
        total = each["n_gpus"] * each["memory_capacity_gb"]
        return cls(_table(llm_rows, "llm_id"), each.assign(memory_capacity_gb_total=total))


def _table(rows: Sequence[Mapping[str, Any]], key: str) -> pd.DataFrame:
    rows = [{name: value for name, value in row.items() if name != "note"} for row in rows]
    # A row lacks the columns it has no value in: the fullest rows tell the columns' order.
    columns = dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row)
    return pd.DataFrame(rows, columns=list(columns)).set_index(key)


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
        "dense_16bit_tflops": gpu.dense_16bit_tflops,
        "total_memory_gib": n * gpu.memory_gib,
        "total_memory_bandwidth_gb_s": n * gpu.memory_bandwidth_gb_s,
        "total_dense_16bit_tflops": n * gpu.dense_16bit_tflops,
    }


def design_matrix(rows: pd.DataFrame, features: Features) -> pd.DataFrame:
    """Return `llm_id, gpu_profile_id, users` of `rows` with their features beside them.

    The index is that of `rows`.

    Raises:
        KeyError: a row names an LLM or a profile that its table lacks.
    """
    parts = [
        rows[[*IDENTIFIERS, "users"]],
        features.llms.loc[rows["llm_id"]].set_axis(rows.index),
        features.profiles.loc[rows["gpu_profile_id"]].set_axis(rows.index),
    ]
    return pd.concat(parts, axis=1)


UNKNOWN = -1.0
"""Stands for what is not known of an LLM or a GPU profile, as in LLM-Pilot's code."""


def column_kinds(X: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Return the names of a design matrix's numbers, `users` first, and of its categories."""
    facts = X.drop(columns=[*IDENTIFIERS, "users"])
    numbers = ["users", *facts.select_dtypes(["number", "bool", "boolean"]).columns]
    return numbers, [name for name in facts if name not in numbers]


def numbers_of(X: pd.DataFrame, names: Sequence[str]) -> np.ndarray:
    """Return these columns as numbers, (rows, names)."""
    return X[names].astype(float).fillna(UNKNOWN).to_numpy()


class FeatureEncoder:
    """Turns a design matrix into numbers: categories become target means, per target.

    As in LLM-Pilot's code: the shrunken mean (scikit-learn's `TargetEncoder`) of each target
    over the training rows of a category, the overall mean for a category never seen; in
    training, the means of a fifth of the rows come from the other four. Facts that are not
    known become -1. Columns are the categories for the first target, those for the second,
    `users`, then the other numbers: samples of columns are drawn by position.
    """

    def fit_transform(self, X: pd.DataFrame, y: pd.DataFrame) -> np.ndarray:
        """Learn the encodings from training rows `X` and their targets `y`; encode `X`."""
        self.numbers_, self.categories_ = column_kinds(X)
        self.encoders_ = []
        parts = []
        # Consecutive fifths, so that most rows of an LLM are encoded by other LLMs' rows; a
        # single row has no others.
        folds = KFold(min(5, len(X))) if len(X) > 1 else [([0], [0])]
        for target in TARGETS if self.categories_ else []:
            encoder = TargetEncoder(target_type="continuous", cv=folds)
            parts.append(encoder.fit_transform(X[self.categories_], y[target]))
            self.encoders_.append(encoder)
        return np.hstack([*parts, numbers_of(X, self.numbers_)])

    def transform(self, X: pd.DataFrame) -> np.ndarray:
        """Encode rows with what `fit_transform` learned."""
        parts = [encoder.transform(X[self.categories_]) for encoder in self.encoders_]
        return np.hstack([*parts, numbers_of(X, self.numbers_)])

    def monotone_in_users(self) -> tuple[int, ...]:
        """Return XGBoost's constraint a column: 1 where outputs must not fall, 0 elsewhere."""
        n_encoded = len(self.encoders_) * len(self.categories_)
        return (*[0] * n_encoded, 1, *[0] * (len(self.numbers_) - 1))
