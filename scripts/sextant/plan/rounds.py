"""The rounds of `sextant measure`: choose cells, have them measured, choose again.

Between rounds only the sheet of chosen cells (`experiment.adaptive`) is kept, besides the results
themselves: with the same results and budget the next round is the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sextant.base.errors import InputError
from sextant.experiment.current import changed_fields
from sextant.experiment.experiment import Chosen, add_chosen, cell_definition, chosen_path
from sextant.pages.words import plural
from sextant.plan.cell_order import Budget, Expectation, Stop
from sextant.plan.estimate import job_s
from sextant.plan.measurements import adaptive_plans, candidates_of, not_chosen, plan_of_experiment
from sextant.plan.workspace import Workspace
from sextant.points.cell_files import read_run


@dataclass(frozen=True)
class Spent:
    """What the chosen cells have taken."""

    gpu_hours: float
    usd: float


@dataclass(frozen=True)
class NextRound:
    """The cells to measure next, and what is expected before them."""

    now: Expectation
    cells: Chosen  #: None left: empty.
    stopped: Stop  #: Why no further cell is in it.


def measure_rounds(
    workspace: Workspace,
    budget: Budget,
    make: Callable[[Sequence[str]], None],
    say: Callable[[str], None],
) -> None:
    """Measure adaptive cells round by round until no further cell is worth it.

    Args:
        workspace: the experiment with adaptive rows.
        budget: of all rounds together.
        make: has Snakemake make some files, or all results where there are none.
        say: prints a line.

    Raises:
        InputError: no row is adaptive, or Snakemake fails.
    """
    if not workspace.experiment.adaptive.candidates:
        sheet = workspace.settings.sheets.benchmarks
        fix = "write `adaptive` into the column `choose` of the rows to choose from"
        raise InputError("no row is adaptive", file=sheet, field="choose", fix=fix)

    sheet_of_chosen = chosen_path(workspace.config)
    if before := measured_before(workspace):
        add_chosen(sheet_of_chosen, before, is_new=False)
        say(f"{plural(len(before), 'cell')} measured before: {_cells_words(before)}")

    while True:
        # What the next choice reads: points, or without any cell the lengths of requests.
        workspace = workspace.reloaded()
        has_cells = bool(workspace.experiment.cells)
        make([workspace.points_target if has_cells else workspace.requests_target])

        workspace = workspace.reloaded()
        next_ = next_round(workspace, budget)
        spent = spent_on_chosen(workspace)
        say(
            f"{plural(len(workspace.experiment.adaptive.chosen), 'cell')} chosen so far, "
            f"{spent.gpu_hours:.2f} GPU-hours, {spent.usd:.2f} USD; "
            f"expected S/O {next_.now.expected_so:.3f}"
        )
        if not next_.cells:
            break
        number = add_chosen(sheet_of_chosen, next_.cells, is_new=True)
        say(f"round {number}: {_cells_words(next_.cells)}")

    say(f"no further round: {next_.stopped.value}")
    if workspace.experiment.cells:
        make([])


def _cells_words(cells: Chosen) -> str:
    """Return cells with their levels, e.g. `a on 1xT4-16GB at 1, 8 users`."""
    return "; ".join(
        f"{key.llm_id} on {key.gpu_profile_id} at {', '.join(map(str, levels))} users"
        for key, levels in cells.items()
    )


def spent_on_chosen(workspace: Workspace) -> Spent:
    """Return the GPU-hours and USD that the chosen cells have taken, by Snakemake's run times.
    Cells measured elsewhere or before are free; an interrupted cell counts by its last attempt."""
    gpu_hours = 0.0
    usd = 0.0
    for key in workspace.experiment.adaptive.chosen:
        if (took_s := job_s(workspace, key)) is not None:
            profile = workspace.experiment.profiles[key.gpu_profile_id]
            gpu_hours += took_s / 3600 * profile.n_gpus
            usd += took_s / 3600 * profile.usd_per_hour
    return Spent(gpu_hours, usd)


def measured_before(workspace: Workspace) -> Chosen:
    """Return adaptive cells that were measured: only levels may differ from the sheets'."""
    measured: Chosen = {}
    for key in not_chosen(workspace):
        folder = workspace.cell_folder(key)
        if not (folder / "run.json").is_file():
            continue
        definition = read_run(folder).origin.definition or {}
        levels = tuple(map(int, definition.get("scenario", {}).get("levels", ())))
        adaptive = replace(workspace.experiment.adaptive, chosen={key: levels})
        with_cell = replace(workspace.experiment, adaptive=adaptive)
        by_sheets = cell_definition(with_cell, key, workspace.config)
        if levels and not changed_fields(definition, by_sheets):
            measured[key] = levels
    return measured


def next_round(workspace: Workspace, budget: Budget) -> NextRound:
    """Return the next round, once all that was chosen is measured; `budget` is that of all rounds
    together."""
    gpu_hours_left = None
    if budget.gpu_hours is not None:
        gpu_hours_left = budget.gpu_hours - spent_on_chosen(workspace).gpu_hours
    candidates = candidates_of(workspace, adaptive_plans(workspace))
    left = replace(budget, gpu_hours=gpu_hours_left, rounds=1)
    plan = plan_of_experiment(workspace, candidates, left)

    candidate_keys = workspace.experiment.adaptive.candidates
    key_by_pair = {(key.llm_id, key.gpu_profile_id): key for key in candidate_keys}
    cells = plan.rounds[0].cells if plan.rounds else ()
    return NextRound(
        now=plan.now,
        cells={key_by_pair[cell.pair]: cell.levels for cell in cells},
        stopped=plan.stopped,
    )
