"""The estimate of `sextant plan`, by hand, and how it learns from cells that were measured."""

import json
from itertools import product
from pathlib import Path

import pytest

from cells import TOO_LARGE, request, write_cell
from project import Project
from sextant.base.sheets import read_configuration
from sextant.experiment.experiment import Experiment
from sextant.experiment.loading import load_experiment
from sextant.experiment.scenarios import Batch, ClosedLoop, OpenLoop
from sextant.experiment.servers import Variant
from sextant.experiment.sheets import CellKey
from sextant.pages.blocks import as_text
from sextant.plan.document import plan_document
from sextant.plan.dry_run import DryRun, Job
from sextant.plan.estimate import (
    ASSUMED,
    EstimateTerms,
    FinishedCell,
    cell_s,
    estimate_terms,
    finished_cells,
)
from sextant.plan.run_plan import make_plan
from sextant.plan.workspace import Workspace

SWEEP = ClosedLoop(levels=(1, 2, 4, 8, 16, 32, 64, 128), warmup_s=10, duration_s=120)


@pytest.mark.parametrize(
    ("starts", "batch_weight_tokens", "starts_s"),
    [
        (None, None, 650),  # 5 of 120 + 10 s
        (None, 4096, 130),  # a batch weight that is given needs one
        (2, None, 260),
        (9, None, 650),  # measured starts count as far as they are allowed
    ],
)
def test_a_cell_takes_its_starts_its_levels_and_what_comes_on_top(
    starts: int | None, batch_weight_tokens: int | None, starts_s: float
) -> None:
    terms = EstimateTerms(starts, 120, 10, 15, "")
    variant = Variant(batch_weight_tokens=batch_weight_tokens)
    # 8 levels of 130 + 10 s, and 15 s
    assert cell_s(SWEEP, variant, 10, 5, terms) == starts_s + 1120 + 15


LEVELS = {
    "users for a time": (ClosedLoop(levels=(4,), warmup_s=1, duration_s=60, cooldown_s=2), 4, 63),
    "a rate for a time": (OpenLoop(levels=(4,), warmup_s=30, duration_s=300), 4, 330),
    "500 requests at 4 a second": (OpenLoop(levels=(4,), n_requests=500), 4, 125 + 10),
    "500 requests at once": (OpenLoop(levels=(4,), n_requests=500), float("inf"), 10),
    "500 requests, 64 in flight": (Batch(levels=(64,), n_requests=500), 64, 8 * 10),
    "as many requests as in flight": (Batch(levels=(64,), warmup_s=3), 64, 3 + 10),
}


@pytest.mark.parametrize("name", LEVELS)
def test_how_long_a_level_is_planned(name: str) -> None:
    scenario, level, expected_s = LEVELS[name]
    assert scenario.planned_s(level, request_s=10) == expected_s


def test_what_does_not_fit_costs_nothing(project: Project) -> None:
    config = read_configuration(Path(), [Path("config/cluster.yaml")])
    experiment, jobs = load_experiment(config), []
    asked = {"gpu": 1, "gpu_model": "t4", "mem_mb": 250_000, "runtime": 177}
    for llm, profile in product(("llama-7b", "llama-13b"), ("1xT4-16GB", "4xT4-16GB")):
        folder = CellKey(llm, profile, "conversation", "users-1-128").folder
        run = f"results/cluster/benchmarks/measured/{folder}/measured.json"
        jobs.append(Job("benchmark_cell", {}, (run,), 3, asked, False))
    plan = make_plan(Workspace(experiment, config), DryRun(jobs, 4, config))
    seconds = {(it.key.llm_id, it.key.gpu_profile_id): it.seconds for it in plan.cells}
    assert seconds["llama-13b", "1xT4-16GB"] == 0  # 24.2 GiB of weights in 0.9 x 16
    # 6,738,415,616 parameters of 2 bytes are 12.551 GiB
    assert seconds["llama-7b", "4xT4-16GB"] == pytest.approx(5 * 132.551 + 1120 + 15, abs=0.01)
    # 13,015,864,320 are 24.244
    long_s = 5 * 144.244 + 1120 + 15
    assert seconds["llama-13b", "4xT4-16GB"] == pytest.approx(long_s, abs=0.01)
    short_s = 5 * 132.551 + 1120 + 15
    # llama-7b on one T4: 1.8 GiB are left for 0.5 MiB a token, 3,786 tokens; 2,048 are needed
    assert seconds["llama-7b", "1xT4-16GB"] == pytest.approx(short_s, abs=0.01)
    assert plan.gpu_hours * 3600 == pytest.approx(5 * short_s + 4 * long_s, abs=0.1)
    assert plan.usd == pytest.approx(
        (0.752 * short_s + 3.912 * (short_s + long_s)) / 3600, abs=1e-4
    )
    assert plan.hours.one_at_a_time * 3600 == pytest.approx(2 * short_s + long_s, abs=0.1)
    assert plan.hours.on_nodes * 3600 == pytest.approx(short_s + long_s, abs=0.1)
    text = as_text(plan_document(plan))
    assert "4 cells to measure (2 LLMs, 2 GPU profiles), 24 points" in text
    assert "1 of them do not fit into memory" in text
    (line,) = [line for line in text.splitlines() if line.startswith("4xT4-16GB")]
    assert line.split()[1:8] == ["2", "2", "1", "t4", "3", "250", "3"]
    assert json.loads(json.dumps(plan.to_dict()))["n_submissions"] == 4


def test_replicas_need_their_devices_as_often(project: Project) -> None:
    config = read_configuration(Path(), [Path("config/studies.yaml")])
    experiment = load_experiment(config)
    four = CellKey("llama-13b", "1xA100-80GB", "conversation", "pods-1-128", "4-pods")
    run = f"results/studies-gpu/benchmarks/measured/{four.folder}/measured.json"
    jobs = (Job("benchmark_cell", {}, (run,), 9, {"gpu": 4}, False),)
    plan = make_plan(Workspace(experiment, config), DryRun(jobs, 1, config))
    assert plan.cells[0].n_devices == 4
    assert plan.gpu_hours == pytest.approx(4 * plan.hours.one_at_a_time)
    assert plan.usd == pytest.approx(4 * 3.430881 * plan.hours.one_at_a_time)


def measured(
    llm: str, profile: str, starts_s: list[float], wall_s: float | None, level_s: float = 6.0
) -> CellKey:
    """Write a cell of the demo: two levels of `level_s`, its probes and its job's time."""
    place = CellKey(llm, profile, "conversation", "users-1-8")
    folder = Path("results/benchmarks/measured") / place.folder
    ids = {"llm_id": llm, "gpu_profile_id": profile}
    levels = {1.0: level_s, 2.0: level_s}
    rows = [request(level) for level in levels]
    write_cell(folder, rows, durations_s=levels, starts_s=starts_s, **ids)
    if wall_s is not None:
        times = Path("logs/benchmarks/benchmark_cell/measured") / f"{place.folder}.tsv"
        times.parent.mkdir(parents=True, exist_ok=True)
        times.write_text(f"s\th:m:s\n1.0\t0:00:01\n{wall_s}\t0:00:00\n")
    return place


def demo() -> tuple[Experiment, list[FinishedCell]]:
    config = read_configuration(Path())
    workspace = Workspace(load_experiment(config), config)
    return workspace.experiment, finished_cells(workspace)


def test_the_nearest_cells_are_the_basis(project: Project) -> None:
    opt = measured("demo-opt-6m", "1xcpu-core", [20.0, 30.0], None)
    llama = measured("demo-llama-16m", "1xcpu-core", [40.0], None)
    measured("demo-llama-16m", "2xcpu-core", [10.0], None)
    experiment, finished = demo()
    same = estimate_terms(experiment, opt, finished)
    assert same.origin == "medians of 1 cells of this LLM on this GPU profile"
    assert (same.starts, same.start_s) == (2, pytest.approx(25, abs=0.05))
    neox = CellKey("demo-neox-34m", "1xcpu-core", opt.workload_id, opt.scenario_id)
    near = estimate_terms(experiment, neox, finished)
    assert near.origin == "medians of 2 cells on this GPU profile"
    assert (near.starts, near.start_s) == (1.5, pytest.approx(30, abs=0.05))
    only = estimate_terms(
        experiment, neox, [cell for cell in finished if cell.key not in (opt, llama)]
    )
    assert only.origin == "medians of 1 cells on the same kind of device (cpu)"
    assert estimate_terms(experiment, neox, []) == ASSUMED["cpu"]


def test_the_time_on_top_is_what_the_job_took_more(project: Project) -> None:
    place = measured("demo-opt-6m", "1xcpu-core", [20.0, 30.0], 71.0)
    experiment, finished = demo()
    terms = estimate_terms(experiment, place, finished)
    # 71 - 50 of starts - 2 x (6 + 0.5 of warm-up) = 8 for two levels
    assert (terms.level_extra_s, terms.cell_extra_s) == (pytest.approx(4), 0)


def test_cells_that_are_damaged_or_have_no_levels_tell_nothing(project: Project) -> None:
    place = measured("demo-opt-6m", "1xcpu-core", [20.0], 50.0)
    (Path("results/benchmarks/measured") / place.folder / "run.json").write_text("{")
    folder = Path("results/benchmarks/measured/demo-llama-16m/1xcpu-core/conversation/users-1-8")
    write_cell(folder, verdict=TOO_LARGE, llm_id="demo-llama-16m", gpu_profile_id="1xcpu-core")
    assert demo()[1] == []
