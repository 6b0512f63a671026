"""The formula of a cell's time, and its terms where nothing was measured.

    seconds = starts × (start_s + weights / load_gib_per_s)
            + levels × (warm-up + duration + cool-down + level_extra_s) + cell_extra_s

A server start lasts from the command to the last corner case of its probe. Where cells have
been measured, medians of theirs take the place of what is assumed (`history`). A cell that
memory facts rule out costs nothing. Not in it: the wait in a scheduler's queue, cells that
are tried again, and levels that a stop rule may leave out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sextant.experiment.cell_key import CellKey
from sextant.experiment.experiment import Experiment
from sextant.experiment.scenarios import Scenario
from sextant.experiment.variants import Variant
from sextant.points.cells.memory import Feasibility, assess_variant
from sextant.points.cells.verdict import FEASIBLE


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
    """Decide from memory facts whether a cell will be measured at all; an endpoint's always is."""
    workload, variant = experiment.workloads[key.workload_id], experiment.variants[key.variant_id]
    found = assess_variant(
        experiment.llm_facts[key.llm_id],
        experiment.profiles[key.gpu_profile_id].devices,
        variant,
        config["engine"]["memory_utilization"],
        workload["max_input_tokens"] + workload["max_output_tokens"],
    )
    return replace(found, verdict=FEASIBLE) if experiment.endpoint(key) else found


def weight_gib(experiment: Experiment, key: CellKey) -> float:
    """Return the size of the weights of a cell's LLM in GiB."""
    return experiment.llm_facts[key.llm_id].weight_bytes / 2**30


def expected_s(
    experiment: Experiment, key: CellKey, config: Mapping[str, Any], basis: Basis
) -> float:
    """Return how long a cell takes that fits into memory, in seconds (`cell_s`)."""
    max_starts = 0 if experiment.endpoint(key) else config["engine"]["max_server_starts"]
    scenario, variant = experiment.scenario(key), experiment.variants[key.variant_id]
    return cell_s(scenario, variant, weight_gib(experiment, key), max_starts, basis)


def cell_s(
    scenario: Scenario, variant: Variant, weight_gib: float, max_starts: int, basis: Basis
) -> float:
    """Return how long a cell takes that fits into memory, in seconds. A variant's given batch
    weight needs one start; else at most `max_starts` are allowed.
    """
    starts = max_starts if basis.starts is None else min(basis.starts, max_starts)
    starts = 1 if variant.batch_weight_tokens else starts
    start_s = basis.start_s + weight_gib / basis.load_gib_per_s
    levels_s = sum(scenario.planned_s(level, basis.request_s) for level in scenario.levels)
    extra_s = len(scenario.levels) * basis.level_extra_s + basis.cell_extra_s
    return starts * start_s + levels_s + extra_s
