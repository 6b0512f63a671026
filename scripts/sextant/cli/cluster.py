"""The commands `plan`, before a long run, and `import`, of cells that others measured."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sextant.base.errors import InputError
from sextant.cli.terminal import say

ConfigFiles = Annotated[
    list[Path] | None,
    typer.Option("--configfile", help="Configuration on top of the Snakefile's; may be repeated."),
]
# Checked here: Snakemake ignores a profile that does not exist.
WorkflowProfile = Annotated[
    Path | None,
    typer.Option(
        exists=True, file_okay=False, help="As for snakemake, e.g. workflow/profiles/slurm."
    ),
]


def plan(
    targets: Annotated[
        list[str] | None, typer.Argument(help="Files or rules; by default all of the results.")
    ] = None,
    config_files: ConfigFiles = None,
    workflow_profile: WorkflowProfile = None,
    nodes: Annotated[
        int, typer.Option(min=1, help="Servers of each GPU profile that can run at once.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Print what a run would do, before it is submitted: jobs, requests, hours, cost."""
    from sextant.experiment.loading import load_experiment
    from sextant.plan.jobs import dry_run
    from sextant.plan.summary import make_plan
    from sextant.plan.text import plan_text

    here = Path()
    run = dry_run(here, targets or (), config_files or (), workflow_profile)
    made = make_plan(load_experiment(run.config), run.config, run, here, nodes)
    say(json.dumps(asdict(made), indent=2) if as_json else plan_text(made))


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
    from sextant.base.yaml_files import read_configuration
    from sextant.experiment.loading import load_experiment
    from sextant.importing.decisions import Status
    from sextant.importing.merge import import_cells, report_text
    from sextant.importing.snakemake_metadata import record_cells, refuse_beside_a_run

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
