"""A source read to rows: CSV and JSON in blocks of whole lines, Parquet in batches of rows.

What is read is typed column by column (`cells`) and judged (`rules`).
"""

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sextant.base.errors import InputError
from sextant.trace import documents
from sextant.trace.advice import LIKELY_REQUEST, unnamed_source
from sextant.trace.cells import Block, text_of, typed_cells
from sextant.trace.csv_blocks import delimiter_of, one_line_rows, parse_at_once, split_line
from sextant.trace.date_forms import has_year_last, is_day_first
from sextant.trace.date_times import likely_unit
from sextant.trace.documents import (
    cell_of,
    flat_object,
    json_value,
    lines_of,
    list_names,
    read_text_blocks,
    with_objects,
)
from sextant.trace.formula import is_cache_name, is_error_name
from sextant.trace.rules import Judge, TraceRows
from sextant.trace.sessions import Split, flat_sessions, with_blocks
from sextant.trace.trace_format import (
    BLANK,
    COLUMN_TYPES,
    END,
    HASH_IDS,
    JSON_ENDINGS,
    NEEDED_COLUMNS,
    TraceFormat,
)

BATCH_ROWS = 100_000  # of a Parquet file that are checked at a time

_FIRST_ROWS = 200  # that show the columns of a log

Raw = Callable[[np.ndarray], list[str]]
"""Returns the raw text of the lines of a block with these indices."""


@dataclass
class OpenSource:
    """A source whose columns are known, ready to be read."""

    names: list[str]  #: its columns; of a log of JSON those of the first block
    blocks: Iterator[tuple[Block, Raw]]
    first_line: int = 1


def read_rows(source: Path, form: TraceFormat, ignored: list[str]) -> Iterator[TraceRows]:
    """Yield the rows of a source; names of columns that are left out go into `ignored`.

    Raises InputError: a file that cannot be read, or columns that are missing, unknown or there
    twice.
    """
    try:
        opened = open_source(source, form)
        ignored += _check_columns(source, form, opened.names)
        judge = Judge(form, _sources(form, opened.names), opened.first_line)
        for block, raw in opened.blocks:
            yield judge.rows(typed_cells(block, form), raw)
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise _unreadable(source, str(error)) from None


def _sources(form: TraceFormat, names: list[str]) -> dict[str, str]:
    """Return column of the trace -> what errors call it; what appears later in a log, too."""
    there = form.sources([*names, *list_names(names, form.names)])
    if not form.is_log:
        return there
    sources = {target: formula.text for target, formula in form.columns.items()}
    if "arrival_s" not in there:
        sources.pop("arrival_s", None)
        if END in there:
            sources["arrival_s"] = there[END]
    return sources


def open_source(source: Path, form: TraceFormat) -> OpenSource:
    """Open a source: find out its columns.

    Raises InputError, OSError or an error of Arrow: it cannot be read, is empty or has no header.
    """
    if source.suffix == ".parquet" and not form.is_jsonl:
        return _open_parquet(source, form)

    is_document = form.is_log and form.is_jsonl and not documents.has_lines(source, form.test)
    blocks = read_text_blocks(source)
    if is_document:
        blocks = documents.request_blocks(source, form.test, form.outer_names)
    if form.is_nested:
        blocks = flat_sessions(source, form.block_tokens or 1)
    if form.is_log and not form.is_jsonl:
        blocks = one_line_rows(_decodable(source, blocks, 1), form.delimiter)
    names, blocks = _columns(source, form, blocks)
    blocks = _decodable(source, blocks, 1 if form.is_jsonl else 2)
    if form.is_jsonl:
        return OpenSource(names, (_json_block(text, form, names) for text in blocks))
    inner, blocks = _inner_names(form, names, blocks)
    return OpenSource([*names, *inner], _csv_blocks(form, names, blocks), first_line=2)


def _open_parquet(source: Path, form: TraceFormat) -> OpenSource:
    stored = pq.ParquetFile(source)
    names = _flat(stored.schema_arrow.empty_table()).schema.names
    taken = _taken(form, names)

    def blocks() -> Iterator[tuple[Block, Raw]]:
        with stored:
            for batch in stored.iter_batches(BATCH_ROWS):
                table = _flat(pa.Table.from_batches([batch]))
                columns = {name: table[name].combine_chunks() for name in taken}
                yield Block(columns, np.full(len(table), None)), partial(_raw_rows, batch)

    return OpenSource(names, blocks())


def _taken(form: TraceFormat, names: list[str]) -> list[str]:
    """Return the columns of a source that a format reads."""
    taken = [name for formula in form.formulas for name in formula.matching(names)]
    if form.is_log:
        taken += [name for name in names if is_error_name(name) or is_cache_name(name)]
    return list(dict.fromkeys(taken))


def _unreadable(source: Path, error: str) -> InputError:
    fix = "give the file whole, as its publisher wrote it, in UTF-8"
    return InputError(f"cannot be read ({' '.join(error.split())[:300]})", file=source, fix=fix)


def _raw_rows(batch: pa.RecordBatch, indices: np.ndarray) -> list[str]:
    rows = batch.take(pa.array(indices)).to_pylist()
    return [json.dumps(row, default=str, separators=(",", ":")) for row in rows]


def _raw_lines(text: bytes, indices: np.ndarray) -> list[str]:
    lines = lines_of(text)
    return [lines[index] for index in indices]


def as_written(source: Path, form: TraceFormat, has_unit: bool) -> TraceFormat:
    """Return a log's format as its first lines show it.

    It is CSV or JSON, whatever the file's ending. If no unit is stated, the first arrival tells it:
    a date-time, or a number since 1970. Of dates with the year last, one with a number above 12
    tells whether the day comes first. Raises InputError: it is unclear.
    """
    if not form.is_log:
        return form

    try:
        if source.suffix != ".parquet":
            first_block = next(read_text_blocks(source), b"")
            start = first_block.lstrip()[:1]
            is_json = form.is_jsonl and not {*JSON_ENDINGS}.isdisjoint(source.suffixes)
            form = replace(form, is_jsonl=is_json or start in (b"{", b"["))
            head = first_block.partition(b"\n")[0].decode()
            form = replace(form, delimiter="," if form.is_jsonl else delimiter_of(head))
        opened = open_source(source, form)
        form = form.in_source(opened.names)
        texts = _arrival_texts(opened, form)
        first = next(texts, None)
    except (OSError, UnicodeDecodeError, csv.Error, InputError, pa.ArrowException):
        return form  # an error when the rows are read

    if first is None:
        return form
    if has_year_last(first) and (not has_unit or form.time_unit == "iso"):
        try:
            is_first = is_day_first(chain([first], texts))
        except InputError as error:
            arrival = form.columns["arrival_s" if "arrival_s" in form.columns else END]
            raise error.at(file=source, field=arrival.text) from None
        return replace(form, time_unit="dmy" if is_first else "mdy")
    if has_unit:
        return form
    try:
        unit = likely_unit(float(first))
    except ValueError:  # a date-time, or a text that is refused as none
        unit = "iso"
    return replace(form, time_unit=unit or form.time_unit)


def _arrival_texts(opened: OpenSource, form: TraceFormat) -> Iterator[str]:
    """Yield the arrivals of a source as it has them; ends where it has no arrivals."""
    for block, _ in opened.blocks:
        for target in ("arrival_s", END):
            if target in form.columns:
                texts = text_of(form.columns[target], block, form)
                there = [text for text in texts.to_pylist() if text is not None]
                yield from there
                if there:
                    break


def _columns(
    source: Path, form: TraceFormat, blocks: Iterator[bytes]
) -> tuple[list[str], Iterator[bytes]]:
    """Return the names of the source's columns, and the blocks from the first row on."""
    first = next(blocks, None)
    if first is None:
        raise InputError("the file is empty", file=source, fix="give a trace with rows")

    head, _, body = first.partition(b"\n")
    head = head.rstrip(b"\r")
    if b"\r" in head:
        fix = "end each row's line with a line feed, e.g. `tr '\\r' '\\n' < OLD > NEW`"
        problem = "lines end with a carriage return alone"
        raise InputError(problem, file=source, row=1, fix=fix)

    try:
        if not form.is_jsonl:
            names = [
                name.strip()
                for name in next(csv.reader([head.decode()], delimiter=form.delimiter), [])
            ]
            return names, chain([body] if body else [], blocks)
        rows = [_json_row(line, form) for line in lines_of(first if form.is_log else head)]
        names_by_row = [row for row in rows if isinstance(row, dict)]
        if form.is_log:
            names_by_row = [with_objects(row, form.parents) for row in names_by_row]
    except UnicodeDecodeError as error:
        line = 1 + error.object.count(b"\n", 0, error.start)
        raise _unreadable(source, f"Line: {line}: {error}") from None
    except csv.Error as error:
        fix = "put the names of the columns there"
        raise InputError(f"no header ({error})", file=source, row=1, fix=fix) from None

    if not names_by_row:
        fix = "put one JSON object in each line (`jq -c '.[]'` makes lines of an array)"
        raise InputError("no JSON object", file=source, row=1, fix=fix)

    return list(dict.fromkeys(chain.from_iterable(names_by_row))), chain([first], blocks)


def _check_columns(source: Path, form: TraceFormat, names: list[str]) -> list[str]:
    needed = [it.text for name, it in form.columns.items() if name not in form.optional]
    fix = f"the format needs {', '.join(needed)}"
    may = [it.text for name, it in form.columns.items() if name in form.optional]
    if may or form.unused:
        fix += f"; it may have {', '.join([*may, *form.unused])}"
    if form.is_log:
        fix += f"; --columns names others; the source has {some_of(names)}"
    if len(names) == 1 and (marks := {*names[0]} & {*";\t|"}):
        fix = f"put commas between the cells of a line, in place of {marks.pop()!r}"

    there = [*names, *list_names(names, form.names)]
    if (missing := form.missing(there)) is not None:
        raise InputError("column missing", file=source, row=1, field=missing, fix=fix)
    for condition in form.where:
        if condition.is_asked and not condition.formula.matching(there):
            text = condition.formula.text
            raise InputError("column missing", file=source, row=1, field=text, fix=fix)

    taken = {*form.names, *(name for one in form.formulas for name in one.matching(names))}
    taken |= {name for name in names if form.is_log and is_error_name(name)}
    unknown = [name for name in names if name not in taken and name not in form.parents]
    if unknown and not form.ignores_unknown:
        fix += "; or leave it out with --ignore-unknown (`ignore_unknown` in the sheet)"
        raise InputError("unknown column", file=source, row=1, field=unknown[0], fix=fix)

    for name in names:
        if name in taken and names.count(name) > 1:
            raise InputError("column twice", file=source, row=1, field=name, fix=fix)

    return unknown


def some_of(names: list[str]) -> str:
    """Return names of columns in words, of many or long ones the beginning."""
    shown = [name if len(name) <= 60 else f"{name[:60]}…" for name in names[:40]]
    return ", ".join(shown + ["…"] * (len(names) > len(shown)))


def _decodable(source: Path, blocks: Iterator[bytes], line: int) -> Iterator[bytes]:
    """Yield blocks; raise InputError with the line where one is not UTF-8."""
    for text in blocks:
        try:
            text.decode()
        except UnicodeDecodeError as error:
            line += text.count(b"\n", 0, error.start)
            raise _unreadable(source, f"Line: {line}: {error}") from None
        yield text
        line += text.count(b"\n")


def _inner_names(
    form: TraceFormat, header: list[str], blocks: Iterator[bytes]
) -> tuple[list[str], Iterator[bytes]]:
    """Return columns within cells that hold JSON objects, as the first block shows them."""
    if not form.is_log or form.parents.isdisjoint(header):
        return [], blocks
    first = next(blocks, b"")
    rows = [split_line(header, line, form.delimiter) for line in lines_of(first)]
    objects = [with_objects(row, form.parents) for row in rows if isinstance(row, dict)]
    names = dict.fromkeys(chain.from_iterable(objects))
    return [name for name in names if name not in header], chain([first], blocks)


def _csv_blocks(
    form: TraceFormat, names: list[str], blocks: Iterator[bytes]
) -> Iterator[tuple[Block, Raw]]:
    split: Split = partial(split_line, names, delimiter=form.delimiter)
    if form.parts:
        split = with_blocks(split, form.parts, form.block_tokens or 1)
    has_objects = not form.parents.isdisjoint(names)
    taken = _taken(form, names)
    needed = [
        name
        for target in NEEDED_COLUMNS
        if target in form.columns
        for name in form.columns[target].matching(names)
    ]
    for text in blocks:
        block = None
        if not has_objects and not form.parts:
            block = parse_at_once(text, names, taken, needed, form.delimiter)
        if block is None:
            rows = [split(line) if line.strip() else BLANK for line in lines_of(text)]
            block = _block_of(rows, form, [*names, HASH_IDS] if form.parts else names)
        yield block, partial(_raw_lines, text)


def _json_block(text: bytes, form: TraceFormat, names: list[str]) -> tuple[Block, Raw]:
    rows = [_json_row(line, form) if line.strip() else BLANK for line in lines_of(text)]
    return _block_of(rows, form, names), partial(_raw_lines, text)


def _json_row(line: str, form: TraceFormat) -> dict[str, Any] | str:
    """Return the values of a line's object by name, or what is wrong with the line."""
    value = json_value(line)
    try:
        return flat_object(value) if isinstance(value, dict) else "no JSON object"
    except RecursionError:
        return "no JSON object"


def _block_of(rows: list[dict[str, Any] | str], form: TraceFormat, names: list[str]) -> Block:
    """Return rows as columns. A row is what is wrong with it, or its cells by name."""
    faults = np.array([row if isinstance(row, str) else None for row in rows], object)
    objects = [{} if isinstance(row, str) else row for row in rows]
    if form.is_log:
        objects = [with_objects(row, form.parents) for row in objects]
        names = list(dict.fromkeys(chain.from_iterable(objects)))
    columns = {}
    for name in _taken(form, [*names, *list_names(names, form.names)]):
        values = [cell_of(row, name) for row in objects]
        if name == HASH_IDS and not form.is_log:
            for index, value in enumerate(values):
                if value is None:
                    continue
                is_list = isinstance(value, list) and set(map(type, value)) <= {int}
                if not is_list or (value and not (min(value) >= 0 and max(value) < 2**63)):
                    values[index] = None
                    faults[index] = f"{name}: not a list of whole numbers from 0 on"
            columns[name] = pa.array(values, COLUMN_TYPES[HASH_IDS])
        else:
            is_text = (str, type(None))
            texts = [cell if isinstance(cell, is_text) else json.dumps(cell) for cell in values]
            columns[name] = pa.array(texts, pa.string())

    return Block(columns, faults)


def unnamed_error(source: Path) -> InputError:
    """Return the error for a source of which neither format nor columns are stated.

    It names the columns that the source has, and what they likely are.
    """
    form = TraceFormat({}, is_log=True, is_jsonl=True)
    try:
        if not source.is_file():
            return InputError("there is no such file", file=source, fix="correct the trace's path")
        names = _first_names(source, form)
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        return _unreadable(source, str(error))
    except InputError as error:
        return error
    return unnamed_source(source, names, some_of(names))


def _first_names(source: Path, form: TraceFormat) -> list[str]:
    """Return the columns of a source's first rows, whatever its format is."""
    if source.suffix == ".parquet":
        return open_source(source, replace(form, is_jsonl=False)).names
    first = next(read_text_blocks(source), b"").lstrip()[:1]
    if first not in (b"{", b"["):
        return open_source(source, replace(form, is_jsonl=False)).names
    rows = documents.first_rows(source, LIKELY_REQUEST, _FIRST_ROWS)
    flat = (flat_object(row) for row in rows)
    return list(dict.fromkeys(name for row in flat for name in with_objects(row, row.keys())))


def _flat(table: pa.Table) -> pa.Table:
    """Return a table without structs: a dot leads to the name of a column within one."""
    while any(pa.types.is_struct(kind) for kind in table.schema.types):
        table = table.flatten()
    return table
