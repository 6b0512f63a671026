"""Functions with keywords: what Python has for an option becomes what the command line has."""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import wraps
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args, get_origin

from sextant.api.groups import OptionField, arguments_of, options_of
from sextant.api.shown import ShownAnswer
from sextant.base.errors import InputError

_TRACES = ("trace", "source")
_CONFIGS = ("hf_config", "draft_config")
_OPTION = re.compile(r"(?<![\w-])--([a-z0-9][a-z0-9-]*)")


class PassedFiles:
    """Files for what is passed as a frame or a dictionary, where an answer reads a path."""

    def __init__(self) -> None:
        self.folder: TemporaryDirectory[str] | None = None

    def path(self, name: str) -> Path:
        """Return where to write a file."""
        if self.folder is None:
            self.folder = TemporaryDirectory(prefix="sextant-")
        return Path(self.folder.name) / name


def with_keywords(function: Callable[..., ShownAnswer]) -> Callable[..., ShownAnswer]:
    """Return a function of groups of options as one of keywords.

    The function that takes groups is its attribute `__wrapped__`. Keywords are the options of the
    command line, with underscores; arguments of the command line may go without their names. Its
    docstring lists them as parameters, before its section "Returns".
    """
    options = {option.keyword: option for option in options_of(function)}

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> ShownAnswer:
        values = _values(function.__name__, options, arguments, keywords)
        files = PassedFiles()
        converted = {
            options[keyword].name: _converted(options[keyword], value, files)
            for keyword, value in values.items()
        }
        try:
            answer = function(**arguments_of(function, converted))
        except InputError as error:
            raise _in_keywords(error) from None
        except OSError as error:
            raise InputError(error.strerror or str(error), file=error.filename) from None
        return answer.with_files(files.folder)

    positional_first = sorted(options.values(), key=lambda option: not option.is_argument)
    parameters = [option.keyword_parameter for option in positional_first]
    signature = inspect.Signature(parameters, return_annotation=ShownAnswer)
    call.__signature__ = signature  # type: ignore[attr-defined]

    lines = [
        f"Keywords are the options of `sextant {function.__name__}`, with underscores.",
        "",
        "Parameters",
        "----------",
    ]
    for keyword, option in options.items():
        lines += [keyword, f"    {option.info.help}"]
    description, returns, rest = (inspect.getdoc(function) or "").partition("Returns\n-------")
    call.__doc__ = description + "\n".join(lines) + "\n\n" + returns + rest
    return call


def _values(
    name: str,
    options: Mapping[str, OptionField],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
) -> dict[str, Any]:
    """Return the values by keyword. Raises InputError for a wrong or missing keyword."""
    positional = [keyword for keyword, option in options.items() if option.is_argument]
    if len(arguments) > len(positional):
        problem = f"{name} takes {len(positional)} arguments without a keyword"
        raise InputError(problem, fix="name the others, e.g. request_rate=8")

    values = dict(zip(positional, arguments, strict=False)) | keywords
    for keyword in values:
        if keyword not in options:
            near = get_close_matches(keyword, options, 1)
            fix = f"use {near[0]}" if near else f"use one of {', '.join(options)}"
            raise InputError(f"{name} has no such keyword", field=keyword, fix=fix)
    for keyword, option in options.items():
        if option.default is inspect.Parameter.empty and values.get(keyword) is None:
            raise InputError(f"{name} needs it", field=keyword, fix=f"give {keyword}=...")
    return {
        keyword: value
        for keyword, value in values.items()
        if value is not None or options[keyword].default is None
    }


def _converted(option: OptionField, value: Any, files: PassedFiles) -> Any:
    """Return a value as the command line would have read it. Raises InputError for a wrong one."""
    if value is None:
        return None
    kinds = option.kinds
    is_path = Path in kinds or str in kinds or list[Path] in kinds
    if option.keyword in _TRACES and is_path and hasattr(value, "columns"):
        from sextant.api.frames import write_frame

        path = files.path(f"{option.keyword}.parquet")
        write_frame(value, path, option.keyword)
        if list[Path] in kinds:
            return [path]
        return path if Path in kinds else str(path)
    if option.keyword in _CONFIGS and isinstance(value, Mapping):
        # The name of the LLM, which answers show.
        name = re.sub(r"[^\w.-]+", "__", str(value.get("_name_or_path") or "llm")).strip("._")
        path = files.path(f"{name or 'llm'}.json")
        path.write_text(json.dumps(value), encoding="utf-8")
        return path

    for kind in kinds:
        converted = _as_kind(kind, value)
        if converted is not None:
            option.check_range(converted)
            return converted
    names = [
        str(name)
        for kind in kinds
        for name in (get_args(kind) if get_origin(kind) is Literal else [_name_of(kind)])
    ]
    problem = f"{value!r} is not of a type that it takes"
    raise InputError(problem, field=option.keyword, fix=f"give {' or '.join(names)}")


def _name_of(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))


def _as_kind(kind: Any, value: Any) -> Any:
    """Return a value as an option of this type has it, None where it is none."""
    if get_origin(kind) is Literal:
        return value if value in get_args(kind) else None
    if get_origin(kind) is list:
        items = value if isinstance(value, list | tuple) else [value]
        converted = [_as_kind(get_args(kind)[0], item) for item in items]
        return None if None in converted else converted
    if kind in (str, Path):
        if isinstance(value, list | tuple):
            value = ",".join(map(str, value))
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        is_text = isinstance(value, str | PathLike) or (kind is str and is_number)
        return kind(value) if is_text else None
    if kind is bool:
        return value if isinstance(value, bool) else None
    number = Integral if kind is int else Real
    return kind(value) if isinstance(value, number) and not isinstance(value, bool) else None


def _in_keywords(error: InputError) -> InputError:
    """Return an error whose options are keywords."""

    def renamed(text: str | None) -> str | None:
        return text and _OPTION.sub(lambda match: match[1].replace("-", "_"), text)

    return InputError(
        renamed(error.problem) or "",
        file=error.file,
        row=error.row,
        field=renamed(error.field),
        fix=renamed(error.fix),
    )
