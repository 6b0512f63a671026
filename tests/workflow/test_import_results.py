"""Cells that were taken over are not measured again: Snakemake itself is asked, and run."""

import json
import shutil
import sys
import tarfile
from collections import Counter
from pathlib import Path

import duckdb
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from forked_snakemake import dry_run
from project import Project
from sextant.points.cells.integrity import sealed

AGGREGATED = Counter(aggregate_points=1, evaluate_predictor=4, build_store=1, write_report=1)
FORGOTTEN = {*AGGREGATED, "benchmark_cell"}


@pytest.fixture(scope="module")
def clean(finished: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The same project on another machine, where traces and workloads have been prepared."""
    project = finished.copy(tmp_path_factory.mktemp("elsewhere") / "project")
    for record in (project.folder / ".snakemake" / "metadata").rglob("*"):
        if record.is_file() and json.loads(record.read_text())["rule"] in FORGOTTEN:
            record.unlink()
    results = project.folder / "results"
    for name in ("benchmarks", "points", "predictions"):
        shutil.rmtree(results / name)
    (results / "sextant.duckdb").unlink()
    (results / "report" / "index.html").unlink()
    return project


@pytest.fixture
def elsewhere(clean: Project, tmp_path: Path) -> Project:
    """A copy of it, whose files are as old as they were."""
    return clean.copy(tmp_path / "project")


def points(folder: Path) -> list[tuple]:
    path = folder / "results" / "points" / "measured" / "point.parquet"
    return duckdb.sql(f"SELECT * EXCLUDE (source) FROM '{path}' ORDER BY ALL").fetchall()


def test_what_was_imported_is_aggregated_and_never_measured(finished, elsewhere) -> None:
    assert dry_run(elsewhere.folder).by_rule == AGGREGATED + Counter(benchmark_cell=8)
    done = elsewhere.sextant("import", str(finished.folder / "results"))
    assert done.returncode == 0, done.stderr
    assert "8 taken over" in done.stdout
    assert dry_run(elsewhere.folder).by_rule == AGGREGATED
    made = elsewhere.snakemake("--cores", "2", "results/points/measured/point.parquet")
    assert made.returncode == 0, made.stderr
    assert points(elsewhere.folder) == points(finished.folder)
    assert dry_run(elsewhere.folder).by_rule == AGGREGATED - Counter(aggregate_points=1)

    again = elsewhere.sextant("import", str(finished.folder / "results"))
    assert "8 here already" in again.stdout
    assert dry_run(elsewhere.folder).by_rule == AGGREGATED - Counter(aggregate_points=1)

    # an addition after an import measures what is new
    llms = elsewhere.sheet("llms")
    llms.write_text(llms.read_text() + "new\tresources/llms/demo-qwen2-26m.json\t\n")
    planned = dry_run(elsewhere.folder)
    assert planned.cells() == {f"new {gpus}xcpu-core conversation users-1-8" for gpus in (1, 2)}
    assert planned.by_rule == AGGREGATED + Counter(benchmark_cell=2)


def test_an_imported_cell_grows_stale_as_any_other(finished, elsewhere) -> None:
    done = elsewhere.sextant("import", str(finished.folder / "results"))
    assert done.returncode == 0, done.stderr
    scenarios = elsewhere.sheet("scenarios")
    scenarios.write_text(scenarios.read_text().replace("1,2", "1,2,4"))
    assert len(dry_run(elsewhere.folder).cells()) == 8


def test_a_part_of_the_cells_leaves_the_others_to_be_measured(
    finished, elsewhere, tmp_path
) -> None:
    with tarfile.open(tmp_path / "cells.tar", "w") as archive:
        archive.add(finished.folder / "results/benchmarks/measured/llm-opt-6m", "opt")
    done = elsewhere.sextant("import", str(tmp_path / "cells.tar"))
    assert "2 taken over" in done.stdout, done.stderr
    measured = dry_run(elsewhere.folder).cells()
    assert len(measured) == 6
    assert not [cell for cell in measured if cell.startswith("llm-opt-6m")]


def test_a_damaged_cell_is_left_out_and_the_import_says_so_by_its_status(
    finished, elsewhere, tmp_path
) -> None:
    shutil.copytree(finished.folder / "results" / "benchmarks", tmp_path / "theirs")
    broken = sorted((tmp_path / "theirs").rglob("requests.parquet"))[0]
    broken.write_bytes(broken.read_bytes()[:-1])
    done = elsewhere.sextant("import", str(tmp_path / "theirs"))
    assert done.returncode == 2
    assert "7 taken over" in done.stdout
    assert "1 damaged cells are left out" in done.stderr
    assert len(dry_run(elsewhere.folder).cells()) == 1


def test_what_snakemake_knew_of_the_cells_gives_way(finished, elsewhere) -> None:
    """It has measured a cell with other levels here, and the import fits those of now."""
    cell = "results/benchmarks/measured/llm-opt-6m/1xcpu-core/conversation/users-1-8"
    scenarios = elsewhere.sheet("scenarios")
    now = scenarios.read_text()
    scenarios.write_text(now.replace("1,2", "1"))
    made = elsewhere.snakemake("--cores", "2", f"{cell}/run.json")
    assert made.returncode == 0, made.stderr
    scenarios.write_text(now)
    assert "llm-opt-6m 1xcpu-core conversation users-1-8" in dry_run(elsewhere.folder).cells()
    done = elsewhere.sextant("import", str(finished.folder / "results"))
    assert done.returncode == 0, done.stderr
    assert dry_run(elsewhere.folder).cells() == set()
    levels = json.loads((elsewhere.folder / cell / "run.json").read_text())["levels"]
    assert [level["level"] for level in levels] == [1, 2]


def test_a_conflict_is_named_and_nothing_is_written(finished, elsewhere, tmp_path) -> None:
    shutil.copytree(finished.folder / "results" / "benchmarks", tmp_path / "theirs")
    for path in (tmp_path / "theirs").rglob("2xcpu-core/*/*/run.json"):
        run = json.loads(path.read_text())
        run["server"]["version"] = "9.9"
        path.write_text(json.dumps(sealed(run)))
    done = elsewhere.sextant("import", str(tmp_path / "theirs"))
    assert done.returncode == 2
    assert "conflicts, nothing was written" in done.stderr
    assert "engine: vllm 9.9, vllm fake there" in done.stdout
    assert "9.9" in done.stdout
    assert not (elsewhere.folder / "results" / "benchmarks").exists()
    allowed = elsewhere.sextant("import", "--allow-mixed", str(tmp_path / "theirs"))
    assert allowed.returncode == 0, allowed.stderr
    assert dry_run(elsewhere.folder).cells() == set()


def test_an_import_disturbs_no_run(finished, elsewhere) -> None:
    """While Snakemake works with the cells, none is imported."""
    locks = elsewhere.folder / ".snakemake" / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    cell = "results/benchmarks/measured/llm-opt-6m/1xcpu-core/conversation/users-1-8"
    (locks / "0.output.lock").write_text(f"results/sextant.duckdb\n{cell}/run.json\n")
    done = elsewhere.sextant("import", str(finished.folder / "results"))
    assert done.returncode == 2
    assert "a run works with this file" in done.stderr
    assert not (elsewhere.folder / "results" / "benchmarks").exists()
