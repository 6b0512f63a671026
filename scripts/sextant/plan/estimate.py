"""How long a cell takes, by the times of finished cells or by assumptions.

    seconds = starts × (start_s + weights / load_gib_per_s)
            + levels × (warm-up + duration + cool-down + level_extra_s) + cell_extra_s

A server start lasts from the command to the last corner case of its probe. Not included: waits in a
scheduler's queue, cells that are tried again, and levels that a stop rule leaves out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from statistics import median
from typing import Any

import pandas as pd

from sextant.base.errors import InputError
from sextant.experiment.current import Comparison
from sextant.experiment.experiment import Experiment
from sextant.experiment.scenarios import Batch, Scenario
from sextant.experiment.servers import Variant
from sextant.experiment.sheets import CellKey
from sextant.plan.dry_run import SchedulerRequest
from sextant.plan.workspace import Workspace
from sextant.points.cell_files import read_cell
from sextant.points.verdict import FEASIBLE, assess_variant


@dataclass(frozen=True)
class EstimateTerms:
    """The terms of an estimate, and where they come from."""

    starts: float | None
    """Server starts of a cell whose batch weight is searched; None: all that are allowed."""
    start_s: float  #: From the command to the last corner case, without loading the weights.
    level_extra_s: float  #: Last requests, telemetry and the server's metrics, of each level.
    cell_extra_s: float  #: Python and Snakemake, of each cell.
    origin: str
    load_gib_per_s: float = 1.0  #: Weights from a network disk into the devices.
    request_s: float = 10.0  #: Of one request, for levels that end with a number of requests.


# Assumed for vLLM's process, memory profile, compilation and CUDA graphs, and five corner cases.
# On the CPU it compiles nothing.
ASSUMED = {
    "gpu": EstimateTerms(None, 120.0, 10.0, 15.0, "assumed"),
    "cpu": EstimateTerms(None, 25.0, 1.0, 10.0, "assumed"),
}


@dataclass(frozen=True)
class CellPlan:
    """A cell that would be measured."""

    key: CellKey
    request: SchedulerRequest | None  #: None for a cell that is not a job of this run.
    n_devices: int
    n_levels: int  #: 0 where the cell does not fit into memory.
    verdict: str
    seconds: float
    usd: float
    basis: EstimateTerms | None  #: None where there is nothing to measure.


@dataclass(frozen=True)
class FinishedCell:
    """The times of a measured cell."""

    key: CellKey
    starts_s: tuple[float, ...]  #: Of each probe, with the loading of weights.
    levels_s: dict[float, float]  #: Duration of each measured level, without its warm-up.
    wall_s: float | None  #: Of the whole job; None where Snakemake has no record of it.


def cell_s(
    scenario: Scenario,
    variant: Variant,
    weight_gib: float,
    max_starts: int,
    terms: EstimateTerms,
) -> float:
    """Return how long a cell takes that fits into memory; one with a given batch weight needs one
    server start, others at most `max_starts`."""
    starts = max_starts if terms.starts is None else min(terms.starts, max_starts)
    if variant.batch_weight_tokens:
        starts = 1
    start_s = terms.start_s + weight_gib / terms.load_gib_per_s

    levels_s = sum(scenario.planned_s(level, terms.request_s) for level in scenario.levels)
    extra_s = len(scenario.levels) * terms.level_extra_s + terms.cell_extra_s
    return starts * start_s + levels_s + extra_s


def finished_cells(workspace: Workspace) -> list[FinishedCell]:
    """Read the times of the cells that were measured."""
    experiment = workspace.experiment
    if not experiment.scenarios:  # an archive
        return []

    finished = []
    for key in experiment.cells:
        try:
            cell = read_cell(workspace.cell_folder(key))
            wall_s = job_s(workspace, key)
        except (FileNotFoundError, InputError, KeyError, ValueError):
            continue  # not measured, or damaged, which a run will report

        starts_s = tuple(probe.duration_s for probe in cell.tuning.probes or ())
        levels_s = {
            level.level: level.duration_s
            for level in cell.run.levels
            if level.duration_s is not None
        }
        if levels_s:
            finished.append(FinishedCell(key, starts_s, levels_s, wall_s))
    return finished


def job_s(workspace: Workspace, key: CellKey) -> float | None:
    """Return the seconds of a cell's last attempt, by Snakemake's benchmark file."""
    path = workspace.job_times_file(key)
    return float(pd.read_csv(path, sep="\t")["s"].iloc[-1]) if path.is_file() else None


def estimate_terms(
    experiment: Experiment, key: CellKey, finished: Sequence[FinishedCell]
) -> EstimateTerms:
    """Return the terms for a cell's estimate: medians of the nearest cells, or assumptions. The
    nearest are cells of the LLM on the GPU profile, then cells on the profile, then cells on the
    same kind of device."""
    profiles = experiment.profiles
    kind = profiles[key.gpu_profile_id].gpu.kind

    def kind_of(other: CellKey) -> str:
        return profiles[other.gpu_profile_id].gpu.kind

    nearness: dict[str, Callable[[CellKey], Any]] = {
        "of this LLM on this GPU profile": attrgetter("llm_id", "gpu_profile_id"),
        "on this GPU profile": attrgetter("gpu_profile_id"),
        f"on the same kind of device ({kind})": kind_of,
    }
    for words, shared in nearness.items():
        near = [cell for cell in finished if shared(cell.key) == shared(key) and cell.starts_s]
        if near:
            origin = f"medians of {len(near)} cells {words}"
            return _medians(experiment, near, replace(ASSUMED[kind], origin=origin))
    return ASSUMED[kind]


def _medians(
    experiment: Experiment, near: Sequence[FinishedCell], assumed: EstimateTerms
) -> EstimateTerms:
    """Return the medians of cells; a term that none of them shows stays as assumed."""
    starts_s: list[float] = []
    n_starts: list[int] = []
    extras_s: list[float] = []
    requests_s: list[float] = []
    for cell in near:
        load_s = _weight_gib(experiment, cell.key) / assumed.load_gib_per_s
        starts_s += [max(0.0, start_s - load_s) for start_s in cell.starts_s]
        # A given batch weight takes one start, so it says nothing about a search.
        if experiment.variants[cell.key.variant_id].batch_weight_tokens is None:
            n_starts.append(len(cell.starts_s))

        scenario = experiment.scenario(cell.key)
        if cell.wall_s is not None:
            n_levels = len(cell.levels_s)
            levels_s = sum(cell.levels_s.values()) + n_levels * scenario.unmeasured_s
            explained_s = sum(cell.starts_s) + levels_s
            extras_s.append(max(0.0, cell.wall_s - explained_s) / n_levels)
        if isinstance(scenario, Batch):
            requests_s += [s / scenario.n_waves(level) for level, s in cell.levels_s.items()]

    return replace(
        assumed,
        start_s=median(starts_s),
        starts=median(n_starts) if n_starts else None,
        request_s=median(requests_s) if requests_s else assumed.request_s,
        # The extra time of a level and that of a cell cannot be separated.
        level_extra_s=median(extras_s) if extras_s else assumed.level_extra_s,
        cell_extra_s=0.0 if extras_s else assumed.cell_extra_s,
    )


def plan_cell(
    workspace: Workspace,
    key: CellKey,
    finished: Sequence[FinishedCell],
    request: SchedulerRequest | None = None,
    compared: Comparison | None = None,
) -> CellPlan:
    """Return what a cell takes, by the cells that are finished; `compared` says what of its
    earlier results is kept."""
    experiment = workspace.experiment
    profile = experiment.profiles[key.gpu_profile_id]
    variant = experiment.variants[key.variant_id]

    verdict = FEASIBLE  # a server that runs already fits
    max_starts = 0
    if not experiment.endpoint(key):
        workload = experiment.workloads[key.workload_id]
        max_tokens = workload["max_input_tokens"] + workload["max_output_tokens"]
        llm = experiment.llm_facts[key.llm_id]
        engine = workspace.settings.engine
        verdict = assess_variant(
            llm, profile.devices, variant, engine.memory_utilization, max_tokens
        ).verdict
        max_starts = engine.max_server_starts

    terms = None
    seconds = 0.0
    n_levels = 0
    if verdict.is_feasible:
        scenario = experiment.scenario(key)
        if compared and not compared.changes and compared.missing_levels:
            scenario = replace(scenario, levels=compared.missing_levels)
            max_starts = min(1, max_starts)  # the batch weight is known
        terms = estimate_terms(experiment, key, finished)
        seconds = cell_s(scenario, variant, _weight_gib(experiment, key), max_starts, terms)
        n_levels = len(scenario.levels)

    return CellPlan(
        key=key,
        request=request,
        n_devices=profile.n_gpus * variant.n_device_sets,
        n_levels=n_levels,
        verdict=verdict.reason,
        seconds=seconds,
        usd=seconds / 3600 * profile.usd_per_hour * variant.n_device_sets,
        basis=terms,
    )


def _weight_gib(experiment: Experiment, key: CellKey) -> float:
    return experiment.llm_facts[key.llm_id].weight_bytes / 2**30
