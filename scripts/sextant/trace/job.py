"""One ingest: from the source to the trace, the lines set aside and the report."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.base.files import provenance, write_json
from sextant.base.whole_files import atomic_files
from sextant.trace import date_times
from sextant.trace import trace_format as formats
from sextant.trace.formula import conditions
from sextant.trace.mapping import Columns, named_format, read_columns, read_status_words
from sextant.trace.metric_samples import read_files
from sextant.trace.metrics_trace import PROMETHEUS, ingest_metrics
from sextant.trace.output import Output
from sextant.trace.reading import as_written, read_rows

MAX_RATE_RPS = 1000.0
_FOR_ROWS = ("columns", "time_unit", "where", "status_words", "start_time")


@dataclass(frozen=True, kw_only=True)
class IngestSettings:
    """How the rows of a source are read, and what is tolerated in them."""

    columns: Columns | None = None
    """The log's name of each column, for the format `columns`; or the path of a mapping file."""
    time_unit: str | None = None  #: Unit of the arrivals of `columns`; see `formats.TIME_UNITS`.
    where: str | None = None
    """Which rows are requests, beside what the format says: `column=value|value` or
    `column!=value`, several with commas between."""
    status_words: str | None = None
    """Further words of the status: `word=ok` or `word=failed`, with commas between."""
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
        self, source: Path, trace_format: str, columns: Columns | None
    ) -> formats.TraceFormat:
        """Return the format of a source, with what the settings and its first lines say."""
        form = named_format(trace_format, source, columns, self.time_unit)
        form = replace(form, ignores_unknown=form.ignores_unknown or self.ignore_unknown)
        if self.where is not None:
            form = replace(form, where=[*form.where, *conditions(self.where)])
        if self.status_words is not None:
            words = {**form.status_words, **read_status_words(self.status_words)}
            form = replace(form, status_words=words)
        if not source.is_file():
            problem = "is not a file" if source.exists() else "there is no such file"
            raise InputError(problem, file=source, fix="correct the trace's path")

        is_stated = isinstance(columns, Mapping) and columns.get("time_unit") is not None
        form = as_written(source, form, has_unit=is_stated or self.time_unit is not None)
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
        settings.require_none(PROMETHEUS, *_FOR_ROWS)
        return ingest_metrics(read_files([source]), paths, inputs={"source": source})
    columns = settings.columns
    if columns is not None:
        columns = read_columns(columns)

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
    choices = {"where": settings.where, "status_words": settings.status_words}
    facts |= {name: value for name, value in choices.items() if value is not None}
    if form.block_tokens is not None:
        facts["block_tokens"] = form.block_tokens

    with atomic_files(paths) as (trace, rejected, summary), ExitStack() as stack:
        output = Output(trace, rejected, form)
        stack.callback(output.close)

        ignored: list[str] = []
        for rows in read_rows(source, form, ignored):
            output.write(rows)
        output.put_in_order()

        output.require_rows(source, settings.max_rejected_fraction, ignored)
        output.require_plausible_times(source, settings.start_time, settings.max_rate_rps)

        start = date_times.start_facts(
            output.first_tick, form, settings.start_time, output.is_zoned
        )
        origin = provenance({"source": source}, **facts) | start
        output.add_provenance(origin)
        report = {
            **output.counts(),
            "n_ids": output.n_ids() if "request_id" in form.columns else None,
            "has_no_times": output.has_no_times,
            "tokens_left_out": output.tokens_left_out(),
            "ignored_columns": ignored,
            "read_time_unit": form.time_unit,
            **start,
            "source_sha256": origin["inputs_sha256"]["source"],
            "provenance": origin,
        }
        write_json(summary, report)

    return report
