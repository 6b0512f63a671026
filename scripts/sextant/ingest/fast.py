"""The short way of a block of CSV: one typed parse, for blocks in which nothing is wrong.

Most blocks of most traces are perfect. What this module accepts it reads exactly as the checks
of `ingest.trace_format` would; at the first doubt it returns None, and those name the fault.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from sextant.ingest.rows import CODED, SCHEMA, Rows
from sextant.ingest.start import FIRST_NS, LAST_NS
from sextant.ingest.trace_format import MAX_INT32, MINIMUM, NEEDED_COLUMNS, TraceFormat

_STATUSES = pa.array(["ok", "failed"])
_DATETIME_LENGTH, _ZONED_LENGTH = len("2023-11-16 18:15"), len("2023-11-16 18:15:46Z")


class _Doubt(Exception):
    """Something in the block is for the checks to judge."""


def read_perfect(text: bytes, form: TraceFormat, names: list[str]) -> Rows | None:
    """Read a block of CSV lines, None if anything about it is not plain and right.

    Args:
        text: whole lines of UTF-8, without the header.
        form: the format of the source.
        names: the source's columns, in its order.
    """
    sources = {target: name for name, target in form.columns.items() if target and name in names}
    try:
        cells = _parse(text, form, names, sources)
        tick, is_zoned = _ticks(cells.pop("arrival_s"), form.is_datetime)
        columns = {name: _column(cell, name, form) for name, cell in cells.items()}
        columns["status"] = _status(columns.get("status"), columns["output_tokens"])
    except (_Doubt, pa.ArrowInvalid):
        return None
    return Rows(columns, tick, is_zoned, n_lines=len(tick))


def _parse(
    text: bytes, form: TraceFormat, names: list[str], sources: Mapping[str, str]
) -> dict[str, pa.Array]:
    # A carriage return alone ends a line here, but not for the checks.
    _doubt_if(b"\r" in text and text.count(b"\r") != text.count(b"\r\n"))
    has_quotes = b'"' in text
    _doubt_if(has_quotes and not _is_plainly_quoted(text))
    table = pa.csv.read_csv(
        pa.BufferReader(text),
        pa.csv.ReadOptions(use_threads=False, column_names=names, block_size=len(text) + 1),
        pa.csv.ParseOptions(quote_char='"' if has_quotes else False, ignore_empty_lines=False),
        pa.csv.ConvertOptions(
            check_utf8=False,
            column_types={name: _cell_type(form, target) for target, name in sources.items()},
            include_columns=list(sources.values()),
            null_values=[""],
            strings_can_be_null=True,
            true_values=["true", "True", "TRUE", "1"],
            false_values=["false", "False", "FALSE", "0"],
        ),
    )
    _doubt_if(len(table) == 0)
    return {target: table[name].combine_chunks() for target, name in sources.items()}


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


def _cell_type(form: TraceFormat, name: str) -> pa.DataType:
    if name == "arrival_s" and form.is_datetime:
        return pa.string()
    # Whole numbers too are read as floats, as the checks do: "5.0" is one.
    return pa.float64() if SCHEMA.field(name).type == pa.int32() else SCHEMA.field(name).type


def _ticks(cell: pa.Array, is_datetime: bool) -> tuple[np.ndarray, bool | None]:
    _doubt_if(cell.null_count > 0)
    tick, is_zoned = _moments(cell) if is_datetime else (cell.to_numpy(), None)
    lowest, highest = (FIRST_NS, LAST_NS) if is_datetime else (0, np.finfo(float).max)
    # A NaN compares false.
    _doubt_if(not (tick[0] >= lowest and tick[-1] <= highest and (tick[1:] >= tick[:-1]).all()))
    return tick, is_zoned


def _moments(cell: pa.Array) -> tuple[np.ndarray, bool]:
    # Arrow also takes hours without minutes, which the checks refuse: those are shorter.
    try:
        moments, is_zoned = cell.cast(pa.timestamp("ns")), False
    except pa.ArrowInvalid:
        moments, is_zoned = cell.cast(pa.timestamp("ns", "UTC")), True
    shortest = pc.min(pc.binary_length(cell)).as_py()
    _doubt_if(shortest < (_ZONED_LENGTH if is_zoned else _DATETIME_LENGTH))
    return moments.cast(pa.int64()).to_numpy(), is_zoned


def _column(cell: pa.Array, name: str, form: TraceFormat) -> pa.Array:
    if cell.type == pa.float64():
        return _number(cell, name, form.factors.get(name, 1.0))
    texts = cell.dictionary if cell.type == CODED else cell
    if texts.type == pa.string():
        # The checks trim cells.
        _doubt_if(pc.any(pc.not_equal(texts, pc.utf8_trim_whitespace(texts))).as_py())
    return cell


def _number(cell: pa.Array, name: str, factor: float) -> pa.Array:
    _doubt_if(cell.null_count > 0 and name in NEEDED_COLUMNS)
    is_whole = SCHEMA.field(name).type == pa.int32()
    given = cell.drop_null().to_numpy()
    highest = MAX_INT32 if is_whole else np.finfo(float).max
    # A NaN compares false.
    _doubt_if(len(given) and not (given.min() >= MINIMUM.get(name, 0) and given.max() <= highest))
    if is_whole:
        return cell.cast(pa.int32())  # refuses a fraction
    return cell if factor == 1.0 else pc.multiply(cell, factor)


def _status(given: pa.Array | None, output_tokens: pa.Array) -> pa.Array:
    has_failed = output_tokens.to_numpy() == 0
    if given is None:
        return pa.DictionaryArray.from_arrays(has_failed.astype(np.int32), _STATUSES)
    _doubt_if(given.null_count > 0 or not pc.all(pc.is_in(given.dictionary, _STATUSES)).as_py())
    says_ok = pc.equal(given.cast(pa.string()), "ok").to_numpy(zero_copy_only=False)
    _doubt_if((says_ok & has_failed).any())
    return given


def _doubt_if(is_doubtful: object) -> None:
    if is_doubtful:
        raise _Doubt
