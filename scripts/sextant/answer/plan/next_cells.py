"""Which cells to measure next: from what is measured so far to an order of cells."""

import math
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sextant.answer.plan.choice import Candidate, Limits, Order, order
from sextant.answer.plan.estimate import Basis
from sextant.answer.plan.history import finished_cells
from sextant.answer.plan.stakes import Stakes, stakes_of
from sextant.answer.plan.summary import CellPlan
from sextant.base.errors import InputError
from sextant.base.files import read_parquet
from sextant.decide.evaluation_files import read_task
from sextant.decide.pairs import task_of
from sextant.experiment.experiment import Experiment
from sextant.experiment.variants import DEFAULT_VARIANT
from sextant.facts.slo import SLO
from sextant.points.characterizations.features import Facts, published_features
from sextant.points.characterizations.points import (
    IDENTIFIERS,
    LENGTHS,
    SERVING,
    TARGETS,
    at_percentile,
)
from sextant.points.store.points import aggregate_points
from sextant.predict.draws import Draws
from sextant.predict.folds import KEYS, Task, share_lengths
from sextant.predict.own_points import OwnPoints
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
