"""The long way of a source: DuckDB checks every line and says what is wrong with it."""

from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sextant.ingest.rows import Rows, placed
from sextant.ingest.trace_format import TRACE_COLUMNS, TraceFormat, parquet_rows, rows_query

MEMORY_LIMIT = "256MB"
"""What DuckDB may hold in memory; it streams, and needs far less."""
_N_ROWS = 100_000
_NEWLINE = ord("\n")


class LineChecker:
    """Checks the lines of one source."""

    def __init__(self, form: TraceFormat, n_threads: int = 1) -> None:
        """Start DuckDB; a checker serves one thread at a time."""
        config = {"memory_limit": MEMORY_LIMIT, "temp_directory": "", "threads": n_threads}
        self._database = duckdb.connect(config=config)
        self._form = form

    def check_text(
        self,
        text: bytes,
        names: list[str],
        latest_tick: float | None = None,
        is_zoned: bool | None = None,
    ) -> Rows:
        """Check a block of lines of CSV, or of JSON objects (see `rows_query`)."""
        self._database.register("block", _lines_table(text))
        query = rows_query(
            self._form,
            "(SELECT line, rtrim(raw, chr(13) || chr(10)) AS raw FROM block)",
            names,
            is_csv=not self._form.is_jsonl,
            latest_tick=latest_tick,
            is_zoned=is_zoned,
        )
        return _rows(self._database.sql(query).to_arrow_table())

    def parquet_columns(self, source: Path) -> list[str]:
        """Return the names of the columns of a Parquet file; OSError if it is none."""
        try:
            return self._database.sql(f"FROM {parquet_rows(source)}").columns
        except duckdb.Error as error:
            raise OSError(str(error)) from None

    def check_parquet(self, source: Path, names: list[str]) -> Iterator[Rows]:
        """Check a Parquet file's rows, some at a time; the first one is line 1."""
        # As JSON, so that one set of checks serves every kind of source.
        lines = f"""(SELECT row_number() OVER () AS line, to_json(t) AS raw
            FROM {parquet_rows(source)} AS t)"""
        first = rows_query(self._form, f"(FROM {lines} LIMIT {_N_ROWS})", names, is_csv=False)
        try:
            # Known from the start, the zone of date-times need not be looked up in all rows.
            is_zoned = _rows(self._database.sql(first).to_arrow_table()).is_zoned
            query = rows_query(self._form, lines, names, is_csv=False, is_zoned=is_zoned)
            for batch in self._database.sql(query).to_arrow_reader(_N_ROWS):
                yield placed(_rows(pa.Table.from_batches([batch])), first_line=0)
        except duckdb.Error as error:
            raise OSError(str(error)) from None


def _lines_table(text: bytes) -> pa.Table:
    """Return `line` (from 0 on) and `raw` (its newline included) of a block."""
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE) + 1
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    raw = pa.StringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(text))
    return pa.table({"line": np.arange(len(ends)), "raw": raw})


def _rows(checked: pa.Table) -> Rows:
    """Return the result of `rows_query` as `Rows`."""
    is_accepted = pc.is_null(checked["reason"])
    accepted = checked.filter(is_accepted)
    # A zone counts as soon as a date-time could be read, as it does in the query.
    zones = checked.filter(pc.is_valid(checked["tick"]))["is_zoned"]
    return Rows(
        columns={name: accepted[name].combine_chunks() for name in TRACE_COLUMNS},
        tick=accepted["tick"].to_numpy(),
        is_zoned=zones[0].as_py() if len(zones) else None,
        n_lines=len(checked),
        line=accepted["line"].to_numpy(),
        rejected=checked.filter(pc.invert(is_accepted)).select(["line", "reason", "raw"]),
    )
