"""A source read to rows: text in blocks of whole lines, Parquet in batches of rows.

Blocks are parsed (`cells`) and judged line by line (`rules`); what depends on the lines before
(`rules.Clock`) follows. A source is never held in memory as a whole.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sextant.base.errors import InputError
from sextant.trace.cells import (
    json_object,
    leaves,
    lines_of,
    read_batch,
    read_csv,
    read_json,
    value_of,
)
from sextant.trace.date_times import NS_PER_S, is_date_time
from sextant.trace.rules import Clock, Rows
from sextant.trace.trace_format import TraceFormat

BATCH_ROWS = 100_000
"""Rows of a Parquet file that are checked at a time."""
BLOCK_BYTES = 4 << 20
"""Text that is checked at a time. It bounds the memory, and sets the trace's row groups."""
BLOCK_LINES = 1 << 18
"""Most lines of a block: the shortest lines take many times their bytes."""
MAX_LINE_BYTES = 16 << 20
_BOM = b"\xef\xbb\xbf"


def read_blocks(source: Path) -> Iterator[bytes]:
    """Yield the text of a file (`.gz` and `.zst` too), cut at ends of lines, without its BOM.

    Each block ends in a newline, the last one too. Raises InputError if a line is longer than
    `MAX_LINE_BYTES`, OSError if the file is cut short or not what its ending says.
    """
    with pa.input_stream(source, compression="detect") as stream:
        block = rest = b""
        is_start = True
        while chunk := stream.read(BLOCK_BYTES):
            if is_start:
                chunk, is_start = chunk.removeprefix(_BOM), False
            end = chunk.rfind(b"\n") + 1
            if end:
                yield from _in_parts(block)
                block, rest = b"".join([rest, memoryview(chunk)[:end]]), chunk[end:]
            else:
                rest += chunk
            if len(rest) > MAX_LINE_BYTES:
                problem = f"a line is longer than {MAX_LINE_BYTES >> 20} MiB"
                raise InputError(problem, file=source, fix="end each row's line")
        if rest:
            block += rest + b"\n"
        yield from _in_parts(block)


def _in_parts(block: bytes) -> Iterator[bytes]:
    """Yield whole lines in parts of `BLOCK_LINES`."""
    begin = 0
    if block.count(b"\n") > BLOCK_LINES:
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
        for end in ends[BLOCK_LINES - 1 :: BLOCK_LINES] + 1:
            yield block[begin:end]
            begin = end
    if begin < len(block):
        yield block[begin:]


def read_rows(source: Path, form: TraceFormat, ignored: list[str]) -> Iterator[Rows]:
    """Yield the rows of a source; the names of columns that are left out go into `ignored`."""
    is_parquet = source.suffix == ".parquet" and not form.is_jsonl
    read = _read_parquet if is_parquet else _read_text
    try:
        yield from read(source, form, ignored)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(source, str(error)) from None


def as_written(source: Path, form: TraceFormat, has_unit: bool) -> TraceFormat:
    """Return a log's format as its first lines show it: CSV or JSON lines, whatever its ending;
    where no unit is named with date-times, if its first arrival is one.
    """
    if not form.is_log or source.suffix == ".parquet":
        return form
    name = form.sources(form.required)["arrival_s"]
    try:
        lines = lines_of(next(read_blocks(source), b""))
        is_json = form.is_jsonl and ".csv" not in source.suffixes
        form = replace(form, is_jsonl=is_json or lines[0].lstrip().startswith("{"))
        rows = map(json_object, lines) if form.is_jsonl else csv.DictReader(lines[:2])
        cells = (value_of(row, name) for row in rows if isinstance(row, dict))
        first = next((cell for cell in cells if cell is not None), None)
    except (OSError, UnicodeDecodeError, csv.Error):
        return form  # an error when the rows are read
    is_datetime = not has_unit and isinstance(first, str) and is_date_time(first)
    return replace(form, is_datetime=True, units_per_s=NS_PER_S) if is_datetime else form


def _read_parquet(source: Path, form: TraceFormat, ignored: list[str]) -> Iterator[Rows]:
    with pq.ParquetFile(source) as stored:
        names = _flat(stored.schema_arrow.empty_table()).schema.names
        ignored += _check_columns(source, form, names)
        clock = Clock(form.sources(names)["arrival_s"], 1)
        for batch in stored.iter_batches(BATCH_ROWS):
            table = _flat(pa.Table.from_batches([batch])).combine_chunks()
            (flat,) = table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
            raw = partial(_raw_rows, batch)
            yield clock.settle(read_batch(flat, form), form, flat.schema.names, raw)


def _flat(table: pa.Table) -> pa.Table:
    """Return a table without structs: a dot leads to the name of a column within one."""
    while any(pa.types.is_struct(kind) for kind in table.schema.types):
        table = table.flatten()
    return table


def _raw_rows(batch: pa.RecordBatch, places: np.ndarray) -> list[str]:
    rows = batch.take(pa.array(places)).to_pylist()
    return [json.dumps(row, default=str, separators=(",", ":")) for row in rows]


def _unreadable(source: Path, error: str) -> InputError:
    fix = "give the file whole, as its publisher wrote it, in UTF-8"
    return InputError(f"cannot be read ({' '.join(error.split())[:300]})", file=source, fix=fix)


def _read_text(source: Path, form: TraceFormat, ignored: list[str]) -> Iterator[Rows]:
    names, blocks = _columns(source, form, read_blocks(source))
    ignored += _check_columns(source, form, names)
    clock = Clock(form.sources(names)["arrival_s"], 1 if form.is_jsonl else 2)
    read = read_json if form.is_jsonl else read_csv
    for text in blocks:
        try:
            text.decode()
        except UnicodeDecodeError as error:
            line = clock.next_line + text.count(b"\n", 0, error.start)
            raise _unreadable(source, f"Line: {line}: {error}") from None
        yield clock.settle(read(text, form, names), form, names, partial(_raw_lines, text))


def _raw_lines(text: bytes, places: np.ndarray) -> list[str]:
    lines = lines_of(text)
    return [lines[place] for place in places]


def _columns(
    source: Path, form: TraceFormat, blocks: Iterator[bytes]
) -> tuple[list[str], Iterator[bytes]]:
    """Return the names of the source's columns, and the blocks from the first row on."""
    first = next(blocks, None)
    if first is None:
        raise InputError("the file is empty", file=source, fix="give a trace with rows")
    head, _, body = first.partition(b"\n")
    head = head.rstrip(b"\r")
    if b"\r" in head:
        fix = "end each row's line with a line feed, e.g. `tr '\\r' '\\n' < OLD > NEW`"
        problem = "lines end with a carriage return alone"
        raise InputError(problem, file=source, row=1, fix=fix)
    try:
        text = head.decode()
        if not form.is_jsonl:
            names = [name.strip() for name in next(csv.reader([text]), [])]
            return names, chain([body] if body else [], blocks)
        rows = map(json_object, lines_of(first) if form.is_log else [text])
        names_by_row = [leaves(row) for row in rows if isinstance(row, dict)]
        if not names_by_row:
            fix = "put one JSON object in each line (`jq -c '.[]'` makes lines of an array)"
            raise InputError("no JSON object", file=source, row=1, fix=fix)
        return list(dict.fromkeys(chain.from_iterable(names_by_row))), chain([first], blocks)
    except UnicodeDecodeError as error:
        line = 1 + error.object.count(b"\n", 0, error.start)
        raise _unreadable(source, f"Line: {line}: {error}") from None
    except csv.Error as error:
        fix = "put the names of the columns there"
        raise InputError(f"no header ({error})", file=source, row=1, fix=fix) from None


def some_of(names: list[str]) -> str:
    """Return names of columns in words, of many or long ones the beginning."""
    shown = [name if len(name) <= 60 else f"{name[:60]}…" for name in names[:40]]
    return ", ".join(shown + ["…"] * (len(names) > len(shown)))


def _check_columns(source: Path, form: TraceFormat, names: list[str]) -> list[str]:
    """Refuse columns that are missing, unknown or twice; return those that are left out."""
    fix = f"the format needs {', '.join(form.required)}"
    if form.optional:
        fix += f"; it may have {', '.join(name for name in form.columns if name in form.optional)}"
    if form.is_log:
        fix += f"; --columns names others; the source has {some_of(names)}"
    if len(names) == 1 and (marks := {*names[0]} & {*";\t|"}):
        fix = f"put commas between the cells of a line, in place of {marks.pop()!r}"
    for name in form.required:
        if name not in names:
            raise InputError("column missing", file=source, row=1, field=name, fix=fix)
    within = "".join(f"\n{name}" for name in form.columns)  # `usage` may be null in some lines
    unknown = [name for name in names if name not in form.columns and f"\n{name}." not in within]
    if unknown and not form.ignores_unknown:
        fix += "; or leave it out with --ignore-unknown (`ignore_unknown` in the sheet)"
        raise InputError("unknown column", file=source, row=1, field=unknown[0], fix=fix)
    for name in names:
        if name in form.columns and names.count(name) > 1:
            raise InputError("column twice", file=source, row=1, field=name, fix=fix)
    return unknown
