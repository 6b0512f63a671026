"""The command line: the same library as the pipeline's, for use without Snakemake."""

import errno
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

import sextant
from sextant.api.groups import Database
from sextant.base.errors import InputError, require_docstrings
from sextant.cli.printing import deploying, only_text, print_document, printing, say
from sextant.cli.written import WrittenCommand, numbers_of

_COMMANDS: dict[str, str | Callable[..., Any]] = {
    "ingest": only_text,
    "load": "load",
    "compare": printing,
    "fit": only_text,
    "sample": "workload",
    "trace-report": "workload",
    "capacity": deploying,
    "simulate": printing,
    "recommend": deploying,
    "rightsize": deploying,
    "explain": "answer",
    "evaluate": "answer",
    "characterizations": "answer",
    "import-characterization": "answer",
    "export-characterization": "answer",
    "fleet": deploying,
    "doctor": "cluster",
    "plan": printing,
    "measure": "cluster",
    "serve": "serve",
}
"""How a command prints the answers of the library's function of its name; of other commands, the
module here that has them. Only what the command that runs needs is loaded."""


_NO_OUTPUT = (errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG)
"""What an error without a file is: no other is written without its name."""


class _Commands(TyperGroup):
    """The commands of `_COMMANDS`, and those below."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*_COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            near = get_close_matches(cmd_name, self.list_commands(ctx), 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"No such command {cmd_name!r}.{hint}")
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)

        way = _COMMANDS[cmd_name]
        if isinstance(way, str):
            command = getattr(import_module(f"sextant.cli.{way}"), cmd_name.replace("-", "_"))
        else:
            command = way(getattr(sextant, cmd_name))
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(cmd_name, cls=WrittenCommand)(command)
        written = typer.main.get_command(alone)
        if isinstance(written, WrittenCommand):
            written.numbers = numbers_of(command)
        return written


app = typer.Typer(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="From production traces of LLM requests to the cheapest GPU that meets a latency target.",
)


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


def _print_version(is_asked: bool) -> None:
    if is_asked:
        say(sextant.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Have the options that are no command's."""


def _drop_output() -> None:
    """Have nothing more written to a standard output that takes nothing."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
        path = error.filename2 or error.filename
        where = path or ("standard output" if error.errno in _NO_OUTPUT else None)
        say(f"Error: {where}: {error.strerror}" if where else f"Error: {error}", err=True)
        _drop_output()
        sys.exit(2)
    except RuntimeError as error:  # a server failed; the message has the last lines of its log
        say(f"Error: {error}", err=True)
        sys.exit(1)
