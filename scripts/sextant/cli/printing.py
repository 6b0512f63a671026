"""How commands are made of functions with groups of options, and how their answers are printed."""

import inspect
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sextant.api.groups import OptionField, arguments_of, group_of, options_in, options_of
from sextant.api.shown import ShownAnswer
from sextant.base.errors import InputError, printable
from sextant.base.files import write_text
from sextant.base.job_log import showing_time
from sextant.base.whole_files import atomic_folder
from sextant.deploy.targets import Target
from sextant.pages.blocks import Document, as_json, as_text

_WIDTH = 100
"""Letters in a line of prose, where the terminal has room for them."""
_STATUS_WITHOUT_SOLUTION = 3
_ANSWER_PAGE = "answer.html"
_ANSWER_JSON = "answer.json"


def say(text: str, *, err: bool = False) -> None:
    """Print a text that may hold names or values of strangers. InputError: nothing takes it."""
    if sys.stdout is None and not err:
        fix = "leave it open, or send it to a file"
        raise InputError(
            "it is closed, and the answer goes there", field="standard output", fix=fix
        )
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

    def print(self, answer: ShownAnswer) -> None:
        """Print an answer, or write its page."""
        print_document(answer.document(self.out is not None), self.printed, self.out)


@dataclass(frozen=True, kw_only=True)
class DeployPrintOptions(PrintOptions):
    """How an answer is given that may be deployed. Raises InputError for files without a folder."""

    out: Annotated[Path | None, typer.Option()] = None
    """File to write the answer to as a page; with --deploy, the folder of its files, the answer's
    page and its JSON."""
    deploy: Target | None = None
    """Write what starts the answer: the command of an engine alone, or the files of a platform."""

    def __post_init__(self) -> None:
        if self.deploy is None:
            super().__post_init__()
            if self.out is not None and self.out.is_dir():
                fix = "name a file, or give --deploy for what starts the answer"
                raise InputError("is a folder", file=self.out, field="--out", fix=fix)
            return
        if self.out is None:
            fix = "give --out FOLDER"
            raise InputError("its files need a folder", field="--deploy", fix=fix)
        if self.printed != "text":
            fix = "leave it out: the folder has the answer's page and its JSON"
            raise InputError("files are written", field="--format", fix=fix)
        if self.out.exists() and not self.out.is_dir():
            raise InputError("is a file", file=self.out, field="--out", fix="name a folder")

    def print(self, answer: ShownAnswer) -> None:
        """Print an answer; or write its page, or what starts it."""
        if self.deploy is None or self.out is None:
            super().print(answer)
            return
        if not answer.deployments():  # there is nothing to write
            print_document(answer.document(False))
            return
        from sextant.pages.page import write_page

        files = answer.deployment(self.deploy)
        document = answer.document(True)
        with atomic_folder(self.out, last=_ANSWER_JSON) as folder:
            for name, text in files.items():
                write_text(folder / name, text)
            text = as_text(answer.document(False))
            with_text = replace(document, data={**document.data, "text": text})
            write_page(with_text, folder / _ANSWER_PAGE, folder / _ANSWER_JSON)
        say(f"{self.out}: {text.splitlines()[0]}")
        for name in files:
            say(f"  {name}")
        for note in dict.fromkeys(note for of in answer.deployments() for note in of.notes):
            say(note)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose parameters that are groups are stated option by option."""

    def call(**values: Any) -> None:
        command(**arguments_of(command, values))

    return _command(call, command, options_of(command))


def printing(answering: Callable[..., Any]) -> Callable[..., None]:
    """Return the command that prints the answers of a function of the library.

    Its status is 3 where nothing meets what is asked for.
    """
    return _printing(answering, PrintOptions)


def deploying(answering: Callable[..., Any]) -> Callable[..., None]:
    """Return the command that prints the answers of a function, or writes what starts them."""
    return _printing(answering, DeployPrintOptions)


def _printing(answering: Callable[..., Any], group: type[PrintOptions]) -> Callable[..., None]:
    function = inspect.unwrap(answering)

    def call(**values: Any) -> None:
        shown = group_of(group, values)
        with showing_time(f"sextant {function.__name__}"):
            answer = function(**arguments_of(function, values))
        shown.print(answer)
        if not answer.has_solution:
            raise typer.Exit(_STATUS_WITHOUT_SOLUTION)

    return _command(call, function, [*options_of(function), *options_in(group)])


def only_text(answering: Callable[..., Any]) -> Callable[..., None]:
    """Return the command that prints the answers of a function as text."""
    function = inspect.unwrap(answering)

    def call(**values: Any) -> None:
        with showing_time(f"sextant {function.__name__}"):
            document = function(**arguments_of(function, values)).document(False)
        print_document(document)

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
