"""Studies from sheets to pages, on the fake engine."""

import json

import pandas as pd
import pytest

from project import Project
from support import FAKE_PYTHON

pytestmark = pytest.mark.slow
CONFIG = ("--configfile", "config/studies-cpu.yaml")
PAGES = "results/studies-cpu/studies"


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """All studies, with fewer and shorter levels."""
    project = Project(tmp_path_factory.mktemp("project"))
    project.set_config(engine__python=str(FAKE_PYTHON))
    sheet = project.sheet("studies-cpu/scenarios")
    scenarios = pd.read_csv(sheet, sep="\t", dtype=str).set_index("scenario_id")
    for name, values in (
        ("batch-1-64", {"levels": "1,2,4", "n_requests": "8"}),
        ("rates", {"levels": "40,inf", "n_requests": "8"}),
        ("users-1-8", {"levels": "1,2", "warmup_s": "0.1", "duration_s": "0.4"}),
        ("critical", {"levels": "40", "warmup_s": "0.1", "duration_s": "0.6"}),
        ("effort", {"levels": "16"}),
        ("burst", {"levels": "1,2,4", "warmup_s": "2", "duration_s": "2", "n_requests": "4"}),
    ):
        scenarios.loc[name, list(values)] = list(values.values())
    scenarios.to_csv(sheet, sep="\t")
    done = project.snakemake("--cores", "2", "studies", *CONFIG)
    assert done.returncode == 0, done.stderr
    return project


def report(project: Project, study: str) -> dict:
    return json.loads((project.folder / PAGES / study / "study.json").read_text())


def test_a_study_has_exactly_the_cells_of_its_rows_and_counts_all_requests(studied) -> None:
    pareto, replicas = (report(studied, study) for study in ("pareto", "replicas"))
    assert [row["batch_size"] for row in pareto["numbers"]["batches"]] == [1, 2, 4]
    rates = [(row["workload_id"], row["level"]) for row in pareto["numbers"]["rates"]]
    assert rates == [(name, level) for name in ("out-16", "out-32") for level in (40.0, "inf")]
    for found, n_requests in ((pareto, 3 * 8 + 2 * 2 * 8), (replicas, 2 * 3 * 8)):
        measured = found["measured"]
        assert (measured["n_requests"], measured["n_infeasible_cells"]) == (n_requests, 0)
        assert measured["engine_versions"] == ["fake"]
    rows = replicas["numbers"]["points"]
    assert {row["variant_id"] for row in rows} == {"default", "2-shared"}
    # A level of 1 leaves one replica idle at any time, not always the same.
    shared = [row["n_serving_replicas"] for row in rows if row["replicas"] == 2]
    assert shared == [2, 2, 2]
    (setting,) = report(studied, "pods")["numbers"]["settings"]
    assert [row["users_per_replica"] for row in setting["diagonals"]] == [1.0]


def test_what_does_not_fit_is_said_and_starts_no_server(studied) -> None:
    characterized = report(studied, "characterize")
    assert characterized["measured"]["n_infeasible_cells"] == 1
    tuning = "results/studies-cpu/benchmarks/measured/llama-7b/1xcpu-core/*/*/tuning.json"
    (path,) = studied.folder.glob(tuning)
    found = json.loads(path.read_text())
    assert found["probes"] == [] and found["verdict"]["outcome"] == "weights_too_large"


def test_a_larger_cache_and_the_other_factors_are_told_apart_by_variant(studied) -> None:
    for study, n_variants in (("workload_choice", 2), ("sensitivity", 4)):
        points = pd.read_parquet(studied.folder / PAGES / study / "point.parquet")
        assert points["variant_id"].nunique() == n_variants
        assert (points["n_failed"] == 0).all() and (points["n_ok"] > 0).all()


def test_bursts_begin_at_a_rate_that_was_searched(studied) -> None:
    run = "results/studies-cpu/benchmarks/measured/*/*/*/burst@*/run.json"
    (path,) = studied.folder.glob(run)
    phases = [level["phase"] for level in json.loads(path.read_text())["levels"]]
    assert [phase["name"] for phase in phases] == ["warm-up", "conversation", "alpha"]
    search = phases[0]["search"]
    assert search["rate_rps"] in {trial["rate_rps"] for trial in search["trials"]}
    assert all(phase["n_requests"] > 0 for phase in phases)


def test_pages_figures_and_tables_lie_together(studied) -> None:
    studies = {path.parent.name for path in (studied.folder / PAGES).glob("*/study.json")}
    assert len(studies) == 7
    for study in studies:
        folder = studied.folder / PAGES / study
        assert (folder / "index.html").read_text().count("<svg") >= 1
        assert list((folder / "figures").glob("*.svg"))
        assert len(pd.read_parquet(folder / "point.parquet")) > 0


@pytest.mark.parametrize("config", ["studies", "studies-cpu"])
def test_all_studies_are_planned_at_either_size(studied, config: str) -> None:
    where = ("pathvars={results: elsewhere, logs: logs, benchmarks: logs/benchmarks}",)
    # One that is there is not made again.
    assert studied.planned("--cores", "2", "studies", *CONFIG) == {}
    options = ("--configfile", f"config/{config}.yaml", "--config", *where)
    assert studied.planned("--cores", "2", "studies", *options)["write_study"] == 7


def test_a_study_nobody_knows_is_refused(studied) -> None:
    sheet = studied.sheet("studies-cpu/benchmarks")
    kept = sheet.read_text()
    sheet.write_text(kept.replace("pareto", "parato"))
    done = studied.snakemake("--dry-run", "--cores", "2", "studies", *CONFIG)
    sheet.write_text(kept)
    assert done.returncode != 0
    assert "'parato' should be" in done.stderr
    assert "benchmarks.tsv, line 2, field 'study'" in done.stderr
