"""The predictor `roofline`: a law of how servers work, fitted to points, corrected by trees."""

from typing import Self

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from sextant.characterizations.points import TARGETS
from sextant.predict.latencies import LatencyPredictor, latency_frame
from sextant.predict.references import Rows
from sextant.predict.roofline.facts import columns_of
from sextant.predict.roofline.law import INDEX, predict_log, terms
from sextant.predict.roofline.posterior import fit
from sextant.predict.roofline.residuals import Residuals

N_DRAWS = 1000
_INTERVAL = (0.05, 0.95)


class Roofline(LatencyPredictor):
    """Predicts nTTFT and ITL of an LLM that was not measured, and how sure that is.

    docs/predictor.md has the equations. Rows are those of `facts.fact_rows`: it learns from
    facts alone, not from published features. Measurements of the new LLM, if there are any
    (`references`), join the training rows, and all its predictions move.
    """

    learns_from_facts = True

    def fit(self, training: Rows, references: Rows | None = None) -> Self:
        """Train on points, and on those few of the new LLM."""
        X, y = training
        if references is not None and len(references.X):
            X, y = pd.concat([X, references.X]), pd.concat([y, references.y])
        with threadpool_limits(1):  # matrices of a few hundred columns: threads only cost
            fitted = fit(X, y[TARGETS].to_numpy(float))
            self.residuals_ = Residuals(fitted, X, self.seed)
        self.posterior_ = fitted.posterior
        return self

    def sample(self, X: pd.DataFrame) -> np.ndarray:
        """Return joint draws of nTTFT and ITL in ms, shape (`N_DRAWS`, rows, 2).

        They are joint over all rows: an LLM that is slower than expected on one GPU profile is
        so on the others. A row has the same draws whatever other rows are asked for.
        """
        draws = np.empty((N_DRAWS, len(X), len(TARGETS)))
        with threadpool_limits(1):
            for llm_id in X["llm_id"].unique():
                rows = (X["llm_id"] == llm_id).to_numpy()
                draws[:, rows] = self.posterior_.draw(X[rows], N_DRAWS, self.seed)
            correction = self._law(X)[2]
        return np.exp(draws + correction)

    def predict(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return medians `nttft_ms, itl_ms` and the bounds of their 90% intervals.

        The bounds are `nttft_lo_ms, nttft_hi_ms, itl_lo_ms, itl_hi_ms`; one row per row of `X`.
        """
        return summary(self.sample(X), X.index)

    def explain(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return the terms that make up the latencies, one row per row of `X`.

        `launch_ms, weights_ms, kv_ms, sequences_ms` times `itl_factor` add up to `itl_ms`;
        `prefill_ms, batching_ms, queueing_ms` over the mean input length, times `nttft_factor`,
        to `nttft_ms`. The factors hold what the percentile differs from the mean and the
        trees' correction. Also `itl_batch` and `capacity_requests`.
        """
        phi, predicted, correction = self._law(X)
        offsets = phi[:, [INDEX["ttft_offset"], INDEX["itl_offset"]]]
        factors = np.exp(offsets + correction)
        latencies = np.exp(predicted + correction)
        rows = pd.DataFrame(terms(phi, columns_of(X)), index=X.index)
        return rows.assign(
            nttft_factor=factors[:, 0],
            itl_factor=factors[:, 1],
            nttft_ms=latencies[:, 0],
            itl_ms=latencies[:, 1],
        )

    def _law(self, X: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the most likely parameters, log nTTFT and log ITL at them, and the correction."""
        phi = self.posterior_.most_likely(X)
        predicted = predict_log(phi, columns_of(X))
        return phi, predicted, self.residuals_.correction(X, predicted)


def summary(samples_ms: np.ndarray, index: pd.Index) -> pd.DataFrame:
    """Return medians and bounds of the 90% intervals of joint draws, (draws, rows, 2)."""
    low, high = np.quantile(samples_ms, _INTERVAL, axis=0)
    frame = latency_frame(np.median(samples_ms, axis=0), index)
    for column, target in enumerate(("nttft", "itl")):
        frame[f"{target}_lo_ms"] = low[:, column]
        frame[f"{target}_hi_ms"] = high[:, column]
    return frame
