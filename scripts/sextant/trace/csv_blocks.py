"""Blocks of CSV, read to columns of texts.

Arrow parses a block at once; one in which it is unclear where a cell ends is split line by line.
"""

import re
from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.csv

from sextant.trace.cells import Block
from sextant.trace.documents import lines_of
from sextant.trace.trace_format import BLANK

WRONG_NUMBER = "wrong number of columns"
_CELL = '("(?:[^"]|"")*"|[^,"]*)'
_QUOTED_LINE = re.compile(f"{_CELL}(?:,{_CELL})*")
_NEXT_CELL = re.compile(f",{_CELL}")


def parse_at_once(
    text: bytes, names: list[str], taken: list[str], needed: Collection[str]
) -> Block | None:
    """Read whole lines of CSV, not their header; None if it is unclear where a cell ends.

    Args:
        text: the block.
        names: the header.
        taken: the columns to read.
        needed: those without which a line may be a blank one.
    """
    has_quotes = b'"' in text
    # A carriage return alone ends a line for Arrow.
    is_plain = b"\r" not in text or text.count(b"\r") == text.count(b"\r\n")
    if not is_plain or (has_quotes and not _is_plainly_quoted(text)):
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


def split_line(names: list[str], line: str) -> dict[str, str] | str:
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
    return dict(zip(names, cells, strict=True)) if len(cells) == len(names) else WRONG_NUMBER
