"""How probable it is that a coarse clock shows a gap as d whole steps.

A clock of step h cuts each time to the last multiple of h. Take a gap of x steps (x = gap / h)
whose first request lies anywhere within its step, uniformly. The clock then shows ⌊x⌋ or ⌊x⌋ + 1
steps: d steps with probability 1 - |x - d| if that is positive. With f the density of a Gamma
distribution with shape α and scale β (in steps),

    P(d) = ∫ (1 - |x - d|) f(x) dx    from d - 1 to d + 1.

It is positive at d = 0, where the density itself has no value. `log_probability` computes it, by
two rules: Gauss's quadrature where f is smooth across two steps, second differences of the
integrated distribution function elsewhere.
"""

from typing import NamedTuple

import numpy as np
from scipy import special

FAR = 1000
"""Steps from which on a gap is as good as exact: P(d) is then f(d)."""
MAX_STEPS = 2**44
"""More steps than a gap may have: what is finer than a trace's end over this is rounding."""
# Gauss's rule for the weight 1 - |u| on [-1, 1]: exact for polynomials of degree 13.
_POSITIVE_NODES = np.array([0.3484133026569119, 0.6659932837059553, 0.8956156607108172])
_TRIANGLE_NODES = np.concatenate([-_POSITIVE_NODES[::-1], [0.0], _POSITIVE_NODES])
_OUTER_WEIGHTS = np.array([0.2247465550180368, 0.0939250393193439, 0.0179407450256318])
_TRIANGLE_WEIGHTS = np.concatenate([_OUTER_WEIGHTS[::-1], [0.3267753212739748], _OUTER_WEIGHTS])
# Gauss's rule for the plain mean over an interval of length 1, around its middle.
_MEAN_NODES = (-(0.15**0.5), 0.0, 0.15**0.5)
_MEAN_WEIGHTS = (5 / 18, 4 / 9, 5 / 18)


class StepCounts(NamedTuple):
    """How often each number of steps occurs among the gaps of some groups.

    One entry for each distinct number of steps of a group: ascending, one group after the other.
    """

    steps: np.ndarray
    n_gaps: np.ndarray
    """Gaps of so many steps."""
    n_distinct: np.ndarray
    """Entries of each group."""

    def of_groups(self, is_taken: np.ndarray) -> "StepCounts":
        """Return the groups that a mask names."""
        own = np.repeat(is_taken, self.n_distinct)
        return StepCounts(self.steps[own], self.n_gaps[own], self.n_distinct[is_taken])

    def sums(self, values: np.ndarray | float) -> np.ndarray:
        """Return each group's sum over its gaps; `values` has the value of each entry."""
        group = np.repeat(np.arange(len(self.n_distinct)), self.n_distinct)
        return np.bincount(group, self.n_gaps * values, len(self.n_distinct))


def count_steps(steps: np.ndarray, n: np.ndarray) -> StepCounts:
    """Count gaps in whole steps, below `MAX_STEPS`.

    Args:
        steps: all groups' gaps, one group after the other.
        n: gaps of each group.
    """
    # One sort orders all groups: a group's number goes before the steps.
    group = np.repeat(np.arange(len(n)), n)
    key = np.sort(group * np.int64(MAX_STEPS) + steps.astype(np.int64))
    first = np.flatnonzero(np.diff(key, prepend=-1))
    n_gaps = np.diff(np.append(first, len(key)))
    n_distinct = np.bincount(group[first], minlength=len(n))
    return StepCounts((key[first] % MAX_STEPS).astype(float), n_gaps.astype(float), n_distinct)


def log_density(steps: np.ndarray, alpha: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Return ln f: the Gamma distribution's log density at each number of steps."""
    found = (alpha - 1) * np.log(steps) - steps / beta - alpha * np.log(beta)
    return found - special.gammaln(alpha)


def log_probability(steps: np.ndarray, alpha: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Return ln P(d).

    Args:
        steps: (n,) numbers of steps d, below `FAR`.
        alpha: (n,) shape of the distribution that the gap comes from.
        beta: (n,) its scale in steps.
    """
    found = _log_smooth_probability(steps, alpha, beta)
    # The density is not smooth near 0, nor where a law is so regular that it fits into a step.
    is_sharp = (steps < 2) | ((alpha > 4) & (beta * np.sqrt(alpha) < 0.5))
    sharp = _sharp_probability(steps[is_sharp], alpha[is_sharp], beta[is_sharp])
    found[is_sharp] = np.log(np.maximum(sharp, 1e-300))
    return found


def _log_smooth_probability(steps: np.ndarray, alpha: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Return ln P(d) by quadrature of f(d + u) / f(d) over u, for d of 2 or more."""
    centre = np.maximum(steps, 2)
    relative = np.zeros(len(steps))
    for u, weight in zip(_TRIANGLE_NODES, _TRIANGLE_WEIGHTS, strict=True):
        # Bounded for shapes so far off that the density climbs by e^700 within a step.
        log_ratio = np.minimum((alpha - 1) * np.log1p(u / centre) - u / beta, 700)
        relative += weight * np.exp(log_ratio)
    return log_density(centre, alpha, beta) + np.log(relative)


def _sharp_probability(steps: np.ndarray, alpha: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Return P(d) = H(d - 1) - 2 H(d) + H(d + 1), H being the integral of the Gamma CDF F.

    H(x) = x F(x; α, β) - αβ F(x; α + 1, β). In the upper tail 1 - F takes the place of F (and
    the sign turns), so that small probabilities keep their digits.
    """
    found = np.empty(len(steps))
    is_upper = steps > alpha * beta
    for own, sign, cdf in ((~is_upper, 1, special.gammainc), (is_upper, -1, special.gammaincc)):
        shape, scale, mean = alpha[own], beta[own], (alpha * beta)[own]
        before, at, after = (
            sign * (end * cdf(shape, end / scale) - mean * cdf(shape + 1, end / scale))
            for end in (np.maximum(steps[own] + shift, 0) for shift in (-1, 0, 1))
        )
        found[own] = before - 2 * at + after
    return found


def probability_below(steps: np.ndarray, alpha: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Return the probability of fewer than d steps; arguments as of `log_probability`.

    It is the mean of the distribution function from d - 1 to d.
    """
    below = np.zeros(len(alpha))
    for u, weight in zip(_MEAN_NODES, _MEAN_WEIGHTS, strict=True):
        below += weight * special.gammainc(alpha, np.maximum(steps - 0.5 + u, 0) / beta)
    # Fewer than 1 is 0 steps, where quadrature is not exact.
    is_one = steps == 1
    below[is_one] = _sharp_probability(np.zeros(is_one.sum()), alpha[is_one], beta[is_one])
    return below
