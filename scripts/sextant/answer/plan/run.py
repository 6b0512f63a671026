"""What a run would do: jobs, requests to a scheduler, hours and cost.

Snakemake itself says which jobs would run, in a dry run, so that existing results count as they do
in a run. It is a process of its own: the library imports nothing of Snakemake.
"""

import heapq
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sextant import PROJECT
from sextant.answer.plan.estimate import (
    Basis,
    basis,
    expected_s,
    feasibility,
    finished_cells,
)
from sextant.base.errors import InputError
from sextant.experiment.experiment import CellKey, Experiment
from sextant.pages.blocks import Block, Document, Facts, Headline, Note, Section, Table
from sextant.pages.wording import plural

_PLUGINS = PROJECT / "workflow" / "plugins"
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
    """What Snakemake would do."""

    jobs: tuple[Job, ...]
    n_submissions: int
    """Jobs that a cluster's scheduler would get: a group is one, local rules are none."""
    config: dict[str, Any]
    """As Snakemake merged it, `--config` of a profile included."""


def dry_run(
    folder: Path,
    targets: Sequence[str] = (),
    config_files: Sequence[Path] = (),
    workflow_profile: Path | None = None,
) -> DryRun:
    """Ask Snakemake what it would run in a folder; no lock is taken and no file written.

    Without targets, the default target; `config_files` and `workflow_profile` are as given to
    `snakemake`. Raises InputError if Snakemake refuses the configuration: the error line of the
    project's own checks, or Snakemake's last lines.
    """
    command = [sys.executable, "-m", "snakemake", "--dry-run", "--nolock", "--rerun-incomplete"]
    command += ["--logger", "sextant-plan"]
    if workflow_profile:
        command += ["--workflow-profile", str(workflow_profile)]
    if config_files:
        command += ["--configfile", *map(str, config_files)]
    paths = [str(_PLUGINS), *filter(None, [os.environ.get("PYTHONPATH")])]
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
    jobs = [job for job in jobs if job.outputs]  # a target has nothing to run
    n_single = sum(not job.is_in_group and job.rule not in started["local_rules"] for job in jobs)
    n_submissions = n_single + sum("group" in line for line in lines)
    return DryRun(tuple(jobs), n_submissions, started["config"])


@dataclass(frozen=True)
class Request:
    """What a job asks the scheduler for."""

    cores: int = 0
    memory_mb: int | None = None
    minutes: int | None = None
    gpus: int = 0
    gpu_model: str | None = None


@dataclass(frozen=True)
class CellPlan:
    """A cell that would be measured."""

    key: CellKey
    request: Request
    n_devices: int
    n_levels: int
    """0 where the cell does not fit into memory."""
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


def make_plan(
    experiment: Experiment, config: Mapping[str, Any], run: DryRun, folder: Path, n_nodes: int = 1
) -> Plan:
    """Return what a run would do, and an estimate of what it takes.

    `n_nodes` servers of each GPU profile run at once; paths of the configuration start from
    `folder`.
    """
    finished = finished_cells(experiment, config, folder)
    by_file = {
        f"benchmarks/{config['source']}/{key.folder}/run.json": key for key in experiment.cells
    }
    cells = []
    for job in run.jobs:
        if job.rule == "benchmark_cell":
            (file,) = (Path(file) for file in job.outputs if file.endswith("/run.json"))
            key = by_file["/".join(file.parts[-7:])]  # below the folder of results, wherever
            cell = plan_cell(experiment, config, key, basis(experiment, key, finished))
            given = job.resources
            # A dry run for a cluster counts one core: there, the cores are a request of their own.
            cores = given.get("cpus_per_task") or job.threads
            limits = given.get("mem_mb"), given.get("runtime")
            request = Request(cores, *limits, given.get("gpu", 0), given.get("gpu_model"))
            cells.append(replace(cell, request=request))
    by_profile = _by_profile(cells).values()
    longest_s = max((makespan_s(own, n_nodes) for own in by_profile), default=0)
    one_at_a_time = sum(cell.seconds for cell in cells) / 3600
    return Plan(
        jobs=dict(Counter(job.rule for job in run.jobs)),
        n_submissions=run.n_submissions,
        cells=tuple(cells),
        gpu_hours=sum(cell.n_devices * cell.seconds for cell in cells) / 3600,
        usd=sum(cell.usd for cell in cells),
        hours=Hours(one_at_a_time, longest_s / 3600, n_nodes),
    )


def plan_cell(
    experiment: Experiment, config: Mapping[str, Any], key: CellKey, basis: Basis
) -> CellPlan:
    """Return what a cell takes by these terms, without a job's request."""
    profile, variant = experiment.profiles[key.gpu_profile_id], experiment.variants[key.variant_id]
    assessed = feasibility(experiment, key, config)
    fits = assessed.is_feasible
    seconds = expected_s(experiment, key, config, basis) if fits else 0.0
    return CellPlan(
        key=key,
        request=Request(),
        n_devices=profile.n_gpus * variant.n_device_sets,
        n_levels=len(experiment.scenario(key).levels) if fits else 0,
        verdict=assessed.verdict.reason,
        seconds=seconds,
        usd=seconds / 3600 * profile.usd_per_hour * variant.n_device_sets,
        basis=basis if fits else None,
    )


def makespan_s(cells: Iterable[CellPlan], n_nodes: int) -> float:
    """Return when the last cell ends, if each takes the node that is free first, longest first."""
    free_at_s = [0.0] * n_nodes
    for cell in sorted(cells, key=lambda cell: -cell.seconds):
        heapq.heapreplace(free_at_s, free_at_s[0] + cell.seconds)
    return max(free_at_s)


def _by_profile(cells: Iterable[CellPlan]) -> dict[str, list[CellPlan]]:
    grouped: dict[str, list[CellPlan]] = {}
    for cell in sorted(cells, key=lambda cell: cell.key.gpu_profile_id):
        grouped.setdefault(cell.key.gpu_profile_id, []).append(cell)
    return grouped


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
    cells, hours = plan.cells, plan.hours
    n_llms = len({cell.key.llm_id for cell in cells})
    by_profile = _by_profile(cells)
    counts = plural(n_llms, "LLM"), plural(len(by_profile), "GPU profile")
    lines = [
        f"{plural(len(cells), 'cell')} to measure ({', '.join(counts)}), "
        f"{plural(sum(cell.n_levels for cell in cells), 'point')}"
    ]
    if n_left_out := sum(not cell.n_levels for cell in cells):
        lines.append(f"{n_left_out:,} of them do not fit into memory and end at once")
    nodes = "one node" if hours.n_nodes == 1 else f"{hours.n_nodes} nodes"
    times = [
        f"{hours.one_at_a_time:.1f} h with one cell at a time",
        f"{hours.on_nodes:.1f} h with {nodes} of each GPU profile (the longest cells first)",
        "Waits in a scheduler's queue and repeated jobs are not included.",
    ]
    terms = [
        f"{count:,} cells, {basis.origin}: "
        f"{'all allowed' if basis.starts is None else f'{basis.starts:g}'} server starts, each "
        f"{basis.start_s:.0f} s and the weights at {basis.load_gib_per_s:g} GiB/s; "
        f"{basis.level_extra_s:.1f} s on top of a level, {basis.cell_extra_s:.0f} s of a cell"
        for basis, count in Counter(cell.basis for cell in cells if cell.basis).items()
    ]
    return [
        *map(Note, lines),
        Table(_HEADER, [_profile_row(name, own) for name, own in by_profile.items()]),
        Section(
            "Estimate",
            [Headline(f"{plan.gpu_hours:,.1f} GPU-hours, {plan.usd:,.2f} USD"), Facts(times)],
        ),
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
        span(request.gpus for request in requests),
        requests[0].gpu_model or "any",
        span(request.cores for request in requests),
        span((request.memory_mb or 0) / 1000 for request in requests),
        span((request.minutes or 0) / 60 for request in requests),
        f"{sum(cell.seconds for cell in cells) / 3600:.1f}",
        f"{sum(cell.seconds * cell.n_devices for cell in cells) / 3600:.1f}",
        f"{sum(cell.usd for cell in cells):,.2f}",
    )
