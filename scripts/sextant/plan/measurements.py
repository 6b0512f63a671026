"""The measurement plan: which cells to measure next, and the rounds of `sextant measure`.

Between rounds only the sheet of chosen cells (`experiment.adaptive`) is kept, besides the results
themselves: with the same results and budget the next round is the same.
"""

import math
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.base.files import jsonable, read_parquet
from sextant.experiment.experiment import Chosen, Experiment, cell_definition
from sextant.experiment.sheets import DEFAULT_VARIANT, CellKey
from sextant.facts.slo import SLO
from sextant.judge.files import read_task
from sextant.judge.folds import share_lengths
from sextant.judge.task import Task, task_of
from sextant.law.calibration import Calibration
from sextant.law.roofline import Roofline
from sextant.pages.blocks import Block, Document, Facts, Headline, Note, Section, Table
from sextant.pages.words import number, percent, plural
from sextant.plan import value
from sextant.plan.run_plan import CellPlan, finished_cells, job_s, plan_cell
from sextant.plan.value import Budget, Candidate, Decisions, Expectation, MeasurementPlan
from sextant.points import frame
from sextant.points.cell_files import read_run
from sextant.points.frame import IDENTIFIERS, KEYS, LENGTHS, SERVING, TARGETS
from sextant.points.summarize import aggregate_points
from sextant.predict.draws import Draws
from sextant.predict.predictor import TrainingRows

_NO_LENGTHS = "nothing says how long the workload's requests are"
_UNSERVED_MS = 1e12  # Where a level was measured and nothing succeeded.
_SHOWN = 3  # Changed answers of a round that are printed.
_DECISION = ["slo_id", "llm_id"]
_HEADER = ("round", "cell", "levels", "GPU-hours", "USD", "in all: GPU-hours", "USD", "S/O after")


def plan_measurements(
    task: Task,
    slos: Sequence[SLO],
    candidates: Sequence[Candidate],
    budget: Budget,
    seed: int,
    *,
    lengths: Sequence[float] | None = None,
    served_as: Mapping[str, Any] | None = None,
) -> MeasurementPlan:
    """Return which cells to measure for the SLOs, by the points of one workload. The same points
    and seed give the same plan. Without any point the law's prior decides. `lengths` are the mean
    input and output tokens of the workload's requests, where nothing is measured; `served_as`
    columns of `SERVING` that candidates will have, by default the points'. Without candidates some
    cells must be measured. InputError: an SLO has lengths of its own, or none are known."""
    for slo in slos:
        if slo.lengths:
            problem = f"{slo.slo_id} is about requests of other lengths than are measured"
            fix = "leave its lengths out to plan measurements"
            raise InputError(problem, field="input_tokens, output_tokens", fix=fix)
    groups: dict[tuple[Any, ...], list[SLO]] = {}
    for slo in slos:
        groups.setdefault((slo.percentiles, slo.first_token), []).append(slo)
    how = seed, lengths, served_as
    decisions = [_decisions(task, alike, candidates, *how) for alike in groups.values()]
    return value.order_cells(decisions, candidates, budget)


def _decisions(
    task: Task,
    slos: Sequence[SLO],
    candidates: Sequence[Candidate],
    seed: int,
    lengths: Sequence[float] | None,
    served_as: Mapping[str, Any] | None,
) -> Decisions:
    """Return the decisions for SLOs of the same percentiles, of every cell at all users of any."""
    measured = frame.at_percentile(task.points, slos[0].percentiles, slos[0].first_token)
    measured[TARGETS] = measured[TARGETS].where(measured[TARGETS] > 0)
    known = measured[measured[TARGETS].notna().any(axis=1)].reset_index(drop=True)
    pairs = {tuple(each[:2]) for each in candidates}
    pairs |= set(measured[IDENTIFIERS].itertuples(index=False, name=None))
    users = {int(count) for each in candidates for count in each.levels} | {*measured["users"]}
    keys = [(*pair, count) for pair in sorted(pairs) for count in sorted(users)]
    if served_as is None:
        served_as = frame.served_as_most(known)
    asked = pd.DataFrame(keys, columns=KEYS).assign(**dict.fromkeys(SERVING)).assign(**served_as)
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
    model.fit(TrainingRows(design.iloc[: len(known)], known[TARGETS]))
    truth = asked[KEYS].merge(measured[[*KEYS, *TARGETS]], on=KEYS, how="left", indicator="tried")
    samples_ms = model.sample(design.iloc[len(known) :])
    samples_ms = given_measurements(asked, samples_ms, truth[TARGETS], seed)
    unserved = (truth["tried"] == "both") & truth[TARGETS].isna().all(axis=1)
    samples_ms[:, unserved.to_numpy()] = _UNSERVED_MS
    return value.weigh_decisions(Draws(asked, samples_ms), task.facts.profiles, slos, seed)


def given_measurements(
    keys: pd.DataFrame, samples_ms: np.ndarray, measured_ms: pd.DataFrame, seed: int
) -> np.ndarray:
    """Return draws that equal the measurements where there are any, and move with them nearby.
    `keys` has `llm_id, gpu_profile_id, users`, one row per point; `samples_ms` are nTTFT and ITL,
    (draws, rows, 2), `measured_ms` the same, (rows, 2), NaN where not measured."""
    samples_ms, values = samples_ms.copy(), measured_ms.to_numpy(float)
    is_measured = np.isfinite(values).any(axis=1)
    for llm_id in keys.loc[is_measured, "llm_id"].unique():
        rows = np.flatnonzero(keys["llm_id"] == llm_id)
        own = rows[is_measured[rows]]
        points = keys.iloc[own].reset_index(drop=True)
        points = points.assign(**dict(zip(TARGETS, values[own].T, strict=True)))
        calibration = Calibration(points, samples_ms[:, own], seed)
        samples_ms[:, rows] = calibration.corrected(keys.iloc[rows], samples_ms[:, rows])
    return np.where(np.isfinite(values), values, samples_ms)


def plan_of_experiment(
    experiment: Experiment,
    config: Mapping[str, Any],
    candidates: Sequence[Candidate],
    folder: Path,
    budget: Budget,
    config_files: Sequence[Path] = (),
) -> MeasurementPlan:
    """Return which cells of an experiment in `folder` to measure first, by the cells on disk. A
    command that is printed has the `config_files`. InputError: an archive, no SLO or no cell."""
    if config.get("archive"):
        fix = "give a configuration without `archive`"
        raise InputError("nothing of an archive is left to measure", field="archive", fix=fix)
    if not experiment.slos:
        fix = "add a row with users or a request rate"
        raise InputError("no SLO asks for an answer", file=config["sheets"]["slos"], fix=fix)
    task, decision = _task(experiment, config, folder), config["decision"]
    if not candidates and task.points.empty:
        problem = "no cell of {workload_id} and {scenario_id}, which answers use, fits"
        fix = "add one to the sheet, or change `decision`"
        file = config["sheets"]["benchmarks"]
        raise InputError(problem.format(**decision), file=file, fix=fix)
    folder, lengths = folder / config["pathvars"]["results"] / "workloads", None
    requests = folder / decision["workload_id"] / "requests.parquet"
    if requests.is_file():
        bins = read_parquet(requests).to_pandas()
        lengths = [float(np.average(bins[name], weights=bins["count"])) for name in LENGTHS]
    elif task.points.empty:
        given = shlex.join(["--configfile", *map(str, config_files), "--"]) if config_files else ""
        fix = f"fit the workload first: snakemake --cores 1 {given} {requests}".replace("  ", " ")
        fix += "" if config_files else " (or run `make demo`, which measures too)"
        raise InputError(_NO_LENGTHS, file=requests, fix=fix)
    slos, served_as = [*experiment.slos.values()], {"engine": config["engine"].get("name", "vllm")}
    how: dict[str, Any] = {"lengths": lengths, "served_as": served_as}
    return plan_measurements(task, slos, candidates, budget, config["seed"], **how)


def candidates_of(
    experiment: Experiment, config: Mapping[str, Any], cells: Sequence[CellPlan]
) -> list[Candidate]:
    """Return the planned cells that answers can use, with levels between those of the scenario."""
    candidates = []
    for cell in cells:
        if cell.basis is None or not _is_of_decision(config, cell.key):
            continue
        scenario = experiment.scenarios[cell.key.scenario_id]
        level_s = scenario.planned_s(scenario.levels[0], cell.basis.request_s)
        level_s += cell.basis.level_extra_s
        levels = [int(level) for level in scenario.levels]
        between = [round(math.sqrt(low * high)) for low, high in pairwise(levels)]
        candidates.append(
            Candidate(
                cell.key.llm_id,
                cell.key.gpu_profile_id,
                tuple(sorted({*levels, *between})),
                (cell.seconds - len(levels) * level_s) / 3600,
                level_s / 3600,
                cell.n_devices,
                cell.usd / cell.seconds * 3600,
            )
        )
    return candidates


def _is_of_decision(config: Mapping[str, Any], key: CellKey) -> bool:
    decision = config["decision"]
    wanted = decision["workload_id"], decision["scenario_id"], DEFAULT_VARIANT
    return (key.workload_id, key.scenario_id, key.variant_id) == wanted


def _task(experiment: Experiment, config: Mapping[str, Any], folder: Path) -> Task:
    """Return the points of the cells that are measured."""
    source, utilization = config["source"], config["engine"]["memory_utilization"]
    finished = finished_cells(experiment, config, folder)
    cells = [cell.key for cell in finished if _is_of_decision(config, cell.key)]
    if not cells:
        features = frame.published_features(experiment)
        facts = frame.FactTables(experiment.llm_facts, experiment.profiles, features)
        tried = pd.DataFrame(columns=[*IDENTIFIERS, "is_feasible"])
        return task_of(source, pd.DataFrame(columns=KEYS), tried, facts, None, utilization)
    with tempfile.TemporaryDirectory() as scratch:
        files = {name: Path(scratch) / name for name in ("point", "feasibility", "telemetry")}
        aggregate_points([_folder(config, folder, key) for key in cells], *files.values())
        return read_task(files, experiment, config["decision"], source, utilization)


def _folder(config: Mapping[str, Any], folder: Path, key: CellKey) -> Path:
    place = f"{config['pathvars']['results']}/benchmarks/{config['source']}/{key.folder}"
    return folder / place


def measurement_document(plan: MeasurementPlan, candidates: Sequence[Candidate]) -> Document:
    """Return a measurement plan for people and programs; it chose from `candidates`."""
    now, rows, gpu_hours, usd = plan.now, [], 0.0, 0.0
    for place, done in enumerate(plan.rounds, 1):
        for each in done.cells:
            gpu_hours, usd = gpu_hours + each.gpu_hours, usd + each.usd
            cost = [f"{value:.2f}" for value in (each.gpu_hours, each.usd, gpu_hours, usd)]
            levels, so = ",".join(map(str, each.levels)), f"{done.after.expected_so:.3f}"
            rows.append((str(place), f"{each.llm_id} on {each.gpu_profile_id}", levels, *cost, so))
    n_slos, n_llms = (now.answers[name].nunique() for name in _DECISION)
    what = f"{plural(n_slos, 'SLO')} × {plural(n_llms, 'LLM')}"
    count = plural(len(now.answers), "answer")
    blocks: list[Block] = [Headline(f"{count} ({what}); expected S/O now {now.expected_so:.3f}")]
    if rows:
        title = "Cells to measure, the largest gain per cost first"
        blocks.append(Section(title, [Table(_HEADER, rows, {0, 1, 2})]))
    states = [now, *(done.after for done in plan.rounds)]
    for place, (before, after) in enumerate(pairwise(states), 1):
        if changed := _changed_answers(before, after):
            title = f"After round {place} the likeliest answers would change"
            blocks.append(Section(title, [Facts(changed)]))
    why = plan.stopped.value
    if plan.stopped is value.Stop.BUDGET and not plan.rounds and candidates:
        least = min((each.start_hours + each.level_hours) * each.n_devices for each in candidates)
        why += f"; one level of the cheapest cell takes {number(least)} GPU-hours"
    blocks.append(Note(f"The plan ends there: {why}."))
    states_data = [it._asdict() | {"answers": jsonable(it.answers)} for it in states]
    rounds = [
        {"cells": [each._asdict() for each in done.cells], "after": after}
        for done, after in zip(plan.rounds, states_data[1:], strict=True)
    ]
    data = {"now": states_data[0], "rounds": rounds, "stopped": plan.stopped.name.lower()}
    return Document("Measurement plan", blocks, data)


def _changed_answers(before: Expectation, after: Expectation) -> list[str]:
    """Return a line for each answer that is likely to be another one, the likeliest first."""
    named = []
    for answers in (before.answers, after.answers):
        options = zip(answers["replicas"], answers["gpu_profile_id"], strict=True)
        words = ["no GPU profile" if pd.isna(n) else f"{n} × {name}" for n, name in options]
        named.append(answers.assign(option=words))
    both = named[0].merge(named[1], on=_DECISION, suffixes=("_was", ""))
    changed = both[both["option"] != both["option_was"]].sort_values("share", ascending=False)
    lines = [
        f"{row.llm_id} for {row.slo_id}: {row.option} ({percent(row.share)} likely), "
        f"not {row.option_was}"
        for row in changed.head(_SHOWN).itertuples()
    ]
    left = len(changed) - len(lines)
    return lines + ([f"and {plural(left, 'answer')} more (--json has all)"] if left else [])


def spent(experiment: Experiment, config: Mapping[str, Any], folder: Path) -> tuple[float, float]:
    """Return the GPU-hours and USD that the chosen cells have taken, by Snakemake's run times.
    Those measured elsewhere or before are free; an interrupted cell counts by its last attempt."""
    gpu_hours = usd = 0.0
    for key in experiment.chosen:
        if (took_s := job_s(config, folder, key)) is not None:
            profile = experiment.profiles[key.gpu_profile_id]
            gpu_hours += took_s / 3600 * profile.n_gpus
            usd += took_s / 3600 * profile.usd_per_hour
    return gpu_hours, usd


def measured_before(experiment: Experiment, config: Mapping[str, Any], folder: Path) -> Chosen:
    """Return adaptive cells that were measured: only levels may differ from the sheets'."""
    found: Chosen = {}
    for key in _not_chosen(experiment):
        place = _folder(config, folder, key)
        if not (place / "run.json").is_file():
            continue
        definition = read_run(place).origin.definition or {}
        levels = tuple(map(int, definition.get("scenario", {}).get("levels", ())))
        asked = replace(experiment, chosen={key: levels})
        if levels and definition == cell_definition(asked, key, config):
            found[key] = levels
    return found


def next_round(
    experiment: Experiment, config: Mapping[str, Any], folder: Path, budget: Budget
) -> tuple[MeasurementPlan, Chosen]:
    """Return the next round, once all that was chosen is measured, and its cells as the sheet has
    them; `budget` is that of all rounds together."""
    gpu_hours, _ = spent(experiment, config, folder)
    most = None if budget.gpu_hours is None else budget.gpu_hours - gpu_hours
    left = budget._replace(gpu_hours=most, rounds=1)
    candidates = candidates_of(experiment, config, adaptive_plans(experiment, config, folder))
    plan = plan_of_experiment(experiment, config, candidates, folder, left)
    by_pair = {(key.llm_id, key.gpu_profile_id): key for key in experiment.adaptive}
    chosen = plan.rounds[0].cells if plan.rounds else ()
    return plan, {by_pair[each[:2]]: each.levels for each in chosen}


def adaptive_plans(
    experiment: Experiment, config: Mapping[str, Any], folder: Path
) -> list[CellPlan]:
    """Return what each adaptive cell takes that is not chosen yet."""
    finished = finished_cells(experiment, config, folder)
    return [plan_cell(experiment, config, key, finished) for key in _not_chosen(experiment)]


def _not_chosen(experiment: Experiment) -> list[CellKey]:
    return [key for key in experiment.adaptive if key not in experiment.chosen]
