"""The report of an ingest in words: what was read, left out, added and assumed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sextant.pages.words import MINUTE_S, duration_words, joined, percent
from sextant.trace.reading import some_of
from sextant.trace.trace_format import DATE_UNITS

_MOST_VALUES = 8


def ingest_lines(report: dict[str, Any], out: Path, rejected: Path) -> list[str]:
    """Return the lines about a report of `ingest_trace`, its trace and the rows set aside."""
    n_accepted = report["n_accepted"]
    n_rows = n_accepted - report.get("n_further_answers", 0)
    lines = [
        f"{out}: {n_rows:,} of {report['n_read']:,} rows, "
        f"{report['n_rejected']:,} set aside, {report['n_failed']:,} failed requests "
        f"({percent(report['n_failed'] / n_accepted)})"
    ]
    if duration_s := report["duration_s"]:
        rate_rps = (n_accepted - 1) / duration_s
        since = f" from {report['start_time']}" if report["start_time"] else ""
        lines.append(f"{duration_words(duration_s)}{since}, {rate_rps:,.3g} requests/s on average")
    if reasons := report["n_rejected_by_reason"]:
        lines.append(
            f"set aside in {rejected}: {joined([f'{n:,} × {why}' for why, n in reasons.items()])}"
        )
    lines += selection_lines(report)
    if report["n_moved"]:
        late_s = report["most_late_s"]
        late = duration_words(late_s) if late_s >= MINUTE_S else f"{late_s:.3g} s"
        lines.append(f"sorted by time: {report['n_moved']:,} rows were late, by up to {late}")
    if ignored := report["ignored_columns"]:
        lines.append(f"columns left out ({len(ignored)}): {some_of(ignored)}")
    return lines + report.get("notes", [])


def selection_lines(report: Mapping[str, Any]) -> list[str]:
    """Return what was left out, added or assumed beside malformed rows; of metrics nothing."""
    if "n_left_out" not in report:
        return []
    lines = []
    if n_left_out := report["n_left_out"]:
        values = [f"{n:,} × {value}" for value, n in report["n_left_out_by_value"].items()]
        more = ["…"] * (len(values) > _MOST_VALUES)
        what = joined(values[:_MOST_VALUES] + more)
        lines.append(f"left out, no requests of an LLM: {n_left_out:,} rows ({what})")
    if report["has_no_times"]:
        lines.append(
            "the file has no times: all requests stand at 0 s. Lengths and statuses count, not "
            "arrivals: give answers a --request-rate"
        )
    if n_placed := report["n_placed"]:
        lines.append(f"{n_placed:,} failed requests have no time: they have that of the row before")
    if n_further := report["n_further_answers"]:
        n_rows = report["n_accepted"] - n_further
        lines.append(
            f"requests for several answers: {n_rows:,} requests have {report['n_accepted']:,} "
            "answers, a row each, with an equal share of the output tokens"
        )
    n_ids = report["n_ids"]
    if n_ids is not None and n_ids < report["n_accepted"]:
        lines.append(
            f"ids repeat: {report['n_accepted']:,} requests, {n_ids:,} ids. If a log has versions "
            "of one request, keep the last of each id; else the rate is too high by "
            f"{percent(report['n_accepted'] / n_ids - 1)}"
        )
    for name, facts in report["tokens_left_out"].items():
        lines.append(
            f"{name} is left out, and larger than the input in {facts['n_larger']:,} requests: it "
            f"is no part of it. To add its {facts['mean_tokens']:,.0f} tokens on average give "
            f"--columns with input_tokens={facts['formula']}"
        )
    if (unit := report["read_time_unit"]) in DATE_UNITS[1:]:
        first, other = ("month", "dmy") if unit == "mdy" else ("day", "mdy")
        lines.append(f"times are read with the {first} first; --time-unit {other} reads otherwise")
    return lines
