"""The request model: bins of about equal count, joint counts, and sampling from them."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sextant.errors import InputError
from sextant.workload import RequestModel, fit_request_model, load_request_model
from sextant.workload.request_model import bin_starts


def _trace(input_tokens, output_tokens, **columns) -> pd.DataFrame:
    tokens = {"input_tokens": input_tokens, "output_tokens": output_tokens}
    return pd.DataFrame({**tokens, "status": "ok", **columns})


@pytest.fixture
def correlated() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    size = rng.normal(size=20_000)
    noise = rng.normal(size=20_000)
    inputs = np.exp(6 + size).astype(int) + 1
    return _trace(inputs, np.exp(5 + 0.8 * size + 0.6 * noise).astype(int) + 1)


def test_two_bins_by_hand():
    # Values 1 1 2 | 5 8 8: three requests a side; centres 1.5 → 2 and 6.5 → 7.
    model = fit_request_model(_trace([1, 1, 2, 5, 8, 8], [3] * 6), n_bins=2)
    assert model.frame.to_dict("list") == {
        "input_tokens": [2, 7],
        "output_tokens": [3, 3],
        "count": [3, 3],
    }
    assert model.frame["input_tokens"].dtype == np.int32


def test_joint_bins_keep_which_values_go_together():
    model = fit_request_model(_trace([1, 1, 2, 2, 2], [10, 20, 20, 20, 20]))
    assert model.frame.to_numpy().tolist() == [[1, 10, 1], [1, 20, 1], [2, 20, 3]]


def test_frequent_value_has_a_bin_of_its_own():
    values = [*range(100), *[100] * 900, *range(101, 201)]
    model = fit_request_model(
        _trace(values, [1] * len(values)), n_bins=11, parameters=["input_tokens"]
    )
    counts = dict(zip(model.frame["input_tokens"], model.frame["count"], strict=True))
    assert counts.pop(100) == 900
    assert len(counts) == 10 and set(counts.values()) == {20}


def test_few_values_stay_exact_and_centres_of_floats_are_not_rounded():
    trace = _trace([1, 2, 3, 4], [1, 1, 1, 1], temperature=[0.1, 0.2, 0.7, 0.9])
    model = fit_request_model(trace, n_bins=2)
    assert sorted(set(model.frame["temperature"])) == pytest.approx([0.15, 0.8])
    exact = fit_request_model(trace, n_bins=4)
    assert exact.frame["temperature"].tolist() == [0.1, 0.2, 0.7, 0.9]


def test_null_is_left_out_or_a_bin_of_its_own():
    trace = _trace(
        [1, 1, 2], [5, 5, 5], temperature=[None, None, 0.5], top_k=[None, 7, 7], top_p=[None] * 3
    )
    trace["is_greedy"] = pd.array([True, True, False], dtype="boolean")
    model = fit_request_model(trace, n_bins=1)
    assert model.parameters == [
        "input_tokens",
        "output_tokens",
        "is_greedy",
        "temperature",
        "top_k",
    ]
    assert model.frame["count"].sum() == 3 and len(model.frame) == 3
    assert model.frame["temperature"].isna().sum() == 2 and model.frame["top_k"].isna().sum() == 1
    assert model.frame["is_greedy"].dtype == bool and set(model.frame["is_greedy"]) == {True, False}


def test_failed_requests_take_no_part():
    trace = _trace([1, 2], [1, 0]).assign(status=["ok", "failed"])
    assert fit_request_model(trace).frame["input_tokens"].tolist() == [1]
    with pytest.raises(InputError, match="no request to fit"):
        fit_request_model(trace[trace["status"] == "failed"])
    with pytest.raises(InputError, match="field 'n_bins': 0 bins"):
        fit_request_model(trace, n_bins=0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=300), st.integers(1, 70))
def test_bins_are_contiguous_at_most_n_and_about_equal(counts, n_bins):
    counts = np.array(counts)
    starts = bin_starts(counts, n_bins)
    assert starts[0] == 0 and (np.diff(starts) > 0).all() and starts[-1] < len(counts)
    assert len(starts) <= n_bins
    sizes = np.add.reduceat(counts, starts)
    n_values = np.diff(np.append(starts, len(counts)))
    assert sizes.sum() == counts.sum()
    if len(counts) <= n_bins:
        assert (n_values == 1).all()
    # No bin of several values holds more than an equal share and one value besides.
    elif (n_values > 1).any():
        assert sizes[n_values > 1].max() <= counts.sum() / n_bins + counts.max()


def test_marginals_and_rank_correlation_survive(correlated):
    model = fit_request_model(correlated)
    sample = model.sample(20_000, seed=1)
    for name in ("input_tokens", "output_tokens"):
        assert correlated[name].nunique() > 64
        assert model.frame[name].nunique() <= 64
        # One bin has 1/64 of the requests; the sample adds its own noise.
        assert stats.ks_2samp(correlated[name], sample[name]).statistic < 1 / 64 + 0.015
    truth = stats.spearmanr(correlated["input_tokens"], correlated["output_tokens"]).statistic
    found = stats.spearmanr(sample["input_tokens"], sample["output_tokens"]).statistic
    assert truth > 0.7 and found == pytest.approx(truth, abs=0.02)


def test_bins_are_drawn_in_proportion_to_their_count():
    frame = pd.DataFrame({"input_tokens": [1, 2, 3], "count": [1, 2, 7]})
    drawn = RequestModel(frame).sample(100_000, seed=3)["input_tokens"].value_counts()
    assert stats.chisquare(drawn[[1, 2, 3]], [10_000, 20_000, 70_000]).pvalue > 0.001


def test_seed_decides_the_sample(correlated):
    model = fit_request_model(correlated)
    pd.testing.assert_frame_equal(model.sample(50, seed=1), model.sample(50, seed=1))
    assert not model.sample(50, seed=1).equals(model.sample(50, seed=2))
    assert model.sample(0, seed=1).empty


def test_load_accepts_counts_probabilities_and_folders(tmp_path):
    frame = pd.DataFrame({"input_tokens": [4, 5], "top_k": [None, 50.0], "probability": [0.0, 1.0]})
    frame.to_parquet(tmp_path / "requests.parquet")
    model = load_request_model(tmp_path)
    assert model.parameters == ["input_tokens", "top_k"]
    assert model.sample(100, seed=0).to_numpy().tolist() == [[5, 50]] * 100
    frame.drop(columns="probability").to_parquet(tmp_path / "bare.parquet")
    with pytest.raises(
        InputError, match=r"bare\.parquet, field 'count': the joint bins have no weight"
    ):
        load_request_model(tmp_path / "bare.parquet")
    with pytest.raises(InputError, match="there is no request model"):
        load_request_model(tmp_path / "none")
