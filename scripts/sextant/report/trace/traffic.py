"""Traffic: requests over time, by hour of the day and of the week, per LLM and service."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.rows import column_lists, jsonable
from sextant.pages.charts import Curve, Panel, panels_figure, stacked_figure
from sextant.pages.figure import Axis
from sextant.pages.sections import Section, Table
from sextant.pages.wording import DAY_S, HOUR_S, duration_words, number, percent, plural, time_unit
from sextant.report.trace.trace_file import Explained, TraceFile, explained, row_of, rows_of
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

    `groups` has an entry an LLM and service, at most `MAX_SHOWN` of `n_groups`: `name`, `series`
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
    has_days = duration_s >= _MIN_DAYS * DAY_S
    profile = traffic_profile(trace.path) if has_days else None
    hourly = traffic_series(trace.path, HOUR_S) if has_days else None
    has_clock = profile is not None and bool(profile["is_clock_known"].all())
    has_weeks = has_clock and duration_s >= _MIN_WEEKS * 7 * DAY_S
    together = series.groupby("start_s", as_index=False).agg(
        {"is_whole": "all", "n_requests": "sum"}
    )
    whole = together.loc[together["is_whole"], "n_requests"]
    return {
        "bucket_s": size,
        "n_requests_per_bucket": None
        if whole.empty
        else whole.agg(["min", "median", "max"]).astype(float).to_dict(),
        "n_groups": len(facts["groups"]),
        "has_clock": has_clock,
        "why_no_profile": None if has_days else _too_short(duration_s),
        "groups": [_group(group, series, hourly, profile, has_weeks) for group in shown],
    }


def _group(
    group: Mapping[str, Any],
    series: pd.DataFrame,
    hourly: pd.DataFrame | None,
    profile: pd.DataFrame | None,
    has_weeks: bool,
) -> dict[str, Any]:
    own = None if profile is None else rows_of(profile, group)
    regular = None if hourly is None else _explained(rows_of(hourly, group))
    return {
        "name": group["name"],
        "series": column_lists(
            rows_of(series, group)[_SERIES].astype(dict.fromkeys(_COUNTED, int))
        ),
        "daily": None if own is None else _daily(own),
        "weekly": _weekly(own) if has_weeks else None,
        "hour_of_day_fraction": None if regular is None else regular.fraction,
        "hour_of_day_p_value": None if regular is None else regular.p_value,
    }


def _too_short(duration_s: float) -> str:
    if duration_s == 0:
        return "All requests arrive at one moment: nothing changes over time."
    return (
        f"No daily profile can be seen in {duration_words(duration_s)}: it takes "
        f"{_MIN_DAYS} days or more."
    )


def _daily(profile: pd.DataFrame) -> dict[str, list]:
    rows = profile[profile["weekday"].isna()].sort_values("hour")
    return {"hour": rows["hour"].astype(int).tolist()} | _spread(rows)


def _weekly(profile: pd.DataFrame) -> dict[str, list]:
    rows = profile[profile["weekday"].notna()].sort_values(["weekday", "hour"])
    place = 24 * rows["weekday"].astype(int) + rows["hour"].astype(int)
    return {"hour_of_week": place.tolist()} | _spread(rows)


def _spread(rows: pd.DataFrame) -> dict[str, list]:
    names = ("mean", "q1", "median", "q3")
    return column_lists(rows[[f"requests_{name}" for name in names]])


def _explained(hourly: pd.DataFrame) -> Explained | None:
    whole = hourly[hourly["is_whole"]]
    has_clock = whole["moment"].notna().all()
    hour = whole["moment"].dt.hour if has_clock else whole["start_s"] // HOUR_S % 24
    return explained(whole["n_requests"].to_numpy(float), hour.to_numpy(int))


def show_traffic(found: Mapping[str, Any], facts: Mapping[str, Any]) -> Section:
    """Return the section of what `measure_traffic` found."""
    section = Section("Traffic", _takeaway(found))
    groups = found["groups"]
    if found["n_groups"] > len(groups):
        section.notes.append(
            f"Shown are the {len(groups)} most frequent of {found['n_groups']} LLMs and services."
        )
    section.figures.append(_series_figure(found, facts))
    if found["why_no_profile"] is None:
        section.figures.append(_daily_figure(found))
        section.tables.append(_regularity_table(groups, found["has_clock"]))
    if any(group["weekly"] for group in groups):
        section.figures.append(_weekly_figure(groups))
    return section


def _takeaway(found: Mapping[str, Any]) -> str:
    if found["why_no_profile"]:
        return f"{found['why_no_profile']} {_range_words(found)}".strip()
    known = [group for group in found["groups"] if group["hour_of_day_fraction"] is not None]
    # The most regular of several groups is regular by chance more often than each of them.
    if not any(group["hour_of_day_p_value"] * len(known) < _SIGNIFICANCE for group in known):
        return f"No hour of the day has more requests than chance gives it. {_range_words(found)}"
    most = max(known, key=lambda group: group["hour_of_day_fraction"])
    least = min(known, key=lambda group: group["hour_of_day_fraction"])
    share = percent(most["hour_of_day_fraction"])
    explains = f"The hour of the day explains {share} of how requests per hour vary"
    if len(known) > 1:
        explains += f" in {most['name']}, but {percent(least['hour_of_day_fraction'])}"
        explains += f" in {least['name']}"
    return f"{explains}; {_peak_words(most, found['has_clock'], len(known) > 1)}"


def _peak_words(group: Mapping[str, Any], has_clock: bool, is_named: bool) -> str:
    means, hours = group["daily"]["requests_mean"], group["daily"]["hour"]
    top, low = int(np.argmax(means)), int(np.argmin(means))
    whose = f"the busiest hour of {group['name']}" if is_named else "the busiest hour"
    busiest, quietest = (_hour_words(hours[place], has_clock) for place in (top, low))
    if means[low] == 0:
        return f"{whose} is {busiest}, and {quietest} has no request."
    return (
        f"{whose}, {busiest}, has {number(means[top] / means[low])} times the requests of the "
        f"quietest, {quietest}."
    )


def _hour_words(hour: int, has_clock: bool) -> str:
    return f"{hour:02d}:00" if has_clock else f"hour {hour} from the start"


def _range_words(found: Mapping[str, Any]) -> str:
    spread = found["n_requests_per_bucket"]
    if spread is None:
        return ""
    every = duration_words(found["bucket_s"]).removeprefix("1 ")
    if spread["min"] == spread["max"]:
        return f"In each {every} came {number(spread['min'])} requests."
    return (
        f"Between {number(spread['min'])} and {number(spread['max'])} requests came in each "
        f"{every}, {number(spread['median'])} in the median."
    )


def _series_figure(found: Mapping[str, Any], facts: Mapping[str, Any]) -> tuple[str, str]:
    time, size = time_unit(facts["duration_s"], facts["start_time"]), found["bucket_s"]
    has_whole = found["n_requests_per_bucket"] is not None
    curves = []
    for group in found["groups"]:
        series = pd.DataFrame(group["series"])
        series = series[series["is_whole"]] if has_whole else series
        # The last bucket gets its width from a point at its end.
        across = np.append(series["start_s"], series["start_s"].iloc[-1] + size)
        counts = np.append(series["n_requests"], series["n_requests"].iloc[-1])
        curves.append(Curve(group["name"], across / time.unit_s, counts))
    every = duration_words(size).removeprefix("1 ")
    vertical = Axis(f"Requests per {every}", low=0)
    svg = stacked_figure(curves, Axis(time.label), vertical, "Requests over time")
    return svg, f"Requests in each {every}" + (
        " that the trace covers wholly." if has_whole else "."
    )


def _daily_figure(found: Mapping[str, Any]) -> tuple[str, str]:
    label = "Hour of the day" if found["has_clock"] else "Hours since the first request, modulo 24"
    across = Axis(label, ticks=range(0, 25, 6), low=0, high=23)
    profiles = {group["name"]: group["daily"] for group in found["groups"]}
    return _profile_figure(profiles, "day", "hour", across)


def _weekly_figure(groups: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    across = Axis("Day of the week", ticks=range(0, 168, 24), names=_WEEKDAYS, low=0, high=167)
    profiles = {group["name"]: group["weekly"] for group in groups}
    return _profile_figure(profiles, "week", "hour_of_week", across)


def _profile_figure(
    profiles: Mapping[str, Mapping[str, Any]], cycle: str, hour: str, across: Axis
) -> tuple[str, str]:
    panels = []
    for name, profile in profiles.items():
        spread = (profile[f"requests_{statistic}"] for statistic in ("median", "q1", "q3"))
        curve = Curve("median", profile[hour], *spread)
        panels.append(Panel(name, across, Axis("Requests per hour", low=0), [curve]))
    caption = f"Requests per hour by hour of the {cycle}: the median of all {cycle}s, and its "
    return panels_figure(panels, f"Requests by hour of the {cycle}"), f"{caption}quartiles."


def _regularity_table(groups: Sequence[Mapping[str, Any]], has_clock: bool) -> Table:
    def hour(group: Mapping[str, Any], pick: Callable) -> str:
        daily = group["daily"]
        return _hour_words(daily["hour"][int(pick(daily["requests_mean"]))], has_clock)

    columns = {
        "LLM · service": lambda group: group["name"],
        "Explained by hour of day": lambda group: percent(group["hour_of_day_fraction"]),
        "Busiest hour": lambda group: hour(group, np.argmax),
        "Quietest hour": lambda group: hour(group, np.argmin),
        "Weekend day / workday": lambda group: _weekend_ratio(group["weekly"]),
    }
    return Table.of_rows(groups, columns)


def _weekend_ratio(weekly: Mapping[str, Any] | None) -> str:
    if weekly is None:
        return "–"
    means, day = np.array(weekly["requests_mean"]), np.array(weekly["hour_of_week"]) // 24
    workday = means[day < 5].mean()
    return number(float(means[day >= 5].mean() / workday)) if workday > 0 else "–"


_reliability_N_BUCKETS = 300
_reliability_REQUESTS_PER_BUCKET = 30


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
    n_buckets = facts["n_requests"] // (_reliability_REQUESTS_PER_BUCKET * n_groups)
    size = bucket_s(facts["duration_s"], min(max(n_buckets, 1), _reliability_N_BUCKETS))
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
    section = Section("Reliability", _reliability_takeaway(found, facts))
    if not found["groups"]:
        return section
    section.figures.append(_figure(found, facts))
    section.tables.append(_table(found))
    return section


def _reliability_takeaway(found: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
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
