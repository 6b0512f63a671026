"""Groups of options, of which a command takes a dataclass each; and how results are printed."""

import inspect
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import MISSING, dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from sextant.base.errors import InputError, printable
from sextant.base.files import docstrings_below
from sextant.pages.blocks import Document, as_json, as_text

_WIDTH = 100
"""Letters in a line of prose, where the terminal has room for them."""
Seed = Annotated[
    int, typer.Option(min=0, max=2**31 - 1, help="Seed; the same seed gives the same bytes.")
]
Database = Annotated[
    Path | None,
    typer.Option(
        help="Store that the pipeline built (default: results/sextant.duckdb), or a folder of what "
        "`sextant load` has written."
    ),
]
WORKLOAD_HELP = (
    "Folder of a fitted workload, a published histogram (Parquet), or the name of a use case "
    "that ships."
)
MaxInput = Annotated[
    int | None, typer.Option(help="Cap on a request's input in tokens; none by default.")
]
MaxOutput = Annotated[
    int | None, typer.Option(help="Cap on a request's output in tokens; none by default.")
]


def say(text: str, *, err: bool = False) -> None:
    """Print a text that may hold names or values of strangers."""
    typer.echo(printable(text, keep="\n\t"), err=err)


def print_document(document: Document, printed: str = "text", out: Path | None = None) -> None:
    """Print a document as text or JSON (with `text`); or write the page `out`, and say where.

    Prose is wrapped in a terminal alone: in a file or a pipe a sentence stays one line.
    """
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
    """How an answer is given. Raises InputError for a page without a file, or the reverse."""

    printed: Annotated[Literal["text", "json", "html"], typer.Option("--format")] = "text"
    """How to give the answer."""
    out: Annotated[Path | None, typer.Option(dir_okay=False)] = None
    """File for the page of --format html."""

    def __post_init__(self) -> None:
        if (self.out is None) == (self.printed == "html"):
            fix = "give --format html --out FILE"
            raise InputError("a page needs a file", field="--out", fix=fix)

    def print(self, document: Document) -> None:
        """Print a document, or write its page."""
        print_document(document, self.printed, self.out)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose parameters that are dataclasses are given field by field: the help of
    an option is the docstring below its field. What begins with `_` is no option.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters, groups = [], {}
    for name, parameter in inspect.signature(command).parameters.items():
        if name.startswith("_"):
            continue
        if not hasattr(hints[name], "__dataclass_fields__"):
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
            continue
        groups[name], docs = hints[name], docstrings_below(hints[name])
        of_group = get_type_hints(hints[name], include_extras=True)
        for field in fields(hints[name]):
            hint = of_group[field.name]
            kind, *given = get_args(hint) if get_origin(hint) is Annotated else (hint,)
            option = copy(given[0]) if given else typer.Option()
            option.help = option.help or docs[field.name]
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            how = {"default": default, "annotation": Annotated[kind, option]}
            parameters.append(inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, **how))

    @wraps(command)
    def call(**given: Any) -> None:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**given, **made)

    signature = inspect.Signature(parameters)
    call.__signature__ = signature  # type: ignore[attr-defined]  # which typer reads
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    return call


def option_of(*names: str) -> str:
    """Return the options of these fields, e.g. `--ttft-ms, --users`."""
    return ", ".join("--" + name.replace("_", "-") for name in names)


def refuse(group: object, problem: str, *names: str) -> None:
    """Raise InputError if one of these options of a group is given."""
    for name in names:
        if getattr(group, name) is not None:
            raise InputError(problem, field=option_of(name), fix="leave it out")


@contextmanager
def naming_options(options: Mapping[str | None, str]) -> Iterator[None]:
    """Have an InputError name the option that gave a field: by default `--` and its name."""
    try:
        yield
    except InputError as error:
        field = error.field
        if field is not None and field.startswith("-") and field not in options:
            raise
        default = field and option_of(field.removesuffix("_s"))
        raise error.at(field=options.get(field, default)) from None


def numbers(text: str, option: str) -> list[float]:
    """Return the numbers of an option, separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        fix = "write numbers separated by commas"
        raise InputError(f"{text!r} are not numbers", field=option, fix=fix) from None
