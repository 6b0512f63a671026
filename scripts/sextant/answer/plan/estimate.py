"""How long a cell takes to measure, from the times of finished cells or from assumptions.

    seconds = starts × (start_s + weights / load_gib_per_s)
            + levels × (warm-up + duration + cool-down + level_extra_s) + cell_extra_s

A server start lasts from the command to the last corner case of its probe. A cell that does not fit
into memory costs nothing. Not included: waits in a scheduler's queue, cells that are tried again,
and levels that a stop rule leaves out.
"""

import csv
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.experiment.experiment import CellKey, Experiment
from sextant.experiment.scenarios import Batch, Scenario
from sextant.experiment.servers import Variant
from sextant.points.cell_files import read_cell
from sextant.points.verdict import FEASIBLE, Feasibility, assess_variant


@dataclass(frozen=True)
class Basis:
    """The terms of an estimate, and where they come from."""

    starts: float | None
    """Server starts of a cell whose batch weight is searched; None: all that are allowed."""
    start_s: float
    """From the command to the last corner case, without loading the weights."""
    level_extra_s: float
    """Last requests, telemetry and the server's metrics, of each level."""
    cell_extra_s: float
    """Python and Snakemake, of each cell."""
    origin: str
    load_gib_per_s: float = 1.0
    """Weights from a network disk into the devices."""
    request_s: float = 10.0
    """Of one request, for levels that end with a number of requests."""


# Assumed for vLLM's process, memory profile, compilation and CUDA graphs, and five corner cases.
# On the CPU it compiles nothing.
ASSUMED = {
    "gpu": Basis(None, 120.0, 10.0, 15.0, "assumed"),
    "cpu": Basis(None, 25.0, 1.0, 10.0, "assumed"),
}


def feasibility(experiment: Experiment, key: CellKey, config: Mapping[str, Any]) -> Feasibility:
    """Return whether a cell fits into memory; a server that runs already always does."""
    workload = experiment.workloads[key.workload_id]
    assessed = assess_variant(
        experiment.llm_facts[key.llm_id],
        experiment.profiles[key.gpu_profile_id].devices,
        experiment.variants[key.variant_id],
        config["engine"]["memory_utilization"],
        workload["max_input_tokens"] + workload["max_output_tokens"],
    )
    return replace(assessed, verdict=FEASIBLE) if experiment.endpoint(key) else assessed


def _weight_gib(experiment: Experiment, key: CellKey) -> float:
    return experiment.llm_facts[key.llm_id].weight_bytes / 2**30


def expected_s(
    experiment: Experiment, key: CellKey, config: Mapping[str, Any], basis: Basis
) -> float:
    """Return how long a cell that fits into memory takes, in seconds (`cell_s`)."""
    max_starts = 0 if experiment.endpoint(key) else config["engine"]["max_server_starts"]
    scenario, variant = experiment.scenario(key), experiment.variants[key.variant_id]
    return cell_s(scenario, variant, _weight_gib(experiment, key), max_starts, basis)


def cell_s(
    scenario: Scenario, variant: Variant, weight_gib: float, max_starts: int, basis: Basis
) -> float:
    """Return how long a cell that fits into memory takes, in seconds.

    A variant with a given batch weight needs one start, others at most `max_starts`.
    """
    starts = max_starts if basis.starts is None else min(basis.starts, max_starts)
    starts = 1 if variant.batch_weight_tokens else starts
    start_s = basis.start_s + weight_gib / basis.load_gib_per_s
    levels_s = sum(scenario.planned_s(level, basis.request_s) for level in scenario.levels)
    extra_s = len(scenario.levels) * basis.level_extra_s + basis.cell_extra_s
    return starts * start_s + levels_s + extra_s


@dataclass(frozen=True)
class Finished:
    """The times of a measured cell."""

    key: CellKey
    starts_s: tuple[float, ...]
    """Of each probe, with the loading of weights."""
    levels_s: dict[float, float]
    """Duration of each measured level, without its warm-up."""
    wall_s: float | None
    """Of the whole job; None where Snakemake has no record of it."""


def finished_cells(
    experiment: Experiment, config: Mapping[str, Any], folder: Path
) -> list[Finished]:
    """Read the cells that were measured; paths of the configuration start from `folder`."""
    finished, results = [], folder / config["pathvars"]["results"] / "benchmarks" / config["source"]
    for key in experiment.cells if experiment.scenarios else ():  # an archive has none
        try:
            cell = read_cell(results / key.folder)
            wall_s = job_s(config, folder, key)
        except (FileNotFoundError, InputError, KeyError, ValueError):
            continue  # not measured, or damaged, which a run will report
        starts_s = tuple(probe.duration_s for probe in cell.tuning.probes or ())
        levels_s = {it.level: it.duration_s for it in cell.run.levels if it.duration_s is not None}
        if levels_s:
            finished.append(Finished(key, starts_s, levels_s, wall_s))
    return finished


def job_s(config: Mapping[str, Any], folder: Path, key: CellKey) -> float | None:
    """Return the seconds of a cell's last attempt, by Snakemake's benchmark file."""
    times = folder / config["pathvars"]["benchmarks"] / "benchmark_cell" / config["source"]
    path = times / f"{key.folder}.tsv"
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle, delimiter="\t"))
    return float(rows[-1]["s"]) if rows else None


def basis(experiment: Experiment, key: CellKey, finished: Sequence[Finished]) -> Basis:
    """Return the terms for a cell's estimate: medians of the nearest cells, or assumptions.

    Nearest are those of the same LLM on the same GPU profile, then those on the same GPU
    profile, then those on the same kind of device.
    """
    kind = experiment.profiles[key.gpu_profile_id].gpu.kind
    tests: dict[str, Callable[[CellKey], bool]] = {
        "of this LLM on this GPU profile": lambda other: (
            (other.llm_id, other.gpu_profile_id) == (key.llm_id, key.gpu_profile_id)
        ),
        "on this GPU profile": lambda other: other.gpu_profile_id == key.gpu_profile_id,
        f"on the same kind of device ({kind})": lambda other: (
            experiment.profiles[other.gpu_profile_id].gpu.kind == kind
        ),
    }
    for name, is_near in tests.items():
        near = [cell for cell in finished if is_near(cell.key) and cell.starts_s]
        if near:
            return _medians(experiment, near, ASSUMED[kind], name)
    return ASSUMED[kind]


def _medians(experiment: Experiment, near: Sequence[Finished], assumed: Basis, name: str) -> Basis:
    starts_s, n_starts, extras_s, requests_s = [], [], [], []
    for cell in near:
        load_s = _weight_gib(experiment, cell.key) / assumed.load_gib_per_s
        starts_s += [max(0.0, start_s - load_s) for start_s in cell.starts_s]
        # A given batch weight takes one start, so it says nothing about a search.
        if experiment.variants[cell.key.variant_id].batch_weight_tokens is None:
            n_starts.append(len(cell.starts_s))
        scenario, n_levels = experiment.scenario(cell.key), len(cell.levels_s)
        if cell.wall_s is not None:
            levels_s = sum(cell.levels_s.values()) + n_levels * scenario.unmeasured_s
            known_s = sum(cell.starts_s) + levels_s
            extras_s.append(max(0.0, cell.wall_s - known_s) / n_levels)
        if isinstance(scenario, Batch):
            requests_s += [s / scenario.n_waves(level) for level, s in cell.levels_s.items()]
    return replace(
        assumed,
        origin=f"medians of {len(near)} cells {name}",
        start_s=statistics.median(starts_s),
        starts=statistics.median(n_starts) if n_starts else None,
        request_s=statistics.median(requests_s) if requests_s else assumed.request_s,
        # The extra time of a level and that of a cell cannot be separated.
        level_extra_s=statistics.median(extras_s) if extras_s else assumed.level_extra_s,
        cell_extra_s=0.0 if extras_s else assumed.cell_extra_s,
    )
