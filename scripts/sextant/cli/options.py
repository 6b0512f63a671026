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
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from sextant.base.errors import InputError, printable
from sextant.base.files import docstrings_below
from sextant.pages.blocks import Document, as_json, as_text

_WIDTH = 100
"""Letters in a line of prose, where the terminal has room for them."""


def say(text: str, *, err: bool = False) -> None:
    """Print a text that may hold names or values of strangers."""
    typer.echo(printable(text, keep="\n\t"), err=err)


def check_page(printed: str, out: Path | None) -> None:
    """Refuse a page without a file, and a file for anything but a page."""
    if (out is None) == (printed == "html"):
        raise InputError("a page needs a file", field="--out", fix="give --format html --out FILE")


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


if TYPE_CHECKING:
    from sextant.workload.generators import Arrivals

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
Printed = Annotated[
    Literal["text", "json", "html"], typer.Option("--format", help="How to give the answer.")
]
PageFile = Annotated[
    Path | None, typer.Option(dir_okay=False, help="File for the page of --format html.")
]
UsdPerHour = Annotated[float | None, typer.Option(min=0, help="Price of this GPU profile.")]
MaxInput = Annotated[
    int | None, typer.Option(help="Cap on a request's input in tokens; none by default.")
]
MaxOutput = Annotated[
    int | None, typer.Option(help="Cap on a request's output in tokens; none by default.")
]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose parameters that are dataclasses are given field by field: the help of
    an option is the docstring below its field.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters, groups = [], {}
    for name, parameter in inspect.signature(command).parameters.items():
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


@contextmanager
def naming_options(options: Mapping[str | None, str]) -> Iterator[None]:
    """Have an InputError name the option that gave a field: by default `--` and its name."""
    try:
        yield
    except InputError as error:
        field = error.field
        if field is not None and field.startswith("-") and field not in options:
            raise
        default = field and "--" + field.removesuffix("_s").replace("_", "-")
        raise error.at(field=options.get(field, default)) from None


def numbers(text: str, option: str) -> list[float]:
    """Return the numbers of an option, separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        fix = "write numbers separated by commas"
        raise InputError(f"{text!r} are not numbers", field=option, fix=fix) from None


@dataclass(frozen=True, kw_only=True)
class ArrivalOptions:
    """Parameters of arrival processes other than the rate."""

    arrivals_from: Path | None = None
    """Normalised trace, for windows and replay."""
    llm: str | None = None
    """Only this LLM of that trace."""
    service: str | None = None
    """Only this service of that trace."""
    time_factor: float | None = None
    """Factor on all gaps of that trace; 0.5 doubles the rate."""
    alpha: str | None = None
    """varying: a0,a1,a2 of the shape a0 + a1·u + a2·u²."""
    beta_s: str | None = None
    """varying: b0,b1 of the scale b0 + b1·u in seconds."""
    over: str | None = None
    """varying: u is time (seconds, the default) or steps."""
    every: int | None = None
    """varying: requests from one change to the next."""

    def given(self) -> list[str]:
        """Return the options that were given."""
        names = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        return ["--" + name.replace("_", "-") for name in names]

    def process(
        self,
        name: str,
        workload: str | Path | None,
        rate_rps: float | None,
        burstiness: float | None,
    ) -> "Arrivals":
        """Return the arrival process `name` (see `workload.draw.chosen_arrivals`). Raises
        InputError for an option that the process needs, refuses or does not use.
        """
        from sextant.workload.draw import chosen_arrivals

        if (burstiness if name == "varying" else self.alpha) is not None:
            fix = "--alpha is for varying arrivals, --burstiness for all others"
            raise InputError(f"{name} arrivals", field="--alpha, --burstiness", fix=fix)
        return chosen_arrivals(
            name,
            workload,
            rate_rps=rate_rps,
            alpha=numbers(self.alpha, "--alpha") if self.alpha else burstiness,
            beta_s=numbers(self.beta_s, "--beta-s") if self.beta_s else None,
            over=self.over,
            every=self.every,
            time_factor=self.time_factor,
            llm=self.llm,
            service=self.service,
            trace=self.arrivals_from,
        )
