"""What a run of the pipeline would do, and which cells to measure first."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sextant.api.keywords import with_keywords
from sextant.api.shown import ShownAnswer
from sextant.base.errors import InputError

if TYPE_CHECKING:
    from sextant.plan.cell_order import Budget


@dataclass(frozen=True, kw_only=True)
class ConfigOptions:
    """Which configuration."""

    config_files: Annotated[
        list[Path] | None, typer.Option("--configfile", exists=True, dir_okay=False)
    ] = None
    """Configuration on top of the Snakefile's; may be repeated."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(ConfigOptions):
    """Which run, and how far its adaptive cells are chosen."""

    # Checked here: Snakemake ignores a profile that does not exist.
    workflow_profile: Annotated[Path | None, typer.Option(exists=True, file_okay=False)] = None
    """As for snakemake, e.g. workflow/profiles/slurm."""
    nodes: Annotated[int, typer.Option(min=1)] = 1
    """Servers of each GPU profile that can run at once."""
    budget_hours: Annotated[float | None, typer.Option(min=0)] = None
    """GPU-hours for the cells to measure first, all rounds together."""
    at_once: Annotated[int, typer.Option(min=1)] = 1  #: Cells of a round, with a budget.

    def budget(self) -> "Budget | None":
        """Return what may be spent, None without a limit."""
        from sextant.plan.cell_order import Budget

        hours = self.budget_hours
        return None if hours is None else Budget(hours, self.at_once, of_profile=self.nodes)


@with_keywords
def plan(
    *,
    targets: Annotated[
        list[str] | None, typer.Argument(help="Files or rules; by default all of the results.")
    ] = None,
    options: RunOptions,
) -> ShownAnswer:
    """Find what a run would do, before it is submitted: jobs, requests, hours, cost.

    With a budget, find which cells to measure first for the SLOs.

    Returns
    -------
    ShownAnswer
        The plan; a row of its frame per cell, with a budget per round.

    Raises
    ------
    InputError
        The configuration is wrong, or Snakemake refuses it.

    Examples
    --------
    >>> import sextant
    >>> sextant.plan(nodes=0)
    Traceback (most recent call last):
    sextant.base.errors.InputError: field 'nodes': 0 is below 1. Fix: raise it
    """
    from sextant.base.sheets import read_configuration
    from sextant.experiment.loading import load_experiment
    from sextant.plan.document import measurement_document, plan_document
    from sextant.plan.dry_run import dry_run
    from sextant.plan.measurements import adaptive_plans, candidates_of, plan_of_experiment
    from sextant.plan.run_plan import make_plan
    from sextant.plan.workspace import Workspace

    config_files = options.config_files or ()
    read_configuration(Path(), config_files)  # so that a broken file is named
    run = dry_run(Path(), targets or (), config_files, options.workflow_profile)
    workspace = Workspace(load_experiment(run.config), run.config)
    run_plan = make_plan(workspace, run, options.nodes)

    budget = options.budget()
    if budget is None:
        if options.at_once > 1:
            raise InputError("it needs a budget", field="--at-once", fix="give --budget-hours too")
        return ShownAnswer(
            result=run_plan,
            document=lambda _: plan_document(run_plan),
            rows=[asdict(cell) for cell in run_plan.cells],
        )

    candidates = candidates_of(workspace, [*run_plan.cells, *adaptive_plans(workspace)])
    measurements = plan_of_experiment(workspace, candidates, budget, config_files)
    document = measurement_document(measurements, candidates)
    return ShownAnswer(
        result=measurements,
        document=lambda _: document,
        rows=document.data["rounds"],
    )
