"""Workloads without a trace: what is written is the model, cut to the caps."""

import pandas as pd
import pytest

from sextant.base.files import read_json
from sextant.workload.fit import cap_model, write_use_case, write_workload
from sextant.workload.published import load_request_model, load_use_case, use_case_names
from sextant.workload.request_model import RequestModel
from sextant.workload.trace_arrivals import load_arrivals

MODEL = RequestModel(
    pd.DataFrame(
        {"input_tokens": [10, 50, 90], "output_tokens": [5, 5, 5], "probability": [0.5, 0.3, 0.2]}
    )
)
FILES = ("requests.parquet", "arrivals.json", "validation.json")


def files(folder):
    return [folder / name for name in FILES]


def test_a_cap_merges_the_bins_it_makes_equal_and_counts_whom_it_shortened():
    capped, shares = cap_model(MODEL, {"input_tokens": 40, "output_tokens": None})
    assert capped.frame.to_dict("list") == {
        "input_tokens": [10, 40],
        "output_tokens": [5, 5],
        "probability": [0.5, 0.5],
    }
    assert shares == {"input_tokens": 0.5, "output_tokens": 0.0}


def test_a_workload_is_read_as_it_was_written_and_says_why_it_has_no_arrivals(tmp_path):
    write_workload(MODEL, *files(tmp_path), origin={"published": "x"}, max_input_tokens=60)
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
        write_use_case(
            name, *files(tmp_path / folder), max_input_tokens=2048, max_output_tokens=512
        )
    for file in FILES[:2]:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    drawn = load_request_model(tmp_path / "a").sample(10_000, seed=1)
    known = load_use_case(name).model.frame
    assert drawn["input_tokens"].max() <= min(2048, known["input_tokens"].max())
    assert drawn["output_tokens"].between(1, 512).all()
