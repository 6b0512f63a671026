"""What a run would do: jobs, requests to a scheduler, hours and cost.

Snakemake itself says which jobs would run, in a dry run, so that existing results count as they do
in a run. It is a process of its own: the library imports nothing of Snakemake. A cell takes

    seconds = starts × (start_s + weights / load_gib_per_s)
            + levels × (warm-up + duration + cool-down + level_extra_s) + cell_extra_s

by the times of finished cells or by assumptions. A server start lasts from the command to the last
corner case of its probe. Not included: waits in a scheduler's queue, cells that are tried again,
and levels that a stop rule leaves out.
"""

import heapq
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

import pandas as pd

from sextant.base.errors import InputError
from sextant.base.resources import checkout
from sextant.experiment.experiment import Experiment
from sextant.experiment.scenarios import Batch, Scenario
from sextant.experiment.servers import Variant
from sextant.experiment.sheets import CellKey
from sextant.pages.blocks import Block, Document, Facts, Headline, Note, Section, Table
from sextant.pages.words import plural
from sextant.points.cell_files import read_cell
from sextant.points.verdict import FEASIBLE, assess_variant

_HEADER = (
    *("GPU profile", "cells", "fit", "GPUs", "GPU model", "cores", "memory GB", "limit h"),
    *("hours", "GPU-hours", "USD"),
)


@dataclass(frozen=True)
class Job:
    """A job of a dry run, with what it asks of the machine."""

    rule: str
    wildcards: dict[str, str]
    outputs: tuple[str, ...]
    threads: int
    resources: dict[str, Any]
    """As Snakemake names them: `mem_mb`, `runtime` in minutes, `gpu`, `gpu_model` …"""
    is_in_group: bool


@dataclass(frozen=True)
class DryRun:
    """What Snakemake would do, with the configuration as it merged it."""

    jobs: tuple[Job, ...]
    n_submissions: int  # Jobs that a scheduler would get: a group is one, local rules none.
    config: dict[str, Any]


def snakemake_command() -> list[str]:
    """Return how a command line of Snakemake starts; InputError without it or a checkout."""
    checkout()
    if not find_spec("snakemake"):
        raise InputError("Snakemake is not installed", fix="pip install -e '.[pipeline]'")
    return [sys.executable, "-m", "snakemake"]


def dry_run(
    folder: Path,
    targets: Sequence[str] = (),
    config_files: Sequence[Path] = (),
    workflow_profile: Path | None = None,
) -> DryRun:
    """Ask Snakemake what it would run in a folder; no lock is taken and no file written. Raises
    InputError if Snakemake refuses, with the project's own error line or Snakemake's last lines."""
    command = [*snakemake_command(), "--dry-run", "--nolock", "--rerun-incomplete"]
    command += ["--logger", "sextant-plan"]
    if workflow_profile:
        command += ["--workflow-profile", str(workflow_profile)]
    if config_files:
        command += ["--configfile", *map(str, config_files)]
    paths = [
        str(checkout() / "workflow" / "plugins"),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    done = subprocess.run(
        [*command, "--", *targets],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.strip()]
        own = [line.removeprefix("Error: ") for line in errors if line.startswith("Error: ")]
        if errors and errors[0].endswith(("Exception:", "Error:")):
            del errors[0]  # its name alone
        words = "\n".join(errors[-20:]) or "snakemake failed without a message"
        raise InputError(own[-1] if own else words)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    (started,) = (line for line in lines if "config" in line)
    jobs = [Job(**line | {"outputs": tuple(line["outputs"])}) for line in lines if "rule" in line]
    # A target has nothing to run. Snakemake's own order changes from run to run.
    jobs = sorted((job for job in jobs if job.outputs), key=lambda job: job.outputs)
    n_single = sum(not job.is_in_group and job.rule not in started["local_rules"] for job in jobs)
    n_submissions = n_single + sum("group" in line for line in lines)
    return DryRun(tuple(jobs), n_submissions, started["config"])


@dataclass(frozen=True)
class Basis:
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
    "gpu": Basis(None, 120.0, 10.0, 15.0, "assumed"),
    "cpu": Basis(None, 25.0, 1.0, 10.0, "assumed"),
}


def cell_s(
    scenario: Scenario, variant: Variant, weight_gib: float, max_starts: int, basis: Basis
) -> float:
    """Return how long a cell takes that fits into memory; one with a given batch weight needs one
    server start, others at most `max_starts`."""
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
    starts_s: tuple[float, ...]  #: Of each probe, with the loading of weights.
    levels_s: dict[float, float]  #: Duration of each measured level, without its warm-up.
    wall_s: float | None  #: Of the whole job; None where Snakemake has no record of it.


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
    return float(pd.read_csv(path, sep="\t")["s"].iloc[-1]) if path.is_file() else None


def basis(experiment: Experiment, key: CellKey, finished: Sequence[Finished]) -> Basis:
    """Return the terms for a cell's estimate: medians of the nearest cells, or assumptions. Nearest
    are those of the LLM on the GPU profile, then those on the profile, then on the kind of device.
    """
    profiles = experiment.profiles
    kind = profiles[key.gpu_profile_id].gpu.kind
    shared: dict[str, Callable[[CellKey], Any]] = {
        "of this LLM on this GPU profile": attrgetter("llm_id", "gpu_profile_id"),
        "on this GPU profile": attrgetter("gpu_profile_id"),
        f"on the same kind of device ({kind})": lambda of: profiles[of.gpu_profile_id].gpu.kind,
    }
    for name, what in shared.items():
        near = [cell for cell in finished if what(cell.key) == what(key) and cell.starts_s]
        if near:
            origin = f"medians of {len(near)} cells {name}"
            return _medians(experiment, near, replace(ASSUMED[kind], origin=origin))
    return ASSUMED[kind]


def _medians(experiment: Experiment, near: Sequence[Finished], assumed: Basis) -> Basis:
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
        start_s=median(starts_s),
        starts=median(n_starts) if n_starts else None,
        request_s=median(requests_s) if requests_s else assumed.request_s,
        # The extra time of a level and that of a cell cannot be separated.
        level_extra_s=median(extras_s) if extras_s else assumed.level_extra_s,
        cell_extra_s=0.0 if extras_s else assumed.cell_extra_s,
    )


def _weight_gib(experiment: Experiment, key: CellKey) -> float:
    return experiment.llm_facts[key.llm_id].weight_bytes / 2**30


@dataclass(frozen=True)
class CellPlan:
    """A cell that would be measured."""

    key: CellKey
    request: Mapping[str, Any]  # What its job asks the scheduler for: cores, memory, minutes, GPUs.
    n_devices: int
    n_levels: int  #: 0 where the cell does not fit into memory.
    verdict: str
    seconds: float
    usd: float
    basis: Basis | None  #: The terms of the estimate; None where there is nothing to measure.


def plan_cell(
    experiment: Experiment,
    config: Mapping[str, Any],
    key: CellKey,
    finished: Sequence[Finished],
    request: Mapping[str, Any] = MappingProxyType({}),
) -> CellPlan:
    """Return what a cell takes, by the cells that are finished."""
    engine, workload = config["engine"], experiment.workloads[key.workload_id]
    profile, variant = experiment.profiles[key.gpu_profile_id], experiment.variants[key.variant_id]
    verdict, max_starts = FEASIBLE, 0  # a server that runs already fits
    if not experiment.endpoint(key):
        max_tokens = workload["max_input_tokens"] + workload["max_output_tokens"]
        share, llm = engine["memory_utilization"], experiment.llm_facts[key.llm_id]
        verdict = assess_variant(llm, profile.devices, variant, share, max_tokens).verdict
        max_starts = engine["max_server_starts"]
    terms, seconds, n_levels = None, 0.0, 0
    if verdict.is_feasible:
        scenario, terms = experiment.scenario(key), basis(experiment, key, finished)
        seconds = cell_s(scenario, variant, _weight_gib(experiment, key), max_starts, terms)
        n_levels = len(scenario.levels)
    n_devices = profile.n_gpus * variant.n_device_sets
    usd = seconds / 3600 * profile.usd_per_hour * variant.n_device_sets
    return CellPlan(key, request, n_devices, n_levels, verdict.reason, seconds, usd, terms)


@dataclass(frozen=True)
class Plan:
    """What a run would do."""

    jobs: dict[str, int]  #: Number of jobs by rule.
    n_submissions: int
    cells: tuple[CellPlan, ...]
    gpu_hours: float  # Devices times hours; processor cores that serve count as devices.
    usd: float
    hours: dict[str, float]
    """How long all cells take, waits in a queue not included: `one_at_a_time`, and `on_nodes` with
    `n_nodes` of each GPU profile, the longest cells first."""


def make_plan(
    experiment: Experiment, config: Mapping[str, Any], run: DryRun, folder: Path, n_nodes: int = 1
) -> Plan:
    """Return what a run in `folder` would do and take, with `n_nodes` servers of each profile."""
    finished = finished_cells(experiment, config, folder)
    by_file = {
        f"benchmarks/{config['source']}/{key.folder}/run.json": key for key in experiment.cells
    }
    cells = []
    for job in run.jobs:
        if job.rule == "benchmark_cell":
            (file,) = (Path(file) for file in job.outputs if file.endswith("/run.json"))
            key = by_file["/".join(file.parts[-7:])]  # below the folder of results, wherever
            given = job.resources
            # A dry run for a cluster counts one core: there, the cores are a request of their own.
            cores = given.get("cpus_per_task") or job.threads
            limits = {"memory_mb": given.get("mem_mb"), "minutes": given.get("runtime")}
            gpus = {"gpus": given.get("gpu", 0), "gpu_model": given.get("gpu_model")}
            request = {"cores": cores, **limits, **gpus}
            cells.append(plan_cell(experiment, config, key, finished, request))
    longest_s = max((makespan_s(own, n_nodes) for own in _by_profile(cells).values()), default=0)
    hours = {"one_at_a_time": sum(cell.seconds for cell in cells) / 3600}
    return Plan(
        jobs=dict(Counter(job.rule for job in run.jobs)),
        n_submissions=run.n_submissions,
        cells=tuple(cells),
        gpu_hours=sum(cell.n_devices * cell.seconds for cell in cells) / 3600,
        usd=sum(cell.usd for cell in cells),
        hours=hours | {"on_nodes": longest_s / 3600, "n_nodes": n_nodes},
    )


def makespan_s(cells: Iterable[CellPlan], n_nodes: int) -> float:
    """Return when the last cell ends, if each takes the node that is free first, longest first."""
    free_at_s = [0.0] * n_nodes
    for cell in sorted(cells, key=lambda cell: -cell.seconds):
        heapq.heapreplace(free_at_s, free_at_s[0] + cell.seconds)
    return max(free_at_s)


def _by_profile(cells: Iterable[CellPlan]) -> dict[str, list[CellPlan]]:
    ordered = sorted(cells, key=lambda cell: cell.key.gpu_profile_id)
    return {n: [*own] for n, own in groupby(ordered, key=lambda cell: cell.key.gpu_profile_id)}


def plan_document(plan: Plan) -> Document:
    """Return a plan for people (blocks) and programs (data)."""
    submissions = plural(plan.n_submissions, "submission")
    n_jobs = plural(sum(plan.jobs.values()), "job")
    blocks: list[Block] = [
        Headline(f"{n_jobs} would run ({submissions} to a scheduler)"),
        Table((), [(rule, f"{count:,}") for rule, count in plan.jobs.items()]),
    ]
    blocks += _cell_blocks(plan) if plan.cells else [Note("No measurement: it needs no GPU time.")]
    return Document("Plan of a run", blocks, asdict(plan))


def _cell_blocks(plan: Plan) -> list[Block]:
    cells, hours, by_profile = plan.cells, plan.hours, _by_profile(plan.cells)
    n_llms = plural(len({cell.key.llm_id for cell in cells}), "LLM")
    lines = [
        f"{plural(len(cells), 'cell')} to measure ({n_llms}, "
        f"{plural(len(by_profile), 'GPU profile')}), "
        f"{plural(sum(cell.n_levels for cell in cells), 'point')}"
    ]
    if n_left_out := sum(not cell.n_levels for cell in cells):
        lines.append(f"{n_left_out:,} of them do not fit into memory and end at once")
    nodes = "one node" if hours["n_nodes"] == 1 else f"{hours['n_nodes']} nodes"
    times = [
        f"{hours['one_at_a_time']:.1f} h with one cell at a time",
        f"{hours['on_nodes']:.1f} h with {nodes} of each GPU profile (the longest cells first)",
        "Waits in a scheduler's queue and repeated jobs are not included.",
    ]
    terms = [
        f"{count:,} cells, {basis.origin}: "
        f"{'all allowed' if basis.starts is None else f'{basis.starts:g}'} server starts, each "
        f"{basis.start_s:.0f} s and the weights at {basis.load_gib_per_s:g} GiB/s; "
        f"{basis.level_extra_s:.1f} s on top of a level, {basis.cell_extra_s:.0f} s of a cell"
        for basis, count in Counter(cell.basis for cell in cells if cell.basis).items()
    ]
    estimate = f"{plan.gpu_hours:,.1f} GPU-hours, {plan.usd:,.2f} USD"
    return [
        *map(Note, lines),
        Table(_HEADER, [_profile_row(name, own) for name, own in by_profile.items()]),
        Section("Estimate", [Headline(estimate), Facts(times)]),
        Section("The estimate uses", [Facts(terms)]),
    ]


def _profile_row(name: str, cells: Sequence[CellPlan]) -> tuple[str, ...]:
    """Return the row of a GPU profile; a request that differs among its cells is a range."""

    def span(values: Iterable[float]) -> str:
        values = list(values)
        low, high = (f"{end:.1f}".removesuffix(".0") for end in (min(values), max(values)))
        return low if low == high else f"{low}-{high}"

    requests = [cell.request for cell in cells]
    return (
        name,
        str(len(cells)),
        str(sum(cell.n_levels > 0 for cell in cells)),
        span(request["gpus"] for request in requests),
        requests[0]["gpu_model"] or "any",
        span(request["cores"] for request in requests),
        span((request["memory_mb"] or 0) / 1000 for request in requests),
        span((request["minutes"] or 0) / 60 for request in requests),
        f"{sum(cell.seconds for cell in cells) / 3600:.1f}",
        f"{sum(cell.seconds * cell.n_devices for cell in cells) / 3600:.1f}",
        f"{sum(cell.usd for cell in cells):,.2f}",
    )
