"""The plan: jobs, requests by GPU profile, hours, cost, and the estimate's error."""

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sextant.answer.plan.estimate import Basis, expected_s, feasibility
from sextant.answer.plan.history import Error, basis, estimate_errors, finished_cells
from sextant.answer.plan.jobs import DryRun, Job
from sextant.experiment.cell_key import CellKey
from sextant.experiment.experiment import Experiment


@dataclass(frozen=True)
class Request:
    """What a job asks the scheduler for."""

    cores: int
    memory_mb: int | None
    minutes: int | None
    gpus: int
    gpu_model: str | None


NOTHING_ASKED = Request(0, None, None, 0, None)
"""Of a cell for which Snakemake has no job."""


@dataclass(frozen=True)
class CellPlan:
    """A cell that would be measured."""

    key: CellKey
    request: Request
    n_devices: int
    n_levels: int
    """0 where memory facts rule the cell out."""
    verdict: str
    seconds: float
    usd: float
    basis: Basis | None
    """The terms of the estimate; None where there is nothing to measure."""


@dataclass(frozen=True)
class Hours:
    """How long all cells take, by the way they are run; waits in a queue not included."""

    one_at_a_time: float
    on_nodes: float
    """With `n_nodes` of each GPU profile, the longest cells first."""
    n_nodes: int
    llm_by_llm: float
    """One LLM after another, each on all GPU profiles at once: how LLM-Pilot counts."""


@dataclass(frozen=True)
class Plan:
    """What a run would do."""

    jobs: dict[str, int]
    """Number of jobs by rule."""
    n_submissions: int
    cells: tuple[CellPlan, ...]
    gpu_hours: float
    """Devices times hours; processor cores that are used as devices count as devices."""
    usd: float
    hours: Hours
    errors: dict[str, Error]
    """Of the estimate, on cells that were measured."""


def make_plan(
    experiment: Experiment, config: Mapping[str, Any], run: DryRun, folder: Path, n_nodes: int = 1
) -> Plan:
    """Return what a run would do, and an estimate of what it takes, with `n_nodes` servers of each
    GPU profile at once; paths of the configuration start from `folder`.
    """
    finished = finished_cells(experiment, config, folder)
    by_file = {
        f"benchmarks/{config['source']}/{key.folder}/run.json": key for key in experiment.cells
    }
    cells = tuple(
        _cell_plan(experiment, config, key, job, basis(experiment, key, finished))
        for job in run.jobs
        if job.rule == "benchmark_cell"
        for key in [_key(job, by_file)]
    )
    return Plan(
        jobs=dict(Counter(job.rule for job in run.jobs)),
        n_submissions=run.n_submissions,
        cells=cells,
        gpu_hours=sum(cell.n_devices * cell.seconds for cell in cells) / 3600,
        usd=sum(cell.usd for cell in cells),
        hours=_hours(cells, n_nodes),
        errors=estimate_errors(experiment, config, finished),
    )


def _key(job: Job, by_file: Mapping[str, CellKey]) -> CellKey:
    (run,) = (Path(file) for file in job.outputs if file.endswith("/run.json"))
    return by_file["/".join(run.parts[-7:])]  # below the folder of results, wherever that is


def _cell_plan(
    experiment: Experiment, config: Mapping[str, Any], key: CellKey, job: Job, known: Basis
) -> CellPlan:
    return replace(
        unplanned_cell(experiment, config, key, known),
        request=Request(
            # A dry run for a cluster counts one core: there, the cores are a request of their own.
            cores=job.resources.get("cpus_per_task") or job.threads,
            memory_mb=job.resources.get("mem_mb"),
            minutes=job.resources.get("runtime"),
            gpus=job.resources.get("gpu", 0),
            gpu_model=job.resources.get("gpu_model"),
        ),
    )


def unplanned_cell(
    experiment: Experiment, config: Mapping[str, Any], key: CellKey, known: Basis
) -> CellPlan:
    """Return what a cell takes for which Snakemake has no job."""
    profile, variant = experiment.profiles[key.gpu_profile_id], experiment.variants[key.variant_id]
    scenario, found = experiment.scenario(key), feasibility(experiment, key, config)
    seconds = expected_s(experiment, key, config, known) if found.is_feasible else 0.0
    return CellPlan(
        key=key,
        request=NOTHING_ASKED,
        n_devices=profile.n_gpus * variant.n_device_sets,
        n_levels=len(scenario.levels) if found.is_feasible else 0,
        verdict=found.verdict.reason,
        seconds=seconds,
        usd=seconds / 3600 * profile.usd_per_hour * variant.n_device_sets,
        basis=known if found.is_feasible else None,
    )


def _hours(cells: Sequence[CellPlan], n_nodes: int) -> Hours:
    by_profile = _grouped(cells, lambda cell: cell.key.gpu_profile_id)
    by_llm = _grouped(cells, lambda cell: cell.key.llm_id)
    slowest = [
        max(_total_s(own) for own in _grouped(of_llm, lambda c: c.key.gpu_profile_id).values())
        for of_llm in by_llm.values()
    ]
    return Hours(
        one_at_a_time=_total_s(cells) / 3600,
        on_nodes=max((makespan_s(own, n_nodes) for own in by_profile.values()), default=0) / 3600,
        n_nodes=n_nodes,
        llm_by_llm=sum(slowest) / 3600,
    )


def makespan_s(cells: Iterable[CellPlan], n_nodes: int) -> float:
    """Return when the last cell ends, if each takes the node that is free first, longest first."""
    free_at_s = [0.0] * n_nodes
    for cell in sorted(cells, key=lambda cell: -cell.seconds):
        heapq.heapreplace(free_at_s, free_at_s[0] + cell.seconds)
    return max(free_at_s)


def _total_s(cells: Iterable[CellPlan]) -> float:
    return sum(cell.seconds for cell in cells)


def _grouped(cells: Iterable[CellPlan], name: Any) -> dict[str, list[CellPlan]]:
    return {key: list(own) for key, own in itertools.groupby(sorted(cells, key=name), name)}
