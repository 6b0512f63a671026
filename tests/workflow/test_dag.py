"""The whole DAG on the fake engine: what comes out, and what bad input says."""

import json

import duckdb
import pandas as pd
import pytest

from forked_snakemake import dry_run, run

CONVERSATION = "results/workloads/conversation/requests.parquet"


def query(project, sql: str) -> pd.DataFrame:
    with duckdb.connect(str(project.folder / "results" / "sextant.duckdb"), read_only=True) as db:
        return db.execute(sql).df()


def test_every_cell_and_level_is_a_point(finished) -> None:
    points = query(finished, "SELECT * FROM point")
    assert len(points) == 4 * 2 * 2
    assert (points["n_failed"] == 0).all()
    assert (points["n_ok"] > 0).all()


def test_every_predictor_is_scored_and_every_llm_gets_a_recommendation(finished) -> None:
    scores = query(finished, "SELECT * FROM score")
    assert set(scores["predictor"]) == {"measured", "roofline", "llm_pilot", "static_policy"}
    slos = query(finished, "SELECT slo_id FROM slo")["slo_id"]
    answer = json.loads((finished.folder / "results/report/recommendations.json").read_text())
    pairs = {(row["llm_id"], row["slo_id"]) for row in answer["recommendations"]}
    llms = ("llm-opt-6m", "llm-llama-16m", "llm-bigcode-21m", "llm-neox-34m")
    assert pairs == {(llm, slo) for llm in llms for slo in slos}


def test_predictions_are_for_llms_that_were_held_out(finished) -> None:
    predictions = query(finished, "SELECT * FROM prediction")
    assert len(predictions) > 0
    assert (predictions["fold"] == predictions["llm_id"]).all()


def test_snakemakes_own_report_works(finished) -> None:
    done = finished.snakemake("--report", "report.zip")
    assert done.returncode == 0, done.stderr
    assert (finished.folder / "report.zip").stat().st_size > 10_000


def test_two_runs_fit_the_same_bytes(finished, tmp_path) -> None:
    again = finished.copy(tmp_path / "again")
    requests = again.folder / CONVERSATION
    before = requests.read_bytes()
    requests.unlink()
    done = again.snakemake("--cores", "1", CONVERSATION)
    assert done.returncode == 0, done.stderr
    assert requests.read_bytes() == before


@pytest.mark.parametrize("profile", ["default", "slurm", "ci"])
def test_every_profile_plans_the_same_jobs(project, profile: str) -> None:
    sheet = project.sheet("demo/slos")
    sheet.write_text(sheet.read_text() + "new\t1\t2\t50\t3\t\t\t\n")
    planned = dry_run(project.folder, "--workflow-profile", f"workflow/profiles/{profile}")
    assert planned.by_rule == {"evaluate_predictor": 4, "build_store": 1, "write_report": 1}


BAD_INPUTS = {
    "unknown column": ("config/llms.tsv", "llm_id", "llm", ["llms.tsv", "line 1", "'llm'"]),
    "unknown LLM": (
        "config/benchmarks.tsv",
        "*\t*",
        "nobody\t*",
        ["benchmarks.tsv", "line 2", "'llm_ids'", "'nobody'", "llm-opt-6m"],
    ),
    "unknown trace": (
        "config/workloads.tsv",
        "\tazure-2023-conv-sample\t",
        "\tnone\t",
        ["workloads.tsv", "line 2", "'trace_id'", "'none'"],
    ),
    "unknown use case": (
        "config/workloads.tsv",
        "\tsummarization\t",
        "\ttranslation\t",
        ["workloads.tsv", "line 3", "'use_case'", "'translation'"],
    ),
    "trace and use case at once": (
        "config/workloads.tsv",
        "summarization\t\t",
        "summarization\tazure-2023-conv-sample\t",
        ["workloads.tsv", "line 3", "'trace_id'", "not both"],
    ),
    "start of a trace that is no time": (
        "config/traces.tsv",
        "max_rejected_fraction",
        "start_time",
        ["traces.tsv", "line 2", "'start_time'", "0.01"],
    ),
    "log without the names of its columns": (
        "config/traces.tsv",
        "\tsextant\t",
        "\tcolumns\t",
        ["traces.tsv", "line 2", "'columns'", "names no column"],
    ),
    "GPU without facts": (
        "config/gpu_profiles.tsv",
        "2xcpu-core\tcpu-core",
        "2xcpu-core\tH900",
        ["gpu_profiles.tsv", "line 3", "H900.yaml"],
    ),
    "LLM without a config": (
        "config/llms.tsv",
        "demo-opt-6m.json",
        "none.json",
        ["none.json", "no such file"],
    ),
    "requests beyond the context": (
        "config/workloads.tsv",
        "\t512\t",
        "\t4096\t",
        ["workloads.tsv", "line 2", "'max_input_tokens'", "2048"],
    ),
    "data set that is nowhere": (
        "config/traces.tsv",
        "resources/traces/azure-2023-conv-sample.csv",
        "nowhere.csv",
        ["traces.tsv", "line 2", "'dataset'", "nowhere.csv"],
    ),
    "unknown configuration key": (
        "config/config.yaml",
        "seed:",
        "sed: 1\nseed:",
        ["sed", "unknown field"],
    ),
    "unknown predictor": (
        "config/config.yaml",
        "- static_policy",
        "- oracle",
        ["predictors", "'oracle'"],
    ),
    "decision that nothing measures": (
        "config/config.yaml",
        "scenario_id: users-1-8",
        "scenario_id: users-1-16",
        ["decision", "conversation, users-1-8"],
    ),
    "sheet without rows": ("config/demo/slos.tsv", None, "", ["slos.tsv", "is empty"]),
    "weights that are nowhere": (
        "config/llms.tsv",
        "demo-opt-6m.json\t",
        "demo-opt-6m.json\tnowhere",
        ["llms.tsv", "line 2", "'model'", "'nowhere'"],
    ),
    "negative price": ("config/gpu_profiles.tsv", "\t0.08", "\t-1", ["line 3", "'usd_per_hour'"]),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input_gets_one_clear_error_before_anything_runs(project, name: str) -> None:
    path, old, new, said = BAD_INPUTS[name]
    file = project.folder / path
    text = file.read_text()
    if old is None:  # all rows, below two lines of comment and the header
        old = "".join(text.splitlines(keepends=True)[3:])
    assert old in text
    file.write_text(text.replace(old, new, 1))
    status, text = run(project.folder, "--cores", "1")
    assert status == 1
    (line,) = [line for line in text.splitlines() if line.startswith("Error: ")]
    for part in said:
        assert part in line
    assert "Traceback" not in text
