"""One ingest: from the source to the trace, the lines set aside and the report.

`reading` yields the rows of the source, `write` takes them. No step holds the trace in memory.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.base.files import atomic_path, provenance, write_json
from sextant.trace.date_times import (
    WRONG_UNIT,
    YEAR_S,
    check_first_tick,
    check_start_time,
    start_facts,
)
from sextant.trace.reading import as_written, read_rows
from sextant.trace.rules import NO_STATUS, STATUSES
from sextant.trace.trace_format import BLANK, MAX_SPAN_S, Columns, columns_given, named_format
from sextant.trace.write import Output

MAX_RATE_RPS = 1000.0
_FEW = 10
"""With fewer requests, which may be one burst, a mean rate does not show a wrong unit."""


def ingest_trace(
    source: str | Path,
    trace_format: str,
    trace_out: str | Path,
    rejected_out: str | Path,
    report_out: str | Path,
    *,
    max_rejected_fraction: float = 0.01,
    start_time: str | None = None,
    columns: Columns | None = None,
    time_unit: str | None = None,
    ignore_unknown: bool = False,
    max_rate_rps: float = MAX_RATE_RPS,
) -> dict[str, Any]:
    """Normalise a trace to Parquet; write its malformed rows and a report, too.

    A request without an output token is `failed`, unless the source has a status of its own; a
    failed request needs no tokens (0 where they are missing).
    A request without an id gets its line number. Blank lines are not rows; they are counted.
    The report and the provenance carry `start_time`, the date-time of `arrival_s` = 0 (in UTC
    where a zone is known; null if it is not known), and `first_tick_s`, what the source's
    clock shows then (null for date-times).

    Args:
        source: CSV, JSON lines (`.gz` and `.zst` too) or, for `sextant`, also Parquet.
        trace_format: a name in `FORMATS`, or `columns`.
        trace_out: the trace contract (`TRACE_COLUMNS`), in the order of arrival. A source that is
            not in that order is sorted on disk; the report's `n_moved` rows stood after one that
            arrived later, by `most_late_s` at most.
        rejected_out: `line` (a CSV's header is line 1; Parquet's first row is 1), `reason`
            and `raw` of every malformed row, and of rows whose time is far from all others (line
            null, the row as it was read).
        report_out: JSON with what this function returns.
        max_rejected_fraction: largest share of malformed rows that is tolerated.
        start_time: ISO 8601 date-time at which the source's clock shows zero, for a format
            whose arrivals are numbers.
        columns: of the format `columns` what the source calls its columns (see `mapped_format`);
            or the path of a mapping file.
        time_unit: of the format `columns` the unit of its arrivals, seconds by default.
        ignore_unknown: leave columns out that the format does not know; the report names them.
        max_rate_rps: highest mean rate that is believed; a wrong unit of time shows in it.

    Raises InputError: wrong columns, no rows, too many malformed ones, a rate above `max_rate_rps`,
    times that show a wrong unit, no such format or mapping, a `start_time` that is not a date-time
    or not needed, a share outside 0 to 1, or an output that would replace the source or another
    output; no output is written.
    """
    source = Path(source)
    columns = None if columns is None else columns_given(columns)
    form = named_format(trace_format, source, columns, time_unit)
    form = replace(form, ignores_unknown=form.ignores_unknown or ignore_unknown)
    if not 0 <= max_rejected_fraction <= 1:
        problem, fix = f"a share of {max_rejected_fraction}", "give a number from 0 to 1"
        raise InputError(problem, field="max_rejected_fraction", fix=fix)
    if not source.is_file():
        problem = "is not a file" if source.exists() else "there is no such file"
        raise InputError(problem, file=source, fix="correct the trace's path")
    form = as_written(source, form, has_unit=time_unit is not None)
    if start_time is not None:
        check_start_time(start_time, form)
    paths = [Path(path) for path in (trace_out, rejected_out, report_out)]
    _check_paths(source, paths)
    with ExitStack() as stack:
        facts: dict[str, Any] = {"trace_format": trace_format}
        if columns is not None:
            facts |= {"columns": columns, "time_unit": time_unit}
        if form.block_tokens is not None:
            facts["block_tokens"] = form.block_tokens
        trace, rejected, summary = (stack.enter_context(atomic_path(path)) for path in paths)
        output = Output(trace, rejected, form)
        stack.callback(output.close)
        ignored: list[str] = []
        for rows in read_rows(source, form, ignored):
            output.write(rows)
        output.put_in_order()
        counts = _counts(output)
        _check_counts(source, counts, output.shown, max_rejected_fraction)
        check_first_tick(source, output.first_tick, form, start_time)
        n, duration_s = counts["n_accepted"], counts["duration_s"]
        # No service's log has such a duration or rate: a wrong unit shows in both.
        if duration_s > MAX_SPAN_S:
            problem = f"the requests are of {duration_s / YEAR_S:,.3g} years"
            fix = f"{WRONG_UNIT}, or leave the rows with wrong times out"
            raise InputError(problem, file=source, field="arrival_s", fix=fix)
        if n >= _FEW and duration_s and n / duration_s > max_rate_rps:
            rate = f"{n / duration_s:,.0f} requests per second on average"
            fix = f"{WRONG_UNIT}, or raise max_rate_rps (`--max-rate-rps`), now {max_rate_rps:g}, "
            fix += "if that is the rate"
            problem = f"{rate} ({n} in {duration_s:,.3g} s)"
            raise InputError(problem, file=source, field="arrival_s", fix=fix)
        start = start_facts(output.first_tick, form, start_time, output.is_zoned)
        known = provenance({"source": source}, **facts) | start
        output.add_provenance(known)
        report = {
            **counts,
            "ignored_columns": ignored,
            **start,
            "source_sha256": known["inputs_sha256"]["source"],
            "provenance": known,
        }
        write_json(summary, report)
    return report


def _check_paths(source: Path, paths: Sequence[Path]) -> None:
    taken = {source.resolve(): "the source"}
    for path in paths:
        if path.resolve() in taken:
            problem = f"the output would replace {taken[path.resolve()]}"
            raise InputError(problem, file=path, fix="give each file a name of its own")
        taken[path.resolve()] = "another output"


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
        "n_moved": output.n_moved,
        "most_late_s": output.most_late_s,
        "duration_s": output.duration_s,
    }


def _check_counts(
    source: Path,
    counts: Mapping[str, Any],
    shown: list[tuple[int, str]],
    max_rejected_fraction: float,
) -> None:
    """Refuse a trace without rows, or with too many malformed ones."""
    if counts["n_read"] == 0:
        raise InputError("the trace has no rows", file=source, fix="give a trace with rows")
    is_tolerated = counts["n_rejected"] <= max_rejected_fraction * counts["n_read"]
    if counts["n_accepted"] and is_tolerated:
        return
    where = "; ".join(f"line {line}: {reason}" if line else reason for line, reason in shown)
    problem = f"{counts['n_rejected']:,} of {counts['n_read']:,} rows are malformed ({where})"
    fix = "correct them, or raise max_rejected_fraction (`--max-rejected-fraction`), now "
    fix += f"{max_rejected_fraction:g}"
    if NO_STATUS in where:
        fix += f"; a status is one of {STATUSES}"
    if not counts["n_accepted"] and "not a number" in where:
        fix += "; for arrivals that are date-times give --columns with --time-unit iso"
    raise InputError(problem, file=source, fix=fix)
