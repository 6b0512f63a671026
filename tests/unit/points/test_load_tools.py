"""Results of other load clients as characterizations. vLLM's is one that it wrote (0.32)."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from sextant.base.errors import InputError
from sextant.cli.app import app
from sextant.points.folder import load_folder
from sextant.points.frame import LATENCY_COLUMNS
from sextant.points.load_tools import MeasuredSetup, import_load_tool
from support import ROOT

LLM = "Qwen/Qwen3-8B"
SERVED = MeasuredSetup("1xH100-80GB", LLM, "vllm", "0.32.0")

VLLM = {
    "date": "20261123-051227", "backend": "openai", "model_id": "mock", "num_prompts": 12,
    "request_rate": "inf", "max_concurrency": 4, "duration": 3.978685109000253, "completed": 12,
    "failed": 0, "total_input_tokens": 1536, "total_output_tokens": 768,
    "request_throughput": 3.016071810471905, "output_throughput": 193.0285958702019,
    "mean_ttft_ms": 60.93031091669824, "median_ttft_ms": 52.12260000007518,
    "p99_ttft_ms": 80.7881805204579, "mean_tpot_ms": 20.03749234523716,
    "median_tpot_ms": 20.010719460313137, "p99_tpot_ms": 20.145834573328422,
    "mean_itl_ms": 20.03749234523716, "median_itl_ms": 19.999902000108705,
    "p99_itl_ms": 26.795256849982252,
}  # fmt: skip


def told(value: float, *, p99: float | None = None) -> dict:
    """Return a distribution as guidellm has it, of good and of other requests."""
    block = {"mean": value, "median": value, "min": value, "max": value}
    block |= {"percentiles": {"p90": value, "p99": p99 or value}}
    return {"successful": block, "errored": {"mean": 0.0, "median": 0.0, "percentiles": {}}}


def guidellm(strategy: dict) -> dict:
    return {
        "start_time": 1780000000.0,
        "config": {"strategy": strategy, "backend": {"model": LLM}},
        "metrics": {
            "request_totals": {"successful": 30, "errored": 2, "incomplete": 1, "total": 33},
            "requests_per_second": told(1.5),
            "request_latency": told(2.0, p99=3.0),  # seconds
            "time_to_first_token_ms": told(120.0),
            "inter_token_latency_ms": told(11.0),
            "prompt_token_count": told(512.0),
            "output_token_count": told(256.0),
            "output_tokens_per_second": told(384.0),
        },
    }


GUIDELLM = {
    "metadata": {"version": 1, "guidellm_version": "0.6.0"},
    "benchmarks": [
        guidellm({"type_": "synchronous"}),
        guidellm({"type_": "concurrent", "streams": 8}),
        guidellm({"type_": "constant", "rate": 2.5}),
        guidellm({"type_": "throughput", "max_concurrency": None}),
    ],
}

AIPERF = {
    "schema_version": "1.5",
    "aiperf_version": "0.13.0",
    "start_time": "2026-05-01T10:00:00+00:00",
    "input_config": {"endpoint": {"model_names": [LLM]}, "phases": {"a": {"concurrency": 16}}},
    "request_count": {"unit": "requests", "avg": 20.0},
    "request_throughput": {"unit": "requests/sec", "avg": 1.45},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 290.0},
    "input_sequence_length": {"unit": "tokens", "avg": 550.0},
    "output_sequence_length": {"unit": "tokens", "avg": 200.0},
    "request_latency": {"unit": "sec", "avg": 2.62, "p50": 2.5, "p90": 3.1, "p99": 3.3},
    "time_to_first_token": {"unit": "ms", "avg": 80.0, "p50": 75.0, "p99": 120.0},
    "inter_token_latency": {"unit": "ms", "avg": 12.0, "p50": 11.5, "p99": 14.0},
}


def imported(tool: str, folder: Path, *results: dict, served: MeasuredSetup = SERVED):
    files = []
    for number, result in enumerate(results):
        files.append(folder / f"{number}.json")
        files[-1].write_text(json.dumps(result))
    out = folder / "out"
    counts = import_load_tool(tool, files, out, served, str(ROOT / "resources" / "llms"))
    points = pd.read_csv(out / "points.csv")
    assert len(load_folder(out).points) == len(points)  # answers can rest on it
    return str(counts), points


def test_a_result_of_vllm_bench(tmp_path):
    counts, points = imported("vllm-bench", tmp_path, VLLM)
    assert counts.startswith("1 points of 1 measurements")
    (point,) = points.to_dict("records")
    for name in ("mean_ttft_ms", "median_tpot_ms", "p99_itl_ms"):
        assert point[name] == VLLM[name]
    assert (point["users"], point["input_tokens"], point["output_tokens"]) == (4, 128, 64)
    assert (point["llm_id"], point["gpu_profile_id"]) == ("Qwen__Qwen3-8B", "1xH100-80GB")
    assert (point["n_ok"], point["n_failed"], point["measured_on"]) == (12, 0, "2026-11-23")
    assert point["run_id"] == "vllm-bench of unknown version: 0.json"
    # What it does not tell is missing, not zero.
    assert "p90_ttft_ms" not in points and "mean_e2e_ms" not in points
    known = load_folder(tmp_path / "out").descriptions[0]
    assert (known.load, known.defaults["engine_version"]) == ("closed_loop", "0.32.0")


def test_a_rate_and_what_was_sent_at_once(tmp_path):
    at_rate, at_once = (VLLM | {"max_concurrency": None} | it for it in ({"request_rate": 2.5}, {}))
    counts, points = imported("vllm-bench", tmp_path, at_rate, at_once)
    left_out = "1 left out, with neither users nor a rate (everything was sent at once)"
    assert counts.startswith(f"1 points of 2 measurements; {left_out}")
    assert points["request_rate_rps"].tolist() == [2.5] and "users" not in points
    assert load_folder(tmp_path / "out").descriptions[0].load == "rate"
    with pytest.raises(InputError, match="no result has users or a rate"):
        imported("vllm-bench", tmp_path, at_once)


def test_a_sweep_of_guidellm(tmp_path):
    counts, points = imported("guidellm", tmp_path, GUIDELLM, served=MeasuredSetup("2xH100-80GB"))
    assert counts.startswith("3 points of 4 measurements; 1 left out")
    by_users = points.set_index("run_id").sort_index()
    assert by_users.index[0] == "guidellm 0.6.0: 0.json 1"
    assert by_users["users"].fillna(0).tolist() == [1, 8, 0]
    assert by_users["request_rate_rps"].tolist() == [1.5, 1.5, 2.5]
    first = by_users.iloc[0]
    # Its ITL is a mean of each request, its latency in seconds.
    assert (first["median_tpot_ms"], first["p99_e2e_ms"]) == (11, 3000)
    assert "median_itl_ms" not in points
    assert (first["n_ok"], first["n_failed"]) == (30, 2)


def test_a_result_of_aiperf(tmp_path):
    counts, points = imported("aiperf", tmp_path, AIPERF, served=MeasuredSetup("1xH100-80GB"))
    (point,) = points.to_dict("records")
    assert counts.startswith("1 points of 1 measurements")
    assert point["run_id"] == "aiperf 0.13.0: 0.json"
    assert (point["users"], point["request_rate_rps"], point["n_failed"]) == (16, 1.45, 0)
    assert (point["mean_e2e_ms"], point["median_ttft_ms"]) == (2620, 75)
    assert (point["p99_tpot_ms"], point["measured_on"]) == (14, "2026-05-01")
    other = AIPERF | {"time_to_first_token": {"unit": "fortnights", "avg": 1}}
    with pytest.raises(
        InputError, match=r"0\.json, field 'time_to_first_token': unknown unit 'fortnights'"
    ):
        imported("aiperf", tmp_path, other)
    two = AIPERF | {"input_config": {"a": {"concurrency": 1}, "b": {"concurrency": 2}}}
    with pytest.raises(InputError, match="several values of concurrency"):
        imported("aiperf", tmp_path, two)


@pytest.mark.parametrize("tool", ["vllm-bench", "guidellm", "aiperf"])
@pytest.mark.parametrize("content", [{}, [], 3, {"benchmarks": [{}], "input_config": {}}])
def test_a_file_of_another_tool_is_named(tmp_path, tool, content):
    with pytest.raises(InputError, match=rf"0\.json: was not written by {tool}"):
        imported(tool, tmp_path, content)


HUGE = 10**400


@pytest.mark.parametrize(
    ("tool", "result", "said"),
    [
        ("vllm-bench", VLLM | {"date": "yesterday"}, "'date': 'yesterday' is no date. Fix: "),
        ("vllm-bench", VLLM | {"request_rate": "fast"}, "'request_rate_rps': 'fast' should be"),
        ("vllm-bench", VLLM | {"request_rate": HUGE}, "'request_rate_rps': 1"),
        ("vllm-bench", VLLM | {"max_concurrency": 10**30}, "'users': 1"),
        ("vllm-bench", VLLM | {"mean_ttft_ms": -1.0}, "'mean_ttft_ms': -1.0 should be"),
        ("vllm-bench", VLLM | {"median_ttft_ms": HUGE}, "'median_ttft_ms': 1"),
        ("vllm-bench", VLLM | {"median_itl_ms": float("inf")}, "'median_itl_ms': inf should be"),
        ("vllm-bench", VLLM | {"completed": []}, "'n_ok': .* should be a valid integer"),
        ("vllm-bench", VLLM | {"completed": -3}, "'input_tokens': -512.0 should be"),
        ("vllm-bench", VLLM | {"mean_e2el_ms": 10.0}, "'mean_e2e_ms': 10 is below the 60.9"),
        ("vllm-bench", VLLM | {"p90_ttft_ms": 99.0}, "'p99_ttft_ms': 80.7.* below the 99"),
        ("vllm-bench", VLLM | {"model_id": ["a", "b"]}, "does not name the LLM"),
        ("guidellm", GUIDELLM | {"benchmarks": []}, "a result of guidellm without any benchmark"),
        ("guidellm", {"benchmarks": [guidellm({"type_": "concurrent", "streams": -8})]}, "'users'"),
        ("guidellm", {"benchmarks": [GUIDELLM["benchmarks"][0] | {"start_time": 1e300}]},
         "'start_time': '1e\\+300' is no date"),
        ("aiperf", AIPERF | {"request_count": {"avg": float("nan")}}, ""),
        ("aiperf", AIPERF | {"start_time": "tomorrow"}, "'start_time': 'tomorrow' is no date"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_one_error(tmp_path, tool, result, said):
    served = MeasuredSetup("1xH100-80GB")
    if not said:
        imported(tool, tmp_path, result, served=served)
        return
    with pytest.raises(InputError) as error:
        imported(tool, tmp_path, result, served=served)
    assert re.search(said, str(error.value)) and "0.json" in str(error.value)
    assert ". Fix: " in str(error.value) and not (tmp_path / "out").exists()


def test_a_run_in_which_all_failed_has_no_latency_and_meets_nothing(tmp_path):
    zero = {name: 0.0 for name in VLLM if name.endswith("_ms")} | {"request_throughput": 0.0}
    failed = VLLM | zero | {"completed": 0, "failed": 12, "max_concurrency": 64}
    imported("vllm-bench", tmp_path, VLLM, failed)
    points = load_folder(tmp_path / "out").points.set_index("users")
    assert points.loc[64, LATENCY_COLUMNS].isna().all()
    assert points.loc[64, ["n_ok", "n_failed"]].tolist() == [0, 12]
    command = ["recommend", "--source", str(tmp_path / "out"), "--llm", "Qwen__Qwen3-8B"]
    command += ["--users", "64", "--tpot-ms", "50", "--ttft-ms", "1000"]
    done = CliRunner().invoke(app, command)
    assert "16 replicas × 1xH100-80GB" in done.output
    assert "1xH100-80GB with 64 users: 12 of 12 requests failed" in done.output


def test_what_no_slo_can_rest_on_is_said_by_the_import(tmp_path):
    """Each was imported without a word, and missed by the answer later."""
    nan, failed = VLLM | {"median_ttft_ms": float("nan")}, {"completed": 80, "failed": 20}
    few = "1 points of 1 measurements; 1 doubtful, see the column doubt (few requests 1)"
    assert imported("vllm-bench", tmp_path, VLLM)[0] == few
    none = nan | {"completed": 0, "failed": 12}
    said = imported("vllm-bench", tmp_path, VLLM, nan, VLLM | failed, none)[0]
    assert said == (
        "4 points of 4 measurements; 2 with more than 1 % of the requests failed (up to 100 %), "
        "which meet no SLO unless --max-failed allows it; "
        "4 doubtful, see the column doubt (few requests 2, failures 2)"
    )


def test_the_llm_that_a_file_names_needs_no_option(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for tool, result in (("vllm-bench", VLLM | {"model_id": LLM}), ("guidellm", GUIDELLM)):
        Path(f"{tool}.json").write_text(json.dumps(result))
        command = ["import-characterization", tool, "--from", f"{tool}.json", "--out", tool]
        done = CliRunner().invoke(app, [*command, "--gpu-profile", "1xH100-80GB"])
        assert done.exit_code == 0, done.exception
        assert set(load_folder(Path(tool)).llms) == {"Qwen__Qwen3-8B"}


def test_what_the_command_needs(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps(VLLM | {"model_id": None}))
    command = ["import-characterization", "vllm-bench", "--from", str(tmp_path / "x.json")]
    command += ["--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2 and "--gpu-profile" in done.output
    for more, said in (
        (["--gpu-profile", "1xH100-80GB"], "does not name the LLM"),
        (["--gpu-profile", "1xnothing", "--llm", LLM], "unknown GPU profile"),
        (["--gpu-profile", "1xH100-80GB", "--llm", "nobody/x"], "no config.json of nobody/x"),
    ):
        done = CliRunner().invoke(app, [*command, *more])
        assert isinstance(done.exception, InputError) and said in str(done.exception)


def test_an_import_over_an_earlier_one_loses_no_points(tmp_path):
    out = tmp_path / "out"
    imported("vllm-bench", tmp_path, VLLM)
    again, _ = imported("vllm-bench", tmp_path, VLLM)
    assert "replaced" not in again
    (tmp_path / "later.json").write_text(json.dumps(VLLM | {"max_concurrency": 8}))
    said = import_load_tool("vllm-bench", [tmp_path / "later.json"], out, SERVED)
    assert "1 earlier point of other files replaced" in said
    other = MeasuredSetup("2xH100-80GB", LLM, "vllm", "0.32.0")
    before = (out / "points.csv").read_bytes()
    with pytest.raises(InputError, match=r"1 point would be lost.*on 1xH100-80GB.*another folder"):
        imported("vllm-bench", tmp_path, VLLM, served=other)
    assert (out / "points.csv").read_bytes() == before
