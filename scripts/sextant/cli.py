"""The command line: the same library as the pipeline's, for use without Snakemake."""

import json
import sys
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from sextant import __version__
from sextant.errors import InputError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="From production traces of LLM requests to the cheapest GPU that keeps a latency promise.",
)

Database = Annotated[
    Path | None,
    typer.Option(
        help="Store that the pipeline built; by default results/sextant.duckdb, or "
        "results/NAME/sextant.duckdb for the source archive:NAME."
    ),
]
# LLM-Pilot's own seed, with which its published predictions come out.
PREDICTOR_SEED = 42
Seed = Annotated[int, typer.Option(help="Seed; the same seed gives the same bytes.")]
WorkloadId = Annotated[str | None, typer.Option(help="Workload; the store's own by default.")]
ScenarioId = Annotated[str | None, typer.Option(help="Scenario; the store's own by default.")]


class Format(StrEnum):
    """How results are printed."""

    text = "text"
    json = "json"


class Kind(StrEnum):
    """What a server runs on."""

    gpu = "gpu"
    cpu = "cpu"


class TableFormat(StrEnum):
    """How results that are tables are printed."""

    table = "table"
    json = "json"


Printed = Annotated[Format, typer.Option("--format", help="How to print the result.")]


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


@app.command()
def recommend(
    users: Annotated[int, typer.Option(min=1, help="Concurrent users to serve.")],
    nttft_ms: Annotated[float, typer.Option(help="Limit of TTFT per input token in ms.")],
    itl_ms: Annotated[float, typer.Option(help="Limit of the inter-token latency in ms.")],
    llm: Annotated[str | None, typer.Option(help="An LLM of the store.")] = None,
    llm_config: Annotated[
        Path | None, typer.Option(help="config.json of an LLM that was never measured.")
    ] = None,
    percentile: Annotated[int, typer.Option(help="Percentile of both limits: 50, 90, 99.")] = 50,
    predictor: Annotated[str, typer.Option(help="Predictor for an unmeasured LLM.")] = "llm_pilot",
    database: Database = None,
    source: Annotated[str | None, typer.Option(help="Characterization to use.")] = None,
    workload_id: WorkloadId = None,
    scenario_id: ScenarioId = None,
    seed: Seed = PREDICTOR_SEED,
    printed: Printed = Format.text,
) -> None:
    """Say which GPU profile, and how many replicas, serve an LLM at the lowest cost."""
    from sextant.answer import recommend_llm

    slo = {
        "slo_id": "asked",
        "nttft_ms": nttft_ms,
        "itl_ms": itl_ms,
        "percentile": percentile,
        "users": users,
    }
    answer = recommend_llm(
        _store(database, source),
        slo,
        llm,
        llm_config,
        predictor,
        source,
        seed,
        workload_id,
        scenario_id,
    )
    if printed is Format.json:
        typer.echo(json.dumps(answer, indent=2, allow_nan=False))
    else:
        typer.echo(answer["text"])
    if answer["gpu_profile_id"] is None:
        raise typer.Exit(3)


@app.command()
def evaluate(
    slos: Annotated[Path, typer.Option(help="Sheet of SLOs (columns as config/slos.tsv).")],
    predictor: Annotated[
        list[str] | None,
        typer.Option(help="Predictor to judge; may be given again. Those of the store by default."),
    ] = None,
    database: Database = None,
    source: Annotated[str | None, typer.Option(help="Characterization to judge on.")] = None,
    workload_id: WorkloadId = None,
    scenario_id: ScenarioId = None,
    seed: Seed = PREDICTOR_SEED,
    printed: Annotated[
        TableFormat, typer.Option("--format", help="How to print the result.")
    ] = TableFormat.table,
) -> None:
    """Judge predictors by leave-one-LLM-out: success rate S, overspend O and S/O."""
    from sextant.answer import evaluate_predictors

    result = evaluate_predictors(
        _store(database, source),
        slos,
        predictor,
        source,
        seed,
        workload_id,
        scenario_id,
        # Standard output is for the result alone.
        progress=partial(typer.echo, err=True),
    )
    if printed is TableFormat.json:
        typer.echo(json.dumps(result, indent=2, allow_nan=False))
        return
    for part in ("predictors", "scenarios"):
        typer.echo(pd.DataFrame(result[part]).to_string(index=False) + "\n")


@app.command()
def show(database: Database = None) -> None:
    """Print the recommendations of the store, and where the report is."""
    from sextant.characterization import require_store
    from sextant.report import summary_text

    database = _store(database)
    require_store(database)
    typer.echo(summary_text(database))
    page = database.parent / "report" / "index.html"
    if page.exists():
        typer.echo(f"\nReport: {page}")


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def _store(database: Path | None, source: str | None = None) -> Path:
    """Return the given store, or the one that the pipeline builds for a source."""
    kind, _, name = (source or "").partition(":")
    folder = Path("results", name) if kind == "archive" else Path("results")
    return database or folder / "sextant.duckdb"


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
