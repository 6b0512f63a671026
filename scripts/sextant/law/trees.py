"""Trees that correct the law: what it misses of LLMs that a fit has not seen."""

from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from sextant.base.files import import_without
from sextant.law.fit import LawFit

_CLIP = 0.5
"""Largest correction of a logarithm: beyond it the law is trusted more."""
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Weights of the correction that compete. Trees and the law's random effects explain the same
residuals, and what some LLMs have in common may be missing in others."""
_TREES = 150
_RISING = ("users", "log_nttft", "log_itl")
"""Users and the law's latencies, which rise with them, may only raise the correction."""
_FALLING = ("log_bandwidth",)
"""A higher bandwidth may only lower the correction."""
_SETTINGS = {
    "objective": "reg:pseudohubererror",
    "huber_slope": 0.3,
    "base_score": 0.0,
    "max_depth": 3,
    "eta": 0.05,
    "subsample": 0.7,
    "colsample_bytree": 0.7,
    "reg_lambda": 5.0,
    "nthread": 1,
}
_PRECISIONS = {
    "is_16bit": ("bf16", "fp16"),
    "is_fp8": ("fp8",),
    "is_fp4": ("nvfp4", "mxfp4"),
    "is_integer": ("int4", "int8"),
}


def load_xgboost() -> Any:
    """Import `xgboost` without scikit-learn, whose import takes a second: same numbers."""
    return import_without("xgboost", "sklearn")


class TargetTrees(NamedTuple):
    """The trees of one latency."""

    share: float  #: Weight of the correction.
    booster: Any  #: None where the weight is 0.

    @classmethod
    def learned(
        cls,
        columns: pd.DataFrame,
        residuals: np.ndarray,
        weights: np.ndarray,
        llm_ids: pd.Series,
        seed: int,
    ) -> Self:
        """Return the trees with the weight of least mean error, LLMs held out in turn."""
        xgboost = load_xgboost()
        settings = _SETTINGS | {
            "seed": seed,
            # No other columns than these change with users.
            "monotone_constraints": tuple(
                (name in _RISING) - (name in _FALLING) for name in columns
            ),
        }

        def train(rows: np.ndarray | slice) -> Any:
            matrix = xgboost.DMatrix(
                columns[rows], residuals[rows], weight=weights[rows], nthread=1
            )
            return xgboost.train(settings, matrix, _TREES)

        predicted = np.zeros(len(residuals))
        for llm_id in llm_ids.unique():
            is_held_out = (llm_ids == llm_id).to_numpy()
            if not is_held_out.all():
                predicted[is_held_out] = _clipped(train(~is_held_out), columns[is_held_out])

        errors = [
            np.average(np.abs(residuals - share * predicted), weights=weights) for share in _SHARES
        ]
        best = _SHARES[int(np.argmin(errors))]
        return cls(best, train(slice(None)) if best else None)


class Correction(NamedTuple):
    """Corrections to log nTTFT and log ITL, which never fall with more users."""

    targets: list[TargetTrees]  #: Of nTTFT and ITL; empty before anything is measured.

    def of(self, X: pd.DataFrame, predicted: np.ndarray) -> np.ndarray:
        """Return what to add to the law's predictions, log nTTFT and log ITL, shape (rows, 2)."""
        columns = tree_columns(X, predicted)
        correction = np.zeros((len(X), 2))
        for target, (share, booster) in enumerate(self.targets):
            if booster is not None:
                correction[:, target] = share * _clipped(booster, columns)
        return correction


def tree_columns(X: pd.DataFrame, predicted: np.ndarray) -> pd.DataFrame:
    """Return what the trees see: no LLM and no GPU by name.

    `users, log_nttft, log_itl` rise with the users; nothing else changes with them.
    """
    columns = {
        "users": np.log2(X["users"]),
        "log_nttft": predicted[:, 0],
        "log_itl": predicted[:, 1],
        "log_gpus": np.log2(X["n_gpus"]),
        "is_replicated": (X["data_parallel"] > 1).astype(float),
        "log_bandwidth": np.log2(X["bytes_per_ms"]),
        "log_input": np.log2(X["input_tokens"]),
        "log_output": np.log2(X["output_tokens"]),
        "is_moe": X["is_moe"],
    }
    for name, precisions in _PRECISIONS.items():
        columns[name] = X["served_precision"].isin(precisions).astype(float)
    return pd.DataFrame(columns, X.index)


def learn_correction(fitted: LawFit, X: pd.DataFrame, seed: int) -> Correction:
    """Train on the points of a fit, each LLM weighing the square root of its points.

    The residuals of an LLM come from a fit without it: in a fit that has seen the LLM, its effects
    of LLM and pair explain them already.
    """
    predicted = fitted.leave_out(X["llm_id"]).log_latencies
    weights = 1 / np.sqrt(X.groupby("llm_id")["users"].transform("size").to_numpy(float))
    columns = tree_columns(X, predicted)
    targets = []
    for residuals in (fitted.problem.observed - predicted).T:
        is_measured = np.isfinite(residuals)
        if not is_measured.any():  # the source lacks this latency
            targets.append(TargetTrees(0.0, None))
            continue
        trees = TargetTrees.learned(
            columns[is_measured],
            residuals[is_measured],
            weights[is_measured],
            X["llm_id"][is_measured],
            seed,
        )
        targets.append(trees)
    return Correction(targets)


def _clipped(booster: Any, columns: pd.DataFrame) -> np.ndarray:
    return np.clip(booster.inplace_predict(columns), -_CLIP, _CLIP)
