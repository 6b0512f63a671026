"""The cells of a source's lines, typed: what each line says, before any rule judges it.

Arrow parses many lines of CSV at once, but refuses them all for one odd cell or line. They are
then halved, until few lines are left, which are split one by one.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from sextant.ingest.start import FIRST_NS, LAST_NS, NS_PER_S
from sextant.ingest.trace_format import (
    BLANK,
    CODED,
    CODED_COLUMNS,
    NEEDED_COLUMNS,
    TRACE_COLUMNS,
    TraceFormat,
)

UNKNOWN, UNZONED, ZONED = -1, 0, 1
_TRUTHS = dict.fromkeys(("true", "t", "yes", "y", "1"), True)
_TRUTHS |= dict.fromkeys(("false", "f", "no", "n", "0"), False)
_DATETIME = re.compile(
    r"((?:1[7-9]|2[01])\d\d)(?P<mark>[-/])(\d\d?)(?P=mark)(\d\d?)"
    r"(?:(?: +|T)(\d\d?):(\d\d)(?::(\d\d)(?:\.(\d*))?)?)?"
    r" ?(?:(Z|UTC)|([+-])([01]\d|2[0-3])(?::?([0-5]\d))?)?",
    re.ASCII,
)
_SHORTEST_DATETIME = {UNZONED: len("2023-11-16 18:15"), ZONED: len("2023-11-16 18:15:46Z")}
_FEW_BYTES = 4096
"""Lines of CSV that are split one by one where Arrow refuses them."""
_CELL = '("(?:[^"]|"")*"|[^,"]*)'
_QUOTED_LINE, _NEXT_CELL = re.compile(f"{_CELL}(?:,{_CELL})*"), re.compile(f",{_CELL}")


@dataclass(frozen=True)
class Cells:
    """The cells of n consecutive lines."""

    columns: Mapping[str, pa.Array]
    """Trace column -> (n,) values, null where a cell is empty or unreadable. Numbers are float64,
    date-times int64 nanoseconds since 1970 (UTC), others as in `TRACE_COLUMNS` or `CODED`."""
    unreadable: Mapping[str, np.ndarray]
    """Trace column -> (n,) whether a cell's text is not of the column's type."""
    zones: np.ndarray
    """(n,) `ZONED`, `UNZONED` or, if a date-time is unreadable or a number, `UNKNOWN`."""
    line_faults: np.ndarray
    """(n,) what is wrong with a line as a whole; None: nothing."""


def read_csv(text: bytes, form: TraceFormat, names: list[str]) -> Cells:
    """Read lines of CSV.

    Args:
        text: whole lines of UTF-8, without the header.
        form: the format of the source.
        names: the source's columns, in its order.
    """
    try:
        return _parse(text, form, names)
    except pa.ArrowInvalid:
        cut = text.find(b"\n", len(text) // 2) + 1
        if len(text) <= _FEW_BYTES or cut == len(text):
            return _read_lines(text, form, names, lambda line: _split(line, names))
        return _joined([read_csv(part, form, names) for part in (text[:cut], text[cut:])])


def read_json(text: bytes, form: TraceFormat, names: list[str]) -> Cells:
    """Read lines of one JSON object each; arguments as of `read_csv`."""
    return _read_lines(text, form, names, _json_object)


def read_batch(batch: pa.RecordBatch, form: TraceFormat) -> Cells:
    """Read rows of a Parquet file."""
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


def _parse(text: bytes, form: TraceFormat, names: list[str]) -> Cells:
    """Parse lines of CSV at once; ArrowInvalid if one of them is odd."""
    # A carriage return alone ends a line for Arrow.
    has_quotes = b'"' in text
    is_plain = text.count(b"\r") == text.count(b"\r\n")
    if not is_plain or (has_quotes and not _is_plainly_quoted(text)):
        raise pa.ArrowInvalid("not plain CSV")
    sources = form.sources(names)
    table = pa.csv.read_csv(
        pa.BufferReader(text),
        pa.csv.ReadOptions(use_threads=False, column_names=names, block_size=len(text) + 1),
        pa.csv.ParseOptions(quote_char='"' if has_quotes else False, ignore_empty_lines=False),
        pa.csv.ConvertOptions(
            check_utf8=False,
            column_types={name: _parsed_type(form, target) for target, name in sources.items()},
            include_columns=list(sources.values()),
            null_values=[""],
            strings_can_be_null=True,
            true_values=["true", "True", "TRUE", "1"],
            false_values=["false", "False", "FALSE", "0"],
        ),
    )
    # A blank line is a row without values here.
    if any(table[sources[name]].null_count for name in NEEDED_COLUMNS):
        raise pa.ArrowInvalid("a value is missing")
    columns = {name: _trimmed(table[source].combine_chunks()) for name, source in sources.items()}
    return _typed(columns, form, np.full(len(table), None))


def _joined(parts: Sequence[Cells]) -> Cells:
    """Return the cells of successive lines as one."""
    names = parts[0].columns
    return Cells(
        {name: pa.concat_arrays([part.columns[name] for part in parts]) for name in names},
        {name: np.concatenate([part.unreadable[name] for part in parts]) for name in names},
        np.concatenate([part.zones for part in parts]),
        np.concatenate([part.line_faults for part in parts]),
    )


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
    if TRACE_COLUMNS[name] == pa.int32():
        return pa.float64()  # "5.0" is a whole number too
    return CODED if name in CODED_COLUMNS else TRACE_COLUMNS[name]


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
    """Return a CSV line's cells by column, or what is wrong with it."""
    if '"' not in line:
        cells = line.split(",")
    elif _QUOTED_LINE.fullmatch(line):
        cells = [_unquoted(cell) for cell in _NEXT_CELL.findall("," + line)]
    else:
        return "malformed quotes"
    if len(cells) != len(names):
        return "wrong number of columns"
    return dict(zip(names, cells, strict=True))


def _unquoted(cell: str) -> str:
    return cell[1:-1].replace('""', '"') if cell.startswith('"') else cell


def _json_object(line: str) -> dict[str, Any] | str:
    """Return a JSON line's values by key, or what is wrong with it."""
    try:
        found = json.loads(line)
        if "\\u" in line:
            json.dumps(found, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError):
        return "no JSON object"
    return found if isinstance(found, dict) else "no JSON object"


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
    columns = {}
    for target, name in form.sources(names).items():
        cells = [None if isinstance(row, str) else _text(row.get(name)) for row in rows]
        texts = pa.array(cells, pa.string())
        columns[target] = texts.dictionary_encode() if target in CODED_COLUMNS else texts
    return _typed(columns, form, faults)


def _text(cell: Any) -> str | None:
    """Return what a cell of a CSV line or a value of a JSON line says; None: nothing."""
    if cell is None:
        return None
    text = cell if isinstance(cell, str) else json.dumps(cell)
    return text.strip() or None


def _typed(columns: Mapping[str, pa.Array], form: TraceFormat, line_faults: np.ndarray) -> Cells:
    """Read the cells that are still texts and should be something else."""
    found, unreadable = dict(columns), {}
    zones = np.full(len(line_faults), UNKNOWN)
    for name, column in columns.items():
        wanted = _parsed_type(form, name)
        if name == "arrival_s" and form.is_datetime:
            found[name], zones = _moments(column)
        elif column.type == pa.string() and wanted in _READ:
            values = [None if text is None else _READ[wanted](text) for text in column.to_pylist()]
            found[name] = pa.array(values, wanted)
        unreadable[name] = is_null(found[name]) & ~is_null(column)
    return Cells(found, unreadable, zones, line_faults)


def is_null(column: pa.Array) -> np.ndarray:
    """Return (n,) whether a value is missing."""
    return column.is_null().to_numpy(zero_copy_only=False)


def _number(text: str) -> float | None:
    try:
        return float(text) if text.isascii() else None
    except ValueError:
        return None


_READ: Mapping[pa.DataType, Callable[[str], Any]] = {
    pa.float64(): _number,
    pa.bool_(): lambda text: _TRUTHS.get(text.lower()),
}


def _moments(texts: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return nanoseconds since 1970 (UTC) and zones of date-times; null where unreadable."""
    for zone, kind in ((UNZONED, pa.timestamp("ns")), (ZONED, pa.timestamp("ns", "UTC"))):
        try:
            moments = texts.cast(kind).cast(pa.int64())
        except pa.ArrowInvalid:
            continue
        # Arrow also takes hours without minutes, and years that nanoseconds do not hold.
        shortest, ends = pc.min(pc.binary_length(texts)).as_py(), pc.min_max(moments).as_py()
        if shortest is None or shortest < _SHORTEST_DATETIME[zone]:
            continue
        if ends["min"] >= FIRST_NS and ends["max"] <= LAST_NS:
            return moments, np.where(is_null(moments), UNKNOWN, zone)
    read = [(None, UNKNOWN) if text is None else _moment(text) for text in texts.to_pylist()]
    moments, zones = zip(*read, strict=True) if read else ((), ())
    return pa.array(moments, pa.int64()), np.array(zones, int)


def _moment(text: str) -> tuple[int | None, int]:
    """Return a date-time's nanoseconds since 1970 (UTC), None if it is not one, and its zone."""
    match = _DATETIME.fullmatch(text)
    if match is None:
        return None, UNKNOWN
    year, _, month, day, hour, *parts, fraction, utc, sign, hours, minutes = match.groups()
    minute, second = (int(part or 0) for part in parts)
    is_midnight = hour == "24" and not minute and not second  # of the day that follows
    try:
        date = datetime(int(year), int(month), int(day)) + timedelta(days=is_midnight)
        moment = date.replace(
            hour=0 if is_midnight else int(hour or 0), minute=minute, second=second
        )
    except ValueError:
        return None, UNKNOWN
    if sign:
        offset = timedelta(hours=int(hours), minutes=int(minutes or 0))
        moment += offset if sign == "-" else -offset
    seconds = (moment - datetime(1970, 1, 1)) // timedelta(seconds=1)
    ns = seconds * NS_PER_S + int((fraction or "")[:9].ljust(9, "0"))
    return ns, ZONED if utc or sign else UNZONED
