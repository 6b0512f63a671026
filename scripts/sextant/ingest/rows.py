"""What a block of a source has come to: rows of the trace, and lines that are set aside."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sextant.trace_format import TRACE_COLUMNS

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
    """Consecutive lines of a source, checked."""

    columns: Mapping[str, pa.Array]
    """Trace column -> its (n,) values in the accepted rows; absent: all null."""
    tick: np.ndarray
    """(n,) arrival in the source's unit, float64, or int64 for date-times; never decreasing."""
    is_zoned: bool | None
    """Whether the date-times have a zone; None: arrivals are numbers, or none could be read."""
    n_lines: int
    rejected: pa.Table | None = None
    """`line`, `reason` and `raw` of the other lines."""


@dataclass
class Clock:
    """How far the reading of a source has come."""

    next_line: int
    latest_tick: float | None = None
    is_zoned: bool | None = None

    def precedes(self, rows: Rows) -> bool:
        """Return whether `rows` may follow: not back in time, and with zones as before."""
        is_later = self.latest_tick is None or rows.tick[0] >= self.latest_tick
        return is_later and self.is_zoned in (None, rows.is_zoned)

    def advance(self, rows: Rows) -> None:
        """Move behind `rows`."""
        self.next_line += rows.n_lines
        if len(rows.tick):
            self.latest_tick = rows.tick[-1].item()
        if self.is_zoned is None:
            self.is_zoned = rows.is_zoned
