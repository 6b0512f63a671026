"""The overview: what the trace is, and what was set aside when it was ingested."""

from collections.abc import Mapping
from typing import Any

from sextant.pages.sections import Section, Table
from sextant.pages.wording import duration_words, number, percent, plural, rate_words

_MAX_GROUPS = 12


def show_overview(facts: Mapping[str, Any]) -> Section:
    """Return the section for what `read.overview` found."""
    section = Section("Overview", _takeaway(facts), _notes(facts))
    section.tables.append(_facts_table(facts))
    if len(facts["groups"]) > 1:
        section.tables.append(_groups_table(facts))
    return section


def _takeaway(facts: Mapping[str, Any]) -> str:
    n_requests, duration_s = facts["n_requests"], facts["duration_s"]
    if duration_s == 0:
        return (
            f"The trace has {plural(n_requests, 'request')}, all at one moment: no rate is known."
        )
    rate = rate_words((n_requests - 1) / duration_s)
    return (
        f"The trace has {plural(n_requests, 'request')} in {duration_words(duration_s)}, "
        f"{rate} on average, and {_failed_words(facts)}."
    )


def _failed_words(facts: Mapping[str, Any]) -> str:
    if facts["n_failed"] == 0:
        return "records no failure"
    share = percent(facts["n_failed"] / facts["n_requests"])
    return f"{number(facts['n_failed'])} of them failed ({share})"


def _notes(facts: Mapping[str, Any]) -> list[str]:
    notes = []
    if facts["start_time"] is None:
        notes.append(
            "The source gives no date: hours and days are counted from the first request, and "
            "need not be those of a clock."
        )
    if facts["n_rejected"] is None:
        notes.append("No report of the ingest was given: rows set aside are not known.")
    elif facts["n_rejected"]:
        reasons = sorted(facts["rejected_by_reason"].items(), key=lambda item: (-item[1], item[0]))
        listed = "; ".join(f"{reason} ({number(count)})" for reason, count in reasons)
        notes.append(
            f"Ingest set aside {plural(facts['n_rejected'], 'malformed row')}, which "
            f"are not in any number below: {listed}."
        )
    if facts["n_moved"]:
        notes.append(
            f"Ingest sorted the source by time: {plural(facts['n_moved'], 'row')} stood after one "
            f"that arrived later, by up to {duration_words(facts['most_late_s'])}."
        )
    return notes


def _facts_table(facts: Mapping[str, Any]) -> Table:
    n_rejected = facts["n_rejected"]
    rows = [
        ("Requests", number(facts["n_requests"])),
        ("Failed requests", number(facts["n_failed"])),
        ("Rows set aside", "not known" if n_rejected is None else number(n_rejected)),
        ("Duration", duration_words(facts["duration_s"])),
        ("First request", facts["start_time"] or "date not known"),
        *((f"{key}s", _names(facts, key.lower())) for key in ("LLM", "Service")),
    ]
    return Table(("", ""), rows)


def _names(facts: Mapping[str, Any], key: str) -> str:
    names = list(dict.fromkeys(group[key] for group in facts["groups"] if group[key] is not None))
    if not names:
        return "not named"
    more = f" and {len(names) - _MAX_GROUPS} more" if len(names) > _MAX_GROUPS else ""
    return ", ".join(names[:_MAX_GROUPS]) + more


def _groups_table(facts: Mapping[str, Any]) -> Table:
    n_all, groups = facts["n_requests"], facts["groups"]
    shown, rest = groups[:_MAX_GROUPS], groups[_MAX_GROUPS:]
    columns = {
        "LLM · service": lambda group: group["name"],
        "Requests": lambda group: number(group["n_requests"]),
        "Share": lambda group: percent(group["n_requests"] / n_all),
        "Failed": lambda group: percent(group["n_failed"] / group["n_requests"]),
        "Mean input tokens": lambda group: number(group["mean_input_tokens"]),
        "Mean output tokens": lambda group: number(group["mean_output_tokens"]),
    }
    table = Table.of_rows(shown, columns)
    if not rest:
        return table
    count = sum(group["n_requests"] for group in rest)
    last = (f"{len(rest)} more", number(count), percent(count / n_all), "", "", "")
    return table._replace(rows=[*table.rows, last])
