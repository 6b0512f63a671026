"""The formats of traces, and the SQL that checks a line and brings it to the trace contract."""

from collections.abc import Mapping
from dataclasses import dataclass, field

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
_MINIMUM = {"input_tokens": 1, "batch_size": 1, "top_k": -1}

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


def sql_text(value: object) -> str:
    """Return `value` as an SQL string literal."""
    return "'" + str(value).replace("'", "''") + "'"


def rows_query(form: TraceFormat, lines: str, names: list[str], is_csv: bool) -> str:
    """Return the query that checks every line of `lines`.

    Args:
        form: the format of the source.
        lines: a relation of `line` and `raw`, in the order of the source; `raw` is a line of
            CSV or a JSON object.
        names: the source's columns, in its order.
        is_csv: whether `raw` is CSV.

    The result has the trace's columns (`arrival_s` not yet set), `tick` (the arrival in the
    source's unit), `line`, `reason` (NULL: the row is accepted) and `raw` (NULL: likewise).
    """
    sources = {target: name for name, target in form.columns.items() if target and name in names}
    parsed = _SPLIT_CSV if is_csv else "TRY_CAST(raw AS JSON)"
    cells = ", ".join(
        f"nullif(trim({_cell(name, names, is_csv)}), '') AS {target}"
        for target, name in sources.items()
    )
    faults = [_fault(form, target, name) for target, name in sources.items()]
    faults += [_STATUS_FAULT] if "status" in sources else []
    values = ", ".join(f"{_value(form, sources, name)} AS {name}" for name in TRACE_COLUMNS)
    backwards = sql_text(f"{sources['arrival_s']}: goes back in time")
    # A window without an order streams over the lines as they come: no sort, no row held
    # back. Accepted rows are never earlier than the one before, so the latest accepted time
    # so far is that of the previous accepted row.
    return f"""
    WITH parsed AS (SELECT line, raw, {parsed} AS cells FROM {lines}),
        picked AS (SELECT line, raw, {_line_fault(names, is_csv)} AS fault, {cells} FROM parsed),
        checked AS (SELECT {values}, {_tick(form)} AS tick, line, raw, CASE
            WHEN trim(coalesce(raw, '')) = '' THEN '{BLANK}'
            ELSE coalesce(fault, {", ".join(faults)}) END AS reason FROM picked),
        ordered AS (SELECT *, max(CASE WHEN reason IS NULL THEN tick END)
            OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS latest FROM checked),
        judged AS (SELECT * EXCLUDE (latest) REPLACE (
            coalesce(reason, CASE WHEN tick < latest THEN {backwards} END) AS reason)
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


def _tick(form: TraceFormat) -> str:
    # Nanoseconds keep the seven decimals of a date-time that a float of seconds would lose.
    if not form.is_datetime:
        return "TRY_CAST(arrival_s AS DOUBLE)"
    moment = "TRY_CAST(arrival_s AS TIMESTAMP_NS)"
    return f"CASE WHEN isfinite({moment}) THEN epoch_ns({moment}) END"


def _value(form: TraceFormat, sources: Mapping[str, str], name: str) -> str:
    """Return the SQL of a trace column, from the text of the source's cells."""
    sql_type, given = TRACE_COLUMNS[name], name if name in sources else "NULL"
    if name == "request_id":
        return f"coalesce({given}, CAST(line AS VARCHAR))"
    if name == "status":
        outcome = "CASE WHEN TRY_CAST(output_tokens AS DOUBLE) = 0 THEN 'failed' ELSE 'ok' END"
        return f"coalesce({given}, {outcome})"
    if name == "arrival_s" or name not in sources:
        return f"CAST(NULL AS {sql_type})"
    if sql_type in ("INTEGER", "DOUBLE"):
        given = f"TRY_CAST({name} AS DOUBLE) * {form.factors.get(name, 1.0)!r}"
    return f"TRY_CAST({given} AS {sql_type})"


def _fault(form: TraceFormat, name: str, source_name: str) -> str:
    """Return the SQL that says what is wrong with a cell, NULL if nothing is."""
    is_needed = name in NEEDED_COLUMNS
    first = f"WHEN {name} IS NULL THEN " + (
        sql_text(f"{source_name}: missing value") if is_needed else "NULL"
    )
    cases = " ".join(
        f"WHEN {test} THEN {sql_text(f'{source_name}: {what}')}"
        for test, what in _cell_checks(form, name)
    )
    return f"CASE {first} {cases} END"


def _cell_checks(form: TraceFormat, name: str) -> list[tuple[str, str]]:
    """Return (SQL of a fault, its name) for a cell, in the order they are looked for."""
    sql_type, value = TRACE_COLUMNS[name], f"TRY_CAST({name} AS DOUBLE)"
    if name == "arrival_s" and form.is_datetime:
        return [(f"{_tick(form)} IS NULL", "not a date and time")]
    if sql_type == "BOOLEAN":
        return [(f"TRY_CAST({name} AS BOOLEAN) IS NULL", "neither true nor false")]
    if sql_type == "VARCHAR":
        return []
    minimum = _MINIMUM.get(name, 0)
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
