"""Formats by their name, and the one whose columns the user names, in a line or in a file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from sextant.base.errors import InputError
from sextant.base.sheets import check, read_yaml
from sextant.trace.trace_format import FORMATS, NEEDED_COLUMNS, TRACE_COLUMNS, TraceFormat

MAPPED = "columns"
"""The format of a source whose columns the user names."""
TIME_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9, "iso": 1e9}
"""Units of the arrivals in a second, by their name; `iso` are date-times."""
_SHORT = {"arrival": "arrival_s"}
_JSON_ENDINGS = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True, kw_only=True)
class MappingFile:
    """A mapping file: what a log of your own calls the columns of a trace."""

    columns: Annotated[dict[str, Annotated[str, Field(min_length=1)]], Field(min_length=1)]
    """a line for each column: that of the trace (arrival, input_tokens, ...), a colon, the log's
    name of it; put a name in quotes that YAML takes for a number or a truth value"""
    time_unit: Literal["s", "ms", "us", "ns", "iso"] | None = None
    """unit of the arrivals: s (default), ms, us, ns; iso for date-times"""
    ignore_unknown: bool | None = None
    """false: an error names the log's other columns; default true, they are left out"""


Columns = str | Mapping[str, Any]
"""What a log calls the columns of a trace: in one line, or as a mapping file has it."""


def columns_given(given: Columns) -> Columns:
    """Return what a mapping file says, where `given` is its path (.yaml, .yml), else `given`.

    Raises InputError: no such file, or something in it that is wrong.
    """
    if not isinstance(given, str) or Path(given).suffix not in (".yaml", ".yml"):
        return given
    content = read_yaml(given)
    check(MappingFile, content, given)
    try:
        mapped_format(content, None, "")
    except InputError as error:
        raise error.at(file=given) from None
    return content


def named_format(
    name: str, source: str | Path, columns: Columns | None = None, time_unit: str | None = None
) -> TraceFormat:
    """Return a format of `FORMATS`, or for the name `columns` that of `mapped_format`.

    Raises InputError: no such format, or columns that the format does not need.
    """
    if name == MAPPED:
        return mapped_format(columns or "", time_unit, source)
    for field_name, given in (("columns", columns), ("time_unit", time_unit)):
        if given is not None:
            fix = f"leave it out, or give the format {MAPPED}"
            raise InputError(f"the format {name} has its own", field=field_name, fix=fix)
    if name not in FORMATS:
        fix = f"use one of {', '.join(FORMATS)}, {MAPPED}"
        raise InputError(f"unknown trace format {name!r}", field="format", fix=fix)
    return FORMATS[name]


def mapped_format(columns: Columns, time_unit: str | None, source: str | Path) -> TraceFormat:
    """Return the format of a source whose columns the user names.

    Args:
        columns: `arrival=ts,input_tokens=usage.prompt_tokens,...`: a column of the trace and the
            source's name of it. A dot leads into an object of JSON or a struct of Parquet. Or the
            content of a mapping file.
        time_unit: a name in `TIME_UNITS`, `s` by default; a mapping file has its own.
        source: JSON lines where it ends in `.jsonl`, `.ndjson` or `.json` (and `.gz`, `.zst`).

    Raises InputError: what is written there is no such mapping.
    """
    if isinstance(columns, str):
        fix = "give TRACE_COLUMN=SOURCE_COLUMN, with commas between"
        parts = [(part.strip(), *part.partition("=")[::2]) for part in columns.split(",")]
        ignores_unknown = True
    else:
        if time_unit is not None:
            fix = f"leave it out, and write time_unit: {time_unit} into the mapping file"
            raise InputError("a mapping file has its own", field="time_unit", fix=fix)
        fix = "give TRACE_COLUMN: SOURCE_COLUMN in each line"
        parts = [(": ".join(pair), *pair) for pair in columns["columns"].items()]
        time_unit, ignores_unknown = columns.get("time_unit"), columns.get("ignore_unknown", True)
    time_unit = time_unit or "s"
    fix += f"; trace columns are arrival, {', '.join(list(TRACE_COLUMNS)[2:])}"
    names: dict[str, str] = {}
    for part, target, name in parts:
        target, name = _SHORT.get(target.strip(), target.strip()), name.strip()
        if target not in TRACE_COLUMNS or not name:
            raise InputError(f"{part!r} names no column", field="columns", fix=fix)
        if target in names.values() or name in names:
            raise InputError(f"{part!r} is there twice", field="columns", fix=fix)
        names[name] = target
    for target in NEEDED_COLUMNS:
        if target not in names.values():
            raise InputError(f"{target} is missing", field="columns", fix=fix)
    if time_unit not in TIME_UNITS:
        fix = f"use one of {', '.join(TIME_UNITS)}"
        raise InputError(f"unknown unit {time_unit!r}", field="time_unit", fix=fix)
    endings = {ending for ending in Path(source).suffixes if ending in _JSON_ENDINGS}
    return TraceFormat(
        names,
        units_per_s=TIME_UNITS[time_unit],
        is_datetime=time_unit == "iso",
        is_jsonl=bool(endings),
        is_log=True,
        ignores_unknown=ignores_unknown,
    )
