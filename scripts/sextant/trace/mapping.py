"""What a log of your own calls the columns of a trace: in one line, or in a mapping file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from sextant.base.errors import InputError
from sextant.base.sheets import check_fields, read_yaml
from sextant.trace.formula import Formula
from sextant.trace.trace_format import (
    ALIASES,
    JSON_ENDINGS,
    MAPPED,
    NEEDED_COLUMNS,
    SOURCE_TYPES,
    TIME_UNITS,
    TraceFormat,
    published_formats,
)

_SAYS = ("ok", "failed")


@dataclass(frozen=True, kw_only=True)
class MappingFile:
    """A mapping file: what a log of your own calls the columns of a trace."""

    columns: Annotated[dict[str, Annotated[str, Field(min_length=1)]], Field(min_length=1)]
    """a line for each column: that of the trace (arrival, input_tokens, ...), a colon, the log's
    name of it; a|b is the first that has a value, a+b their sum, a*1000 with a factor; put a name
    in quotes that YAML takes for a number or a truth value"""
    time_unit: Literal["s", "ms", "us", "ns", "iso", "mdy", "dmy"] | None = None
    """unit of the arrivals: s, ms, us, ns; iso for date-times, mdy or dmy if the year comes last
    (month or day first); default: as the first arrival looks"""
    status_words: dict[str, Literal["ok", "failed"]] | None = None
    """further words of the status, and what they say: ok or failed"""
    ignore_unknown: bool | None = None
    """false: an error names the log's other columns; default true, they are left out"""


Columns = str | Mapping[str, Any]
"""What a log calls the columns of a trace: in one line, or as a mapping file has it."""


def read_columns(columns: Columns) -> Columns:
    """Return the content of a mapping file if `columns` is its path (.yaml, .yml), else `columns`.

    Raises InputError: the mapping file is malformed.
    """
    if not isinstance(columns, str) or Path(columns).suffix not in (".yaml", ".yml"):
        return columns

    content = read_yaml(columns)
    check_fields(MappingFile, content, columns)
    try:
        _mapped_format(content, None, "")
    except InputError as error:
        raise error.at(file=columns) from None

    return content


def named_format(
    name: str, source: str | Path, columns: Columns | None = None, time_unit: str | None = None
) -> TraceFormat:
    """Return the format of a publisher, or for the name `columns` that of a log of your own.

    The other arguments are for `columns` only: `source` (its ending tells whether it is JSON lines,
    `.gz` and `.zst` too), `columns` (`arrival=ts,input_tokens=usage.prompt_tokens,...`: a column of
    the trace and a formula of the source's, where a dot leads into an object; or a mapping file's
    content) and `time_unit`, a name in `TIME_UNITS`, by default `s`. Raises InputError: no such
    format, columns for a format that has its own, or a malformed mapping.
    """
    if name == MAPPED:
        return _mapped_format(columns or "", time_unit, source)

    for field_name, option in (("columns", columns), ("time_unit", time_unit)):
        if option is not None:
            fix = f"leave it out, or give the format {MAPPED}"
            raise InputError(f"the format {name} has its own", field=field_name, fix=fix)

    formats = published_formats()
    if name not in formats:
        fix = f"use one of {', '.join(formats)}, prometheus, {MAPPED}"
        raise InputError(f"unknown trace format {name!r}", field="format", fix=fix)

    return formats[name]


def read_status_words(text: str) -> dict[str, str]:
    """Read `WORD=ok,WORD=failed`. Raises InputError: it says neither."""
    words = {}
    for part in text.split(","):
        word, _, says = (piece.strip() for piece in part.rpartition("="))
        if not word or says not in _SAYS:
            fix = "give WORD=ok or WORD=failed, with commas between"
            raise InputError(f"{part!r} says neither", field="status_words", fix=fix)
        words[word.lower()] = says
    return words


def _mapped_format(columns: Columns, time_unit: str | None, source: str | Path) -> TraceFormat:
    words: Mapping[str, str] = {}
    if isinstance(columns, str):
        fix = "give TRACE_COLUMN=SOURCE_COLUMN, with commas between"
        ignores_unknown = True
        parts = [(part.strip(), *part.partition("=")[::2]) for part in columns.split(",")]
    else:
        if time_unit is not None:
            fix = f"leave it out, and write time_unit: {time_unit} into the mapping file"
            raise InputError("a mapping file has its own", field="time_unit", fix=fix)
        fix = "give TRACE_COLUMN: SOURCE_COLUMN in each line"
        parts = [(": ".join(pair), *pair) for pair in columns["columns"].items()]
        time_unit = columns.get("time_unit")
        words = columns.get("status_words") or {}
        ignores_unknown = columns.get("ignore_unknown", True)

    names = dict(ALIASES)
    others = ", ".join(name for name in SOURCE_TYPES if name not in (*names.values(), "hash_ids"))
    fix += f"; trace columns are {', '.join(names)}, {others}"
    formulas: dict[str, Formula] = {}
    for part, target, text in parts:
        target = names.get(target.strip(), target.strip())
        text = text.strip()
        if target not in SOURCE_TYPES or target == "hash_ids" or not text:
            raise InputError(f"{part!r} names no column", field="columns", fix=fix)
        if target in formulas or text in [one.text for one in formulas.values()]:
            raise InputError(f"{part!r} is there twice", field="columns", fix=fix)
        formulas[target] = Formula.parse(text)

    formulas = _without_list(formulas)
    for target in NEEDED_COLUMNS:
        is_made = target == "arrival_s" and {names["end"], "e2e_ms"} <= formulas.keys()
        if target not in formulas and not is_made:
            raise InputError(f"{target} is missing", field="columns", fix=fix)

    if time_unit is not None and time_unit not in TIME_UNITS:
        fix = f"use one of {', '.join(TIME_UNITS)}"
        raise InputError(f"unknown unit {time_unit!r}", field="time_unit", fix=fix)

    return TraceFormat(
        formulas,
        status_words={word.lower(): says for word, says in words.items()},
        time_unit=time_unit or "s",
        is_jsonl=not set(JSON_ENDINGS).isdisjoint(Path(source).suffixes),
        is_log=True,
        ignores_unknown=ignores_unknown,
    )


def _without_list(formulas: dict[str, Formula]) -> dict[str, Formula]:
    """Return formulas without the list that all of them lie in, such as `data[].`.

    A document's requests are found by their columns, in whatever list they lie.
    """
    names = [name for formula in formulas.values() for name in formula.names]
    lists = {name[: name.rfind("[].") + 3] for name in names if "[]." in name}
    if len(lists) != 1:
        return formulas
    (prefix,) = lists
    if not all(name.startswith(prefix) for name in names):
        return formulas
    return {
        target: Formula.parse(formula.text.replace(prefix, ""))
        for target, formula in formulas.items()
    }
