"""The whole DAG on the fake engine: what comes out, and what bad input says."""

import json

import pytest

from forked_snakemake import dry_run, run
from support import ROOT


def test_every_cell_and_level_is_a_point(finished) -> None:
    sql = "SELECT count(*), max(n_failed), min(n_ok) > 0 FROM point"
    assert finished.query(sql) == [(4 * 2 * 2, 0, True)]


def test_every_predictor_is_scored_and_every_llm_gets_a_recommendation(finished) -> None:
    scored = {name for (name,) in finished.query("SELECT predictor FROM score")}
    assert scored == {"measured", "roofline", "llm_pilot", "static_policy"}
    slos = [slo for (slo,) in finished.query("SELECT slo_id FROM slo")]
    answer = json.loads((finished.folder / "results/report/recommendations.json").read_text())
    pairs = {(row["llm_id"], row["slo_id"]) for row in answer["recommendations"]}
    llms = ("llm-opt-6m", "llm-llama-16m", "llm-bigcode-21m", "llm-neox-34m")
    assert pairs == {(llm, slo) for llm in llms for slo in slos}


def test_predictions_are_for_llms_that_were_held_out(finished) -> None:
    predictions = finished.query("SELECT fold, llm_id FROM prediction")
    assert predictions and all(fold == llm_id for fold, llm_id in predictions)


def test_snakemakes_own_report_works(finished) -> None:
    done = finished.snakemake("--report", "report.zip")
    assert done.returncode == 0, done.stderr
    assert (finished.folder / "report.zip").stat().st_size > 10_000


DELIVERABLES = {
    "traces/azure-2023-conv-sample.rejected.parquet": "ingest_trace",
    "workloads/conversation/validation.json": "fit_workload",
    "points/measured/feasibility.parquet": "aggregate_points",
    "points/measured/telemetry.parquet": "aggregate_points",
    "predictions/measured/roofline/prediction.parquet": "evaluate_predictor",
    "predictions/measured/roofline/candidate.parquet": "evaluate_predictor",
    "predictions/measured/roofline/recommendation.parquet": "evaluate_predictor",
    "report/traces/azure-2023-conv-sample.json": "write_trace_report",
    "report/recommendations.json": "write_report",
    "report/figures": "write_report",
}


@pytest.mark.parametrize("name", DELIVERABLES)
def test_what_is_derived_and_deleted_is_made_again(project, name: str) -> None:
    path = project.folder / "results" / name
    aside = project.folder / "aside"
    path.rename(aside)
    planned = dry_run(project.folder).by_rule
    aside.rename(path)
    assert planned[DELIVERABLES[name]] == 1 and not planned["benchmark_cell"]
    assert not dry_run(project.folder).by_rule


@pytest.mark.parametrize("profile", ["default", "slurm", "ci"])
def test_every_profile_plans_the_same_jobs(project, profile: str) -> None:
    sheet = project.sheet("demo/slos")
    sheet.write_text(sheet.read_text() + "new\t1\t2\t50\t3\t\t\t\n")
    planned = dry_run(project.folder, "--workflow-profile", f"workflow/profiles/{profile}")
    assert planned.by_rule == {"evaluate_predictor": 4, "build_store": 1, "write_report": 1}


@pytest.mark.parametrize(
    ("path", "old", "new", "said"),
    [
        ("llms.tsv", "llm_id", "llm", ["llms.tsv, line 1", "'llm'"]),
        ("config.yaml", "- static_policy", "- oracle", ["predictors", "'oracle'"]),
        ("config.yaml", "seed:", "\tseed:", ["config.yaml, line", "not YAML", "not tabs"]),
    ],
)
def test_bad_input_gets_one_clear_error_before_anything_runs(project, path, old, new, said) -> None:
    file = project.folder / "config" / path
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    status, text = run(project.folder, "--cores", "1")
    assert status == 1 and "Traceback" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("Error: ")]
    assert all(part in line for part in said)


def test_a_configuration_in_another_folder_is_told_where_the_defaults_are(tmp_path) -> None:
    snakefile = ROOT / "workflow" / "Snakefile"
    sheets = ROOT / "config" / "azure.yaml"
    arguments = ("--dry-run", "--snakefile", str(snakefile), "--configfile", str(sheets))
    for given, file in (arguments, "config.yaml"), (arguments[:-2], "demo.yaml"):
        status, text = run(tmp_path, *given)
        assert status == 1
        (line,) = [line for line in text.splitlines() if line.startswith("Error: ")]
        assert f"config/{file}" in line and f"--directory {ROOT}" in line
