"""Probabilities of whole steps against numerical integrals; fits against draws of known shape."""

import numpy as np
import pytest
from scipy import integrate, stats

from sextant.workload.gamma import StepCounts, count_steps, fit_steps, log_probability


def _draw(alpha: float, step: float, shape: tuple[int, int], seed: int = 1) -> np.ndarray:
    """Draw rows of gaps of mean 1 as a clock of this step shows them, its phase unknown."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.gamma(alpha, 1 / alpha, (shape[0], shape[1] + 1)), axis=1)
    return np.diff(np.floor(times / step + rng.random((shape[0], 1))), axis=1)


def _count(steps: np.ndarray) -> StepCounts:
    return count_steps(steps.ravel(), np.full(len(steps), steps.shape[1]))


@pytest.mark.parametrize(
    ("alpha", "mean"),
    [(0.05, 0.5), (0.25, 20.0), (1.0, 0.3), (4.0, 1.0), (60.0, 9.0), (2.0, 400), (900.0, 3.4)],
)
def test_probabilities_are_the_integrals_of_the_density_over_two_steps(alpha, mean):
    law = stats.gamma(alpha, scale=mean / alpha)
    steps = np.array([0.0, 1.0, 2.0, 3.0, 7.0, 12.0, 60.0])

    found = np.exp(log_probability(steps, np.full(7, alpha), np.full(7, mean / alpha)))
    for step, probability in zip(steps, found, strict=True):
        # The distribution function instead of the density, which has no value at 0.
        above = integrate.quad(law.cdf, step, step + 1, epsabs=1e-13)[0]
        below = integrate.quad(law.cdf, step - 1, step, epsabs=1e-13)[0]
        assert probability == pytest.approx(above - below, rel=1e-5, abs=1e-10)


# With a step of 3 mean gaps 1,000 gaps do not determine a shape of 4.
@pytest.mark.parametrize(
    ("alpha", "step"),
    [(0.25, 0.05), (0.25, 0.25), (0.25, 3.0), (1.0, 0.05), (1.0, 1.0), (1.0, 3.0), (4.0, 1.0)],
)
def test_intervals_cover_as_often_as_they_say(alpha, step):
    fits = fit_steps(_count(_draw(alpha, step, (1_500, 1_000))))
    assert np.mean(np.isfinite(fits.alpha)) > 0.99
    assert np.nanmedian(fits.alpha) == pytest.approx(alpha, rel=0.03)
    # Where steps are long, what they cut off binds successive gaps, and intervals are too wide.
    assert np.mean((fits.alpha_lo < alpha) & (alpha < fits.alpha_hi)) == pytest.approx(
        0.957, abs=0.025
    )
    beta = 1 / alpha / step
    assert np.mean((fits.beta_lo < beta) & (beta < fits.beta_hi)) == pytest.approx(0.957, abs=0.025)


def test_of_a_fine_clock_the_fit_is_that_of_exact_gaps():
    gaps = np.random.default_rng(2).gamma(0.7, 10.0, 4_000)
    steps = np.maximum(np.rint(gaps / 1e-7), 1)
    fits = fit_steps(count_steps(steps, np.array([4_000])))
    alpha, _, beta = stats.gamma.fit(gaps, floc=0)
    assert fits.alpha[0] == pytest.approx(alpha, rel=1e-4)
    assert fits.beta[0] * 1e-7 == pytest.approx(beta, rel=1e-4)
    # Of n exact gaps the information on ln α is n α² (ψ'(α) - 1/α): 0.4744 at 0.7.
    width = np.log(fits.alpha_hi / fits.alpha_lo)[0]
    assert width == pytest.approx(2 * 1.96 / np.sqrt(4_000 * 0.49 * (2.834049 - 1 / 0.7)), rel=0.01)


def test_shapes_that_the_steps_hide_are_not_fitted():
    rng = np.random.default_rng(3)
    regular = np.tile([3.0, 4.0], 500)
    equal = np.full(1_000, 5.0)
    hidden = np.diff(np.floor(np.cumsum(rng.gamma(4.0, 0.025, 1_001))))
    known = np.diff(np.floor(np.cumsum(rng.gamma(4.0, 0.5, 1_001))))
    fits = fit_steps(_count(np.stack([regular, equal, hidden, known])))
    for name in ("alpha", "alpha_lo", "alpha_hi", "beta", "beta_lo", "beta_hi"):
        assert np.isfinite(getattr(fits, name)).tolist() == [False, False, False, True]
