"""Columns of a source, computed and brought to the types that the rules judge."""

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sextant.trace.date_forms import UNKNOWN
from sextant.trace.date_times import is_null, read_date_times
from sextant.trace.formula import (
    NO_ERROR,
    Formula,
    Term,
    is_cache_name,
    is_error_name,
    is_negative_name,
)
from sextant.trace.rules import Cells, LargerTokens
from sextant.trace.trace_format import CODED_COLUMNS, NEEDED_COLUMNS, SOURCE_TYPES, TraceFormat

_NULL_TEXTS = pa.array(["", "null", "NULL", "Null", r"\N", "None", "none", "NaN", "nan"])
"""How logs write that a value is missing."""
_TRUTHS = dict.fromkeys(("true", "t", "yes", "y", "1"), True)
_TRUTHS |= dict.fromkeys(("false", "f", "no", "n", "0"), False)
_TRUE = [text for text, is_true in _TRUTHS.items() if is_true]
_FAILED = "failed"


class Block(NamedTuple):
    """Consecutive lines of a source, as they were read."""

    columns: Mapping[str, pa.Array]
    """A column of the source -> (n,) its cells: texts, or the types of a Parquet file."""
    line_faults: np.ndarray  #: (n,) what is wrong with a line as a whole; None: nothing.


def typed_cells(block: Block, form: TraceFormat) -> Cells:
    """Compute the columns of the trace; other types than the rules judge are read from texts."""
    n = len(block.line_faults)
    columns = {name: _plain(column, form) for name, column in block.columns.items()}
    outcomes = columns | _outcomes(form, columns) if form.is_log else columns
    typed = dict[str, pa.Array]()
    unreadable = {}
    zones = np.full(n, UNKNOWN)
    for name, formula in form.columns.items():
        there = formula.among(block.columns)
        wanted = SOURCE_TYPES[name]
        if wanted == pa.int64() and not form.is_datetime:
            wanted = pa.float64()
        if not there.alternatives:
            if name in NEEDED_COLUMNS:
                typed[name] = pa.nulls(n, wanted)
            continue
        if wanted == pa.int64():
            texts = _first_text(there, columns, n)
            typed[name], of_texts = read_date_times(texts, form.day_first)
            unreadable[name] = is_null(typed[name]) & ~is_null(texts)
            zones = np.where(zones == UNKNOWN, of_texts, zones)
        elif wanted == pa.float64():
            typed[name], unreadable[name] = _numbers(there, columns, n)
        else:
            values = outcomes if name == "status" else columns
            column = values[there.column] if there.column else _first_text(there, values, n)
            if column.type != wanted or wanted == pa.string():
                column = _text(column)
            if name in CODED_COLUMNS:
                typed[name] = column.dictionary_encode()
            else:
                typed[name] = column if column.type == wanted else read_texts(column, wanted)
            unreadable[name] = is_null(typed[name]) & ~is_null(column)

    if form.is_log:
        typed |= _status_with_errors(typed.get("status"), columns, n)
    return Cells(
        typed,
        unreadable,
        zones,
        block.line_faults,
        _left_out(columns, form, n),
        _Texts(form, columns, n),
        _larger(typed["input_tokens"], columns, form) if form.is_log else {},
    )


class _Texts(dict[str, pa.Array]):
    """What a source has for a column of the trace, computed when a message asks for it."""

    def __init__(self, form: TraceFormat, columns: Mapping[str, pa.Array], n: int) -> None:
        super().__init__()
        self._form = form
        self._columns = columns
        self._n = n

    def __missing__(self, name: str) -> pa.Array:
        formula = self._form.columns.get(name, Formula(name, ()))
        self[name] = _first_text(formula.among(self._columns), self._columns, self._n)
        return self[name]


def _plain(column: pa.Array, form: TraceFormat) -> pa.Array:
    """Return a column with nulls where a log writes one as a text, or as NaN."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = pc.utf8_trim_whitespace(column.cast(pa.string()))
        is_missing = pc.is_in(column, _NULL_TEXTS) if form.is_log else pc.equal(column, "")
        return pc.if_else(is_missing, pa.scalar(None, pa.string()), column)
    if form.is_log and pa.types.is_floating(column.type):
        return pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    return column


def _outcomes(form: TraceFormat, columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Return the columns of a status that say what went wrong: failed, or null if nothing did."""
    if "status" not in form.columns:
        return {}
    outcomes = {}
    for name in form.columns["status"].matching(columns):
        texts = pc.utf8_lower(_text(columns[name])).fill_null("")
        if is_error_name(name):
            is_fine = pc.is_in(texts, pa.array(sorted(NO_ERROR)))
        elif is_negative_name(name) and pc.all(pc.is_in(texts, pa.array(["", *_TRUTHS]))).as_py():
            is_fine = pc.invert(pc.is_in(texts, pa.array(_TRUE)))
        else:
            continue
        outcomes[name] = pc.if_else(is_fine, pa.scalar(None, pa.string()), _FAILED)
    return outcomes


def text_of(formula: Formula, block: Block, form: TraceFormat) -> pa.Array:
    """Return what a block has for a formula, as texts."""
    there = formula.among(block.columns)
    columns = {name: _plain(block.columns[name], form) for name in there.names}
    return _first_text(there, columns, len(block.line_faults))


def _text(column: pa.Array) -> pa.Array:
    return pc.utf8_trim_whitespace(column.cast(pa.string()))


def _first_text(formula: Formula, columns: Mapping[str, pa.Array], n: int) -> pa.Array:
    """Return the first text that the columns of a formula have in each line."""
    texts = [_text(columns[term.name]) for terms in formula.alternatives for term in terms]
    return pc.coalesce(*texts) if texts else pa.nulls(n, pa.string())


def _numbers(
    formula: Formula, columns: Mapping[str, pa.Array], n: int
) -> tuple[pa.Array, np.ndarray]:
    """Return (n,) numbers, null where there is none, and where a text is not a number."""
    total = np.full(n, np.nan)
    is_there = np.zeros(n, bool)
    is_wrong = np.zeros(n, bool)
    for terms in formula.alternatives:
        values = np.zeros(n)
        has_value = np.zeros(n, bool)
        has_fault = np.zeros(n, bool)
        for term in terms:
            numbers, is_fault = _term_numbers(term, columns)
            has_fault |= is_fault
            is_number = ~is_null(numbers)
            has_value |= is_number
            values += np.where(is_number, numbers.fill_null(0).to_numpy(), 0) * term.factor
        is_new = (has_value | has_fault) & ~is_there
        total = np.where(is_new & ~has_fault, values, total)
        is_wrong |= is_new & has_fault
        is_there |= is_new
    return pa.array(total, pa.float64(), mask=~is_there | is_wrong), is_wrong


def _term_numbers(term: Term, columns: Mapping[str, pa.Array]) -> tuple[pa.Array, np.ndarray]:
    column = columns[term.name]
    if pa.types.is_integer(column.type):
        column = column.cast(pa.float64(), safe=False)
    if column.type != pa.float64():
        column = _text(column)
        numbers = read_texts(column, pa.float64())
        return numbers, is_null(numbers) & ~is_null(column)
    return column, np.zeros(len(column), bool)


def _status_with_errors(
    status: pa.Array | None, columns: Mapping[str, pa.Array], n: int
) -> dict[str, pa.Array]:
    """Return the statuses; a request without one failed where a column of errors says why."""
    has_error = np.zeros(n, bool)
    for name, column in columns.items():
        if is_error_name(name):
            texts = pc.utf8_lower(_text(column)).fill_null("")
            has_error |= ~pc.is_in(texts, pa.array(sorted(NO_ERROR))).to_numpy(zero_copy_only=False)
    if not has_error.any():
        return {}
    errors = pa.array([_FAILED if is_error else None for is_error in has_error], pa.string())
    texts = errors if status is None else pc.coalesce(status.cast(pa.string()), errors)
    return {"status": texts.dictionary_encode()}


def _larger(
    inputs: pa.Array, columns: Mapping[str, pa.Array], form: TraceFormat
) -> dict[str, LargerTokens]:
    """Return the tokens of caches that are not taken, and larger than the input in some lines.

    They are no part of the input then: the source has exclusive buckets.
    """
    taken = {name for formula in form.columns.values() for name in formula.matching(columns)}
    (terms, *_) = form.columns["input_tokens"].among(columns).alternatives or ((),)
    formula = "+".join(term.name for term in terms)
    larger = {}
    for name in columns:
        if name in taken or not is_cache_name(name):
            continue
        numbers, _ = _term_numbers(Term(name), columns)
        tokens = numbers.fill_null(0).to_numpy()
        n_larger = int((tokens > inputs.fill_null(0).to_numpy()).sum())
        if n_larger:
            total = float(tokens.sum())
            larger[name] = LargerTokens(n_larger, total, len(tokens), f"{formula}+{name}")
    return larger


def _left_out(columns: Mapping[str, pa.Array], form: TraceFormat, n: int) -> np.ndarray:
    """Return (n,) the condition and the value by which a line is no request; None: it is one."""
    reasons = np.full(n, None)
    for condition in form.where:
        there = condition.formula.among(columns)
        if not there.alternatives:
            continue
        texts = _first_text(there, columns, n).dictionary_encode()
        values = [*texts.dictionary.to_pylist(), None]
        text = condition.formula.text
        labels = [
            (f"no {text}" if value is None else f"{text}={value}")
            if condition.leaves_out(value)
            else None
            for value in values
        ]
        indices = texts.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)
        new = np.array(labels, object)[indices]
        reasons = np.where(np.equal(reasons, np.array(None)).astype(bool), new, reasons)
    return reasons


def read_texts(texts: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Read texts as numbers or truth values; null where one is not."""
    with suppress(pa.ArrowInvalid):
        return texts.cast(wanted)

    values: list[float | bool | None] = []
    for text in texts.to_pylist():
        value: float | bool | None = None
        if text is not None and wanted != pa.float64():
            value = _TRUTHS.get(text.lower())
        elif text is not None and text.isascii():
            with suppress(ValueError):
                value = float(text)
        values.append(value)
    return pa.array(values, wanted)
