"""The command line: the same library as the pipeline's, for use without Snakemake."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from sextant import __version__, cli_advice, cli_workload
from sextant.cli_advice import Database
from sextant.cli_workload import MaxInput, MaxOutput, Seed, Workload
from sextant.errors import InputError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="From production traces of LLM requests to the cheapest GPU that keeps a latency promise.",
)


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
    start_time: Annotated[
        str | None,
        typer.Option(
            help="ISO 8601 date-time of the file's time zero, where arrivals are plain numbers; "
            "daily and weekly profiles need it."
        ),
    ] = None,
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
        start_time=start_time,
    )
    typer.echo(
        f"{out}: {report['n_accepted']:,} of {report['n_read']:,} rows, "
        f"{report['n_rejected']:,} set aside, {report['n_failed']:,} failed requests"
    )


@app.command()
def load(
    base_url: Annotated[str, typer.Option(help="OpenAI-compatible server, http://HOST:PORT.")],
    model: Annotated[str, typer.Option(help="Model name that the server answers to.")],
    workload: Workload,
    out: Annotated[Path, typer.Option(help="Folder for requests.parquet and levels.json.")],
    users: Annotated[
        str | None, typer.Option(help="Closed loop: concurrent users, e.g. 16 or 1,2,4.")
    ] = None,
    request_rate: Annotated[
        float | None, typer.Option(help="Open loop, latency-critical: requests per second.")
    ] = None,
    burstiness: Annotated[
        float | None,
        typer.Option(help="Shape of an open loop's Gamma gaps; 1 (default) is Poisson."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Best effort: so many requests, all at once.")
    ] = None,
    duration: Annotated[
        float | None, typer.Option(help="Seconds of load at each level; 120 by default.")
    ] = None,
    warmup: Annotated[
        float | None, typer.Option(help="Closed loop: seconds before, not measured; 10 by default.")
    ] = None,
    max_input_tokens: MaxInput = None,
    max_output_tokens: MaxOutput = None,
    timeout: Annotated[float, typer.Option(help="Seconds until a request has failed.")] = 120,
    vocab_size: Annotated[int, typer.Option(help="Prompts are token ids below this.")] = 32000,
    prompts: Annotated[
        Path | None, typer.Option(help="Text to cut prompts from, in place of random token ids.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="The LLM's tokenizer.json, for --prompts.")
    ] = None,
    sampler: Annotated[str, typer.Option(help="joint, or independent (an ablation).")] = "joint",
    api_key_env: Annotated[
        str, typer.Option(help="Environment variable that holds the server's API key.")
    ] = "OPENAI_API_KEY",
    seed: Seed = 0,
) -> None:
    """Load a running server and write every request."""
    import os

    from sextant.load.request import Target
    from sextant.load.run import load_server
    from sextant.load.source import RequestSource, unsent_parameters
    from sextant.workload.adopt import cap_model
    from sextant.workload.draw import open_workload
    from sextant.workload.prompts import RandomTokens, load_prompt_source

    if (prompts is None) != (tokenizer is None):
        fix = "give both, or neither for random token ids"
        raise InputError("--prompts goes with --tokenizer", field="--prompts", fix=fix)
    runs, scenario = _runs(users, request_rate, burstiness, batch, duration, warmup, seed)
    caps = {"input_tokens": max_input_tokens, "output_tokens": max_output_tokens}
    requests, clipped_fraction = cap_model(open_workload(workload), caps)
    facts = {
        "workload": workload,
        **{f"max_{name}": cap for name, cap in caps.items()},
        "clipped_fraction": clipped_fraction,
        "unsent_parameters": unsent_parameters(requests),
        "prompt_source": "random token ids" if prompts is None else str(prompts),
        **scenario,
    }
    texts = RandomTokens(vocab_size) if prompts is None else load_prompt_source(prompts, tokenizer)
    rows = load_server(
        [Target(base_url, model, os.environ.get(api_key_env))],
        lambda level_seed: RequestSource(model, requests, texts, level_seed, sampler),
        runs,
        out,
        timeout_s=timeout,
        seed=seed,
        sampler=sampler,
        **facts,
    )
    typer.echo(pd.DataFrame(rows).to_string(index=False, float_format=lambda x: f"{x:.4g}"))
    if not all(row["n_ok"] for row in rows):
        typer.echo("Error: no request succeeded at some level; see requests.parquet", err=True)
        raise typer.Exit(1)


def _runs(users, request_rate, burstiness, batch, duration, warmup, seed):
    """Return the levels of load that the options ask for, and what is said of them."""
    from sextant.load.run import closed_loop, open_loop
    from sextant.workload.generators import at_once, gamma

    kinds = {"--users": users, "--request-rate": request_rate, "--batch": batch}
    given = [name for name, value in kinds.items() if value is not None]
    if len(given) != 1:
        fix = "give one of --users, --request-rate and --batch"
        raise InputError("how to load the server is not clear", field="--users", fix=fix)
    heeds = {"--users": ("duration", "warmup"), "--request-rate": ("duration", "burstiness")}
    options = {"duration": duration, "warmup": warmup, "burstiness": burstiness}
    for name, value in options.items():
        if value is not None and name not in heeds.get(given[0], ()):
            fix = "leave it out"
            raise InputError(f"{given[0]} has no use for it", field=f"--{name}", fix=fix)
    duration_s = 120.0 if duration is None else duration
    if users is not None:
        warmup_s = 10.0 if warmup is None else warmup
        runs = [closed_loop(level, warmup_s, duration_s) for level in _levels(users)]
        return runs, {"scenario": "closed_loop", "warmup_s": warmup_s, "duration_s": duration_s}
    if batch is not None:
        return [open_loop(at_once(n=batch), batch)], {"scenario": "batch"}
    alpha = 1.0 if burstiness is None else burstiness
    facts = {"request_rate_rps": request_rate, "burstiness": alpha, "duration_s": duration_s}
    arrival_s = gamma(alpha, request_rate, duration_s=duration_s, seed=seed)
    return [open_loop(arrival_s)], {"scenario": "open_loop", **facts}


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
        "scenario": {
            "kind": "closed_loop",
            "levels": _levels(users),
            "warmup_s": warmup,
            "duration_s": duration,
        },
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


app.command()(cli_workload.fit)
app.command()(cli_workload.sample)
app.command("trace-report")(cli_workload.trace_report)
app.command("compare-workloads")(cli_workload.compare_workloads)
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
