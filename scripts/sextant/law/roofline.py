"""The predictor `roofline`: a law of how servers work, fitted to points.

docs/predictor.md explains it. In go fact rows of points and their latencies; out come joint draws
of latencies and of step laws for a new LLM.
"""

from collections.abc import Mapping
from typing import Self

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.base.threads import one_thread
from sextant.law.effects import deployments
from sextant.law.fact_rows import fact_rows, fill_undrafted
from sextant.law.fit import Checkpoint, LawProblem, finish_fit, fit_law, fit_law_near
from sextant.law.fit_arrays import (
    arrays_of_checkpoint,
    arrays_of_factors,
    arrays_of_posterior,
    checkpoint_of,
    factors_of,
    posterior_of,
)
from sextant.law.plausible import impossible
from sextant.law.posterior import Posterior, columns_of, prior
from sextant.law.scaled_steps import USERS, scaled_to_latencies
from sextant.law.terms import LAW, step_law
from sextant.law.unseen import pair_misfit, unseen_factors
from sextant.points.frame import TARGETS, FactTables
from sextant.predict.predictor import JointPredictor, TrainingRows
from sextant.simulate.server import NAMES

N_DRAWS = 1000
_ROWS_AT_ONCE = 500
"""A row of draws takes about half a megabyte while it is computed."""


class Roofline(JointPredictor):
    """Draws nTTFT and ITL of an LLM that was not measured, from facts alone.

    Measurements of the new LLM, if there are any (`references`), join the training rows, and all
    its predictions move.
    """

    untold_: "Roofline | None" = None
    posterior_: Posterior
    checkpoint_: Checkpoint
    """Of the law's fit, where this model was fitted to points."""
    has_steps: bool
    """Whether single steps can be told: half of the training points or more have CUDA graphs."""

    def design(self, keys: pd.DataFrame, facts: FactTables) -> pd.DataFrame:
        """Return the facts of each point."""
        return fact_rows(keys, facts)

    def fit(self, training: TrainingRows, references: TrainingRows | None = None) -> Self:
        """Train on points, and on the few of the new LLM; without any the law's prior is left."""
        if references is not None and len(references.X):
            untold = Roofline(self.slo, self.profiles, self.seed).fit(training)
            return self.tell(untold, training, references)
        self.untold_ = None
        X, y = _plausible(training)
        self.has_steps = has_steps(X)
        if X.empty:
            self.posterior_ = prior(LAW)
            return self

        with one_thread():
            fitted = fit_law(LAW, X, y[TARGETS].to_numpy(float))
            factors = unseen_factors(fitted, X) if self.has_steps else {}
        self.posterior_ = fitted.posterior._replace(unseen_factors=factors)
        self.checkpoint_ = fitted.checkpoint
        return self

    def tell(self, untold: "Roofline", training: TrainingRows, references: TrainingRows) -> Self:
        """Train on the points of another fit and on what the asker measured of the new LLM."""
        X, y = (pd.concat(parts) for parts in zip(_plausible(training), references, strict=True))
        X = fill_undrafted(X)
        y_ms = y[TARGETS].to_numpy(float)
        # Without CUDA graphs a load says less of the others: a few may be far off, as any point.
        n_told = len(references.X) if untold.has_steps else 0
        problem = LawProblem.of(LAW, X, y_ms, n_told)
        with one_thread():
            fitted = fit_law_near(problem, untold.posterior_)
            if untold.has_steps:
                # One cell says less about the LLM's other cells than the fit of many cells assumes.
                misfit = pair_misfit(fitted, X, deployments(X))
                fitted = fit_law_near(problem, fitted.posterior, misfit)
        self.has_steps = untold.has_steps
        self.posterior_ = fitted.posterior
        self.checkpoint_ = fitted.checkpoint
        self.untold_ = untold
        return self

    def start_arrays(self) -> dict[str, np.ndarray]:
        """Return from what `finish` makes this fit again: a small part of what `arrays` returns."""
        factors = arrays_of_factors(self.posterior_.unseen_factors)
        return arrays_of_checkpoint(self.checkpoint_) | factors

    def finish(self, training: TrainingRows, arrays: Mapping[str, np.ndarray]) -> None:
        """Make a fit to these points again, by its last iteration.

        Raises ValueError: the arrays are of other points.
        """
        X, y = _plausible(training)
        checkpoint = checkpoint_of(arrays)
        with one_thread():
            posterior = finish_fit(LAW, X, y[TARGETS].to_numpy(float), checkpoint)
        self.posterior_ = posterior._replace(unseen_factors=factors_of(arrays))
        self.has_steps = has_steps(X)
        self.checkpoint_ = checkpoint

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all that a fit has found, for `restore`."""
        return arrays_of_posterior(self.posterior_)

    def restore(self, X: pd.DataFrame, arrays: Mapping[str, np.ndarray]) -> None:
        """Take what a fit of the same points has found; `X` is their design matrix."""
        self.has_steps = has_steps(X)
        self.posterior_ = posterior_of(LAW, arrays)

    def sample(self, X: pd.DataFrame) -> np.ndarray:
        """Return joint draws of nTTFT and ITL in ms, shape (`N_DRAWS`, rows, 2)."""
        draws = np.empty((N_DRAWS, len(X), len(TARGETS)))
        with one_thread():
            for llm_id in X["llm_id"].unique():
                rows_of_llm = np.flatnonzero(X["llm_id"] == llm_id)
                for start in range(0, len(rows_of_llm), _ROWS_AT_ONCE):
                    rows = rows_of_llm[start : start + _ROWS_AT_ONCE]
                    draws[:, rows] = self.posterior_.draw(X.iloc[rows], N_DRAWS, self.seed)
        return np.exp(draws)

    def step_laws(self, rows: pd.DataFrame, n_draws: int, seed: int) -> np.ndarray:
        """Return the step laws of configurations, (rows, 1 + draws, terms), in `NAMES`' order.

        The first law of each configuration has the most likely parameters; draws follow. The law
        says what a step takes (`terms.step_law`). The statistic and the error of a draw change the
        latencies beyond it. So the law's terms are scaled until the closed form gives the
        predictor's own latencies (`scaled_to_latencies`).

        Args:
            rows: configurations as `design` gives them, of any users, all on one engine; their
                lengths are the means of the requests.
            n_draws: number of draws.
            seed: of the draws.

        Raises InputError: most points of the fit, or the rows, are of servers without CUDA graphs.
        """
        if not self.has_steps or rows["is_eager"].any():
            problem = "servers without CUDA graphs (TGIS, CPU cores) are measured or asked about"
            fix = "name a source of servers with them, e.g. --source archive:inferencex, and give "
            fix += "--input-tokens and --output-tokens"
            raise InputError(f"no step can be simulated: {problem}", fix=fix)
        n_rows = len(rows)
        n_users = len(USERS)
        posterior = self.posterior_
        with one_thread():
            phi = posterior.draw_parameters(rows, n_draws, seed)

        # One law a draw and configuration: its parameters and facts are the same at all users.
        # Latencies tell the device's time; the host's is another term of the law.
        facts = columns_of(rows.assign(is_uncaptured=0.0))
        columns = {name: np.tile(values, 1 + n_draws)[:, None] for name, values in facts.items()}
        columns["users"] = USERS
        flat = phi.reshape(-1, 1, phi.shape[-1])
        log_ms = posterior.law.predict_log(flat, columns).reshape(1 + n_draws, n_rows, n_users, 2)
        log_ms[..., 0] += np.log(facts["input_tokens"])[:, None]

        # What a law misses is common to all loads of a configuration, as far as it is smooth. All
        # GPU profiles share it in a draw, so that it does not make a better one worse.
        loads = rows.iloc[[0] * n_users].reset_index(drop=True)
        loads = loads.assign(users=USERS, gpu_profile_id="")
        errors = posterior.draw_errors(loads, n_draws, seed)
        log_ms[1:] += errors.mean(axis=1)[:, None, None]

        tiled = {name: values[:, 0] for name, values in columns.items() if name != "users"}
        laws = scaled_to_latencies(flat[:, 0], tiled, log_ms.reshape(-1, n_users, 2))
        tiled["is_uncaptured"] = np.tile(rows["is_uncaptured"].to_numpy(float), 1 + n_draws)
        laws[:, NAMES.index("host_ms")] = step_law(flat[:, 0], tiled).host_ms
        return laws.reshape(1 + n_draws, n_rows, len(NAMES)).swapaxes(0, 1)

    def energy(
        self, training: pd.DataFrame, keys: pd.DataFrame, facts: FactTables, itl_ms: np.ndarray
    ) -> pd.DataFrame | None:
        """Return the joules of output tokens; see `JointPredictor.energy`."""
        from sextant.law.energy import Energy  # few sources have energy

        learned = Energy.fitted(training, facts)
        return learned.predict(keys, facts, itl_ms, self.seed) if learned else None

    def explain(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return the terms that make up the latencies (`Law.terms`), one row per row of `X`.

            itl_ms = itl_factor (launch_ms + weights_ms + kv_ms + sequences_ms + other_prompts_ms)
            nttft_ms = nttft_factor (prefill_ms + batching_ms + queueing_ms) / mean input length

        The factors are the ratio of the percentile to the mean.
        """
        law = self.posterior_.law
        facts = columns_of(X)
        phi = self.posterior_.most_likely(X)
        rows = pd.DataFrame(law.terms(phi, facts), index=X.index)
        rows[["nttft_factor", "itl_factor"]] = np.exp(phi[:, -2:])
        rows[["nttft_ms", "itl_ms"]] = np.exp(law.predict_log(phi, facts))
        return rows


def _plausible(training: TrainingRows) -> TrainingRows:
    """Return the points without those that cannot be."""
    X, y = training
    if X.empty:
        return training
    kept = ~impossible(X, y[TARGETS].to_numpy(float))
    return training._replace(X=X[kept].reset_index(drop=True), y=y[kept].reset_index(drop=True))


def has_steps(X: pd.DataFrame) -> bool:
    """Return whether half of these points or more are of servers with CUDA graphs."""
    return bool(X["is_eager"].mean() <= 0.5)
