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


SAMPLE, CONFIG = "azure-2023-conv-sample", "config.yaml"
BAD_INPUTS = [
    ("llms.tsv", "llm_id", "llm", "line 1|'llm'"),
    ("benchmarks.tsv", "*\t*", "nobody\t*", "line 2|'llm_ids'|'nobody'|llm-opt-6m"),
    ("workloads.tsv", f"\t{SAMPLE}\t", "\tnone\t", "line 2|'trace_id'|'none'"),
    ("workloads.tsv", "\tsummarization\t", "\tno\t", "line 3|'use_case'|'no'"),
    ("workloads.tsv", "summarization\t\t", f"summarization\t{SAMPLE}\t", "'trace_id'|not both"),
    ("traces.tsv", "max_rejected_fraction", "start_time", "line 2|'start_time'|0.01"),
    ("traces.tsv", "\tsextant\t", "\tcolumns\t", "line 2|'columns'|names no column"),
    ("gpu_profiles.tsv", "2xcpu-core\tcpu-core", "2xcpu-core\tH900", "line 3|H900.yaml"),
    ("llms.tsv", "demo-opt-6m.json", "none.json", "none.json|no such file"),
    ("workloads.tsv", "\t512\t", "\t4096\t", "line 2|'max_input_tokens'|2048"),
    ("traces.tsv", f"resources/traces/{SAMPLE}", "nowhere", "line 2|'dataset'|nowhere.csv"),
    (CONFIG, "seed:", "sed: 1\nseed:", "sed|unknown field"),
    (CONFIG, "- static_policy", "- oracle", "predictors|'oracle'"),
    (CONFIG, "scenario_id: users-1-8", "scenario_id: none", "decision|conversation, users-1-8"),
    ("demo/slos.tsv", None, "", "slos.tsv|is empty"),
    ("llms.tsv", "6m.json\t", "6m.json\tnowhere", "line 2|'model'|'nowhere'"),
    ("gpu_profiles.tsv", "\t0.08", "\t-1", "line 3|'usd_per_hour'"),
]


@pytest.mark.parametrize(("path", "old", "new", "said"), BAD_INPUTS)
def test_bad_input_gets_one_clear_error_before_anything_runs(project, path, old, new, said) -> None:
    file = project.folder / "config" / path
    text = file.read_text()
    if old is None:  # all rows, below two lines of comment and the header
        old = "".join(text.splitlines(keepends=True)[3:])
    assert old in text
    file.write_text(text.replace(old, new, 1))
    status, text = run(project.folder, "--cores", "1")
    assert status == 1
    (line,) = [line for line in text.splitlines() if line.startswith("Error: ")]
    for part in said.split("|"):
        assert part in line
    # A device's or an LLM's file is named in place of the sheet that names it.
    assert path.endswith("yaml") or file.name in line or "none.json" in said
    assert "Traceback" not in text
