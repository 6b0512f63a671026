"""A source read to rows: text in blocks of whole lines, Parquet in batches of rows.

Arrow parses a block of CSV at once; one in which it is unclear where a cell ends is split line by
line. Cells are then typed column by column and judged (`rules`).
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from sextant.base.errors import InputError
from sextant.trace import trace_format
from sextant.trace.date_times import UNKNOWN, is_date_time, is_null, read_date_times
from sextant.trace.rules import Cells, Judge, TraceRows
from sextant.trace.sessions import Split, flat_sessions, with_blocks
from sextant.trace.trace_format import BLANK, COLUMN_TYPES, HASH_IDS, TraceFormat

BATCH_ROWS = 100_000  # of a Parquet file that are checked at a time
BLOCK_BYTES = 4 << 20
"""Text that is checked at a time. It bounds the memory, and sets the trace's row groups."""
BLOCK_LINES = 1 << 18  # of a block: the shortest lines take many times their bytes
MAX_LINE_BYTES = 16 << 20
_BOM = b"\xef\xbb\xbf"
_TRUTHS = dict.fromkeys(("true", "t", "yes", "y", "1"), True)
_TRUTHS |= dict.fromkeys(("false", "f", "no", "n", "0"), False)
_WRONG_NUMBER = "wrong number of columns"
_CELL = '("(?:[^"]|"")*"|[^,"]*)'
_QUOTED_LINE = re.compile(f"{_CELL}(?:,{_CELL})*")
_NEXT_CELL = re.compile(f",{_CELL}")


def read_rows(source: Path, form: TraceFormat, ignored: list[str]) -> Iterator[TraceRows]:
    """Yield the rows of a source; names of columns that are left out go into `ignored`.

    Raises InputError: a file that cannot be read, or columns that are missing, unknown or there
    twice.
    """
    try:
        if source.suffix == ".parquet" and not form.is_jsonl:
            with pq.ParquetFile(source) as stored:
                names = _flat(stored.schema_arrow.empty_table()).schema.names
                ignored += _check_columns(source, form, names)
                judge = Judge(form, form.sources(names), next_line=1)
                for batch in stored.iter_batches(BATCH_ROWS):
                    table = _flat(pa.Table.from_batches([batch]))
                    columns = {
                        it: table[name].combine_chunks() for it, name in judge.sources.items()
                    }
                    cells = _typed(columns, form, np.full(len(table), None))
                    yield judge.rows(cells, partial(_raw_rows, batch))
            return
        blocks = read_text_blocks(source)
        if form.is_nested:
            blocks = flat_sessions(blocks)
        names, blocks = _columns(source, form, blocks)
        ignored += _check_columns(source, form, names)
        split: Split = _json_object if form.is_jsonl else partial(_split, names)
        if form.parts:
            split = with_blocks(split, form.parts, form.block_tokens or 1)
            names = [*names, HASH_IDS]
        is_by_line = form.is_jsonl or bool(form.parts)
        judge = Judge(form, form.sources(names), 1 if form.is_jsonl else 2)
        for text in blocks:
            try:
                text.decode()
            except UnicodeDecodeError as error:
                line = judge.next_line + text.count(b"\n", 0, error.start)
                raise _unreadable(source, f"Line: {line}: {error}") from None
            parsed = None if is_by_line else _parse_at_once(text, form, names)
            cells = parsed or _parse_lines(text, form, names, split)
            yield judge.rows(cells, partial(_raw_lines, text))
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(source, str(error)) from None


def _unreadable(source: Path, error: str) -> InputError:
    fix = "give the file whole, as its publisher wrote it, in UTF-8"
    return InputError(f"cannot be read ({' '.join(error.split())[:300]})", file=source, fix=fix)


def _raw_rows(batch: pa.RecordBatch, indices: np.ndarray) -> list[str]:
    rows = batch.take(pa.array(indices)).to_pylist()
    return [json.dumps(row, default=str, separators=(",", ":")) for row in rows]


def _raw_lines(text: bytes, indices: np.ndarray) -> list[str]:
    lines = _lines_of(text)
    return [lines[index] for index in indices]


def _lines_of(text: bytes) -> list[str]:
    return [line.rstrip("\r") for line in text.decode().removesuffix("\n").split("\n")]


def read_text_blocks(source: Path) -> Iterator[bytes]:
    """Yield the text of a file (`.gz` and `.zst` too) in blocks of lines, without its BOM.

    Raises InputError if a line is too long, OSError if the file is cut short or is not what its
    ending says.
    """
    with pa.input_stream(source, compression="detect") as stream:
        block = rest = b""
        is_start = True
        while chunk := stream.read(BLOCK_BYTES):
            if is_start:
                chunk = chunk.removeprefix(_BOM)
                is_start = False
            end = chunk.rfind(b"\n") + 1
            if end:
                yield from _in_parts(block)
                block = b"".join([rest, memoryview(chunk)[:end]])
                rest = chunk[end:]
            else:
                rest += chunk
            if len(rest) > MAX_LINE_BYTES:
                problem = f"a line is longer than {MAX_LINE_BYTES >> 20} MiB"
                raise InputError(problem, file=source, fix="end each row's line")
        yield from _in_parts(block + (rest + b"\n" if rest else b""))


def _in_parts(block: bytes) -> Iterator[bytes]:
    begin = 0
    if block.count(b"\n") > BLOCK_LINES:
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
        for end in ends[BLOCK_LINES - 1 :: BLOCK_LINES] + 1:
            yield block[begin:end]
            begin = end
    if begin < len(block):
        yield block[begin:]


def as_written(source: Path, form: TraceFormat, has_unit: bool) -> TraceFormat:
    """Return a log's format as its first lines show it.

    It is CSV or JSON lines, whatever the file's ending. If no unit is stated and the first arrival
    is a date-time, all are.
    """
    if not form.is_log or source.suffix == ".parquet":
        return form

    name = form.sources(form.required)["arrival_s"]
    try:
        lines = _lines_of(next(read_text_blocks(source), b""))
        is_json = form.is_jsonl and ".csv" not in source.suffixes
        form = replace(form, is_jsonl=is_json or lines[0].lstrip().startswith("{"))
        rows = map(_json_object, lines) if form.is_jsonl else csv.DictReader(lines[:2])
        cells = (row.get(name) for row in rows if isinstance(row, dict))
        first = next((cell for cell in cells if cell is not None), None)
    except (OSError, UnicodeDecodeError, csv.Error):
        return form  # an error when the rows are read

    is_datetime = not has_unit and isinstance(first, str) and is_date_time(first)
    return replace(form, time_unit="iso") if is_datetime else form


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
        if not form.is_jsonl:
            names = [name.strip() for name in next(csv.reader([head.decode()]), [])]
            return names, chain([body] if body else [], blocks)
        rows = map(_json_object, _lines_of(first if form.is_log else head))
        names_by_row = [row for row in rows if isinstance(row, dict)]
    except UnicodeDecodeError as error:
        line = 1 + error.object.count(b"\n", 0, error.start)
        raise _unreadable(source, f"Line: {line}: {error}") from None
    except csv.Error as error:
        fix = "put the names of the columns there"
        raise InputError(f"no header ({error})", file=source, row=1, fix=fix) from None

    if not names_by_row:
        fix = "put one JSON object in each line (`jq -c '.[]'` makes lines of an array)"
        raise InputError("no JSON object", file=source, row=1, fix=fix)

    return list(dict.fromkeys(chain.from_iterable(names_by_row))), chain([first], blocks)


def _check_columns(source: Path, form: TraceFormat, names: list[str]) -> list[str]:
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


def some_of(names: list[str]) -> str:
    """Return names of columns in words, of many or long ones the beginning."""
    shown = [name if len(name) <= 60 else f"{name[:60]}…" for name in names[:40]]
    return ", ".join(shown + ["…"] * (len(names) > len(shown)))


def _parse_at_once(text: bytes, form: TraceFormat, names: list[str]) -> Cells | None:
    """Read whole lines of CSV, not their header; None if it is unclear where a cell ends."""
    has_quotes = b'"' in text
    # A carriage return alone ends a line for Arrow.
    is_plain = b"\r" not in text or text.count(b"\r") == text.count(b"\r\n")
    if not is_plain or (has_quotes and not _is_plainly_quoted(text)):
        return None

    sources = form.sources(names)
    faults = dict[int, str]()

    def leave_out(row: pa.csv.InvalidRow) -> str:
        faults[row.number - 1] = _WRONG_NUMBER if row.text.strip() else BLANK
        return "skip"

    try:
        table = pa.csv.read_csv(
            pa.BufferReader(text),
            pa.csv.ReadOptions(use_threads=False, column_names=names, block_size=len(text) + 1),
            pa.csv.ParseOptions(
                quote_char='"' if has_quotes else False,
                ignore_empty_lines=False,
                invalid_row_handler=leave_out,
            ),
            pa.csv.ConvertOptions(
                check_utf8=False,
                column_types=dict.fromkeys(sources.values(), pa.string()),
                include_columns=list(sources.values()),
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
    except pa.ArrowInvalid:
        return None

    if len(table) + len(faults) != np.count_nonzero(np.frombuffer(text, np.uint8) == ord("\n")):
        return None

    line_faults = np.full(len(table) + len(faults), None)
    line_faults[[*faults]] = [*faults.values()]
    columns = {target: table[name].combine_chunks() for target, name in sources.items()}
    if faults:  # a row of nulls for each line that was left out
        is_kept = np.equal(line_faults, np.array(None)).astype(bool)
        indices = pa.array(np.cumsum(is_kept) - 1, mask=~is_kept)
        columns = {name: column.take(indices) for name, column in columns.items()}
    if all(columns[name].null_count > len(faults) for name in trace_format.NEEDED_COLUMNS):
        # Arrow reads a blank line as a row of nulls.
        for index, line in enumerate(_lines_of(text)):
            if not line.strip():
                line_faults[index] = BLANK

    return _typed(columns, form, line_faults)


def _is_plainly_quoted(text: bytes) -> bool:
    """Return whether quotes only stand around whole cells, in pairs, on one line."""
    characters = np.frombuffer(text, np.uint8)
    quotes = np.flatnonzero(characters == ord('"'))
    if len(quotes) % 2:
        return False

    opening = quotes[::2]
    closing = quotes[1::2]
    # Before the very first character the index turns to the last one, a newline.
    is_plain = np.isin(characters[opening - 1], list(b",\n")).all()
    is_plain &= np.isin(characters[closing + 1], list(b",\r\n")).all()
    ends = np.flatnonzero(characters == ord("\n"))

    return bool(is_plain and (ends.searchsorted(opening) == ends.searchsorted(closing)).all())


def _parse_lines(text: bytes, form: TraceFormat, names: list[str], split: Split) -> Cells:
    rows = [split(line) if line.strip() else BLANK for line in _lines_of(text)]
    faults = np.array([row if isinstance(row, str) else None for row in rows], object)
    columns = {}
    for target, name in form.sources(names).items():
        values = [None if isinstance(row, str) else row.get(name) for row in rows]
        if target == HASH_IDS:
            for index, value in enumerate(values):
                if value is None:
                    continue
                is_list = isinstance(value, list) and set(map(type, value)) <= {int}
                if not is_list or (value and not (min(value) >= 0 and max(value) < 2**63)):
                    values[index] = None
                    faults[index] = f"{name}: not a list of whole numbers from 0 on"
            columns[target] = pa.array(values, COLUMN_TYPES[HASH_IDS])
        else:
            is_text = (str, type(None))
            texts = [cell if isinstance(cell, is_text) else json.dumps(cell) for cell in values]
            columns[target] = pa.array(texts, pa.string())

    return _typed(columns, form, faults)


def _split(names: list[str], line: str) -> dict[str, Any] | str:
    """Return the cells of a line of CSV, or what is wrong with the line."""
    if '"' not in line:
        cells = line.split(",")
    elif _QUOTED_LINE.fullmatch(line):
        cells = [
            cell[1:-1].replace('""', '"') if cell.startswith('"') else cell
            for cell in _NEXT_CELL.findall("," + line)
        ]
    else:
        return "malformed quotes"
    return dict(zip(names, cells, strict=True)) if len(cells) == len(names) else _WRONG_NUMBER


def _json_object(line: str) -> dict[str, Any] | str:
    """Return the values of a line's object by name, or what is wrong with the line."""
    try:
        value = json.loads(line)
        if "\\u" in line:
            json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is not text
        return _flat_object(value) if isinstance(value, dict) else "no JSON object"
    except (ValueError, RecursionError):
        return "no JSON object"


def _flat_object(row: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return an object without objects within it: dots lead into these."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        inner = _flat_object(value, f"{above}{name}.") if isinstance(value, dict) else {}
        flat |= inner or {above + name: value}
    return flat


def _flat(table: pa.Table) -> pa.Table:
    """Return a table without structs: a dot leads to the name of a column within one."""
    while any(pa.types.is_struct(kind) for kind in table.schema.types):
        table = table.flatten()
    return table


def _typed(columns: Mapping[str, pa.Array], form: TraceFormat, line_faults: np.ndarray) -> Cells:
    """Bring cells to the types that the rules judge; other types are read as trimmed texts."""
    typed = dict[str, pa.Array]()
    unreadable = {}
    zones = np.full(len(line_faults), UNKNOWN)
    for name, column in columns.items():
        # "5.0" is a whole number too.
        wanted = pa.float64() if COLUMN_TYPES[name] == pa.int32() else COLUMN_TYPES[name]
        if name == "arrival_s" and form.is_datetime:
            wanted = pa.int64()
        elif wanted == pa.float64() and pa.types.is_integer(column.type):
            column = column.cast(wanted, safe=False)
        if column.type != wanted or wanted == pa.string():
            column = pc.utf8_trim_whitespace(column.cast(pa.string()))
            column = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
        if wanted == pa.int64():
            typed[name], zones = read_date_times(column)
        elif name in trace_format.CODED_COLUMNS:
            typed[name] = column.dictionary_encode()
        else:
            typed[name] = column if column.type == wanted else _read_texts(column, wanted)
        unreadable[name] = is_null(typed[name]) & ~is_null(column)

    return Cells(typed, unreadable, zones, line_faults)


def _read_texts(texts: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Read texts as numbers or truth values; null where one is not."""
    with suppress(pa.ArrowInvalid):
        return texts.cast(wanted)

    values: list[float | bool | None] = []
    for text in texts.to_pylist():
        value: float | bool | None = None
        if text is not None and wanted != pa.float64():
            value = _TRUTHS.get(text.lower())
        elif text is not None and text.isascii():
            with suppress(ValueError):
                value = float(text)
        values.append(value)
    return pa.array(values, wanted)
