"""The command line: the same library as the pipeline's, for use without Snakemake."""

import signal
import sys
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from sextant import __version__
from sextant.base.errors import InputError, require_docstrings
from sextant.cli.options import Database, grouped, print_document, say

_MODULES = {
    "load": ("load", "compare"),
    "workload": ("fit", "sample", "trace-report"),
    "capacity": ("capacity", "simulate"),
    "answer": (
        *("recommend", "explain", "evaluate", "characterizations"),
        *("import-characterization", "export-characterization"),
    ),
    "cluster": ("fleet", "doctor", "plan", "measure"),
}
_COMMANDS = {name: module for module, names in _MODULES.items() for name in names}
"""The module of each command: only that of the command that runs is loaded."""


class _Commands(TyperGroup):
    """The commands below, and those of `_COMMANDS`."""

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        return [*own[:1], *_COMMANDS, *own[1:]]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            near = get_close_matches(cmd_name, self.list_commands(ctx), 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"No such command {cmd_name!r}.{hint}")
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        module = import_module(f"sextant.cli.{_COMMANDS[cmd_name]}")
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(cmd_name)(getattr(module, cmd_name.replace("-", "_")))
        return typer.main.get_command(alone)


app = typer.Typer(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="From production traces of LLM requests to the cheapest GPU that meets a latency target.",
)


@dataclass(frozen=True, kw_only=True)
class IngestOptions:
    """How the rows of a log are read."""

    trace_format: Annotated[str | None, typer.Option("--format")] = None
    """azure, burstgpt, mooncake, qwen-bailian, openai, litellm, kv-cache-tester, ragpulse or
    sextant; or give --columns."""
    columns: str | None = None
    """Your own columns in place of a format, e.g.
    arrival=ts,input_tokens=usage.prompt_tokens,output_tokens=usage.completion_tokens; or a mapping
    file in YAML."""
    time_unit: str | None = None
    """Unit of the arrivals of --columns: s (default), ms, us, ns; or iso."""
    ignore_unknown: Annotated[bool, typer.Option("--ignore-unknown")] = False
    """Leave out columns the format does not know."""
    max_rate_rps: Annotated[float, typer.Option(min=0)] = 1000.0
    """Highest mean rate that is believed, requests per second."""
    max_rejected_fraction: float = 0.01
    """Fraction of malformed rows that may be set aside, 0 to 1."""
    start_time: str | None = None
    """ISO 8601 date-time of the file's time zero, where arrivals are plain numbers; daily and
    weekly profiles need it."""


@app.command()
@grouped
def ingest(
    *,
    source: Annotated[Path, typer.Argument(help="Trace as its publisher wrote it.")],
    out: Annotated[Path, typer.Option(dir_okay=False, help="Normalised trace, Parquet.")],
    given: IngestOptions,
) -> None:
    """Normalise a production trace; malformed rows go to OUT.rejected.parquet."""
    from sextant.pages.words import duration_words, joined, percent
    from sextant.trace.job import IngestSettings, ingest_trace
    from sextant.trace.reading import some_of
    from sextant.trace.trace_format import MAPPED

    how = asdict(given)
    if ((trace_format := how.pop("trace_format")) is None) == (given.columns is None):
        fix = "give --format for a published trace, or --columns for a log of your own"
        raise InputError("give one of the two", field="--format, --columns", fix=fix)
    rejected, about = (out.with_suffix(f".{end}") for end in ("rejected.parquet", "report.json"))
    settings = IngestSettings(**how)
    report = ingest_trace(source, trace_format or MAPPED, out, rejected, about, settings)
    say(
        f"{out}: {report['n_accepted']:,} of {report['n_read']:,} rows, "
        f"{report['n_rejected']:,} set aside, {report['n_failed']:,} failed requests "
        f"({percent(report['n_failed'] / report['n_accepted'])})"
    )
    if duration_s := report["duration_s"]:
        rate_rps = (report["n_accepted"] - 1) / duration_s
        since = f" from {report['start_time']}" if report["start_time"] else ""
        say(f"{duration_words(duration_s)}{since}, {rate_rps:,.3g} requests/s on average")
    if reasons := report["n_rejected_by_reason"]:
        say(f"set aside in {rejected}: {joined([f'{n:,} × {why}' for why, n in reasons.items()])}")
    if report["n_moved"]:
        late_s = report["most_late_s"]
        say(f"sorted by time: {report['n_moved']:,} rows were late, by up to {late_s:,.3g} s")
    if ignored := report["ignored_columns"]:
        say(f"columns left out ({len(ignored)}): {some_of(ignored)}")


@app.command()
def show(database: Database = None) -> None:
    """Print the recommendations of the store, and where the report is."""
    from sextant.ask.question import PIPELINE_STORE
    from sextant.report.answers import store_summary

    database = database or PIPELINE_STORE
    print_document(store_summary(database))
    page = database.parent / "report" / "index.html"
    if page.exists():
        say(f"\nReport: {page}")


@app.command()
def version() -> None:
    """Print the version."""
    say(__version__)


def main() -> None:
    """Run the command line; bad input ends it with one line and status 2."""
    # As an exception, so that no unfinished file is left.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
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
