"""A workload from a trace: caps, fidelity, bytes that depend on data only, the shipped one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import sextant.base.files
from sextant.base.errors import InputError
from sextant.base.files import read_json
from sextant.trace.job import ingest_trace
from sextant.workload.draw import draw_trace
from sextant.workload.fit import WorkloadFiles, fit_workload
from sextant.workload.published import load_request_model
from sextant.workload.request_model import LengthCaps
from sextant.workload.trace_arrivals import fitted_arrivals, load_arrivals

RESOURCES = Path(__file__).parents[3] / "resources"
SHIPPED = RESOURCES / "workloads" / "azure-2023-conv"
SAMPLE = RESOURCES / "traces" / "azure-2023-conv-sample.csv"
FILES = ("requests.parquet", "arrivals.json", "validation.json")


def _fit(trace: Path, folder: Path, **options: Any) -> dict[str, Any]:
    return fit_workload(trace, WorkloadFiles.in_folder(folder), **options)


def _ingest(source: Path, trace_format: str, folder: Path) -> Path:
    names = ("trace.parquet", "rejected.parquet", "report.json")
    ingest_trace(source, trace_format, *(folder / name for name in names))
    return folder / names[0]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of 1,000 requests, every tenth failed: input 1..1000, output 2·input up to 900."""
    number = np.arange(1, 1001)
    arrival_s = np.cumsum(np.random.default_rng(0).exponential(2.0, 1000))
    frame = pd.DataFrame({"arrival_s": arrival_s, "input_tokens": number})
    frame["output_tokens"] = np.where(number % 10 == 0, 0, np.minimum(2 * number, 900))
    frame.to_csv(tmp_path / "trace.csv", index=False)
    return _ingest(tmp_path / "trace.csv", "sextant", tmp_path)


def test_figures_of_a_trace_known_by_hand(tmp_path, trace):
    figures = _fit(trace, tmp_path / "w", n_bins=50, seed=3)
    assert read_json(tmp_path / "w" / "validation.json") == figures
    assert (figures["n_requests"], figures["n_failed"], figures["seed"]) == (900, 100, 3)
    assert (figures["n_clipped_input"], figures["n_clipped_output"]) == (0, 0)
    # 900 has more than its share of the outputs and a bin of its own; the 405 other values
    # fit 49 bins by nines.
    assert figures["n_bins"] == {"input_tokens": 50, "output_tokens": 46}
    # 900 distinct inputs in 50 bins of 18: the centre stands for its 18, so the model lags or
    # leads by at most half of 18/900.
    assert 0.009 <= figures["ks"]["input_tokens"] <= 0.0112
    spearman = figures["spearman_trace"]["input_tokens"]["output_tokens"]
    assert 0.8 < spearman < 1
    modelled = figures["spearman_model"]["input_tokens"]["output_tokens"]
    assert modelled == pytest.approx(spearman, abs=0.01)
    difference = figures["spearman_difference"]
    assert difference == pytest.approx({"joint": abs(modelled - spearman), "independent": spearman})
    # Centres of runs of equally spaced values are their means, but for rounding.
    assert figures["mean_ratio"] == pytest.approx(
        {"input_tokens": 1.0, "output_tokens": 1.0}, abs=0.002
    )
    # All 1,000 arrivals make gaps, the failed ones too.
    arrivals = load_arrivals(tmp_path / "w")
    assert arrivals.n_gaps == 999
    assert arrivals.rate_rps == pytest.approx(0.5, rel=0.1)
    assert figures["ks_gaps"] < 0.04


def test_caps_clip_and_count(tmp_path, trace):
    figures = _fit(trace, tmp_path, caps=LengthCaps(max_input_tokens=600, max_output_tokens=400))
    # Of 601..1000 there are 400, 40 of them failed; output above 400 begins at input 201.
    assert (figures["n_clipped_input"], figures["n_clipped_output"]) == (360, 720)
    frame = load_request_model(tmp_path).frame
    assert frame["input_tokens"].max() == 600 and frame["output_tokens"].max() == 400
    assert frame.loc[frame["input_tokens"] == 600, "count"].sum() == 360
    with pytest.raises(InputError, match="field 'max_output_tokens': a cap of 0"):
        LengthCaps(max_output_tokens=0)


def test_model_files_do_not_change_with_the_code(tmp_path, trace, monkeypatch):
    _fit(trace, tmp_path / "one")
    monkeypatch.setattr(sextant.base.files, "git_commit", lambda: "another-commit")
    monkeypatch.setattr(sextant.base.files, "__version__", "99.9")
    again = _ingest(tmp_path / "trace.csv", "sextant", tmp_path / "again")
    assert again.read_bytes() != trace.read_bytes()
    figures = _fit(again, tmp_path / "two")
    for name in FILES[:2]:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert figures["provenance"]["git_commit"] == "another-commit"


def test_a_trace_with_nulls_caps_and_a_coarse_clock_is_fitted(tmp_path):
    rng = np.random.default_rng(0)
    # Hundredths of a second: some stamps are equal.
    frame = pd.DataFrame({"arrival_s": np.round(np.cumsum(rng.gamma(0.6, 0.5, 3000)), 2)})
    frame["input_tokens"], frame["output_tokens"] = rng.integers(1, (500, 400), (3000, 2)).T
    frame.loc[::9, "output_tokens"] = 0
    heat = rng.integers(0, 9, 3000) / 4
    frame["temperature"] = np.where(rng.random(3000) < 0.2, np.nan, heat)
    frame.to_csv(tmp_path / "t.csv", index=False)
    trace = _ingest(tmp_path / "t.csv", "sextant", tmp_path)
    caps = LengthCaps(max_input_tokens=450, max_output_tokens=300)
    figures = _fit(trace, tmp_path, caps=caps)
    model = load_arrivals(tmp_path)
    # The clock is coarse, so that the fit is not tested.
    assert (model.reason, model.ks) == (None, None)
    assert model.clock_step_s == pytest.approx(0.01)
    times = fitted_arrivals(tmp_path, "replay").times()
    late_s = times - (frame["arrival_s"] - frame["arrival_s"].iloc[0])
    assert late_s.min() > -1e-9 and 0.009 < late_s.max() < 0.01 + 1e-9
    # By pandas: the rank correlation uses the rows where both are known.
    served = frame[frame["output_tokens"] > 0]
    names = ["input_tokens", "output_tokens", "temperature"]
    expected = served[names].clip(upper=[450, 300, np.inf], axis=1).corr("spearman")
    found = pd.DataFrame(figures["spearman_trace"]).loc[names, names]
    pd.testing.assert_frame_equal(found.astype(float), expected)


def test_trace_too_short_for_arrivals_still_gives_requests(tmp_path):
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n0,5,6\n1,7,8\n")
    trace = _ingest(tmp_path / "t.csv", "sextant", tmp_path)
    figures = _fit(trace, tmp_path)
    assert figures["ks_gaps"] is None
    assert "too few" in json.loads((tmp_path / "arrivals.json").read_text())["reason"]
    assert load_request_model(tmp_path).frame["count"].tolist() == [1, 1]


def test_parameters_with_nulls_and_truth_values_pass_through_files(tmp_path):
    header = "arrival_s,input_tokens,output_tokens,is_greedy,temperature,top_k,top_p\n"
    cells = [("true", "", ""), ("false", "0.7", "50"), ("", "0.7", ""), ("false", "1.0", "50")]
    rows = "".join(f"{n},{n + 1},9,{','.join(cells[n % 4])},\n" for n in range(400))
    (tmp_path / "t.csv").write_text(header + rows)
    figures = _fit(_ingest(tmp_path / "t.csv", "sextant", tmp_path), tmp_path)
    # top_p is null throughout: nothing is modelled of it.
    assert list(figures["ks"]) == header.split(",")[1:-1]
    assert [figures["ks"][name] for name in ("is_greedy", "temperature", "top_k")] == [0.0] * 3
    assert figures["spearman_trace"]["top_k"]["input_tokens"] is None
    drawn = load_request_model(tmp_path).sample(4000, seed=0)
    assert drawn["is_greedy"].dtype == "boolean" and drawn["top_k"].dtype == "Int32"
    greedy = drawn[drawn["is_greedy"].fillna(False).astype(bool)]
    assert len(greedy) == pytest.approx(1000, abs=120)
    assert greedy[["temperature", "top_k"]].isna().all(axis=None)


def sample_trace(workload, n, seed, arrivals="fitted"):
    arrivals = fitted_arrivals(workload, arrivals)
    return draw_trace(load_request_model(workload).sample, arrivals, n=n, seed=seed)


def test_shipped_sample_comes_from_the_shipped_workload(tmp_path):
    again = tmp_path / "sample.csv"
    sample_trace(SHIPPED, 2000, 0, "gamma").to_csv(again, index=False)
    assert again.read_bytes() == SAMPLE.read_bytes()
    trace = _ingest(SAMPLE, "sextant", tmp_path)
    assert len(pd.read_parquet(trace)) == 2000
