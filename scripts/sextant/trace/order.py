"""Rows that did not come in the order of time: sorted on disk, in the memory of one run of them.

A log merged from several servers is late by seconds; one of several files put after one another is
sorted only in parts. The rows go into runs by their time, and each run is sorted by itself.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sextant.trace.trace_format import CODED_COLUMNS

RUN_ROWS = 500_000
"""Rows that are sorted at a time, about."""
_BATCH_ROWS = 100_000
_SAMPLE = 100_000
_FAR = 10.0
"""A time is far if it is farther from the middle 98% of all than these last, so many times."""
_LEAST_FAR_S = 86_400.0


@dataclass(frozen=True)
class Runs:
    """The rows of a trace in runs, one after the other in time."""

    files: tuple[Path, ...]
    start_s: float
    """The first arrival; arrivals of the sorted rows count from there."""
    n_moved: int
    """Rows that stood after a row that arrived later."""
    most_late_s: float
    """By how much, at most."""
    far: pa.Table
    """Rows whose time is far from all others: of a clock that was wrong."""

    def sorted_rows(self) -> Iterator[pa.Table]:
        """Yield the rows in order, those of one time as they stood."""
        for file in self.files:
            table = _open(file).read().unify_dictionaries()
            arrival_s = table["arrival_s"].to_numpy()
            table = table.take(pa.array(np.argsort(arrival_s, kind="stable")))
            place = table.schema.get_field_index("arrival_s")
            times = pa.array(table["arrival_s"].to_numpy() - self.start_s)
            table = table.set_column(place, table.schema.field(place), times)
            for begin in range(0, len(table), _BATCH_ROWS):
                yield table.slice(begin, _BATCH_ROWS)


def cut_into_runs(unsorted: Path, folder: Path, n_rows: int, schema: pa.Schema) -> Runs:
    """Cut `unsorted`, Parquet of `schema`, into runs, which are written to `folder`."""
    sample = _sampled_times(unsorted, n_rows)
    low_s, high_s = _span(sample)
    n_runs = -(-n_rows // RUN_ROWS)
    edges_s = sample[np.arange(1, n_runs) * len(sample) // n_runs]
    files = tuple(folder / f"{number}.parquet" for number in range(n_runs))
    latest_s, start_s, n_moved, most_late_s, far = -np.inf, np.inf, 0, 0.0, []
    with ExitStack() as stack:
        writers = [stack.enter_context(pq.ParquetWriter(file, schema)) for file in files]
        for batch in _open(unsorted).iter_batches(_BATCH_ROWS):
            rows = pa.Table.from_batches([batch]).cast(schema)
            arrival_s = rows["arrival_s"].to_numpy()
            is_far = (arrival_s < low_s) | (arrival_s > high_s)
            if is_far.any():
                far.append(rows.filter(pa.array(is_far)))
                rows, arrival_s = rows.filter(pa.array(~is_far)), arrival_s[~is_far]
            so_far = np.maximum.accumulate(np.append(latest_s, arrival_s))
            late_s = so_far[1:] - arrival_s
            latest_s, start_s = so_far[-1], min(start_s, arrival_s.min(initial=np.inf))
            n_moved += int(np.count_nonzero(late_s))
            most_late_s = max(most_late_s, float(late_s.max(initial=0.0)))
            run = np.searchsorted(edges_s, arrival_s, side="right")
            for number in np.flatnonzero(np.bincount(run)):
                writers[number].write_table(rows.filter(pa.array(run == number)))
    set_aside = pa.concat_tables(far or [schema.empty_table()])
    return Runs(files, float(start_s), n_moved, most_late_s, set_aside)


def _open(path: Path) -> pq.ParquetFile:
    return pq.ParquetFile(path, read_dictionary=list(CODED_COLUMNS))


def _sampled_times(path: Path, n_rows: int) -> np.ndarray:
    """Return every k-th arrival, ascending."""
    every, kept, n_before = -(-n_rows // _SAMPLE), [], 0
    for batch in _open(path).iter_batches(_BATCH_ROWS, columns=["arrival_s"]):
        arrival_s = batch.column(0).to_numpy()
        kept.append(arrival_s[-n_before % every :: every])
        n_before += len(arrival_s)
    return np.sort(np.concatenate(kept))


def _span(sample: np.ndarray) -> tuple[float, float]:
    """Return from when to when a time is not far from all others."""
    low_s, high_s = np.quantile(sample, [0.01, 0.99], method="inverted_cdf")
    reach_s = _FAR * (high_s - low_s) + _LEAST_FAR_S
    return low_s - reach_s, high_s + reach_s
