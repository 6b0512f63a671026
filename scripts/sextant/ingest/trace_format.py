"""The formats of traces, and the SQL that checks a line and brings it to the trace contract."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from sextant.base.errors import InputError
from sextant.base.files import MAKE_TRACE_AGAIN, reading

MAX_INT32 = 2**31 - 1

# The trace contract: column -> SQL type, in the order of the file.
TRACE_COLUMNS = {
    "request_id": "VARCHAR",
    "arrival_s": "DOUBLE",
    "input_tokens": "INTEGER",
    "output_tokens": "INTEGER",
    "llm": "VARCHAR",
    "service": "VARCHAR",
    "session_id": "VARCHAR",
    "batch_size": "INTEGER",
    "is_greedy": "BOOLEAN",
    "temperature": "DOUBLE",
    "top_k": "INTEGER",
    "top_p": "DOUBLE",
    "e2e_ms": "DOUBLE",
    "status": "VARCHAR",
}
NEEDED_COLUMNS = ("arrival_s", "input_tokens", "output_tokens")
# Lowest sensible value of a number; 0 for all others. Engines write top_k = -1 for "no limit".
MINIMUM = {"input_tokens": 1, "batch_size": 1, "top_k": -1}

BLANK = "blank line"
"""The reason of a line that holds nothing: it is no row, neither accepted nor rejected."""


@dataclass(frozen=True)
class TraceFormat:
    """How a publisher writes a trace. Columns are found by name, in any order."""

    columns: Mapping[str, str | None]
    """Source column -> trace column; None: known, but nothing is taken from it."""
    optional: frozenset[str] = frozenset()
    units_per_s: float = 1.0
    """Units of the arrival column in a second; date-times are read as nanoseconds."""
    is_datetime: bool = False
    is_jsonl: bool = False
    factors: Mapping[str, float] = field(default_factory=dict)
    """Trace column -> factor that brings the source's unit to the trace's."""

    @property
    def required(self) -> list[str]:
        """Source columns that a file has to have."""
        return [name for name in self.columns if name not in self.optional]


FORMATS = {
    "azure": TraceFormat(
        {
            "TIMESTAMP": "arrival_s",
            "ContextTokens": "input_tokens",
            "GeneratedTokens": "output_tokens",
        },
        units_per_s=1e9,
        is_datetime=True,
    ),
    "burstgpt": TraceFormat(
        {
            "Timestamp": "arrival_s",
            "Model": "llm",
            "Request tokens": "input_tokens",
            "Response tokens": "output_tokens",
            "Total tokens": None,
            "Log Type": "service",
            "Session ID": "session_id",
            "Elapsed time": "e2e_ms",
        },
        optional=frozenset({"Session ID", "Elapsed time"}),
        factors={"e2e_ms": 1000.0},
    ),
    "mooncake": TraceFormat(
        {
            "timestamp": "arrival_s",
            "input_length": "input_tokens",
            "output_length": "output_tokens",
            "hash_ids": None,
        },
        optional=frozenset({"hash_ids"}),
        units_per_s=1e3,
        is_jsonl=True,
    ),
    "sextant": TraceFormat(
        {name: name for name in TRACE_COLUMNS},
        optional=frozenset(TRACE_COLUMNS) - set(NEEDED_COLUMNS),
    ),
}

_CELL = '("(?:[^"]|"")*"|[^,"]*)'
_SPLIT_CSV = f"""CASE
    WHEN NOT contains(raw, '"') THEN string_split(raw, ',')
    WHEN regexp_full_match(raw, '{_CELL}(,{_CELL})*')
    THEN list_transform(regexp_extract_all(raw, '(?:^|,){_CELL}', 1),
        lambda cell: replace(regexp_replace(cell, '^"(.*)"$', '\\1', 's'), '""', '"')) END"""
_STATUS_FAULT = """CASE WHEN status NOT IN ('ok', 'failed') THEN 'status: neither ok nor failed'
    WHEN status = 'ok' AND TRY_CAST(output_tokens AS DOUBLE) = 0
    THEN 'output_tokens: zero in a request that is ok' END"""
# A cast to a time stamp passes over a zone in silence, so the zone is taken off first. Of the
# years that fit into nanoseconds, the whole centuries.
_DATETIME = (
    r"^((?:1[7-9]|2[01])\d\d[-/]\d\d?[-/]\d\d?(?:[ T]+\d\d?:\d\d(?::\d\d(?:\.\d*)?)?)?)"
    r" ?(Z|UTC|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)?$"
)
_PARTS = f"regexp_extract(arrival_s, '{_DATETIME}', ['local', 'zone'])"
# Nanoseconds keep the seven decimals of a date-time that a float of seconds would lose.
_MOMENT_NS = """epoch_ns(TRY_CAST(parts.local AS TIMESTAMP_NS))
    + CASE WHEN parts.zone IN ('', 'Z', 'UTC') THEN 0
    ELSE epoch_us(TRY_CAST('1970-01-01 00:00:00' || parts.zone AS TIMESTAMPTZ)) * 1000 END"""


def require_trace(path: str | Path) -> pq.ParquetFile:
    """Open a normalised trace.

    Raises:
        InputError: no such file, no Parquet, a column of the contract is missing, or no row.
    """
    fix = "ingest the trace first (`sextant ingest`)"
    if not Path(path).is_file():
        raise InputError("there is no such file", file=path, fix=fix)
    with reading(path, fix=MAKE_TRACE_AGAIN):
        stored = pq.ParquetFile(path, page_checksum_verification=True)
    for name in TRACE_COLUMNS:
        if name not in stored.schema_arrow.names:
            raise InputError("column missing", file=path, field=name, fix=fix)
    if stored.metadata.num_rows == 0:
        raise InputError("the trace has no rows", file=path, fix="give a trace with rows")
    return stored


def sql_text(value: object) -> str:
    """Return `value` as an SQL string literal."""
    return "'" + str(value).replace("'", "''") + "'"


def parquet_rows(path: str | Path, *, has_row_number: bool = False) -> str:
    """Return the SQL relation of one Parquet file's rows, whatever its path looks like.

    DuckDB would take `*`, `?` and `[` for patterns, `~` for a home, and a folder `status=failed`
    for a column that stands before the file's own.

    Args:
        path: the file.
        has_row_number: whether to add each row's position, `file_row_number`.
    """
    literal = re.sub(r"([*?\[])", r"[\1]", str(Path(path).absolute()))
    number = ", file_row_number = true" if has_row_number else ""
    return f"read_parquet({sql_text(literal)}, hive_partitioning = false{number})"


def rows_query(
    form: TraceFormat,
    lines: str,
    names: list[str],
    is_csv: bool,
    *,
    latest_tick: float | None = None,
    is_zoned: bool | None = None,
) -> str:
    """Return the query that checks every line of `lines`.

    Args:
        form: the format of the source.
        lines: a relation of `line` and `raw`, in the order of the source; `raw` is a line of
            CSV or a JSON object.
        names: the source's columns, in its order.
        is_csv: whether `raw` is CSV.
        latest_tick: `tick` of the last row accepted before these lines.
        is_zoned: whether the source's date-times have a zone; None: as in the first of these.

    The result has the trace's columns (`arrival_s` and absent ids not yet set), `tick` (the
    arrival in the source's unit; date-times with a zone in UTC), `is_zoned` (whether a date-time
    has a zone), `line`, `reason` (NULL: the row is accepted) and `raw` (NULL: likewise).
    """
    sources = {target: name for name, target in form.columns.items() if target and name in names}
    parsed = _SPLIT_CSV if is_csv else "TRY_CAST(raw AS JSON)"
    cells = ", ".join(
        f"nullif(trim({_cell(name, names, is_csv)}), '') AS {target}"
        for target, name in sources.items()
    )
    faults = [_fault(form, target, name, is_zoned) for target, name in sources.items()]
    faults += [_STATUS_FAULT] if "status" in sources else []
    values = ", ".join(f"{_value(form, sources, name)} AS {name}" for name in TRACE_COLUMNS)
    latest = "latest" if latest_tick is None else f"greatest(latest, {latest_tick!r})"
    backwards = sql_text(f"{sources['arrival_s']}: goes back in time")
    # A window without an order streams over the lines as they come: no sort, no row held
    # back. Accepted rows are never earlier than the one before, so the latest accepted time
    # so far is that of the previous accepted row.
    return f"""
    WITH parsed AS (SELECT line, raw, {parsed} AS cells FROM {lines}),
        picked AS (SELECT line, raw, {_line_fault(names, is_csv)} AS fault, {cells} FROM parsed),
        timed AS ({_timed(form)}),
        checked AS (SELECT {values}, tick, is_zoned, line, raw, CASE
            WHEN trim(coalesce(raw, '')) = '' THEN '{BLANK}'
            ELSE coalesce(fault, {", ".join(faults)}) END AS reason FROM timed),
        ordered AS (SELECT *, max(CASE WHEN reason IS NULL THEN tick END)
            OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS latest FROM checked),
        judged AS (SELECT * EXCLUDE (latest) REPLACE (
            coalesce(reason, CASE WHEN tick < {latest} THEN {backwards} END) AS reason)
            FROM ordered)
    SELECT * REPLACE (CASE WHEN reason IS NOT NULL THEN raw END AS raw) FROM judged"""


def _cell(name: str, names: list[str], is_csv: bool) -> str:
    if is_csv:
        return f"cells[{names.index(name) + 1}]"
    path = f'$."{name}"'
    return f"(cells ->> {sql_text(path)})"


def _line_fault(names: list[str], is_csv: bool) -> str:
    if not is_csv:
        return "CASE WHEN json_type(cells) IS DISTINCT FROM 'OBJECT' THEN 'no JSON object' END"
    return f"""CASE WHEN cells IS NULL THEN 'malformed quotes'
        WHEN len(cells) != {len(names)} THEN 'wrong number of columns' END"""


def _timed(form: TraceFormat) -> str:
    if form.is_datetime:
        return f"""SELECT *, {_MOMENT_NS} AS tick, parts.zone != '' AS is_zoned
            FROM (SELECT *, {_PARTS} AS parts FROM picked)"""
    return "SELECT *, TRY_CAST(arrival_s AS DOUBLE) AS tick, NULL::BOOLEAN AS is_zoned FROM picked"


def _value(form: TraceFormat, sources: Mapping[str, str], name: str) -> str:
    """Return the SQL of a trace column, from the text of the source's cells."""
    sql_type, given = TRACE_COLUMNS[name], name if name in sources else "NULL"
    if name == "status":
        outcome = "CASE WHEN TRY_CAST(output_tokens AS DOUBLE) = 0 THEN 'failed' ELSE 'ok' END"
        return f"coalesce({given}, {outcome})"
    if name == "arrival_s" or name not in sources:
        return f"CAST(NULL AS {sql_type})"
    if sql_type in ("INTEGER", "DOUBLE"):
        given = f"TRY_CAST({name} AS DOUBLE) * {form.factors.get(name, 1.0)!r}"
    return f"TRY_CAST({given} AS {sql_type})"


def _fault(form: TraceFormat, name: str, source_name: str, is_zoned: bool | None) -> str:
    """Return the SQL that says what is wrong with a cell, NULL if nothing is."""
    is_needed = name in NEEDED_COLUMNS
    first = f"WHEN {name} IS NULL THEN " + (
        sql_text(f"{source_name}: missing value") if is_needed else "NULL"
    )
    cases = " ".join(
        f"WHEN {test} THEN {sql_text(f'{source_name}: {what}')}"
        for test, what in _cell_checks(form, name, is_zoned)
    )
    return f"CASE {first} {cases} END"


def _cell_checks(form: TraceFormat, name: str, is_zoned: bool | None) -> list[tuple[str, str]]:
    """Return (SQL of a fault, its name) for a cell, in the order they are looked for."""
    sql_type, value = TRACE_COLUMNS[name], f"TRY_CAST({name} AS DOUBLE)"
    if name == "arrival_s" and form.is_datetime:
        return _datetime_checks(is_zoned)
    if sql_type == "BOOLEAN":
        return [(f"TRY_CAST({name} AS BOOLEAN) IS NULL", "neither true nor false")]
    if sql_type == "VARCHAR":
        return []
    minimum = MINIMUM.get(name, 0)
    checks = [
        (f"{value} IS NULL", "not a number"),
        (f"NOT isfinite({value})", "not finite"),
        (f"{value} < {minimum}", f"below {minimum}"),
    ]
    if sql_type == "INTEGER":
        checks += [
            (f"{value} != trunc({value})", "not a whole number"),
            (f"{value} > {MAX_INT32}", "above the 32-bit range"),
        ]
    return checks


def _datetime_checks(is_zoned: bool | None) -> list[tuple[str, str]]:
    first = "(SELECT arg_min(is_zoned, line) FROM timed WHERE tick IS NOT NULL)"
    expected = first if is_zoned is None else str(is_zoned)
    return [
        ("tick IS NULL", "not a date and time"),
        (f"is_zoned AND NOT {expected}", "has a time zone, the first row's has none"),
        (f"NOT is_zoned AND {expected}", "has no time zone, the first row's has one"),
    ]
