"""Gamma distributions by maximum likelihood, for one sample or for many at once.

`fit_gamma` is for exact gaps, `fit_steps` for gaps that a coarse clock shows as whole steps: it
cuts each time to the last step. A gap of x steps is then shown as d steps with the probability
1 - |x - d|, or never if |x - d| is above 1: its first request may lie anywhere within a step. Let f
be the density of a Gamma distribution (shape α, scale β in steps). A gap is shown as d steps with
the probability P(d) = ∫ (1 - |x - d|) f(x) dx from d - 1 to d + 1.
"""

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy

Z_95 = 1.959963984540054  # the 97.5% quantile of the standard normal distribution
MIN_SPREAD = 1e-12  # least ln(mean) - mean(ln) that is not taken for rounding: a CV of about 1.4e-6
FAR = 1000  # gaps of 1000 steps or more count as exact: P(d) is then f(d)
MAX_STEPS = 2**44  # of a trace: a clock with finer steps than its length over this is rounding
# Gauss's rule for the weight 1 - |u| on [-1, 1]: exact for polynomials of degree 13.
_POSITIVE_NODES = np.array([0.3484133026569119, 0.6659932837059553, 0.8956156607108172])
_TRIANGLE_NODES = np.concatenate([-_POSITIVE_NODES[::-1], [0.0], _POSITIVE_NODES])
_OUTER_WEIGHTS = np.array([0.2247465550180368, 0.0939250393193439, 0.0179407450256318])
_TRIANGLE_WEIGHTS = np.concatenate([_OUTER_WEIGHTS[::-1], [0.3267753212739748], _OUTER_WEIGHTS])
DETERMINED = 10.0
"""The gaps determine a shape if shapes √10 times larger and √10 times smaller than the estimate are
both unlikely; this is the ratio of these two."""
_LOG_STEP = 3e-3  # in ln α, of the three points that give the likelihood's slope and curvature
_LEAST_ALPHA = 1e-3
_MOST_ALPHA = 1e3
CHUNK = 1 << 16  # values that are judged at a time, so that they stay in a core's cache


@dataclass(frozen=True)
class GammaFits:
    """Gamma distributions fitted to groups of values: each field has one entry per group. `alpha`
    (shape) and `beta` (scale, in the values' unit) maximise the likelihood, `_lo` and `_hi` bound
    their 95% intervals. NaN: fewer than 2 values, a value of zero, or all equal."""

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
    """Fit a Gamma distribution to each group, by number, sum and sum of logarithms of its values:
    the shape solves ln α - ψ(α) = s with s = ln(mean) - mean(ln); the intervals come from the
    Fisher information of s on a log scale (docs/workloads.md)."""
    n, total, log_total = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(value, float)) for value in (n, total, log_total))
    )
    with np.errstate(all="ignore"):
        mean = total / n
        s = np.log(mean) - log_total / n
        s = np.where((n > 1) & np.isfinite(s) & (s > MIN_SPREAD), s, np.nan)
        # Within 1.5% of the root for any s (Minka, Estimating a Gamma distribution, 2002).
        alpha = _root(s, (3 - s + np.sqrt((s - 3) ** 2 + 24 * s)) / (12 * s))
        return _intervals(alpha, mean, s, n, n)


def _intervals(
    alpha: np.ndarray, mean: np.ndarray, s: np.ndarray, n_shape: np.ndarray, n_mean: np.ndarray
) -> GammaFits:
    """Return fits with these shapes and means, and their 95% intervals.

    s is ln α - ψ(α). `n_shape` exact values would tell as much about the shape as the group does,
    `n_mean` exact values as much about the mean.
    """
    centre = _root(s, alpha, n_shape)
    trigamma = scipy.special.polygamma(1, centre)
    trigamma_of_all = scipy.special.polygamma(1, n_shape * centre)
    information = n_shape * (trigamma - n_shape * trigamma_of_all)
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


def _root(s: np.ndarray, alpha: np.ndarray, n: np.ndarray | None = None) -> np.ndarray:
    """Solve ln α - ψ(α) = s for α, by Newton's method in ln α from `alpha` on.

    With `n`, s is the mean of ln(mean) - mean(ln) over samples of n values.
    """
    for _ in range(20):
        value = np.log(alpha) - scipy.special.psi(alpha) - s
        slope = 1 / alpha - scipy.special.polygamma(1, alpha)
        if n is not None:
            value += scipy.special.psi(n * alpha) - np.log(n * alpha)
            slope += n * scipy.special.polygamma(1, n * alpha) - 1 / alpha
        step = value / (alpha * slope)
        alpha = alpha * np.exp(-np.clip(step, -2, 2))
        if not np.any(np.abs(step) > 1e-10):
            break
    return alpha


def ks_distances(
    values: np.ndarray, n: np.ndarray, alpha: np.ndarray, beta: np.ndarray
) -> np.ndarray:
    """Return each group's Kolmogorov-Smirnov distance from its Gamma distribution. `values` has one
    group after the other, `n` (1 or more) of each, in any order within a group."""
    ends = np.cumsum(n)
    parts = []
    cuts = np.unique(np.searchsorted(ends, np.arange(CHUNK, ends[-1], CHUNK)) + 1)
    for first, last in itertools.pairwise([0, *cuts[cuts < len(n)].tolist(), len(n)]):
        begins = (ends - n)[first:last]
        group = np.repeat(np.arange(last - first), n[first:last])
        scaled = values[begins[0] : ends[last - 1]] / beta[first:last][group]
        share = scipy.special.gammainc(alpha[first:last][group], scaled)
        # One sort orders all groups: a group's number goes before the point, its shares after it.
        share = np.sort(np.minimum(share, 1 - 1e-9) + group) - group
        starts = begins - begins[0]
        size = n[first:last][group]
        rank = np.arange(len(share)) - starts[group]
        distance = np.maximum((rank + 1) / size - share, share - rank / size)
        parts.append(np.maximum.reduceat(distance, starts))

    return np.concatenate(parts)


class StepCounts(NamedTuple):
    """How often each number of steps occurs among the gaps of groups, one after the other."""

    steps: np.ndarray
    n_gaps: np.ndarray
    n_distinct: np.ndarray  # entries of each group

    def of_groups(self, is_taken: np.ndarray) -> "StepCounts":
        """Return the groups that a mask names."""
        is_entry_taken = np.repeat(is_taken, self.n_distinct)
        return StepCounts(
            self.steps[is_entry_taken], self.n_gaps[is_entry_taken], self.n_distinct[is_taken]
        )

    def sums(self, values: np.ndarray | float) -> np.ndarray:
        """Return each group's sum over its gaps; `values` has the value of each entry."""
        group = np.repeat(np.arange(len(self.n_distinct)), self.n_distinct)
        return np.bincount(group, self.n_gaps * values, len(self.n_distinct))


def count_steps(steps: np.ndarray, n: np.ndarray) -> StepCounts:
    """Count gaps in whole steps, below `MAX_STEPS`: `n` of each group, one after the other."""
    # One sort orders all groups: a group's number goes before the steps.
    group = np.repeat(np.arange(len(n)), n)
    key = np.sort(group * np.int64(MAX_STEPS) + steps.astype(np.int64))
    first = np.flatnonzero(np.diff(key, prepend=-1))
    n_gaps = np.diff(np.append(first, len(key)))
    n_distinct = np.bincount(group[first], minlength=len(n))
    return StepCounts((key[first] % MAX_STEPS).astype(float), n_gaps.astype(float), n_distinct)


def log_probability(steps: np.ndarray, alpha: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Return ln P(d) of steps d below `FAR`, shapes `alpha`, scales `beta` in steps: (n,)."""
    # By quadrature of f(d + u) / f(d) over u.
    centre = np.maximum(steps, 2)
    relative = np.zeros(len(steps))
    for u, weight in zip(_TRIANGLE_NODES, _TRIANGLE_WEIGHTS, strict=True):
        # Bounded for shapes so far off that the density climbs by e^700 within a step.
        log_ratio = np.minimum((alpha - 1) * np.log1p(u / centre) - u / beta, 700)
        relative += weight * np.exp(log_ratio)

    log_density = (alpha - 1) * np.log(centre) - centre / beta - alpha * np.log(beta)
    log_p = log_density - scipy.special.gammaln(alpha) + np.log(relative)
    # The density is not smooth near 0, nor where a law is so regular that it fits into a step.
    is_sharp = (steps < 2) | ((alpha > 4) & (beta * np.sqrt(alpha) < 0.5))
    # There P(d) = H(d - 1) - 2 H(d) + H(d + 1), where H is the integral of the Gamma CDF F:
    # H(x) = x F(x; α, β) - αβ F(x; α + 1, β). In the upper tail 1 - F takes the place of F (and the
    # sign turns), so that small probabilities keep their digits.
    is_upper = steps > alpha * beta
    for is_part, sign, cdf in (
        (is_sharp & ~is_upper, 1, scipy.special.gammainc),
        (is_sharp & is_upper, -1, scipy.special.gammaincc),
    ):
        shape = alpha[is_part]
        scale = beta[is_part]
        mean = (alpha * beta)[is_part]
        before, at, after = (
            sign * (end * cdf(shape, end / scale) - mean * cdf(shape + 1, end / scale))
            for end in (np.maximum(steps[is_part] + shift, 0) for shift in (-1, 0, 1))
        )
        log_p[is_part] = np.log(np.maximum(before - 2 * at + after, 1e-300))

    return log_p


def fit_steps(counts: StepCounts) -> GammaFits:
    """Fit a Gamma distribution to each group's gaps; its mean is theirs, `beta` is in steps.

    Steps say less of the shape than exact gaps. The likelihood's curvature in ln α gives the number
    of exact gaps that would say as much; the interval of the shape is that of this number. A fit is
    NaN where the steps hide the shape: the likelihood of α·√10 or of α/√10 is then above exp(-1.92)
    of the largest.
    """
    n = counts.sums(1.0)
    mean = counts.sums(counts.steps) / n
    variance = counts.sums(counts.steps**2) / n - mean**2
    is_near = counts.steps < FAR
    n_near = counts._replace(n_gaps=is_near.astype(float)).sums(1.0).astype(int)
    near = StepCounts(counts.steps[is_near], counts.n_gaps[is_near], n_near)
    logs = np.log(np.maximum(counts.steps, 1))
    far = np.stack([counts.sums(~is_near * values) for values in (1.0, counts.steps, logs)])
    with np.errstate(all="ignore"):
        # A clock's rounding adds a variance of 1/6 to that of the gaps.
        guess = mean**2 / np.maximum(variance - 1 / 6, variance / 9)
        guess[counts.n_distinct == 1] = np.nan
        alpha, curvature = _likeliest(near, far, guess, mean)
        n_exact = curvature / (alpha**2 * (scipy.special.polygamma(1, alpha) - 1 / alpha))
        s = np.log(alpha) - scipy.special.psi(alpha)
        fits = _intervals(alpha, mean, s, np.where(n_exact > 0, n_exact, np.nan), n)
        most, *others = (
            _log_likelihood(near, far, alpha * factor, mean)
            for factor in (1.0, DETERMINED**0.5, DETERMINED**-0.5)
        )
        is_hidden = ~(np.maximum(*others) < most - Z_95**2 / 2)

    return GammaFits(*(np.where(is_hidden, np.nan, values) for values in vars(fits).values()))


def _log_likelihood(
    near: StepCounts, far: np.ndarray, alpha: np.ndarray, mean: np.ndarray
) -> np.ndarray:
    """Return the log likelihood of each group, for its shape and its mean in steps.

    `near` are the gaps below `FAR` steps. `far` has, for the other gaps of each group, their
    number, the sum of their steps, and the sum of the logarithms.
    """
    n_far, total, log_total = far
    beta = mean / alpha
    of_far = (alpha - 1) * log_total - total / beta
    of_far -= n_far * (alpha * np.log(beta) + scipy.special.gammaln(alpha))
    alpha, beta = (np.repeat(values, near.n_distinct) for values in (alpha, beta))

    return of_far + near.sums(log_probability(near.steps, alpha, beta))


def _likeliest(
    near: StepCounts, far: np.ndarray, guess: np.ndarray, mean: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the likeliest shapes by Newton's method in ln α, and the curvature (NaN: no end)."""
    low = np.log(_LEAST_ALPHA)
    high = np.log(np.maximum(_MOST_ALPHA, 100 * mean**2))
    log_alpha = np.clip(np.log(guess), low, high)
    curvature = np.full(len(mean), np.nan)
    is_open = np.isfinite(log_alpha)
    for _ in range(40):
        if not is_open.any():
            break
        open_groups = near.of_groups(is_open)
        at = log_alpha[is_open]
        below, middle, above = (
            _log_likelihood(open_groups, far[:, is_open], np.exp(at + shift), mean[is_open])
            for shift in (-_LOG_STEP, 0.0, _LOG_STEP)
        )
        slope = (above - below) / (2 * _LOG_STEP)
        bend = (2 * middle - below - above) / _LOG_STEP**2
        # Where the likelihood is not concave, uphill by a factor of e.
        move = np.clip(np.where(bend > 0, slope / bend, np.sign(slope)), -1, 1)
        moved = np.clip(at + move, low, high[is_open])
        log_alpha[is_open] = moved
        curvature[is_open] = bend
        is_open[is_open] = np.abs(moved - at) > 1e-5

    log_alpha[is_open] = np.nan

    return np.exp(log_alpha), curvature
