"""Adaptive rows of benchmarks.tsv: `sextant measure` chooses cells round by round (fake engine)."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from project import Project
from support import wait_for

pytestmark = pytest.mark.slow
CHOSEN = Path("results/adaptive/measured.tsv")
HEADER = "llm_ids gpu_profile_ids workload_id scenario_id choose"
MEASURE = ("measure", "--budget-hours", "1")
SNAKEMAKE = ("--", "--cores", "2")


def adaptive(folder: Path) -> Project:
    """Return a project of two LLMs on two profiles of which no cell is asked for."""
    project = Project(folder)
    project.measure_little("opt-6m", "llama-16m")
    project.fit_one_workload()
    project.write_sheet("benchmarks", HEADER, ("*", "*", "conversation", "users-1-8", "adaptive"))
    header = "slo_id nttft_ms itl_ms percentile users"
    project.set_config(sheets__slos="config/slos.tsv")
    project.write_sheet("slos", header, ("loose", 100, 50, 50, 4), ("tight", 5, 10, 50, 20))
    return project


def chosen(project: Project) -> pd.DataFrame:
    return pd.read_csv(project.folder / CHOSEN, sep="\t", dtype={"levels": str})


def cells(project: Project) -> dict[str, int]:
    """Return when each cell was measured."""
    folder = project.folder / "results" / "benchmarks"
    return {str(run): run.stat().st_mtime_ns for run in folder.rglob("run.json")}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = adaptive(tmp_path_factory.mktemp("adaptive"))
    done = project.sextant(*MEASURE, *SNAKEMAKE)
    assert done.returncode == 0, done.stdout + done.stderr
    return project


def test_one_command_measures_what_was_chosen_at_its_levels_and_writes_the_report(finished) -> None:
    rows = chosen(finished)
    assert 1 <= len(rows) <= 4
    assert list(rows["round"]) == list(range(1, len(rows) + 1))
    assert len(cells(finished)) == len(rows)
    measured = finished.query(
        "SELECT llm_id, gpu_profile_id, string_agg(users, ',' ORDER BY users)"
        " FROM point GROUP BY ALL"
    )
    asked = rows[["llm_id", "gpu_profile_id", "levels"]]
    assert sorted(measured) == sorted(asked.itertuples(index=False, name=None))
    assert (finished.folder / "results" / "report" / "index.html").exists()


def test_a_second_run_measures_nothing(finished) -> None:
    before = (finished.folder / CHOSEN).read_bytes(), cells(finished)
    done = finished.sextant(*MEASURE, *SNAKEMAKE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ((finished.folder / CHOSEN).read_bytes(), cells(finished)) == before
    assert finished.planned()["benchmark_cell"] == 0


def test_cells_measured_before_count(finished, tmp_path) -> None:
    project = finished.copy(tmp_path / "copy")
    before, rows = cells(project), chosen(project)
    (project.folder / CHOSEN).unlink()
    done = project.sextant("measure", "--budget-hours", "1e-6", *SNAKEMAKE)
    assert done.returncode == 0, done.stdout + done.stderr
    # And a budget that is spent ends the rounds.
    assert "no further round" in done.stdout
    again = chosen(project)
    assert set(again["round"]) == {0}
    assert sorted(again["levels"]) == sorted(rows["levels"])
    assert cells(project) == before


def test_a_killed_run_goes_on_with_the_same_choice(tmp_path) -> None:
    project = adaptive(tmp_path / "killed")
    code = "from sextant.cli.app import main; main()"
    command = [sys.executable, "-c", code, *MEASURE, *SNAKEMAKE]
    with (tmp_path / "log").open("w") as log:
        run = subprocess.Popen(
            command, cwd=project.folder, stdout=log, stderr=log, start_new_session=True
        )
        wait_for((project.folder / CHOSEN).exists, "a chosen cell")
        os.killpg(run.pid, signal.SIGINT)
        run.wait()
    first = chosen(project).iloc[0]
    done = project.sextant(*MEASURE, *SNAKEMAKE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert chosen(project).iloc[0].equals(first)
    assert len(cells(project)) == len(chosen(project))


def test_without_a_chosen_cell_a_run_says_what_to_do(tmp_path) -> None:
    done = adaptive(tmp_path / "bare").snakemake("--cores", "2")
    assert done.returncode != 0
    assert "let `sextant measure` choose cells" in done.stderr
