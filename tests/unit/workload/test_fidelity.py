"""Fidelity figures against scipy's, and against values known by hand."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sextant.base.errors import InputError
from sextant.workload import fit
from sextant.workload.fit import cumulative, ks_distance, largest_difference, spearman
from sextant.workload.request_model import ServedRequests, fit_request_model

numbers = st.lists(st.integers(-5, 5), min_size=2, max_size=40)
weighted = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 5)), min_size=2, max_size=30
)


@settings(max_examples=100, deadline=None)
@given(weighted, numbers)
def test_ks_is_scipys_and_weighted_that_of_repeated_rows(rows, b):
    values, _, counts = np.array(rows).T
    expected = stats.ks_2samp(np.repeat(values, counts), b, method="asymp").statistic
    assert ks_distance(np.repeat(values, counts), b) == pytest.approx(expected, abs=1e-12)
    assert ks_distance(values, b, counts) == pytest.approx(expected, abs=1e-12)
    assert ks_distance(b, values, None, counts) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(weighted)
def test_weighted_spearman_is_scipys_of_repeated_rows(rows):
    a, b, counts = np.array(rows).T
    found = spearman(pd.DataFrame({"a": a, "b": b}), counts)
    if np.ptp(a) and np.ptp(b):
        expected = stats.spearmanr(np.repeat(a, counts), np.repeat(b, counts)).statistic
        assert found.loc["a", "b"] == pytest.approx(expected, abs=1e-9)
        assert found.loc["a", "a"] == 1.0
    else:
        assert np.isnan(found.loc["a", "b"])
    assert found.equals(found.T)


def test_constant_or_unknown_parameters_have_no_coefficient():
    frame = pd.DataFrame({"a": [1, 2, 3], "b": [7, 7, 7], "c": [None, None, 1.0]})
    assert spearman(frame).isna().to_numpy().tolist() == [[False, True, True], *[[True] * 3] * 2]
    assert spearman(frame.head(0)).isna().all(axis=None)
    # A row without weight is none: what is left of `b` is constant.
    varied = pd.DataFrame({"a": [1, 2, 3], "b": [7, 7, 8]})
    assert np.isnan(spearman(varied, np.array([1, 1, 0])).loc["a", "b"])


def test_largest_difference_by_hand():
    def matrix(value):
        return pd.DataFrame([[1.0, value], [value, 1.0]])

    assert largest_difference(matrix(0.5), matrix(0.2)) == pytest.approx(0.3)
    assert largest_difference(matrix(np.nan), matrix(0.2)) is None
    # A model in which a parameter is constant shows no correlation.
    assert largest_difference(matrix(-0.5), matrix(np.nan)) == 0.5


def test_cumulative_by_hand_and_thinned():
    found = cumulative([3, 1, None, 1, 2], None)
    assert found.to_dict("list") == {"value": [1, 2, 3], "fraction": [0.5, 0.75, 1.0]}
    found = cumulative([1, 2], np.array([3, 1]))
    assert found["fraction"].tolist() == [0.75, 1.0]
    many = cumulative(np.arange(1, 10_001), max_points=100)
    assert len(many) == 100 and many["value"].iloc[[0, -1]].tolist() == [1, 10_000]
    assert many["fraction"].tolist() == pytest.approx((many["value"] / 10_000).tolist())
    with pytest.raises(InputError, match="no value"):
        cumulative([None, None])


def test_a_model_of_all_values_is_exact_and_independence_is_not():
    # Spearman's coefficient of five rows that go up together but for one swap is 0.9.
    served = pd.DataFrame({"input_tokens": [1, 2, 3, 4, 5], "output_tokens": [1, 2, 3, 5, 4]})
    trace = ServedRequests.of(served)
    figures = fit.exact_fidelity(trace.frame, trace.counts, fit_request_model(served))
    assert figures["ks"] == {"input_tokens": 0.0, "output_tokens": 0.0}
    assert figures["mean_ratio"] == pytest.approx({"input_tokens": 1.0, "output_tokens": 1.0})
    assert figures["spearman_trace"]["input_tokens"]["output_tokens"] == pytest.approx(0.9)
    assert figures["spearman_model"] == figures["spearman_trace"]
    assert figures["spearman_difference"] == pytest.approx({"joint": 0.0, "independent": 0.9})
