"""Which cells to measure next: from what is measured so far to an order of cells."""

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.answer.plan.estimate import Basis, basis, finished_cells, job_s
from sextant.answer.plan.run import CellPlan, unplanned_cell
from sextant.answer.plan.value import (
    Candidate,
    Limits,
    Order,
    Outlook,
    Stakes,
    Stop,
    order,
    stakes_of,
)
from sextant.base.errors import InputError
from sextant.base.files import read_parquet
from sextant.base.rows import frame_rows, jsonable
from sextant.decide.evaluate import read_task
from sextant.decide.tasks import task_of
from sextant.experiment.cells import CellKey, Chosen, add_chosen, chosen_path, last_round
from sextant.experiment.definition import cell_definition
from sextant.experiment.experiment import Experiment
from sextant.experiment.servers import DEFAULT_VARIANT
from sextant.facts.slo import SLO
from sextant.pages.wording import aligned, number, percent, plural
from sextant.points.cells.files import read_run
from sextant.points.characterizations.features import Facts, published_features
from sextant.points.characterizations.points import (
    IDENTIFIERS,
    LENGTHS,
    SERVING,
    TARGETS,
    at_percentile,
)
from sextant.points.store.points import aggregate_points
from sextant.predict.calibration import OwnPoints
from sextant.predict.folds import KEYS, Task, share_lengths
from sextant.predict.latencies import Draws
from sextant.predict.references import Rows
from sextant.predict.roofline import Roofline

_NO_LENGTHS = "nothing says how long the workload's requests are"
_UNSERVED_MS = 1e12
"""Where a level was measured and nothing succeeded."""


def next_cells(
    task: Task,
    slos: Sequence[SLO],
    candidates: Sequence[Candidate],
    limits: Limits,
    seed: int,
    *,
    lengths: Sequence[float] | None = None,
    served_as: Mapping[str, Any] | None = None,
) -> Order:
    """Return which cells to measure for the SLOs, by what is measured so far.

    The same points and seed give the same order. Without any point the law's prior decides.

    Args:
        task: points of one workload, none or more, and facts.
        slos: the SLOs that answers are for.
        candidates: the cells that may be measured; without any, some must be measured.
        limits: the budget, and what is enough.
        seed: seed of the predictor and of the errors of measurements.
        lengths: mean input and output tokens of the workload's requests, where nothing is measured.
        served_as: columns of `SERVING` that the candidates will have; by default the points' own.

    Raises:
        InputError: an SLO is about other requests, or nothing says how long requests are.
    """
    for slo in slos:
        if slo.lengths:
            problem = f"{slo.slo_id} is about requests of other lengths than are measured"
            fix = "leave its lengths out to plan measurements"
            raise InputError(problem, field="input_tokens, output_tokens", fix=fix)
    groups: dict[tuple, list[SLO]] = {}
    for slo in slos:
        groups.setdefault((slo.percentiles, slo.first_token), []).append(slo)
    stakes = [
        _stakes(task, alike, candidates, seed, lengths, served_as) for alike in groups.values()
    ]
    return order(stakes, candidates, limits)


def _stakes(
    task: Task,
    slos: Sequence[SLO],
    candidates: Sequence[Candidate],
    seed: int,
    lengths: Sequence[float] | None,
    served_as: Mapping[str, Any] | None,
) -> Stakes:
    """Return what is to decide for SLOs of the same percentiles."""
    measured = at_percentile(task.points, slos[0].percentiles, slos[0].first_token)
    measured[TARGETS] = measured[TARGETS].where(measured[TARGETS] > 0)
    known = measured[measured[TARGETS].notna().any(axis=1)].reset_index(drop=True)
    asked = _asked(measured, candidates)
    if served_as is None:
        served_as = {name: known[name].mode().get(0) for name in SERVING}
    asked = asked.assign(**dict.fromkeys(SERVING)).assign(**served_as)
    if len(known):
        known, asked = share_lengths(known, asked)
    elif lengths is not None:
        asked = asked.assign(**dict(zip(LENGTHS, lengths, strict=True)))
    else:
        raise InputError(_NO_LENGTHS, fix="give the lengths, or measure a cell")
    model = Roofline(slos[0], task.facts.profiles, seed)
    columns = [*KEYS, *SERVING, *LENGTHS]
    design = model.design(
        pd.concat([known[columns], asked[columns]], ignore_index=True), task.facts
    )
    model.fit(Rows(design.iloc[: len(known)], known[TARGETS]))
    truth = asked[KEYS].merge(measured[[*KEYS, *TARGETS]], on=KEYS, how="left", indicator="tried")
    samples_ms = told(asked, model.sample(design.iloc[len(known) :]), truth[TARGETS], seed)
    unserved = (truth["tried"] == "both") & truth[TARGETS].isna().all(axis=1)
    samples_ms[:, unserved.to_numpy()] = _UNSERVED_MS
    return stakes_of(Draws(asked, samples_ms), task.facts.profiles, slos, seed)


def _asked(measured: pd.DataFrame, candidates: Sequence[Candidate]) -> pd.DataFrame:
    """Return the keys of all cells, measured or not, at all users of any of them."""
    pairs = {tuple(each[:2]) for each in candidates}
    pairs |= set(measured[IDENTIFIERS].itertuples(index=False, name=None))
    users = {int(count) for each in candidates for count in each.levels} | {*measured["users"]}
    rows = [(*pair, count) for pair in sorted(pairs) for count in sorted(users)]
    return pd.DataFrame(rows, columns=KEYS)


def told(
    keys: pd.DataFrame, samples_ms: np.ndarray, measured_ms: pd.DataFrame, seed: int
) -> np.ndarray:
    """Return draws that are what was measured where it was, and move with it nearby.

    Args:
        keys: `llm_id, gpu_profile_id, users`, a row a point.
        samples_ms: nTTFT and ITL, (draws, rows, 2).
        measured_ms: the same, (rows, 2), NaN where not measured.
        seed: seed of the errors of measurements.
    """
    samples_ms, values = samples_ms.copy(), measured_ms.to_numpy(float)
    is_told = np.isfinite(values).any(axis=1)
    for llm_id in keys.loc[is_told, "llm_id"].unique():
        rows = np.flatnonzero(keys["llm_id"] == llm_id)
        own = rows[is_told[rows]]
        points = keys.iloc[own].reset_index(drop=True)
        points = points.assign(**dict(zip(TARGETS, values[own].T, strict=True)))
        told_by = OwnPoints(points, samples_ms[:, own], seed)
        samples_ms[:, rows] = told_by.corrected(keys.iloc[rows], samples_ms[:, rows])
    return np.where(np.isfinite(values), values, samples_ms)


def order_of_plan(
    experiment: Experiment,
    config: Mapping[str, Any],
    candidates: Sequence[Candidate],
    folder: Path,
    limits: Limits,
) -> Order:
    """Return which cells of a plan to measure first, by the cells on disk.

    Paths of the configuration start from `folder`; `candidates` are those of `candidates_of`.

    Raises:
        InputError: an archive is not measured; there is no SLO or no cell.
    """
    if config.get("archive"):
        fix = "give a configuration without `archive`"
        raise InputError("nothing of an archive is left to measure", field="archive", fix=fix)
    if not experiment.slos:
        fix = "add a row with users or a request rate"
        raise InputError("no SLO asks for an answer", file=config["sheets"]["slos"], fix=fix)
    task, decision = _task(experiment, config, folder), config["decision"]
    if not candidates and task.points.empty:
        problem = "no cell of {workload_id} and {scenario_id}, which answers rest on, fits"
        fix = "add one to the sheet, or change `decision`"
        file = config["sheets"]["benchmarks"]
        raise InputError(problem.format(**decision), file=file, fix=fix)
    results = folder / config["pathvars"]["results"]
    requests = results / "workloads" / decision["workload_id"] / "requests.parquet"
    lengths = _workload_lengths(requests)
    if lengths is None and task.points.empty:
        fix = f"fit it first, with the same --configfile: snakemake --cores 1 {requests}"
        raise InputError(_NO_LENGTHS, file=requests, fix=fix)
    return next_cells(
        task,
        list(experiment.slos.values()),
        candidates,
        limits,
        config["seed"],
        lengths=lengths,
        served_as={"engine": config["engine"].get("name", "vllm")},
    )


def candidates_of(
    experiment: Experiment, config: Mapping[str, Any], cells: Sequence[CellPlan]
) -> list[Candidate]:
    """Return the cells that answers can rest on: of `decision` in the configuration."""
    return [
        _candidate(experiment, cell, cell.basis)
        for cell in cells
        if cell.basis and _is_of_decision(config, cell.key)
    ]


def _is_of_decision(config: Mapping[str, Any], key: Any) -> bool:
    decision = config["decision"]
    return (key.workload_id, key.scenario_id, key.variant_id) == (
        decision["workload_id"],
        decision["scenario_id"],
        DEFAULT_VARIANT,
    )


def _candidate(experiment: Experiment, cell: CellPlan, known: Basis) -> Candidate:
    """Return a planned cell, with levels between those of its scenario."""
    scenario = experiment.scenarios[cell.key.scenario_id]
    level_s = scenario.planned_s(scenario.levels[0], known.request_s) + known.level_extra_s
    levels = [int(level) for level in scenario.levels]
    between = [round(math.sqrt(low * high)) for low, high in pairwise(levels)]
    return Candidate(
        cell.key.llm_id,
        cell.key.gpu_profile_id,
        tuple(sorted({*levels, *between})),
        (cell.seconds - len(levels) * level_s) / 3600,
        level_s / 3600,
        cell.n_devices,
        cell.usd / cell.seconds * 3600,
    )


def _task(experiment: Experiment, config: Mapping[str, Any], folder: Path) -> Task:
    """Return the points of the cells that are measured."""
    source, utilization = config["source"], config["engine"]["memory_utilization"]
    found = finished_cells(experiment, config, folder)
    cells = [cell.key for cell in found if _is_of_decision(config, cell.key)]
    if not cells:
        facts = Facts(experiment.llm_facts, experiment.profiles, published_features(experiment))
        tried = pd.DataFrame(columns=[*IDENTIFIERS, "is_feasible"])
        return task_of(source, pd.DataFrame(columns=KEYS), tried, facts, None, utilization)
    with tempfile.TemporaryDirectory() as scratch:
        files = {name: Path(scratch) / name for name in ("point", "feasibility", "telemetry")}
        results = folder / config["pathvars"]["results"] / "benchmarks" / source
        folders = [results / key.folder for key in cells]
        aggregate_points(folders, *files.values())
        return read_task(files, experiment, config["decision"], source, utilization)


def _workload_lengths(path: Path) -> tuple[float, float] | None:
    """Return the mean input and output tokens of a fitted workload, None before it is fitted."""
    if not path.is_file():
        return None
    bins = read_parquet(path).to_pandas()
    means = [float(np.average(bins[name], weights=bins["count"])) for name in LENGTHS]
    return means[0], means[1]


_SHOWN = 3
"""Answers of a round that are printed."""
_DECISION = ["slo_id", "llm_id"]
_HEADER = ("round", "cell", "levels", "GPU-hours", "USD", "in all: GPU-hours", "USD", "S/O after")


def order_text(found: Order, candidates: Sequence[Candidate]) -> str:
    """Return an order of cells as text; `candidates` are those that it chose from."""
    n_slos, n_llms = (found.now.answers[name].nunique() for name in _DECISION)
    lines = [
        f"{plural(len(found.now.answers), 'answer')} ({plural(n_slos, 'SLO')} × "
        f"{plural(n_llms, 'LLM')}); expected S/O now {found.now.expected_so:.3f}"
    ]
    if found.rounds:
        lines += ["", "Measure, the most gain per cost first:", *aligned(_table(found))]
    before = found.now
    for place, done in enumerate(found.rounds, 1):
        changed = _changed(before, done.after)
        if changed:
            lines += ["", f"After round {place} the likeliest answers would change:", *changed]
        before = done.after
    return "\n".join([*lines, "", f"It stops there: {_why(found, candidates)}."])


def _table(found: Order) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [_HEADER]
    gpu_hours = usd = 0.0
    for place, done in enumerate(found.rounds, 1):
        for each in done.cells:
            gpu_hours, usd = gpu_hours + each.gpu_hours, usd + each.usd
            cost = (f"{value:.2f}" for value in (each.gpu_hours, each.usd, gpu_hours, usd))
            levels, so = ",".join(map(str, each.levels)), f"{done.after.expected_so:.3f}"
            name = f"{each.llm_id} on {each.gpu_profile_id}"
            rows.append((str(place), name, levels, *cost, so))
    return rows


def _changed(before: Outlook, after: Outlook) -> list[str]:
    """Return a line for each answer that is likely to be another one, the likeliest first."""
    both = before.answers.merge(after.answers, on=_DECISION, suffixes=("_was", ""))
    chosen = both[["gpu_profile_id", "replicas"]].astype(object).fillna("").to_numpy()
    earlier = both[["gpu_profile_id_was", "replicas_was"]].astype(object).fillna("").to_numpy()
    changed = both[(chosen != earlier).any(axis=1)].sort_values("share", ascending=False)
    lines = [
        f"  {row['llm_id']} for {row['slo_id']}: {_option(row)} ({percent(row['share'])} likely), "
        f"not {_option(row, '_was')}"
        for row in frame_rows(changed.head(_SHOWN))
    ]
    left = len(changed) - len(lines)
    return lines + ([f"  and {plural(left, 'answer')} more (--json has all)"] if left else [])


def _option(row: dict[str, Any], suffix: str = "") -> str:
    if row[f"gpu_profile_id{suffix}"] is None:
        return "no GPU profile"
    return f"{row[f'replicas{suffix}']} × {row[f'gpu_profile_id{suffix}']}"


def _why(found: Order, candidates: Sequence[Candidate]) -> str:
    if found.stopped is not Stop.BUDGET or found.rounds or not candidates:
        return found.stopped.value
    least = min((each.start_hours + each.level_hours) * each.n_devices for each in candidates)
    return f"{found.stopped.value}; one level of the cheapest cell takes {number(least)} GPU-hours"


def order_json(found: Order) -> dict[str, Any]:
    """Return an order as JSON has it: `now`, `rounds` and `stopped`."""
    return {
        "now": _outlook(found.now),
        "rounds": [
            {"cells": [each._asdict() for each in done.cells], "after": _outlook(done.after)}
            for done in found.rounds
        ],
        "stopped": found.stopped.name.lower(),
    }


def _outlook(outlook: Outlook) -> dict[str, Any]:
    return {"expected_so": outlook.expected_so, "answers": jsonable(outlook.answers)}


class Spent(NamedTuple):
    """What the chosen cells have taken so far; those measured elsewhere or before are free."""

    n_cells: int
    gpu_hours: float
    usd: float


def spent(experiment: Experiment, config: Mapping[str, Any], folder: Path) -> Spent:
    """Return what the chosen cells have taken, by the run times of Snakemake's jobs.

    Of a cell that was interrupted that is the time of the last attempt.
    """
    gpu_hours = usd = 0.0
    n_cells = 0
    for key in experiment.chosen:
        if (took_s := job_s(config, folder, key)) is not None:
            profile = experiment.profiles[key.gpu_profile_id]
            n_cells += 1
            gpu_hours += took_s / 3600 * profile.n_gpus
            usd += took_s / 3600 * profile.usd_per_hour
    return Spent(n_cells, gpu_hours, usd)


def take_measured(experiment: Experiment, config: Mapping[str, Any], folder: Path) -> Chosen:
    """Return the candidates that were measured before, at whatever levels, as they are asked now.

    Nothing but their levels may differ from what the sheets ask for.
    """
    found: Chosen = {}
    for key in _left(experiment):
        place = folder / config["pathvars"]["results"] / "benchmarks" / config["source"]
        if not (place / key.folder / "run.json").is_file():
            continue
        definition = read_run(place / key.folder).definition or {}
        levels = tuple(map(int, definition.get("scenario", {}).get("levels", ())))
        asked = replace(experiment, chosen={key: levels})
        if levels and definition == cell_definition(asked, key, config):
            found[key] = levels
    return found


def next_round(
    experiment: Experiment, config: Mapping[str, Any], folder: Path, limits: Limits
) -> tuple[Order, Chosen]:
    """Return the next round, by all that was measured, and its cells as the sheet has them.

    Args:
        experiment: with what was chosen so far, all of it measured.
        config: the configuration.
        folder: where paths of the configuration start.
        limits: those of all rounds together.
    """
    so_far = spent(experiment, config, folder)
    left = limits._replace(
        gpu_hours=None if limits.gpu_hours is None else limits.gpu_hours - so_far.gpu_hours,
        usd=None if limits.usd is None else limits.usd - so_far.usd,
        rounds=1,
    )
    candidates = candidates_of(experiment, config, candidate_plans(experiment, config, folder))
    order = order_of_plan(experiment, config, candidates, folder, left)
    by_pair = {(key.llm_id, key.gpu_profile_id): key for key in experiment.adaptive}
    chosen = order.rounds[0].cells if order.rounds else ()
    return order, {by_pair[each[:2]]: each.levels for each in chosen}


def record(config: Mapping[str, Any], folder: Path, chosen: Chosen, *, is_new: bool) -> int:
    """Add cells to the sheet and return the number of their round; 0 are cells measured before."""
    path = folder / chosen_path(config)
    number = last_round(path) + 1 if is_new else 0
    add_chosen(path, number, chosen)
    return number


def _left(experiment: Experiment) -> list[CellKey]:
    return [key for key in experiment.adaptive if key not in experiment.chosen]


def candidate_plans(
    experiment: Experiment, config: Mapping[str, Any], folder: Path
) -> list[CellPlan]:
    """Return what each candidate takes that was not chosen yet."""
    finished = finished_cells(experiment, config, folder)
    return [
        unplanned_cell(experiment, config, key, basis(experiment, key, finished))
        for key in _left(experiment)
    ]
