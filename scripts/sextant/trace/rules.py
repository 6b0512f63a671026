"""Which lines of a source are requests, and why others are set aside."""

import re
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


def set_aside(reasons: np.ndarray, is_fault: np.ndarray, reason: str) -> None:
    """Give a reason to the lines of a mask that have none yet."""
    if is_fault.any():
        reasons[is_fault & is_accepted(reasons)] = reason


def is_accepted(reasons: np.ndarray) -> np.ndarray:
    """Return (n,) whether a line has no reason to be set aside."""
    return np.equal(reasons, np.array(None)).astype(bool)


def judge(
    cells: Cells, form: TraceFormat, names: list[str]
) -> tuple[dict[str, pa.Array], np.ndarray]:
    """Apply the rules that look at one line only; `names` are the source's columns in order.

    Return by trace column (n,) values of the trace contract, anything in lines that are set aside;
    and (n,) why a line is, None: it is not.

    A request that failed needs no tokens: those that its line lacks are 0.
    """
    reasons, sources = cells.line_faults.copy(), form.sources(names)
    given = read_statuses(cells.columns.get("status"), len(reasons))
    tokens = {name: cells.columns[name].fill_null(0).to_numpy() for name in _TOKENS}
    is_known = ~is_null(cells.columns["output_tokens"])
    is_empty = tokens["output_tokens"] == 0
    has_failed = (given == _FAILED) | ((given == _NONE) & is_known & is_empty)
    for target, source in sources.items():
        for is_fault, what in _faults(target, cells, has_failed):
            set_aside(reasons, is_fault, f"{source}: {what}")
    if form.block_tokens and HASH_IDS in cells.columns:
        n_ids = pc.list_value_length(cells.columns[HASH_IDS]).fill_null(0).to_numpy()
        is_more = n_ids > np.ceil(tokens["input_tokens"] / form.block_tokens)
        is_more &= ~(has_failed & (tokens["input_tokens"] == 0))
        set_aside(reasons, is_more, f"{HASH_IDS}: more than the blocks of the input")
    if "status" in sources:
        set_aside(reasons, given == _UNKNOWN, f"{sources['status']}: {NO_STATUS}")
        problem = f"{sources['output_tokens']}: zero in a request that is ok"
        set_aside(reasons, (given == _OK) & is_empty, problem)
    status = pa.DictionaryArray.from_arrays(has_failed.astype(np.int32), ["ok", "failed"])
    columns = {}
    for name, column in cells.columns.items():
        column = pc.multiply(column, form.factors[name]) if name in form.factors else column
        column = column.fill_null(0) if name in _TOKENS else column
        if COLUMN_TYPES[name] == pa.int32():
            column = column.cast(pa.int32(), safe=False)  # lines set aside may hold anything
        columns[name] = column
    return columns | {"status": status}, reasons


def read_statuses(column: pa.Array | None, n: int) -> np.ndarray:
    """Return (n,) `_OK`, `_FAILED`, `_NONE` (no text) or `_UNKNOWN` (a text that says neither).

    HTTP codes of the 200s are ok, all others failed.
    """
    if column is None:
        return np.full(n, _NONE, np.int8)
    if column.type == pa.string():  # of Parquet
        column = column.dictionary_encode()
    read = []
    for text in column.dictionary.to_pylist():
        if code := _HTTP_STATUS.fullmatch(text):
            read.append(_OK if code[1] == "2" else _FAILED)
        else:
            read.append(_WORDS.get(text.lower(), _UNKNOWN))
    places = column.indices.fill_null(len(read)).to_numpy(zero_copy_only=False)
    return np.array([*read, _NONE], np.int8)[places]


def _faults(name: str, cells: Cells, has_failed: np.ndarray) -> Iterator[tuple[np.ndarray, str]]:
    """Yield which cells of a column break a rule, and the rule, in the order they are judged."""
    column, unreadable = cells.columns[name], cells.unreadable[name]
    needs_none = has_failed if name in _TOKENS else np.zeros(len(column), bool)
    if name in NEEDED_COLUMNS:
        yield is_null(column) & ~unreadable & ~needs_none, "missing value"
    yield unreadable, _WANTED.get(column.type, "not a number")
    if column.type != pa.float64():
        return
    minimum = MINIMUM.get(name, 0)
    values = column.fill_null(minimum).to_numpy()
    yield ~np.isfinite(values), "not finite"
    yield values < np.where(needs_none, 0, minimum), f"below {minimum}"
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

    def settle(
        self,
        cells: Cells,
        form: TraceFormat,
        names: list[str],
        raw: Callable[[np.ndarray], list[str]],
    ) -> Rows:
        """Apply all rules to the next lines, and count these.

        `names` are the source's columns in order, `raw` gives the raw text of lines by their
        places. A request without an id gets its line's number.
        """
        columns, reasons = judge(cells, form, names)
        tick = cells.columns["arrival_s"].fill_null(0).to_numpy()
        n_lines, rejected = len(tick), None
        self._judge_zones(cells.zones, reasons)
        accepted = is_accepted(reasons)
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
