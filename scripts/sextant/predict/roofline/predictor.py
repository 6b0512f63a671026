"""The predictor `roofline`: a law of how servers work, fitted to points, corrected by trees."""

from collections.abc import Callable
from typing import Self

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from sextant.base.errors import InputError
from sextant.points.characterizations.features import Facts
from sextant.points.characterizations.points import LENGTHS, TARGETS
from sextant.predict.latencies import LatencyPredictor
from sextant.predict.references import Rows
from sextant.predict.roofline.chunked_effects import deployments
from sextant.predict.roofline.chunked_facts import chunked_rows
from sextant.predict.roofline.energy import Energy
from sextant.predict.roofline.facts import columns_of, fact_rows
from sextant.predict.roofline.laws import BATCHING, CHUNKED, is_chunked
from sextant.predict.roofline.posterior import fit, prior
from sextant.predict.roofline.residuals import NoResiduals, Residuals, pair_misfit

N_DRAWS = 1000
_ROWS_AT_ONCE = 500
"""A row of draws takes about half a megabyte while it is computed."""


class Roofline(LatencyPredictor):
    """Draws nTTFT and ITL of an LLM that was not measured.

    docs/predictor.md has the equations. It learns from facts alone, not from published features.
    Measurements of the new LLM, if there are any (`references`), join the training rows, and all
    its predictions move.
    """

    residuals_: Residuals | NoResiduals
    _rows: Callable[[pd.DataFrame, Facts], pd.DataFrame] | None = None

    def design(self, keys: pd.DataFrame, facts: Facts) -> pd.DataFrame:
        """Return the facts of each point, as the law of most points' engines takes them.

        The first call decides, which is that of the training points: what is asked has the same
        columns, whichever engine it names.
        """
        if self._rows is None:
            self._rows = chunked_rows if is_chunked(keys, facts).mean() > 0.5 else fact_rows
        return self._rows(keys, facts)

    def fit(self, training: Rows, references: Rows | None = None) -> Self:
        """Train on points, and on those few of the new LLM; without any, the law's prior is left.

        Raises:
            InputError: the lengths of the workload's requests are not known.
        """
        X, y = training
        if X[LENGTHS].isna().any(axis=None):
            problem = "the points do not say how long the workload's requests are"
            fix = "build the store again from its measurements"
            raise InputError(problem, field="input_tokens, output_tokens", fix=fix)
        if references is not None and len(references.X):
            X, y = pd.concat([X, references.X]), pd.concat([y, references.y])
        law = BATCHING if "execution" in X else CHUNKED
        if X.empty:
            self.posterior_, self.residuals_ = prior(law), NoResiduals()
            return self
        with threadpool_limits(1):  # matrices of a few hundred columns: threads only cost
            fitted = fit(law, X, y[TARGETS].to_numpy(float))
            if references is not None and law is CHUNKED:
                # A cell tells less of the LLM's others than the fit of many cells believes.
                least = pair_misfit(fitted, X, deployments(X))
                fitted = fit(law, X, y[TARGETS].to_numpy(float), least)
            self.residuals_ = Residuals(fitted, X, self.seed)
        self.posterior_ = fitted.posterior
        return self

    def sample(self, X: pd.DataFrame) -> np.ndarray:
        """Return joint draws of nTTFT and ITL in ms, shape (`N_DRAWS`, rows, 2)."""
        draws = np.empty((N_DRAWS, len(X), len(TARGETS)))
        with threadpool_limits(1):
            for llm_id in X["llm_id"].unique():
                places = np.flatnonzero(X["llm_id"] == llm_id)
                for start in range(0, len(places), _ROWS_AT_ONCE):
                    rows = places[start : start + _ROWS_AT_ONCE]
                    draws[:, rows] = self.posterior_.draw(X.iloc[rows], N_DRAWS, self.seed)
            correction = self._law(X)[2]
        return np.exp(draws + correction)

    def energy(
        self, training: pd.DataFrame, asked: pd.DataFrame, facts: Facts, itl_ms: np.ndarray
    ) -> pd.DataFrame | None:
        """Return what output tokens take; see `sextant.predict.protocols.EnergyPredictor`."""
        learned = Energy.fitted(training, facts)
        return learned.predict(asked, facts, itl_ms, self.seed) if learned else None

    def explain(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return the terms that make up the latencies, one row per row of `X`.

        `launch_ms, weights_ms, kv_ms, sequences_ms`, and `other_prompts_ms` where engines mix
        prompts into decode steps, else `overlap_ms`, times `itl_factor` add up to `itl_ms`;
        `prefill_ms, batching_ms, queueing_ms` over the mean input length, times `nttft_factor`,
        to `nttft_ms`. The factors hold what the percentile differs from the mean and the
        trees' correction. Also `itl_batch` and `capacity_requests`.
        """
        phi, predicted, correction = self._law(X)
        law = self.posterior_.law
        offsets = phi[:, [law.names.index("ttft_offset"), law.names.index("itl_offset")]]
        factors = np.exp(offsets + correction)
        latencies = np.exp(predicted + correction)
        rows = pd.DataFrame(law.terms(phi, columns_of(X)), index=X.index)
        return rows.assign(
            nttft_factor=factors[:, 0],
            itl_factor=factors[:, 1],
            nttft_ms=latencies[:, 0],
            itl_ms=latencies[:, 1],
        )

    def _law(self, X: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the most likely parameters, log nTTFT and log ITL at them, and the correction."""
        phi = self.posterior_.most_likely(X)
        predicted = self.posterior_.law.predict_log(phi, columns_of(X))
        return phi, predicted, self.residuals_.correction(X, predicted)
