"""The command `measure`: rounds of measurements until answers are sure or a budget is spent."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sextant.base.errors import InputError
from sextant.cli.cluster import ConfigFiles, WorkflowProfile
from sextant.cli.terminal import say
from sextant.pages.wording import plural


def measure(
    options: Annotated[
        list[str] | None,
        typer.Argument(help="Options of snakemake, after --. By default --cores all."),
    ] = None,
    budget_hours: Annotated[
        float | None, typer.Option(min=0, help="GPU-hours that all rounds may take together.")
    ] = None,
    budget_usd: Annotated[
        float | None, typer.Option(min=0, help="USD that all rounds may cost together.")
    ] = None,
    until_so: Annotated[
        float | None, typer.Option(min=0, max=1, help="Stop once this S/O is expected.")
    ] = None,
    at_once: Annotated[int, typer.Option(min=1, help="Cells of a round.")] = 1,
    nodes: Annotated[
        int, typer.Option(min=1, help="Servers of each GPU profile that can run at once.")
    ] = 1,
    config_files: ConfigFiles = None,
    workflow_profile: WorkflowProfile = None,
) -> None:
    """Measure the cells of adaptive rows of benchmarks.tsv that answers need, round by round."""
    from sextant.answer.plan.measurements import next_round, record, spent, take_measured
    from sextant.answer.plan.value import Limits
    from sextant.base.sheets import read_configuration
    from sextant.experiment.loading import load_experiment

    if budget_hours is budget_usd is until_so is None:
        fix = "give --budget-hours, --budget-usd or --until-so"
        raise InputError("nothing says when to stop", field="--budget-hours", fix=fix)
    here, given = Path(), config_files or []
    config = read_configuration(here, given)
    experiment = load_experiment(config)
    if not experiment.adaptive:
        fix = "write `adaptive` into the column `choose` of the rows to choose from"
        sheet = config["sheets"]["benchmarks"]
        raise InputError("no row is adaptive", file=sheet, field="choose", fix=fix)
    snakemake = ["--rerun-incomplete", *(options or [])]
    if workflow_profile:
        snakemake += ["--workflow-profile", str(workflow_profile)]
    elif not options:
        snakemake += ["--cores", "all"]
    if given:
        snakemake += ["--configfile", *map(str, given)]
    if found := take_measured(experiment, config, here):
        record(config, here, found, is_new=False)
        say(f"{plural(len(found), 'cell')} measured before: {_cells(found)}")
    limits = Limits(budget_hours, budget_usd, until_so, at_once, nodes)
    while True:
        _run(snakemake, _targets(load_experiment(config), config))
        experiment = load_experiment(config)
        order, chosen = next_round(experiment, config, here, limits)
        so_far = spent(experiment, config, here)
        say(
            f"{plural(len(experiment.chosen), 'cell')} chosen so far, {so_far.gpu_hours:.2f} "
            f"GPU-hours, {so_far.usd:.2f} USD; expected S/O {order.now.expected_so:.3f}"
        )
        if not chosen:
            break
        number = record(config, here, chosen, is_new=True)
        say(f"round {number}: {_cells(chosen)}")
    say(f"no further round: {order.stopped.value}")
    if experiment.cells:
        _run(snakemake, [])


def _targets(experiment: Any, config: Any) -> list[str]:
    """Return what the next choice needs: the points, or without any cell the workload's lengths."""
    results = config["pathvars"]["results"]
    if experiment.cells:
        return [f"{results}/points/{config['source']}/point.parquet"]
    return [f"{results}/workloads/{config['decision']['workload_id']}/requests.parquet"]


def _cells(chosen: Any) -> str:
    return "; ".join(
        f"{key.llm_id} on {key.gpu_profile_id} at {', '.join(map(str, users))} users"
        for key, users in chosen.items()
    )


def _run(options: Sequence[str], targets: Sequence[str]) -> None:
    """Have Snakemake make these files, or all results.

    Raises:
        InputError: it failed; its own words stand above.
    """
    done = subprocess.run([sys.executable, "-m", "snakemake", *options, "--", *targets])
    if done.returncode:
        fix = "mend what it says, and run the command again: it goes on where it stopped"
        raise InputError("snakemake failed", fix=fix)
