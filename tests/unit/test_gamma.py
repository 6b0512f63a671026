"""Gamma fits against SciPy's, and their intervals and test against draws of known shape."""

import numpy as np
import pytest
from scipy import stats

from sextant.workload.gamma import fit_gamma, ks_distance


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


def test_groups_of_different_size_are_fitted_as_if_alone():
    rng = np.random.default_rng(2)
    groups = [rng.gamma(0.5, 2.0, n) for n in (2, 37, 4_000)]
    n, total = [len(group) for group in groups], [group.sum() for group in groups]
    together = fit_gamma(n, total, [np.log(group).sum() for group in groups])
    for place, group in enumerate(groups):
        alone = fit_gamma(len(group), group.sum(), np.log(group).sum())
        assert alone.alpha[0] == pytest.approx(together.alpha[place], rel=1e-8)
        assert alone.beta_hi[0] == pytest.approx(together.beta_hi[place], rel=1e-8)


@pytest.mark.parametrize(
    "values", [[2.0], [3.0, 3.0, 3.0], [0.0, 1.0, 2.0], list(0.1 * np.diff(np.arange(50.0)))]
)
def test_what_determines_no_shape_has_none(values):
    with np.errstate(divide="ignore"):
        fits = fit_gamma(len(values), np.sum(values), np.log(values).sum())
    for name in ("alpha", "alpha_lo", "alpha_hi", "beta", "beta_lo", "beta_hi"):
        assert np.isnan(getattr(fits, name)).all()


def test_interval_of_many_values_is_that_of_the_information():
    # Of exponential draws the information on ln α is n (π²/6 - 1).
    values = np.random.default_rng(3).exponential(5.0, 100_000)
    fits = fit_gamma(len(values), values.sum(), np.log(values).sum())
    error = 1 / np.sqrt(len(values) * (np.pi**2 / 6 - 1))
    assert np.log(fits.alpha_hi / fits.alpha_lo)[0] == pytest.approx(2 * 1.96 * error, rel=0.01)
    assert np.sqrt(fits.alpha_hi * fits.alpha_lo)[0] == pytest.approx(fits.alpha[0], rel=1e-3)


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


def test_shape_is_recovered_from_ten_thousand_gaps():
    for alpha in (0.25, 0.5, 1.0, 4.0):
        _, fits = _fit_rows(np.random.default_rng(5).gamma(alpha, 2.0, (50, 10_000)))
        assert np.abs(fits.alpha / alpha - 1).max() < 0.05


def test_distances_of_groups_are_those_of_scipy():
    rng = np.random.default_rng(6)
    # More values than are judged at a time, and a group that alone has more.
    n = np.array([100_000, *rng.integers(1, 900, 300)])
    alpha, beta = rng.uniform(0.1, 5, len(n)), rng.uniform(0.1, 5, len(n))
    values = rng.gamma(np.repeat(1.2 * alpha, n), np.repeat(beta, n))
    distance = ks_distance(values, n, alpha, beta)
    ends = np.cumsum(n)
    for place in (0, 1, 2, 57, 150, 298, 299, 300):
        own = values[ends[place] - n[place] : ends[place]]
        fitted = stats.gamma(alpha[place], scale=beta[place])
        assert distance[place] == pytest.approx(stats.ks_1samp(own, fitted.cdf).statistic)
