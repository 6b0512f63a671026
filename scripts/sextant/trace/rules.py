"""Which lines of a source are requests, and why others are set aside."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sextant.trace import trace_format
from sextant.trace.date_forms import UNKNOWN, UNZONED, ZONED
from sextant.trace.date_times import is_null

REJECTED = pa.schema({"line": pa.int64(), "reason": pa.string(), "raw": pa.string()})
VALUE = "value"
"""One more column of rejected rows, which is not written: the cell that breaks the rule."""
_WANTED = {pa.int64(): "not a date and time", pa.bool_(): "neither true nor false"}
_OK_WORDS = (
    *("ok", "success", "succeeded", "successful", "completed", "complete", "finished", "done"),
    *("true", "stop", "length", "tool_calls", "function_call", "end_turn", "max_tokens"),
    *("stop_sequence", "tool_use", "pause_turn", "refusal", "content_filter", "incomplete"),
    *("eos", "eos_token", "max_output_tokens", "model_context_window_exceeded"),
)
_FAILED_WORDS = (
    *("failed", "failure", "fail", "error", "errored", "timeout", "timed_out", "cancelled"),
    *("canceled", "cancel", "abort", "aborted", "rejected", "expired", "false", "exception"),
    *("interrupted", "disconnected", "client_disconnected", "deadline_exceeded", "unavailable"),
    *("rate_limited", "rate_limit_exceeded", "throttled", "server_error", "internal_error"),
    *("overloaded", "overloaded_error", "resource_exhausted", "batch_expired"),
)
_OK, _FAILED, _NONE, _UNKNOWN = range(4)
_WORDS = dict.fromkeys(_OK_WORDS, _OK) | dict.fromkeys(_FAILED_WORDS, _FAILED)
_SAID = {"ok": _OK, "failed": _FAILED, None: _NONE}
_HTTP_STATUS = re.compile(r"([1-9])\d\d(?:\.0+)?", re.ASCII)
_BETWEEN_WORDS = re.compile(r"[\s-]+")
NULL = "null"
"""The word for no status: if it means failed, requests without it and without tokens failed."""
NO_STATUS = "neither ok nor failed"
ZERO_OUTPUT = "zero in a request that is ok"
MISSING = "missing value"
STATUSES = f"HTTP codes (2xx is ok), {', '.join(_OK_WORDS)} (ok), "
STATUSES += f"{', '.join(_FAILED_WORDS)} (failed)"
_TOKENS = ("input_tokens", "output_tokens")
_MOST_ANSWERS = 128  # of one request; OpenAI's limit


def _status_code(text: str, words: Mapping[str, str | None]) -> int:
    """Return what a status says; of several answers' a list, the worst."""
    small = text.strip().lower()
    if small in words:
        return _SAID[words[small]]
    if code := _HTTP_STATUS.fullmatch(small):
        return _OK if code[1] == "2" else _FAILED
    if small.startswith("["):
        codes = {_status_code(item, words) for item in _items(text)}
        return next((code for code in (_FAILED, _UNKNOWN, _OK) if code in codes), _NONE)
    return _WORDS.get(_BETWEEN_WORDS.sub("_", small), _UNKNOWN)


def _items(text: str) -> list[str]:
    """Return the texts of a JSON list; nulls are left out."""
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        return [""]
    return [str(item) for item in items if item is not None and not isinstance(item, list)]


class LargerTokens(NamedTuple):
    """Tokens of a column that is not taken, and larger than the input in some lines."""

    n_larger: int
    total: float
    n: int
    formula: str  #: of an input with these tokens

    def plus(self, other: "LargerTokens") -> "LargerTokens":
        """Return both together."""
        return LargerTokens(
            self.n_larger + other.n_larger,
            self.total + other.total,
            self.n + other.n,
            self.formula,
        )


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
    left_out: np.ndarray  #: (n,) the condition by which a line is no request; None: it is one.
    texts: Mapping[str, pa.Array]  #: Trace column -> (n,) what the source has, for messages.
    larger: Mapping[str, LargerTokens]  #: By the columns of a source that a log may have to add.

    def status_codes(self, words: Mapping[str, str | None]) -> np.ndarray:
        """(n,) `_OK`, `_FAILED`, `_NONE` (no text) or `_UNKNOWN` (a text that says neither).

        `words` are further ones, and what they say.
        """
        column = self.columns.get("status")
        if column is None:
            return np.full(len(self.line_faults), _NONE, np.int8)
        codes = [_status_code(text, words) for text in column.dictionary.to_pylist()]
        indices = column.indices.fill_null(len(codes)).to_numpy(zero_copy_only=False)
        return np.array([*codes, _NONE], np.int8)[indices]

    def text(self, name: str | None, index: np.intp) -> str | None:
        """Return the cell of a line by which a column of the trace breaks a rule."""
        return None if name is None else self.texts[name][int(index)].as_py()

    def faults(self, name: str, has_failed: np.ndarray) -> Iterator[tuple[np.ndarray, str]]:
        """Yield which cells of a column break a rule, and the rule, in the order of judgement.

        `has_failed` are (n,) the requests that failed: their tokens may be missing or 0.
        """
        column = self.columns[name]
        unreadable = self.unreadable.get(name, np.zeros(len(column), bool))
        needs_none = has_failed if name in _TOKENS else np.zeros(len(column), bool)
        if name in trace_format.NEEDED_COLUMNS:
            yield is_null(column) & ~unreadable & ~needs_none, MISSING

        yield unreadable, _WANTED.get(column.type, "not a number")
        if column.type != pa.float64():
            return

        minimum = trace_format.MINIMUM.get(name, 0)
        values = column.fill_null(minimum).to_numpy()
        yield ~np.isfinite(values), "not finite"
        yield values < np.where(needs_none, 0, minimum), f"below {minimum}"
        if (
            trace_format.COLUMN_TYPES.get(name, pa.int32()) == pa.int32()
            and name != trace_format.END
        ):
            yield values != np.trunc(values), "not a whole number"
            yield values > trace_format.MAX_INT32, "above the 32-bit range"


class TraceRows(NamedTuple):
    """Consecutive lines of a source: rows of the trace, and lines that are set aside."""

    columns: Mapping[str, pa.Array]
    """Trace column -> (n,) values of the accepted rows; absent: all null."""
    tick: np.ndarray  #: (n,) arrival in the source's unit, float64, or int64 for date-times.
    is_zoned: bool | None  #: Whether the date-times have a zone; None: arrivals are numbers.
    rejected: pa.Table | None  #: The other lines, as `REJECTED` and `VALUE`; None: none.
    left_out: Mapping[str, int]  #: Lines that are no requests, by the condition.
    n_placed: int  #: Failed requests that had no time: they get that of the line before.
    n_further: int  #: Rows of further answers of a request, beside its first.
    larger: Mapping[str, LargerTokens]  #: See `Cells`.
    has_times: bool  #: Whether the source has arrivals at all; else all are 0.


@dataclass
class Judge:
    """Applies the rules to a source's lines, block after block."""

    form: trace_format.TraceFormat
    sources: Mapping[str, str]
    next_line: int
    is_zoned: bool | None = None
    last_tick: float | None = None  #: The last time so far; of date-times an int.

    def rows(self, cells: Cells, raw: Callable[[np.ndarray], list[str]]) -> TraceRows:
        """Judge the next lines; `raw` gives the raw text of the lines with these indices."""
        cells = times_from_ends(cells, self.form)
        has_failed, status_codes = self._outcomes(cells)
        cells, is_placed = self._placed(cells, has_failed)
        columns, reasons, targets = self._judge(cells, has_failed, status_codes)

        tick = np.zeros(len(reasons))
        if "arrival_s" in self.sources:
            tick = cells.columns["arrival_s"].fill_null(0).to_numpy()
        zones = cells.zones[cells.zones != UNKNOWN]
        if self.is_zoned is None and len(zones):
            self.is_zoned = bool(zones[0] == ZONED)

        problem = "has a time zone, the first row's has none"
        unlike = ZONED
        if self.is_zoned:
            problem = "has no time zone, the first row's has one"
            unlike = UNZONED

        reasons[cells.zones == unlike] = f"{self.sources.get('arrival_s')}: {problem}"
        numbers = pa.array(np.arange(self.next_line, self.next_line + len(tick))).cast(pa.string())
        columns["request_id"] = pc.coalesce(columns.get("request_id", numbers), numbers)
        is_request = _has_none(cells.left_out) | ~_has_none(cells.line_faults)
        accepted = _has_none(reasons) & is_request
        rejected = None
        if (indices := np.flatnonzero(is_request & ~accepted)).size:
            values = [cells.text(targets[index], index) for index in indices]
            arrays = [pa.array(one) for one in (indices + self.next_line, reasons[indices])]
            arrays += [pa.array(texts, pa.string()) for texts in (raw(indices), values)]
            rejected = pa.table(arrays, schema=REJECTED.append(pa.field(VALUE, pa.string())))
        if not accepted.all():
            columns = {name: values.filter(accepted) for name, values in columns.items()}

        self.next_line += len(tick)
        columns, tick, n_further = _answers_apart(columns, tick[accepted])

        return TraceRows(
            columns,
            tick,
            self.is_zoned,
            rejected,
            Counter(cells.left_out[~is_request].tolist()),
            int((is_placed & accepted).sum()),
            n_further,
            cells.larger,
            "arrival_s" in self.sources,
        )

    def _outcomes(self, cells: Cells) -> tuple[np.ndarray, np.ndarray]:
        """Return (n,) which requests failed, and what their statuses say."""
        codes = cells.status_codes(self.form.status_words)
        outputs = cells.columns["output_tokens"]
        is_empty = ~is_null(outputs) & (outputs.fill_null(1).to_numpy() == 0)
        if self.form.status_words.get(NULL) == "failed":
            is_empty |= is_null(outputs)
        return (codes == _FAILED) | ((codes == _NONE) & is_empty), codes

    def _placed(self, cells: Cells, has_failed: np.ndarray) -> tuple[Cells, np.ndarray]:
        """Give failed requests without a time that of the line before; return which these are."""
        if "arrival_s" not in self.sources or not self.form.is_log:
            return cells, np.zeros(len(has_failed), bool)
        ticks = cells.columns["arrival_s"]

        has_time = ~is_null(ticks)
        is_untimed = has_failed & ~has_time & ~cells.unreadable.get("arrival_s", ~has_time & False)
        values = ticks.fill_null(0).to_numpy().copy()
        before = np.maximum.accumulate(np.where(has_time, np.arange(len(values)), -1))
        filled = values[np.maximum(before, 0)]
        is_first = before < 0
        if is_first.any():
            first = self.last_tick
            if first is None and has_time.any():
                first = values[has_time.argmax()]
            is_untimed &= ~is_first | (first is not None)
            filled[is_first] = 0 if first is None else first
        values[is_untimed] = filled[is_untimed]
        if has_time.any():
            self.last_tick = values[np.flatnonzero(has_time)[-1]]
        arrivals = pa.array(values, ticks.type, mask=~(has_time | is_untimed))

        return cells._replace(columns={**cells.columns, "arrival_s": arrivals}), is_untimed

    def _judge(
        self, cells: Cells, has_failed: np.ndarray, status_codes: np.ndarray
    ) -> tuple[dict[str, pa.Array], np.ndarray, np.ndarray]:
        """Return (n,) values by trace column, and (n,) why a line is set aside and by what column.

        None is no reason. The values of lines that are set aside mean nothing.
        """
        reasons = cells.line_faults.copy()
        targets = np.full(len(reasons), None)
        inputs, outputs = (cells.columns[name].fill_null(0).to_numpy() for name in _TOKENS)
        faults: list[tuple[np.ndarray, str | None, str]] = [
            (is_fault, target, f"{source}: {what}")
            for target, source in self.sources.items()
            if target in cells.columns
            for is_fault, what in cells.faults(target, has_failed)
        ]
        if trace_format.END in cells.columns:
            is_before = cells.columns["e2e_ms"].fill_null(0).to_numpy() < 0
            problem = f"{self.sources[trace_format.END]}: before the arrival"
            faults.append((is_before, trace_format.END, problem))
        if self.form.block_tokens and trace_format.HASH_IDS in cells.columns:
            lengths = pc.list_value_length(cells.columns[trace_format.HASH_IDS])
            is_more = lengths.fill_null(0).to_numpy() > np.ceil(inputs / self.form.block_tokens)
            is_more &= ~(has_failed & (inputs == 0))
            problem = f"{trace_format.HASH_IDS}: more than the blocks of the input"
            faults.append((is_more, None, problem))
        if "status" in self.sources:
            problem = f"{self.sources['status']}: {NO_STATUS}"
            faults.append((status_codes == _UNKNOWN, "status", problem))
            problem = f"{self.sources['output_tokens']}: {ZERO_OUTPUT}"
            faults.append(((status_codes == _OK) & (outputs == 0), "output_tokens", problem))

        for is_fault, target, reason in faults:
            if is_fault.any():  # the first reason stays
                is_new = is_fault & _has_none(reasons)
                reasons[is_new] = reason
                targets[is_new] = target

        status = pa.DictionaryArray.from_arrays(has_failed.astype(np.int32), ["ok", "failed"])
        columns = {}
        for name, column in cells.columns.items():
            column = column.fill_null(0) if name in _TOKENS else column
            if trace_format.COLUMN_TYPES.get(name) == pa.int32():
                column = column.cast(pa.int32(), safe=False)  # lines set aside may hold anything
            columns[name] = column

        return columns | {"status": status}, reasons, targets


def times_from_ends(cells: Cells, form: trace_format.TraceFormat) -> Cells:
    """Compute E2E of arrivals and ends, and arrivals of ends and E2E, where they are missing."""
    ends = cells.columns.get(trace_format.END)
    if ends is None:
        return cells

    n = len(ends)
    ticks = cells.columns.get("arrival_s", pa.nulls(n, ends.type))
    e2e_ms = cells.columns.get("e2e_ms", pa.nulls(n, pa.float64()))
    units_per_ms = form.units_per_s / 1e3
    end = ends.fill_null(0).to_numpy()
    start = ticks.fill_null(0).to_numpy()
    has_end = ~is_null(ends)
    has_start = ~is_null(ticks)
    has_e2e = ~is_null(e2e_ms)

    span_ms = (end - start) / units_per_ms
    is_new = has_start & has_end & ~has_e2e & (end != start)  # no time at all is none measured
    filled_ms = np.where(is_new, span_ms, e2e_ms.fill_null(0).to_numpy())
    begin = end - (e2e_ms.fill_null(0).to_numpy() * units_per_ms).astype(end.dtype)
    is_made = has_end & has_e2e & ~has_start
    columns = dict(cells.columns)
    columns["arrival_s"] = pa.array(np.where(is_made, begin, start), mask=~(has_start | is_made))
    columns["e2e_ms"] = pa.array(filled_ms, mask=~(has_e2e | is_new))

    return cells._replace(columns=columns)


def _answers_apart(
    columns: dict[str, pa.Array], tick: np.ndarray
) -> tuple[dict[str, pa.Array], np.ndarray, int]:
    """Return a row for each answer of a request, with an equal share of the output tokens.

    An engine serves each as a sequence of its own. Further ones have the id with their number.
    """
    n_answers = columns.pop(trace_format.N_ANSWERS, None)
    columns.pop(trace_format.END, None)
    if n_answers is None:
        return columns, tick, 0
    most = np.clip(columns["output_tokens"].to_numpy(), 1, _MOST_ANSWERS)  # each has a token
    counts = np.clip(n_answers.fill_null(1).to_numpy(), 1, most).astype(int)
    if (counts == 1).all():
        return columns, tick, 0

    row = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    columns = {name: values.take(pa.array(row)) for name, values in columns.items()}
    outputs = columns["output_tokens"].to_numpy()
    shares = outputs // counts[row] + (number < outputs % counts[row])
    columns["output_tokens"] = pa.array(shares, pa.int32())
    ids = pc.binary_join_element_wise(
        columns["request_id"], pa.array(number + 1).cast(pa.string()), "/"
    )
    columns["request_id"] = pc.if_else(pa.array(number == 0), columns["request_id"], ids)

    return columns, tick[row], len(row) - len(counts)


def _has_none(reasons: np.ndarray) -> np.ndarray:
    return np.equal(reasons, np.array(None)).astype(bool)
