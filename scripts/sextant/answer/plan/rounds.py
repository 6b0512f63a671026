"""Rounds of measurements: what was spent on chosen cells, and which are chosen next.

The sheet of chosen cells (`experiment.adaptive`) is all that is kept between rounds, beside the
results themselves: with the same results and limits the next round is the same.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sextant.answer.plan.choice import Limits, Order
from sextant.answer.plan.history import basis, finished_cells, job_s
from sextant.answer.plan.next_cells import candidates_of, order_of_plan
from sextant.answer.plan.summary import CellPlan, unplanned_cell
from sextant.experiment.adaptive import Chosen, add_chosen, chosen_path, last_round
from sextant.experiment.cell_key import CellKey
from sextant.experiment.definition import cell_definition
from sextant.experiment.experiment import Experiment
from sextant.points.cells.files import read_run


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
