"""What is an LLM's own on an engine and an architecture of GPUs, where it was measured there.

The effects of a fit are common to many LLMs; all that is one LLM's alone are offsets, which move
its latencies at all loads alike. But its kernels also differ in single terms of a step. Effects of
these terms, fitted to all LLMs at once, would take over what is general, and LLMs that the fit has
not seen would be predicted worse. So an LLM's own terms join the finished fit, one LLM at a time:
one more linear step, in which the fit's coefficients give way.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

OWN_SD: Mapping[str, float] = {
    "launch": 0.4,
    "bandwidth": 0.15,
    "expert_bandwidth": 0.3,
    "touch": 0.3,
    "kv_bandwidth": 0.4,
    "sequence": 0.9,
    "flops": 0.35,
    "expert_flops": 0.45,
    "prompt_launch": 0.3,
    "wave": 0.5,
    "wait": 0.2,
}
"""Standard deviations of the logarithms of the parameters that LLMs have of their own. They are
wide enough that, given one measured load of a cell, nine of ten of its other loads are inside their
90% intervals (benchmarks/one_probe.py)."""
_OF_PROMPTS = ("flops", "expert_flops", "prompt_launch", "wave", "wait")
"""Parameters that only first tokens tell of. Where none were measured the LLM is, in these, as any
other LLM: what is not known of it stays in the offset of its first tokens."""
_NOT_OWN = 1e-6
"""Standard deviation of a parameter that an LLM has not of its own."""


class OwnTerms(NamedTuple):
    """An LLM's own parameters, beside those of the fit: jointly normal."""

    mean: np.ndarray  #: Logarithms, (terms,).
    covariance: np.ndarray  #: Shape (terms, terms).
    given_way: np.ndarray
    """By how much the fit's coefficients move with each term, (effects, terms)."""

    def at(self, units: np.ndarray) -> np.ndarray:
        """Return the parameters for standard normal numbers, both (..., terms)."""
        root = np.linalg.cholesky(self.covariance + 1e-12 * np.eye(len(self.mean)))
        return self.mean + units @ root.T


class MeasuredRows(NamedTuple):
    """The line on which a fit ends, at the rows that tell of an LLM's own terms."""

    missed: np.ndarray
    """Logarithm of measured over predicted, (2 x rows,), nTTFT first; 0: not measured."""
    precision: np.ndarray  #: Weights of these, (2 x rows,); 0: not measured.
    slopes: np.ndarray  #: Derivatives by the fit's coefficients, (2 x rows, effects).
    own_slopes: np.ndarray  #: By the LLM's own parameters, (2 x rows, terms).

    def own_terms(self, spread: Mapping[str, float], covariance: np.ndarray) -> OwnTerms:
        """Return the LLM's own parameters.

        Args:
            spread: their standard deviations before any measurement, by name.
            covariance: of the fit's coefficients, (effects, effects).
        """
        has_first_tokens = self.precision[: len(self.precision) // 2].any()
        is_own = np.array([has_first_tokens or name not in _OF_PROMPTS for name in spread])
        sd = np.where(is_own, [*spread.values()], _NOT_OWN)
        weighted = self.precision[:, None] * self.own_slopes
        given_way = -covariance @ (self.slopes.T @ weighted)
        information = self.own_slopes.T @ weighted + weighted.T @ self.slopes @ given_way
        own_covariance = np.linalg.inv(information + np.diag(1 / sd**2))
        # The fit is at its optimum, so its coefficients have no slope left.
        mean = own_covariance @ (weighted.T @ self.missed)
        return OwnTerms(mean, own_covariance, given_way)


def own_names(X: pd.DataFrame) -> np.ndarray:
    """Return the name under which each row's LLM has own terms, (rows,); "": it has none.

    Without CUDA graphs LLMs have effects of their own (`effects`).
    """
    if "engine" not in X:
        return np.full(len(X), "")
    names = X[["llm_id", "engine", "architecture"]].astype(str).agg("|".join, axis=1)
    return names.where(X["is_eager"] == 0, "").to_numpy(str)


def rows_by_name(names: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each name and the indices of its rows."""
    for name in np.unique(names):
        yield str(name), np.flatnonzero(names == name)
