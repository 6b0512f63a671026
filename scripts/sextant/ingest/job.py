"""One ingest: from the source to the trace, the lines set aside and the report.

A text source is read in blocks of whole lines, a Parquet file in batches of rows. Blocks are
parsed (`cells`) and judged line by line (`rules`) on all threads; what depends on the lines before
(`clock`) and the outputs (`write`) follow in order. No step holds the trace in memory.
"""

import csv
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sextant.base.errors import InputError
from sextant.base.files import atomic_path, provenance, write_json
from sextant.ingest.blocks import ahead, fetched, read_blocks
from sextant.ingest.cells import lines_of, read_batch, read_csv, read_json
from sextant.ingest.clock import Clock, Rows
from sextant.ingest.date_times import check_start_time, start_facts
from sextant.ingest.rules import Judged, judge
from sextant.ingest.trace_format import BLANK, FORMATS, TraceFormat
from sextant.ingest.write import Output

BATCH_ROWS = 100_000
"""Rows of a Parquet file that are checked at a time."""
_MAX_THREADS = 16
"""More would not read faster, since one thread writes; each holds blocks in memory."""


def ingest_trace(
    source: str | Path,
    trace_format: str,
    trace_out: str | Path,
    rejected_out: str | Path,
    report_out: str | Path,
    *,
    llm: str | None = None,
    service: str | None = None,
    max_rejected_fraction: float = 0.01,
    start_time: str | None = None,
    threads: int | None = None,
    **provenance_facts: Any,
) -> dict[str, Any]:
    """Normalise a trace to Parquet; write its malformed rows and a report beside it.

    A request without an output token is `failed`, unless the source has a status of its own.
    A request without an id gets its line number. Blank lines are not rows; they are counted.
    The report and the provenance carry `start_time`, the date-time of `arrival_s` = 0 (in UTC
    where a zone is known; null if nothing tells it), and `first_tick_s`, what the source's
    clock shows then (null for date-times).

    Args:
        source: CSV, JSON lines (`.gz` and `.zst` too) or, for `sextant`, also Parquet.
        trace_format: a name in `FORMATS`.
        trace_out: the trace contract (`TRACE_COLUMNS`), in the order of arrival.
        rejected_out: `line` (a CSV's header is line 1; Parquet's first row is 1), `reason`
            and `raw` of every malformed row.
        report_out: JSON with what this function returns.
        llm: LLM of the requests where the source names none; likewise `service`.
        service: see `llm`.
        max_rejected_fraction: largest share of malformed rows that is tolerated.
        start_time: ISO 8601 date-time at which the source's clock shows zero, for a format
            whose arrivals are numbers.
        threads: how many read at once; None: as many as there are cores, up to 16.
        **provenance_facts: more facts for the outputs' provenance.

    Raises:
        InputError: wrong columns, no rows, too many malformed ones, a `start_time` that is not a
            date-time or not needed, a share outside 0 to 1, or an output that would replace the
            source or another output; no output is written.
    """
    source = Path(source)
    form = _format(trace_format)
    if start_time is not None:
        check_start_time(start_time, form)
    if not 0 <= max_rejected_fraction <= 1:
        problem, fix = f"a share of {max_rejected_fraction}", "give a number from 0 to 1"
        raise InputError(problem, field="max_rejected_fraction", fix=fix)
    if not source.is_file():
        raise InputError("there is no such file", file=source, fix="correct the trace's path")
    n_threads = threads or min(os.cpu_count() or 1, _MAX_THREADS)
    paths = [Path(path) for path in (trace_out, rejected_out, report_out)]
    _check_paths(source, paths)
    with ExitStack() as stack:
        # Two threads more: one reads the source, one takes its checksum.
        pool = stack.enter_context(ThreadPoolExecutor(n_threads + 2))
        facts = {"trace_format": trace_format, **provenance_facts}
        origin = pool.submit(provenance, {"source": source}, **facts)
        trace, rejected, summary = (stack.enter_context(atomic_path(path)) for path in paths)
        output = Output(trace, rejected, form.units_per_s, {"llm": llm, "service": service})
        stack.callback(output.close)
        for rows in _read(source, form, pool, n_threads):
            output.write(rows)
        counts = _counts(output)
        _check_counts(source, counts, output.shown, max_rejected_fraction)
        start = start_facts(output.first_tick, form, start_time, output.is_zoned)
        known = origin.result() | start
        output.add_provenance(known)
        report = {
            **counts,
            **start,
            "source_sha256": known["inputs_sha256"]["source"],
            "provenance": known,
        }
        write_json(summary, report)
    return report


def _format(name: str) -> TraceFormat:
    if name in FORMATS:
        return FORMATS[name]
    fix = f"use one of {', '.join(FORMATS)}"
    raise InputError(f"unknown trace format {name!r}", field="format", fix=fix)


def _check_paths(source: Path, paths: Sequence[Path]) -> None:
    taken = {source.resolve(): "the source"}
    for path in paths:
        if path.resolve() in taken:
            problem = f"the output would replace {taken[path.resolve()]}"
            raise InputError(problem, file=path, fix="give each file a name of its own")
        taken[path.resolve()] = "another output"


def _read(source: Path, form: TraceFormat, pool: Executor, n_threads: int) -> Iterator[Rows]:
    is_parquet = source.suffix == ".parquet" and not form.is_jsonl
    try:
        yield from (_read_parquet if is_parquet else _read_text)(source, form, pool, n_threads)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(source, str(error)) from None


def _read_parquet(
    source: Path, form: TraceFormat, pool: Executor, n_threads: int
) -> Iterator[Rows]:
    with pq.ParquetFile(source) as stored:
        names = stored.schema_arrow.names
        _check_columns(source, form, names)
        clock = _clock(form, names, next_line=1)
        check = partial(_check_batch, form=form)
        batches = fetched(pool, stored.iter_batches(BATCH_ROWS))
        for batch, judged in ahead(pool, check, batches, n_threads + 1):
            yield clock.settle(judged, partial(_raw_rows, batch))


def _check_batch(batch: pa.RecordBatch, form: TraceFormat) -> Judged:
    return judge(read_batch(batch, form), form, batch.schema.names)


def _raw_rows(batch: pa.RecordBatch, places: np.ndarray) -> list[str]:
    rows = batch.take(pa.array(places)).to_pylist()
    return [json.dumps(row, default=str, separators=(",", ":")) for row in rows]


def _clock(form: TraceFormat, names: list[str], next_line: int) -> Clock:
    return Clock(form.sources(names)["arrival_s"], next_line)


def _unreadable(source: Path, error: str) -> InputError:
    fix = "give the file whole, as its publisher wrote it, in UTF-8"
    return InputError(f"cannot be read ({' '.join(error.split())[:300]})", file=source, fix=fix)


def _read_text(source: Path, form: TraceFormat, pool: Executor, n_threads: int) -> Iterator[Rows]:
    blocks = fetched(pool, read_blocks(source))
    names, blocks = _columns(source, form, blocks)
    _check_columns(source, form, names)
    clock = _clock(form, names, next_line=1 if form.is_jsonl else 2)
    check = partial(_check_text, form=form, names=names)
    try:
        for text, judged in ahead(pool, check, blocks, n_threads + 1):
            yield clock.settle(judged, partial(_raw_lines, text))
    except UnicodeDecodeError as error:
        line = clock.next_line + error.object.count(b"\n", 0, error.start)
        raise _unreadable(source, f"Line: {line}: {error}") from None


def _check_text(text: bytes, form: TraceFormat, names: list[str]) -> Judged:
    if not text.isascii():
        text.decode()  # to be told where it is not UTF-8
    read = read_json if form.is_jsonl else read_csv
    return judge(read(text, form, names), form, names)


def _raw_lines(text: bytes, places: np.ndarray) -> list[str]:
    lines = lines_of(text)
    return [lines[place] for place in places]


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
        text = head.decode()
        if not form.is_jsonl:
            names = [name.strip() for name in next(csv.reader([text]), [])]
            return names, chain([body] if body else [], blocks)
        return list(dict(json.loads(text))), chain([first], blocks)
    except UnicodeDecodeError as error:
        raise _unreadable(source, f"Line: 1: {error}") from None
    except csv.Error as error:
        fix = "put the names of the columns there"
        raise InputError(f"no header ({error})", file=source, row=1, fix=fix) from None
    except (TypeError, ValueError):
        fix = "put one JSON object in each line"
        raise InputError("no JSON object", file=source, row=1, fix=fix) from None


def _check_columns(source: Path, form: TraceFormat, names: list[str]) -> None:
    fix = f"the format needs {', '.join(form.required)}"
    if form.optional:
        fix += f"; it may have {', '.join(name for name in form.columns if name in form.optional)}"
    for name in form.required:
        if name not in names:
            raise InputError("column missing", file=source, row=1, field=name, fix=fix)
    for name in names:
        if name not in form.columns:
            raise InputError("unknown column", file=source, row=1, field=name, fix=fix)
        if names.count(name) > 1:
            raise InputError("column twice", file=source, row=1, field=name, fix=fix)


def _counts(output: Output) -> dict[str, Any]:
    n_by_reason = dict(sorted(output.n_by_reason.items(), key=lambda item: (-item[1], item[0])))
    n_blank_lines = n_by_reason.pop(BLANK, 0)
    n_rejected = sum(n_by_reason.values())
    return {
        "n_read": output.n_accepted + n_rejected,
        "n_accepted": output.n_accepted,
        "n_rejected": n_rejected,
        "n_rejected_by_reason": n_by_reason,
        "n_blank_lines": n_blank_lines,
        "n_failed": output.n_failed,
        "duration_s": output.duration_s,
    }


def _check_counts(
    source: Path,
    counts: Mapping[str, Any],
    shown: list[tuple[int, str]],
    max_rejected_fraction: float,
) -> None:
    """Refuse a trace that has no rows or strays too far from its format."""
    if counts["n_read"] == 0:
        raise InputError("the trace has no rows", file=source, fix="give a trace with rows")
    is_tolerated = counts["n_rejected"] <= max_rejected_fraction * counts["n_read"]
    if counts["n_accepted"] and is_tolerated:
        return
    where = "; ".join(f"line {line}: {reason}" for line, reason in shown)
    problem = f"{counts['n_rejected']} of {counts['n_read']} rows are malformed ({where})"
    fix = f"correct them, or raise max_rejected_fraction, now {max_rejected_fraction}"
    raise InputError(problem, file=source, fix=fix)
