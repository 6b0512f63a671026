"""The commands `doctor` and `measure`: a run of the pipeline on this machine or cluster."""

import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from sextant.api.plan import ConfigOptions, RunOptions
from sextant.base.errors import InputError
from sextant.cli.printing import grouped, print_document, say


@grouped
def doctor(
    *,
    options: ConfigOptions,
    workflow_profile: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="As for snakemake: its names are checked."),
    ] = None,
) -> None:
    """Print what this machine lacks for a run, and what to do; status 1 if it cannot measure."""
    from sextant.base.sheets import read_configuration
    from sextant.experiment.loading import check_config
    from sextant.plan.doctor import check_machine, check_slurm_profile
    from sextant.plan.document import machine_document

    config = read_configuration(Path(), options.config_files or ())
    check_config(config, "the configuration")
    checks = check_machine(Path(config["engine"]["python"]), Path(config["pathvars"]["results"]))
    if workflow_profile is not None:
        checks.append(check_slurm_profile(workflow_profile))
    print_document(machine_document(checks))
    if any(check.state == "missing" for check in checks):
        raise typer.Exit(1)


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
