"""The request model: bins of about equal count, joint counts, draws, and what a file may hold."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sextant.base.errors import InputError
from sextant.workload.published import load_request_model
from sextant.workload.request_model import bin_starts, fit_request_model, resample_trace


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


def test_frequent_value_has_a_bin_of_its_own():
    values = [*range(100), *[100] * 900, *range(101, 201)]
    trace = pd.DataFrame({"input_tokens": values, "status": "ok"})
    model = fit_request_model(trace, n_bins=11)
    counts = dict(zip(model.frame["input_tokens"], model.frame["count"], strict=True))
    assert counts.pop(100) == 900
    assert len(counts) == 10 and set(counts.values()) == {20}


def test_null_is_left_out_or_a_bin_of_its_own():
    trace = _trace(
        [1, 1, 2], [5, 5, 5], temperature=[None, None, 0.5], top_k=[None, 7, 7], top_p=[None] * 3
    )
    trace["is_greedy"] = pd.array([True, True, False], dtype="boolean")
    model = fit_request_model(trace, n_bins=1)
    tokens, sampling = ["input_tokens", "output_tokens"], ["is_greedy", "temperature", "top_k"]
    assert model.parameters == tokens + sampling
    assert model.frame["count"].sum() == 3 and len(model.frame) == 3
    assert model.frame["temperature"].isna().sum() == 2 and model.frame["top_k"].isna().sum() == 1
    assert model.frame["is_greedy"].dtype == bool and set(model.frame["is_greedy"]) == {True, False}


def test_failed_requests_take_no_part():
    trace = _trace([1, 2], [1, 0]).assign(status=["ok", "failed"])
    assert fit_request_model(trace).frame["input_tokens"].tolist() == [1]
    with pytest.raises(InputError, match="no request succeeded"):
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


def test_a_draw_keeps_types_and_numbers_rows_from_zero():
    trace = _trace([1, 2], [3, 4], temperature=[0.5, 1.0], top_k=[None, 7], is_greedy=[True, False])
    trace["batch_size"] = pd.array([None, 2], "Int32")
    for sampler in ("joint", "independent"):
        drawn = fit_request_model(trace).sample(500, seed=0, sampler=sampler)
        types = ["int32", "int32", "Int32", "bool", "float64", "Int32"]
        assert drawn.dtypes.astype(str).to_dict() == dict(zip(drawn, types, strict=True))
        assert list(drawn)[2:] == ["batch_size", "is_greedy", "temperature", "top_k"]
        assert drawn.index.equals(pd.RangeIndex(500))
        assert 150 < drawn["top_k"].isna().sum() < 350


def test_joint_draws_hold_only_what_goes_together_and_independent_ones_all_pairs():
    model = fit_request_model(_trace([1, 1, 1, 2], [10, 10, 10, 20]))
    pairs = model.sample(10_000, seed=0).value_counts(normalize=True)
    assert set(pairs.index) == {(1, 10), (2, 20)}
    assert pairs[(1, 10)] == pytest.approx(0.75, abs=0.02)
    pairs = model.sample(10_000, seed=0, sampler="independent").value_counts(normalize=True)
    expected = {(1, 10): 9 / 16, (1, 20): 3 / 16, (2, 10): 3 / 16, (2, 20): 1 / 16}
    assert pairs.to_dict() == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("sampler", ["joint", "independent"])
def test_the_seed_decides_the_sample_each_time_it_is_used(correlated, sampler):
    model, seed = fit_request_model(correlated), np.random.SeedSequence(4)
    first = model.sample(50, seed=seed, sampler=sampler)
    pd.testing.assert_frame_equal(first, model.sample(50, seed=seed, sampler=sampler))
    pd.testing.assert_frame_equal(first, model.sample(50, seed=4, sampler=sampler))
    for other in (5, seed.spawn(1)[0]):
        assert not first.equals(model.sample(50, seed=other, sampler=sampler))
    assert model.sample(0, seed=1, sampler=sampler).empty


def test_unknown_sampler():
    model = fit_request_model(_trace([1], [2]))
    with pytest.raises(InputError, match=r"field 'sampler': unknown sampler 'copula'.*joint"):
        model.sample(1, seed=0, sampler="copula")


def test_resampled_requests_are_whole_served_rows_of_the_trace(correlated):
    trace = correlated.assign(
        status=np.where(correlated.index % 2, "ok", "failed"), temperature=None, llm="a"
    )
    drawn = resample_trace(trace, 5000, seed=1)
    assert list(drawn) == fit_request_model(trace).parameters == ["input_tokens", "output_tokens"]
    assert drawn.dtypes.tolist() == [np.int32, np.int32]
    rows = set(map(tuple, trace.loc[trace["status"] == "ok", list(drawn)].to_numpy().tolist()))
    assert set(map(tuple, drawn.to_numpy().tolist())) <= rows
    # 5,000 of 10,000 rows, each as likely: about 39% of the trace's are met.
    n_different = len(drawn.drop_duplicates())
    assert 0.35 < n_different / len(rows) < 0.43
    pd.testing.assert_frame_equal(drawn, resample_trace(trace, 5000, seed=1))
    assert not drawn.equals(resample_trace(trace, 5000, seed=2))


def test_a_saved_model_is_read_equal_and_draws_the_same(tmp_path):
    trace = _trace([1, 2, 3], [4, 4, 5], temperature=[None, 0.1, 0.7], top_k=[None, 5, 5])
    trace["is_greedy"] = pd.array([True, None, False], "boolean")
    model = fit_request_model(trace)
    model.save(tmp_path / "requests.parquet", {})
    again = load_request_model(tmp_path)
    pd.testing.assert_frame_equal(again.frame, model.frame)
    pd.testing.assert_frame_equal(again.sample(99, seed=0), model.sample(99, seed=0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"probability": [0.5, np.nan]}, "line 2, field 'probability': a value of nan"),
        ({"probability": [-0.5, 1.5]}, "line 1, field 'probability': a value of -0.5"),
        ({"probability": [1.0, np.inf]}, "line 2, field 'probability': a value of inf"),
        ({"probability": [0.0, 0.0]}, "field 'probability': all weights are zero"),
        ({"count": [1, 2]}, "the joint bins have two weights"),
        ({"beam_width": [1, 2]}, "field 'beam_width': unknown column"),
        ({"input_token_count": [1, 2]}, "field 'input_tokens': column twice"),
        ({"input_tokens": [1, 0]}, "line 2, field 'input_tokens': a value of 0"),
        ({"input_tokens": [1.5, 2]}, "line 1, field 'input_tokens': a value of 1.5"),
        ({"input_tokens": ["many", "2"]}, "line 1, field 'input_tokens': a value of many"),
        ({"temperature": [0.0, -1.0]}, "line 2, field 'temperature': a value of -1.0"),
        ({"is_greedy": ["yes", "no"]}, "line 1, field 'is_greedy': a value of yes"),
    ],
)
def test_files_that_are_no_histogram_are_refused(tmp_path, change, message):
    frame = pd.DataFrame({"input_tokens": [1, 2], "probability": [0.5, 0.5]}).assign(**change)
    frame.to_parquet(tmp_path / "h.parquet")
    with pytest.raises(InputError, match=rf"h\.parquet.*{message}"):
        load_request_model(tmp_path / "h.parquet")


def test_a_file_without_parameters_or_of_another_kind_is_refused(tmp_path):
    pd.DataFrame({"count": [1]}).to_parquet(tmp_path / "bare.parquet")
    with pytest.raises(InputError, match="no parameter"):
        load_request_model(tmp_path / "bare.parquet")
    (tmp_path / "text.parquet").write_text("input_tokens,count\n1,1\n")
    with pytest.raises(InputError, match=r"text\.parquet: cannot be read"):
        load_request_model(tmp_path / "text.parquet")


def test_the_published_tgis_model(tmp_path, mirror):
    source = mirror / "tgis" / "tgis_hist64.parquet"
    model = load_request_model(source)
    names = ["batch_size", "is_greedy", "temperature", "top_k", "top_p"]
    assert model.parameters == ["input_tokens", "output_tokens", *names]
    published = pd.read_parquet(source)
    assert len(model.frame) == len(published) == 46_526
    assert model.frame["output_tokens"].equals(
        published["generated_token_count"].astype("int32").rename("output_tokens")
    )
    assert model.weights.sum() == pytest.approx(1, abs=1e-12)
    saved = tmp_path / "requests.parquet"
    model.save(saved, {})
    assert saved.stat().st_size <= 200_000
    pd.testing.assert_frame_equal(load_request_model(saved).frame, model.frame)
    drawn = model.sample(100_000, seed=0)
    for source_name, name in (("batch_size", "batch_size"), ("is_greedy", "is_greedy")):
        expected = published.groupby(source_name)["probability"].sum()
        assert drawn[name].value_counts(normalize=True).to_dict() == pytest.approx(
            expected.to_dict(), abs=0.005
        )
