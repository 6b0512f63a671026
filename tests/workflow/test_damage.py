"""Damaged files: each is named with what to do, which leads to the results of before."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import duckdb
import pandas as pd
import pytest

from forked_snakemake import dry_run
from project import Project

pytestmark = pytest.mark.slow

CELLS = "results/benchmarks/measured"
PLACE = "1xcpu-core/conversation/users-1-8"
STORE = "results/sextant.duckdb"
AFTER_POINTS = {"evaluate_predictor": 2, "build_store": 1, "write_report": 1}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Two LLMs on one profile (fake engine), and the quickest of the predictors."""
    project = Project(tmp_path_factory.mktemp("damage"))
    project.measure_little("opt-6m", "llama-16m", predictors=["static_policy"])
    project.fit_one_workload()
    header = "gpu_profile_id gpu_id n_gpus usd_per_hour"
    project.write_sheet("gpu_profiles", header, ("1xcpu-core", "cpu-core", 1, 0.04))
    run(project)
    return project


def run(project: Project, *arguments: str) -> None:
    done = project.snakemake("--cores", "2", *arguments)
    assert done.returncode == 0, done.stderr


def planned(project: Project) -> Counter[str]:
    return dry_run(project.folder).by_rule


def refused(project: Project, *arguments: str) -> str:
    """Run what has to fail, and return what it says: our words, and no traceback of ours."""
    done = project.snakemake("--cores", "2", *arguments)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def tables(project: Project) -> dict[str, pd.DataFrame]:
    """Return the tables of the store, less where they come from and how long a fit took."""
    with duckdb.connect(str(project.folder / STORE), read_only=True) as store:
        names = {name for (name,) in store.execute("SHOW TABLES").fetchall()} - {"provenance"}
        read = {name: store.execute(f"FROM {name} ORDER BY ALL").df() for name in sorted(names)}
    return {
        name: table.drop(columns=["fit_seconds", "provenance"], errors="ignore")
        for name, table in read.items()
    }


def contents(project: Project, *folders: str) -> dict[Path, bytes]:
    files = (file for name in folders for file in (project.folder / name).rglob("*"))
    return {file: file.read_bytes() for file in files if file.is_file()}


def flipped(content: bytes) -> bytes:
    """Flip bits throughout: one alone may hit padding, which means nothing."""
    changed, places = bytearray(content), slice(16, None, max(len(content) // 50, 1))
    changed[places] = b"\x5a" * len(changed[places])
    return bytes(changed)


def damage(path: Path, how: Callable[[bytes], bytes]) -> None:
    assert path.read_bytes() != how(path.read_bytes())
    path.write_bytes(how(path.read_bytes()))


def test_damaged_cells_are_named_and_measured_again_and_no_other(measured: Project) -> None:
    bad, good = (f"{CELLS}/llm-{name}/{PLACE}" for name in ("opt-6m", "llama-16m"))
    before = contents(measured, good)
    damage(measured.folder / bad / "requests.parquet", lambda content: content[:1000])
    said = refused(measured)
    assert "1 of 2 cells are damaged" in said
    assert f"{bad}: requests.parquet has" in said
    assert "set aside in damaged-1. Fix: run the same command again" in said
    again = {"benchmark_cell": 1, "aggregate_points": 1, **AFTER_POINTS}
    assert planned(measured) == again
    run(measured)
    assert planned(measured) == {}
    assert contents(measured, good) == before
    folders = [path.name for path in (measured.folder / bad).iterdir() if path.is_dir()]
    assert folders == ["damaged-1"]
    levels = tables(measured)["point"].groupby("llm_id")["level"].apply(list)
    assert levels.to_dict() == {f"llm-{name}": [1.0, 2.0] for name in ("llama-16m", "opt-6m")}


MADE = {
    "points/measured/point.parquet": {"aggregate_points": 1, **AFTER_POINTS},
    "predictions/measured/static_policy/score.parquet": AFTER_POINTS | {"evaluate_predictor": 1},
    "sextant.duckdb": {"build_store": 1, "write_report": 1},
}


@pytest.mark.parametrize("name", MADE)
def test_what_is_damaged_is_deleted_and_made_again(measured: Project, name: str) -> None:
    path, again = f"results/{name}", MADE[name]
    before, cells = tables(measured), contents(measured, CELLS)
    damage(measured.folder / path, flipped if "score" in name else lambda content: content[:500])
    said = refused(measured)
    assert f"{path}: " in said and "cannot be read" in said and "delete it and run" in said
    (measured.folder / path).unlink()
    assert planned(measured) == again
    run(measured)
    for table, rows in tables(measured).items():
        pd.testing.assert_frame_equal(rows, before[table])
    assert contents(measured, CELLS) == cells


@pytest.mark.parametrize(
    ("name", "reader", "rule"),
    [
        ("results/traces/azure-2023-conv-sample.parquet", "write_trace_report", "ingest_trace"),
        ("results/workloads/conversation/validation.json", "build_store", "fit_workload"),
    ],
)
def test_traces_and_workloads_are_made_again_and_no_cell_is_measured(
    measured: Project, name: str, reader: str, rule: str
) -> None:
    path = measured.folder / name
    before, cells = tables(measured), contents(measured, CELLS)
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    damage(path, flipped)
    os.utime(path, ns=times)  # as a disk that rots
    said = refused(measured, "--forcerun", reader, "--until", reader)
    assert name in said
    assert f"--forcerun {rule} --until fit_workload" in said
    run(measured, "--forcerun", rule, "--until", "fit_workload")
    assert "benchmark_cell" not in planned(measured)
    run(measured)
    for table, rows in tables(measured).items():
        pd.testing.assert_frame_equal(rows, before[table])
    assert contents(measured, CELLS) == cells


def test_a_second_snakemake_is_refused_and_harms_nothing(measured: Project) -> None:
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--forcerun", "aggregate_points"]
    first = subprocess.Popen(
        command, cwd=measured.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    for line in first.stderr:
        if "Execute" in line:
            break
    first.send_signal(signal.SIGSTOP)  # it is not done before the second has come, however slow
    second = measured.snakemake("--cores", "1")
    first.send_signal(signal.SIGCONT)
    first.communicate()
    assert second.returncode != 0
    assert "Directory cannot be locked" in second.stderr
    assert first.returncode == 0
    assert planned(measured) == {}
