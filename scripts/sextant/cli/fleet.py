"""The command `fleet`: which team gets which GPUs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from sextant.base.errors import InputError
from sextant.cli.asked import StoreOptions
from sextant.cli.options import PageFile, grouped
from sextant.cli.terminal import check_page, print_document, say


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
        Literal["text", "json", "html", "kubernetes", "slurm"],
        typer.Option(
            "--format",
            help="How to give the answer; kubernetes: objects for kubectl apply; slurm: a shell "
            "script that submits jobs.",
        ),
    ] = "text",
    out: PageFile = None,
    hour: Annotated[
        int | None,
        typer.Option(
            min=0, max=23, help="With --elastic: the hour that kubernetes or slurm is for."
        ),
    ] = None,
) -> None:
    """Print which GPUs of a cluster serve which team's LLMs, at the lowest cost."""
    from sextant.answer.fleet.deployments import as_kubernetes, as_slurm, check_sheets
    from sextant.answer.fleet.document import fleet_document
    from sextant.answer.fleet.options import FleetQuestion, answer_sheets
    from sextant.base.files import provenance

    check_page(printed, out)
    is_deployed = printed in ("kubernetes", "slurm")
    if (hour is not None) != (is_deployed and elastic):
        fix = "give it with --elastic and --format kubernetes or slurm, and with nothing else"
        problem = "an hour is given" if hour is not None else "deployments differ by hour"
        raise InputError(problem, field="--hour", fix=fix)
    if is_deployed:
        check_sheets(demands, supply, printed)
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
        write = as_kubernetes if printed == "kubernetes" else as_slurm
        slot = (hour or 0) % len(answer.plan.pools[0].devices_used)
        say(write(answer.plan, slot))
    else:
        print_document(fleet_document(answer, provenance()), printed, out)
    if answer.plan.unserved:
        raise typer.Exit(3)
