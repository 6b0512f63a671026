"""One ingest: from the source to the trace, the lines set aside and the report.

No step holds the trace in memory. Logs merged from several servers, or put one after another, are
not in order: DuckDB sorts them, on disk where they are long.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sextant.base.errors import InputError
from sextant.base.files import PROVENANCE_KEY, atomic_path, provenance, write_json
from sextant.trace import date_times
from sextant.trace import trace_format as formats
from sextant.trace.metric_samples import read_files
from sextant.trace.metrics_trace import PROMETHEUS, ingest_metrics
from sextant.trace.reading import as_written, read_rows
from sextant.trace.rules import NO_STATUS, REJECTED, STATUSES, TraceRows

MAX_RATE_RPS = 1000.0
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
_MEMORY = "300MB"  # of a sort; what does not fit into it goes to the disk


@dataclass(frozen=True, kw_only=True)
class IngestSettings:
    """How the rows of a source are read, and what is tolerated in them."""

    columns: formats.Columns | None = None
    """The log's name of each column, for the format `columns`; or the path of a mapping file."""
    time_unit: str | None = None  #: Unit of the arrivals of `columns`; see `formats.TIME_UNITS`.
    start_time: str | None = None  #: ISO 8601 date-time at which the source's clock shows zero.
    ignore_unknown: bool = False
    """Leave out columns that the format does not know; the report names them."""
    max_rejected_fraction: float = 0.01  #: Largest share of malformed rows that is tolerated.
    max_rate_rps: float = MAX_RATE_RPS
    """Highest mean rate that is believed; a wrong unit of time shows in it."""

    def __post_init__(self) -> None:
        if not 0 <= self.max_rejected_fraction <= 1:
            problem = f"a share of {self.max_rejected_fraction}"
            fix = "give a number from 0 to 1"
            raise InputError(problem, field="max_rejected_fraction", fix=fix)

    def require_none(self, trace_format: str, *names: str) -> None:
        """Raise InputError if one of these settings is stated, which a format has itself."""
        for name in names:
            if getattr(self, name) is not None:
                raise InputError(f"{trace_format} has its own", field=name, fix="leave it out")

    def format_of(
        self, source: Path, trace_format: str, columns: formats.Columns | None
    ) -> formats.TraceFormat:
        """Return the format of a source, with what the settings and its first lines say."""
        form = formats.named_format(trace_format, source, columns, self.time_unit)
        form = replace(form, ignores_unknown=form.ignores_unknown or self.ignore_unknown)
        if not source.is_file():
            problem = "is not a file" if source.exists() else "there is no such file"
            raise InputError(problem, file=source, fix="correct the trace's path")

        form = as_written(source, form, has_unit=self.time_unit is not None)
        if self.start_time is not None:
            date_times.check_start_time(self.start_time, form)

        return form


DEFAULT_SETTINGS = IngestSettings()


def ingest_trace(
    source: str | Path,
    trace_format: str,
    trace_out: str | Path,
    rejected_out: str | Path,
    report_out: str | Path,
    settings: IngestSettings = DEFAULT_SETTINGS,
) -> dict[str, Any]:
    """Normalise a trace to Parquet; write its malformed rows and a report, too.

    A request without an output token is `failed`, unless the source has a status of its own; a
    failed request needs no tokens. A request without an id gets its line number. Report and
    provenance have `start_time`, the date-time of `arrival_s` = 0 (in UTC where the zone is known,
    null if unknown), and `first_tick_s`, what the source's clock shows then (null for date-times).

    Args:
        source: CSV, JSON lines (`.gz` and `.zst` too) or, for `sextant` and `columns`, Parquet.
        trace_format: a publisher's, or `columns`; see `named_format`.
        trace_out: the trace contract (`TRACE_COLUMNS`), in the order of arrival. If the source is
            not in this order, the report has `n_moved`, the number of late rows, and `most_late_s`.
        rejected_out: `line` (from 1, a CSV's header included), `reason` and `raw` of malformed
            rows, and of rows whose time is far from all others (line null).
        report_out: JSON with what this function returns.

    Raises InputError, and writes nothing: wrong columns, no rows, too many malformed ones, times
    that show a wrong unit, a wrong argument, or an output that would replace another file.
    """
    source = Path(source)
    paths = [Path(path) for path in (trace_out, rejected_out, report_out)]
    if trace_format == PROMETHEUS:
        settings.require_none(PROMETHEUS, "columns", "time_unit", "start_time")
        return ingest_metrics(read_files([source]), paths, inputs={"source": source})
    columns = settings.columns
    if columns is not None:
        columns = formats.read_columns(columns)

    form = settings.format_of(source, trace_format, columns)
    taken = {source.resolve(): "the source"}
    for path in paths:
        if path.resolve() in taken:
            problem = f"the output would replace {taken[path.resolve()]}"
            raise InputError(problem, file=path, fix="give each file a name of its own")
        taken[path.resolve()] = "another output"

    facts: dict[str, Any] = {"trace_format": trace_format}
    if columns is not None:
        facts |= {"columns": columns, "time_unit": settings.time_unit}
    if form.block_tokens is not None:
        facts["block_tokens"] = form.block_tokens

    with ExitStack() as stack:
        trace, rejected, summary = (stack.enter_context(atomic_path(path)) for path in paths)
        output = Output(trace, rejected, form)
        stack.callback(output.close)

        ignored: list[str] = []
        for rows in read_rows(source, form, ignored):
            output.write(rows)
        output.put_in_order()

        output.require_rows(source, settings.max_rejected_fraction)
        output.require_plausible_times(source, settings)

        start = date_times.start_facts(
            output.first_tick, form, settings.start_time, output.is_zoned
        )
        origin = provenance({"source": source}, **facts) | start
        output.add_provenance(origin)
        report = {
            **output.counts(),
            "ignored_columns": ignored,
            **start,
            "source_sha256": origin["inputs_sha256"]["source"],
            "provenance": origin,
        }
        write_json(summary, report)

    return report


@dataclass
class AcceptedRows:
    """The rows of a trace so far."""

    n_accepted: int = 0
    n_failed: int = 0
    n_moved: int = 0  # rows that were late
    most_late_s: float = 0.0
    duration_s: float | None = None  # arrival of the last row


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
        self._shown: list[tuple[int, str]] = []
        self._is_sorted = True
        self._n_by_reason: Counter[str] = Counter()
        self._accepted = AcceptedRows()

    def counts(self) -> dict[str, Any]:
        """Return how many rows were read, accepted and set aside, why, and the accepted's span."""
        by_count = sorted(self._n_by_reason.items(), key=lambda item: (-item[1], item[0]))
        n_by_reason = {reason: n for reason, n in by_count if reason != formats.BLANK}
        n_rejected = sum(n_by_reason.values())
        return {
            "n_read": self._accepted.n_accepted + n_rejected,
            "n_rejected": n_rejected,
            "n_rejected_by_reason": n_by_reason,
            "n_blank_lines": self._n_by_reason[formats.BLANK],
            **asdict(self._accepted),
        }

    def require_rows(self, source: Path, max_rejected_fraction: float) -> None:
        """Raise InputError if there are no rows, or too many malformed ones."""
        counts = self.counts()
        if counts["n_read"] == 0:
            raise InputError("the trace has no rows", file=source, fix="give a trace with rows")

        is_tolerated = counts["n_rejected"] <= max_rejected_fraction * counts["n_read"]
        if counts["n_accepted"] and is_tolerated:
            return

        where = "; ".join(
            f"line {line}: {reason}" if line else reason for line, reason in self._shown
        )
        problem = f"{counts['n_rejected']:,} of {counts['n_read']:,} rows are malformed ({where})"
        fix = "correct them, or raise max_rejected_fraction (`--max-rejected-fraction`), "
        fix += f"now {max_rejected_fraction:g}"
        if NO_STATUS in where:
            fix += f"; a status is one of {STATUSES}"
        lacks_status = self._form.is_log and "status" not in self._form.columns.values()
        if lacks_status and "missing value" in where:
            fix += "; where failed requests lack tokens, map the column that says so "
            fix += "(status=COLUMN)"
        if not counts["n_accepted"] and "not a number" in where:
            fix += "; for arrivals that are date-times give --columns with --time-unit iso"
        raise InputError(problem, file=source, fix=fix)

    def require_plausible_times(self, source: Path, settings: IngestSettings) -> None:
        """Refuse a first arrival, a duration or a rate in which a wrong unit shows."""
        date_times.check_first_tick(source, self.first_tick, self._form, settings.start_time)

        duration_s = self._accepted.duration_s or 0.0
        if duration_s > formats.MAX_SPAN_S:
            problem = f"the requests are of {duration_s / date_times.YEAR_S:,.3g} years"
            fix = f"{date_times.WRONG_UNIT}, or leave the rows with wrong times out"
            raise InputError(problem, file=source, field="arrival_s", fix=fix)

        n = self._accepted.n_accepted
        if n >= _FEW and duration_s and n / duration_s > settings.max_rate_rps:
            rate = f"{n / duration_s:,.0f} requests per second on average"
            fix = f"{date_times.WRONG_UNIT}, or raise max_rate_rps (`--max-rate-rps`), now "
            fix += f"{settings.max_rate_rps:g}, if that is the rate"
            problem = f"{rate} ({n} in {duration_s:,.3g} s)"
            raise InputError(problem, file=source, field="arrival_s", fix=fix)

    def write(self, rows: TraceRows) -> None:
        """Append accepted rows to the trace, the others to the lines set aside."""
        if rows.rejected is not None:
            self._set_aside(rows.rejected)

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
            self._shown.append((row["line"], row["reason"]))
        self._rejected.write_table(named)

    def put_in_order(self) -> None:
        """Sort the trace by time if it is not; rows whose time is far from all others go aside."""
        if self._is_sorted:
            return

        self._trace.close()
        with TemporaryDirectory(dir=self._path.parent) as folder, duckdb.connect() as database:
            unsorted = Path(folder) / self._path.name
            self._path.rename(unsorted)
            self._trace = _writer(self._path, self._form.schema)
            database.execute(f"SET memory_limit = '{_MEMORY}'; SET enable_progress_bar = false")
            database.execute(f"SET temp_directory = {formats.sql_text(folder)}")
            rows = formats.parquet_rows(unsorted, has_row_number=True)

            ends = f"SELECT quantile_disc(arrival_s, [0.01, 0.99]) FROM {rows}"
            low_s, high_s = database.execute(ends).fetchall()[0][0]
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
            for batch in database.sql(in_order).to_arrow_reader(_BATCH_ROWS):
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
            self._set_aside(pa.table([lines, [_FAR_AWAY] * len(rest), raw], schema=REJECTED))

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
