"""The files of an ingest as they grow: the trace, and the lines set aside.

No step holds the trace in memory. Logs merged from several servers, or put one after another, are
not in order: DuckDB sorts them, on disk where they are long.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sextant.base.errors import InputError
from sextant.base.files import PROVENANCE_KEY
from sextant.trace import date_times
from sextant.trace import trace_format as formats
from sextant.trace.advice import Refused, refusal
from sextant.trace.rules import REJECTED, VALUE, LargerTokens, TraceRows

_FEW = 10
"""With fewer requests, which may be one burst, a mean rate does not show a wrong unit."""
_N_SHOWN = 5
_FAR_AWAY = "arrival: far in time from all other rows"
_FAR = 10.0
"""A time is far if its distance from the middle 98% of all times is above 10 times their span."""
_LEAST_FAR_S = 86_400.0
_NUMBERS = ("arrival_s", "input_tokens", "output_tokens", "e2e_ms")
_NOT_CODED = (*_NUMBERS, "request_id", formats.HASH_IDS)
_BATCH_ROWS = 100_000
_BATCH_VALUES = 2_000_000
"""Most values of a batch of rows: one with block ids has thousands."""
_MEMORY = "300MB"  # of a sort; what does not fit into it goes to the disk
_MOST_VALUES = 1_000  # different cells that break a rule, whose number is kept


@dataclass
class AcceptedRows:
    """The rows of a trace so far."""

    n_accepted: int = 0
    n_failed: int = 0
    n_moved: int = 0  # rows that were late
    most_late_s: float = 0.0
    duration_s: float | None = None  # arrival of the last row
    n_placed: int = 0  # failed requests without a time, which have that of the row before
    n_further_answers: int = 0  # rows of further answers of a request, beside its first


class Output:
    """Two Parquet files that grow, and what has gone into them."""

    def __init__(self, trace: Path, rejected: Path, form: formats.TraceFormat) -> None:
        self._path = trace
        self._form = form
        self._trace = _writer(trace, form.schema)
        settings: dict[str, Any] = {"compression": "zstd", "store_schema": False}
        self._rejected = pq.ParquetWriter(rejected, REJECTED, **settings)
        self.first_tick: float = math.nan  # an int for date-times
        self.is_zoned: bool | None = None
        self.has_no_times = False
        self._shown: list[str] = []
        self._values: Counter[tuple[str, str]] = Counter()
        self._n_left_out: Counter[str] = Counter()
        self._larger: dict[str, LargerTokens] = {}
        self._is_sorted = True
        self._n_by_reason: Counter[str] = Counter()
        self._accepted = AcceptedRows()

    def counts(self) -> dict[str, Any]:
        """Return how many rows were read, accepted and set aside, why, and the accepted's span."""
        n_by_reason = {
            reason: n for reason, n in _by_count(self._n_by_reason) if reason != formats.BLANK
        }
        n_rejected = sum(n_by_reason.values())
        n_left_out = self._n_left_out.total()
        accepted = self._accepted
        return {
            "n_read": accepted.n_accepted - accepted.n_further_answers + n_rejected + n_left_out,
            "n_rejected": n_rejected,
            "n_rejected_by_reason": n_by_reason,
            "n_left_out": n_left_out,
            "n_left_out_by_value": dict(_by_count(self._n_left_out)),
            "n_blank_lines": self._n_by_reason[formats.BLANK],
            **asdict(accepted),
        }

    def require_rows(self, source: Path, max_rejected_fraction: float, names: list[str]) -> None:
        """Raise InputError if there are no rows, or too many malformed ones.

        `names` are columns of the source that are not taken: a fix may be to take them.
        """
        counts = self.counts()
        if counts["n_read"] == 0:
            raise InputError("the trace has no rows", file=source, fix="give a trace with rows")
        if not counts["n_accepted"] and not counts["n_rejected"]:
            values = ", ".join(f"{n:,} × {what}" for what, n in _by_count(self._n_left_out)[:10])
            problem = f"no row is a request: all {counts['n_read']:,} are left out ({values})"
            fix = "correct the condition (`--where`), or give the format the file has"
            raise InputError(problem, file=source, field="where", fix=fix)

        n_requests = counts["n_read"] - counts["n_left_out"]
        is_tolerated = counts["n_rejected"] <= max_rejected_fraction * n_requests
        if counts["n_accepted"] and is_tolerated:
            return

        refused = Refused(
            n_rejected=counts["n_rejected"],
            n_requests=n_requests,
            n_accepted=counts["n_accepted"],
            reasons=counts["n_rejected_by_reason"],
            values=self._values,
            shown=self._shown,
            inputs=[larger.formula for larger in self._larger.values()],
            max_rejected_fraction=max_rejected_fraction,
        )
        raise refusal(refused, source, self._form, names)

    def require_plausible_times(
        self, source: Path, start_time: str | None, max_rate_rps: float
    ) -> None:
        """Refuse a first arrival, a duration or a rate in which a wrong unit shows."""
        date_times.check_first_tick(source, self.first_tick, self._form, start_time)

        duration_s = self._accepted.duration_s or 0.0
        if duration_s > formats.MAX_SPAN_S:
            problem = f"the requests are of {duration_s / date_times.YEAR_S:,.3g} years"
            fix = f"{date_times.WRONG_UNIT}, or leave the rows with wrong times out"
            raise InputError(problem, file=source, field="arrival_s", fix=fix)

        n = self._accepted.n_accepted
        if n >= _FEW and duration_s and n / duration_s > max_rate_rps:
            rate = f"{n / duration_s:,.0f} requests per second on average"
            fix = f"{date_times.WRONG_UNIT}, or raise max_rate_rps (`--max-rate-rps`), now "
            fix += f"{max_rate_rps:g}, if that is the rate"
            problem = f"{rate} ({n} in {duration_s:,.3g} s)"
            raise InputError(problem, file=source, field="arrival_s", fix=fix)

    def write(self, rows: TraceRows) -> None:
        """Append accepted rows to the trace, the others to the lines set aside."""
        if rows.rejected is not None:
            self._set_aside(rows.rejected)
        self._n_left_out.update(rows.left_out)
        for name, larger in rows.larger.items():
            so_far = self._larger.get(name)
            self._larger[name] = larger if so_far is None else so_far.plus(larger)
        self.has_no_times |= not rows.has_times
        self._accepted.n_placed += rows.n_placed
        self._accepted.n_further_answers += rows.n_further

        n = len(rows.tick)
        if not n:
            return
        if not self._accepted.n_accepted:
            self.first_tick = rows.tick[0].item()
            self.is_zoned = rows.is_zoned

        tick = rows.tick
        first = self.first_tick
        elapsed = tick - first
        if tick.dtype == np.int64:  # five centuries of nanoseconds need all bits of both directions
            after = elapsed.view(np.uint64)
            before = (first - tick).view(np.uint64)
            elapsed = np.where(tick >= first, after.astype(float), -before.astype(float))

        arrival_s = elapsed / self._form.units_per_s
        before_s = self._accepted.duration_s or 0.0
        self._is_sorted &= bool(np.all(np.diff(arrival_s, prepend=before_s) >= 0))
        self._accepted.duration_s = arrival_s[-1].item()
        self._accepted.n_accepted += n
        self._accepted.n_failed += pc.sum(pc.equal(rows.columns["status"], "failed")).as_py()
        columns = {**rows.columns, "arrival_s": pa.array(arrival_s)}
        schema = self._form.schema
        arrays = [columns.get(field.name, pa.nulls(n, field.type)) for field in schema]
        self._trace.write_table(pa.table(arrays, schema=schema))

    def _set_aside(self, rejected: pa.Table) -> None:
        for entry in pc.value_counts(rejected["reason"]).to_pylist():
            self._n_by_reason[entry["values"]] += entry["counts"]
        named = rejected.filter(pc.not_equal(rejected["reason"], formats.BLANK))
        for row in named.slice(0, _N_SHOWN - len(self._shown)).to_pylist():
            where = f"line {row['line']}: " if row["line"] else ""
            value = f" ({row[VALUE]!r})" if row[VALUE] is not None else ""
            self._shown.append(f"{where}{row['reason']}{value}")
        for reason, value in zip(
            named["reason"].to_pylist(), named[VALUE].to_pylist(), strict=True
        ):
            if value is not None and (
                len(self._values) < _MOST_VALUES or (reason, value) in self._values
            ):
                self._values[reason, value] += 1
        self._rejected.write_table(named.select(REJECTED.names))

    def tokens_left_out(self) -> dict[str, Any]:
        """Return columns of input tokens that are not taken though the input lacks them."""
        return {
            name: {
                "n_larger": larger.n_larger,
                "mean_tokens": larger.total / larger.n,
                "formula": larger.formula,
            }
            for name, larger in self._larger.items()
        }

    def n_ids(self) -> int:
        """Return how many different ids the trace's requests have; the trace is written then."""
        self._trace.close()
        with TemporaryDirectory(dir=self._path.parent) as folder, duckdb.connect() as database:
            _bound(database, folder)
            rows = formats.parquet_rows(self._path)
            query = f"SELECT count(DISTINCT request_id) FROM {rows}"
            return int(database.execute(query).fetchall()[0][0])

    def put_in_order(self) -> None:
        """Sort the trace by time if it is not; rows whose time is far from all others go aside."""
        if self._is_sorted:
            return

        self._trace.close()
        with TemporaryDirectory(dir=self._path.parent) as folder, duckdb.connect() as database:
            unsorted = Path(folder) / self._path.name
            self._path.rename(unsorted)
            self._trace = _writer(self._path, self._form.schema)
            _bound(database, folder)
            rows = formats.parquet_rows(unsorted, has_row_number=True)

            low_s, high_s = _ends_s(database, rows, self._accepted.n_accepted)
            reach_s = _FAR * (high_s - low_s) + _LEAST_FAR_S
            is_near = f"arrival_s BETWEEN {low_s - reach_s!r} AND {high_s + reach_s!r}"

            lateness = f"""SELECT min(arrival_s), count(*) FILTER (late_s > 0), max(late_s) FROM (
                SELECT arrival_s, max(arrival_s) OVER (ORDER BY file_row_number) - arrival_s
                AS late_s FROM {rows} WHERE {is_near})"""
            start_s, n_moved, most_late_s = database.execute(lateness).fetchall()[0]
            self._accepted.n_moved = n_moved
            self._accepted.most_late_s = most_late_s

            in_order = f"""SELECT * EXCLUDE (file_row_number)
                REPLACE (arrival_s - {start_s!r} AS arrival_s)
                FROM {rows} WHERE {is_near} ORDER BY arrival_s, file_row_number"""
            for batch in database.sql(in_order).to_arrow_reader(_batch_rows(unsorted)):
                table = pa.Table.from_batches([batch]).cast(self._form.schema)
                self._trace.write_table(table)
                self._accepted.duration_s = batch["arrival_s"][-1].as_py()

            far = f"FROM {rows} WHERE NOT {is_near} ORDER BY file_row_number"
            rest = database.sql(far).to_arrow_table().drop_columns("file_row_number")

        if len(rest):
            self._accepted.n_accepted -= len(rest)
            self._accepted.n_failed -= pc.sum(pc.equal(rest["status"], "failed")).as_py()
            raw = [json.dumps(row, separators=(",", ":")) for row in rest.to_pylist()]
            lines = pa.nulls(len(rest), pa.int64())
            table = pa.table([lines, [_FAR_AWAY] * len(rest), raw], schema=REJECTED)
            self._set_aside(table.append_column(VALUE, pa.nulls(len(rest), pa.string())))

        shift = start_s * self._form.units_per_s
        self.first_tick += round(shift) if isinstance(self.first_tick, int) else shift

    def add_provenance(self, origin: Mapping[str, Any]) -> None:
        """Put the provenance into both files."""
        for writer in (self._trace, self._rejected):
            writer.add_key_value_metadata({PROVENANCE_KEY: json.dumps(origin).encode()})

    def close(self) -> None:
        """Finish both files."""
        self._trace.close()
        self._rejected.close()


def _by_count(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _ends_s(database: duckdb.DuckDBPyConnection, rows: str, n: int) -> tuple[float, float]:
    """Return the 1st and the 99th percentile of the arrivals of `n` rows, in seconds.

    They are those of `quantile_disc`, which holds all values in memory.
    """
    low, high = (max(1, math.ceil(share * n)) for share in (0.01, 0.99))
    query = f"""SELECT min(arrival_s), max(arrival_s) FROM (
        SELECT arrival_s, row_number() OVER (ORDER BY arrival_s) AS place FROM {rows})
        WHERE place IN ({low}, {high})"""
    low_s, high_s = database.execute(query).fetchall()[0]
    return low_s, high_s


def _batch_rows(trace: Path) -> int:
    """Return how many rows of a trace are held in memory at a time."""
    stored = pq.read_metadata(trace)
    groups = [stored.row_group(n) for n in range(stored.num_row_groups)]
    n_values = sum(
        group.column(n).num_values for group in groups for n in range(stored.num_columns)
    )
    return max(1, min(_BATCH_ROWS, _BATCH_VALUES * stored.num_rows // n_values))


def _bound(database: duckdb.DuckDBPyConnection, folder: str) -> None:
    """Limit a query's memory; what does not fit goes to the disk.

    Each thread holds blocks of its own that have to fit, so there is one.
    """
    database.execute(
        f"SET threads = 1; SET memory_limit = '{_MEMORY}'; SET enable_progress_bar = false"
    )
    database.execute(f"SET temp_directory = {formats.sql_text(folder)}")


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    # A split into bytes compresses slowly moving numbers better than a dictionary, faster.
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        use_dictionary=[name for name in schema.names if name not in _NOT_CODED],
        # New blocks have the ids that follow on the last ones.
        column_encoding=dict.fromkeys(_NUMBERS, "BYTE_STREAM_SPLIT")
        | {f"{formats.HASH_IDS}.list.element": "DELTA_BINARY_PACKED"},
        write_statistics=list(_NUMBERS),
        store_schema=False,  # so that readers get plain texts
        write_page_checksum=True,
    )
