"""Options and groups of options: dataclasses whose fields are options, or groups in turn.

The help of an option is the docstring below its field, or the comment beside it.
"""

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo

from sextant.base.errors import InputError
from sextant.base.files import docstrings_below
from sextant.base.numbers import number_of

Seed = Annotated[
    int, typer.Option(min=0, max=2**31 - 1, help="Seed; the same seed gives the same bytes.")
]
Database = Annotated[
    Path | None,
    typer.Option(
        help="Your own measurements: a store that the pipeline built (by default "
        "results/sextant.duckdb, if it has the LLM), or a folder of what `sextant load` has "
        "written."
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
_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|min|h|d)?")
_UNITS_S = {None: 1, "s": 1, "min": 60, "h": 3600, "d": 86400}
_MOST_S = 86400e4


@dataclass(frozen=True)
class OptionField:
    """An option: a field of a group, or a parameter of a function."""

    name: str
    kind: Any
    """Its type."""
    info: Any
    """What typer knows of it: its names, its help, its range."""
    default: Any
    """`inspect.Parameter.empty` where it has to be stated."""

    @property
    def keyword(self) -> str:
        """Its name on the command line, with underscores."""
        # In `Annotated`, typer has the first name where it has defaults elsewhere.
        names = [self.info.default, *(self.info.param_decls or ())]
        stated = [name for name in names if isinstance(name, str) and name.startswith("--")]
        return stated[0].removeprefix("--").replace("-", "_") if stated else self.name

    @property
    def is_argument(self) -> bool:
        """Whether the command line takes it without a name."""
        return isinstance(self.info, ArgumentInfo)

    @property
    def kinds(self) -> list[Any]:
        """Its types, without None."""
        if get_origin(self.kind) in (UnionType, Union):
            return [part for part in get_args(self.kind) if part is not type(None)]
        return [self.kind]

    @property
    def parameter(self) -> inspect.Parameter:
        """It as a parameter that typer reads."""
        return inspect.Parameter(
            self.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=self.default,
            annotation=Annotated[self.kind, self.info],
        )

    @property
    def keyword_parameter(self) -> inspect.Parameter:
        """It as a parameter of a function of the library."""
        kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return inspect.Parameter(
            self.keyword, kinds[self.is_argument], default=self.default, annotation=self.kind
        )

    def check_range(self, value: Any) -> None:
        """Raise InputError for a value outside of the option's range."""
        least = getattr(self.info, "min", None)
        most = getattr(self.info, "max", None)
        if least is not None and value < least:
            raise InputError(f"{value!r} is below {least}", field=self.keyword, fix="raise it")
        if most is not None and value > most:
            raise InputError(f"{value!r} is above {most}", field=self.keyword, fix="lower it")


def is_group(kind: Any) -> bool:
    """Return whether a type is a group of options."""
    return hasattr(kind, "__dataclass_fields__")


def options_of(function: Callable[..., Any]) -> list[OptionField]:
    """Return the options of a function in their order, those of its groups included."""
    hints = get_type_hints(function, include_extras=True)
    options: list[OptionField] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if is_group(hints[name]):
            options += options_in(hints[name])
        else:
            options.append(_option(name, hints[name], parameter.default, ""))
    return options


def options_in(group: type) -> Iterator[OptionField]:
    """Yield the options of a group, those of the groups in it included."""
    hints = get_type_hints(group, include_extras=True)
    descriptions = docstrings_below(group)
    for field in fields(group):
        kind = hints[field.name]
        if is_group(kind):
            yield from options_in(kind)
            continue
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield _option(field.name, kind, default, descriptions.get(field.name, ""))


def _option(name: str, hint: Any, default: Any, description: str) -> OptionField:
    kind, *infos = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    info = copy(infos[0]) if infos else typer.Option()
    info.help = info.help or description
    return OptionField(name, kind, info, default)


def group_of(group: Any, values: Mapping[str, Any]) -> Any:
    """Return a group of these options; those that are left out have their defaults."""
    parts = {}
    hints = get_type_hints(group)
    for field in fields(group):
        if is_group(hints[field.name]):
            parts[field.name] = group_of(hints[field.name], values)
        elif field.name in values:
            parts[field.name] = values[field.name]
    return group(**parts)


def arguments_of(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a function whose options have these values."""
    hints = get_type_hints(function)
    arguments = {}
    for name in inspect.signature(function).parameters:
        if is_group(hints[name]):
            arguments[name] = group_of(hints[name], values)
        elif name in values:
            arguments[name] = values[name]
    return arguments


def option_of(*names: str) -> str:
    """Return the options of these fields, e.g. `--ttft-ms, --users`."""
    return ", ".join("--" + name.replace("_", "-") for name in names)


def refuse(group: object, problem: str, *names: str) -> None:
    """Raise InputError if one of these options of a group is stated."""
    for name in names:
        if getattr(group, name) is not None:
            raise InputError(problem, field=option_of(name), fix="leave it out")


@contextmanager
def naming_options(options: Mapping[str | None, str]) -> Iterator[None]:
    """Have an InputError name the option that sets a field: by default `--` and its name.

    The field of a sheet's row keeps its name.
    """
    try:
        yield
    except InputError as error:
        field = error.field
        is_option = field is not None and field.startswith("-") and field not in options
        if is_option or error.row is not None:
            raise
        default = field and option_of(field.removesuffix("_s"))
        raise error.at(field=options.get(field, default)) from None


def numbers(text: str, option: str) -> list[float]:
    """Return the numbers of an option, separated by commas."""
    try:
        return [number_of(part) for part in text.split(",")]
    except ValueError:
        fix = "write numbers separated by commas"
        raise InputError(f"{text!r} are not numbers", field=option, fix=fix) from None


def seconds_of(text: str, option: str) -> float:
    """Return the seconds of an option, e.g. 90, 90s, 5min, 1h or 2d."""
    seconds = _seconds(text)
    if not 0 < seconds <= _MOST_S:
        whole = ", or whole" if option == "--window" else ""
        fix = f"give a time, e.g. 90s, 5min or 1h{whole}"
        problem = f"{text[:40]!r} is not a time above 0 and up to 10,000 d"
        raise InputError(problem, field=option, fix=fix)
    return seconds


def _seconds(text: str) -> float:
    """Return the seconds of a text; NaN where it is no time."""
    match = _TIME.fullmatch(text.strip())
    return float(match[1]) * _UNITS_S[match[2]] if match else math.nan


def time_option(least_s: float | None = None, most_s: float | None = None) -> Any:
    """Return an option that takes a time as all commands do: 90, 90s, 5min, 1h or 2d."""
    low_s = least_s or 0.0
    high_s = most_s or _MOST_S

    def seconds(text: str | float) -> float:
        if not isinstance(text, str):  # the default
            return text
        value = _seconds(text)
        if not low_s <= value <= high_s:
            bounds = f" from {low_s:g} s on" if least_s else ""
            bounds += f" up to {high_s:,.0f} s" if most_s or value > high_s else ""
            raise typer.BadParameter(f"{text[:40]!r} is not a time{bounds}, e.g. 90s, 5min or 1h")
        return value

    return typer.Option(parser=seconds, metavar="<time>", min=least_s, max=most_s)
