"""How far gaps in whole steps lie from a Gamma distribution: a Kolmogorov-Smirnov test.

The test needs values that are uniform under the distribution. A number of steps is one of few
values, so each gap is placed at random within the probability of its own number of steps: the
randomised probability integral transform.
"""

import numpy as np
import scipy

from sextant.workload.gamma import (
    FAR,
    GammaFits,
    StepCounts,
    ks_p_value,
    log_density,
    log_probability,
    probability_below,
    uniform_distance,
)


def step_shares(
    counts: StepCounts, alpha: np.ndarray, mean: np.ndarray, draws: np.ndarray
) -> np.ndarray:
    """Return the randomised probability integral transform of each gap, uniform if they fit.

    `alpha` is the shape of each group, `mean` its mean gap in steps. `draws` has a uniform draw for
    each gap, one group after the other: where it lies in the probability of its number of steps.
    """
    alpha, beta = (np.repeat(values, counts.n_distinct) for values in (alpha, mean / alpha))
    below, probability = np.empty((2, len(alpha)))
    is_near = counts.steps < FAR
    near = (counts.steps[is_near], alpha[is_near], beta[is_near])
    below[is_near], probability[is_near] = probability_below(*near), np.exp(log_probability(*near))
    far, far_alpha, far_beta = counts.steps[~is_near], alpha[~is_near], beta[~is_near]
    below[~is_near] = scipy.special.gammainc(far_alpha, (far - 0.5) / far_beta)
    probability[~is_near] = np.exp(log_density(far, far_alpha, far_beta))
    n_gaps = counts.n_gaps.astype(int)
    return np.repeat(below, n_gaps) + draws * np.repeat(probability, n_gaps)


def judge_steps(
    counts: StepCounts, fits: GammaFits, draws: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the Kolmogorov-Smirnov distance of each group, and its p-value; NaN without a fit.

    `fits` are those of `fit_steps`, `draws` as of `step_shares`.
    """
    found = np.full((2, len(fits.alpha)), np.nan)
    is_fitted = np.isfinite(fits.alpha)
    if is_fitted.any():
        n = counts.sums(1.0).astype(int)
        own, alpha, beta = counts.of_groups(is_fitted), fits.alpha[is_fitted], fits.beta[is_fitted]
        draws, n = draws[np.repeat(is_fitted, n)], n[is_fitted]
        distance = uniform_distance(step_shares(own, alpha, alpha * beta, draws), n)
        blend = ks_blend(alpha, 1 / (alpha * beta))
        found[:, is_fitted] = distance, ks_p_value(distance, n, alpha, blend)
    return found[0], found[1]


def ks_blend(alpha: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Return the `blend` that `gamma.ks_p_value` needs for distances of `step_shares`.

    The coarser the clock, the more of a distance is the draws' own, which no parameter was
    fitted to; where it is fine, successive gaps share what it cuts off, and distances are shorter.
    `alpha` are the fitted shapes, `step` is the clock's in mean gaps.
    """
    # Laws more regular than the table's are close to normal: their width in steps decides.
    step = step * np.sqrt(np.maximum(alpha / _SHAPES[-1], 1))
    places = np.stack([np.log(alpha), np.log(step)], axis=1)
    low, high = ([np.log(axis[end]) for axis in (_SHAPES, _STEPS)] for end in (0, -1))
    axes = (np.log(_SHAPES), np.log(_STEPS))
    return scipy.interpolate.interpn(axes, _BLEND, np.clip(places, low, high))


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
