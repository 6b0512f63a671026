"""Reliability: the share of requests that failed, over time."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sextant.base.rows import column_lists, jsonable
from sextant.pages.charts import Curve, Panel, panels_figure
from sextant.pages.figure import Axis
from sextant.pages.sections import Section, Table
from sextant.pages.wording import duration_words, number, percent, plural, time_unit
from sextant.report.trace.trace_file import TraceFile, row_of, rows_of
from sextant.report.trace.traffic import MAX_SHOWN, bucket_s, counted_words
from sextant.workload.profiles import failure_series, summarize_failures

_N_BUCKETS = 300
_REQUESTS_PER_BUCKET = 30


def measure_reliability(trace: TraceFile, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the failed fraction over time and its outliers, of the most frequent LLMs and
    services.

    Each of `groups` has `name`, `summary` (columns of `summarize_failures`) and `series`
    (`start_s`, `failure_fraction`, `is_outlier`); there are none where no request failed.
    `n_groups` is the number of all.
    """
    n_groups = len(facts["groups"])
    if facts["n_failed"] == 0:
        return {"n_failed": 0, "bucket_s": None, "n_groups": n_groups, "groups": []}
    # Spans in which a group has some requests on average; else there is nothing to judge.
    n_buckets = facts["n_requests"] // (_REQUESTS_PER_BUCKET * n_groups)
    size = bucket_s(facts["duration_s"], min(max(n_buckets, 1), _N_BUCKETS))
    series = failure_series(trace.path, float(size))
    summary = summarize_failures(series)
    shown = ["start_s", "failure_fraction", "is_outlier"]
    groups = [
        {
            "name": group["name"],
            "summary": jsonable(row_of(summary, group)),
            "series": column_lists(rows_of(series, group)[shown]),
        }
        for group in facts["groups"][:MAX_SHOWN]
    ]
    known = {"n_failed": facts["n_failed"], "bucket_s": size}
    return {**known, "n_groups": n_groups, "groups": groups}


def show_reliability(found: Mapping[str, Any], facts: Mapping[str, Any]) -> Section:
    """Return the section of what `measure_reliability` found."""
    section = Section("Reliability", _takeaway(found, facts))
    if not found["groups"]:
        return section
    section.figures.append(_figure(found, facts))
    section.tables.append(_table(found))
    return section


def _takeaway(found: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    if not found["groups"]:
        return (
            "No request of the trace is marked as failed. Many sources leave failures out, so this "
            "says nothing of how reliable the service was."
        )
    total = percent(facts["n_failed"] / facts["n_requests"])
    sentence = f"{total} of the requests failed"
    rated = [group for group in found["groups"] if group["summary"]["failure_fraction"] is not None]
    worst = max(rated, key=lambda group: group["summary"]["failure_fraction"])
    best = min(rated, key=lambda group: group["summary"]["failure_fraction"])
    if worst is not best:
        sentence += (
            f", from {percent(best['summary']['failure_fraction'])} ({best['name']}) to "
            f"{percent(worst['summary']['failure_fraction'])} ({worst['name']})"
        )
    n_outliers = sum(group["summary"]["n_outliers"] for group in found["groups"])
    n_judged = sum(group["summary"]["n_buckets"] for group in found["groups"])
    every = duration_words(found["bucket_s"])
    counted = counted_words("the shares and spans", len(found["groups"]), found["n_groups"])
    if n_judged == 0:
        hidden = f"in no {every} are there enough requests to follow it over time"
        return f"{sentence}; {hidden}.{counted}"
    verb = "is an outlier" if n_outliers < 2 else "are outliers"
    outliers = f"{number(n_outliers) if n_outliers else 'none'} {verb}"
    return (
        f"{sentence}; of {plural(n_judged, 'span')} of {every} with enough requests to judge, "
        f"{outliers}.{counted}"
    )


def _figure(found: Mapping[str, Any], facts: Mapping[str, Any]) -> tuple[str, str]:
    time = time_unit(facts["duration_s"], facts["start_time"])
    panels = []
    for group in found["groups"]:
        series = group["series"]
        across = np.array(series["start_s"]) / time.unit_s
        shares = [None if x is None else 100 * x for x in series["failure_fraction"]]
        outliers = [
            share if out else None for share, out in zip(shares, series["is_outlier"], strict=True)
        ]
        curves = [
            Curve("failed", across, shares),
            Curve("outlier", across, outliers, is_marks=True),
        ]
        panels.append(Panel(group["name"], Axis(time.label), Axis("Failed (%)", low=0), curves))
    svg = panels_figure(panels, "Failure rate over time", n_columns=1, height_in=1.5, is_step=True)
    every = duration_words(found["bucket_s"])
    caption = (
        f"Share of failed requests in each {every}; gaps: too few requests to judge. Outliers lie "
        "more than 1.5 interquartile ranges beyond the quartiles."
    )
    return svg, caption


def _table(found: Mapping[str, Any]) -> Table:
    every = duration_words(found["bucket_s"])
    columns = {
        "LLM · service": lambda own: own["name"],
        "Failed": lambda own: number(own["n_failed"]),
        "Failed (%)": lambda own: percent(own["failure_fraction"]),
        f"Median per {every}": lambda own: percent(own["median"]),
        "Quartiles": lambda own: " to ".join(percent(own[name]) for name in ("q1", "q3")),
        "Outliers": lambda own: number(own["n_outliers"]),
        "Too few to judge": lambda own: plural(own["n_too_few"], "span"),
    }
    rows = ({"name": group["name"], **group["summary"]} for group in found["groups"])
    return Table.of_rows(rows, columns)
