"""Workloads without a trace: use cases have the published figures; what is written and read."""

import numpy as np
import pandas as pd
import pytest

from sextant.base.errors import InputError
from sextant.base.files import read_json
from sextant.workload.fit import WorkloadFiles, cap_model, write_use_case, write_workload
from sextant.workload.published import load_request_model, load_use_case, use_case_names
from sextant.workload.request_model import LengthCaps, RequestModel
from sextant.workload.trace_arrivals import load_arrivals

NAMES = ["text-generation", "question-answering", "summarization", "conversation"]


def mean(name: str, parameter: str) -> float:
    model = load_use_case(name)[0]
    return float(np.average(model.frame[parameter], weights=model.weights))


def quantile(name: str, parameter: str, share: float) -> float:
    return float(load_use_case(name)[0].sample(200_000, seed=0)[parameter].quantile(share))


def test_means_are_those_published():
    # vLLM, Fig. 11: 19.31 and 58.45 tokens; ELI5, Table 1: 42.2 and 130.6 words of 4/3 tokens.
    assert mean("text-generation", "input_tokens") == pytest.approx(19.31, rel=0.01)
    assert mean("text-generation", "output_tokens") == pytest.approx(58.45, rel=0.01)
    assert mean("question-answering", "input_tokens") == pytest.approx(42.2 * 4 / 3, rel=0.01)
    assert mean("question-answering", "output_tokens") == pytest.approx(130.6 * 4 / 3, rel=0.01)


@pytest.mark.parametrize(
    ("name", "parameter", "median", "p90"),
    [
        ("summarization", "input_tokens", 7059, 12985),
        ("summarization", "output_tokens", 208, 371),
        ("conversation", "input_tokens", 1730, 5696),
        ("conversation", "output_tokens", 415, 834),
    ],
)
def test_quantiles_are_those_published(name, parameter, median, p90):
    # Sarathi-Serve, Table 2; a bin of 1/64 of the requests is as close as it gets.
    assert quantile(name, parameter, 0.5) == pytest.approx(median, rel=0.025)
    assert quantile(name, parameter, 0.9) == pytest.approx(p90, rel=0.025)


@pytest.mark.parametrize("name", NAMES)
def test_a_use_case_is_a_small_model_with_sources(name):
    model, sources = load_use_case(name)
    assert sources and all(len(text) > 40 for text in sources)
    assert model.parameters == ["input_tokens", "output_tokens"]
    assert 1000 < len(model.frame) <= 64 * 64
    assert model.weights.sum() == pytest.approx(1)
    assert model.frame[["input_tokens", "output_tokens"]].min().min() >= 1
    assert model.frame.equals(load_use_case(name)[0].frame)


def test_an_unknown_name_is_an_error():
    with pytest.raises(InputError, match=r"no use case 'chat'.*use one of text-generation"):
        load_use_case("chat")


MODEL = RequestModel(
    pd.DataFrame(
        {"input_tokens": [10, 50, 90], "output_tokens": [5, 5, 5], "probability": [0.5, 0.3, 0.2]}
    )
)
FILES = ("requests.parquet", "arrivals.json", "validation.json")


def test_a_cap_merges_the_bins_it_makes_equal_and_counts_whom_it_shortened():
    capped, shares = cap_model(MODEL, LengthCaps(max_input_tokens=40))
    assert capped.frame.to_dict("list") == {
        "input_tokens": [10, 40],
        "output_tokens": [5, 5],
        "probability": [0.5, 0.5],
    }
    assert shares == {"input_tokens": 0.5, "output_tokens": 0.0}


def test_a_workload_is_read_as_it_was_written_and_says_why_it_has_no_arrivals(tmp_path):
    files, caps = WorkloadFiles.in_folder(tmp_path), LengthCaps(max_input_tokens=60)
    write_workload(MODEL, files, origin={"published": "x"}, caps=caps)
    model = load_request_model(tmp_path)
    assert model.frame["input_tokens"].tolist() == [10, 50, 60]
    arrivals = load_arrivals(tmp_path)
    assert arrivals.alpha is None and "without times" in arrivals.reason
    validation = read_json(tmp_path / "validation.json")
    assert validation["clipped_fraction"]["input_tokens"] == pytest.approx(0.2)
    assert validation["provenance"]["fit"]["published"] == "x"


@pytest.mark.parametrize("name", use_case_names())
def test_a_use_case_becomes_a_workload_of_the_same_bytes_each_time(tmp_path, name):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        caps = LengthCaps(max_input_tokens=2048, max_output_tokens=512)
        write_use_case(name, WorkloadFiles.in_folder(tmp_path / folder), caps=caps)
    for file in FILES[:2]:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    drawn = load_request_model(tmp_path / "a").sample(10_000, seed=1)
    known = load_use_case(name)[0].frame
    assert drawn["input_tokens"].max() <= min(2048, known["input_tokens"].max())
    assert drawn["output_tokens"].between(1, 512).all()
