"""Matching: scale step laws until their mean latencies are those that were measured.

Gauss-Newton on logarithms, for any number of laws at once, with normal priors on the scales.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from sextant.law.means import Means, Near
from sextant.simulate.simulation import NAMES, StepLaw

_ITERATIONS = 8
_STEP = 1e-3
_CLOSE = 1e-3
"""A step of the logarithms after which a law is found."""
_LARGEST_MOVE = 1.0
_SHORTER = 5
_SATURATED = 3.0
"""Logarithm by which a latency is too long where the server is saturated."""

TermGroup = tuple[str, ...]
STEP_TERMS: TermGroup = tuple(n for n in NAMES if n.endswith("_ms") and n != "request_ms")
"""The terms of a step's time, without what a request takes beside the engine."""


class MatchedLaws(NamedTuple):
    """Laws that give what is known, and how sure their scales are."""

    values: np.ndarray  #: Terms of each law, (laws, terms), in the order of `NAMES`.
    log_scales: np.ndarray  #: By which each group of terms was scaled, (laws, groups).
    covariance: np.ndarray  #: Of the log scales, (laws, groups, groups).


def broadcast_laws(values: np.ndarray) -> StepLaw:
    """Return laws, (laws, terms), as one whose terms are columns, (laws, 1)."""
    return StepLaw(*values.T[:, :, None])


def match_means(
    start: np.ndarray,
    groups: Sequence[TermGroup],
    prior_sd: Sequence[float],
    predict: Callable[[StepLaw, np.ndarray, Near], Means],
    known: np.ndarray,
    noise: np.ndarray | float,
) -> MatchedLaws:
    """Return the most likely laws.

    Args:
        start: laws from which the scales count, shape (laws, terms).
        groups: terms that are scaled together.
        prior_sd: of the logarithm of each group's scale.
        predict: means of laws as `broadcast` makes them, each (laws, loads), of their places in
            `start`, and of what decoded at laws close by.
        known: logarithms of TTFT, then of ITL, (laws, 2 · loads); NaN where not known.
        noise: their standard deviation, broadcast.
    """
    members = np.array([[float(name in group) for name in NAMES] for group in groups])
    precision = 1 / np.asarray(prior_sd) ** 2
    noise = np.broadcast_to(noise, known.shape)

    def scaled(laws: np.ndarray, scales: np.ndarray) -> np.ndarray:
        return start[laws] * np.exp(scales @ members)

    def residuals(
        laws: np.ndarray, scales: np.ndarray, near: Near = None
    ) -> tuple[np.ndarray, np.ndarray]:
        means = predict(broadcast_laws(scaled(laws, scales)), laws, near)
        errors = means.logs() - known[laws]
        errors = np.where(np.isnan(errors) & ~np.isnan(known[laws]), _SATURATED, errors)
        return np.nan_to_num(errors) / noise[laws], means.decoding

    def cost(scales: np.ndarray, errors: np.ndarray) -> np.ndarray:
        return (errors**2).sum(axis=1) + (precision * scales**2).sum(axis=1)

    every = laws = np.arange(len(start))
    at, hessians = np.zeros((len(laws), len(groups))), np.empty((len(laws), *[len(groups)] * 2))
    found, decoding = residuals(laws, at)
    for _ in range(_ITERATIONS):
        shifts = _STEP * np.eye(len(groups))
        ahead = [residuals(laws, at[laws] + shift, decoding[laws])[0] for shift in shifts]
        jacobian = (np.stack(ahead, axis=-1) - found[laws, :, None]) / _STEP
        hessians[laws] = np.einsum("ljg,ljh->lgh", jacobian, jacobian) + np.diag(precision)
        slope = np.einsum("ljg,lj->lg", jacobian, found[laws]) + precision * at[laws]
        move = -np.linalg.solve(hessians[laws], slope[..., None])[..., 0]
        move = np.clip(move, -_LARGEST_MOVE, _LARGEST_MOVE)
        far = laws[np.abs(move).max(axis=1) >= _CLOSE]
        # All the way, or half of it, a quarter ...: the first that costs no more.
        for _ in range(_SHORTER):
            scales = at[laws] + move
            errors, there = residuals(laws, scales, decoding[laws])
            is_better = cost(scales, errors) <= cost(at[laws], found[laws])
            better = laws[is_better]
            at[better], found[better] = scales[is_better], errors[is_better]
            decoding[better] = there[is_better]
            laws, move = laws[~is_better], move[~is_better] / 2
            if not len(laws):
                break
        laws = np.setdiff1d(far, laws)
        if not len(laws):
            break
    return MatchedLaws(scaled(every, at), at, np.linalg.inv(hessians))
