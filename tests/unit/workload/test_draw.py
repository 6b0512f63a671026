"""Traces drawn from workloads: what the options choose, and the formats of other tools."""

import json

import numpy as np
import pandas as pd
import pytest

from sextant.base.errors import InputError
from sextant.trace.trace_format import TRACE_COLUMNS
from sextant.workload.draw import (
    ARRIVALS,
    ArrivalParameters,
    chosen_arrivals,
    draw_trace,
    open_workload,
    write_trace,
)
from sextant.workload.fit import WorkloadFiles, fit_workload
from sextant.workload.generators import Gamma
from sextant.workload.request_model import RequestModel

MODEL = RequestModel(
    pd.DataFrame({"input_tokens": [10, 90], "output_tokens": [5, 7], "count": [3, 1]})
)


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """An hour of two LLMs: one Poisson at 2 requests a second, one constant at 1."""
    rng = np.random.default_rng(3)
    bursty = np.cumsum(rng.exponential(0.5, 7000))
    steady = np.arange(3600) + 0.5
    of_both = [pd.DataFrame({"arrival_s": bursty[bursty < 3600], "llm": "a"})]
    of_both.append(pd.DataFrame({"arrival_s": steady, "llm": "b"}))
    frame = pd.concat(of_both).sort_values("arrival_s", ignore_index=True)
    frame = frame.assign(input_tokens=np.int32(20), output_tokens=np.int32(5), status="ok")
    path = tmp_path_factory.mktemp("draw") / "trace.parquet"
    frame["request_id"] = frame.index.astype(str)
    frame.reindex(columns=list(TRACE_COLUMNS)).astype({"service": "string"}).to_parquet(path)
    return path


@pytest.fixture(scope="module")
def workload(trace):
    folder = trace.parent / "workload"
    folder.mkdir()
    fit_workload(trace, WorkloadFiles.in_folder(folder))
    return folder


def test_requests_and_arrivals_are_drawn_apart_from_one_seed():
    drawn = draw_trace(MODEL.sample, Gamma(2.0, 0.5), seed=1, n=20_000)
    assert list(drawn) == list(TRACE_COLUMNS)
    assert drawn["input_tokens"].value_counts(normalize=True)[10] == pytest.approx(0.75, abs=0.02)
    gaps = np.diff(drawn["arrival_s"])
    assert gaps.mean() == pytest.approx(0.5, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(np.sqrt(2), rel=0.05)
    for neighbours in (drawn["input_tokens"][1:], drawn["input_tokens"][:-1]):
        assert abs(np.corrcoef(gaps, neighbours)[0, 1]) < 0.03
    again = draw_trace(MODEL.sample, Gamma(2.0, 0.5), seed=1, n=20_000)
    pd.testing.assert_frame_equal(drawn, again)


def test_fitted_arrivals_have_the_traces_rate_unless_another_is_given(workload):
    for given, rate_rps in (({}, 3.0), ({"rate_rps": 30.0}, 30.0)):
        times = chosen_arrivals("fitted", workload, ArrivalParameters(**given)).times(
            duration_s=300, seed=1
        )
        assert len(times) / 300 == pytest.approx(rate_rps, rel=0.1)


def test_a_replay_of_one_llm_has_exactly_its_arrivals(trace):
    replay = chosen_arrivals(
        "replay", None, ArrivalParameters(trace=trace, llm="b", time_factor=0.5)
    )
    drawn = draw_trace(MODEL.sample, replay, seed=0)
    assert drawn["arrival_s"].tolist() == (np.arange(3600) / 2).tolist()


def test_windows_mirror_one_llms_rate(trace):
    chosen = chosen_arrivals(
        "windows", None, ArrivalParameters(trace=trace, llm="a", time_factor=0.1)
    )
    drawn = draw_trace(MODEL.sample, chosen, seed=0)
    assert len(drawn) == pytest.approx(10 * 7200, rel=0.05)
    assert drawn["arrival_s"].max() < 3600
    with pytest.raises(InputError, match="--llm-in-trace and --service-in-trace"):
        chosen_arrivals("windows", None, ArrivalParameters(trace=trace)).times()


@pytest.mark.parametrize("name", ["no_lengths", "null_lengths"])
def test_a_model_without_lengths_is_no_workload(tmp_path, name):
    frame = MODEL.frame.astype({"input_tokens": "Int32"})
    frame = frame.drop(columns="input_tokens") if name == "no_lengths" else frame
    if name == "null_lengths":
        frame.loc[0, "input_tokens"] = None
    frame.to_parquet(tmp_path / "m.parquet")
    with pytest.raises(InputError, match=r"m\.parquet, field 'input_tokens'"):
        open_workload(tmp_path / "m.parquet")
    with pytest.raises(InputError, match=r"m\.parquet.*sextant ingest"):
        chosen_arrivals("replay", None, ArrivalParameters(trace=tmp_path / "m.parquet")).times()


@pytest.mark.parametrize(
    ("arrivals", "workload_name", "given", "said"),
    [
        *[("bursts", "", {}, "varying"), ("replay", "", {}, "--arrivals-from")],
        *(("fitted", name, {}, "--request-rate") for name in ("summarization", __file__)),
        ("gamma", None, {"alpha": 0.5}, "--request-rate"),
        # What the process would pass over.
        ("poisson", None, {"rate_rps": 1.0, "trace": "t.parquet"}, "--arrivals-from"),
        ("constant", None, {"rate_rps": 1.0, "alpha": 2.0}, "--burstiness"),
    ],
)
def test_what_a_process_lacks_or_does_not_know_is_said(arrivals, workload_name, given, said):
    with pytest.raises(InputError, match=said):
        chosen_arrivals(arrivals, workload_name, ArrivalParameters(**given))


def test_every_kind_of_arrivals_draws(trace, workload, tmp_path):
    (tmp_path / "chunk-0-trace.csv").write_text("0,0.5,1.0,Gamma,1.0,2.0\n")
    given = {
        "constant": {"rate_rps": 1.0},
        "poisson": {"rate_rps": 1.0},
        "gamma": {"rate_rps": 1.0, "alpha": 0.5},
        "varying": {"alpha": [1.0, 0.0, 0.0], "beta_s": [1.0, 0.0], "every": 200},
        "windows": {"llm": "a", "trace": trace},
        "replay": {"trace": trace},
    }
    for arrivals in ARRIVALS:
        chosen = chosen_arrivals(arrivals, workload, ArrivalParameters(**given.get(arrivals, {})))
        assert len(draw_trace(MODEL.sample, chosen, seed=0, n=50)) == 50, arrivals


SIZES = pd.DataFrame({"input_tokens": [1, 512, 513], "output_tokens": [7, 1, 30]}, dtype="int32")
TRACE = SIZES.assign(request_id=[*"abc"], arrival_s=[0.0, 0.0014, 12.5], status="ok")
TRACE = TRACE.reindex(columns=list(TRACE_COLUMNS))


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_mooncakes_lines_have_milliseconds_and_a_block_per_512_tokens(tmp_path):
    write_trace(TRACE, tmp_path / "t.jsonl", "mooncake")
    assert lines(tmp_path / "t.jsonl") == [
        {"timestamp": 0, "input_length": 1, "output_length": 7, "hash_ids": [0]},
        {"timestamp": 1, "input_length": 512, "output_length": 1, "hash_ids": [1]},
        {"timestamp": 12500, "input_length": 513, "output_length": 30, "hash_ids": [2, 3]},
    ]


def test_vllms_timed_trace_has_seconds_and_a_block_per_16_tokens(tmp_path):
    write_trace(TRACE, tmp_path / "t.jsonl", "vllm-timed-trace")
    got = lines(tmp_path / "t.jsonl")
    assert [line["timestamp"] for line in got] == [0.0, 0.0014, 12.5]
    assert [len(line["hash_ids"]) for line in got] == [1, 32, 33]


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_sextants_own_formats_keep_every_column(tmp_path, form):
    write_trace(TRACE, tmp_path / "t", form)
    read = {"parquet": pd.read_parquet, "csv": pd.read_csv}[form](tmp_path / "t")
    assert list(read) == list(TRACE)
    known = TRACE.dropna(axis="columns")
    pd.testing.assert_frame_equal(read[known.columns], known, check_dtype=False)
    assert read.drop(columns=known.columns).isna().all(axis=None)


def test_what_cannot_be_written_leaves_no_file(tmp_path):
    with pytest.raises(InputError, match="vllm-timed-trace"):
        write_trace(TRACE, tmp_path / "t", "jsonl")
    assert not list(tmp_path.iterdir())
