"""The commands `doctor` and `plan`, before a long run, and `import`, of cells of others."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sextant.base.errors import InputError
from sextant.cli.terminal import say

ConfigFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--configfile",
        exists=True,
        dir_okay=False,
        help="Configuration on top of the Snakefile's; may be repeated.",
    ),
]
# Checked here: Snakemake ignores a profile that does not exist.
WorkflowProfile = Annotated[
    Path | None,
    typer.Option(
        exists=True, file_okay=False, help="As for snakemake, e.g. workflow/profiles/slurm."
    ),
]


def doctor(config_files: ConfigFiles = None) -> None:
    """Say what this machine lacks for a run, and what to do; status 1 if it cannot measure."""
    from sextant.answer.plan.doctor import checks, checks_text
    from sextant.base.sheets import SCHEMAS, read_configuration, validate

    config = read_configuration(Path(), config_files or ())
    validate(config, SCHEMAS / "config.schema.yaml", "the configuration")
    found = checks(Path(config["engine"]["python"]), Path(config["pathvars"]["results"]))
    say(checks_text(found))
    if any(check.fix and check.is_needed for check in found):
        raise typer.Exit(1)


def plan(
    targets: Annotated[
        list[str] | None, typer.Argument(help="Files or rules; by default all of the results.")
    ] = None,
    config_files: ConfigFiles = None,
    workflow_profile: WorkflowProfile = None,
    nodes: Annotated[
        int, typer.Option(min=1, help="Servers of each GPU profile that can run at once.")
    ] = 1,
    budget_hours: Annotated[
        float | None,
        typer.Option(min=0, help="Say which cells to measure first for so many GPU-hours."),
    ] = None,
    budget_usd: Annotated[
        float | None, typer.Option(min=0, help="The same for so many USD.")
    ] = None,
    until_so: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="The same until this S/O is expected of the answers."),
    ] = None,
    at_once: Annotated[
        int, typer.Option(min=1, help="Cells of a round, with a budget or --until-so.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Print what a run would do, before it is submitted: jobs, requests, hours, cost.

    With a budget or --until-so, print which cells to measure first for the SLOs.
    """
    from sextant.answer.plan.measurements import (
        candidate_plans,
        candidates_of,
        order_json,
        order_of_plan,
        order_text,
    )
    from sextant.answer.plan.run import dry_run, make_plan, plan_text
    from sextant.answer.plan.value import Limits
    from sextant.base.sheets import read_configuration
    from sextant.experiment.loading import load_experiment

    here = Path()
    read_configuration(here, config_files or ())  # a broken file is named
    run = dry_run(here, targets or (), config_files or (), workflow_profile)
    experiment = load_experiment(run.config)
    made = make_plan(experiment, run.config, run, here, nodes)
    if budget_hours is budget_usd is until_so is None:
        if at_once > 1:
            fix = "give --budget-hours, --budget-usd or --until-so beside it"
            raise InputError("it needs a budget or --until-so", field="--at-once", fix=fix)
        say(json.dumps(asdict(made), indent=2) if as_json else plan_text(made))
        return
    limits = Limits(budget_hours, budget_usd, until_so, at_once, of_profile=nodes)
    cells = [*made.cells, *candidate_plans(experiment, run.config, here)]
    candidates = candidates_of(experiment, run.config, cells)
    found = order_of_plan(experiment, run.config, candidates, here, limits)
    as_text = json.dumps(order_json(found), indent=2) if as_json else order_text(found, candidates)
    say(as_text)


def import_results(
    place: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Results of others: a folder, or a tar of one."),
    ],
    config_files: ConfigFiles = None,
    workflow_profile: WorkflowProfile = None,
    dry_run: Annotated[bool, typer.Option(help="Print what would be done; write nothing.")] = False,
    allow_mixed: Annotated[
        bool,
        typer.Option(help="Import although versions or machines differ; cells here stay."),
    ] = False,
) -> None:
    """Import cells that others measured and that the sheets here ask for; nothing is measured."""
    from sextant.base.sheets import read_configuration
    from sextant.experiment.loading import load_experiment
    from sextant.points.importing.decisions import Status
    from sextant.points.importing.merge import import_cells, report_text
    from sextant.points.importing.snakemake_metadata import record_cells, refuse_beside_a_run

    here, given = Path(), config_files or []
    config = read_configuration(here, given)
    report = import_cells(
        place,
        load_experiment(config),
        config,
        is_dry_run=dry_run,
        allow_conflicts=allow_mixed,
        before_writing=lambda files: refuse_beside_a_run(here, files),
        after_writing=lambda runs: record_cells(here, runs, given, workflow_profile),
    )
    say(report_text(report))
    if report.all_conflicts and not allow_mixed:
        raise InputError(
            f"{len(report.all_conflicts)} conflicts, nothing was written",
            file=place,
            fix="leave these cells out, or give --allow-mixed, which results then record",
        )
    if damaged := report.cells(Status.damaged):
        raise InputError(
            f"{len(damaged)} damaged cells are left out, named above",
            file=place,
            fix="copy these cells again from where they were measured, and import again",
        )
