"""The command line: the same library as the pipeline's, for use without Snakemake."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from sextant import __version__
from sextant.base.errors import InputError, require_docstrings
from sextant.cli import answer as cli_answer
from sextant.cli import capacity as cli_capacity
from sextant.cli import characterizations as cli_characterizations
from sextant.cli import cluster as cli_cluster
from sextant.cli import compare as cli_compare
from sextant.cli import fleet as cli_fleet
from sextant.cli import load as cli_load
from sextant.cli import simulate as cli_simulate
from sextant.cli import workload as cli_workload
from sextant.cli.characterizations import Database
from sextant.cli.terminal import print_document, say

app = typer.Typer(
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help="From production traces of LLM requests to the cheapest GPU that meets a latency target.",
)


@app.command()
def ingest(
    source: Annotated[Path, typer.Argument(help="Trace as its publisher wrote it.")],
    out: Annotated[Path, typer.Option(dir_okay=False, help="Normalised trace, Parquet.")],
    trace_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="azure, burstgpt, mooncake, qwen-bailian, openai, "
            "litellm or sextant; or give --columns.",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            help="Your own columns in place of a format, e.g. "
            "arrival=ts,input_tokens=usage.prompt_tokens,output_tokens=usage.completion_tokens; "
            "or a mapping file in YAML."
        ),
    ] = None,
    time_unit: Annotated[
        str | None,
        typer.Option(help="Unit of the arrivals of --columns: s (default), ms, us, ns; or iso."),
    ] = None,
    ignore_unknown: Annotated[
        bool, typer.Option("--ignore-unknown", help="Leave out columns the format does not know.")
    ] = False,
    max_rate_rps: Annotated[
        float, typer.Option(min=0, help="Highest mean rate that is believed, requests per second.")
    ] = 1000.0,
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
    from sextant.pages.wording import listed
    from sextant.trace import ingest_trace
    from sextant.trace.mapping import MAPPED

    if (trace_format is None) == (columns is None):
        fix = "give --format for a published trace, or --columns for a log of your own"
        raise InputError("give one of the two", field="--format, --columns", fix=fix)
    rejected = out.with_suffix(".rejected.parquet")
    report = ingest_trace(
        source,
        trace_format or MAPPED,
        out,
        rejected,
        out.with_suffix(".report.json"),
        max_rejected_fraction=max_rejected_fraction,
        start_time=start_time,
        ignore_unknown=ignore_unknown,
        max_rate_rps=max_rate_rps,
        columns=columns,
        time_unit=time_unit,
    )
    say(
        f"{out}: {report['n_accepted']:,} of {report['n_read']:,} rows, "
        f"{report['n_rejected']:,} set aside, {report['n_failed']:,} failed requests"
    )
    if reasons := report["n_rejected_by_reason"]:
        say(f"set aside in {rejected}: {listed([f'{n:,} × {why}' for why, n in reasons.items()])}")
    if report["n_moved"]:
        late_s = report["most_late_s"]
        say(f"sorted by time: {report['n_moved']:,} rows were late, by up to {late_s:,.3g} s")
    if ignored := report["ignored_columns"]:
        say(f"columns left out ({len(ignored)}): {', '.join(ignored)}")


app.command()(cli_load.load)
app.command()(cli_compare.compare)
app.command()(cli_workload.fit)
app.command()(cli_workload.sample)
app.command("trace-report")(cli_workload.trace_report)
app.command()(cli_answer.recommend)
app.command()(cli_capacity.capacity)
app.command()(cli_simulate.simulate)
app.command()(cli_fleet.fleet)
app.command()(cli_answer.explain)
app.command()(cli_answer.evaluate)
app.command()(cli_characterizations.characterizations)
app.command("import-characterization")(cli_characterizations.import_characterization)
app.command("export-characterization")(cli_characterizations.export_characterization)
app.command()(cli_cluster.doctor)
app.command()(cli_cluster.plan)
app.command()(cli_cluster.measure)


@app.command()
def show(
    database: Database = None,
) -> None:
    """Print the recommendations of the store, and where the report is."""
    from sextant.answer.source import store_path
    from sextant.report.terminal import summary

    database = store_path(database)
    print_document(summary(database))
    page = database.parent / "report" / "index.html"
    if page.exists():
        say(f"\nReport: {page}")


@app.command()
def version() -> None:
    """Print the version."""
    say(__version__)


def main() -> None:
    """Run the command line; bad input ends it with one line and status 2."""
    try:
        require_docstrings()
        sys.exit(app(sys.argv[1:] or ["--help"], standalone_mode=False))
    except TyperException as error:  # before the command: an option or argument is wrong
        problem = error.format_message().replace("Invalid value for", "field").rstrip(".?")
        problem = problem.replace("Input should", "it has to").replace("Value error, ", "")
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "sextant"
        say(f"Error: {problem}. Fix: see {command} --help", err=True)
        sys.exit(2)
    except InputError as error:
        option = "--" + (error.field or "").removesuffix("_s").replace("_", "-")
        is_option = error.file is None and option in sys.argv
        say(f"Error: {error.at(field=option) if is_option else error}", err=True)
        sys.exit(2)
    except OSError as error:  # a file is missing, or a folder cannot be written
        place = error.filename2 or error.filename
        say(f"Error: {place}: {error.strerror}" if place else f"Error: {error}", err=True)
        sys.exit(2)
    except RuntimeError as error:  # a server failed; the message has the last lines of its log
        say(f"Error: {error}", err=True)
        sys.exit(1)
