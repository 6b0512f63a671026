"""The outputs of ingest, written block by block: the trace, and the lines set aside."""

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sextant.base.files import PROVENANCE_KEY
from sextant.trace.clock import REJECTED, Rows
from sextant.trace.order import cut_into_runs
from sextant.trace.trace_format import BLANK, CODED, HASH_IDS, TraceFormat

N_SHOWN = 5
FAR = "arrival: far in time from all other rows"
_NUMBERS = ("arrival_s", "input_tokens", "output_tokens", "e2e_ms")
_NOT_CODED = (*_NUMBERS, "request_id", HASH_IDS)


class Output:
    """Two Parquet files that grow, and what has gone into them."""

    def __init__(
        self, trace: Path, rejected: Path, form: TraceFormat, constants: Mapping[str, str | None]
    ) -> None:
        """Open both; `constants` fill a text column where the source names nothing."""
        self._path, self._schema = trace, form.schema
        self._trace = _writer(trace, self._schema)
        self._rejected = pq.ParquetWriter(
            rejected, REJECTED, compression="zstd", store_schema=False
        )
        self._units_per_s = form.units_per_s
        self._constants = constants
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
        column_type, constant = self._schema.field(name).type, self._constants.get(name)
        if column is None:
            column = pa.nulls(n, column_type)
        if constant is not None and column.null_count:
            column = column.cast(pa.string()).fill_null(constant)
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
    """Return how many units ticks lie after the first one, or (below 0) before it."""
    if tick.dtype != np.int64:
        return tick - first
    # Five centuries of nanoseconds need all bits of both directions.
    after, before = (tick - first).view(np.uint64), (first - tick).view(np.uint64)
    return np.where(tick >= first, after.astype(float), -before.astype(float))


def _count(coded: pa.DictionaryArray, text: str) -> int:
    code = coded.dictionary.index(text).as_py()
    return int(np.count_nonzero(coded.indices.to_numpy() == code))
