"""Blocks of CSV, read to columns of texts.

Arrow parses a block at once; one in which it is unclear where a cell ends is split line by line.
"""

import re
from collections.abc import Collection, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv

from sextant.trace.cells import Block
from sextant.trace.documents import lines_of
from sextant.trace.trace_format import BLANK

WRONG_NUMBER = "wrong number of columns"
DELIMITERS = ",\t;|"
_MOST_JOINED = 10_000  # lines of one row


class _Patterns(NamedTuple):
    """How lines with quotes are split, for a delimiter."""

    line: re.Pattern[str]
    next_cell: re.Pattern[str]
    open_line: re.Pattern[str]  #: its last cell goes on in the next line


@cache
def _patterns(delimiter: str) -> _Patterns:
    mark = re.escape(delimiter)
    cell = f'("(?:[^"]|"")*"|[^{mark}"]*)'
    return _Patterns(
        re.compile(f"{cell}(?:{mark}{cell})*"),
        re.compile(f"{mark}{cell}"),
        re.compile(f'(?:{cell}{mark})*"(?:[^"]|"")*'),
    )


def delimiter_of(header: str) -> str:
    """Return what stands between the columns of a header: the most frequent mark, else a comma."""
    unquoted = re.sub(r'"[^"]*"', "", header)
    return max(DELIMITERS, key=unquoted.count)


def one_line_rows(blocks: Iterator[bytes], delimiter: str) -> Iterator[bytes]:
    """Yield blocks in which each row is one line: blanks stand for line breaks in quoted cells.

    A header that repeats, where files were put one after another, becomes a blank line.
    """
    header = b""
    is_open = _patterns(delimiter).open_line.fullmatch
    held: list[str] = []  # lines of a row that is not at its end
    for block in blocks:
        if not header:
            header = block.partition(b"\n")[0] + b"\n"
        elif block.startswith(header):
            block = b"\n" + block.removeprefix(header)
        block = block.replace(b"\n" + header, b"\n\n")
        if not held and (b'"' not in block or _is_plainly_quoted(block, delimiter)):
            yield block
            continue
        rows = []
        for line in lines_of(block):
            held.append(line)
            if is_open(('"' if len(held) > 1 else "") + line) and len(held) < _MOST_JOINED:
                continue
            rows += held if len(held) == _MOST_JOINED else [" ".join(held)]
            held = []
        if rows:
            yield "\n".join([*rows, ""]).encode()
    if held:
        yield "\n".join([*held, ""]).encode()


def parse_at_once(
    text: bytes,
    names: list[str],
    taken: list[str],
    needed: Collection[str],
    delimiter: str = ",",
) -> Block | None:
    """Read whole lines of CSV, not their header; None if it is unclear where a cell ends.

    Args:
        text: the block.
        names: the header.
        taken: the columns to read.
        needed: those without which a line may be a blank one.
        delimiter: what stands between cells.
    """
    has_quotes = b'"' in text
    # A carriage return alone ends a line for Arrow.
    is_plain = b"\r" not in text or text.count(b"\r") == text.count(b"\r\n")
    if not is_plain or (has_quotes and not _is_plainly_quoted(text, delimiter)):
        return None

    faults = dict[int, str]()

    def leave_out(row: pa.csv.InvalidRow) -> str:
        faults[row.number - 1] = WRONG_NUMBER if row.text.strip() else BLANK
        return "skip"

    try:
        table = pa.csv.read_csv(
            pa.BufferReader(text),
            pa.csv.ReadOptions(use_threads=False, column_names=names, block_size=len(text) + 1),
            pa.csv.ParseOptions(
                delimiter=delimiter,
                quote_char='"' if has_quotes else False,
                ignore_empty_lines=False,
                invalid_row_handler=leave_out,
            ),
            pa.csv.ConvertOptions(
                check_utf8=False,
                column_types=dict.fromkeys(taken, pa.string()),
                include_columns=taken,
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
    columns = {name: table[name].combine_chunks() for name in taken}
    if faults:  # a row of nulls for each line that was left out
        is_kept = np.equal(line_faults, np.array(None)).astype(bool)
        indices = pa.array(np.cumsum(is_kept) - 1, mask=~is_kept)
        columns = {name: column.take(indices) for name, column in columns.items()}
    if all(columns[name].null_count > len(faults) for name in needed):
        # Arrow reads a blank line as a row of nulls.
        for index, line in enumerate(lines_of(text)):
            if not line.strip():
                line_faults[index] = BLANK

    return Block(columns, line_faults)


def _is_plainly_quoted(text: bytes, delimiter: str) -> bool:
    """Return whether quotes only stand around whole cells, in pairs, on one line."""
    characters = np.frombuffer(text, np.uint8)
    quotes = np.flatnonzero(characters == ord('"'))
    if len(quotes) % 2:
        return False

    opening = quotes[::2]
    closing = quotes[1::2]
    # Before the very first character the index turns to the last one, a newline.
    is_plain = np.isin(characters[opening - 1], list(f"{delimiter}\n".encode())).all()
    is_plain &= np.isin(characters[closing + 1], list(f"{delimiter}\r\n".encode())).all()
    ends = np.flatnonzero(characters == ord("\n"))

    return bool(is_plain and (ends.searchsorted(opening) == ends.searchsorted(closing)).all())


def split_line(names: list[str], line: str, delimiter: str = ",") -> dict[str, str] | str:
    """Return the cells of a line of CSV, or what is wrong with the line."""
    if '"' not in line:
        cells = line.split(delimiter)
    elif _patterns(delimiter).line.fullmatch(line):
        cells = [
            cell[1:-1].replace('""', '"') if cell.startswith('"') else cell
            for cell in _patterns(delimiter).next_cell.findall(delimiter + line)
        ]
    else:
        return "malformed quotes"
    return dict(zip(names, cells, strict=True)) if len(cells) == len(names) else WRONG_NUMBER
