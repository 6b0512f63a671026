"""Gamma distributions of gaps that a coarse clock shows in whole steps only.

A clock of step h cuts each time to the last multiple of h. Two requests a gap x apart, the first
anywhere within its step, then stand d steps apart with a probability that is the Gamma density,
in steps, weighted by 1 - |x/h - d|: the interval-censored likelihood of d. It has a value at 0.
"""

from typing import NamedTuple

import numpy as np
from scipy import interpolate, special

from sextant.workload.gamma import (
    Z_95,
    GammaFits,
    intervals,
    ks_p_value,
    trigamma,
    uniform_distance,
)

DETERMINED = 10.0
"""Ratio of two shapes, the estimate in their middle, which both have to be unlikely."""
FAR = 1000
"""Steps from which on a gap is as good as exact: the likelihood is then the density."""
MAX_STEPS = 2**44
"""More steps than a gap may have: what is finer than a trace's end over this is rounding."""
_DELTA = 3e-3
_LEAST, _MOST = 1e-3, 1e3
# Gauss's rule for the weight 1 - |u| on [-1, 1]: exact for polynomials of degree 13.
_NODES = np.array([0.3484133026569119, 0.6659932837059553, 0.8956156607108172])
_NODES = np.concatenate([-_NODES[::-1], [0.0], _NODES])
_WEIGHTS = np.array([0.2247465550180368, 0.0939250393193439, 0.0179407450256318])
_WEIGHTS = np.concatenate([_WEIGHTS[::-1], [0.3267753212739748], _WEIGHTS])


class Cells(NamedTuple):
    """Groups' gaps in steps, counted: the distinct ones, ascending, one group after the other."""

    steps: np.ndarray
    count: np.ndarray
    n_cells: np.ndarray

    def take(self, is_taken: np.ndarray) -> "Cells":
        """Return the groups that a mask names."""
        own = np.repeat(is_taken, self.n_cells)
        return Cells(self.steps[own], self.count[own], self.n_cells[is_taken])

    def sums(self, values: np.ndarray | float) -> np.ndarray:
        """Return each group's sum of a value a cell, a gap counting as one."""
        group = np.repeat(np.arange(len(self.n_cells)), self.n_cells)
        return np.bincount(group, self.count * values, len(self.n_cells))


class Likelihood(NamedTuple):
    """What the likelihood of groups needs: near cells, and the sums of what lies far."""

    near: Cells
    n_far: np.ndarray
    total: np.ndarray
    log_total: np.ndarray

    def take(self, is_taken: np.ndarray) -> "Likelihood":
        """Return the groups that a mask names."""
        return Likelihood(self.near.take(is_taken), *(values[is_taken] for values in self[1:]))

    def log_at(self, alpha: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Return its logarithm for a shape and a mean a group."""
        beta = mean / alpha
        far = (alpha - 1) * self.log_total - self.total / beta
        far -= self.n_far * (alpha * np.log(beta) + special.gammaln(alpha))
        return far + self.near.sums(log_probability(self.near, alpha, mean))


def likelihood(cells: Cells) -> Likelihood:
    """Prepare the likelihood: of gaps of so many steps that they are as good as exact, the sums."""
    is_near = cells.steps < FAR
    n_near = cells._replace(count=is_near.astype(float)).sums(1.0).astype(int)
    near = Cells(cells.steps[is_near], cells.count[is_near], n_near)
    logs = np.log(np.maximum(cells.steps, 1))
    far = (cells.sums(~is_near * values) for values in (1.0, cells.steps, logs))
    return Likelihood(near, *far)


def count_steps(steps: np.ndarray, n: np.ndarray) -> Cells:
    """Count gaps in whole steps, below `MAX_STEPS`, of groups with `n` gaps each."""
    # One sort orders all groups: a group's number goes before the steps.
    group = np.repeat(np.arange(len(n)), n)
    key = np.sort(group * np.int64(MAX_STEPS) + steps.astype(np.int64))
    first = np.flatnonzero(np.diff(key, prepend=-1))
    count = np.diff(np.append(first, len(key)))
    n_cells = np.bincount(group[first], minlength=len(n))
    return Cells((key[first] % MAX_STEPS).astype(float), count.astype(float), n_cells)


def fit_steps(cells: Cells) -> GammaFits:
    """Fit a Gamma distribution to each group's gaps; `beta` is in steps.

    The shape maximises the likelihood, the mean being the gaps' own. Its interval, too, is that of
    so many exact gaps as tell as much of the shape: the likelihood's curvature in ln α, over what
    one exact gap has, α²(ψ'(α) - 1/α).

    All fields are NaN where the steps hide the shape: where the likelihood of α·√10 or of α/√10
    is above exp(-1.92) of the largest, so that a 95% interval by likelihood ratio reaches further.
    """
    n = cells.sums(1.0)
    mean = cells.sums(cells.steps) / n
    variance = cells.sums(cells.steps**2) / n - mean**2
    known = likelihood(cells)
    with np.errstate(all="ignore"):
        guess = mean**2 / np.maximum(variance - 1 / 6, variance / 9)
        guess[cells.n_cells == 1] = np.nan
        alpha, curvature = _maximum(known, guess, mean)
        n_exact = curvature / (alpha**2 * (trigamma(alpha) - 1 / alpha))
        fits = intervals(alpha, mean, np.where(n_exact > 0, n_exact, np.nan), n)
        most, *others = (
            known.log_at(alpha * factor, mean)
            for factor in (1.0, DETERMINED**0.5, DETERMINED**-0.5)
        )
        is_hidden = ~(np.maximum(*others) < most - Z_95**2 / 2)
    return GammaFits(*(np.where(is_hidden, np.nan, values) for values in vars(fits).values()))


def _maximum(
    known: Likelihood, guess: np.ndarray, mean: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the likeliest shapes by Newton's method in ln α, and the curvature there."""
    low, high = np.log(_LEAST), np.log(np.maximum(_MOST, 100 * mean**2))
    log_alpha, curvature = np.clip(np.log(guess), low, high), np.full(len(mean), np.nan)
    is_open = np.isfinite(log_alpha)
    for _ in range(40):
        if not is_open.any():
            break
        own, at = known.take(is_open), log_alpha[is_open]
        below, here, above = (
            own.log_at(np.exp(at + shift), mean[is_open]) for shift in (-_DELTA, 0.0, _DELTA)
        )
        slope, bend = (above - below) / (2 * _DELTA), (2 * here - below - above) / _DELTA**2
        move = np.clip(np.where(bend > 0, slope / bend, np.sign(slope)), -1, 1)
        found = np.clip(at + move, low, high[is_open])
        log_alpha[is_open], curvature[is_open] = found, bend
        is_open[is_open] = np.abs(found - at) > 1e-5
    log_alpha[is_open] = np.nan
    return np.exp(log_alpha), curvature


def log_probability(cells: Cells, alpha: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return, a cell each, the logarithm of the probability of its number of steps.

    Args:
        cells: gaps of some groups, of any number of steps.
        alpha: shape of each group.
        mean: its mean gap in steps.
    """
    alpha, mean = (np.repeat(values, cells.n_cells) for values in (alpha, mean))
    return _log_near(cells.steps, alpha, mean / alpha)


def _log_near(steps: np.ndarray, alpha: np.ndarray, beta: np.ndarray) -> np.ndarray:
    # The density is as good as a polynomial across the two steps around d, but not from 0 on.
    ahead = np.maximum(steps, 2)
    shares = np.zeros(len(steps))
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        # Bounded for shapes so far off that the density climbs by e^700 within a step.
        power = np.minimum((alpha - 1) * np.log1p(node / ahead) - node / beta, 700)
        shares += weight * np.exp(power)
    found = _log_density(ahead, alpha, beta) + np.log(shares)
    # Nor is it for laws so regular that they fit into a step.
    is_sharp = (steps < 2) | ((alpha > 4) & (beta * np.sqrt(alpha) < 0.5))
    sharp = _sharp_probability(steps[is_sharp], alpha[is_sharp], beta[is_sharp])
    found[is_sharp] = np.log(np.maximum(sharp, 1e-300))
    return found


def _log_density(steps: np.ndarray, alpha: np.ndarray, beta: np.ndarray) -> np.ndarray:
    found = (alpha - 1) * np.log(steps) - steps / beta - alpha * np.log(beta)
    return found - special.gammaln(alpha)


def _sharp_probability(steps: np.ndarray, alpha: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Return the probabilities by the integral of the distribution function, as differences."""
    found = np.empty(len(steps))
    # In the upper tail what the function lacks to 1 is integrated: it keeps its digits.
    is_upper = steps > alpha * beta
    for own, sign, share in ((~is_upper, 1, special.gammainc), (is_upper, -1, special.gammaincc)):
        shape, scale, mean = alpha[own], beta[own], (alpha * beta)[own]
        before, at, after = (
            sign * (end * share(shape, end / scale) - mean * share(shape + 1, end / scale))
            for end in (np.maximum(steps[own] + shift, 0) for shift in (-1, 0, 1))
        )
        found[own] = before - 2 * at + after
    return found


def step_shares(cells: Cells, alpha: np.ndarray, mean: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return the randomised probability integral transform of each gap, uniform if they fit.

    Args:
        cells: gaps of some groups.
        alpha: shape of each group.
        mean: its mean gap in steps.
        draws: a uniform draw for each gap, one group after the other: where it lies in the
            probability of its number of steps.
    """
    is_near = cells.steps < FAR
    alpha, beta = (np.repeat(values, cells.n_cells) for values in (alpha, mean / alpha))
    shares = np.empty((2, len(alpha)))
    shares[:, is_near] = _near_shares(cells.steps[is_near], alpha[is_near], beta[is_near])
    far = (cells.steps[~is_near], alpha[~is_near], beta[~is_near])
    shares[0, ~is_near] = special.gammainc(far[1], (far[0] - 0.5) / far[2])
    shares[1, ~is_near] = np.exp(_log_density(*far))
    below, probability = np.repeat(shares, cells.count.astype(int), axis=1)
    return below + draws * probability


def _near_shares(steps: np.ndarray, alpha: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Return the probabilities of fewer than these steps, and of just them."""
    # Fewer steps than d: the distribution function's mean from d - 1 to d (Gauss, 3 points).
    below = np.zeros(len(alpha))
    for node, weight in ((-(0.15**0.5), 5 / 18), (0.0, 4 / 9), (0.15**0.5, 5 / 18)):
        below += weight * special.gammainc(alpha, np.maximum(steps - 0.5 + node, 0) / beta)
    is_one = steps == 1
    below[is_one] = _sharp_probability(np.zeros(is_one.sum()), alpha[is_one], beta[is_one])
    return np.stack([below, np.exp(_log_near(steps, alpha, beta))])


def judge_steps(cells: Cells, fits: GammaFits, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the Kolmogorov-Smirnov distance of each group, and its p-value; NaN without a fit.

    Args:
        cells: gaps of some groups.
        fits: from `fit_steps`.
        draws: see `step_shares`, of all groups.
    """
    found = np.full((2, len(fits.alpha)), np.nan)
    is_fitted = np.isfinite(fits.alpha)
    if is_fitted.any():
        n = cells.sums(1.0).astype(int)
        own, alpha, beta = cells.take(is_fitted), fits.alpha[is_fitted], fits.beta[is_fitted]
        draws, n = draws[np.repeat(is_fitted, n)], n[is_fitted]
        distance = uniform_distance(step_shares(own, alpha, alpha * beta, draws), n)
        blend = ks_blend(alpha, 1 / (alpha * beta))
        found[:, is_fitted] = distance, ks_p_value(distance, n, alpha, blend)
    return found[0], found[1]


def ks_blend(alpha: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Return the `blend` that `gamma.ks_p_value` needs for distances of `step_shares`.

    The coarser the clock, the more of a distance is the draws' own, which no parameter was
    fitted to; where it is fine, successive gaps share what it cuts off, and distances are shorter.

    Args:
        alpha: fitted shapes.
        step: the clock's step in mean gaps.
    """
    # Laws more regular than the table's are close to normal: their width in steps decides.
    step = step * np.sqrt(np.maximum(alpha / _SHAPES[-1], 1))
    places = np.stack([np.log(alpha), np.log(step)], axis=1)
    low, high = ([np.log(axis[end]) for axis in (_SHAPES, _STEPS)] for end in (0, -1))
    axes = (np.log(_SHAPES), np.log(_STEPS))
    return interpolate.interpn(axes, _BLEND, np.clip(places, low, high))


# Simulated, each from three million gaps (benchmarks/gamma_recovery.py --clock-points makes
# them again); what is next to it where the shape is rarely determined.
_SHAPES = np.array([0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 16.0])
_STEPS = np.array([1e-6, 1e-3, 0.01, 0.05, 0.25, 0.5, 1.0, 2.0, 3.0, 10.0])
# fmt: off
_BLEND = np.array([
    [-0.36, -0.05, 0.13, 0.31, 0.43, 0.53, 0.61, 0.70, 0.65, 0.94],
    [-0.22, -0.33, -0.22, -0.09, 0.17, 0.28, 0.39, 0.54, 0.63, 0.95],
    [-0.02, -0.13, -0.21, -0.27, -0.19, -0.03, 0.17, 0.32, 0.45, 0.79],
    [0.01, -0.04, -0.04, -0.12, -0.20, -0.16, 0.01, 0.28, 0.37, 0.79],
    [0.02, 0.01, -0.00, -0.01, -0.08, -0.04, 0.05, 0.27, 0.40, 0.79],
    [-0.01, 0.00, -0.00, -0.00, -0.01, 0.03, 0.19, 0.28, 0.44, 0.79],
    [0.00, 0.01, 0.01, -0.01, 0.01, 0.11, 0.37, 0.30, 0.44, 0.79],
    [0.00, -0.01, -0.01, 0.00, 0.12, 0.36, 0.68, 0.68, 0.68, 0.79],
])
# fmt: on
