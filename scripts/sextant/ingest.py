"""Ingest: a production trace in its publisher's format becomes the normalised trace.

A text source is read as one string per line, so that a line's number and its raw text are
known whatever is wrong with it. DuckDB streams source → checked rows on disk → Parquet; no
step holds the trace in memory.
"""

import csv
import json
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from sextant.errors import InputError
from sextant.files import PROVENANCE_KEY, atomic_path, provenance, write_json
from sextant.trace_format import BLANK, FORMATS, TRACE_COLUMNS, TraceFormat, rows_query, sql_text

MEMORY_LIMIT = "1GB"
"""What DuckDB may hold in memory; the rest goes to disk beside the output."""
_N_SHOWN = 5
_REJECTED = f"rows WHERE reason != '{BLANK}'"


def ingest_trace(
    source: str | Path,
    trace_format: str,
    trace_out: str | Path,
    rejected_out: str | Path,
    report_out: str | Path,
    *,
    llm: str | None = None,
    service: str | None = None,
    max_rejected_fraction: float = 0.01,
    **provenance_facts: Any,
) -> dict[str, Any]:
    """Normalise a trace to Parquet; write its malformed rows and a report beside it.

    Args:
        source: CSV, JSON lines (`.gz` and `.zst` too) or, for `sextant`, also Parquet.
        trace_format: `azure`, `burstgpt`, `mooncake` or `sextant`.
        trace_out: the trace contract (`TRACE_COLUMNS`), in the order of arrival.
        rejected_out: `line` (a CSV's header is line 1; Parquet's first row is 1), `reason`
            and `raw` of every malformed row.
        report_out: JSON with what this function returns.
        llm: LLM of the requests where the source names none.
        service: service of the requests where the source names none.
        max_rejected_fraction: largest share of malformed rows that is tolerated.
        **provenance_facts: more facts for the outputs' provenance.

    A request without an output token is `failed`, unless the source has a status of its own.
    A request without an id gets its line number. Blank lines are no rows; they are counted.

    Raises:
        InputError: wrong columns, no rows, or too many malformed ones; no output is written.
    """
    source = Path(source)
    if trace_format not in FORMATS:
        problem, fix = f"unknown trace format {trace_format!r}", f"use one of {', '.join(FORMATS)}"
        raise InputError(problem, field="format", fix=fix)
    if not source.is_file():
        raise InputError("there is no such file", file=source, fix="correct the trace's path")
    origin = provenance({"source": source}, trace_format=trace_format, **provenance_facts)
    target = Path(trace_out).parent
    target.mkdir(parents=True, exist_ok=True)
    # The checked rows lie beside the output: where a trace is to go, there is room for one.
    with (
        tempfile.TemporaryDirectory(dir=target, prefix=".ingest-") as folder,
        duckdb.connect(Path(folder) / "rows.duckdb") as database,
    ):
        database.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        _read(database, source, FORMATS[trace_format])
        _create_trace(database, FORMATS[trace_format], {"llm": llm, "service": service})
        report = _count(database)
        _check_counts(database, source, report, max_rejected_fraction)
        report |= {"source_sha256": origin["inputs_sha256"]["source"], "provenance": origin}
        with ExitStack() as stack:
            trace, rejected, summary = (
                stack.enter_context(atomic_path(path))
                for path in (trace_out, rejected_out, report_out)
            )
            _copy(database, "SELECT * FROM trace", trace, origin)
            _copy(database, f"SELECT line, reason, raw FROM {_REJECTED}", rejected, origin)
            write_json(summary, report)
    return report


def _read(database: duckdb.DuckDBPyConnection, source: Path, form: TraceFormat) -> None:
    """Fill the table `rows`: every line of the source, checked (see `rows_query`)."""
    try:
        if source.suffix == ".zst":
            _check_whole(source)
        if source.suffix == ".parquet" and not form.is_jsonl:
            described = database.execute(f"DESCRIBE FROM read_parquet({sql_text(source)})")
            names, is_csv = [row[0] for row in described.fetchall()], False
            # As JSON, so that one set of checks serves every kind of source.
            lines = f"""(SELECT row_number() OVER () AS line, to_json(t) AS raw
                FROM read_parquet({sql_text(source)}) AS t)"""
        else:
            lines, is_csv = _text_lines(source), not form.is_jsonl
            names = _text_columns(database, source, lines, is_csv)
        _check_columns(source, form, names)
        body = f"(FROM {lines} WHERE line > {int(is_csv)})"
        query = rows_query(form, body, names, is_csv)
        database.execute(f"CREATE TABLE rows AS {query}")
    except (duckdb.InvalidInputException, duckdb.IOException, OSError) as error:
        problem = " ".join(str(error).split())[:300]
        fix = "give the file whole, as its publisher wrote it, in UTF-8"
        raise InputError(f"cannot be read ({problem})", file=source, fix=fix) from None


def _check_whole(source: Path) -> None:
    # DuckDB reads a zstd file that was cut short as if it ended there; Arrow does not.
    with pa.input_stream(source, compression="zstd") as stream:
        while stream.read(1 << 20):
            pass


def _text_lines(source: Path) -> str:
    # The delimiter is four control characters: no line has them, so a line is one cell.
    return f"""(SELECT row_number() OVER () AS line, rtrim(raw, chr(13)) AS raw FROM read_csv(
        {sql_text(source)}, columns = {{'raw': 'VARCHAR'}}, header = false,
        auto_detect = false, delim = '\x01\x02\x03\x04', quote = '', escape = ''))"""


def _text_columns(
    database: duckdb.DuckDBPyConnection, source: Path, lines: str, is_csv: bool
) -> list[str]:
    first = database.execute(f"SELECT raw FROM {lines} LIMIT 1").fetchone()
    if first is None:
        raise InputError("the file is empty", file=source, fix="give a trace with rows")
    text = first[0] or ""
    if is_csv:
        return [name.strip() for name in next(csv.reader([text]), [])]
    try:
        return list(dict(json.loads(text)))
    except (TypeError, ValueError):
        fix = "put one JSON object in each line"
        raise InputError("no JSON object", file=source, row=1, fix=fix) from None


def _check_columns(source: Path, form: TraceFormat, names: list[str]) -> None:
    fix = f"the format needs {', '.join(form.required)}"
    if form.optional:
        fix += f"; it may have {', '.join(name for name in form.columns if name in form.optional)}"
    for name in form.required:
        if name not in names:
            raise InputError("column missing", file=source, row=1, field=name, fix=fix)
    for name in names:
        if name not in form.columns:
            raise InputError("unknown column", file=source, row=1, field=name, fix=fix)
        if names.count(name) > 1:
            raise InputError("column twice", file=source, row=1, field=name, fix=fix)


def _create_trace(
    database: duckdb.DuckDBPyConnection, form: TraceFormat, constants: Mapping[str, str | None]
) -> None:
    """Create the view `trace`: the accepted rows, times from the first one."""
    columns = {name: name for name in TRACE_COLUMNS}
    start = "(SELECT min(tick) FROM rows WHERE reason IS NULL)"
    columns["arrival_s"] = f"(tick - {start}) / {form.units_per_s!r}"
    for name, value in constants.items():
        if value is not None:
            columns[name] = f"coalesce({name}, {sql_text(value)})"
    selected = ", ".join(f"{value} AS {name}" for name, value in columns.items())
    database.execute(f"CREATE VIEW trace AS SELECT {selected} FROM rows WHERE reason IS NULL")


def _count(database: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    n_accepted, n_failed, duration_s = database.execute(
        "SELECT count(*), count(*) FILTER (status = 'failed'), max(arrival_s) FROM trace"
    ).fetchone()
    reasons = database.execute(
        "SELECT reason, count(*) FROM rows WHERE reason IS NOT NULL GROUP BY ALL ORDER BY 2 DESC, 1"
    )
    by_reason = dict(reasons.fetchall())
    n_blank_lines = by_reason.pop(BLANK, 0)
    n_rejected = sum(by_reason.values())
    return {
        "n_read": n_accepted + n_rejected,
        "n_accepted": n_accepted,
        "n_rejected": n_rejected,
        "n_rejected_by_reason": by_reason,
        "n_blank_lines": n_blank_lines,
        "n_failed": n_failed,
        "duration_s": duration_s,
    }


def _check_counts(
    database: duckdb.DuckDBPyConnection,
    source: Path,
    counts: Mapping[str, Any],
    max_rejected_fraction: float,
) -> None:
    """Refuse a trace that has no rows or strays too far from its format."""
    if counts["n_read"] == 0:
        raise InputError("the trace has no rows", file=source, fix="give a trace with rows")
    is_tolerated = counts["n_rejected"] <= max_rejected_fraction * counts["n_read"]
    if counts["n_accepted"] and is_tolerated:
        return
    shown = database.execute(
        f"SELECT line, reason FROM {_REJECTED} ORDER BY line LIMIT {_N_SHOWN}"
    ).fetchall()
    where = "; ".join(f"line {line}: {reason}" for line, reason in shown)
    problem = f"{counts['n_rejected']} of {counts['n_read']} rows are malformed ({where})"
    fix = f"correct them, or raise max_rejected_fraction, now {max_rejected_fraction}"
    raise InputError(problem, file=source, fix=fix)


def _copy(
    database: duckdb.DuckDBPyConnection, query: str, path: Path, origin: Mapping[str, Any]
) -> None:
    metadata = f"{{{PROVENANCE_KEY.decode()}: {sql_text(json.dumps(origin))}}}"
    database.execute(
        f"COPY ({query}) TO {sql_text(path)} "
        f"(FORMAT parquet, COMPRESSION zstd, KV_METADATA {metadata})"
    )
