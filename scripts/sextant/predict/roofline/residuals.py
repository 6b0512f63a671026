"""What the law gets wrong for LLMs it has not seen, learned by gradient-boosted trees."""

import numpy as np
import pandas as pd

from sextant.predict.native_xgboost import xgboost
from sextant.predict.roofline.posterior import Fit

_CLIP = 0.5
"""Largest correction of a logarithm: beyond it the law is trusted more."""
_SHARE = 0.5
"""Weight of the correction: trees and the law's own random effects explain the same residuals."""
_TREES = 150
_RISING = ("users", "log_nttft", "log_itl")
"""Users and the law's latencies, which rise with them, may only raise the correction."""
_FALLING = ("log_bandwidth",)
"""What a device has more of may only lower it."""
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


class Residuals:
    """Corrections to log nTTFT and log ITL, which never fall with more users.

    The residuals are those of each training LLM under a fit without it: what a fit has seen,
    its effects of LLM and pair already explain.
    """

    def __init__(self, fit: Fit, X: pd.DataFrame, seed: int) -> None:
        """Train on the points of a fit, each LLM weighing the square root of its points."""
        predicted = np.empty((len(X), 2))
        for llm_id in X["llm_id"].unique():
            rows = (X["llm_id"] == llm_id).to_numpy()
            predicted[rows] = fit.without(rows)
        weights = 1 / np.sqrt(X.groupby("llm_id")["users"].transform("size").to_numpy(float))
        self._columns = fit.problem.law.tree_columns
        columns = self._columns(X, predicted)
        self._models = []
        for target in (0, 1):
            residuals = fit.problem.observed[:, target] - predicted[:, target]
            settings = _SETTINGS | {"seed": seed, "monotone_constraints": _monotone(columns)}
            known = np.isfinite(residuals)
            if not known.any():  # this source has no such latency
                residuals[:], known[:] = 0.0, True
            matrix = xgboost.DMatrix(
                columns[known], residuals[known], weight=weights[known], nthread=1
            )
            self._models.append(xgboost.train(settings, matrix, _TREES))

    def correction(self, X: pd.DataFrame, predicted: np.ndarray) -> np.ndarray:
        """Return what to add to the law's predictions, log nTTFT and log ITL, shape (rows, 2)."""
        columns = self._columns(X, predicted)
        raw = np.stack([model.inplace_predict(columns) for model in self._models], axis=1)
        return _SHARE * np.clip(raw, -_CLIP, _CLIP)


def _monotone(columns: pd.DataFrame) -> tuple[int, ...]:
    """Return XGBoost's constraint a column: no other one than these changes with users."""
    return tuple((name in _RISING) - (name in _FALLING) for name in columns)
