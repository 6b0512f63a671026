"""Which cells to measure next: gains that can be computed by hand, budgets, and the first order."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cells import request, write_cell
from project import Project
from sextant.base.errors import InputError
from sextant.base.sheets import read_configuration
from sextant.experiment.loading import load_experiment
from sextant.experiment.sheets import CellKey
from sextant.facts.gpu import profile_of_id
from sextant.facts.llm import load_llm
from sextant.facts.slo import SLO
from sextant.judge.task import Task
from sextant.pages.blocks import as_text
from sextant.plan.cell_order import Budget, Candidate, MeasurementPlan, Stop, order_cells
from sextant.plan.document import measurement_document
from sextant.plan.estimate import ASSUMED, CellPlan
from sextant.plan.measurements import (
    Measured,
    candidates_of,
    given_measurements,
    plan_measurements,
    plan_of_experiment,
)
from sextant.plan.value import Decisions, weigh_decisions
from sextant.plan.workspace import Workspace
from sextant.points.frame import COLUMNS, FactTables, complete
from sextant.predict.predictor import Draws

SLOW, FAST = 100.0, 10.0
# One T4 may be too slow; one A10 is never, and costs half as much again.
PROFILES = {
    "1xT4-16GB": replace(profile_of_id("1xT4-16GB"), usd_per_hour=1.0),
    "1xA10-24GB": replace(profile_of_id("1xA10-24GB"), usd_per_hour=1.5),
}
CHAT = SLO("chat", itl_ms=30.0, percentile=50, users=8)


def world(itl_ms: dict[tuple[str, str], np.ndarray], levels: tuple[int, ...] = (8,)) -> Draws:
    """Draws of ITL by cell, (draws, levels) or (draws,)."""
    rows = [(*cell, users, 100.0, 20.0) for cell in itl_ms for users in levels]
    columns = ["llm_id", "gpu_profile_id", "users", "input_tokens", "output_tokens"]
    itl = np.concatenate([each.reshape(len(each), -1) for each in itl_ms.values()], axis=1)
    samples_ms = np.stack([np.ones_like(itl), itl], axis=-1)
    return Draws(pd.DataFrame(rows, columns=columns), samples_ms)


def coin(seed: int = 0, n: int = 1000) -> np.ndarray:
    """ITL that is slow in half of the draws."""
    return np.where(np.random.default_rng(seed).permutation(n) % 2 == 0, SLOW, FAST)


def decisions(itl_ms: dict[tuple[str, str], np.ndarray], levels=(8,)) -> Decisions:
    return weigh_decisions(world(itl_ms, levels), PROFILES, [CHAT], seed=1)


def offered(*cells: tuple[str, str], levels: tuple[int, ...] = (8,), **costs) -> list[Candidate]:
    cost = {"start_hours": 0.5, "level_hours": 0.1, "n_devices": 1, "usd_per_hour": 1.0} | costs
    return [Candidate(*cell, levels, **cost) for cell in cells]


T4, A10 = ("a", "1xT4-16GB"), ("a", "1xA10-24GB")
DOUBT = {T4: coin(), A10: np.full(1000, FAST)}


def test_a_measurement_gains_what_knowing_it_is_worth() -> None:
    """Half of the time the T4 serves: the A10 is then worth 0.5, else 1, so 0.75 on average; told
    of the T4 the answer is worth 1. The A10 tells nothing."""
    found = order_cells([decisions(DOUBT)], offered(T4, A10), Budget())
    (only,) = found.rounds
    (cell,) = only.cells
    assert cell.pair == T4
    assert cell.gain == pytest.approx(0.25, abs=0.01)
    assert (cell.hours, cell.gpu_hours, cell.usd) == pytest.approx((0.6, 0.6, 0.6))
    assert found.stopped is Stop.NOTHING_GAINED
    # Now: S 1, and half as much again is spent in half of the draws.
    assert found.now.expected_so == pytest.approx(2 * 0.75 / 1.75, abs=0.01)
    assert only.after.expected_so == pytest.approx(1.0, abs=0.01)
    assert found.now.answers.iloc[0][["gpu_profile_id", "replicas"]].tolist() == ["1xA10-24GB", 1]


def test_another_llm_tells_as_much_where_both_are_fast_together() -> None:
    """One coin decides for two LLMs; the cell that costs less is measured, and it is enough."""
    both = DOUBT | {("b", "1xT4-16GB"): coin(), ("b", "1xA10-24GB"): np.full(1000, FAST)}
    cells = [*offered(T4), *offered(("b", "1xT4-16GB"), start_hours=0.2)]
    found = order_cells([decisions(both)], cells, Budget())
    assert [each.pair for done in found.rounds for each in done.cells] == [("b", "1xT4-16GB")]


def test_chance_likeness_of_draws_is_no_gain() -> None:
    """With 1,000 draws some latencies correlate with anything: nothing is promised of that."""
    draws = np.exp(np.random.default_rng(5).normal(2, 0.5, (1000, 3)))
    none = {A10: np.full(1000, FAST), ("b", "1xA10-24GB"): draws[:, 0]}
    found = order_cells([decisions(none)], offered(("b", "1xA10-24GB")), Budget())
    assert found.rounds == ()
    assert found.stopped is Stop.NOTHING_GAINED


@pytest.mark.parametrize(
    ("budget", "stopped", "n_rounds"),
    [
        (Budget(gpu_hours=0.5), Stop.BUDGET, 0),
        (Budget(gpu_hours=0.61), Stop.NOTHING_GAINED, 1),
        (Budget(rounds=0), Stop.ENOUGH_ROUNDS, 0),
    ],
)
def test_it_stops_and_says_why(budget: Budget, stopped: Stop, n_rounds: int) -> None:
    cells = offered(T4, A10)
    found = order_cells([decisions(DOUBT)], cells, budget)
    assert (found.stopped, len(found.rounds)) == (stopped, n_rounds)
    assert stopped.value in as_text(measurement_document(found, cells))


def test_a_round_takes_no_more_of_a_profile_than_can_run() -> None:
    two = DOUBT | {("b", "1xT4-16GB"): coin(1), ("b", "1xA10-24GB"): np.full(1000, FAST)}
    cells = offered(T4, ("b", "1xT4-16GB"))
    at_once = order_cells([decisions(two)], cells, Budget(at_once=2))
    assert [len(done.cells) for done in at_once.rounds] == [2]
    in_turn = order_cells([decisions(two)], cells, Budget(at_once=2, of_profile=1))
    assert [len(done.cells) for done in in_turn.rounds] == [1, 1]


def test_levels_are_those_where_a_limit_may_bind() -> None:
    """The T4 holds the limit up to 2 users for sure and never beyond 32."""
    rng, levels = np.random.default_rng(3), (1, 2, 4, 8, 16, 32, 64)
    most = rng.choice([2, 4, 8, 16], 1000)
    curve = np.where(np.array(levels) <= most[:, None], FAST, SLOW)
    sure = np.full((1000, len(levels)), FAST)
    known = [decisions({T4: curve, A10: sure}, levels)]
    found = order_cells(known, offered(T4, levels=levels), Budget())
    assert found.rounds[0].cells[0].levels == (4, 8, 16)
    assert found.rounds[0].cells[0].hours == pytest.approx(0.5 + 3 * 0.1)


def test_what_was_measured_holds_at_its_point_and_moves_its_neighbours() -> None:
    draws = world({T4: np.tile([20.0, 40.0], (1000, 1))}, levels=(8, 16))
    truth = pd.DataFrame({"nttft_ms": [1.0, np.nan], "itl_ms": [30.0, np.nan]})
    itl_ms = given_measurements(draws.X, draws.samples_ms, truth, seed=1)[..., 1]
    assert (itl_ms[:, 0] == 30).all()
    assert 40 < np.median(itl_ms[:, 1]) < 60


@pytest.fixture(scope="module")
def empty_task() -> Task:
    llms = {name: load_llm(f"resources/llms/{name}.json", "float16") for name in ("llama-7b",)}
    facts = FactTables(llms, PROFILES, None)
    return Task("measured", complete(pd.DataFrame(columns=COLUMNS)), facts, frozenset())


def test_without_any_point_the_laws_prior_gives_an_order(empty_task: Task) -> None:
    cells = offered(("llama-7b", "1xT4-16GB"), ("llama-7b", "1xA10-24GB"), levels=(1, 8, 64))
    slo = SLO("chat", nttft_ms=20.0, itl_ms=60.0, percentile=50, users=100)
    given = {"lengths": (300.0, 100.0), "served_as": {"engine": "vllm"}}
    asked = Measured(empty_task), [slo], cells, Budget(), 42
    made = [plan_measurements(*asked, **given) for _ in range(2)]
    first, again = (measurement_document(plan, cells).data for plan in made)
    assert made[0].rounds and first == again


def test_an_slo_about_other_requests_is_refused(empty_task: Task) -> None:
    slo = SLO("long", itl_ms=50.0, percentile=50, users=9, input_tokens=9000, output_tokens=9)
    with pytest.raises(InputError, match="long is about requests of other lengths"):
        plan_measurements(Measured(empty_task), [slo], offered(T4), Budget(), 42)


PLACE = {"workload_id": "conversation", "scenario_id": "users-1-8"}
LLMS = ("demo-opt-6m", "demo-llama-16m")


def of_demo(
    measured: set[tuple[str, str]] = frozenset(), files: tuple[str, ...] = (), **limits: float
) -> MeasurementPlan:
    """The order of the demo's cells of two LLMs, without those that are measured."""
    config = read_configuration(Path())
    workspace = Workspace(load_experiment(config), config)
    plans = [
        CellPlan(CellKey(llm, profile, **PLACE), None, 1, 4, "fits", 100.0, 0.01, ASSUMED["cpu"])
        for llm in LLMS
        for profile in ("1xcpu-core", "2xcpu-core")
        if (llm, profile) not in measured
    ]
    plans.append(replace(plans[0], key=replace(plans[0].key, scenario_id="another")))
    cells = candidates_of(workspace, plans)
    return plan_of_experiment(workspace, cells, Budget(**limits), files)


def test_a_configuration_is_planned_from_the_cells_on_disk(project: Project) -> None:
    with pytest.raises(InputError, match=r"how long the workload's requests are.*run `make demo`"):
        of_demo()
    command = "snakemake --cores 1 --configfile 'my a.yaml' -- results/workloads/conversation/req"
    with pytest.raises(InputError, match=command):
        of_demo(files=("my a.yaml",))
    workload = Path("results/workloads/conversation")
    workload.mkdir(parents=True)
    bins = {"input_tokens": [8, 24], "output_tokens": [4, 4], "count": [1, 3]}
    pd.DataFrame(bins).to_parquet(workload / "requests.parquet")
    before = of_demo()
    chosen = [each for done in before.rounds for each in done.cells]
    assert {each.llm_id for each in chosen} <= set(LLMS)
    assert all(set(each.levels) <= {1, 2, 3, 4, 6, 8} for each in chosen)

    for llm in LLMS:
        ids = {"llm_id": llm, "gpu_profile_id": "1xcpu-core"}
        folder = Path("results/benchmarks/measured") / CellKey(**ids, **PLACE).folder
        write_cell(folder, [request(level) for level in (1.0, 2.0, 4.0, 8.0)], **ids)
    after = of_demo({(llm, "1xcpu-core") for llm in LLMS})
    assert len(after.now.answers) == len(before.now.answers)  # measured LLMs are answered too
    assert after.now.expected_so > before.now.expected_so
    assert all(each.gpu_profile_id == "2xcpu-core" for it in after.rounds for each in it.cells)
    archive = read_configuration(Path(), [Path("config/llm-pilot.yaml")])
    experiment = load_experiment(read_configuration(Path()))
    with pytest.raises(InputError, match="nothing of an archive is left to measure"):
        plan_of_experiment(Workspace(experiment, archive), [], Budget())
