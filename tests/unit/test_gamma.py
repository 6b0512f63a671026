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
    distance = ks_distance(values, n, alpha, beta)
    ends = np.cumsum(n)
    for place in (0, 1, 2, 57, 150, 298, 299, 300):
        own = values[ends[place] - n[place] : ends[place]]
        fitted = stats.gamma(alpha[place], scale=beta[place])
        assert distance[place] == pytest.approx(stats.ks_1samp(own, fitted.cdf).statistic)
