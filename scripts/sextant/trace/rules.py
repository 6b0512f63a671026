"""Which lines of a source are requests, and why others are set aside."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sextant.trace.cells import Cells
from sextant.trace.date_times import UNKNOWN, UNZONED, ZONED, is_null
from sextant.trace.trace_format import (
    COLUMN_TYPES,
    HASH_IDS,
    MAX_INT32,
    MINIMUM,
    NEEDED_COLUMNS,
    TraceFormat,
)

REJECTED = pa.schema({"line": pa.int64(), "reason": pa.string(), "raw": pa.string()})
_STATUSES = pa.array(["ok", "failed"])
_WANTED = {pa.int64(): "not a date and time", pa.bool_(): "neither true nor false"}
_SYNONYMS = {"success": "ok", "failure": "failed"}


@dataclass(frozen=True)
class Judged:
    """n consecutive lines of a source, each judged by itself."""

    columns: Mapping[str, pa.Array]
    """Trace column -> (n,) values of the trace contract; of lines set aside, anything."""
    tick: np.ndarray
    """(n,) arrival in the source's unit: float64, or int64 for date-times."""
    zones: np.ndarray
    """(n,) as in `Cells`."""
    reasons: np.ndarray
    """(n,) why a line is set aside; None: it is not."""


def set_aside(reasons: np.ndarray, is_fault: np.ndarray, reason: str) -> None:
    """Give a reason to the lines of a mask that have none yet."""
    if is_fault.any():
        reasons[is_fault & is_accepted(reasons)] = reason


def is_accepted(reasons: np.ndarray) -> np.ndarray:
    """Return (n,) whether a line has no reason to be set aside."""
    return np.equal(reasons, np.array(None)).astype(bool)


def judge(cells: Cells, form: TraceFormat, names: list[str]) -> Judged:
    """Apply the rules that look at one line only; `names` are the source's columns in order."""
    reasons = cells.line_faults.copy()
    for target, source in form.sources(names).items():
        for is_fault, what in _faults(target, cells):
            set_aside(reasons, is_fault, f"{source}: {what}")
    if form.block_tokens and HASH_IDS in cells.columns:
        tokens = cells.columns["input_tokens"].fill_null(0).to_numpy()
        n_ids = pc.list_value_length(cells.columns[HASH_IDS]).fill_null(0).to_numpy()
        is_more = n_ids > np.ceil(tokens / form.block_tokens)
        set_aside(reasons, is_more, f"{HASH_IDS}: more than the blocks of the input")
    has_failed = pc.fill_null(pc.equal(cells.columns["output_tokens"], 0), False)
    status = pa.DictionaryArray.from_arrays(has_failed.cast(pa.int32()), _STATUSES)
    if "status" in cells.columns:
        given = cells.columns["status"].cast(pa.string())
        for theirs, ours in _SYNONYMS.items():
            given = pc.if_else(pc.fill_null(pc.equal(given, theirs), False), ours, given)
        is_known = pc.or_(pc.is_in(given, _STATUSES), pc.is_null(given))
        set_aside(
            reasons,
            pc.invert(is_known).to_numpy(zero_copy_only=False),
            "status: neither ok nor failed",
        )
        contradicts = pc.and_(pc.fill_null(pc.equal(given, "ok"), False), has_failed)
        set_aside(
            reasons,
            contradicts.to_numpy(zero_copy_only=False),
            "output_tokens: zero in a request that is ok",
        )
        status = pc.coalesce(given, status.cast(pa.string()))
    columns = {}
    for name, column in cells.columns.items():
        column = pc.multiply(column, form.factors[name]) if name in form.factors else column
        if COLUMN_TYPES[name] == pa.int32():
            column = column.cast(pa.int32(), safe=False)  # lines set aside may hold anything
        columns[name] = column
    tick = cells.columns["arrival_s"].fill_null(0).to_numpy()
    return Judged(columns | {"status": status}, tick, cells.zones, reasons)


def _faults(name: str, cells: Cells) -> Iterator[tuple[np.ndarray, str]]:
    """Yield which cells of a column break a rule, and the rule, in the order they are judged."""
    column, unreadable = cells.columns[name], cells.unreadable[name]
    if name in NEEDED_COLUMNS:
        yield is_null(column) & ~unreadable, "missing value"
    yield unreadable, _WANTED.get(column.type, "not a number")
    if column.type != pa.float64():
        return
    minimum = MINIMUM.get(name, 0)
    values = column.fill_null(minimum).to_numpy()
    yield ~np.isfinite(values), "not finite"
    yield values < minimum, f"below {minimum}"
    if COLUMN_TYPES[name] == pa.int32():
        yield values != np.trunc(values), "not a whole number"
        yield values > MAX_INT32, "above the 32-bit range"


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
        """Apply the rules that depend on the lines before to the next lines, and count these.

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
