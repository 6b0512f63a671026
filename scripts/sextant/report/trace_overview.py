"""The section Overview of a trace's page: counts, rows set aside, LLMs and services."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sextant.base.files import MAKE_TRACE_AGAIN, read_json
from sextant.pages.blocks import Headline, Note, Section, Table
from sextant.pages.words import duration_words, number, percent, plural, rate_words
from sextant.report.trace_file import MAX_SHOWN, groups_of, query
from sextant.trace.report_lines import selection_lines
from sextant.workload.profiles import start_time

_MAX_GROUPS = 12


def measure_overview(trace: Path, ingest_report: Path | None) -> dict[str, Any]:
    """Return the counts of a trace, and what ingest set aside by its report, if there is one."""
    ((n_rows, n_failed, duration_s),) = query(
        trace,
        """SELECT count(*), count(*) FILTER (status = 'failed'), max(arrival_s) - min(arrival_s)
        FROM trace""",
    ).fetchall()
    ingested = read_json(ingest_report, fix=MAKE_TRACE_AGAIN) if ingest_report else {}
    start = start_time(trace)
    return {
        "trace": trace.name,
        "n_requests": n_rows,
        "n_failed": n_failed,
        "duration_s": duration_s,
        "start_time": None if start is None else start.isoformat(sep=" "),
        "n_rejected": ingested.get("n_rejected"),
        "rejected_by_reason": ingested.get("n_rejected_by_reason", {}),
        "n_moved": ingested.get("n_moved"),
        "most_late_s": ingested.get("most_late_s"),
        "ingest_notes": selection_lines(ingested),
        "groups": groups_of(trace),
    }


def show_overview(facts: Mapping[str, Any]) -> Section:
    """Return the section of what `measure_overview` returns."""
    n_all, n_failed, n_rejected = (facts[name] for name in ("n_requests", "n_failed", "n_rejected"))
    takeaway = f"The trace has {plural(n_all, 'request')}, all at one moment: no rate is known."
    if facts["duration_s"]:
        rate = rate_words((n_all - 1) / facts["duration_s"])
        failed = "records no failure"
        if n_failed:
            failed = f"{number(n_failed)} of them failed ({percent(n_failed / n_all)})"
        takeaway = (
            f"The trace has {plural(n_all, 'request')} in {duration_words(facts['duration_s'])}, "
            f"{rate} on average, and {failed}."
        )
    notes = [f"The first request came at {facts['start_time']}."]
    if facts["start_time"] is None:
        notes = [
            "The source gives no date: hours and days are counted from the first request, and "
            "need not be those of a clock."
        ]
    if n_rejected is None:
        notes.append("No report of the ingest was given: rows set aside are not known.")
    elif n_rejected:
        reasons = sorted(facts["rejected_by_reason"].items(), key=lambda item: (-item[1], item[0]))
        counted = "; ".join(f"{reason} ({number(count)})" for reason, count in reasons)
        notes.append(
            f"Ingest set aside {plural(n_rejected, 'malformed row')}, which are not in any number "
            f"below: {counted}."
        )
    if facts["n_moved"]:
        notes.append(
            f"Ingest sorted the source by time: {plural(facts['n_moved'], 'row')} stood after one "
            f"that arrived later, by up to {duration_words(facts['most_late_s'])}."
        )
    notes += [f"Ingest: {line}." for line in facts["ingest_notes"]]
    n_groups = len(facts["groups"])
    lengths = ("mean_input_tokens", "mean_output_tokens")
    if n_groups > MAX_SHOWN:
        which = f"the {MAX_SHOWN} most frequent of {n_groups} LLMs and services"
        notes.append(f"Traffic, burstiness and reliability are of {which}.")
    rows = [
        [
            group["name"],
            number(group["n_requests"]),
            percent(group["n_requests"] / n_all),
            percent(group["n_failed"] / group["n_requests"]),
            *(number(group[name]) for name in lengths),
        ]
        for group in facts["groups"][:_MAX_GROUPS]
    ]
    if rest := facts["groups"][_MAX_GROUPS:]:
        count = sum(group["n_requests"] for group in rest)
        rows.append([f"{len(rest)} more", number(count), percent(count / n_all), "", "", ""])
    header = ("LLM · service", "Requests", "Share", "Failed", "Mean input tokens")
    table = Table((*header, "Mean output tokens"), rows)
    return Section("Overview", [Headline(takeaway), *map(Note, notes), table])
