"""The trace contract, the formats of publishers, and mappings of a user's own columns."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from sextant.base.errors import InputError
from sextant.base.files import MAKE_TRACE_AGAIN, reading
from sextant.base.resources import resource
from sextant.base.sheets import check_fields, read_yaml

MAX_INT32 = 2**31 - 1
MAX_SPAN_S = 1e8
"""A trace of more than three years has a wrong time in it."""
TRACE_COLUMNS = {
    "request_id": pa.string(),
    "arrival_s": pa.float64(),
    "input_tokens": pa.int32(),
    "output_tokens": pa.int32(),
    "llm": pa.string(),
    "service": pa.string(),
    "session_id": pa.string(),
    "batch_size": pa.int32(),
    "is_greedy": pa.bool_(),
    "temperature": pa.float64(),
    "top_k": pa.int32(),
    "top_p": pa.float64(),
    "e2e_ms": pa.float64(),
    "status": pa.string(),
}
"""The trace contract: the type of each column, in the order of the file."""
CODED = pa.dictionary(pa.int32(), pa.string())
"""How the columns that hold few different texts are stored."""
CODED_COLUMNS = ("llm", "service", "status")
_NEVER_NULL = ("request_id", "arrival_s", "input_tokens", "output_tokens", "status")
SCHEMA = pa.schema(
    pa.field(name, CODED if name in CODED_COLUMNS else kind, nullable=name not in _NEVER_NULL)
    for name, kind in TRACE_COLUMNS.items()
)
"""The trace contract as it is written."""
HASH_IDS = "hash_ids"
"""One more column, where the format has it: ids of the blocks of an input. Inputs that begin with
the same ids begin with the same tokens; `block_tokens` of the provenance is how many an id has."""
COLUMN_TYPES = TRACE_COLUMNS | {HASH_IDS: pa.list_(pa.int64())}
NEEDED_COLUMNS = ("arrival_s", "input_tokens", "output_tokens")
# Lowest sensible value of a number; 0 for all others. Engines write top_k = -1 for "no limit".
MINIMUM = {"input_tokens": 1, "batch_size": 1, "top_k": -1}
BLANK = "blank line"
"""The reason of a line that holds nothing: it is not a row, neither accepted nor rejected."""
FORMATS_FILE = resource("traces/formats.yaml")
MAPPED = "columns"
"""The format of a source whose columns the user names."""
TIME_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9, "iso": 1e9}
"""Units of the arrivals in a second, by their name; `iso` are date-times."""
_JSON_ENDINGS = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True)
class TraceFormat:
    """How a publisher writes a trace. Columns are found by name, in any order."""

    columns: Mapping[str, str | None]
    """Source column -> trace column; None: known, but nothing is taken from it."""
    optional: Collection[str] = ()
    time_unit: str = "s"  #: Unit of the arrival column, a name in `TIME_UNITS`.
    is_jsonl: bool = False
    factors: Mapping[str, float] = field(default_factory=dict)
    """Trace column -> factor that brings the source's unit to the trace's."""
    is_log: bool = False
    """Whether it is a log: a line of JSON may lack columns, and times may count from 1970."""
    ignores_unknown: bool = False  #: Whether other columns are left out, in place of being refused.
    is_nested: bool = False  #: Whether a line is a session, with its requests (`sessions`).
    parts: Sequence[str] = ()
    """Kinds of parts that prompts are put together from; columns `<kind>_ids`, `<kind>_tokens`."""
    block_tokens: int | None = None
    """Input tokens that one of its `hash_ids` stands for; None: it has none."""

    @property
    def is_datetime(self) -> bool:
        """Whether arrivals are date-times, which are read as nanoseconds."""
        return self.time_unit == "iso"

    @property
    def units_per_s(self) -> float:
        """Units of the arrival column in a second."""
        return TIME_UNITS[self.time_unit]

    @property
    def schema(self) -> pa.Schema:
        """The trace contract as it is written for this format."""
        if self.block_tokens is None:
            return SCHEMA
        return SCHEMA.append(pa.field(HASH_IDS, COLUMN_TYPES[HASH_IDS]))

    @property
    def required(self) -> list[str]:
        """Source columns that a file has to have."""
        return [name for name in self.columns if name not in self.optional]

    def sources(self, names: Sequence[str]) -> dict[str, str]:
        """Return trace column -> source column, of the columns `names` that a file has."""
        return {target: name for name, target in self.columns.items() if target and name in names}


@cache
def published_formats() -> dict[str, TraceFormat]:
    """Return the formats of publishers by their names."""
    return {name: TraceFormat(**facts) for name, facts in read_yaml(FORMATS_FILE).items()}


def require_trace(path: str | Path) -> pq.ParquetFile:
    """Open a normalised trace; raise InputError if it is none, or has no row."""
    fix = "ingest the trace first (`sextant ingest`); `make demo` makes those of the README"
    if not Path(path).is_file():
        raise InputError("there is no such file", file=path, fix=fix)

    with reading(path, fix=MAKE_TRACE_AGAIN):
        with Path(path).open("rb") as file:
            if not b"PAR1".startswith(file.read(4)):
                fix = "make one of a log with `sextant ingest`"
                raise InputError("this is no normalised trace", file=path, fix=fix)
        stored = pq.ParquetFile(path, page_checksum_verification=True)

    for name in TRACE_COLUMNS:
        if name not in stored.schema_arrow.names:
            raise InputError("column missing", file=path, field=name, fix=fix)

    if stored.metadata.num_rows == 0:
        raise InputError("the trace has no rows", file=path, fix="give a trace with rows")

    first_s, last_s = _span_s(stored.metadata)
    if first_s < 0 or last_s > MAX_SPAN_S:
        fix = "ingest the log: `sextant ingest` counts times from the first request"
        problem = f"times do not ascend from 0 to at most {MAX_SPAN_S:g} s"
        raise InputError(problem, file=path, field="arrival_s", fix=fix)

    return stored


def _span_s(metadata: pq.FileMetaData) -> tuple[float, float]:
    """Return the first and the last arrival as far as a file's statistics tell; else 0."""
    ends = [0.0]
    starts = []
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(metadata.num_columns)):
            statistics = column.statistics
            if column.path_in_schema == "arrival_s" and statistics and statistics.has_min_max:
                starts.append(float(statistics.min))
                ends.append(float(statistics.max))
    return min(starts, default=0.0), max(ends)


def sql_text(value: object) -> str:
    """Return `value` as an SQL string literal."""
    return "'" + str(value).replace("'", "''") + "'"


def parquet_rows(path: str | Path, *, has_row_number: bool = False) -> str:
    """Return the SQL relation of one Parquet file's rows, with `file_row_number` if asked for."""
    # DuckDB would take `*`, `?`, `[` for patterns, `~` for a home, `status=failed/` for a column.
    literal = re.sub(r"([*?\[])", r"[\1]", str(Path(path).absolute()))
    number = ", file_row_number = true" if has_row_number else ""
    return f"read_parquet({sql_text(literal)}, hive_partitioning = false{number})"


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
    the trace and the source's name of it, where a dot leads into an object; or a mapping file's
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


def _mapped_format(columns: Columns, time_unit: str | None, source: str | Path) -> TraceFormat:
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
        ignores_unknown = columns.get("ignore_unknown", True)

    others = ", ".join(name for name in TRACE_COLUMNS if name != "arrival_s")
    fix += f"; trace columns are arrival, {others}"
    names: dict[str, str | None] = {}
    for part, target, name in parts:
        target = target.strip()
        name = name.strip()
        target = "arrival_s" if target == "arrival" else target
        if target not in TRACE_COLUMNS or not name:
            raise InputError(f"{part!r} names no column", field="columns", fix=fix)
        if target in names.values() or name in names:
            raise InputError(f"{part!r} is there twice", field="columns", fix=fix)
        names[name] = target

    for target in NEEDED_COLUMNS:
        if target not in names.values():
            raise InputError(f"{target} is missing", field="columns", fix=fix)

    time_unit = time_unit or "s"
    if time_unit not in TIME_UNITS:
        fix = f"use one of {', '.join(TIME_UNITS)}"
        raise InputError(f"unknown unit {time_unit!r}", field="time_unit", fix=fix)

    return TraceFormat(
        names,
        time_unit=time_unit,
        is_jsonl=not set(_JSON_ENDINGS).isdisjoint(Path(source).suffixes),
        is_log=True,
        ignores_unknown=ignores_unknown,
    )
