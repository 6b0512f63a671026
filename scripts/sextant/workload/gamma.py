"""Gamma distributions by maximum likelihood, for one sample or for many at once."""

import itertools
from dataclasses import dataclass

import numpy as np
import scipy

Z_95 = 1.959963984540054
"""The 97.5% quantile of the standard normal distribution."""
MIN_SPREAD = 1e-12
"""Least ln(mean) - mean(ln) that is a spread and not rounding: a CV of about 1.4e-6."""
CHUNK = 1 << 16
"""Values that are judged at a time; what they need then stays in a core's cache."""


@dataclass(frozen=True)
class GammaFits:
    """Gamma distributions fitted to groups of values: an array a field, one entry a group.

    `alpha` (shape) and `beta` (scale, in the values' unit) maximise the likelihood; `_lo` and
    `_hi` bound their 95% intervals. All are NaN where a group has fewer than 2 values, a
    value of zero, or values that are all equal.
    """

    alpha: np.ndarray
    alpha_lo: np.ndarray
    alpha_hi: np.ndarray
    beta: np.ndarray
    beta_lo: np.ndarray
    beta_hi: np.ndarray

    @property
    def cv(self) -> np.ndarray:
        """Coefficient of variation, 1 / √alpha (BurstGPT, IV-A.1)."""
        return 1 / np.sqrt(self.alpha)


def fit_gamma(n: np.ndarray, total: np.ndarray, log_total: np.ndarray) -> GammaFits:
    """Fit a Gamma distribution to each group from its sufficient statistics.

    The shape solves ln α - ψ(α) = s with s = ln(mean) - mean(ln), the scale is mean / α. The
    intervals come from the Fisher information of s on a log scale (docs/workloads.md).

    Args:
        n: values in each group, an array or a number.
        total: their sum.
        log_total: the sum of their natural logarithms.
    """
    n, total, log_total = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(value, float)) for value in (n, total, log_total))
    )
    with np.errstate(all="ignore"):
        mean = total / n
        s = np.log(mean) - log_total / n
        s = np.where((n > 1) & np.isfinite(s) & (s > MIN_SPREAD), s, np.nan)
        # Within 1.5% of the root for any s (Minka, Estimating a Gamma distribution, 2002).
        alpha = _root(s, (3 - s + np.sqrt((s - 3) ** 2 + 24 * s)) / (12 * s))
        return intervals(alpha, mean, s, n, n)


def intervals(
    alpha: np.ndarray, mean: np.ndarray, s: np.ndarray, n_shape: np.ndarray, n_mean: np.ndarray
) -> GammaFits:
    """Return fits of known shape and mean, with the intervals of `fit_gamma`.

    `s` is ln α - ψ(α). `n_shape` exact values would tell as much of a group's shape as it does,
    and `n_mean` as much of its mean.
    """
    centre = _root(s, alpha, n_shape)
    information = n_shape * (trigamma(centre) - n_shape * trigamma(n_shape * centre))
    error = 1 / (centre * np.sqrt(information))
    # Mean and shape are orthogonal, so that their variances add up to the scale's.
    scale_error = np.sqrt(error**2 + 1 / (n_mean * centre))
    return GammaFits(
        alpha,
        centre * np.exp(-Z_95 * error),
        centre * np.exp(Z_95 * error),
        mean / alpha,
        mean / centre * np.exp(-Z_95 * scale_error),
        mean / centre * np.exp(Z_95 * scale_error),
    )


def trigamma(x: np.ndarray) -> np.ndarray:
    """Return ψ', the second derivative of ln Γ."""
    return scipy.special.polygamma(1, x)


def _root(s: np.ndarray, alpha: np.ndarray, n: np.ndarray | None = None) -> np.ndarray:
    """Solve for α by Newton's method in ln α: s is what it is on average, given `n`."""
    for _ in range(20):
        value = np.log(alpha) - scipy.special.psi(alpha) - s
        slope = 1 / alpha - trigamma(alpha)
        if n is not None:
            value += scipy.special.psi(n * alpha) - np.log(n * alpha)
            slope += n * trigamma(n * alpha) - 1 / alpha
        step = value / (alpha * slope)
        alpha = alpha * np.exp(-np.clip(step, -2, 2))
        if not np.any(np.abs(step) > 1e-10):
            break
    return alpha


def ks_distance(
    values: np.ndarray, n: np.ndarray, alpha: np.ndarray, beta: np.ndarray
) -> np.ndarray:
    """Return each group's Kolmogorov-Smirnov distance from its Gamma distribution.

    `values` has one group after the other, unordered within a group; `n`, 1 or more, is the number
    of each; `alpha` and `beta` are shape and scale of its distribution.
    """
    ends = np.cumsum(n)
    cuts = np.unique(np.searchsorted(ends, np.arange(CHUNK, ends[-1], CHUNK)) + 1)
    bounds = [0, *cuts[cuts < len(n)].tolist(), len(n)]

    parts = []
    for first, last in itertools.pairwise(bounds):
        own, begin = slice(first, last), ends[first] - n[first]
        parts.append(_distance(values[begin : ends[last - 1]], n[own], alpha[own], beta[own]))
    return np.concatenate(parts)


def _distance(values: np.ndarray, n: np.ndarray, alpha: np.ndarray, beta: np.ndarray) -> np.ndarray:
    place = np.repeat(np.arange(len(n)), n)
    return uniform_distance(scipy.special.gammainc(alpha[place], values / beta[place]), n)


def uniform_distance(share: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Return each group's Kolmogorov-Smirnov distance from the uniform distribution on [0, 1].

    `share` has one group after the other, unordered within a group; `n` is the number of each.
    """
    place = np.repeat(np.arange(len(n)), n)
    group = place.astype(float)
    # One sort orders all groups: a group's number goes before the point, its shares after it.
    share = np.sort(np.minimum(share, 1 - 1e-9) + group) - group
    starts = np.cumsum(n) - n
    rank = np.arange(len(share)) - starts[place]
    size = n[place]
    above = (rank + 1) / size - share
    below = share - rank / size
    return np.maximum.reduceat(np.maximum(above, below), starts)


def ks_p_value(
    distance: np.ndarray, n: np.ndarray, alpha: np.ndarray, blend: np.ndarray | float = 0.0
) -> np.ndarray:
    """Return how often draws of a Gamma distribution lie as far from the one fitted to them.

    The textbook takes the distribution as given; here it was fitted, which makes distances
    shorter by about a third (Lilliefors, JASA 1967, for the normal). Their distribution depends on
    the shape alone: `_POINTS` has it, and ln p is interpolated linearly in the distance's square.

    Args:
        distance: from `ks_distance`, of a distribution fitted by `fit_gamma`.
        n: values in each group; below 30 the result was not tried.
        alpha: the fitted shape; below 0.02 as at 0.02, above 30 as at 30.
        blend: how far the quantiles lie from `_POINTS` (0) towards the textbook's (1), where the
            values are not exact (see `step_distance.ks_blend`).
    """
    distance, n, alpha = (np.atleast_1d(np.asarray(value, float)) for value in (distance, n, alpha))
    edges, textbook = ks_edges(alpha, _P_VALUES), scipy.special.kolmogi(_P_VALUES)
    edges = (edges + np.expand_dims(blend, -1) * (textbook - edges)) ** 2
    squared = (distance * (np.sqrt(n) + 0.2)) ** 2
    after = np.clip((squared[:, None] > edges).sum(axis=1), 1, len(_P_VALUES) - 1)
    row, log_p = np.arange(len(squared)), np.log(_P_VALUES)
    left, right = edges[row, after - 1], edges[row, after]
    share = (squared - left) / (right - left)
    return np.exp(np.minimum(log_p[after - 1] * (1 - share) + log_p[after] * share, 0))


def ks_edges(alpha: np.ndarray, p_values: np.ndarray) -> np.ndarray:
    """Return the quantiles of distance · (√n + 0.2): a row a fitted shape, a column a p-value.

    `p_values` are some of those of `_TABLE`.
    """
    place, places = alpha / (alpha + 0.5), _ALPHAS / (_ALPHAS + 0.5)
    rows = _POINTS[np.searchsorted(-_P_VALUES, -np.asarray(p_values))]
    return np.stack([np.interp(place, places, row) for row in rows], axis=1)


# Quantiles of distance · (√n + 0.2) under a true Gamma distribution, from 200,000 samples of
# n = 100 a shape (benchmarks/gamma_recovery.py --points makes them again). With the term
# 0.2 they hold for n from 30 on within a hundredth.
_ALPHAS = np.array([0.02, 0.1, 0.3, 1.0, 3.0, 30.0])
# fmt: off
_TABLE = np.array([  # p-value, then the quantile at each shape
    [0.999, 0.340, 0.332, 0.327, 0.324, 0.322, 0.321],
    [0.990, 0.395, 0.387, 0.381, 0.374, 0.370, 0.370],
    [0.950, 0.460, 0.448, 0.439, 0.430, 0.426, 0.424],
    [0.900, 0.501, 0.488, 0.475, 0.465, 0.461, 0.458],
    [0.800, 0.558, 0.543, 0.527, 0.513, 0.508, 0.505],
    [0.650, 0.628, 0.610, 0.589, 0.572, 0.565, 0.561],
    [0.500, 0.696, 0.674, 0.649, 0.628, 0.619, 0.614],
    [0.350, 0.773, 0.747, 0.716, 0.690, 0.679, 0.674],
    [0.200, 0.875, 0.845, 0.807, 0.773, 0.759, 0.752],
    [0.100, 0.986, 0.950, 0.905, 0.862, 0.843, 0.836],
    [0.050, 1.084, 1.044, 0.992, 0.939, 0.919, 0.910],
    [0.020, 1.205, 1.158, 1.096, 1.033, 1.009, 0.998],
    [0.010, 1.291, 1.239, 1.169, 1.098, 1.074, 1.061],
    [0.001, 1.535, 1.466, 1.395, 1.297, 1.263, 1.242],
])
# fmt: on
_P_VALUES, _POINTS = _TABLE[:, 0], _TABLE[:, 1:]
