"""How commands are made of functions with groups of options, and how their answers are printed."""

import inspect
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sextant.api.groups import OptionField, arguments_of, group_of, options_of
from sextant.base.errors import InputError, printable
from sextant.pages.blocks import Document, as_json, as_text

_WIDTH = 100
"""Letters in a line of prose, where the terminal has room for them."""
_STATUS_WITHOUT_SOLUTION = 3


def say(text: str, *, err: bool = False) -> None:
    """Print a text that may hold names or values of strangers."""
    typer.echo(printable(text, keep="\n\t"), err=err)


def print_document(document: Document, printed: str = "text", out: Path | None = None) -> None:
    """Print a document as text or JSON (with `text`); or write the page `out`, and say where. Prose
    is wrapped in a terminal alone: in a file or a pipe a sentence stays one line."""
    text = as_text(document)
    if out is not None:
        from sextant.pages.page import write_page

        write_page(document, out)
        say(f"{out}: {text.splitlines()[0]}")
    elif printed == "json":
        say(as_json(replace(document, data={**document.data, "text": text})))
    else:
        columns = min(_WIDTH, shutil.get_terminal_size().columns)
        say(as_text(document, columns) if sys.stdout.isatty() else text)


@dataclass(frozen=True, kw_only=True)
class PrintOptions:
    """How an answer is given. Raises InputError for a page without a file, or JSON with one."""

    printed: Annotated[Literal["text", "json", "html"], typer.Option("--format")] = "text"
    """How to give the answer."""
    out: Annotated[Path | None, typer.Option(dir_okay=False)] = None
    """File to write the answer to as a page; --format html may be left out."""

    def __post_init__(self) -> None:
        if self.out is None and self.printed == "html":
            raise InputError("a page needs a file", field="--out", fix="give --out FILE")
        if self.out is not None and self.printed == "json":
            fix = "leave it out, and redirect the output to a file"
            raise InputError("JSON is printed", field="--out", fix=fix)

    def print(self, document: Document) -> None:
        """Print a document, or write its page."""
        print_document(document, self.printed, self.out)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose parameters that are groups are stated option by option."""

    def call(**values: Any) -> None:
        command(**arguments_of(command, values))

    return _command(call, command, options_of(command))


def printing(answering: Callable[..., Any]) -> Callable[..., None]:
    """Return the command that prints the answers of a function of the library.

    Its status is 3 where nothing meets what is asked for.
    """
    function = inspect.unwrap(answering)

    def call(**values: Any) -> None:
        shown = group_of(PrintOptions, values)
        answer = function(**arguments_of(function, values))
        shown.print(answer.document(shown.out is not None))
        if not answer.has_solution:
            raise typer.Exit(_STATUS_WITHOUT_SOLUTION)

    def with_print_options(*, shown: PrintOptions) -> None:
        """Have the options of `PrintOptions` alone."""

    return _command(call, function, [*options_of(function), *options_of(with_print_options)])


def only_text(answering: Callable[..., Any]) -> Callable[..., None]:
    """Return the command that prints the answers of a function as text."""
    function = inspect.unwrap(answering)

    def call(**values: Any) -> None:
        print_document(function(**arguments_of(function, values)).document(False))

    return _command(call, function, options_of(function))


def _command(
    call: Callable[..., None], function: Callable[..., Any], options: list[OptionField]
) -> Callable[..., None]:
    """Return `call` with the help of a function, and with these options for typer to read.

    The help is the docstring up to its sections, which are about Python.
    """
    description = inspect.getdoc(function) or ""
    call.__doc__ = description.partition("\n\nReturns\n")[0]
    call.__name__ = function.__name__
    parameters = [option.parameter for option in options]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call
