"""A trace read in the order of arrival, a batch at a time, whatever its length."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sextant.base.errors import InputError
from sextant.base.files import MAKE_TRACE_AGAIN, reading

MAX_GROUPS = 2**15 - 1
"""Most pairs of LLM and service, null among them: few enough for the quickest of sorts."""
BATCH_ROWS = 1 << 18

Group = tuple[str | None, str | None]


class Survey(NamedTuple):
    """What a trace holds: groups in order, the end, and each group's smallest positive gap (0: no
    stamps are equal, so the clock is fine)."""

    groups: dict[Group, int]
    step_s: np.ndarray
    end_s: float


class ArrivalBatch(NamedTuple):
    """Requests in the order of arrival, with a uniform draw each for `judge_steps`."""

    arrival_s: np.ndarray
    group: np.ndarray
    offset: np.ndarray


def window_of(arrival_s: np.ndarray | float, window_s: float) -> np.ndarray:
    """Return the number of the window that an arrival falls into."""
    return np.floor(np.asarray(arrival_s) / window_s).astype(np.int64)


def survey_trace(trace: str | Path) -> Survey:
    """Read the trace once for its groups, their smallest positive gaps, and its end."""
    groups: dict[Group, int] = {}
    last_s, step_s = np.full(MAX_GROUPS, np.nan), np.full(MAX_GROUPS, np.inf)
    has_zero, end_s = np.zeros(MAX_GROUPS, bool), 0.0
    for rows in read_arrivals(trace, groups, None):
        # NaN is not in order either.
        if not (rows.arrival_s[0] >= end_s and np.all(np.diff(rows.arrival_s) >= 0)):
            problem, fix = "arrivals are not in ascending order from 0", "ingest the trace again"
            raise InputError(problem, file=trace, field="arrival_s", fix=fix)
        end_s = float(rows.arrival_s[-1])
        arrival_s, group, _ = by_group(rows)
        first = np.flatnonzero(np.diff(group, prepend=-1))
        present = group[first]
        before = np.concatenate([[np.nan], arrival_s[:-1]])
        before[first] = last_s[present]
        gaps = arrival_s - before
        positive = np.where(gaps > 0, gaps, np.inf)
        step_s[present] = np.minimum(step_s[present], np.minimum.reduceat(positive, first))
        has_zero[present] |= np.logical_or.reduceat(gaps == 0, first)
        last_s[present] = arrival_s[np.append(first[1:], len(group)) - 1]
    if not groups:
        raise InputError("the trace has no request", file=trace, fix="give a trace with rows")
    step_s = np.where(has_zero & np.isfinite(step_s), step_s, 0.0)
    in_order = sorted(groups, key=lambda group: [(name is None, name or "") for name in group])
    step_s = step_s[[groups[group] for group in in_order]]
    return Survey({group: number for number, group in enumerate(in_order)}, step_s, end_s)


def read_arrivals(
    trace: str | Path, groups: dict[Group, int], rng: np.random.Generator | None
) -> Iterator[ArrivalBatch]:
    """Yield the trace in batches; a group that is not in `groups` gets the next number."""
    known: tuple[dict, dict] = ({}, {})
    for batch in read_batches(trace, ["arrival_s", "llm", "service"]):
        if not batch.num_rows:
            continue
        llm, service = (
            _codes(batch.column(name), codes)
            for name, codes in zip(("llm", "service"), known, strict=True)
        )
        if len(known[0]) * len(known[1]) > MAX_GROUPS:
            problem = f"{len(known[0])} LLMs and {len(known[1])} services"
            fix = "name the LLM and the service there, not the request"
            raise InputError(problem, file=trace, field="llm", fix=fix)
        pairs = [(one, other) for one in known[0] for other in known[1]]
        number = np.zeros(len(pairs), np.int16)
        place = llm * len(known[1]) + service
        for code in np.flatnonzero(np.bincount(place)):
            number[code] = groups.setdefault(pairs[code], len(groups))
        arrival_s = batch.column("arrival_s").to_numpy(zero_copy_only=False)
        # Drawn in the file's order, so that no batch size changes a request's draw.
        offset = np.zeros(0) if rng is None else rng.random(len(arrival_s))
        yield ArrivalBatch(arrival_s, number[place], offset)


class TraceTimes:
    """The arrivals (s) of a trace, batch after batch, as often as they are asked for."""

    def __init__(self, trace: str | Path) -> None:
        self._trace = trace

    def __iter__(self) -> Iterator[np.ndarray]:
        for batch in read_batches(self._trace, ["arrival_s"]):
            yield batch.column(0).to_numpy(zero_copy_only=False)


def read_batches(trace: str | Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield columns of a trace, those of few texts as dictionaries."""
    with reading(trace, fix=MAKE_TRACE_AGAIN):
        # What is read ahead would be kept until the end: the whole of the columns.
        options = {"pre_buffer": False, "page_checksum_verification": True}
        with pq.ParquetFile(trace, read_dictionary=["llm", "service"], **options) as file:
            # Threads cost more than few columns take, and the caller has work for other cores.
            yield from file.iter_batches(BATCH_ROWS, columns=columns, use_threads=False)


def _codes(column: pa.Array, known: dict[str | None, int]) -> np.ndarray:
    """Return a column's values as numbers, which `known` keeps from one batch to the next."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    values = [*encoded.dictionary.to_pylist(), None]
    numbers = np.array([known.setdefault(value, len(known)) for value in values])
    return numbers[encoded.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)]


def by_group(rows: ArrivalBatch) -> ArrivalBatch:
    """Order requests by group; within one they stay in the order of arrival."""
    if np.all(rows.group == rows.group[0]):
        return rows
    order = np.argsort(rows.group, kind="stable")
    return ArrivalBatch(*(values[order] if len(values) else values for values in rows))


def whole_windows(batches: Iterator[ArrivalBatch], window_s: float) -> Iterator[ArrivalBatch]:
    """Cut the stream between windows instead of within them."""
    held: list[ArrivalBatch] = []
    for rows in batches:
        held.append(rows)
        ends = window_of(np.array([held[0].arrival_s[0], rows.arrival_s[-1]]), window_s)
        if ends[0] == ends[1]:
            continue
        rows = ArrivalBatch(*map(np.concatenate, zip(*held, strict=True)))
        cut = int(np.searchsorted(window_of(rows.arrival_s, window_s), ends[1]))
        yield ArrivalBatch(*(values[:cut] for values in rows))
        held = [ArrivalBatch(*(values[cut:] for values in rows))]
    if held:
        yield ArrivalBatch(*map(np.concatenate, zip(*held, strict=True)))
