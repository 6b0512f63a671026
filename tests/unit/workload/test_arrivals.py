"""Arrivals of a trace: the Gamma fit of the gaps, and how bursty the counts are."""

import json

import numpy as np
import pandas as pd
import pytest

from sextant.base.errors import InputError
from sextant.workload import arrivals
from sextant.workload.arrivals import SCALES_S, clock_step, fit_arrivals, measure_arrivals
from sextant.workload.generators import Gamma
from sextant.workload.trace_arrivals import arrivals_to_json, load_arrivals


def _arrivals(alpha: float, beta_s: float, n: int = 40_000) -> np.ndarray:
    return np.cumsum(np.random.default_rng(11).gamma(alpha, beta_s, n))


@pytest.mark.parametrize(("alpha", "beta_s"), [(0.3, 2.0), (1.0, 0.5), (4.0, 0.1)])
def test_known_gamma_is_found_again(alpha, beta_s):
    model = fit_arrivals(_arrivals(alpha, beta_s))
    assert model.alpha == pytest.approx(alpha, rel=0.03)
    assert model.beta_s == pytest.approx(beta_s, rel=0.05)
    assert model.rate_rps == pytest.approx(1 / (alpha * beta_s), rel=0.03)
    assert model.cv == pytest.approx(alpha**-0.5, rel=0.02)
    assert model.n_gaps == 39_999
    assert model.alpha_lo < model.alpha < model.alpha_hi
    assert model.alpha_lo < alpha < model.alpha_hi
    assert model.ks < 0.01
    # At α = 0.3 a few gaps are lost to the rounding of late times; they must not upset the fit.
    assert model.n_zero_gaps < 50 if alpha < 1 else model.n_zero_gaps == 0


def test_gaps_of_another_family_are_refused():
    gaps = np.random.default_rng(2).lognormal(0, 1.5, 2_000)
    assert fit_arrivals(np.cumsum(gaps)).ks > 0.05


@pytest.mark.parametrize("step_s", [0.02, 0.25, 1.0, 3.0])
@pytest.mark.parametrize("alpha", [0.25, 0.5, 1.0, 3.0])
def test_shape_is_found_through_a_coarse_clock(alpha, step_s):
    # Mean gap 1 s. Of equal stamps no exact likelihood has a value.
    stamps = np.floor(_arrivals(alpha, 1 / alpha) / step_s) * step_s
    model = fit_arrivals(stamps)
    # With gaps of 3 in steps of 3 mean gaps, the shape is known to about 5%.
    assert model.alpha == pytest.approx(alpha, rel=0.04 if alpha < 3 or step_s < 3 else 0.15)
    assert model.alpha_lo < alpha < model.alpha_hi
    assert model.clock_step_s == (pytest.approx(step_s) if model.n_zero_gaps else None)
    assert model.alpha * model.beta_s == pytest.approx((stamps[-1] - stamps[0]) / 39_999)
    # On a coarse clock the fit is not tested.
    assert (model.ks is None) == bool(model.n_zero_gaps)


def test_a_clock_too_coarse_for_the_shape_is_said_and_keeps_the_rate():
    model = fit_arrivals(np.floor(_arrivals(4.0, 0.075) / 3.0) * 3.0)
    assert (model.alpha, model.beta_s, model.alpha_lo, model.ks) == (None,) * 4
    assert model.reason == "the clock's step of 3 s hides the shape of 39999 gaps of 0.299 s"
    assert model.rate_rps == pytest.approx(1 / 0.3, rel=0.02)
    assert (model.clock_step_s, model.n_zero_gaps > 0.85 * model.n_gaps) == (3.0, True)


def test_a_clock_that_jitters_has_a_step_and_exact_times_their_least_gap():
    rng = np.random.default_rng(1)
    # As Mooncake's: gaps of 3 s, up to 3 ms off; so far off, 200 steps are no whole number.
    gaps = 3.0 * rng.choice([1, 2, 3, 200], 400) + rng.choice([-0.003, -0.001, 0, 0.001], 400)
    assert clock_step(gaps, 1e5) == pytest.approx(3.0, abs=0.003)
    exact = rng.exponential(1.0, 400)
    assert clock_step(exact, 400.0) == exact.min()


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
    model = fit_arrivals(np.array(arrival_s))
    assert (model.alpha, model.beta_s, model.cv, model.rate_rps) == (None, None, None, rate)
    assert (model.alpha_lo, model.alpha_hi, model.ks) == (None,) * 3
    assert reason in model.reason


def test_model_is_stored_and_read_back(tmp_path):
    model = fit_arrivals(_arrivals(2.0, 1.0, 500))
    stored = arrivals_to_json(model, {"seed": 0})
    assert stored["distribution"] == "gamma" and stored["fit"] == {"seed": 0}
    path = tmp_path / "arrivals.json"
    path.write_text(json.dumps(stored))
    assert load_arrivals(path) == load_arrivals(tmp_path) == model
    path.write_text(json.dumps({"alpha": 1.0}))
    with pytest.raises(InputError, match=r"arrivals\.json, field 'beta_s': the field is missing"):
        load_arrivals(path)
    with pytest.raises(InputError, match="there is no arrival model"):
        load_arrivals(tmp_path / "none")


def test_figures_are_those_of_pandas():
    times = Gamma(2.0, 0.3).times(duration_s=20_000, seed=1)
    found = measure_arrivals(times)
    gaps = pd.Series(times).diff().dropna()
    assert found["gap_cv"] == pytest.approx(gaps.std() / gaps.mean(), rel=1e-12)
    for scale_s in SCALES_S:
        counts = pd.Series(np.bincount((times // scale_s).astype(int)))
        whole = counts.iloc[: int(times[-1] // scale_s)]
        assert found[f"dispersion_{scale_s}s"] == pytest.approx(whole.var() / whole.mean())
        if scale_s <= 60:
            assert found[f"busiest_{scale_s}s"] == counts.max()


def test_a_long_trace_is_measured_and_spread_in_parts(monkeypatch):
    times = Gamma(2.0, 0.3).times(duration_s=20_000, seed=1)
    whole = measure_arrivals(times), arrivals.on_fine_clock(np.floor(times), 3)[0].tolist()
    monkeypatch.setattr(arrivals, "_MOST_TESTED", 1000)
    assert measure_arrivals(times) == whole[0]
    assert arrivals.on_fine_clock(np.floor(times), 3)[0].tolist() == whole[1]


def test_what_cannot_be_said_is_null():
    at_once = {"gap_cv": None, "busiest_1s": 9, "busiest_10s": 9, "busiest_60s": 9}
    assert measure_arrivals(np.full(9, 0.5)) == at_once
    once = {name: n and 1.0 for name, n in at_once.items()} | {"dispersion_1s": None}
    assert measure_arrivals(np.array([3.0])) == once


NO_TIMES = [[2.0, 1.0], [-1.0, 1.0], [0.0, 1e12], [0.0, np.nan], [np.nan]]


@pytest.mark.parametrize("times", [*NO_TIMES, []])
def test_times_that_no_trace_has_are_refused(times):
    with pytest.raises(InputError, match="arrival_s" if times else "no request arrives"):
        measure_arrivals(np.array(times, float))


def test_medians_and_errors():
    samples = [{"a": 1.0, "b": None}, {"a": 5.0, "b": None}, {"a": 2.0, "b": 3.0}]
    assert arrivals.median_measures(samples) == {"a": 2.0, "b": None}
    truth = {"a": 4.0, "b": 1.0, "zero": 0.0, "c": None}
    model = {"a": 5.0, "b": None, "zero": 1.0, "c": 1.0}
    assert arrivals.relative_errors(truth, model) == dict.fromkeys(truth) | {"a": 0.25}
