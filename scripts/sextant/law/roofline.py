"""The predictor `roofline`: a law of how servers work, fitted to points, corrected by trees.

docs/predictor.md explains it. In go fact rows of points and their latencies; out come joint draws
for a new LLM. Read `law`: its equations, what moves their parameters, the facts that it takes;
`posterior` (the fit); then this file, which corrects the law by trees and keeps fits in the user's
cache. `energy` goes from ITL to joules of an output token.
"""

import os
from collections.abc import Mapping
from hashlib import sha256
from importlib.metadata import version
from inspect import getfile
from pathlib import Path
from typing import Any, NamedTuple, Self
from zipfile import BadZipFile

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from sextant.base.files import atomic_path, import_without
from sextant.law.posterior import Law, LawFit, Posterior, columns_of, fit_law, prior
from sextant.law.terms import LAW, deployments, fact_rows, fill_undrafted
from sextant.points.frame import TARGETS, FactTables
from sextant.predict.predictor import JointPredictor, TrainingRows
from sextant.simulate.simulation import StepLaw

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


def load_xgboost() -> Any:
    """Return `xgboost`, from which scikit-learn, an import of a second, is hidden: same numbers."""
    return import_without("xgboost", "sklearn")


def pair_misfit(fitted: LawFit, X: pd.DataFrame, pairs: pd.Series) -> dict[str, float]:
    """Return the scale of pair offsets of an LLM that the fit has not seen; `pairs` names them.

    That is how much the law misses its pairs differently: the standard deviation within the median
    LLM, as the scale of Student's t that has the same 90%. The pairs of LLMs in the fit differ by
    less, since general effects were fitted to them.
    """
    missed = fitted.problem.observed - fitted.unseen(X["llm_id"])
    by_pair = pd.DataFrame(missed, X.index, ["ttft", "itl"]).groupby([X["llm_id"], pairs]).mean()
    spread = by_pair.groupby("llm_id").std().median().dropna() * _AS_SCALE
    return {f"pair {name}_offset": float(value) for name, value in spread.items()}


class Residuals(NamedTuple):
    """Corrections to log nTTFT and log ITL, which never fall with more users."""

    law: Law
    trees: list[tuple[float, Any]]
    """Of each latency the weight of its correction, and the trees, None where the weight is 0;
    empty before anything is measured."""

    def correction(self, X: pd.DataFrame, predicted: np.ndarray) -> np.ndarray:
        """Return what to add to the law's predictions, log nTTFT and log ITL, shape (rows, 2)."""
        columns = pd.DataFrame(self.law.tree_columns(X, predicted), X.index)
        found = np.zeros((len(X), 2))
        for target, (share, model) in enumerate(self.trees):
            if model is not None:
                found[:, target] = share * _clipped(model, columns)
        return found


def _clipped(model: Any, columns: pd.DataFrame) -> np.ndarray:
    return np.clip(model.inplace_predict(columns), -_CLIP, _CLIP)


def _learn_residuals(fitted: LawFit, X: pd.DataFrame, seed: int) -> Residuals:
    """Train on the points of a fit, each LLM weighing the square root of its points.

    The residuals are those of each training LLM under a fit without it: what a fit has seen,
    its effects of LLM and pair already explain.
    """
    law, predicted = fitted.problem.law, fitted.unseen(X["llm_id"])
    weights = 1 / np.sqrt(X.groupby("llm_id")["users"].transform("size").to_numpy(float))
    columns = pd.DataFrame(law.tree_columns(X, predicted), X.index)
    trees: list[tuple[float, Any]] = []
    for residuals in (fitted.problem.observed - predicted).T:
        known = np.isfinite(residuals)
        # This source may have no such latency.
        of_known = (columns[known], residuals[known], weights[known], X["llm_id"][known])
        trees.append(_learn_trees(*of_known, seed) if known.any() else (0.0, None))
    return Residuals(law, trees)


def _learn_trees(
    columns: pd.DataFrame, residuals: np.ndarray, weights: np.ndarray, llm_ids: pd.Series, seed: int
) -> tuple[float, Any]:
    """Return the weight of the correction of least mean error, LLMs held out, and its trees."""
    xgboost = load_xgboost()
    settings = _SETTINGS | {
        "seed": seed,
        # No other columns than these change with users.
        "monotone_constraints": tuple((name in _RISING) - (name in _FALLING) for name in columns),
    }

    def train(rows: np.ndarray | slice) -> Any:
        matrix = xgboost.DMatrix(columns[rows], residuals[rows], weight=weights[rows], nthread=1)
        return xgboost.train(settings, matrix, _TREES)

    found = np.zeros(len(residuals))
    for llm_id in llm_ids.unique():
        own = (llm_ids == llm_id).to_numpy()
        if not own.all():
            found[own] = _clipped(train(~own), columns[own])
    errors = [np.average(np.abs(residuals - share * found), weights=weights) for share in _SHARES]
    best = _SHARES[int(np.argmin(errors))]
    return best, train(slice(None)) if best else None


N_DRAWS = 1000
_ROWS_AT_ONCE = 500
"""A row of draws takes about half a megabyte while it is computed."""


class Roofline(JointPredictor):
    """Draws nTTFT and ITL of an LLM that was not measured, from facts alone.

    Measurements of the new LLM, if there are any (`references`), join the training rows, and all
    its predictions move.
    """

    residuals_: Residuals
    has_steps: bool
    """Whether steps are known apart: half of the training points or more have CUDA graphs."""

    def design(self, keys: pd.DataFrame, facts: FactTables) -> pd.DataFrame:
        """Return the facts of each point."""
        return fact_rows(keys, facts)

    def fit(self, training: TrainingRows, references: TrainingRows | None = None) -> Self:
        """Train on points, and on those few of the new LLM; without any the law's prior is left."""
        X, y = training
        self.has_steps = _has_steps(X)
        if references is not None and len(references.X):
            X = fill_undrafted(pd.concat([X, references.X]))
            y = pd.concat([y, references.y])
        y_ms = y[TARGETS].to_numpy(float)
        if X.empty:
            self.posterior_, self.residuals_ = prior(LAW), Residuals(LAW, [])
            return self
        with threadpool_limits(1):  # matrices of a few hundred columns: threads only cost
            fitted = fit_law(LAW, X, y_ms)
            if references is not None and self.has_steps:
                # One cell says less about the LLM's other cells than the fit of many cells assumes.
                fitted = fit_law(LAW, X, y_ms, pair_misfit(fitted, X, deployments(X)))
            self.residuals_ = _learn_residuals(fitted, X, self.seed)
        self.posterior_ = fitted.posterior
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all that a fit has found, for `restore`."""
        fitted, trees = self.posterior_, self.residuals_.trees
        found = {name: getattr(fitted, name) for name in ("names", "mean", "covariance")}
        found |= {"groups": [*fitted.spread], "spreads": [*fitted.spread.values()]}
        found |= {"kinds": [*fitted.noise], "noises": [*fitted.noise.values()]}
        found["shares"] = [share for share, _ in trees]
        for target, (_, made) in enumerate(trees):
            if made is not None:
                found[f"trees_{target}"] = np.frombuffer(made.save_raw("ubj"), dtype=np.uint8)
        return {name: np.asarray(values) for name, values in found.items()}

    def restore(self, X: pd.DataFrame, arrays: Mapping[str, np.ndarray]) -> None:
        """Take what a fit of the same points has found; `X` is their design matrix."""
        self.has_steps = _has_steps(X)
        names = [(str(parameter), str(effect)) for parameter, effect in arrays["names"]]
        spread = dict(zip(map(str, arrays["groups"]), arrays["spreads"].tolist(), strict=True))
        noise = dict(zip(map(str, arrays["kinds"]), arrays["noises"], strict=True))
        trees: list[tuple[float, Any]] = []
        for target, share in enumerate(arrays["shares"].tolist()):
            made = None
            if share:
                made = load_xgboost().Booster({"nthread": 1})
                made.load_model(bytearray(arrays[f"trees_{target}"].tobytes()))
            trees.append((share, made))
        self.posterior_ = Posterior(LAW, names, arrays["mean"], arrays["covariance"], spread, noise)
        self.residuals_ = Residuals(LAW, trees)

    def most_likely(self, X: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the most likely parameters, log nTTFT and log ITL at them, and the correction."""
        phi = self.posterior_.most_likely(X)
        predicted = self.posterior_.law.predict_log(phi, columns_of(X))
        return phi, predicted, self.residuals_.correction(X, predicted)

    def sample(self, X: pd.DataFrame) -> np.ndarray:
        """Return joint draws of nTTFT and ITL in ms, shape (`N_DRAWS`, rows, 2)."""
        draws = np.empty((N_DRAWS, len(X), len(TARGETS)))
        with threadpool_limits(1):
            for llm_id in X["llm_id"].unique():
                places = np.flatnonzero(X["llm_id"] == llm_id)
                for start in range(0, len(places), _ROWS_AT_ONCE):
                    rows = places[start : start + _ROWS_AT_ONCE]
                    draws[:, rows] = self.posterior_.draw(X.iloc[rows], N_DRAWS, self.seed)
            correction = self.most_likely(X)[2]
        return np.exp(draws + correction)

    def energy(
        self, training: pd.DataFrame, asked: pd.DataFrame, facts: FactTables, itl_ms: np.ndarray
    ) -> pd.DataFrame | None:
        """Return what output tokens take; see `JointPredictor.energy`."""
        from sextant.law.energy import Energy  # few sources have energy

        learned = Energy.fitted(training, facts)
        return learned.predict(asked, facts, itl_ms, self.seed) if learned else None

    def explain(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return the terms that make up the latencies (`Law.terms`), one row per row of `X`.

        Those of the ITL times `itl_factor` add up to `itl_ms`; `prefill_ms, batching_ms,
        queueing_ms` over the mean input length, times `nttft_factor`, to `nttft_ms`. The factors
        hold what the percentile differs from the mean and the trees' correction.
        """
        phi, predicted, correction = self.most_likely(X)
        factors = np.exp(phi[:, -2:] + correction)
        latencies = np.exp(predicted + correction)
        rows = pd.DataFrame(self.posterior_.law.terms(phi, columns_of(X)), index=X.index)
        rows["nttft_factor"], rows["itl_factor"] = factors.T
        rows["nttft_ms"], rows["itl_ms"] = latencies.T
        return rows


def _has_steps(X: pd.DataFrame) -> bool:
    return bool(X["is_eager"].mean() <= 0.5)


_MOST_KEPT = 32
_CODE = (*sorted(Path(__file__).parent.glob("*.py")), Path(getfile(StepLaw)))
"""Files whose code a fit follows from: this room, and the terms of a step."""


def fit_or_restore(
    model: Roofline, training: TrainingRows, references: TrainingRows | None
) -> None:
    """Fit a model as `Roofline.fit` does, or restore what it found before from the user's cache.

    A fit is known by all that it follows from, the law's code and its libraries included: a kept
    one gives the same numbers to the last digit. It is fitted each time without a place for the
    cache (`$XDG_CACHE_HOME`, else `~/.cache`).
    """
    libraries = f"{np.__version__} {pd.__version__} {version('xgboost-cpu')}"
    digest = sha256(f"{model.seed} {libraries}".encode())
    for source in _CODE:
        digest.update(source.read_bytes())
    for rows in (training, references):
        for frame in () if rows is None else rows:
            digest.update(repr([*frame.columns]).encode())
            digest.update(pd.util.hash_pandas_object(frame).to_numpy().tobytes())
        digest.update(b"|")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = home / "sextant" / f"fit-{digest.hexdigest()[:32]}.npz"
    try:
        with np.load(path, allow_pickle=False) as arrays:
            model.restore(training.X, dict(arrays))
        return
    except (OSError, ValueError, KeyError, BadZipFile):  # there is none, or it is damaged
        model.fit(training, references)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **model.arrays())
        kept = sorted(path.parent.glob("fit-*.npz"), key=lambda each: each.stat().st_mtime)
        for old in kept[:-_MOST_KEPT]:
            old.unlink(missing_ok=True)
    except OSError:  # the next question fits again
        return
