"""The outputs of ingest, written block by block: the trace in order, and the lines set aside.

A log merged from several servers is late by seconds; several files put one after another are
sorted only in parts. Rows that are not in order are cut into runs by their time, and each run is
sorted by itself, in memory.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sextant.base.files import PROVENANCE_KEY
from sextant.trace.rules import REJECTED, Rows
from sextant.trace.trace_format import BLANK, CODED, CODED_COLUMNS, HASH_IDS, TraceFormat

N_SHOWN = 5
FAR = "arrival: far in time from all other rows"
_NUMBERS = ("arrival_s", "input_tokens", "output_tokens", "e2e_ms")
_NOT_CODED = (*_NUMBERS, "request_id", HASH_IDS)
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


class Output:
    """Two Parquet files that grow, and what has gone into them."""

    def __init__(self, trace: Path, rejected: Path, form: TraceFormat) -> None:
        self._path, self._schema = trace, form.schema
        self._trace = _writer(trace, self._schema)
        self._rejected = pq.ParquetWriter(
            rejected, REJECTED, compression="zstd", store_schema=False
        )
        self._units_per_s = form.units_per_s
        self.first_tick: float = math.nan  # an int for date-times
        self.is_zoned: bool | None = None
        self.duration_s: float | None = None
        self.n_accepted = 0
        self.n_moved, self.most_late_s = 0, 0.0
        self._is_sorted = True
        self.n_failed = 0
        self.n_by_reason: Counter[str] = Counter()
        self.shown: list[tuple[int, str]] = []

    def write(self, rows: Rows) -> None:
        """Append accepted rows to the trace, the others to the lines set aside."""
        if len(rows.tick):
            self._write_trace(rows)
        if rows.rejected is not None:
            self._write_rejected(rows.rejected)

    def _write_rejected(self, rejected: pa.Table) -> None:
        for entry in pc.value_counts(rejected["reason"]).to_pylist():
            self.n_by_reason[entry["values"]] += entry["counts"]
        named = rejected.filter(pc.not_equal(rejected["reason"], BLANK))
        for row in named.slice(0, N_SHOWN - len(self.shown)).to_pylist():
            self.shown.append((row["line"], row["reason"]))
        self._rejected.write_table(named)

    def _write_trace(self, rows: Rows) -> None:
        if not self.n_accepted:
            self.first_tick, self.is_zoned = rows.tick[0].item(), rows.is_zoned
        arrival_s = _elapsed(rows.tick, self.first_tick) / self._units_per_s
        before_s = 0.0 if self.duration_s is None else self.duration_s
        self._is_sorted &= bool(np.all(np.diff(arrival_s, prepend=before_s) >= 0))
        columns = {**rows.columns, "arrival_s": pa.array(arrival_s)}
        arrays = {
            name: self._array(columns.get(name), name, len(arrival_s))
            for name in self._schema.names
        }
        self.duration_s = arrival_s[-1].item()
        self.n_accepted += len(arrival_s)
        self.n_failed += _count(arrays["status"], "failed")
        self._trace.write_table(pa.table(arrays, schema=self._schema))

    def put_in_order(self) -> None:
        """Sort the trace by time if it is not; rows whose time is far from all others go aside."""
        if self._is_sorted:
            return
        self._trace.close()
        with TemporaryDirectory(dir=self._path.parent) as folder:
            unsorted = Path(folder) / self._path.name
            self._path.rename(unsorted)
            self._trace = _writer(self._path, self._schema)
            runs = cut_into_runs(unsorted, Path(folder), self.n_accepted, self._schema)
            for rows in runs.sorted_rows():
                self._trace.write_table(rows)
                self.duration_s = rows["arrival_s"][-1].as_py()
        self.n_moved, self.most_late_s = runs.n_moved, runs.most_late_s
        shift = runs.start_s * self._units_per_s
        self.first_tick += round(shift) if isinstance(self.first_tick, int) else shift
        if len(runs.far):
            self._set_far_aside(runs.far)

    def _set_far_aside(self, far: pa.Table) -> None:
        self.n_accepted -= len(far)
        self.n_failed -= pc.sum(pc.equal(far["status"].cast(pa.string()), "failed")).as_py()
        raw = [json.dumps(row, separators=(",", ":")) for row in far.to_pylist()]
        lines = pa.nulls(len(far), pa.int64())
        self._write_rejected(pa.table([lines, [FAR] * len(far), raw], schema=REJECTED))

    def _array(self, column: pa.Array | None, name: str, n: int) -> pa.Array:
        column_type = self._schema.field(name).type
        if column is None:
            column = pa.nulls(n, column_type)
        is_to_code = column_type == CODED and column.type != CODED
        return column.dictionary_encode() if is_to_code else column

    def add_provenance(self, origin: Mapping[str, Any]) -> None:
        """Put the provenance into both files."""
        for writer in (self._trace, self._rejected):
            writer.add_key_value_metadata({PROVENANCE_KEY: json.dumps(origin).encode()})

    def close(self) -> None:
        """Finish both files."""
        self._trace.close()
        self._rejected.close()


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    # A split into bytes compresses slowly moving numbers better than a dictionary, faster.
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        use_dictionary=[name for name in schema.names if name not in _NOT_CODED],
        # New blocks have the ids that follow on the last ones.
        column_encoding=dict.fromkeys(_NUMBERS, "BYTE_STREAM_SPLIT")
        | {f"{HASH_IDS}.list.element": "DELTA_BINARY_PACKED"},
        write_statistics=list(_NUMBERS),
        store_schema=False,  # so that readers get plain texts
        write_page_checksum=True,
    )


def _elapsed(tick: np.ndarray, first: float) -> np.ndarray:
    """Return the ticks less the first one, in the source's unit; no difference overflows."""
    if tick.dtype != np.int64:
        return tick - first
    # Five centuries of nanoseconds need all bits of both directions.
    after, before = (tick - first).view(np.uint64), (first - tick).view(np.uint64)
    return np.where(tick >= first, after.astype(float), -before.astype(float))


def _count(coded: pa.DictionaryArray, text: str) -> int:
    code = coded.dictionary.index(text).as_py()
    return int(np.count_nonzero(coded.indices.to_numpy() == code))
