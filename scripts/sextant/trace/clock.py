"""What depends on the lines before: line numbers, and one kind of date-time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sextant.trace.date_times import UNKNOWN, UNZONED, ZONED
from sextant.trace.rules import Judged, is_accepted

REJECTED = pa.schema({"line": pa.int64(), "reason": pa.string(), "raw": pa.string()})


@dataclass(frozen=True)
class Rows:
    """Consecutive lines of a source: rows of the trace, and lines that are set aside."""

    columns: Mapping[str, pa.Array]
    """Trace column -> (n,) values of the accepted rows; absent: all null."""
    tick: np.ndarray
    """(n,) arrival in the source's unit, float64, or int64 for date-times."""
    is_zoned: bool | None
    """Whether the date-times have a zone; None: arrivals are numbers, or none could be read."""
    rejected: pa.Table | None
    """The other lines, as `REJECTED`; None: all were accepted."""


@dataclass
class Clock:
    """How far the reading of a source has come."""

    arrival_name: str
    """The source's column of arrivals."""
    next_line: int
    is_zoned: bool | None = None

    def settle(self, judged: Judged, raw: Callable[[np.ndarray], list[str]]) -> Rows:
        """Apply the rules that look at the lines before to the next lines, and move behind these.

        `raw` gives the raw text of lines by their places in `judged`. A request without an id gets
        its line's number.
        """
        reasons, tick, n_lines = judged.reasons.copy(), judged.tick, len(judged.tick)
        self._judge_zones(judged.zones, reasons)
        accepted = is_accepted(reasons)
        columns, rejected = dict(judged.columns), None
        columns["request_id"] = self._ids(columns.get("request_id"), n_lines)
        places = np.flatnonzero(~accepted)
        if len(places):
            lines = [places + self.next_line, reasons[places], raw(places)]
            rejected = pa.table(lines, schema=REJECTED)
            columns = {name: values.filter(accepted) for name, values in columns.items()}
            tick = tick[accepted]
        self.next_line += n_lines
        return Rows(columns, tick, self.is_zoned, rejected)

    def _judge_zones(self, zones: np.ndarray, reasons: np.ndarray) -> None:
        """Set aside what is unlike the first readable date-time: before all other reasons."""
        known = zones[zones != UNKNOWN]
        if self.is_zoned is None and len(known):
            self.is_zoned = bool(known[0] == ZONED)
        if self.is_zoned:
            problem, is_unlike = "has no time zone, the first row's has one", zones == UNZONED
        else:
            problem, is_unlike = "has a time zone, the first row's has none", zones == ZONED
        reasons[is_unlike] = f"{self.arrival_name}: {problem}"

    def _ids(self, given: pa.Array | None, n_lines: int) -> pa.Array:
        if given is not None and not given.null_count:
            return given
        numbers = pa.array(np.arange(self.next_line, self.next_line + n_lines)).cast(pa.string())
        return numbers if given is None else pc.coalesce(given, numbers)
