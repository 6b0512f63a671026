"""The commands around a cluster: `doctor`, `plan`, `measure` and `fleet`."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sextant.base.errors import InputError
from sextant.cli.options import PrintOptions, StoreOptions, grouped, print_document, say

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


@grouped
def doctor(*, options: ConfigOptions) -> None:
    """Print what this machine lacks for a run, and what to do; status 1 if it cannot measure."""
    from sextant.base.sheets import read_configuration
    from sextant.experiment.loading import check_config
    from sextant.plan.doctor import check_machine
    from sextant.plan.document import machine_document

    config = read_configuration(Path(), options.config_files or ())
    check_config(config, "the configuration")
    checks = check_machine(Path(config["engine"]["python"]), Path(config["pathvars"]["results"]))
    print_document(machine_document(checks))
    if any(check.state == "missing" for check in checks):
        raise typer.Exit(1)


@grouped
def plan(
    *,
    targets: Annotated[
        list[str] | None, typer.Argument(help="Files or rules; by default all of the results.")
    ] = None,
    options: RunOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Print what a run would do, before it is submitted: jobs, requests, hours, cost.

    With a budget, print which cells to measure first for the SLOs.
    """
    from sextant.base.sheets import read_configuration
    from sextant.experiment.loading import load_experiment
    from sextant.plan.document import measurement_document, plan_document
    from sextant.plan.dry_run import dry_run
    from sextant.plan.measurements import adaptive_plans, candidates_of, plan_of_experiment
    from sextant.plan.run_plan import make_plan
    from sextant.plan.workspace import Workspace

    printed = "json" if as_json else "text"
    config_files = options.config_files or ()
    read_configuration(Path(), config_files)  # so that a broken file is named
    run = dry_run(Path(), targets or (), config_files, options.workflow_profile)
    workspace = Workspace(load_experiment(run.config), run.config)
    run_plan = make_plan(workspace, run, options.nodes)

    budget = options.budget()
    if budget is None:
        if options.at_once > 1:
            raise InputError("it needs a budget", field="--at-once", fix="give --budget-hours too")
        print_document(plan_document(run_plan), printed)
        return

    candidates = candidates_of(workspace, [*run_plan.cells, *adaptive_plans(workspace)])
    measurements = plan_of_experiment(workspace, candidates, budget, config_files)
    print_document(measurement_document(measurements, candidates), printed)


@grouped
def measure(
    *,
    options: Annotated[
        list[str] | None,
        typer.Argument(help="Options of snakemake, after --. By default --cores all."),
    ] = None,
    run: RunOptions,
) -> None:
    """Measure the cells of adaptive rows of benchmarks.tsv that answers need, round by round."""
    from sextant.base.sheets import read_configuration
    from sextant.experiment.loading import load_experiment
    from sextant.plan.rounds import measure_rounds
    from sextant.plan.workspace import Workspace

    budget = run.budget()
    if budget is None:
        problem = "no limit says when to stop"
        fix = "give the GPU-hours that may be spent"
        raise InputError(problem, field="--budget-hours", fix=fix)

    config = read_configuration(Path(), run.config_files or [])
    arguments = ["--rerun-incomplete", *(options or [])]
    if run.workflow_profile:
        arguments += ["--workflow-profile", str(run.workflow_profile)]
    elif not options:
        arguments += ["--cores", "all"]
    if run.config_files:
        arguments += ["--configfile", *map(str, run.config_files)]

    workspace = Workspace(load_experiment(config), config)
    measure_rounds(workspace, budget, partial(_run_snakemake, arguments), say)


def _run_snakemake(options: Sequence[str], targets: Sequence[str]) -> None:
    """Have Snakemake make these files, or all results. Raises InputError if it fails."""
    from sextant.plan.dry_run import snakemake_command

    process = subprocess.run([*snakemake_command(), *options, "--", *targets])
    if process.returncode:
        fix = "correct what it reports above, and run the command again to continue"
        raise InputError("snakemake failed", fix=fix)


@dataclass(frozen=True, kw_only=True)
class FleetOptions(StoreOptions):
    """What is wanted, what there is, and how to plan."""

    demands: Path  #: Sheet of what teams want served, TSV.
    supply: Path  #: Sheet of the available nodes, TSV.
    traces: Path = Path("results/traces")  #: Folder of the normalised traces that demands name.
    risk: float = 0.1  #: Largest probability that a served demand misses its limits.
    time_limit: Annotated[float, typer.Option(min=1)] = 120
    """Seconds for each solution; then the best one is used."""


@grouped
def fleet(*, options: FleetOptions, shown: PrintOptions) -> None:
    """Print which GPUs of a cluster serve which team's LLMs, at the lowest cost."""
    from sextant.base.files import provenance
    from sextant.fleet.document import fleet_document
    from sextant.fleet.fleet import FleetQuestion, answer_sheets

    question = FleetQuestion(
        demands=options.demands,
        supply=options.supply,
        traces=options.traces,
        risk=options.risk,
        time_limit_s=options.time_limit,
        database=options.database,
        sources=tuple(options.source or ()),
        workload_id=options.workload_id,
        scenario_id=options.scenario_id,
        seed=options.seed,
    )
    answer = answer_sheets(question)
    shown.print(fleet_document(answer, provenance()))
    if not answer.is_everyone_served:
        raise typer.Exit(3)
