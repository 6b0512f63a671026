"""The commands around a cluster: `doctor`, `plan`, `measure` and `fleet`."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sextant.base.errors import InputError
from sextant.cli.asked import StoreOptions
from sextant.cli.options import PageFile, check_page, grouped, print_document, say
from sextant.pages.wording import plural

if TYPE_CHECKING:
    from sextant.answer.plan.value import Budget
    from sextant.experiment.experiment import Chosen, Experiment

ConfigFiles = Annotated[
    list[Path] | None, typer.Option("--configfile", exists=True, dir_okay=False)
]
_NonNegative = Annotated[float | None, typer.Option(min=0)]


@dataclass(frozen=True, kw_only=True)
class ConfigOptions:
    """Which configuration."""

    config_files: ConfigFiles = None
    """Configuration on top of the Snakefile's; may be repeated."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(ConfigOptions):
    """Which run, and how far its adaptive cells are chosen."""

    # Checked here: Snakemake ignores a profile that does not exist.
    workflow_profile: Annotated[Path | None, typer.Option(exists=True, file_okay=False)] = None
    """As for snakemake, e.g. workflow/profiles/slurm."""
    nodes: Annotated[int, typer.Option(min=1)] = 1
    """Servers of each GPU profile that can run at once."""
    budget_hours: _NonNegative = None
    """GPU-hours for the cells to measure first, all rounds together."""
    budget_usd: _NonNegative = None
    """The same in USD."""
    until_so: Annotated[float | None, typer.Option(min=0, max=1)] = None
    """Enough once this S/O is expected of the answers."""
    at_once: Annotated[int, typer.Option(min=1)] = 1
    """Cells of a round, with a budget or --until-so."""

    def budget(self) -> "Budget | None":
        """Return what may be spent, None without a limit."""
        from sextant.answer.plan.value import Budget

        limits = (self.budget_hours, self.budget_usd, self.until_so)
        if all(limit is None for limit in limits):
            return None
        return Budget(*limits, self.at_once, of_profile=self.nodes)


@grouped
def doctor(*, given: ConfigOptions) -> None:
    """Print what this machine lacks for a run, and what to do; status 1 if it cannot measure."""
    from sextant.answer.plan.doctor import check_machine, machine_document
    from sextant.base.sheets import read_configuration
    from sextant.experiment.loading import check_config

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

    With a budget or --until-so, print which cells to measure first for the SLOs.
    """
    from sextant.answer.plan.measurements import (
        adaptive_plans,
        candidates_of,
        measurement_document,
        plan_of_experiment,
    )
    from sextant.answer.plan.run import dry_run, make_plan, plan_document
    from sextant.base.sheets import read_configuration
    from sextant.experiment.loading import load_experiment

    folder, printed = Path(), "json" if as_json else "text"
    given = of.config_files or ()
    read_configuration(folder, given)  # so that a broken file is named
    run = dry_run(folder, targets or (), given, of.workflow_profile)
    experiment = load_experiment(run.config)
    run_plan = make_plan(experiment, run.config, run, folder, of.nodes)
    if (budget := of.budget()) is None:
        if of.at_once > 1:
            fix = "give --budget-hours, --budget-usd or --until-so too"
            raise InputError("it needs a budget or --until-so", field="--at-once", fix=fix)
        print_document(plan_document(run_plan), printed)
        return
    cells = [*run_plan.cells, *adaptive_plans(experiment, run.config, folder)]
    candidates = candidates_of(experiment, run.config, cells)
    chosen = plan_of_experiment(experiment, run.config, candidates, folder, budget, given)
    print_document(measurement_document(chosen, candidates), printed)


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
    from sextant.answer.plan.measurements import measured_before, next_round, record, spent
    from sextant.base.sheets import read_configuration
    from sextant.experiment.loading import load_experiment

    if (budget := of.budget()) is None:
        fix = "give --budget-hours, --budget-usd or --until-so"
        raise InputError("no limit says when to stop", field="--budget-hours", fix=fix)
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
        record(config, folder, before, is_new=False)
        say(f"{plural(len(before), 'cell')} measured before: {_names(before)}")
    while True:
        _run_snakemake(snakemake, _targets(load_experiment(config), config))
        experiment = load_experiment(config)
        next_plan, chosen = next_round(experiment, config, folder, budget)
        so_far = spent(experiment, config, folder)
        say(
            f"{plural(len(experiment.chosen), 'cell')} chosen so far, {so_far.gpu_hours:.2f} "
            f"GPU-hours, {so_far.usd:.2f} USD; expected S/O {next_plan.now.expected_so:.3f}"
        )
        if not chosen:
            break
        number = record(config, folder, chosen, is_new=True)
        say(f"round {number}: {_names(chosen)}")
    say(f"no further round: {next_plan.stopped.value}")
    if experiment.cells:
        _run_snakemake(snakemake, [])


def _targets(experiment: "Experiment", config: Any) -> list[str]:
    """Return the files the next choice reads: points, or without any cell the request lengths."""
    results = config["pathvars"]["results"]
    if experiment.cells:
        return [f"{results}/points/{config['source']}/point.parquet"]
    return [f"{results}/workloads/{config['decision']['workload_id']}/requests.parquet"]


def _names(cells: "Chosen") -> str:
    return "; ".join(
        f"{key.llm_id} on {key.gpu_profile_id} at {', '.join(map(str, users))} users"
        for key, users in cells.items()
    )


def _run_snakemake(options: Sequence[str], targets: Sequence[str]) -> None:
    """Have Snakemake make these files, or all results. Raises InputError if it fails."""
    done = subprocess.run([sys.executable, "-m", "snakemake", *options, "--", *targets])
    if done.returncode:
        fix = "correct what it reports above, and run the command again to continue"
        raise InputError("snakemake failed", fix=fix)


@grouped
def fleet(
    *,
    demands: Annotated[Path, typer.Option(help="Sheet of what teams want served, TSV.")],
    supply: Annotated[Path, typer.Option(help="Sheet of the available nodes, TSV.")],
    traces: Annotated[
        Path, typer.Option(help="Folder of the normalised traces that demands name.")
    ] = Path("results/traces"),
    store: StoreOptions,
    risk: Annotated[
        float, typer.Option(help="Largest probability that a served demand misses its limits.")
    ] = 0.1,
    elastic: Annotated[
        bool, typer.Option("--elastic", help="Replicas and nodes by the hour, not for the peak.")
    ] = False,
    time_limit: Annotated[
        float,
        typer.Option(min=1, help="Seconds for each solution; then the best one is used."),
    ] = 120,
    printed: Annotated[
        Literal["text", "json", "html", "kubernetes"],
        typer.Option(
            "--format", help="How to give the answer; kubernetes: objects for kubectl apply."
        ),
    ] = "text",
    out: PageFile = None,
    hour: Annotated[
        int | None,
        typer.Option(min=0, max=23, help="With --elastic: the hour that kubernetes is for."),
    ] = None,
) -> None:
    """Print which GPUs of a cluster serve which team's LLMs, at the lowest cost."""
    from sextant.answer.fleet.deployments import as_kubernetes, check_sheets
    from sextant.answer.fleet.document import fleet_document
    from sextant.answer.fleet.options import FleetQuestion, answer_sheets
    from sextant.base.files import provenance

    check_page(printed, out)
    is_deployed = printed == "kubernetes"
    if (hour is not None) != (is_deployed and elastic):
        fix = "give it with --elastic and --format kubernetes, and with nothing else"
        problem = "an hour is given" if hour is not None else "deployments differ by hour"
        raise InputError(problem, field="--hour", fix=fix)
    if is_deployed:
        check_sheets(demands, supply)
    measurements = {
        "sources": tuple(store.source or ()),
        "database": store.database,
        "workload_id": store.workload_id,
        "scenario_id": store.scenario_id,
        "seed": store.seed,
    }
    answer = answer_sheets(
        FleetQuestion(demands, supply, traces, measurements, risk, elastic, time_limit)
    )
    if is_deployed:
        slot = (hour or 0) % len(answer.plan.pools[0].devices_used)
        say(as_kubernetes(answer.plan, slot))
    else:
        print_document(fleet_document(answer, provenance()), printed, out)
    if answer.plan.unserved:
        raise typer.Exit(3)
