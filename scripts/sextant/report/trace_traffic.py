"""Traffic: requests over time, by hour of the day and of the week, per LLM and service."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.files import column_lists, jsonable
from sextant.pages.blocks import Block, Chart, Headline, Note, Section, Table
from sextant.pages.charts import Axis, Curve, Panel, panels_figure
from sextant.pages.wording import DAY_S, HOUR_S, duration_words, number, percent, plural, time_unit
from sextant.report.trace_file import Explained, TraceFile, explained, row_of, rows_of
from sextant.workload.profiles import (
    failure_series,
    summarize_failures,
    traffic_profile,
    traffic_series,
)

MAX_SHOWN = 6
"""LLMs and services that are drawn; the most frequent ones."""
_BUCKETS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 43200, 86400)
_N_BUCKETS, _REQUESTS_PER_BUCKET = 100, 10
_N_SPANS, _REQUESTS_PER_SPAN = 300, 30
_SIGNIFICANCE = 0.01
_MIN_DAYS, _MIN_WEEKS = 2, 2
_COUNTED = ("n_requests", "input_tokens", "output_tokens")
_SERIES = ["start_s", "is_whole", *_COUNTED]
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def bucket_s(duration_s: float, n_buckets: int) -> int:
    """Return a round length of time of which about so many fit into the trace, or fewer."""
    wanted = duration_s / n_buckets
    return next((size for size in _BUCKETS_S if size >= wanted), 7 * DAY_S)


def counted_words(what: str, n_shown: int, n_groups: int) -> str:
    """Return the sentence that says of which groups `what` is counted, none if of all."""
    if n_shown == n_groups:
        return ""
    return f" Counted are {what} of the {n_shown} most frequent of {n_groups} LLMs and services."


def measure_traffic(trace: TraceFile, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the series of requests and tokens, and profiles where there are days for them.

    `groups` has one entry per LLM and service, at most `MAX_SHOWN` of `n_groups`: `name`, `series`
    (lists of `start_s`, `is_whole`, `n_requests`, `input_tokens`, `output_tokens`), `daily` and
    `weekly` (mean and quartiles of requests per hour; None: too short), and of requests per hour
    `hour_of_day_fraction` and `hour_of_day_p_value` (see `Explained`; None: fewer than two days,
    or no variance). `why_no_profile` says why there is none; `n_requests_per_bucket` is of the
    buckets that the trace covers wholly.
    """
    shown, duration_s = facts["groups"][:MAX_SHOWN], facts["duration_s"]
    n_buckets = min(max(facts["n_requests"] // _REQUESTS_PER_BUCKET, 10), _N_BUCKETS)
    size = bucket_s(duration_s, n_buckets)
    series = traffic_series(trace.path, size)
    has_days, hourly, profile = duration_s >= _MIN_DAYS * DAY_S, None, None
    why = "" if has_days else _why_no_profile(trace, duration_s)
    if has_days:
        hourly, profile = traffic_series(trace.path, HOUR_S), traffic_profile(trace.path)
    has_clock = profile is not None and bool(profile["is_clock_known"].all())
    has_weeks = has_clock and duration_s >= _MIN_WEEKS * 7 * DAY_S
    groups = []
    for group in shown:
        own = rows_of(series, group)[_SERIES].astype(dict.fromkeys(_COUNTED, int))
        entry = {"name": group["name"], "series": column_lists(own), "daily": None, "weekly": None}
        regular = None
        if hourly is not None and profile is not None:
            entry |= _profiles(rows_of(profile, group), has_weeks)
            regular = _explained(rows_of(hourly, group))
        entry["hour_of_day_fraction"] = None if regular is None else regular.fraction
        entry["hour_of_day_p_value"] = None if regular is None else regular.p_value
        groups.append(entry)
    together = series.groupby("start_s", as_index=False).agg(
        {"is_whole": "all", "n_requests": "sum"}
    )
    whole = together.loc[together["is_whole"], "n_requests"]
    spread = None if whole.empty else whole.agg(["min", "median", "max"]).astype(float).to_dict()
    return {
        "bucket_s": size,
        "n_requests_per_bucket": spread,
        "n_groups": len(facts["groups"]),
        "has_clock": has_clock,
        "why_no_profile": why or None,
        "groups": groups,
    }


def _why_no_profile(trace: TraceFile, duration_s: float) -> str:
    """Return what is known of the hours of a trace that is too short for a profile of days."""
    if not duration_s:
        return "All requests arrive at one moment: nothing changes over time."
    lasts = duration_words(duration_s)
    hourly = traffic_series(trace.path, HOUR_S, by=())
    whole = hourly[hourly["is_whole"]].reset_index(drop=True)
    if len(whole) < 2:
        return f"No daily profile can be seen in {lasts}: it takes {_MIN_DAYS} days or more."
    counts, has_clock = whole["n_requests"], bool(whole["moment"].notna().all())
    hours = whole["moment"].dt.hour if has_clock else whole["start_s"] // HOUR_S
    top, low = int(counts.argmax()), int(counts.argmin())
    busiest, quietest = (_hour_words(int(hours[place]), has_clock) for place in (top, low))
    than = f"{number(counts[top] / counts[low])} times the requests of the quietest, {quietest}"
    if not counts[low]:
        than = f"{plural(int(counts[top]), 'request')}, the quietest, {quietest}, none"
    repeats = f"Whether that repeats every day cannot be seen in {lasts}: it takes {_MIN_DAYS} days"
    return f"The busiest hour, {busiest}, has {than}. {repeats} or more."


def _profiles(profile: pd.DataFrame, has_weeks: bool) -> dict[str, Any]:
    """Return the requests per hour of the day, and of the week, of one LLM and service."""
    spread = [f"requests_{name}" for name in ("mean", "q1", "median", "q3")]
    days = profile[profile["weekday"].isna()].sort_values("hour")
    daily = {"hour": days["hour"].astype(int).tolist(), **column_lists(days[spread])}
    if not has_weeks:
        return {"daily": daily, "weekly": None}
    weeks = profile[profile["weekday"].notna()].sort_values(["weekday", "hour"])
    place = 24 * weeks["weekday"].astype(int) + weeks["hour"].astype(int)
    return {
        "daily": daily,
        "weekly": {"hour_of_week": place.tolist(), **column_lists(weeks[spread])},
    }


def _explained(hourly: pd.DataFrame) -> Explained | None:
    whole = hourly[hourly["is_whole"]]
    has_clock = whole["moment"].notna().all()
    hour = whole["moment"].dt.hour if has_clock else whole["start_s"] // HOUR_S % 24
    return explained(whole["n_requests"].to_numpy(float), hour.to_numpy(int))


def show_traffic(measured: Mapping[str, Any], facts: Mapping[str, Any]) -> Section:
    """Return the section of what `measure_traffic` returns."""
    blocks: list[Block] = [Headline(_traffic_takeaway(measured))]
    groups = measured["groups"]
    if measured["n_groups"] > len(groups):
        n_groups = measured["n_groups"]
        blocks.append(
            Note(f"Shown are the {len(groups)} most frequent of {n_groups} LLMs and services.")
        )
    blocks.append(_series_figure(measured, facts))
    if measured["why_no_profile"] is None:
        label = "Hours since the first request, modulo 24"
        label = "Hour of the day" if measured["has_clock"] else label
        across = Axis(label, ticks=range(0, 25, 6), low=0, high=23)
        blocks.append(_profile_figure(groups, "daily", "hour", across))
        blocks.append(_regularity_table(groups, measured["has_clock"]))
    if any(group["weekly"] for group in groups):
        across = Axis("Day of the week", False, range(0, 168, 24), _WEEKDAYS, low=0, high=167)
        blocks.append(_profile_figure(groups, "weekly", "hour_of_week", across))
    return Section("Traffic", blocks)


def _traffic_takeaway(measured: Mapping[str, Any]) -> str:
    spread, in_range = measured["n_requests_per_bucket"], ""
    every = duration_words(measured["bucket_s"]).removeprefix("1 ")
    if spread and spread["min"] == spread["max"]:
        in_range = f" In each {every} came {number(spread['min'])} requests."
    elif spread:
        in_range = (
            f" Between {number(spread['min'])} and {number(spread['max'])} requests came in each "
            f"{every}, {number(spread['median'])} in the median."
        )
    if measured["why_no_profile"]:
        return measured["why_no_profile"] + in_range
    known = [group for group in measured["groups"] if group["hour_of_day_fraction"] is not None]
    # The most regular of several groups is regular by chance more often than each of them.
    if not any(group["hour_of_day_p_value"] * len(known) < _SIGNIFICANCE for group in known):
        return f"No hour of the day has more requests than chance gives it.{in_range}"
    most = max(known, key=lambda group: group["hour_of_day_fraction"])
    least = min(known, key=lambda group: group["hour_of_day_fraction"])
    share, whose = percent(most["hour_of_day_fraction"]), "the busiest hour"
    explains = f"The hour of the day explains {share} of how requests per hour vary"
    if len(known) > 1:
        explains += f" in {most['name']}, but {percent(least['hour_of_day_fraction'])}"
        explains += f" in {least['name']}"
        whose += f" of {most['name']}"
    means, hours = most["daily"]["requests_mean"], most["daily"]["hour"]
    top, low = int(np.argmax(means)), int(np.argmin(means))
    busiest, quietest = (_hour_words(hours[place], measured["has_clock"]) for place in (top, low))
    if means[low] == 0:
        return f"{explains}; {whose} is {busiest}, and {quietest} has no request."
    return (
        f"{explains}; {whose}, {busiest}, has {number(means[top] / means[low])} times the requests "
        f"of the quietest, {quietest}."
    )


def _hour_words(hour: int, has_clock: bool) -> str:
    return f"{hour:02d}:00" if has_clock else f"hour {hour} from the start"


def _series_figure(measured: Mapping[str, Any], facts: Mapping[str, Any]) -> Chart:
    time, size = time_unit(facts["duration_s"], facts["start_time"]), measured["bucket_s"]
    has_whole = measured["n_requests_per_bucket"] is not None
    every = duration_words(size).removeprefix("1 ")
    panels = []
    for group in measured["groups"]:
        series = pd.DataFrame(group["series"])
        series = series[series["is_whole"]] if has_whole else series
        # The last bucket gets its width from a point at its end.
        across = np.append(series["start_s"], series["start_s"].iloc[-1] + size)
        counts = np.append(series["n_requests"], series["n_requests"].iloc[-1])
        curve = Curve("requests", across / time.unit_s, counts)
        vertical = Axis(f"Requests per {every}", low=0)
        panels.append(Panel(group["name"], Axis(time.label), vertical, [curve]))
    svg = panels_figure(panels, "Requests over time", n_columns=1, height_in=1.4, is_step=True)
    return Chart(
        svg, f"Requests in each {every}" + (" that the trace covers wholly." if has_whole else ".")
    )


def _profile_figure(
    groups: Sequence[Mapping[str, Any]], key: str, hour: str, across: Axis
) -> Chart:
    panels, cycle = [], {"daily": "day", "weekly": "week"}[key]
    for group in groups:
        profile = group[key]
        spread = (profile[f"requests_{statistic}"] for statistic in ("median", "q1", "q3"))
        curve = Curve("median", profile[hour], *spread)
        panels.append(Panel(group["name"], across, Axis("Requests per hour", low=0), [curve]))
    caption = f"Requests per hour by hour of the {cycle}: the median of all {cycle}s, and its "
    return Chart(panels_figure(panels, f"Requests by hour of the {cycle}"), f"{caption}quartiles.")


def _regularity_table(groups: Sequence[Mapping[str, Any]], has_clock: bool) -> Table:
    def hour(group: Mapping[str, Any], pick: Callable) -> str:
        daily = group["daily"]
        return _hour_words(daily["hour"][int(pick(daily["requests_mean"]))], has_clock)

    columns = {
        "LLM · service": lambda group: group["name"],
        "Explained by hour of day": lambda group: percent(group["hour_of_day_fraction"]),
        "Busiest hour": lambda group: hour(group, np.argmax),
        "Quietest hour": lambda group: hour(group, np.argmin),
    }
    return Table.of_rows(groups, columns)


def measure_reliability(trace: TraceFile, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the failed fraction over time, of the most frequent LLMs and services.

    Each of `groups` has `name`, `summary` (columns of `summarize_failures`) and `series`
    (`start_s`, `failure_fraction`, `is_outlier`); there are none where no request failed.
    `n_groups` is the number of all.
    """
    n_groups = len(facts["groups"])
    if facts["n_failed"] == 0:
        return {"n_failed": 0, "bucket_s": None, "n_groups": n_groups, "groups": []}
    # Spans in which a group has some requests on average; else there is nothing to judge.
    n_spans = facts["n_requests"] // (_REQUESTS_PER_SPAN * n_groups)
    size = bucket_s(facts["duration_s"], min(max(n_spans, 1), _N_SPANS))
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
    total = percent(facts["n_failed"] / facts["n_requests"])
    takeaway = f"{total} of the requests failed"
    rates = {group["name"]: group["summary"]["failure_fraction"] for group in groups}
    rates = {name: rate for name, rate in rates.items() if rate is not None}
    best, worst = min(rates, key=lambda name: rates[name]), max(rates, key=lambda name: rates[name])
    if best != worst:
        takeaway += f", from {percent(rates[best])} ({best}) to {percent(rates[worst])} ({worst})"
    n_outliers = sum(group["summary"]["n_outliers"] for group in groups)
    n_judged = sum(group["summary"]["n_buckets"] for group in groups)
    outliers = f"{number(n_outliers) if n_outliers else 'none'} "
    outliers += "is an outlier" if n_outliers < 2 else "are outliers"
    if n_judged:
        takeaway += f"; of {plural(n_judged, 'span')} of {every} with enough requests to judge, "
        takeaway += f"{outliers}."
    else:
        takeaway += f"; in no {every} are there enough requests to follow it over time."
    takeaway += counted_words("the shares and spans", len(groups), measured["n_groups"])
    time, panels = time_unit(facts["duration_s"], facts["start_time"]), []
    for group in groups:
        series = group["series"]
        across = np.array(series["start_s"]) / time.unit_s
        shares = [None if x is None else 100 * x for x in series["failure_fraction"]]
        marked = zip(shares, series["is_outlier"], strict=True)
        curves = [
            Curve("failed", across, shares),
            Curve("outlier", across, [x if out else None for x, out in marked], is_marks=True),
        ]
        panels.append(Panel(group["name"], Axis(time.label), Axis("Failed (%)", low=0), curves))
    svg = panels_figure(panels, "Failure rate over time", n_columns=1, height_in=1.5, is_step=True)
    caption = (
        f"Share of failed requests in each {every}; gaps: too few requests to judge. Outliers lie "
        "more than 1.5 interquartile ranges beyond the quartiles."
    )
    columns = {
        "LLM · service": lambda own: own["name"],
        "Failed": lambda own: number(own["n_failed"]),
        "Failed (%)": lambda own: percent(own["failure_fraction"]),
        f"Median per {every}": lambda own: percent(own["median"]),
        "Quartiles": lambda own: " to ".join(percent(own[name]) for name in ("q1", "q3")),
        "Outliers": lambda own: number(own["n_outliers"]),
        "Too few to judge": lambda own: plural(own["n_too_few"], "span"),
    }
    rows = ({"name": group["name"], **group["summary"]} for group in groups)
    table = Table.of_rows(rows, columns)
    return Section("Reliability", [Headline(takeaway), Chart(svg, caption), table])
