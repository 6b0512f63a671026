"""The arrival model against draws from known distributions."""

import json

import numpy as np
import pytest
import scipy

from sextant.errors import InputError
from sextant.workload import ArrivalModel, fit_arrivals, load_arrivals, sample_gaps
from sextant.workload.arrivals import arrivals_to_json, ordered_offsets


def _arrivals(alpha: float, beta_s: float, n: int = 40_000) -> np.ndarray:
    return np.cumsum(np.random.default_rng(11).gamma(alpha, beta_s, n))


@pytest.mark.parametrize(("alpha", "beta_s"), [(0.3, 2.0), (1.0, 0.5), (4.0, 0.1)])
def test_known_gamma_is_found_again(alpha, beta_s):
    model = fit_arrivals(_arrivals(alpha, beta_s), seed=0)
    assert model.alpha == pytest.approx(alpha, rel=0.03)
    assert model.beta_s == pytest.approx(beta_s, rel=0.05)
    assert model.rate_rps == pytest.approx(1 / (alpha * beta_s), rel=0.03)
    assert model.cv == pytest.approx(alpha**-0.5, rel=0.02)
    assert model.n_gaps == 39_999
    assert model.alpha_lo < model.alpha < model.alpha_hi
    assert model.alpha_lo < alpha < model.alpha_hi
    assert model.p_value > 0.05
    # At α = 0.3 a few gaps are lost to the rounding of late times; they must not upset the fit.
    assert model.n_zero_gaps < 50 if alpha < 1 else model.n_zero_gaps == 0


def test_shape_and_distance_are_those_of_scipy():
    arrival_s = _arrivals(0.7, 3.0, 5_000)
    model, gaps = fit_arrivals(arrival_s, seed=0), np.diff(arrival_s)
    assert model.alpha == pytest.approx(scipy.stats.gamma.fit(gaps, floc=0)[0], rel=1e-9)
    fitted = scipy.stats.gamma(model.alpha, scale=model.beta_s)
    assert model.ks == pytest.approx(scipy.stats.ks_1samp(gaps, fitted.cdf).statistic, rel=1e-9)


def test_gaps_of_another_family_are_refused():
    gaps = np.random.default_rng(2).lognormal(0, 1.5, 2_000)
    assert fit_arrivals(np.cumsum(gaps), seed=0).p_value < 1e-3


def test_draws_are_ordered_within_a_stamp_only():
    is_new = np.array([True, False, False, True, True, False])
    ordered = ordered_offsets(is_new, np.array([0.5, 0.9, 0.1, 0.8, 0.7, 0.2]))
    assert ordered == pytest.approx([0.1, 0.5, 0.9, 0.8, 0.2, 0.7])


@pytest.mark.parametrize("alpha", [0.5, 1.0, 3.0])
def test_clock_of_a_quarter_of_a_gap_biases_little(alpha):
    # Mean gap 1 s, stamps cut to 0.25 s; without spreading there would be no fit at all.
    stamps = np.floor(_arrivals(alpha, 1 / alpha) / 0.25) * 0.25
    model = fit_arrivals(stamps, seed=0)
    assert model.n_zero_gaps > 0 and model.clock_step_s == pytest.approx(0.25)
    assert model.alpha == pytest.approx(alpha, rel=0.25)
    assert model.alpha * model.beta_s == pytest.approx((stamps[-1] - stamps[0]) / 39_999)


def test_very_coarse_clock_keeps_the_rate_of_a_poisson_process():
    stamps = np.floor(_arrivals(1.0, 0.3) / 3.0) * 3.0
    model = fit_arrivals(stamps, seed=0)
    assert model.n_zero_gaps > 0.85 * model.n_gaps
    assert model.rate_rps == pytest.approx(1 / 0.3, rel=0.02)
    assert model.cv == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize(
    ("arrival_s", "reason", "rate"),
    [
        ([0.0], "1 arrivals are too few", None),
        ([0.0, 2.0], "2 arrivals are too few", 0.5),
        ([3.0, 3.0, 3.0, 3.0], "all requests arrive at the same time", None),
        (np.arange(50) * 0.1, "all gaps are equal", pytest.approx(10.0)),
    ],
)
def test_undetermined_parameters_are_said_not_guessed(arrival_s, reason, rate):
    model = fit_arrivals(np.array(arrival_s), seed=0)
    assert (model.alpha, model.beta_s, model.cv, model.rate_rps) == (None, None, None, rate)
    assert (model.alpha_lo, model.alpha_hi, model.ks, model.p_value) == (None,) * 4
    assert reason in model.reason
    with pytest.raises(InputError, match=r"the arrival model has no parameters \("):
        sample_gaps(model, 3, seed=0)


def test_sampled_gaps_have_the_moments_of_the_model_and_follow_the_seed():
    model = ArrivalModel(0.5, 0.4, 5.0, 0.5**-0.5, 100, 0, None)
    gaps = sample_gaps(model, 200_000, seed=4)
    assert gaps.mean() == pytest.approx(0.2, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(2**0.5, rel=0.02)
    # Long gaps of a bursty process are not cut at 3 mean gaps.
    assert gaps.max() > 10 * 0.2
    assert np.array_equal(gaps, sample_gaps(model, 200_000, seed=4))
    assert not np.array_equal(gaps[:9], sample_gaps(model, 9, seed=5))


def test_model_is_stored_and_read_back(tmp_path):
    model = fit_arrivals(_arrivals(2.0, 1.0, 500), seed=0)
    stored = arrivals_to_json(model, seed=0)
    assert stored["distribution"] == "gamma" and stored["fit"] == {"seed": 0}
    path = tmp_path / "arrivals.json"
    path.write_text(json.dumps(stored))
    assert load_arrivals(path) == load_arrivals(tmp_path) == model
    path.write_text(json.dumps({"alpha": 1.0}))
    with pytest.raises(InputError, match=r"arrivals\.json, field 'beta_s': the field is missing"):
        load_arrivals(path)
    with pytest.raises(InputError, match="there is no arrival model"):
        load_arrivals(tmp_path / "none")
