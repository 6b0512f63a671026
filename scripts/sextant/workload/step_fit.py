"""Gamma distributions fitted to gaps that a coarse clock shows in whole steps only."""

from typing import NamedTuple

import numpy as np
from scipy import special

from sextant.workload.gamma import Z_95, GammaFits, intervals, trigamma
from sextant.workload.step_probability import FAR, StepCounts, log_probability

DETERMINED = 10.0
"""Ratio of two shapes, the estimate in their middle, which both have to be unlikely."""
_LOG_STEP = 3e-3
"""Distance in ln α of the three points that give the likelihood's slope and curvature."""
_LEAST_ALPHA, _MOST_ALPHA = 1e-3, 1e3


class Likelihood(NamedTuple):
    """What the likelihood of groups needs: counts of near gaps, and sums of the far ones.

    Gaps of `FAR` steps and more are as good as exact, so their likelihood is that of the Gamma
    density: three sums tell all of them.
    """

    near: StepCounts
    n_far: np.ndarray
    total: np.ndarray
    """Sum of the far gaps, in steps."""
    log_total: np.ndarray
    """Sum of their natural logarithms."""

    @classmethod
    def of(cls, counts: StepCounts) -> "Likelihood":
        """Prepare the likelihood of counted gaps."""
        is_near = counts.steps < FAR
        n_near = counts._replace(n_gaps=is_near.astype(float)).sums(1.0).astype(int)
        near = StepCounts(counts.steps[is_near], counts.n_gaps[is_near], n_near)
        logs = np.log(np.maximum(counts.steps, 1))
        far = (counts.sums(~is_near * values) for values in (1.0, counts.steps, logs))
        return cls(near, *far)

    def of_groups(self, is_taken: np.ndarray) -> "Likelihood":
        """Return the groups that a mask names."""
        sums = (values[is_taken] for values in (self.n_far, self.total, self.log_total))
        return Likelihood(self.near.of_groups(is_taken), *sums)

    def log_at(self, alpha: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Return the log likelihood of each group, for its shape and its mean in steps."""
        beta = mean / alpha
        far = (alpha - 1) * self.log_total - self.total / beta
        far -= self.n_far * (alpha * np.log(beta) + special.gammaln(alpha))
        alpha, mean = (np.repeat(values, self.near.n_distinct) for values in (alpha, mean))
        return far + self.near.sums(log_probability(self.near.steps, alpha, mean / alpha))


def fit_steps(counts: StepCounts) -> GammaFits:
    """Fit a Gamma distribution to each group's gaps; `beta` is in steps.

    The shape maximises the likelihood, the mean being the gaps' own. Its interval is that of so
    many exact gaps as tell as much of the shape: the likelihood's curvature in ln α, over what
    one exact gap has, α²(ψ'(α) - 1/α).

    All fields are NaN where the steps hide the shape: where the likelihood of α·√10 or of α/√10
    is above exp(-1.92) of the largest, so that a 95% interval by likelihood ratio reaches further.
    """
    n = counts.sums(1.0)
    mean = counts.sums(counts.steps) / n
    variance = counts.sums(counts.steps**2) / n - mean**2
    likelihood = Likelihood.of(counts)
    with np.errstate(all="ignore"):
        # A clock's rounding adds a variance of 1/6 to that of the gaps.
        guess = mean**2 / np.maximum(variance - 1 / 6, variance / 9)
        guess[counts.n_distinct == 1] = np.nan
        alpha, curvature = _likeliest(likelihood, guess, mean)
        n_exact = curvature / (alpha**2 * (trigamma(alpha) - 1 / alpha))
        fits = intervals(alpha, mean, np.where(n_exact > 0, n_exact, np.nan), n)
        most, *others = (
            likelihood.log_at(alpha * factor, mean)
            for factor in (1.0, DETERMINED**0.5, DETERMINED**-0.5)
        )
        is_hidden = ~(np.maximum(*others) < most - Z_95**2 / 2)
    return GammaFits(*(np.where(is_hidden, np.nan, values) for values in vars(fits).values()))


def _likeliest(
    likelihood: Likelihood, guess: np.ndarray, mean: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the likeliest shapes by Newton's method in ln α, and the curvature there.

    Slope and curvature are differences of three likelihoods. NaN where 40 rounds are not enough.
    """
    low, high = np.log(_LEAST_ALPHA), np.log(np.maximum(_MOST_ALPHA, 100 * mean**2))
    log_alpha, curvature = np.clip(np.log(guess), low, high), np.full(len(mean), np.nan)
    is_open = np.isfinite(log_alpha)
    for _ in range(40):
        if not is_open.any():
            break
        own, at = likelihood.of_groups(is_open), log_alpha[is_open]
        below, here, above = (
            own.log_at(np.exp(at + shift), mean[is_open]) for shift in (-_LOG_STEP, 0.0, _LOG_STEP)
        )
        slope, bend = (above - below) / (2 * _LOG_STEP), (2 * here - below - above) / _LOG_STEP**2
        # Where the likelihood is not concave, uphill by a factor of e.
        move = np.clip(np.where(bend > 0, slope / bend, np.sign(slope)), -1, 1)
        found = np.clip(at + move, low, high[is_open])
        log_alpha[is_open], curvature[is_open] = found, bend
        is_open[is_open] = np.abs(found - at) > 1e-5
    log_alpha[is_open] = np.nan
    return np.exp(log_alpha), curvature
