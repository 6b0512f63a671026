"""The measurement plan: which cells to measure next, by what is measured so far."""

import math
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.experiment.sheets import CellKey
from sextant.facts.slo import SLO
from sextant.judge.files import read_task
from sextant.judge.folds import share_lengths
from sextant.judge.task import Task, task_of
from sextant.law.calibration import Calibration
from sextant.law.roofline import Roofline
from sextant.plan import value
from sextant.plan.cell_order import Budget, Candidate, MeasurementPlan, order_cells
from sextant.plan.estimate import CellPlan, finished_cells, plan_cell
from sextant.plan.rates import size_rates, steady_notes
from sextant.plan.value import Decisions, Needs
from sextant.plan.workspace import Workspace
from sextant.points import frame
from sextant.points.characterization import Characterization
from sextant.points.frame import (
    GRAPHS,
    IDENTIFIERS,
    KEYS,
    LENGTHS,
    SERVING,
    TARGETS,
    graphs_of,
)
from sextant.points.measured import load_run
from sextant.points.summarize import aggregate_points
from sextant.predict.predictor import Draws, TrainingRows

_NO_LENGTHS = "nothing says how long the workload's requests are"
_UNSERVED_MS = 1e12  # Where a level was measured and nothing succeeded.


@dataclass(frozen=True)
class Measured:
    """What is measured so far."""

    task: Task
    characterization: Characterization | None = None
    """The same points, as the answers read them; None: there are none."""

    def lengths(self) -> list[float] | None:
        """Return the mean tokens of a request, input and output; None: no point says."""
        if self.task.points.empty:
            return None
        medians = self.task.points[LENGTHS].median()
        return None if medians.isna().any() else [*map(float, medians)]


def plan_measurements(
    measured: Measured,
    slos: Sequence[SLO],
    candidates: Sequence[Candidate],
    budget: Budget,
    seed: int,
    *,
    lengths: Sequence[float] | None = None,
    served_as: Mapping[str, Any] | None = None,
) -> MeasurementPlan:
    """Return which cells to measure for the SLOs, by the points of one workload.

    The same points and seed give the same plan. Without any point the law's prior decides. Without
    candidates some cells must be measured.

    Args:
        measured: the points, and the facts of LLMs and GPU profiles.
        slos: about requests of the measured lengths.
        candidates: the cells that may be measured.
        budget: how far to plan.
        seed: of the law's draws and of measurement errors.
        lengths: mean input and output tokens of the workload's requests, where nothing is measured.
        served_as: columns of `SERVING` that candidates will have, by default the points'.

    Raises:
        InputError: an SLO has lengths of its own, or no lengths are known.
    """
    for slo in slos:
        if slo.lengths:
            problem = f"{slo.slo_id} is about requests of other lengths than are measured"
            fix = "leave its lengths out to plan measurements"
            raise InputError(problem, field="input_tokens, output_tokens", fix=fix)

    slos_by_percentiles: dict[tuple[Any, ...], list[SLO]] = {}
    for slo in slos:
        slos_by_percentiles.setdefault((slo.percentiles, slo.first_token), []).append(slo)

    task = measured.task
    llm_ids = sorted({*task.points["llm_id"], *(candidate.llm_id for candidate in candidates)})
    requests = measured.lengths() or lengths
    needs: Needs = {}
    if measured.characterization is not None and requests is not None:
        needs = size_rates(measured.characterization, slos, llm_ids, requests, seed)

    decisions = [
        _decisions(_Decided(task, alike, needs), candidates, seed, lengths, served_as)
        for alike in slos_by_percentiles.values()
    ]
    plan = order_cells(decisions, candidates, budget)
    return replace(plan, notes=tuple(steady_notes(slos, llm_ids, needs)))


class _Decided(NamedTuple):
    """SLOs of the same percentiles, and what decides on them."""

    task: Task
    slos: Sequence[SLO]
    needs: Needs  #: Of the request rates that are sized by a law of a step.


def _decisions(
    decided: _Decided,
    candidates: Sequence[Candidate],
    seed: int,
    lengths: Sequence[float] | None,
    served_as: Mapping[str, Any] | None,
) -> Decisions:
    """Return the decisions for SLOs of the same percentiles, of every cell at all users of any."""
    task, slos, needs = decided
    measured = frame.at_percentile(task.points, slos[0].percentiles, slos[0].first_token)
    measured[TARGETS] = measured[TARGETS].where(measured[TARGETS] > 0)
    training = measured[measured[TARGETS].notna().any(axis=1)].reset_index(drop=True)

    pairs = {(candidate.llm_id, candidate.gpu_profile_id) for candidate in candidates}
    pairs |= set(measured[IDENTIFIERS].itertuples(index=False, name=None))
    users = {int(level) for candidate in candidates for level in candidate.levels}
    users |= {*measured["users"]}
    keys = [(*pair, count) for pair in sorted(pairs) for count in sorted(users)]
    wanted = pd.DataFrame(keys, columns=KEYS)

    if served_as is None:
        served_as = frame.served_as_most(training)
    wanted = wanted.assign(**dict.fromkeys(SERVING)).assign(**served_as)
    if len(training):
        training, wanted = share_lengths(training, wanted)
    elif lengths is not None:
        wanted = wanted.assign(**dict(zip(LENGTHS, lengths, strict=True)))
    else:
        raise InputError(_NO_LENGTHS, fix="give the lengths, or measure a cell")

    model = Roofline(slos[0], task.facts.profiles, seed)
    columns = [*KEYS, *SERVING, *LENGTHS]
    rows = pd.concat([training[columns], wanted[columns]], ignore_index=True)
    design = model.design(rows, task.facts)
    model.fit(TrainingRows(design.iloc[: len(training)], training[TARGETS]))
    samples_ms = model.sample(design.iloc[len(training) :])

    truth = wanted[KEYS].merge(measured[[*KEYS, *TARGETS]], on=KEYS, how="left", indicator="tried")
    samples_ms = given_measurements(wanted, samples_ms, truth[TARGETS], seed)
    unserved = (truth["tried"] == "both") & truth[TARGETS].isna().all(axis=1)
    samples_ms[:, unserved.to_numpy()] = _UNSERVED_MS
    return value.weigh_decisions(Draws(wanted, samples_ms), task.facts.profiles, slos, seed, needs)


def given_measurements(
    keys: pd.DataFrame, samples_ms: np.ndarray, measured_ms: pd.DataFrame, seed: int
) -> np.ndarray:
    """Return draws that equal the measurements where there are any, and move with them nearby.
    `keys` has `llm_id, gpu_profile_id, users`, one row per point; `samples_ms` are nTTFT and ITL,
    (draws, rows, 2), `measured_ms` the same, (rows, 2), NaN where not measured."""
    samples_ms = samples_ms.copy()
    values = measured_ms.to_numpy(float)
    is_measured = np.isfinite(values).any(axis=1)
    for llm_id in keys.loc[is_measured, "llm_id"].unique():
        rows = np.flatnonzero(keys["llm_id"] == llm_id)
        measured_rows = rows[is_measured[rows]]
        points = keys.iloc[measured_rows].reset_index(drop=True)
        points = points.assign(**dict(zip(TARGETS, values[measured_rows].T, strict=True)))
        calibration = Calibration(points, samples_ms[:, measured_rows], seed)
        samples_ms[:, rows] = calibration.corrected(keys.iloc[rows], samples_ms[:, rows])
    return np.where(np.isfinite(values), values, samples_ms)


def plan_of_experiment(
    workspace: Workspace,
    candidates: Sequence[Candidate],
    budget: Budget,
    config_files: Sequence[Path] = (),
) -> MeasurementPlan:
    """Return which cells of an experiment to measure first, by the cells on disk. A command that is
    printed has the `config_files`. InputError: an archive, no SLO or no cell."""
    point_slos = workspace.experiment.point_slos
    settings = workspace.settings
    if settings.archive:
        fix = "give a configuration without `archive`"
        raise InputError("nothing of an archive is left to measure", field="archive", fix=fix)
    if not point_slos:
        fix = "add a row with users or a request rate"
        raise InputError("no SLO asks for an answer", file=settings.sheets.slos, fix=fix)

    measured = _measured(workspace)
    task = measured.task
    if not candidates and task.points.empty:
        decision = settings.decision
        problem = (
            f"no cell of {decision.workload_id} and {decision.scenario_id}, which answers use, fits"
        )
        fix = "add one to the sheet, or change `decision`"
        raise InputError(problem, file=settings.sheets.benchmarks, fix=fix)

    lengths = workspace.mean_lengths()
    if lengths is None and task.points.empty:
        requests = workspace.folder / workspace.requests_target
        options = ["--configfile", *map(str, config_files), "--"] if config_files else []
        words = ["snakemake --cores 1", *map(shlex.quote, options), str(requests)]
        fix = f"fit the workload first: {' '.join(words)}"
        if not config_files:
            fix += " (or run `make demo`, which measures too)"
        raise InputError(_NO_LENGTHS, file=requests, fix=fix)

    return plan_measurements(
        measured,
        [*point_slos.values()],
        candidates,
        budget,
        settings.seed,
        lengths=lengths,
        served_as={
            "engine": settings.engine.name,
            GRAPHS: graphs_of(settings.engine.extra_arguments),
        },
    )


def candidates_of(workspace: Workspace, cells: Sequence[CellPlan]) -> list[Candidate]:
    """Return the planned cells that answers can use, with levels between those of the scenario."""
    candidates = []
    for cell in cells:
        if cell.basis is None or not workspace.is_of_decision(cell.key):
            continue
        scenario = workspace.experiment.scenarios[cell.key.scenario_id]
        level_s = scenario.planned_s(scenario.levels[0], cell.basis.request_s)
        level_s += cell.basis.level_extra_s

        levels = [int(level) for level in scenario.levels]
        between = [round(math.sqrt(low * high)) for low, high in pairwise(levels)]
        candidates.append(
            Candidate(
                llm_id=cell.key.llm_id,
                gpu_profile_id=cell.key.gpu_profile_id,
                levels=tuple(sorted({*levels, *between})),
                start_hours=(cell.seconds - len(levels) * level_s) / 3600,
                level_hours=level_s / 3600,
                n_devices=cell.n_devices,
                usd_per_hour=cell.usd / cell.seconds * 3600,
            )
        )
    return candidates


def adaptive_plans(workspace: Workspace) -> list[CellPlan]:
    """Return what each adaptive cell takes that is not chosen yet."""
    finished = finished_cells(workspace)
    return [plan_cell(workspace, key, finished) for key in not_chosen(workspace)]


def not_chosen(workspace: Workspace) -> list[CellKey]:
    """Return the adaptive cells that are not chosen yet."""
    experiment = workspace.experiment
    adaptive = experiment.adaptive
    return [key for key in adaptive.candidates if key not in adaptive.chosen]


def _measured(workspace: Workspace) -> Measured:
    """Return the points of the cells that are measured."""
    experiment = workspace.experiment
    source = workspace.settings.source
    memory_utilization = workspace.settings.engine.memory_utilization
    keys = [cell.key for cell in finished_cells(workspace) if workspace.is_of_decision(cell.key)]
    if not keys:
        features = frame.published_features(experiment)
        facts = frame.FactTables(experiment.llm_facts, experiment.profiles, features)
        points = pd.DataFrame(columns=KEYS)
        tried = pd.DataFrame(columns=[*IDENTIFIERS, "is_feasible"])
        return Measured(task_of(source, points, tried, facts, None, memory_utilization))

    with tempfile.TemporaryDirectory() as scratch:
        files = {name: Path(scratch) / name for name in ("point", "feasibility", "telemetry")}
        aggregate_points([workspace.cell_folder(key) for key in keys], *files.values())
        decision = asdict(workspace.settings.decision)
        task = read_task(files, experiment, decision, source, memory_utilization)
        characterization = None
        if len(task.points):
            characterization = load_run(files, experiment, source, decision)
        return Measured(task, characterization)
