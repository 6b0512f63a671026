"""The outputs of ingest, written block by block: the trace in order, and the lines set aside.

A log merged from several servers is late by seconds; several files put one after another are
sorted only in parts. DuckDB sorts rows that are not in order, on disk where they are many.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sextant.base.files import PROVENANCE_KEY
from sextant.trace.rules import REJECTED, Rows
from sextant.trace.trace_format import BLANK, CODED, HASH_IDS, TraceFormat, parquet_rows, sql_text

N_SHOWN = 5
FAR = "arrival: far in time from all other rows"
_NUMBERS = ("arrival_s", "input_tokens", "output_tokens", "e2e_ms")
_NOT_CODED = (*_NUMBERS, "request_id", HASH_IDS)
_BATCH_ROWS = 100_000
_MEMORY = "300MB"
"""Of a sort; what does not fit into it goes to the disk."""
_FAR = 10.0
"""A time is far if it is farther from the middle 98% of all than these last, so many times."""
_LEAST_FAR_S = 86_400.0


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
        with TemporaryDirectory(dir=self._path.parent) as folder, duckdb.connect() as database:
            unsorted = Path(folder) / self._path.name
            self._path.rename(unsorted)
            self._trace = _writer(self._path, self._schema)
            database.execute(f"SET memory_limit = '{_MEMORY}'; SET enable_progress_bar = false")
            database.execute(f"SET temp_directory = {sql_text(folder)}")
            rows = parquet_rows(unsorted, has_row_number=True)
            ends = f"SELECT quantile_disc(arrival_s, [0.01, 0.99]) FROM {rows}"
            low_s, high_s = database.execute(ends).fetchall()[0][0]
            reach_s = _FAR * (high_s - low_s) + _LEAST_FAR_S
            is_near = f"arrival_s BETWEEN {low_s - reach_s!r} AND {high_s + reach_s!r}"
            found = f"""SELECT min(arrival_s), count(*) FILTER (late_s > 0), max(late_s) FROM (
                SELECT arrival_s, max(arrival_s) OVER (ORDER BY file_row_number) - arrival_s
                AS late_s FROM {rows} WHERE {is_near})"""
            start_s, self.n_moved, self.most_late_s = database.execute(found).fetchall()[0]
            in_order = f"""SELECT * EXCLUDE (file_row_number)
                REPLACE (arrival_s - {start_s!r} AS arrival_s)
                FROM {rows} WHERE {is_near} ORDER BY arrival_s, file_row_number"""
            for batch in database.sql(in_order).to_arrow_reader(_BATCH_ROWS):
                self._trace.write_table(pa.Table.from_batches([batch]).cast(self._schema))
                self.duration_s = batch["arrival_s"][-1].as_py()
            far = f"FROM {rows} WHERE NOT {is_near} ORDER BY file_row_number"
            rest = database.sql(far).to_arrow_table()
            self._set_far_aside(rest.drop_columns("file_row_number"))
        shift = start_s * self._units_per_s
        self.first_tick += round(shift) if isinstance(self.first_tick, int) else shift

    def _set_far_aside(self, far: pa.Table) -> None:
        if not len(far):
            return
        self.n_accepted -= len(far)
        self.n_failed -= pc.sum(pc.equal(far["status"], "failed")).as_py()
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
