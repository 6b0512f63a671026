"""Gamma fits of exact gaps and of whole steps, against scipy and draws of known shape."""

import numpy as np
import pytest
from scipy import integrate, stats

from sextant.workload.gamma import (
    StepCounts,
    count_steps,
    fit_gamma,
    fit_steps,
    ks_distances,
    log_probability,
)


def _fit_rows(values: np.ndarray):
    """Fit each row of a matrix of draws."""
    n = np.full(len(values), values.shape[1])
    return n, fit_gamma(n, values.sum(axis=1), np.log(values).sum(axis=1))


@pytest.mark.parametrize("alpha", [0.05, 0.25, 1.0, 4.0, 500.0])
def test_estimates_are_those_of_scipy(alpha):
    values = np.random.default_rng(1).gamma(alpha, 3.0, (3, 200))
    _, fits = _fit_rows(values)
    for row, shape, scale in zip(values, fits.alpha, fits.beta, strict=True):
        expected, _, expected_scale = stats.gamma.fit(row, floc=0)
        assert shape == pytest.approx(expected, rel=1e-6)
        assert scale == pytest.approx(expected_scale, rel=1e-6)
    assert fits.cv == pytest.approx(fits.alpha**-0.5)


@pytest.mark.parametrize(
    "values", [[2.0], [3.0, 3.0, 3.0], [0.0, 1.0, 2.0], list(0.1 * np.diff(np.arange(50.0)))]
)
def test_what_determines_no_shape_has_none(values):
    with np.errstate(divide="ignore"):
        fits = fit_gamma(len(values), np.sum(values), np.log(values).sum())
    for name in ("alpha", "alpha_lo", "alpha_hi", "beta", "beta_lo", "beta_hi"):
        assert np.isnan(getattr(fits, name)).all()


@pytest.mark.parametrize("n", [30, 400])
@pytest.mark.parametrize("alpha", [0.25, 1.0, 4.0])
def test_intervals_cover_as_often_as_they_say(alpha, n):
    _, fits = _fit_rows(np.random.default_rng(4).gamma(alpha, 0.1, (4_000, n)))
    # Four standard deviations of 4,000 repetitions are 1.4%.
    assert np.mean((fits.alpha_lo < alpha) & (alpha < fits.alpha_hi)) == pytest.approx(
        0.95, abs=0.014
    )
    # The scale's is a little short where there are few values.
    assert np.mean((fits.beta_lo < 0.1) & (fits.beta_hi > 0.1)) == pytest.approx(0.95, abs=0.03)


def test_distances_of_groups_are_those_of_scipy():
    rng = np.random.default_rng(6)
    # More values than are judged at a time, and a group that alone has more.
    n = np.array([100_000, *rng.integers(1, 900, 300)])
    alpha, beta = rng.uniform(0.1, 5, len(n)), rng.uniform(0.1, 5, len(n))
    values = rng.gamma(np.repeat(1.2 * alpha, n), np.repeat(beta, n))
    distance = ks_distances(values, n, alpha, beta)
    ends = np.cumsum(n)
    for place in (0, 1, 2, 57, 150, 298, 299, 300):
        own = values[ends[place] - n[place] : ends[place]]
        fitted = stats.gamma(alpha[place], scale=beta[place])
        assert distance[place] == pytest.approx(stats.ks_1samp(own, fitted.cdf).statistic)


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
def test_intervals_cover_as_often_as_they_say_step_fit(alpha, step):
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
