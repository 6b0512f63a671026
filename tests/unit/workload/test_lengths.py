"""Lengths: Zipf recovered, its errors known; outputs by input."""

import numpy as np
import pytest
from scipy import stats

from sextant.base.errors import InputError
from sextant.workload.published import (
    fit_zipf,
    output_by_input,
    zipf_probabilities,
    zipf_request_model,
)


@pytest.mark.parametrize("theta", [0.8, 1.1, 1.5])
def test_draws_follow_scipys_law(theta):
    # In so few lengths none are merged.
    drawn = zipf_request_model(theta, 1, 200, 7).sample(50_000, seed=3)["input_tokens"]
    expected = stats.zipfian(theta, 200).pmf(np.arange(1, 201)) * 50_000
    observed = np.bincount(drawn, minlength=201)[1:]
    common = expected > 5
    statistic = ((observed - expected)[common] ** 2 / expected[common]).sum()
    assert stats.chi2(common.sum()).sf(statistic) > 1e-3


def test_two_lengths_have_a_closed_solution():
    # P(2) = 2^-theta / (1 + 2^-theta); a quarter of the lengths are 2, so theta = log2 3.
    fit = fit_zipf([1, 1, 1, 2], 1, 2)
    assert fit.theta == pytest.approx(np.log2(3))
    assert fit.ks == pytest.approx(0, abs=1e-9)
    # Variance of ln x is 3/16 (ln 2)^2, hence the half width of the interval.
    half = 1.959964 / np.sqrt(4 * 3 / 16 * np.log(2) ** 2)
    assert (fit.theta_hi - fit.theta, fit.theta - fit.theta_lo) == pytest.approx((half, half))


def test_counts_weigh_like_repetition_and_bounds_are_those_seen_unless_given():
    repeated = fit_zipf([1, 1, 1, 2, 5, 5])
    assert fit_zipf([5, 2, 1], counts=[2, 1, 3]) == repeated
    assert (repeated.n, repeated.lowest, repeated.highest, repeated.n_outside) == (6, 1, 5, 0)
    fit = fit_zipf([0, 1, 2, 3, 4, 50], 1, 4)
    assert (fit.n, fit.n_outside, fit.lowest, fit.highest) == (4, 2, 1, 4)


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (fit_zipf, ([0, 1, 2],), "field 'lowest': lengths from 0 to 2"),
        (fit_zipf, ([5, 5],), "field 'tokens': 1 distinct lengths from 5 to 5"),
        (fit_zipf, ([5, 6], 10, 20), "0 distinct lengths from 10 to 20"),
        (fit_zipf, ([1.5, 2],), "field 'tokens': not all are whole numbers"),
        (fit_zipf, ([np.nan, 2],), "field 'tokens': not all are whole numbers"),
        (fit_zipf, ([],), "there is no length"),
        (fit_zipf, ([1, 2], 3, 2), "lengths from 3 to 2"),
        (zipf_request_model, (1.1, 1, 10, 0), "'output_tokens': an output of 0 tokens"),
        (zipf_probabilities, (np.inf, 1, 10), "field 'theta'"),
        (zipf_probabilities, (np.nan, 1, 10), "field 'theta'"),
    ],
)
def test_laws_and_lengths_that_make_no_sense_are_refused(make, given, message):
    with pytest.raises(InputError, match=message):
        make(*given)


def test_outputs_by_input_of_hand_made_requests():
    inputs, outputs = [4, 1, 2, 3], [40, 10, 20, 31]
    table = output_by_input(inputs, outputs, n_bins=2)
    assert table[["input_lo", "input_hi", "n"]].to_numpy().tolist() == [[1, 2, 2], [3, 4, 2]]
    assert table["mean"].tolist() == [15.0, 35.5]
    assert table["median"].tolist() == [15.0, 35.5]
    assert table["p10"].tolist() == pytest.approx([11.0, 31.9])


def test_a_zipf_model_draws_zipf_inputs_and_the_outputs_given():
    model = zipf_request_model(1.1, 1, 4096, [100, 100, 200])
    drawn = model.sample(20_000, seed=0)
    assert fit_zipf(drawn["input_tokens"], 1, 4096).theta == pytest.approx(1.1, rel=0.02)
    shares = drawn["output_tokens"].value_counts(normalize=True)
    assert shares.to_dict() == pytest.approx({100: 2 / 3, 200: 1 / 3}, abs=0.02)
    assert len(model.frame) == 512 and model.weights.sum() == pytest.approx(1)
    drawn = zipf_request_model(0.0, 5, 8, 64).sample(100, seed=0)
    assert set(drawn["output_tokens"]) == {64}
    assert set(drawn["input_tokens"]) == {5, 6, 7, 8}
    assert drawn.dtypes.tolist() == [np.dtype("int32")] * 2


@pytest.mark.parametrize(
    ("lengths", "bounds", "theta"),
    [
        # Of two lengths, theta = ln(ratio of counts) / ln(ratio of lengths).
        ([100] * 99 + [101], (), np.log(99) / np.log(1.01)),
        ([1000] * 100 + [1100], (), None),
        ([8192] * 100 + [8191], (1, 8192), None),
    ],
)
def test_lengths_that_are_nearly_all_alike_have_a_steep_law(lengths, bounds, theta):
    found = fit_zipf(lengths, *bounds)
    assert np.isfinite([found.theta, found.theta_lo, found.theta_hi]).all()
    assert abs(found.theta) > 20
    if theta is not None:
        assert found.theta == pytest.approx(theta, rel=1e-6)
