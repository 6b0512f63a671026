"""The commands around a cluster: `doctor`, `plan`, `measure` and `fleet`."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sextant.base.errors import InputError
from sextant.cli.options import PrintOptions, StoreOptions, grouped, print_document, say
from sextant.pages.words import plural

if TYPE_CHECKING:
    from sextant.experiment.experiment import Chosen
    from sextant.plan.value import Budget


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
        from sextant.plan.value import Budget

        hours = self.budget_hours
        return None if hours is None else Budget(hours, self.at_once, of_profile=self.nodes)


@grouped
def doctor(*, given: ConfigOptions) -> None:
    """Print what this machine lacks for a run, and what to do; status 1 if it cannot measure."""
    from sextant.base.sheets import read_configuration
    from sextant.experiment.loading import check_config
    from sextant.plan.doctor import check_machine, machine_document

    config = read_configuration(Path(), given.config_files or ())
    check_config(config, "the configuration")
    checks = check_machine(Path(config["engine"]["python"]), Path(config["pathvars"]["results"]))
    print_document(machine_document(checks))
    if any(check.fix and check.is_needed for check in checks):
        raise typer.Exit(1)


@grouped
def plan(
    *,
    targets: Annotated[
        list[str] | None, typer.Argument(help="Files or rules; by default all of the results.")
    ] = None,
    of: RunOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Print what a run would do, before it is submitted: jobs, requests, hours, cost.

    With a budget, print which cells to measure first for the SLOs.
    """
    from sextant.base.sheets import read_configuration
    from sextant.experiment.loading import load_experiment
    from sextant.plan import measurements
    from sextant.plan.run_plan import dry_run, make_plan, plan_document

    folder, printed = Path(), "json" if as_json else "text"
    given = of.config_files or ()
    read_configuration(folder, given)  # so that a broken file is named
    run = dry_run(folder, targets or (), given, of.workflow_profile)
    experiment = load_experiment(run.config)
    run_plan = make_plan(experiment, run.config, run, folder, of.nodes)
    if (budget := of.budget()) is None:
        if of.at_once > 1:
            raise InputError("it needs a budget", field="--at-once", fix="give --budget-hours too")
        print_document(plan_document(run_plan), printed)
        return
    cells = [*run_plan.cells, *measurements.adaptive_plans(experiment, run.config, folder)]
    candidates = measurements.candidates_of(experiment, run.config, cells)
    of_all = experiment, run.config, candidates, folder, budget, given
    chosen = measurements.plan_of_experiment(*of_all)
    print_document(measurements.measurement_document(chosen, candidates), printed)


@grouped
def measure(
    *,
    options: Annotated[
        list[str] | None,
        typer.Argument(help="Options of snakemake, after --. By default --cores all."),
    ] = None,
    of: RunOptions,
) -> None:
    """Measure the cells of adaptive rows of benchmarks.tsv that answers need, round by round."""
    from sextant.base.sheets import read_configuration
    from sextant.experiment.experiment import add_chosen, chosen_path
    from sextant.experiment.loading import load_experiment
    from sextant.plan.measurements import measured_before, next_round, spent

    if (budget := of.budget()) is None:
        problem, fix = "no limit says when to stop", "give the GPU-hours that may be spent"
        raise InputError(problem, field="--budget-hours", fix=fix)
    folder, given = Path(), of.config_files or []
    config = read_configuration(folder, given)
    experiment = load_experiment(config)
    if not experiment.adaptive:
        fix = "write `adaptive` into the column `choose` of the rows to choose from"
        sheet = config["sheets"]["benchmarks"]
        raise InputError("no row is adaptive", file=sheet, field="choose", fix=fix)
    snakemake = ["--rerun-incomplete", *(options or [])]
    if of.workflow_profile:
        snakemake += ["--workflow-profile", str(of.workflow_profile)]
    elif not options:
        snakemake += ["--cores", "all"]
    if given:
        snakemake += ["--configfile", *map(str, given)]
    if before := measured_before(experiment, config, folder):
        add_chosen(chosen_path(config), before, is_new=False)
        say(f"{plural(len(before), 'cell')} measured before: {_names(before)}")
    results = config["pathvars"]["results"]
    while True:
        # What the next choice reads: points, or without any cell the lengths of requests.
        target = f"{results}/points/{config['source']}/point.parquet"
        if not load_experiment(config).cells:
            workload_id = config["decision"]["workload_id"]
            target = f"{results}/workloads/{workload_id}/requests.parquet"
        _run_snakemake(snakemake, [target])
        experiment = load_experiment(config)
        next_plan, chosen = next_round(experiment, config, folder, budget)
        gpu_hours, usd = spent(experiment, config, folder)
        count = plural(len(experiment.chosen), "cell")
        cost = f"{gpu_hours:.2f} GPU-hours, {usd:.2f} USD"
        say(f"{count} chosen so far, {cost}; expected S/O {next_plan.now.expected_so:.3f}")
        if not chosen:
            break
        number = add_chosen(chosen_path(config), chosen, is_new=True)
        say(f"round {number}: {_names(chosen)}")
    say(f"no further round: {next_plan.stopped.value}")
    if experiment.cells:
        _run_snakemake(snakemake, [])


def _names(cells: "Chosen") -> str:
    return "; ".join(
        f"{key.llm_id} on {key.gpu_profile_id} at {', '.join(map(str, users))} users"
        for key, users in cells.items()
    )


def _run_snakemake(options: Sequence[str], targets: Sequence[str]) -> None:
    """Have Snakemake make these files, or all results. Raises InputError if it fails."""
    from sextant.plan.run_plan import snakemake_command

    done = subprocess.run([*snakemake_command(), *options, "--", *targets])
    if done.returncode:
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
        measurements=options.measurements(),
        risk=options.risk,
        time_limit_s=options.time_limit,
    )
    answer = answer_sheets(question)
    shown.print(fleet_document(answer, provenance()))
    if not answer.is_everyone_served:
        raise typer.Exit(3)
