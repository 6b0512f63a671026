"""LLM-Pilot's published archive through the whole DAG, to the scores of its paper."""

import json
from pathlib import Path

import pandas as pd
import pytest

from project import Project
from sextant.points.store import connect
from support import ROOT

pytestmark = pytest.mark.slow
ARGUMENTS = ("--cores", "2", "--configfile", "config/llm-pilot.yaml", "--config")
DATABASE = ("--database", "results/llm-pilot/sextant.duckdb")


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory, mirror: Path) -> Project:
    project = Project(tmp_path_factory.mktemp("reproduction"))
    slos = project.sheet("slos")
    kept = [
        line
        for line in slos.read_text().splitlines()
        if line.split("\t")[0] in ("slo_id", "paper", "grid-10-20-50")
    ]
    slos.write_text("\n".join(kept) + "\n")
    done = project.snakemake(*ARGUMENTS, "predictors=[llm_pilot,static_policy]")
    assert done.returncode == 0, done.stderr
    return project


def test_the_published_scores_come_out(reproduced: Project) -> None:
    database = reproduced.folder / "results" / "llm-pilot" / "sextant.duckdb"
    with connect(database, read_only=True) as store:
        rows = store.execute(
            "SELECT predictor, success_rate, overspend, so_score FROM score WHERE slo_id = 'paper'"
        ).fetchall()
        assert store.execute("SELECT count(*) FROM point").fetchone() == (528,)
        assert store.execute("SELECT count(*) FROM feasibility").fetchone() == (140,)
    scores = {name: values for name, *values in rows}
    # expected_recommendation_scores.csv of the published repository, to its last digits.
    assert scores["llm_pilot"] == pytest.approx([0.8, 0.19859954617845506, 0.800699614549604])
    published = [0.5, 0.06772875816993467, 0.6509041127146198]
    assert scores["static_policy"] == pytest.approx(published)
    assert scores["measured"] == [1.0, 0.0, 1.0]


def test_evaluate_judges_the_store_of_an_archive(reproduced: Project, tmp_path: Path) -> None:
    slos = tmp_path / "mine.tsv"
    slos.write_text("slo_id\tnttft_ms\titl_ms\tpercentile\tusers\nmine\t100\t50\t50\t200\n")
    options = [*DATABASE, "--slos", str(slos), "--format", "json", "--predictor", "static_policy"]
    done = reproduced.sextant("evaluate", *options)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (means,) = result["predictors"]
    judged = ["so_score", "success_rate", "overspend", "mape_nttft", "mape_itl"]
    assert list(means) == ["predictor", *judged, "n_scenarios", "fit_seconds"]
    assert (means["predictor"], means["n_scenarios"]) == ("static_policy", 1)
    assert means["so_score"] == pytest.approx(0.6509041127146198)
    assert [row["slo_id"] for row in result["scenarios"]] == ["mine"]


def test_a_new_llm_is_predicted_from_facts_by_the_law_alone(reproduced: Project) -> None:
    options = [*DATABASE, "--users", "10", "--nttft-ms", "9", "--itl-ms", "90"]
    config = ["--hf-config", str(ROOT / "tests" / "hf_configs" / "mistral-7b" / "config.json")]
    done = reproduced.sextant("recommend", *options, *config, "--predictor", "llm_pilot")
    assert done.returncode == 2
    assert "llm_pilot does not draw samples" in done.stderr
    done = reproduced.sextant("recommend", *options, *config)
    assert done.returncode == 0, done.stderr
    assert "archive:llm-pilot (results/llm-pilot/sextant.duckdb)" in done.stdout


def test_what_ships_is_what_the_archive_gives(reproduced: Project, tmp_path: Path) -> None:
    options = (*DATABASE, "--llms", "config/llm-pilot/llms.tsv")
    named = ("--licence", "CDLA-Permissive-2.0", "--attribution", "LLM-Pilot")
    done = reproduced.sextant("export-characterization", *options, *named, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    shipped = ROOT / "resources" / "characterizations" / "llm-pilot"
    for name in ("gpu_profiles.tsv", "feasibility.csv"):
        assert (tmp_path / name).read_bytes() == (shipped / name).read_bytes()
    made, known = (
        pd.read_csv(folder / "points.csv", dtype=str, keep_default_na=False)
        for folder in (tmp_path, shipped)
    )
    # The archive's requests give more than what ships, which names the engine once.
    more = [name for name in made if name not in known]
    ends = ("_tpot_ms", "_lo_ms", "_hi_ms")
    assert all(name.startswith(("engine", "p95_")) or name.endswith(ends) for name in more)
    pd.testing.assert_frame_equal(made.drop(columns=more), known)


def test_the_users_own_folder_needs_no_download(reproduced: Project, tmp_path: Path) -> None:
    data = json.dumps({"data": str(tmp_path)})
    planned = reproduced.planned(*ARGUMENTS, f"archive={data}", "predictors=[llm_pilot]")
    assert planned["fetch_dataset"] == 0 and planned["import_archive"] == 1


def test_an_llm_without_features_or_a_cell_twice_is_an_error(tmp_path: Path) -> None:
    project = Project(tmp_path)
    llms = project.folder / "config" / "llm-pilot" / "llms.tsv"
    kept = llms.read_text()
    llms.write_text(kept + "new\tresources/llms/llama-7b.json\n")
    done = project.snakemake(*ARGUMENTS, "seed=1")
    assert done.returncode != 0 and "no features of 'new'" in done.stderr
    llms.write_text(kept)
    cells = project.folder / "resources" / "llm-pilot" / "cells.tsv"
    cells.write_text(cells.read_text() + "llama-7b\t1xT4-16GB\ttoo_small\n")
    done = project.snakemake(*ARGUMENTS, "seed=1")
    assert done.returncode != 0 and "has two rows" in done.stderr


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('archive={"data": "nowhere"}', ["archive.data", "nowhere"]),
        ("source=measured", ["source", "archive:NAME"]),
    ],
)
def test_a_wrong_archive_is_an_error_before_anything_runs(
    tmp_path: Path, setting: str, words: list[str]
) -> None:
    done = Project(tmp_path).snakemake(*ARGUMENTS, setting)
    assert done.returncode != 0
    assert all(word in done.stderr for word in words), done.stderr
