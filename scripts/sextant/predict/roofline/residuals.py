"""What the law gets wrong for LLMs it has not seen, learned by gradient-boosted trees."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.predict.native_xgboost import xgboost
from sextant.predict.roofline.posterior import Fit

_CLIP = 0.5
"""Largest correction of a logarithm: beyond it the law is trusted more."""
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Weights of the correction that compete. Trees and the law's own random effects explain the same
residuals, and what some LLMs have in common others need not have."""
_TREES = 150
_AS_SCALE = 1.645 / 2.920
"""Of Student's t with 2 degrees of freedom, whose 95% quantile is 2.920, for a normal deviation."""
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


def unseen(fit: Fit, X: pd.DataFrame) -> np.ndarray:
    """Predict each LLM by a fit without it: log nTTFT and log ITL, shape (rows, 2)."""
    predicted = np.empty((len(X), 2))
    for llm_id in X["llm_id"].unique():
        rows = (X["llm_id"] == llm_id).to_numpy()
        predicted[rows] = fit.without(rows)
    return predicted


def pair_misfit(fit: Fit, X: pd.DataFrame, pairs: pd.Series) -> dict[str, float]:
    """Return the scale of pair offsets of an LLM that the fit has not seen.

    That is how much the law misses its pairs differently (`pairs` names them): the standard
    deviation within an LLM, of the median LLM, as the scale of Student's t that has the same 90%.
    The pairs of LLMs in the fit differ by less, since general effects were fitted to them.
    """
    missed = pd.DataFrame(fit.problem.observed - unseen(fit, X), X.index, ["ttft", "itl"])
    by_pair = missed.groupby([X["llm_id"], pairs]).mean()
    spread = by_pair.groupby("llm_id").std().median().dropna() * _AS_SCALE
    return {f"pair {name}_offset": float(value) for name, value in spread.items()}


class Residuals:
    """Corrections to log nTTFT and log ITL, which never fall with more users.

    The residuals are those of each training LLM under a fit without it: what a fit has seen,
    its effects of LLM and pair already explain. How far the trees are trusted is measured alike:
    each training LLM is corrected by trees of all others.
    """

    def __init__(self, fit: Fit, X: pd.DataFrame, seed: int) -> None:
        """Train on the points of a fit, each LLM weighing the square root of its points."""
        predicted = unseen(fit, X)
        weights = 1 / np.sqrt(X.groupby("llm_id")["users"].transform("size").to_numpy(float))
        self._columns = fit.problem.law.tree_columns
        columns = self._columns(X, predicted)
        self._trees = []
        for target in (0, 1):
            residuals = fit.problem.observed[:, target] - predicted[:, target]
            known = np.isfinite(residuals)
            here = _Residuals(
                columns[known], residuals[known], weights[known], X["llm_id"][known], seed
            )
            # This source may have no such latency.
            share = here.best_share() if known.any() else 0.0
            self._trees.append((share, here.train() if share else None))

    @property
    def shares(self) -> tuple[float, ...]:
        """Weights of the corrections of log nTTFT and log ITL, 0 to 1."""
        return tuple(share for share, _ in self._trees)

    def correction(self, X: pd.DataFrame, predicted: np.ndarray) -> np.ndarray:
        """Return what to add to the law's predictions, log nTTFT and log ITL, shape (rows, 2)."""
        columns, found = self._columns(X, predicted), np.zeros((len(X), 2))
        for target, (share, model) in enumerate(self._trees):
            if model is not None:
                found[:, target] = share * _clipped(model, columns)
        return found


class NoResiduals:
    """What corrects the law before anything is measured."""

    def correction(self, X: pd.DataFrame, predicted: np.ndarray) -> np.ndarray:
        """Return zeros."""
        return np.zeros_like(predicted)


class _Residuals(NamedTuple):
    """What the law misses of one latency."""

    columns: pd.DataFrame
    residuals: np.ndarray
    weights: np.ndarray
    llm_ids: pd.Series
    seed: int

    def train(self, rows: np.ndarray | slice = slice(None)) -> Any:
        """Return trees of some rows."""
        settings = _SETTINGS | {
            "seed": self.seed,
            # No other columns than these change with users.
            "monotone_constraints": tuple(
                (name in _RISING) - (name in _FALLING) for name in self.columns
            ),
        }
        matrix = xgboost.DMatrix(
            self.columns[rows], self.residuals[rows], weight=self.weights[rows], nthread=1
        )
        return xgboost.train(settings, matrix, _TREES)

    def best_share(self) -> float:
        """Return the weight that leaves the least mean error of LLMs that the trees do not know."""
        found = np.zeros(len(self.residuals))
        for llm_id in self.llm_ids.unique():
            own = (self.llm_ids == llm_id).to_numpy()
            if not own.all():
                found[own] = _clipped(self.train(~own), self.columns[own])
        errors = [
            np.average(np.abs(self.residuals - share * found), weights=self.weights)
            for share in _SHARES
        ]
        return _SHARES[int(np.argmin(errors))]


def _clipped(model: Any, columns: pd.DataFrame) -> np.ndarray:
    return np.clip(model.inplace_predict(columns), -_CLIP, _CLIP)
