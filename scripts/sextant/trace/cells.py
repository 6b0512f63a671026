"""The cells of a source's lines, typed: what each line says, before any rule judges it.

Arrow parses a block of CSV at once. A block with an odd cell is parsed as texts, which are read
one by one; a block in which it is unclear where a cell ends is split line by line.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from sextant.trace.date_times import UNKNOWN, is_null, read_date_times
from sextant.trace.trace_format import (
    BLANK,
    CODED,
    CODED_COLUMNS,
    COLUMN_TYPES,
    HASH_IDS,
    NEEDED_COLUMNS,
    TraceFormat,
)

_TRUTHS = dict.fromkeys(("true", "t", "yes", "y", "1"), True)
_TRUTHS |= dict.fromkeys(("false", "f", "no", "n", "0"), False)
_WRONG_NUMBER = "wrong number of columns"
_CELL = '("(?:[^"]|"")*"|[^,"]*)'
_QUOTED_LINE, _NEXT_CELL = re.compile(f"{_CELL}(?:,{_CELL})*"), re.compile(f",{_CELL}")


@dataclass(frozen=True)
class Cells:
    """The cells of n consecutive lines."""

    columns: Mapping[str, pa.Array]
    """Trace column -> (n,) values, null where a cell is empty or unreadable. Numbers are float64,
    date-times int64 nanoseconds since 1970 (UTC), others as in `COLUMN_TYPES` or `CODED`."""
    unreadable: Mapping[str, np.ndarray]
    """Trace column -> (n,) whether a cell's text is not of the column's type."""
    zones: np.ndarray
    """(n,) `ZONED`, `UNZONED` or, if a date-time is unreadable or a number, `UNKNOWN`."""
    line_faults: np.ndarray
    """(n,) what is wrong with a line as a whole; None: nothing."""


def read_csv(text: bytes, form: TraceFormat, names: list[str]) -> Cells:
    """Read whole lines of UTF-8 CSV without their header; `names` are the source's columns."""
    sources = form.sources(names)
    n_lines = np.count_nonzero(np.frombuffer(text, np.uint8) == ord("\n"))
    for types in ({name: _parsed_type(form, target) for target, name in sources.items()}, {}):
        faults: dict[int, str] = {}
        try:
            table = _parse(text, names, list(sources.values()), types, faults)
        except pa.ArrowInvalid:
            continue  # a cell is not of its type: all as texts, which are then read one by one
        if len(table) + len(faults) == n_lines:
            return _of_table(text, table, form, sources, faults)
    return _read_lines(text, form, names, lambda line: _split(line, names))


def read_json(text: bytes, form: TraceFormat, names: list[str]) -> Cells:
    """Read lines of one JSON object each; arguments as of `read_csv`."""
    return _read_lines(text, form, names, json_object)


def read_batch(batch: pa.RecordBatch, form: TraceFormat) -> Cells:
    """Read rows of a Parquet file, its structs flattened."""
    columns = {}
    for target, name in form.sources(batch.schema.names).items():
        column, wanted = batch.column(name), _parsed_type(form, target)
        is_number = wanted == pa.float64() and (
            pa.types.is_integer(column.type) or column.type == wanted
        )
        if not is_number and column.type != wanted:
            column, wanted = column.cast(pa.string()), pa.string()
        columns[target] = _trimmed(column.cast(wanted, safe=False))
    return _typed(columns, form, np.full(batch.num_rows, None))


def lines_of(text: bytes) -> list[str]:
    """Return the lines of a block without their ends."""
    return [line.rstrip("\r") for line in text.decode().removesuffix("\n").split("\n")]


def _parse(
    text: bytes,
    names: list[str],
    wanted: list[str],
    types: Mapping[str, pa.DataType],
    faults: dict[int, str],
) -> pa.Table:
    """Parse lines of CSV at once; ArrowInvalid if a line's cells or a cell's type are unclear.

    The columns `wanted` of `names` are read, as text where `types` has none. `faults` gets the
    places of lines that are left out, and why.
    """
    # A carriage return alone ends a line for Arrow.
    has_quotes = b'"' in text
    is_plain = b"\r" not in text or text.count(b"\r") == text.count(b"\r\n")
    if not is_plain or (has_quotes and not _is_plainly_quoted(text)):
        raise pa.ArrowInvalid("not plain CSV")

    def leave_out(row: pa.csv.InvalidRow) -> str:
        faults[row.number - 1] = _WRONG_NUMBER if row.text.strip() else BLANK
        return "skip"

    return pa.csv.read_csv(
        pa.BufferReader(text),
        pa.csv.ReadOptions(use_threads=False, column_names=names, block_size=len(text) + 1),
        pa.csv.ParseOptions(
            quote_char='"' if has_quotes else False,
            ignore_empty_lines=False,
            invalid_row_handler=leave_out,
        ),
        pa.csv.ConvertOptions(
            check_utf8=False,
            column_types={name: types.get(name, pa.string()) for name in wanted},
            include_columns=wanted,
            null_values=[""],
            strings_can_be_null=True,
            true_values=["true", "True", "TRUE", "1"],
            false_values=["false", "False", "FALSE", "0"],
        ),
    )


def _of_table(
    text: bytes,
    table: pa.Table,
    form: TraceFormat,
    sources: Mapping[str, str],
    faults: Mapping[int, str],
) -> Cells:
    """Return the cells of parsed lines, with a row of nulls for each line that was left out."""
    line_faults = np.full(len(table) + len(faults), None)
    for place, fault in faults.items():
        line_faults[place] = fault
    columns = {name: table[source].combine_chunks() for name, source in sources.items()}
    if faults:
        is_kept = np.equal(line_faults, np.array(None)).astype(bool)
        places = pa.array(np.cumsum(is_kept) - 1, mask=~is_kept)
        columns = {name: column.take(places) for name, column in columns.items()}
    if all(columns[name].null_count > len(faults) for name in NEEDED_COLUMNS):
        # Arrow reads a blank line as a row of nulls.
        for place, line in enumerate(lines_of(text)):
            if not line.strip():
                line_faults[place] = BLANK
    return _typed({name: _trimmed(column) for name, column in columns.items()}, form, line_faults)


def _is_plainly_quoted(text: bytes) -> bool:
    """Return whether quotes only stand around whole cells, in pairs, on one line."""
    characters = np.frombuffer(text, np.uint8)
    quotes = np.flatnonzero(characters == ord('"'))
    if len(quotes) % 2:
        return False
    opening, closing = quotes[::2], quotes[1::2]
    # Before the very first character the index turns to the last one, a newline.
    is_plain = np.isin(characters[opening - 1], list(b",\n")).all()
    is_plain &= np.isin(characters[closing + 1], list(b",\r\n")).all()
    ends = np.flatnonzero(characters == ord("\n"))
    return bool(is_plain and (ends.searchsorted(opening) == ends.searchsorted(closing)).all())


def _parsed_type(form: TraceFormat, name: str) -> pa.DataType:
    if name == "arrival_s" and form.is_datetime:
        return pa.string()
    if COLUMN_TYPES[name] == pa.int32():
        return pa.float64()  # "5.0" is a whole number too
    return CODED if name in CODED_COLUMNS else COLUMN_TYPES[name]


def _trimmed(column: pa.Array) -> pa.Array:
    """Drop white space around texts; a text of nothing else is null."""
    if column.type == CODED:
        texts = _trimmed(column.dictionary)
        if texts.equals(column.dictionary):
            return column
        return texts.take(column.indices).dictionary_encode()
    if column.type != pa.string():
        return column
    texts = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def _split(line: str, names: list[str]) -> dict[str, Any] | str:
    if '"' not in line:
        cells = line.split(",")
    elif _QUOTED_LINE.fullmatch(line):
        cells = [
            cell[1:-1].replace('""', '"') if cell.startswith('"') else cell
            for cell in _NEXT_CELL.findall("," + line)
        ]
    else:
        return "malformed quotes"
    if len(cells) != len(names):
        return _WRONG_NUMBER
    return dict(zip(names, cells, strict=True))


def json_object(line: str) -> dict[str, Any] | str:
    """Return the object of a line, or what is wrong with the line."""
    try:
        value = json.loads(line)
        if "\\u" in line:
            json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is not text
    except (ValueError, RecursionError):
        return "no JSON object"
    return value if isinstance(value, dict) else "no JSON object"


def _read_lines(
    text: bytes,
    form: TraceFormat,
    names: list[str],
    split: Callable[[str], dict[str, Any] | str],
) -> Cells:
    """Read lines one by one; `split` gives a line's cells, or its fault."""
    lines = lines_of(text)
    rows = [split(line) if line.strip() else BLANK for line in lines]
    faults = np.array([row if isinstance(row, str) else None for row in rows], object)
    columns, sources = {}, form.sources(names)
    ids_column = sources.pop(HASH_IDS, None)
    for target, name in sources.items():
        cells = [None if isinstance(row, str) else _text(value_of(row, name)) for row in rows]
        texts = pa.array(cells, pa.string())
        columns[target] = texts.dictionary_encode() if target in CODED_COLUMNS else texts
    if ids_column is not None:
        ids = [None if isinstance(row, str) else value_of(row, ids_column) for row in rows]
        for place, value in enumerate(ids):
            if value is not None and not _are_ids(value):
                ids[place], faults[place] = (
                    None,
                    f"{ids_column}: not a list of whole numbers from 0 on",
                )
        columns[HASH_IDS] = pa.array(ids, COLUMN_TYPES[HASH_IDS])
    return _typed(columns, form, faults)


def _are_ids(value: Any) -> bool:
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        return False
    return not value or (min(value) >= 0 and max(value) < 2**63)


def leaves(row: Mapping[str, Any], above: str = "") -> list[str]:
    """Return the names of all values of a JSON object, dots leading into objects within it."""
    names = []
    for name, value in row.items():
        inner = leaves(value, f"{above}{name}.") if isinstance(value, dict) else []
        names += inner or [above + name]
    return names


def value_of(row: Mapping[str, Any], name: str) -> Any:
    """Return the value of a name that may lead into objects within a row; None: nothing."""
    if name in row:
        return row[name]
    outer, _, inner = name.partition(".")
    within = row.get(outer)
    return value_of(within, inner) if inner and isinstance(within, dict) else None


def _text(cell: Any) -> str | None:
    """Return what a cell of a CSV line or a value of a JSON line says; None: nothing."""
    if cell is None:
        return None
    text = cell if isinstance(cell, str) else json.dumps(cell)
    return text.strip() or None


def _typed(columns: Mapping[str, pa.Array], form: TraceFormat, line_faults: np.ndarray) -> Cells:
    """Read the cells that are still texts and should be something else."""
    typed, unreadable = dict(columns), {}
    zones = np.full(len(line_faults), UNKNOWN)
    for name, column in columns.items():
        wanted = _parsed_type(form, name)
        if name == "arrival_s" and form.is_datetime:
            typed[name], zones = read_date_times(column)
        elif column.type == pa.string() and wanted in _READ:
            typed[name] = _converted(column, wanted)
        unreadable[name] = is_null(typed[name]) & ~is_null(column)
    return Cells(typed, unreadable, zones, line_faults)


def _converted(texts: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Read texts as numbers or truth values; null where one is not."""
    try:
        return texts.cast(wanted)
    except pa.ArrowInvalid:
        read = _READ[wanted]
        return pa.array(
            [None if text is None else read(text) for text in texts.to_pylist()], wanted
        )


def _number(text: str) -> float | None:
    try:
        return float(text) if text.isascii() else None
    except ValueError:
        return None


_READ: Mapping[pa.DataType, Callable[[str], Any]] = {
    pa.float64(): _number,
    pa.bool_(): lambda text: _TRUTHS.get(text.lower()),
}
