"""The section Traffic of a trace's page: requests over time, by hour and by week."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.files import jsonable
from sextant.pages.blocks import Block, Chart, Headline, Section, Table
from sextant.pages.charts import Axis, Curve, Panel, panels_figure
from sextant.pages.words import DAY_S, HOUR_S, duration_words, number, percent, plural, time_unit
from sextant.report.trace_file import MAX_SHOWN, explained, rows_of
from sextant.workload import profiles

_BUCKETS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 43200, 86400)
_N_BUCKETS = 100
_REQUESTS_PER_BUCKET = 10
_SIGNIFICANCE = 0.01
_MIN_DAYS = 2
_MIN_WEEKS = 2
_COUNTED = ("n_requests", "input_tokens", "output_tokens")
_SPREAD = [f"requests_{name}" for name in ("mean", "q1", "median", "q3")]
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def bucket_s(duration_s: float, n_buckets: int) -> int:
    """Return a round length of time, in seconds: at most about `n_buckets` fit into the trace."""
    wanted = duration_s / n_buckets
    return next((size for size in _BUCKETS_S if size >= wanted), 7 * DAY_S)


def measure_traffic(trace: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the traffic of up to `MAX_SHOWN` LLMs and services.

    Each group has the series of requests and tokens, the mean and quartiles of requests per hour of
    the day and of the week, and the share of variance that the hour explains (`explained`).
    `why_no_profile` says why there are no hours of the day. `n_requests_per_bucket` counts buckets
    that lie wholly in the trace.
    """
    duration_s = facts["duration_s"]
    n_buckets = min(max(facts["n_requests"] // _REQUESTS_PER_BUCKET, 10), _N_BUCKETS)
    size = bucket_s(duration_s, n_buckets)
    series = profiles.traffic_series(trace, size)
    why = None
    has_clock = False
    if duration_s >= _MIN_DAYS * DAY_S:
        hourly = profiles.traffic_series(trace, HOUR_S)
        profile = profiles.traffic_profile(trace)
        has_clock = bool(profile["is_clock_known"].all())
    else:
        why = _why_no_profile(trace, duration_s)
    groups = []
    for group in facts["groups"][:MAX_SHOWN]:
        counts = rows_of(series, group)[["start_s", "is_whole", *_COUNTED]]
        counts = jsonable(counts.astype(dict.fromkeys(_COUNTED, int)).to_dict("series"))
        entry = {"name": group["name"], "series": counts, "daily": None, "weekly": None}
        regular = None
        if why is None:
            cycles = rows_of(profile, group)
            days = cycles[cycles["weekday"].isna()]
            weeks = cycles[cycles["weekday"].notna()]
            entry["daily"] = jsonable(days[["hour", *_SPREAD]].to_dict("series"))
            if has_clock and duration_s >= _MIN_WEEKS * 7 * DAY_S:
                weeks = weeks.assign(hour_of_week=24 * weeks["weekday"].astype(int) + weeks["hour"])
                entry["weekly"] = jsonable(weeks[["hour_of_week", *_SPREAD]].to_dict("series"))
            whole = rows_of(hourly, group)
            whole = whole[whole["is_whole"]]
            hours = whole["moment"].dt.hour if has_clock else whole["start_s"] // HOUR_S % 24
            regular = explained(whole["n_requests"].to_numpy(float), hours.to_numpy(int))
        entry["hour_of_day_fraction"], entry["hour_of_day_p_value"] = regular or (None, None)
        groups.append(entry)
    by_bucket = series.groupby("start_s")
    whole = by_bucket["n_requests"].sum()[by_bucket["is_whole"].all()].astype(float)
    spread = whole.agg(["min", "median", "max"]).to_dict() if len(whole) else None
    return {
        "bucket_s": size,
        "n_requests_per_bucket": spread,
        "has_clock": has_clock,
        "why_no_profile": why,
        "groups": groups,
    }


def _why_no_profile(trace: Path, duration_s: float) -> str:
    """Return what is known of the hours of a trace that is too short for a profile of days."""
    if not duration_s:
        return "All requests arrive at one moment: nothing changes over time."
    lasts = duration_words(duration_s)
    hourly = profiles.traffic_series(trace, HOUR_S, by=())
    whole = hourly[hourly["is_whole"]].reset_index(drop=True)
    if len(whole) < 2:
        return f"No daily profile can be seen in {lasts}: it takes {_MIN_DAYS} days or more."
    counts = whole["n_requests"]
    has_clock = bool(whole["moment"].notna().all())
    hours = whole["moment"].dt.hour if has_clock else whole["start_s"] // HOUR_S
    top = int(counts.argmax())
    low = int(counts.argmin())
    busiest, quietest = (_hour_words(int(hours[index]), has_clock) for index in (top, low))
    than = f"{number(counts[top] / counts[low])} times the requests of the quietest, {quietest}"
    if not counts[low]:
        than = f"{plural(int(counts[top]), 'request')}, the quietest, {quietest}, none"
    repeats = f"Whether that repeats every day cannot be seen in {lasts}: it takes {_MIN_DAYS} days"
    return f"The busiest hour, {busiest}, has {than}. {repeats} or more."


def _hour_words(hour: int, has_clock: bool) -> str:
    return f"{hour:02d}:00" if has_clock else f"hour {hour} from the start"


def _end_hours(group: Mapping[str, Any], has_clock: bool) -> list[str]:
    """Return the busiest and the quietest hour of the day."""
    means = group["daily"]["requests_mean"]
    hours = group["daily"]["hour"]
    return [_hour_words(hours[int(pick(means))], has_clock) for pick in (np.argmax, np.argmin)]


def show_traffic(measured: Mapping[str, Any], facts: Mapping[str, Any]) -> Section:
    """Return the section of what `measure_traffic` returns."""
    blocks: list[Block] = [Headline(_traffic_takeaway(measured))]
    groups = measured["groups"]
    has_clock = measured["has_clock"]
    unit_s, since = time_unit(facts["duration_s"], facts["start_time"])
    size = measured["bucket_s"]
    has_whole = measured["n_requests_per_bucket"] is not None
    every = duration_words(size).removeprefix("1 ")
    panels = []
    for group in groups:
        series = pd.DataFrame(group["series"])
        series = series[series["is_whole"]] if has_whole else series
        # The last bucket gets its width from a point at its end.
        across = np.append(series["start_s"], series["start_s"].iloc[-1] + size)
        counts = np.append(series["n_requests"], series["n_requests"].iloc[-1])
        curve = Curve("requests", across / unit_s, counts)
        y = Axis(f"Requests per {every}", low=0)
        panels.append(Panel(group["name"], Axis(since), y, [curve]))
    svg = panels_figure(panels, "Requests over time", n_columns=1, height_in=1.9, is_step=True)
    which = " that the trace covers wholly" if has_whole else ""
    blocks.append(Chart(svg, f"Requests in each {every}{which}."))
    if measured["why_no_profile"] is None:
        label = "Hour of the day" if has_clock else "Hours since the first request, modulo 24"
        hours = Axis(label, ticks=range(0, 25, 6), low=0, high=23)
        blocks.append(_profile_figure(groups, "daily", "hour", hours))
        header = ("LLM · service", "Explained by hour of day", "Busiest hour", "Quietest hour")
        rows = [
            (group["name"], percent(group["hour_of_day_fraction"]), *_end_hours(group, has_clock))
            for group in groups
        ]
        blocks.append(Table(header, rows))
    if any(group["weekly"] for group in groups):
        days = Axis("Day of the week", False, range(0, 168, 24), _WEEKDAYS, low=0, high=167)
        blocks.append(_profile_figure(groups, "weekly", "hour_of_week", days))
    return Section("Traffic", blocks)


def _traffic_takeaway(measured: Mapping[str, Any]) -> str:
    spread = measured["n_requests_per_bucket"]
    in_range = ""
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
    regular_groups = [
        group for group in measured["groups"] if group["hour_of_day_fraction"] is not None
    ]
    # The most regular of several groups is regular by chance more often than each of them.
    if not any(
        group["hour_of_day_p_value"] * len(regular_groups) < _SIGNIFICANCE
        for group in regular_groups
    ):
        return f"No hour of the day has more requests than chance gives it.{in_range}"
    regular_groups.sort(key=lambda group: group["hour_of_day_fraction"])
    least = regular_groups[0]
    most = regular_groups[-1]
    share = percent(most["hour_of_day_fraction"])
    whose = "the busiest hour"
    explains = f"The hour of the day explains {share} of how requests per hour vary"
    if len(regular_groups) > 1:
        explains += f" in {most['name']}, but {percent(least['hour_of_day_fraction'])}"
        explains += f" in {least['name']}"
        whose += f" of {most['name']}"
    means = most["daily"]["requests_mean"]
    busiest, quietest = _end_hours(most, measured["has_clock"])
    if min(means) == 0:
        return f"{explains}; {whose} is {busiest}, and {quietest} has no request."
    return (
        f"{explains}; {whose}, {busiest}, has {number(max(means) / min(means))} times the requests "
        f"of the quietest, {quietest}."
    )


def _profile_figure(
    groups: Sequence[Mapping[str, Any]], key: str, hour: str, across: Axis
) -> Chart:
    panels = []
    cycle = {"daily": "day", "weekly": "week"}[key]
    for group in groups:
        spread = (group[key][f"requests_{statistic}"] for statistic in ("median", "q1", "q3"))
        curve = Curve("median", group[key][hour], *spread)
        panels.append(Panel(group["name"], across, Axis("Requests per hour", low=0), [curve]))
    caption = (
        f"Requests per hour by hour of the {cycle}: the median of all {cycle}s, and its quartiles."
    )
    return Chart(panels_figure(panels, f"Requests by hour of the {cycle}"), caption)
