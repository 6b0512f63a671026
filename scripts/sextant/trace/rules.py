"""Which lines of a source are requests, and why others are set aside."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sextant.trace import trace_format
from sextant.trace.date_times import UNKNOWN, UNZONED, ZONED, is_null

REJECTED = pa.schema({"line": pa.int64(), "reason": pa.string(), "raw": pa.string()})
_WANTED = {pa.int64(): "not a date and time", pa.bool_(): "neither true nor false"}
_OK_WORDS = ("ok", "success", "succeeded", "successful", "completed", "true")
_FAILED_WORDS = (
    *("failed", "failure", "fail", "error", "errored", "timeout", "timed_out"),
    *("cancelled", "canceled", "aborted", "rejected", "false"),
)
_OK, _FAILED, _NONE, _UNKNOWN = range(4)
_WORDS = dict.fromkeys(_OK_WORDS, _OK) | dict.fromkeys(_FAILED_WORDS, _FAILED)
_HTTP_STATUS = re.compile(r"([1-9])\d\d(?:\.0+)?", re.ASCII)
NO_STATUS = "neither ok nor failed"
STATUSES = f"HTTP codes (2xx is ok), {', '.join(_OK_WORDS)} (ok), "
STATUSES += f"{', '.join(_FAILED_WORDS)} (failed)"
_TOKENS = ("input_tokens", "output_tokens")


class Cells(NamedTuple):
    """The cells of n consecutive lines, and which of them break a rule of their column."""

    columns: Mapping[str, pa.Array]
    """Trace column -> (n,) values, null where a cell is empty or unreadable. Numbers are float64,
    date-times int64 nanoseconds since 1970 (UTC), others as in `COLUMN_TYPES` or `CODED`."""
    unreadable: Mapping[str, np.ndarray]
    """Trace column -> (n,) whether a cell's text is not of the column's type."""
    zones: np.ndarray
    """(n,) `ZONED`, `UNZONED` or, if a date-time is unreadable or a number, `UNKNOWN`."""
    line_faults: np.ndarray  #: (n,) what is wrong with a line as a whole; None: nothing.

    def status_codes(self) -> np.ndarray:
        """(n,) `_OK`, `_FAILED`, `_NONE` (no text) or `_UNKNOWN` (a text that says neither)."""
        column = self.columns.get("status")
        if column is None:
            return np.full(len(self.line_faults), _NONE, np.int8)
        codes = []
        for text in column.dictionary.to_pylist():
            if code := _HTTP_STATUS.fullmatch(text):
                codes.append(_OK if code[1] == "2" else _FAILED)
            else:
                codes.append(_WORDS.get(text.lower(), _UNKNOWN))
        indices = column.indices.fill_null(len(codes)).to_numpy(zero_copy_only=False)
        return np.array([*codes, _NONE], np.int8)[indices]

    def faults(self, name: str, has_failed: np.ndarray) -> Iterator[tuple[np.ndarray, str]]:
        """Yield which cells of a column break a rule, and the rule, in the order of judgement.

        `has_failed` are (n,) the requests that failed: their tokens may be missing or 0.
        """
        column = self.columns[name]
        unreadable = self.unreadable[name]
        needs_none = has_failed if name in _TOKENS else np.zeros(len(column), bool)
        if name in trace_format.NEEDED_COLUMNS:
            yield is_null(column) & ~unreadable & ~needs_none, "missing value"

        yield unreadable, _WANTED.get(column.type, "not a number")
        if column.type != pa.float64():
            return

        minimum = trace_format.MINIMUM.get(name, 0)
        values = column.fill_null(minimum).to_numpy()
        yield ~np.isfinite(values), "not finite"
        yield values < np.where(needs_none, 0, minimum), f"below {minimum}"
        if trace_format.COLUMN_TYPES[name] == pa.int32():
            yield values != np.trunc(values), "not a whole number"
            yield values > trace_format.MAX_INT32, "above the 32-bit range"


class TraceRows(NamedTuple):
    """Consecutive lines of a source: rows of the trace, and lines that are set aside."""

    columns: Mapping[str, pa.Array]
    """Trace column -> (n,) values of the accepted rows; absent: all null."""
    tick: np.ndarray  #: (n,) arrival in the source's unit, float64, or int64 for date-times.
    is_zoned: bool | None  #: Whether the date-times have a zone; None: arrivals are numbers.
    rejected: pa.Table | None  #: The other lines, as `REJECTED`; None: all were accepted.


@dataclass
class Judge:
    """Applies the rules to a source's lines, block after block."""

    form: trace_format.TraceFormat
    sources: Mapping[str, str]
    next_line: int
    is_zoned: bool | None = None

    def rows(self, cells: Cells, raw: Callable[[np.ndarray], list[str]]) -> TraceRows:
        """Judge the next lines; `raw` gives the raw text of the lines with these indices."""
        columns, reasons = self._judge(cells)
        tick = cells.columns["arrival_s"].fill_null(0).to_numpy()
        rejected = None
        zones = cells.zones[cells.zones != UNKNOWN]
        if self.is_zoned is None and len(zones):
            self.is_zoned = bool(zones[0] == ZONED)

        problem = "has a time zone, the first row's has none"
        unlike = ZONED
        if self.is_zoned:
            problem = "has no time zone, the first row's has one"
            unlike = UNZONED

        reasons[cells.zones == unlike] = f"{self.sources['arrival_s']}: {problem}"
        numbers = pa.array(np.arange(self.next_line, self.next_line + len(tick))).cast(pa.string())
        columns["request_id"] = pc.coalesce(columns.get("request_id", numbers), numbers)
        accepted = _has_none(reasons)
        if not accepted.all():
            indices = np.flatnonzero(~accepted)
            lines = [indices + self.next_line, reasons[indices], raw(indices)]
            rejected = pa.table(lines, schema=REJECTED)
            columns = {name: values.filter(accepted) for name, values in columns.items()}

        self.next_line += len(tick)

        return TraceRows(columns, tick[accepted], self.is_zoned, rejected)

    def _judge(self, cells: Cells) -> tuple[dict[str, pa.Array], np.ndarray]:
        """Return (n,) values by trace column, and (n,) why a line is set aside (None: it is not).

        The values of lines that are set aside mean nothing.
        """
        reasons = cells.line_faults.copy()
        status_codes = cells.status_codes()
        inputs, outputs = (cells.columns[name].fill_null(0).to_numpy() for name in _TOKENS)
        has_outputs = ~is_null(cells.columns["output_tokens"])
        has_failed = (status_codes == _FAILED) | (
            (status_codes == _NONE) & has_outputs & (outputs == 0)
        )
        faults = [
            (is_fault, f"{source}: {what}")
            for target, source in self.sources.items()
            for is_fault, what in cells.faults(target, has_failed)
        ]
        if self.form.block_tokens and trace_format.HASH_IDS in cells.columns:
            lengths = pc.list_value_length(cells.columns[trace_format.HASH_IDS])
            is_more = lengths.fill_null(0).to_numpy() > np.ceil(inputs / self.form.block_tokens)
            is_more &= ~(has_failed & (inputs == 0))
            faults.append((is_more, f"{trace_format.HASH_IDS}: more than the blocks of the input"))
        if "status" in self.sources:
            faults.append((status_codes == _UNKNOWN, f"{self.sources['status']}: {NO_STATUS}"))
            problem = f"{self.sources['output_tokens']}: zero in a request that is ok"
            faults.append(((status_codes == _OK) & (outputs == 0), problem))

        for is_fault, reason in faults:
            if is_fault.any():  # the first reason stays
                reasons[is_fault & _has_none(reasons)] = reason

        status = pa.DictionaryArray.from_arrays(has_failed.astype(np.int32), ["ok", "failed"])
        columns = {}
        for name, column in cells.columns.items():
            if name in self.form.factors:
                column = pc.multiply(column, self.form.factors[name])
            column = column.fill_null(0) if name in _TOKENS else column
            if trace_format.COLUMN_TYPES[name] == pa.int32():
                column = column.cast(pa.int32(), safe=False)  # lines set aside may hold anything
            columns[name] = column

        return columns | {"status": status}, reasons


def _has_none(reasons: np.ndarray) -> np.ndarray:
    return np.equal(reasons, np.array(None)).astype(bool)
