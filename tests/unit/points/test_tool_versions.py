"""Results of load tools by version. The files in tests/tool_results are as the tools wrote them.

They are shortened: metrics that nobody reads and most requests are left out.
"""

import json
from copy import deepcopy
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from sextant.base.errors import InputError
from sextant.base.sheets import read_yaml, write_yaml
from sextant.cli.app import app
from sextant.points.folder import load_folder
from sextant.points.load_tools import TOOLS, MeasuredSetup, import_load_tool
from sextant.points.tool_points import doubt_kinds
from sextant.points.tool_run import DOUBTS
from support import ROOT

FILES = ROOT / "tests" / "tool_results"
LLM = "meta-llama/Llama-3.1-8B-Instruct"


def imported(tool, folder, *files, llm=None):
    """Return the counts and the points of files, or of contents, of a tool."""
    paths = []
    for number, file in enumerate(files):
        if not isinstance(file, Path):
            path = folder / f"{number}.json"
            path.write_text(file if isinstance(file, str) else json.dumps(file))
            file = path
        paths.append(file)
    served = MeasuredSetup("1xH100-80GB", llm, "vllm", "0.19.0")
    counts = import_load_tool(tool, paths, folder / "o", served, str(ROOT / "resources" / "llms"))
    points = pd.read_csv(folder / "o" / "points.csv")
    assert len(load_folder(folder / "o").points) == len(points)
    doubts = points["doubt"].dropna() if "doubt" in points else ()
    assert {kind for doubt in doubts for kind in doubt_kinds(doubt)} <= {*DOUBTS}
    return counts, points


def content(name):
    path = FILES / name
    return read_yaml(path) if path.suffix == ".yaml" else json.loads(path.read_text())


def point(tool, folder, *files, llm=None):
    (row,) = imported(tool, folder, *files, llm=llm)[1].to_dict("records")
    return row


# --- AIPerf


def test_aiperf_0_13_names_the_llm_in_models_and_the_load_in_phases(tmp_path):
    users = point("aiperf", tmp_path, FILES / "aiperf-0.13.0-users.json")
    assert (users["llm_id"], users["users"]) == (LLM.replace("/", "__"), 8)
    assert (users["n_ok"], users["n_failed"], users["output_tokens"]) == (60, 0, 20)
    assert users["median_tpot_ms"] == pytest.approx(5.064213)
    assert users["p99_itl_ms"] == pytest.approx(13.25311)  # of chunks, each of which is a token
    assert "doubt" not in users


def test_aiperf_0_13_at_a_rate_without_its_warm_up(tmp_path):
    rate = point("aiperf", tmp_path, FILES / "aiperf-0.13.0-rate.json")
    assert rate["request_rate_rps"] == 20 and "users" not in rate
    assert rate["doubt"] == "even arrivals (requests at random wait longer)"


def test_aiperf_that_was_interrupted_says_so(tmp_path):
    row = point("aiperf", tmp_path, FILES / "aiperf-0.13.0-interrupted.json")
    assert (row["users"], row["n_ok"]) == (2, 90)
    assert row["doubt"] == "interrupted (Run cancelled before all records were processed)"
    cut = content("aiperf-0.13.0-interrupted.json")
    # Nothing had been answered: no figure at all.
    names = ("models", "phases")
    config = {name: cut["input_config"][name] for name in names}
    none = {"input_config": config, "was_cancelled": True, "is_complete": False}
    row = point("aiperf", tmp_path, none)
    assert row["users"] == 2 and not {"n_ok", "median_ttft_ms"} & row.keys()
    assert row["doubt"] == "interrupted (the run was cancelled)"


def test_aiperf_before_0_9_has_the_load_in_loadgen(tmp_path):
    older = content("aiperf-0.13.0-users.json")
    older["input_config"] = {
        "endpoint": {"model_names": [LLM], "type": "completions", "streaming": True},
        "loadgen": {"request_rate": 4.0, "request_rate_mode": "poisson", "concurrency": 64},
    }
    row = point("aiperf", tmp_path, older)
    assert row["request_rate_rps"] == 4 and "users" not in row and "doubt" not in row
    older["input_config"]["loadgen"] = {"request_count": 60}
    assert point("aiperf", tmp_path, older)["users"] == 1  # its default


def test_aiperf_0_3_and_0_6(tmp_path):
    users = point("aiperf", tmp_path, FILES / "aiperf-0.6.0-users.json")
    assert (users["users"], users["n_ok"], users["n_failed"]) == (8, 60, 0)
    assert users["run_id"] == "aiperf 0.6.0: aiperf-0.6.0-users.json"
    assert "input_tokens" not in users  # its tokenizer had counted 0
    rate = point("aiperf", tmp_path, FILES / "aiperf-0.3.0-rate.json")
    assert rate["request_rate_rps"] == 20 and "users" not in rate
    assert rate["run_id"].startswith("aiperf of unknown version")


def test_a_load_of_aiperf_that_changes_has_no_level(tmp_path):
    steady = content("aiperf-0.13.0-users.json")
    ramp = deepcopy(steady)
    ramp["input_config"]["phases"][0] |= {"type": "poisson", "rate": 9.0, "rate_ramp": 30}
    counts, _ = imported("aiperf", tmp_path, steady, ramp)
    assert "1 left out, with neither users nor a rate (the load changes by rate_ramp)" in counts
    two = deepcopy(steady)
    two["input_config"]["phases"].append({"name": "b", "type": "concurrency", "concurrency": 2})
    with pytest.raises(InputError, match="phases of several loads"):
        imported("aiperf", tmp_path, two)
    both = deepcopy(steady)
    both["input_config"]["models"]["items"].append({"name": "another"})
    with pytest.raises(InputError, match="several LLMs"):
        imported("aiperf", tmp_path, both)


# --- guidellm


def test_guidellm_0_8(tmp_path):
    row = point("guidellm", tmp_path, FILES / "guidellm-0.8.1.json")
    assert (row["users"], row["n_ok"], row["run_id"]) == (
        4,
        60,
        "guidellm 0.8.1: guidellm-0.8.1.json",
    )
    assert row["llm_id"] == LLM.replace("/", "__")
    # All answers have 20 tokens: weighted by tokens or by requests is the same.
    assert row["median_tpot_ms"] == pytest.approx(4.93022) and "median_itl_ms" not in row


def test_a_throughput_run_of_guidellm_is_users_only_where_its_slots_were_taken(tmp_path):
    report = content("guidellm-0.6.1-throughput.json")
    strategy = report["benchmarks"][0]["config"]["strategy"]
    assert strategy["type_"] == "throughput" and strategy["max_concurrency"] == 16
    strategy["max_concurrency"] = 512
    with pytest.raises(InputError, match="no result has users or a rate: everything was sent"):
        imported("guidellm", tmp_path, report, llm=LLM)
    in_flight = report["benchmarks"][0]["metrics"]
    in_flight["requests_per_second"]["successful"]["mean"] = 500.0
    in_flight["request_latency"]["successful"] |= {"mean": 1.0}
    assert point("guidellm", tmp_path, report, llm=LLM)["users"] == 30  # it sent no more


def test_a_sweep_of_guidellm_0_3(tmp_path):
    counts, points = imported("guidellm", tmp_path, FILES / "guidellm-0.3.1-sweep.json", llm=LLM)
    assert counts.startswith("2 points of 3 measurements; 1 left out")
    assert points["users"].dropna().tolist() == [1]
    assert points["request_rate_rps"].max() == pytest.approx(21.49026)
    assert points["n_ok"].tolist() == [30, 30]


def slow_and_fast():
    """Return a report in which short answers are slow: 260 ms by request, 20.96 by token."""
    report = content("guidellm-0.8.1.json")
    benchmark = report["benchmarks"][0]
    requests = [
        {"output_tokens": tokens, "inter_token_latency_ms": gap_ms}
        for tokens, gap_ms in [(501, 20.0), (2, 500.0)] * 10
    ]
    benchmark["requests"] = {"successful": requests}
    metrics = benchmark["metrics"]
    metrics["request_totals"] |= {"successful": 20, "total": 20}
    metrics["output_token_count"]["successful"] |= {"mean": 251.5, "min": 2.0, "max": 501.0}
    metrics["request_latency"]["successful"] |= {"mean": 5.45, "median": 5.45}
    metrics["request_latency"]["successful"]["percentiles"] = {"p99": 10.2}
    gaps = {"mean": 20.958, "median": 20.0, "percentiles": {"p90": 20.0, "p95": 20.0, "p99": 20.0}}
    metrics["inter_token_latency_ms"]["successful"] |= gaps
    return report


def test_tpot_of_guidellm_counts_each_request_once(tmp_path):
    row = point("guidellm", tmp_path, slow_and_fast())
    assert (row["mean_tpot_ms"], row["median_tpot_ms"], row["p95_tpot_ms"]) == (260, 260, 500)
    assert "mean_itl_ms" not in row

    sampled = slow_and_fast()
    sampled["benchmarks"][0]["metrics"]["request_totals"] |= {"successful": 200, "total": 200}
    row = point("guidellm", tmp_path, sampled)
    assert row["median_tpot_ms"] == 260 and "p95_tpot_ms" not in row
    assert "TPOT of a sample (20 of 200 requests)" in row["doubt"]

    without = slow_and_fast()
    without["benchmarks"][0]["requests"] = {"successful": []}
    row = point("guidellm", tmp_path, without)
    assert row["mean_itl_ms"] == 20.958 and not {"mean_tpot_ms", "p95_itl_ms"} & row.keys()
    assert "ITL weighted by tokens (the file has no TPOT)" in row["doubt"]


# --- vLLM and SGLang

VLLM = {
    "date": "20261123-051227", "endpoint_type": "openai", "backend": "openai", "label": None,
    "model_id": LLM, "tokenizer_id": LLM, "num_prompts": 120, "request_rate": "inf",
    "burstiness": 1.0, "max_concurrency": 8, "duration": 48.0, "completed": 118, "failed": 2,
    "total_input_tokens": 118000, "total_output_tokens": 23600, "request_throughput": 2.0,
    "request_goodput": None, "output_throughput": 400.0, "total_token_throughput": 2400.0,
    "mean_ttft_ms": 60.0, "median_ttft_ms": 52.0, "std_ttft_ms": 9.0, "p99_ttft_ms": 80.0,
    "mean_tpot_ms": 20.0, "median_tpot_ms": 20.0, "std_tpot_ms": 1.0, "p99_tpot_ms": 20.2,
    "mean_itl_ms": 20.0, "median_itl_ms": 20.0, "std_itl_ms": 1.0, "p99_itl_ms": 26.8,
    "mean_e2el_ms": 4040.0, "median_e2el_ms": 4034.0, "std_e2el_ms": 50.0, "p99_e2el_ms": 4101.0,
}  # fmt: skip
SGLANG = {
    "backend": "sglang", "dataset_name": "random", "request_rate": float("inf"),
    "max_concurrency": 16, "sharegpt_output_len": None, "random_input_len": 1000,
    "random_output_len": 200, "random_range_ratio": 1.0, "duration": 50.0, "completed": 200,
    "total_input_tokens": 200000, "total_output_tokens": 40000,
    "total_output_tokens_retokenized": 39990, "request_throughput": 4.0, "input_throughput": 4000.0,
    "output_throughput": 800.0, "mean_e2e_latency_ms": 3900.0, "median_e2e_latency_ms": 3890.0,
    "std_e2e_latency_ms": 20.0, "p99_e2e_latency_ms": 3990.0, "mean_ttft_ms": 90.0,
    "median_ttft_ms": 80.0, "std_ttft_ms": 9.0, "p99_ttft_ms": 150.0, "mean_tpot_ms": 19.0,
    "median_tpot_ms": 19.0, "std_tpot_ms": 0.5, "p99_tpot_ms": 20.0, "mean_itl_ms": 19.0,
    "median_itl_ms": 18.8, "std_itl_ms": 2.0, "p95_itl_ms": 22.0, "p99_itl_ms": 30.0,
    "concurrency": 15.6, "accept_length": None,
}  # fmt: skip


@pytest.mark.parametrize("between", ["\n", ",", "list", " "])
def test_several_results_in_one_file(tmp_path, between):
    """--append-result writes a line a run; older files were joined by hand."""
    results = [json.dumps(VLLM | {"max_concurrency": users}) for users in (4, 8, 16)]
    text = f"[{','.join(results)}]" if between == "list" else between.join(results)
    counts, points = imported("vllm-bench", tmp_path, text)
    assert points["users"].tolist() == [4, 8, 16] and counts.startswith("3 points of 3")
    assert points["run_id"].str.contains(r"0\.json [123]$").all()
    with pytest.raises(
        InputError, match=r"line 2: .* cut off .* Fix: remove what begins in line 2"
    ):
        imported("vllm-bench", tmp_path, f"{results[0]}\n{results[1][:300]}")


def test_runs_of_several_lengths_keep_their_own(tmp_path):
    longer = VLLM | {"total_input_tokens": 800000}
    imported("vllm-bench", tmp_path, VLLM, VLLM | {"max_concurrency": 16})
    assert not load_folder(tmp_path / "o").has_fixed_lengths
    imported("vllm-bench", tmp_path, VLLM, longer)
    assert load_folder(tmp_path / "o").has_fixed_lengths


def test_answers_of_one_token_have_no_tpot(tmp_path):
    zero = dict.fromkeys([name for name in VLLM if "tpot" in name], 0.0)
    nan = dict.fromkeys([name for name in VLLM if "itl" in name], float("nan"))
    one = VLLM | zero | nan | {"total_output_tokens": 118}
    counts, points = imported("vllm-bench", tmp_path, one)
    assert not [name for name in points if "tpot" in name or "itl" in name]
    assert "1 without a TPOT: answers of one token" in counts


def test_what_vllm_says_of_its_load(tmp_path):
    def doubt(**changes):
        return point("vllm-bench", tmp_path, VLLM | {"failed": 0} | changes).get("doubt")

    assert doubt() is None
    assert doubt(max_concurrency=64) == "idle users (about 8.08 of 64 in flight)"
    assert doubt(max_concurrency=512) == "idle users (118 requests for 512 users)"
    at_a_rate = {"request_rate": 2.5, "max_concurrency": None}
    assert doubt(**at_a_rate) is None
    assert doubt(**at_a_rate | {"burstiness": 0.5}) == "bursts (gaps of shape 0.5)"
    assert doubt(**at_a_rate | {"burstiness": 100}) == "even arrivals (gaps of shape 100)"
    assert doubt(request_rate=2.5) == "waits in the client (no more than 8 in flight)"
    assert doubt(request_rate=4.0, max_concurrency=None) == (
        "fell behind (2 of 4 requests/s answered)"
    )
    assert doubt(spec_decode_acceptance_length=2.61) == "speculation (2.61 tokens a step)"
    assert doubt(failed=6) == "failures (4.84 % of the requests)"
    whole = {"mean_ttft_ms": 4040.0, "median_ttft_ms": 4034.0, "p99_ttft_ms": 4101.0}
    assert doubt(**whole) == "not streamed (no TTFT)"


def test_vllm_before_0_10_counts_no_failures_and_has_no_cap(tmp_path):
    older = {name: VLLM[name] for name in VLLM if name not in ("failed", "max_concurrency")}
    row = point("vllm-bench", tmp_path, older | {"request_rate": 2.5})
    assert (row["request_rate_rps"], row["n_failed"]) == (2.5, 2)
    rising = {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1, "ramp_up_end_rps": 9}
    with pytest.raises(InputError, match="a rate: the rate rises from 1 to 9 requests/s"):
        imported("vllm-bench", tmp_path, older | rising)
    pooling = older | {"total_input_sequences": 5}
    with pytest.raises(InputError, match="embeddings"):
        imported("vllm-bench", tmp_path, pooling)


def test_lines_of_sglang(tmp_path):
    lines = [SGLANG, SGLANG | {"max_concurrency": None, "request_rate": 3.0, "accept_length": 2.5}]
    _, points = imported(
        "sglang-bench", tmp_path, "\n".join(map(json.dumps, lines)) + "\n", llm=LLM
    )
    by_load = points.set_index(points["users"].fillna(0))
    users, rate = by_load.loc[16], by_load.loc[0]
    assert (users["median_e2e_ms"], users["p95_itl_ms"], users["input_tokens"]) == (3890, 22, 1000)
    assert users["doubt"] == "failures not counted (the file has none)"
    assert rate["request_rate_rps"] == 3 and "speculation (2.5 tokens a step)" in rate["doubt"]
    detailed = SGLANG | {"errors": [""] * 198 + ["HTTP 503"] * 2, "completed": 198}
    row = point("sglang-bench", tmp_path, detailed, llm=LLM)
    assert (row["n_ok"], row["n_failed"]) == (198, 2)
    assert "cuda_graphs" not in row
    eager = SGLANG | {"server_info": {"version": "0.5.5", "disable_cuda_graph": True}}
    assert point("sglang-bench", tmp_path, eager, llm=LLM)["cuda_graphs"] is False


# --- genai-bench, inference-perf


def stats(value):
    return {name: value for name in ("min", "max", "mean", "p50", "p90", "p95", "p99")}


def genai_bench(**changes):
    """Return a result of genai-bench 0.0.2, with an experiment_metadata.json."""
    metrics = {
        "scenario": "D(1000,200)", "num_concurrency": 4, "batch_size": 1,
        "iteration_type": "num_concurrency", "run_duration": 60.0,
        "mean_output_throughput_tokens_per_s": 190.0, "requests_per_second": 0.95,
        "error_codes_frequency": {"503": 1}, "error_rate": 0.0172, "num_error_requests": 1,
        "num_completed_requests": 57, "num_requests": 58,
        "stats": {
            "ttft": stats(0.25), "tpot": stats(0.02), "e2e_latency": stats(4.23),
            "num_input_tokens": stats(1000), "num_output_tokens": stats(200),
        },
    }  # fmt: skip
    return {"aggregated_metrics": metrics | changes, "individual_request_metrics": []}


EXPERIMENT = {
    "benchmark_version": "0.0.2", "api_model_name": "my-llm", "server_model_tokenizer": LLM,
    "model": "Llama", "server_engine": "vLLM", "server_version": "0.19.0",
    "metrics_time_unit": "s",
}  # fmt: skip


def test_genai_bench_0_0_5(tmp_path):
    name = "D64_20_text-to-text_num_concurrency_4_time_3s.json"
    row = point("genai-bench", tmp_path, FILES / "genai-bench-0.0.5" / name)
    # The tokenizer is a folder: the server's name of the LLM counts.
    assert (row["llm_id"], row["users"], row["n_ok"]) == (LLM.replace("/", "__"), 4, 44)
    assert row["median_ttft_ms"] == pytest.approx(92.62736)
    assert row["doubt"] == "idle users (about 3.12 of 4 in flight)"


def test_genai_bench_with_what_stands_beside_it(tmp_path):
    (tmp_path / "experiment_metadata.json").write_text(json.dumps(EXPERIMENT))
    row = point("genai-bench", tmp_path, genai_bench())
    assert (row["llm_id"], row["users"], row["n_failed"]) == (LLM.replace("/", "__"), 4, 1)
    assert (row["p90_ttft_ms"], row["median_tpot_ms"]) == (250, 20)
    in_ms = genai_bench() | {"_time_unit": "ms"}
    in_ms["aggregated_metrics"]["stats"] |= {
        "ttft": stats(250), "tpot": stats(20), "e2e_latency": stats(4230),
    }  # fmt: skip
    assert point("genai-bench", tmp_path, in_ms)["p90_ttft_ms"] == 250
    with pytest.raises(InputError, match="unknown unit 'fortnights'"):
        imported("genai-bench", tmp_path, genai_bench() | {"_time_unit": "fortnights"})
    with pytest.raises(InputError, match="embeddings"):
        imported("genai-bench", tmp_path, genai_bench(iteration_type="batch_size"))
    (tmp_path / "experiment_metadata.json").unlink()
    with pytest.raises(InputError, match="the file does not name the LLM"):
        imported("genai-bench", tmp_path, genai_bench())


def spread(value):
    return {"mean": value, "min": value, "p10": value, "median": value, "p90": value, "max": value}


def stage(**load):
    """Return a stage of inference-perf 0.2."""
    return {
        "load_summary": {"count": 300, "send_duration": 60.0, "achieved_rate": 5.0} | load,
        "successes": {
            "count": 299,
            "latency": {
                "request_latency": spread(4.1), "time_to_first_token": spread(0.1),
                "normalized_time_per_output_token": spread(0.0205),
                "time_per_output_token": spread(0.0201), "inter_token_latency": spread(0.0201),
            },
            "throughput": {"output_tokens_per_sec": 980.0, "requests_per_sec": 4.9},
            "prompt_len": spread(1000.0),
            "output_len": spread(200.0),
        },
        "failures": {"count": 1, "request_latency": spread(1.0), "prompt_len": spread(1000.0)},
    }  # fmt: skip


def test_stages_of_inference_perf(tmp_path):
    config = {"load": {"type": "poisson"}, "server": {"type": "vllm", "model_name": LLM}}
    write_yaml(tmp_path / "config.yaml", config)
    row = point("inference-perf", tmp_path, stage(requested_rate=5.0))
    assert (row["request_rate_rps"], row["median_tpot_ms"], row["n_failed"]) == (5, 20.1, 1)
    assert row["llm_id"] == LLM.replace("/", "__") and "doubt" not in row
    users = point("inference-perf", tmp_path, stage(requested_rate=5.0, concurrency=20))
    assert users["users"] == 20
    with pytest.raises(InputError, match="a rate: it has no requested rate"):
        imported("inference-perf", tmp_path, stage())
    # Until #564 most tokens counted twice: TPOT was half of what E2E says.
    halved = stage(requested_rate=5.0)
    halved["successes"]["latency"]["time_per_output_token"] = spread(0.01005)
    row = point("inference-perf", tmp_path, halved)
    assert not {"mean_tpot_ms", "mean_itl_ms"} & row.keys()
    assert row["doubt"] == "TPOT left out (10.1 ms, 20.1 by E2E)"
    write_yaml(tmp_path / "config.yaml", config | {"load": {"type": "constant"}})
    assert "even arrivals" in point("inference-perf", tmp_path, stage(requested_rate=5.0))["doubt"]


# --- llm-d-benchmark


def test_reports_of_llm_d_0_2(tmp_path):
    row = point("llm-d", tmp_path, FILES / "llm-d-0.2.1-inference-perf.yaml", llm=LLM)
    assert (row["request_rate_rps"], row["n_ok"], row["n_failed"]) == (5, 298, 2)
    assert (row["p95_ttft_ms"], row["median_tpot_ms"], row["p90_itl_ms"]) == (200, 20, 25)
    row = point("llm-d", tmp_path, FILES / "llm-d-0.2.1-aiperf.yaml")
    # The load and the LLM stand in AIPerf's own configuration; its ITL is of each request.
    assert (row["users"], row["llm_id"]) == (8, LLM.replace("/", "__"))
    assert row["p99_tpot_ms"] == pytest.approx(5.841327) and "p99_itl_ms" not in row


def test_a_report_of_llm_d_0_1(tmp_path):
    row = point("llm-d", tmp_path, FILES / "llm-d-0.1-vllm.yaml")
    assert (row["llm_id"], row["request_rate_rps"], row["n_ok"]) == ("Qwen__Qwen3-8B", 2.5, 118)
    assert row["doubt"] == "failures not counted (the file has none)"
    assert row["measured_on"] == "2026-11-23"


def deployment(**standardized):
    """Return a report of a deployment of several replicas."""
    report = content("llm-d-0.2.1-inference-perf.yaml")
    engine = {
        "kind": "inference_engine", "tool": "vllm", "tool_version": "0.19.0", "replicas": 4,
        "model": {"name": LLM}, "accelerator": {"model": "NVIDIA-H100-80GB-HBM3", "count": 1},
    }  # fmt: skip
    stack = [{"metadata": {"label": "a", "cfg_id": "b"}, "standardized": engine | standardized}]
    report["scenario"]["stack"] = stack
    return report


def test_a_deployment_of_llm_d_shares_its_load_out(tmp_path):
    row = point("llm-d", tmp_path, deployment())
    assert (row["request_rate_rps"], row["throughput_tok_s"]) == (1.25, 232.5)
    assert "shared out (the load of 4 replicas, taken to be even)" in row["doubt"]
    assert row["llm_id"] == LLM.replace("/", "__")
    assert "cuda_graphs" not in row
    eager = deployment()
    eager["scenario"]["stack"][0]["native"] = {"args": {"--enforce-eager": None}}
    assert point("llm-d", tmp_path, eager)["cuda_graphs"] is False
    # Without pods for prefill those for decode do both.
    assert point("llm-d", tmp_path, deployment(role="decode"))["request_rate_rps"] == 1.25
    with pytest.raises(InputError, match="prefill and decode ran apart"):
        imported("llm-d", tmp_path, deployment(role="prefill"))
    with pytest.raises(InputError, match=r"unknown version '0\.3'"):
        imported("llm-d", tmp_path, deployment() | {"version": "0.3"})


def test_guidellm_through_llm_d(tmp_path):
    """Its TPOT had the first token in it, its seconds were called ms."""
    report = content("llm-d-0.2.1-inference-perf.yaml")
    report["scenario"]["load"]["standardized"] |= {"tool": "guidellm", "concurrency": 4}
    del report["scenario"]["load"]["standardized"]["rate_qps"]
    latency = report["results"]["request_performance"]["aggregate"]["latency"]
    latency["request_latency"] |= {"units": "ms", "mean": 4.1, "p50": 4.0}
    for name in ("time_to_first_token", "inter_token_latency"):
        unit = "ms" if name == "time_to_first_token" else "ms/token"
        block = {key: 1e3 * value for key, value in latency[name].items() if key != "units"}
        latency[name] = block | {"units": unit}
    # All answers have 200 tokens: weighted by tokens or by requests is the same.
    row = point("llm-d", tmp_path, report, llm=LLM)
    assert row["median_tpot_ms"] == 19 and "median_itl_ms" not in row
    report["results"]["request_performance"]["aggregate"]["requests"]["output_length"]["max"] = 900
    row = point("llm-d", tmp_path, report, llm=LLM)
    assert (row["users"], row["median_e2e_ms"], row["median_itl_ms"]) == (4, 4000, 19)
    assert not {"mean_tpot_ms", "p99_itl_ms"} & row.keys()
    assert "ITL weighted by tokens" in row["doubt"]
    throughput = deepcopy(report)
    throughput["scenario"]["load"]["native"]["config"] = {"profile": "throughput"}
    throughput["scenario"]["load"]["standardized"]["concurrency"] = 512
    with pytest.raises(InputError, match="everything was sent at once"):
        imported("llm-d", tmp_path, throughput, llm=LLM)


# --- Other files


LITELLM = {
    "request_id": "a", "call_type": "acompletion", "spend": 0.1, "total_tokens": 30,
    "prompt_tokens": 20, "completion_tokens": 10, "startTime": "2026-01-01T00:00:00Z",
    "endTime": "2026-01-01T00:00:01Z", "model": "m", "cache_hit": "False",
}  # fmt: skip
MOONCAKE = {"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": [1]}


@pytest.mark.parametrize(
    ("tool", "other", "said"),
    [
        ("vllm-bench", SGLANG, "it looks like a result of sglang-bench. Fix: `sextant import-ch"),
        ("aiperf", VLLM, "it looks like a result of vllm-bench"),
        ("vllm-bench", content("guidellm-0.8.1.json"), "it looks like a result of guidellm"),
        ("guidellm", content("llm-d-0.1-vllm.yaml"), "it looks like a result of llm-d"),
        ("vllm-bench", [LITELLM] * 3, r"a trace \(format litellm\). Fix: read it with `sextant in"),
        ("guidellm", [MOONCAKE], r"a trace \(format mooncake\)"),
        ("aiperf", {"model_type": "llama", "hidden_size": 64}, "an LLM's config.json. Fix: name"),
        ("aiperf", {"metadata": {}, "metrics": {}, "error": None}, "give profile_export_aiperf"),
        ("vllm-bench", {"avg_latency": 1, "latencies": [], "percentiles": {}}, "has no server"),
        ("vllm-bench", {"status": "success", "data": {}}, "an answer of Prometheus"),
        ("vllm-bench", {"a": 1}, "it has no 'completed', 'model_id', 'request_throughput'"),
        ("vllm-bench", [[1]], "was not written by vllm-bench. Fix: give the JSON of `vllm bench"),
        ("vllm-bench", "", "was not written by vllm-bench: it is empty"),
        ("vllm-bench", "results\n", "not JSON"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_what_it_is(tmp_path, tool, other, said):
    with pytest.raises(InputError, match=said):
        imported(tool, tmp_path, other)
    assert not (tmp_path / "o").exists()


def test_the_command_knows_every_tool(tmp_path):
    for tool in TOOLS:
        command = ["import-characterization", tool, "--from", str(tmp_path / "none.json")]
        done = CliRunner().invoke(app, [*command, "--gpu-profile", "1xH100-80GB", "--out", "o"])
        assert "cannot be read" in str(done.exception)
