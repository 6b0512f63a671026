"""The command line: the same library as the pipeline's, for use without Snakemake."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from sextant import __version__, cli_advice
from sextant.cli_advice import Database
from sextant.errors import InputError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="From production traces of LLM requests to the cheapest GPU that keeps a latency promise.",
)

Seed = Annotated[int, typer.Option(help="Seed; the same seed gives the same bytes.")]


class Kind(StrEnum):
    """What a server runs on."""

    gpu = "gpu"
    cpu = "cpu"


@app.command()
def ingest(
    source: Annotated[Path, typer.Argument(help="Trace as its publisher wrote it.")],
    trace_format: Annotated[
        str, typer.Option("--format", help="azure, burstgpt, mooncake or sextant.")
    ],
    out: Annotated[Path, typer.Option(help="Normalised trace, Parquet.")],
    max_rejected_fraction: Annotated[
        float, typer.Option(help="Fraction of malformed rows that may be set aside, 0 to 1.")
    ] = 0.01,
) -> None:
    """Normalise a production trace; malformed rows go to OUT.rejected.parquet."""
    from sextant.ingest import ingest_trace

    report = ingest_trace(
        source,
        trace_format,
        out,
        out.with_suffix(".rejected.parquet"),
        out.with_suffix(".report.json"),
        max_rejected_fraction=max_rejected_fraction,
    )
    typer.echo(
        f"{out}: {report['n_accepted']:,} of {report['n_read']:,} rows, "
        f"{report['n_rejected']:,} set aside, {report['n_failed']:,} failed requests"
    )


@app.command()
def fit(
    trace: Annotated[Path, typer.Argument(help="Normalised trace (see `sextant ingest`).")],
    out: Annotated[Path, typer.Option(help="Folder of the workload.")],
    max_input_tokens: Annotated[
        int | None, typer.Option(help="Cap on a request's input in tokens; none by default.")
    ] = None,
    max_output_tokens: Annotated[
        int | None, typer.Option(help="Cap on a request's output in tokens; none by default.")
    ] = None,
    n_bins: Annotated[int, typer.Option(help="Most bins per request parameter.")] = 64,
    seed: Seed = 0,
) -> None:
    """Fit a workload (requests and arrivals) to a trace."""
    from sextant.workload.fit import fit_workload

    figures = fit_workload(
        trace,
        out / "requests.parquet",
        out / "arrivals.json",
        out / "validation.json",
        max_input_tokens=max_input_tokens,
        max_output_tokens=max_output_tokens,
        n_bins=n_bins,
        seed=seed,
    )
    distances = ", ".join(f"{name} {value:.3f}" for name, value in figures["ks"].items())
    typer.echo(
        f"{out}: {figures['n_requests']:,} requests in {figures['n_joint_bins']:,} joint bins; "
        f"caps touched {figures['n_clipped_input']:,} inputs and "
        f"{figures['n_clipped_output']:,} outputs; KS distances: {distances}"
    )


@app.command()
def sample(
    workload: Annotated[Path, typer.Option(help="Folder of a fitted workload.")],
    n: Annotated[int, typer.Option("-n", min=1, help="Number of requests.")],
    out: Annotated[Path, typer.Option(help="Trace to write, .csv or .parquet.")],
    seed: Seed = 0,
) -> None:
    """Draw a trace from a workload, in Sextant's own format."""
    from sextant.files import atomic_path
    from sextant.workload import sample_trace

    writers = {".csv": "to_csv", ".parquet": "to_parquet"}
    if out.suffix not in writers:
        fix = "end it in .csv or .parquet"
        raise InputError(f"unknown ending {out.suffix!r}", file=out, field="--out", fix=fix)
    drawn = sample_trace(workload, n, seed)
    with atomic_path(out) as temporary:
        getattr(drawn, writers[out.suffix])(temporary, index=False)
    typer.echo(f"{out}: {len(drawn):,} requests")


@app.command()
def load(
    base_url: Annotated[str, typer.Option(help="OpenAI-compatible server, http://HOST:PORT.")],
    model: Annotated[str, typer.Option(help="Model name that the server answers to.")],
    workload: Annotated[Path, typer.Option(help="Folder of a fitted workload.")],
    out: Annotated[Path, typer.Option(help="Folder for requests.parquet and levels.json.")],
    users: Annotated[str, typer.Option(help="Concurrent users, e.g. 16 or 1,2,4.")] = "1",
    duration: Annotated[float, typer.Option(help="Seconds of load at each level.")] = 120,
    warmup: Annotated[float, typer.Option(help="Seconds of load before, not measured.")] = 10,
    timeout: Annotated[float, typer.Option(help="Seconds until a request has failed.")] = 120,
    vocab_size: Annotated[int, typer.Option(help="Prompts are token ids below this.")] = 32000,
    api_key_env: Annotated[
        str, typer.Option(help="Environment variable that holds the server's API key.")
    ] = "OPENAI_API_KEY",
    seed: Seed = 0,
) -> None:
    """Load a running server in closed loop and write every request."""
    import os

    from sextant.load.client import Target
    from sextant.load.run import load_server

    rows = load_server(
        Target(base_url, model, os.environ.get(api_key_env)),
        workload,
        _levels(users),
        warmup,
        duration,
        timeout,
        vocab_size,
        seed,
        out,
    )
    typer.echo(pd.DataFrame(rows).to_string(index=False, float_format=lambda x: f"{x:.4g}"))
    if not all(row["n_ok"] for row in rows):
        typer.echo("Error: no request succeeded at some level; see requests.parquet", err=True)
        raise typer.Exit(1)


@app.command("serve-and-load")
def serve_and_load(
    llm_config: Annotated[Path, typer.Option(help="The LLM's Hugging Face config.json.")],
    workload: Annotated[Path, typer.Option(help="Folder of a fitted workload, with caps.")],
    out: Annotated[Path, typer.Option(help="Folder for the results.")],
    max_input_tokens: Annotated[int, typer.Option(help="Longest input of the workload, tokens.")],
    max_output_tokens: Annotated[int, typer.Option(help="Longest output, tokens.")],
    memory_gib: Annotated[float, typer.Option(help="Memory of one device in GiB.")],
    model: Annotated[
        str | None, typer.Option(help="Folder of the weights; random weights without it.")
    ] = None,
    kind: Annotated[Kind, typer.Option(help="gpu, or cpu for processor cores.")] = Kind.gpu,
    n_gpus: Annotated[int, typer.Option(min=1, help="Devices of one replica.")] = 1,
    users: Annotated[str, typer.Option(help="Concurrent users, e.g. 1,2,4,8.")] = "1,2,4,8",
    duration: Annotated[float, typer.Option(help="Seconds of load at each level.")] = 120,
    warmup: Annotated[float, typer.Option(help="Seconds of load before, not measured.")] = 10,
    config: Annotated[Path, typer.Option(help="Configuration whose `engine` part to use.")] = Path(
        "config/config.yaml"
    ),
    seed: Seed = 0,
) -> None:
    """Start a vLLM server, tune its batch weight, load it and stop it."""
    import yaml

    from sextant.benchmark.job import run_job
    from sextant.experiment import SCHEMAS
    from sextant.sheets import validate
    from sextant.workload import load_request_model

    settings = yaml.safe_load(config.read_text(encoding="utf-8"))
    validate(settings, SCHEMAS / "config.schema.yaml", config)
    load_request_model(workload)  # before a server starts for nothing

    definition = {
        "source": "measured",
        "llm_id": llm_config.stem,
        "gpu_profile_id": f"{n_gpus}x{kind}",
        "workload_id": workload.name,
        "scenario_id": "closed_loop",
        "config_path": str(llm_config),
        "model": model,
        "devices": {"kind": kind.value, "n_gpus": n_gpus, "memory_gib": memory_gib},
        "max_input_tokens": max_input_tokens,
        "max_output_tokens": max_output_tokens,
        "levels": _levels(users),
        "warmup_s": warmup,
        "duration_s": duration,
        "seed": seed,
    }
    tables = ("requests", "server", "telemetry")
    run_job(
        definition,
        settings,
        str(workload / "requests.parquet"),
        {name: str(out / f"{name}.parquet") for name in tables}
        | {name: str(out / f"{name}.json") for name in ("tuning", "run")},
        {"job": str(out / "job.log"), "server": str(out / "server.log")},
    )
    typer.echo(f"{out / 'run.json'}")


app.command()(cli_advice.recommend)
app.command()(cli_advice.explain)
app.command()(cli_advice.evaluate)
app.command("export-characterization")(cli_advice.export_characterization)


@app.command()
def show(database: Database = None) -> None:
    """Print the recommendations of the store, and where the report is."""
    from sextant.advice.source import store_path
    from sextant.characterization import require_store
    from sextant.report import summary_text

    database = store_path(database)
    require_store(database)
    typer.echo(summary_text(database))
    page = database.parent / "report" / "index.html"
    if page.exists():
        typer.echo(f"\nReport: {page}")


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def _levels(text: str) -> list[int]:
    try:
        levels = [int(part) for part in text.split(",")]
    except ValueError:
        levels = []
    if not levels or min(levels) < 1:
        fix = "write whole numbers above 0, separated by commas"
        raise InputError(f"{text!r} are no numbers of users", field="--users", fix=fix)
    return levels


def main() -> None:
    """Run the command line; bad input ends it with one line and status 2."""
    try:
        app()
    except InputError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # a file that is missing, or a folder that cannot be written
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
    except RuntimeError as error:  # a server that failed: the message has its last log lines
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(1)
