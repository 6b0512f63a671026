"""Matching: scale step laws until their mean latencies are those that were measured.

Gauss-Newton on logarithms, for any number of laws at once, with normal priors on the scales.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from sextant.law.means import Means, Near
from sextant.simulate.simulation import NAMES, StepLaw

TermGroup = tuple[str, ...]
"""Terms of a step law that are scaled together."""
STEP_TERMS: TermGroup = tuple(n for n in NAMES if n.endswith("_ms") and n != "request_ms")
"""The terms of a step's time, without what a request takes beside the engine."""

_ITERATIONS = 8
_STEP = 1e-3
"""Step of the logarithms in finite differences."""
_CLOSE = 1e-3
"""A law is found when a step changes no logarithm by more."""
_LARGEST_MOVE = 1.0
_HALVINGS = 5
_SATURATED = 3.0
"""Logarithm by which a latency is too long where the server is saturated."""


class MatchedLaws(NamedTuple):
    """Laws that give the measured means, and how sure their scales are."""

    values: np.ndarray  #: Terms of each law, (laws, terms), in the order of `NAMES`.
    log_scales: np.ndarray  #: Logarithm of the scale of each group of terms, (laws, groups).
    covariance: np.ndarray  #: Of the log scales, (laws, groups, groups).


def broadcast_laws(values: np.ndarray) -> StepLaw:
    """Return laws, (laws, terms), as one whose terms are columns, (laws, 1)."""
    return StepLaw(*values.T[:, :, None])


class _Match(NamedTuple):
    """Laws, what their means should be, and how likely their scales are."""

    start: np.ndarray
    members: np.ndarray  #: Whether each group has each term, (groups, terms).
    precision: np.ndarray  #: Of the prior of each group's log scale, (groups,).
    predict: Callable[[StepLaw, np.ndarray, Near], Means]
    measured: np.ndarray
    noise: np.ndarray

    def scaled(self, laws: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """Return the terms of some laws, by their indices, at their log scales."""
        return self.start[laws] * np.exp(scales @ self.members)

    def residuals(
        self, laws: np.ndarray, scales: np.ndarray, near: Near = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the errors over their noise, and the sequences that decode."""
        means = self.predict(broadcast_laws(self.scaled(laws, scales)), laws, near)
        measured = self.measured[laws]
        errors = means.logs() - measured
        errors = np.where(np.isnan(errors) & ~np.isnan(measured), _SATURATED, errors)
        return np.nan_to_num(errors) / self.noise[laws], means.decoding

    def cost(self, scales: np.ndarray, residuals: np.ndarray) -> np.ndarray:
        """Return the negative logarithm of each law's posterior, times 2."""
        return (residuals**2).sum(axis=1) + (self.precision * scales**2).sum(axis=1)


def match_means(
    start: np.ndarray,
    groups: Sequence[TermGroup],
    prior_sd: Sequence[float],
    predict: Callable[[StepLaw, np.ndarray, Near], Means],
    measured: np.ndarray,
    noise: np.ndarray | float,
) -> MatchedLaws:
    """Scale laws to measured means; return the most likely laws.

    Args:
        start: laws at scales of 1, shape (laws, terms).
        groups: terms that are scaled together.
        prior_sd: of the logarithm of each group's scale.
        predict: returns the means, (laws, loads), of laws as `broadcast_laws` makes them, of their
            indices in `start`, and of the sequences that decode at laws close by.
        measured: logarithms of TTFT, then of ITL, (laws, 2 · loads); NaN: not measured.
        noise: their standard deviation, broadcast.
    """
    members = np.array([[float(name in group) for name in NAMES] for group in groups])
    precision = 1 / np.asarray(prior_sd) ** 2
    noise = np.broadcast_to(noise, measured.shape)
    match = _Match(start, members, precision, predict, measured, noise)

    every = np.arange(len(start))
    scales = np.zeros((len(every), len(groups)))
    hessians = np.empty((len(every), len(groups), len(groups)))
    residuals, decoding = match.residuals(every, scales)
    laws = every
    for _ in range(_ITERATIONS):
        shifts = _STEP * np.eye(len(groups))
        ahead = [match.residuals(laws, scales[laws] + it, decoding[laws])[0] for it in shifts]
        jacobian = (np.stack(ahead, axis=-1) - residuals[laws, :, None]) / _STEP
        hessians[laws] = np.einsum("ljg,ljh->lgh", jacobian, jacobian) + np.diag(precision)
        slope = np.einsum("ljg,lj->lg", jacobian, residuals[laws]) + precision * scales[laws]
        move = -np.linalg.solve(hessians[laws], slope[..., None])[..., 0]
        move = np.clip(move, -_LARGEST_MOVE, _LARGEST_MOVE)
        is_far = np.abs(move).max(axis=1) >= _CLOSE

        # All the way, or half of it, a quarter …: the first that costs no more.
        stuck = laws
        for _ in range(_HALVINGS):
            tried = scales[stuck] + move
            errors, their_decoding = match.residuals(stuck, tried, decoding[stuck])
            is_better = match.cost(tried, errors) <= match.cost(scales[stuck], residuals[stuck])
            better = stuck[is_better]
            scales[better] = tried[is_better]
            residuals[better] = errors[is_better]
            decoding[better] = their_decoding[is_better]
            stuck = stuck[~is_better]
            move = move[~is_better] / 2
            if not len(stuck):
                break
        laws = np.setdiff1d(laws[is_far], stuck)
        if not len(laws):
            break
    return MatchedLaws(match.scaled(every, scales), scales, np.linalg.inv(hessians))
