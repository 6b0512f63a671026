"""What a block of a source has come to: rows of the trace, and lines that are set aside."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sextant.ingest.trace_format import TRACE_COLUMNS

CODED = pa.dictionary(pa.int32(), pa.string())
"""Type of the columns that hold few different texts."""
_CODED_COLUMNS = ("llm", "service", "status")
_ARROW_TYPES = {
    "VARCHAR": pa.string(),
    "DOUBLE": pa.float64(),
    "INTEGER": pa.int32(),
    "BOOLEAN": pa.bool_(),
}
_NEVER_NULL = ("request_id", "arrival_s", "input_tokens", "output_tokens", "status")
SCHEMA = pa.schema(
    pa.field(
        name,
        CODED if name in _CODED_COLUMNS else _ARROW_TYPES[sql_type],
        nullable=name not in _NEVER_NULL,
    )
    for name, sql_type in TRACE_COLUMNS.items()
)
"""The trace contract as Arrow has it."""


@dataclass(frozen=True)
class Rows:
    """Consecutive lines of a source, checked. Lines count from 0 until the rows are `placed`."""

    columns: Mapping[str, pa.Array]
    """Trace column -> its (n,) values in the accepted rows; absent: all null."""
    tick: np.ndarray
    """(n,) arrival in the source's unit, float64, or int64 for date-times; never decreasing."""
    is_zoned: bool | None
    """Whether the date-times have a zone; None: arrivals are numbers, or none could be read."""
    n_lines: int
    line: np.ndarray | None = None
    """(n,) line of each accepted row; None: every line is one."""
    rejected: pa.Table | None = None
    """`line`, `reason` and `raw` of the other lines."""


@dataclass
class Clock:
    """How far the reading of a source has come."""

    next_line: int
    latest_tick: float | None = None
    is_zoned: bool | None = None

    def precedes(self, rows: Rows) -> bool:
        """Return whether `rows` are right here too: not back in time, with zones as before."""
        is_later = (
            self.latest_tick is None or not len(rows.tick) or rows.tick[0] >= self.latest_tick
        )
        return is_later and (self.is_zoned is None or rows.is_zoned in (None, self.is_zoned))

    def advance(self, rows: Rows) -> None:
        """Move behind `rows`."""
        self.next_line += rows.n_lines
        if len(rows.tick):
            self.latest_tick = rows.tick[-1].item()
        if self.is_zoned is None:
            self.is_zoned = rows.is_zoned


def placed(rows: Rows, first_line: int) -> Rows:
    """Count the lines from `first_line` on; a request without an id gets its line's number."""
    columns, rejected = dict(rows.columns), rows.rejected
    given = columns.get("request_id")
    if given is None or given.null_count:
        if rows.line is None:
            numbers = _decimals(first_line, rows.n_lines)
        else:
            numbers = pa.array(rows.line + first_line).cast(pa.string())
        columns["request_id"] = numbers if given is None else pc.coalesce(given, numbers)
    if rejected is not None:
        rejected = rejected.set_column(0, "line", pc.add(rejected["line"], first_line))
    return replace(rows, columns=columns, rejected=rejected)


def _decimals(first: int, n: int) -> pa.Array:
    """Return `n` whole numbers from `first` on as texts."""
    width = len(str(first))
    if width < 5 or len(str(first + n - 1)) != width:
        return pa.array(np.arange(first, first + n)).cast(pa.string())
    # Texts of one length are a matrix of characters, whose last four columns repeat: filled
    # by the ten thousand, it is done in a tenth of the time that Arrow's cast takes.
    texts = np.empty((n, width), np.uint8)
    for high in range(first // 10_000, (first + n - 1) // 10_000 + 1):
        start, end = max(first, high * 10_000), min(first + n, (high + 1) * 10_000)
        rows = texts[start - first : end - first]
        rows[:, :-4] = np.frombuffer(b"%d" % high, np.uint8)
        rows[:, -4:] = _four_digits()[start - high * 10_000 : end - high * 10_000]
    offsets = np.arange(0, (n + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(n, pa.py_buffer(offsets), pa.py_buffer(texts))


@cache
def _four_digits() -> np.ndarray:
    """Return (10000, 4): the characters of 0000 to 9999."""
    texts = np.array([b"%04d" % number for number in range(10_000)])
    return texts.view(np.uint8).reshape(-1, 4)
