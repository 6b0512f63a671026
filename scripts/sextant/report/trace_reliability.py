"""The section Reliability of a trace's page: failed requests over time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from sextant.base.files import jsonable
from sextant.pages.blocks import Chart, Headline, Section, Table
from sextant.pages.charts import Axis, Curve, Panel, panels_figure
from sextant.pages.words import duration_words, number, percent, plural, time_unit
from sextant.report.trace_file import MAX_SHOWN, rows_of
from sextant.report.trace_traffic import bucket_s
from sextant.workload import profiles

_N_SPANS = 300
_REQUESTS_PER_SPAN = 30


def measure_reliability(trace: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the failed fraction over time, of the most frequent LLMs and services: `groups` of
    `name`, `summary` (`summarize_failures`) and `series`; none where no request failed."""
    if facts["n_failed"] == 0:
        return {"n_failed": 0, "bucket_s": None, "groups": []}
    # Spans in which a group has some requests on average; else there is nothing to judge.
    n_spans = facts["n_requests"] // (_REQUESTS_PER_SPAN * len(facts["groups"]))
    size = bucket_s(facts["duration_s"], min(max(n_spans, 1), _N_SPANS))
    series = profiles.failure_series(trace, float(size))
    summary = profiles.summarize_failures(series)
    shown = ["start_s", "failure_fraction", "is_outlier"]
    groups = [
        {
            "name": group["name"],
            "summary": jsonable(rows_of(summary, group).iloc[0].to_dict()),
            "series": jsonable(rows_of(series, group)[shown].to_dict("series")),
        }
        for group in facts["groups"][:MAX_SHOWN]
    ]
    return {"n_failed": facts["n_failed"], "bucket_s": size, "groups": groups}


def show_reliability(measured: Mapping[str, Any], facts: Mapping[str, Any]) -> Section:
    """Return the section of what `measure_reliability` returns."""
    groups = measured["groups"]
    if not groups:
        words = (
            "No request of the trace is marked as failed. Many sources leave failures out, so this "
            "says nothing of how reliable the service was."
        )
        return Section("Reliability", [Headline(words)])
    every = duration_words(measured["bucket_s"])
    takeaway = f"{percent(facts['n_failed'] / facts['n_requests'])} of the requests failed"
    rates = {group["name"]: group["summary"]["failure_fraction"] for group in groups}
    ranked = sorted((rate, name) for name, rate in rates.items() if rate is not None)
    least, best = ranked[0]
    most, worst = ranked[-1]
    if best != worst:
        takeaway += f", from {percent(least)} ({best}) to {percent(most)} ({worst})"
    n_outliers, n_judged = (
        sum(group["summary"][name] for group in groups) for name in ("n_outliers", "n_buckets")
    )
    if n_judged:
        outliers = "are outliers" if n_outliers > 1 else "is an outlier"
        takeaway += (
            f"; of {plural(n_judged, 'span')} of {every} with enough requests to judge, "
            f"{number(n_outliers) if n_outliers else 'none'} {outliers}."
        )
    else:
        takeaway += f"; in no {every} are there enough requests to follow it over time."
    unit_s, since = time_unit(facts["duration_s"], facts["start_time"])
    panels = []
    rows = []
    for group in groups:
        series = pd.DataFrame(group["series"])
        summary = group["summary"]
        across = series["start_s"] / unit_s
        share = 100 * series["failure_fraction"].astype(float)
        y = Axis("Failed (%)", low=0)
        curves = [
            Curve("failed", across, share),
            Curve("outlier", across, share.where(series["is_outlier"]), is_marks=True),
        ]
        panels.append(Panel(group["name"], Axis(since), y, curves))
        failed = (
            number(summary["n_failed"]),
            percent(summary["failure_fraction"]),
            percent(summary["median"]),
        )
        quartiles = " to ".join(percent(summary[name]) for name in ("q1", "q3"))
        too_few = plural(summary["n_too_few"], "span")
        rows.append((group["name"], *failed, quartiles, number(summary["n_outliers"]), too_few))
    svg = panels_figure(panels, "Failure rate over time", n_columns=1, height_in=1.9, is_step=True)
    caption = (
        f"Share of failed requests in each {every}; gaps: too few requests to judge. Outliers lie "
        "more than 1.5 interquartile ranges beyond the quartiles."
    )
    header = ["LLM · service", "Failed", "Failed (%)", f"Median per {every}", "Quartiles"]
    table = Table([*header, "Outliers", "Too few to judge"], rows)
    return Section("Reliability", [Headline(takeaway), Chart(svg, caption), table])
