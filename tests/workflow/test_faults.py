"""Faults in a run of the DAG: nothing is left behind, and the next run finishes the work."""

import random
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import psutil
import pytest

from interrupted import InterruptedRun, essence, scratch_place
from project import Project
from sextant.points.cell_files import damaged_files
from support import FAKE_PYTHON

SLOW = partial(pytest.param, marks=pytest.mark.slow)
SEED, N_KILLS = 7, 20
TARGET = "results/points/measured/point.parquet"
SCENARIOS = (
    ("users-1-8", "closed_loop", "1,2", 0.1, 0.4, ""),
    ("fixed-batch", "batch", "3,8", 0.1, "", 12),
    ("fixed-rate", "open_loop", "20,40", 0.1, "", 12),
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project of one LLM on one profile, with scenarios of fixed numbers of requests."""
    return small_project(tmp_path_factory.mktemp("faults"), SCENARIOS)


def small_project(folder: Path, scenarios: Sequence[tuple]) -> Project:
    """Return a project of one LLM on one profile that measures some scenarios."""
    project = Project(folder)
    project.set_config(engine__python=str(FAKE_PYTHON), engine__max_num_seqs=8)
    row = ("llm-opt-6m", "resources/llms/demo-opt-6m.json", "")
    project.write_sheet("llms", "llm_id config model", row)
    header = "scenario_id kind levels warmup_s duration_s n_requests"
    project.write_sheet("scenarios", header, *scenarios)
    header = "llm_ids gpu_profile_ids workload_id scenario_id"
    rows = [("*", "1xcpu-core", "conversation", scenario) for scenario, *_ in scenarios]
    project.write_sheet("benchmarks", header, *rows)
    return project


@pytest.fixture(scope="module")
def run(small: Project) -> Iterator[InterruptedRun]:
    with scratch_place() as scratch:
        yield InterruptedRun(small, Path(scratch), TARGET)


@pytest.fixture(scope="module")
def undisturbed(run: InterruptedRun) -> tuple[dict, float]:
    """What an undisturbed run comes to, and the seconds it takes."""
    started_s = time.monotonic()
    run.finish()
    took_s = time.monotonic() - started_s
    found = essence(run.project.folder / "results")
    assert len(found["cells"]) == 3 and len(found["points"]) == 6
    assert all(row[-2:] == [12, 0] for row in found["counted"]) and len(found["counted"]) == 4
    return found, took_s


def forget_cell(project: Project) -> Path:
    """Remove the batch's cell and what was made from it; return its folder."""
    results = project.folder / "results"
    cell = results / "benchmarks/measured/llm-opt-6m/1xcpu-core/conversation/fixed-batch"
    for folder in (cell, results / "points"):
        shutil.rmtree(folder)
    return cell


@pytest.mark.slow
def test_snakemake_is_killed_at_20_moments(run: InterruptedRun, undisturbed) -> None:
    """Each run goes on from the last until one comes to its end; the next begins with nothing."""
    expected, took_s = undisturbed
    random_moments = random.Random(SEED)
    results = run.project.folder / "results"
    n_killed, longest_s, n_finished = 0, 0.0, 0
    shutil.rmtree(results)
    while n_killed < N_KILLS:
        main = run.start()
        deadline_s = time.monotonic() + random_moments.uniform(0.5, 0.45 * took_s)
        while main.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.02)
        if main.poll() is None:
            doing = run.activity()
            longest_s = max(longest_s, run.kill(main))
            print(f"killed: {doing}", flush=True)
            n_killed += 1
            run.unlock(as_the_user_does=n_killed <= 2)
            run.check_files()
        else:
            assert main.returncode == 0, run.logs()
            assert essence(results) == expected
            shutil.rmtree(results)
            n_finished += 1
    run.finish()
    assert essence(results) == expected
    print(f"{n_killed} kills, {n_finished + 1} runs finished, {longest_s:.1f} s until all ended")


@pytest.mark.parametrize("moment", [SLOW("start"), SLOW("4"), SLOW("45")])
def test_somebody_kills_the_server(run, undisturbed, tmp_path, monkeypatch, moment) -> None:
    """At its start, in the corner cases, under load: the job fails, its retry goes on."""
    cell = forget_cell(run.project)
    monkeypatch.setitem(run.environ, "FAKE_KILLED_ONCE", f"{tmp_path / 'killed'}:{moment}")
    run.finish()
    assert (tmp_path / "killed").exists()
    assert essence(run.project.folder / "results") == undisturbed[0]
    assert damaged_files(cell) == {}
    assert not run.processes() and not list(run.scratch.iterdir())


@pytest.mark.parametrize("number", [signal.SIGKILL, SLOW(signal.SIGTERM)])
def test_a_job_is_killed(run, undisturbed, number) -> None:
    cell = forget_cell(run.project)
    main = run.start()
    kept = cell / "partial" / "level-3"
    job = None
    while job is None:
        assert main.poll() is None
        if (kept / "level.json").exists():
            job = next((p for p in run.processes() if _is_job(p)), None)
        time.sleep(0.02)
    job.send_signal(number)
    assert main.wait(300) == 0, run.logs()
    assert essence(run.project.folder / "results") == undisturbed[0]
    run.check_files()
    assert not run.processes() and not list(run.scratch.iterdir())


def test_a_job_does_not_outlive_snakemake(tmp_path) -> None:
    """Of minutes to measure, only what a job needs to end in order passes."""
    project = small_project(tmp_path, [("users-1-8", "closed_loop", "1,2", 0.1, 300, "")])
    with scratch_place() as scratch:
        run = InterruptedRun(project, Path(scratch), TARGET)
        main = run.start()
        while "telemetry" not in run.activity():
            assert main.poll() is None, run.logs()
            time.sleep(0.1)
        assert run.kill(main) < 60
    run.check_files()


def _is_job(process: psutil.Process) -> bool:
    try:
        command = process.cmdline()
    except psutil.Error:
        return False
    return len(command) == 2 and command[1].endswith("benchmark_cell.py")
