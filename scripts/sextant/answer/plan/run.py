"""The jobs that Snakemake would run, and the configuration that it would run them with.

Snakemake says so itself, in a dry run, so that existing results count as they do in a run. It is
a process of its own: the library imports nothing of Snakemake.
"""

import heapq
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sextant import PROJECT
from sextant.answer.plan.estimate import (
    Basis,
    Error,
    basis,
    estimate_errors,
    expected_s,
    feasibility,
    finished_cells,
)
from sextant.base.errors import InputError
from sextant.experiment.cells import CellKey
from sextant.experiment.experiment import Experiment
from sextant.pages.wording import aligned, plural

_PLUGINS = PROJECT / "workflow" / "plugins"


@dataclass(frozen=True)
class Job:
    """A job of a dry run, with what it asks of the machine."""

    rule: str
    wildcards: dict[str, str]
    outputs: tuple[str, ...]
    threads: int
    resources: dict[str, Any]
    """As Snakemake names them: `mem_mb`, `runtime` in minutes, `gpu`, `gpu_model` …"""
    reason: str
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
    `snakemake`. Raises InputError with Snakemake's own words if it refuses the configuration.
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
        raise InputError(_complaint(done.stderr))
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    (started,) = (line for line in lines if "config" in line)
    jobs = [Job(**line | {"outputs": tuple(line["outputs"])}) for line in lines if "rule" in line]
    # A rule without anything to run, such as a target, is never submitted.
    submitted = [
        job
        for job in jobs
        if job.outputs and not job.is_in_group and job.rule not in started["local_rules"]
    ]
    return DryRun(
        jobs=tuple(job for job in jobs if job.outputs),
        n_submissions=len(submitted) + sum("group" in line for line in lines),
        config=started["config"],
    )


def _complaint(stderr: str) -> str:
    """Return the error line of the project's own checks, or the last lines of Snakemake."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    own = [line.removeprefix("Error: ") for line in lines if line.startswith("Error: ")]
    if lines and lines[0].endswith(("Exception:", "Error:")):
        del lines[0]  # its name alone
    return own[-1] if own else "\n".join(lines[-20:]) or "snakemake failed without a message"


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


_LLM_PILOT = (
    "           (LLM-Pilot counts so: about 8 h for 10 LLMs on 14 GPU profiles at 8 levels, an\n"
    "           LLM 30 minutes to tune batch weights and 20 to load; here {minutes:.0f} minutes)"
)


def plan_text(plan: Plan) -> str:
    """Return a plan as a person reads it."""
    n_jobs = sum(plan.jobs.values())
    parts = [
        f"{plural(n_jobs, 'job')} would run ({plural(plan.n_submissions, 'submission')} to a "
        "scheduler):"
    ]
    parts += [f"  {rule:24} {count:6,}" for rule, count in plan.jobs.items()]
    if plan.cells:
        parts += ["", *_cells_text(plan), "", *_profile_table(plan.cells), "", *_hours_text(plan)]
        parts += ["", "The estimate rests on:", *_bases(plan.cells)]
    else:
        parts += ["", "No measurement: nothing that costs GPU time."]
    return "\n".join([*parts, *_errors_text(plan.errors)])


def _cells_text(plan: Plan) -> list[str]:
    cells = plan.cells
    fitting = [cell for cell in cells if cell.n_levels]
    llms = {cell.key.llm_id for cell in cells}
    profiles = {cell.key.gpu_profile_id for cell in cells}
    lines = [
        f"{plural(len(cells), 'cell')} to measure ({plural(len(llms), 'LLM')}, "
        f"{plural(len(profiles), 'GPU profile')}), "
        f"{plural(sum(cell.n_levels for cell in cells), 'point')}"
    ]
    if n_left_out := len(cells) - len(fitting):
        lines.append(f"{n_left_out:,} of them do not fit into memory and end at once")
    return lines


_HEADER = (
    *("GPU profile", "cells", "fit", "GPUs", "GPU model", "cores", "memory GB", "limit h"),
    *("hours", "GPU-hours", "USD"),
)


def _profile_table(cells: Sequence[CellPlan]) -> list[str]:
    """Return a line for each GPU profile; a request that differs among its cells is a range."""
    names = sorted({cell.key.gpu_profile_id for cell in cells})
    rows = [[c for c in cells if c.key.gpu_profile_id == name] for name in names]
    return aligned([_HEADER, *map(_profile_row, rows)], are_numbers=True)


def _profile_row(cells: Sequence[CellPlan]) -> tuple[str, ...]:
    requests = [cell.request for cell in cells]
    hours = sum(cell.seconds for cell in cells) / 3600
    gpu_hours = sum(cell.seconds * cell.n_devices for cell in cells) / 3600
    return (
        cells[0].key.gpu_profile_id,
        str(len(cells)),
        str(sum(cell.n_levels > 0 for cell in cells)),
        _span(request.gpus for request in requests),
        requests[0].gpu_model or "any",
        _span(request.cores for request in requests),
        _span((request.memory_mb or 0) / 1000 for request in requests),
        _span((request.minutes or 0) / 60 for request in requests),
        f"{hours:.1f}",
        f"{gpu_hours:.1f}",
        f"{sum(cell.usd for cell in cells):,.2f}",
    )


def _span(values: Iterable[float]) -> str:
    values = list(values)
    ends = [f"{value:.1f}".removesuffix(".0") for value in (min(values), max(values))]
    return ends[0] if ends[0] == ends[1] else "-".join(ends)


def _hours_text(plan: Plan) -> list[str]:
    hours = plan.hours
    n_llms = len({cell.key.llm_id for cell in plan.cells})
    minutes = hours.llm_by_llm * 60 / n_llms
    is_gpu = any(cell.request.gpus for cell in plan.cells)
    each = "one node" if hours.n_nodes == 1 else f"{hours.n_nodes} nodes"
    return [
        f"Estimate: {plan.gpu_hours:,.1f} GPU-hours, {plan.usd:,.2f} USD",
        f"  {hours.one_at_a_time:8.1f} h with one cell at a time",
        f"  {hours.on_nodes:8.1f} h with {each} of each GPU profile (the longest cells first)",
        f"  {hours.llm_by_llm:8.1f} h with one LLM at a time on all GPU profiles at once",
        *([_LLM_PILOT.format(minutes=minutes)] if is_gpu else []),
        "  Waits in a scheduler's queue and repeated jobs are not in it.",
    ]


def _bases(cells: Sequence[CellPlan]) -> list[str]:
    counts = Counter(cell.basis for cell in cells if cell.basis)
    return [
        f"  {count:,} cells, {basis.origin}: "
        f"{'all allowed' if basis.starts is None else f'{basis.starts:g}'} server starts, each "
        f"{basis.start_s:.0f} s and the weights at {basis.load_gib_per_s:g} GiB/s; "
        f"{basis.level_extra_s:.1f} s on top of a level, {basis.cell_extra_s:.0f} s of a cell"
        for basis, count in counts.items()
    ]


_WORDS = {"assumed": "on assumptions alone", "medians": "by medians of the other cells"}


def _errors_text(errors: dict[str, Error]) -> list[str]:
    if not errors:
        return ["No cell here was measured with its time, so the estimate is not tested."]
    lines = ["", "Estimated against measured time of finished cells:"]
    for name, error in errors.items():
        lines.append(
            f"  {_WORDS[name]}: {error.total_ratio:.2f} times in all, of a cell "
            f"{error.median_ratio:.2f} ({error.lowest_ratio:.2f} to {error.highest_ratio:.2f}; "
            f"{error.n_cells} cells)"
        )
    return lines
