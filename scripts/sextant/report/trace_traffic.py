"""What changes over time: traffic by hour and week, burstiness, arrivals, failures."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.files import jsonable
from sextant.pages.blocks import Block, Chart, Headline, Note, Section, Table
from sextant.pages.charts import Axis, Curve, Panel, panels_figure
from sextant.pages.words import (
    DAY_S,
    HOUR_S,
    duration_words,
    joined,
    number,
    percent,
    plural,
    time_unit,
)
from sextant.report.trace_file import MAX_SHOWN, FittedWorkload, explained, rows_of
from sextant.workload import arrivals, profiles
from sextant.workload.arrivals import REACH, measure_arrivals, measure_words, on_fine_clock
from sextant.workload.generators import ArrivalModel
from sextant.workload.profiles import TOO_FEW, WINDOW_S, count_doublings, fit_windows, read_arrivals
from sextant.workload.trace_arrivals import REPLAY

_BUCKETS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 43200, 86400)
_N_BUCKETS, _REQUESTS_PER_BUCKET = 100, 10
_N_SPANS, _REQUESTS_PER_SPAN = 300, 30
_SIGNIFICANCE = 0.01
_MIN_DAYS, _MIN_WEEKS = 2, 2
_COUNTED = ("n_requests", "input_tokens", "output_tokens")
_SPREAD = [f"requests_{name}" for name in ("mean", "q1", "median", "q3")]
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
DOUBLING_MINUTES = (5, 10)  # BurstGPT, III-B: within how long requests double
_DOUBLINGS = ("n_doublings", "per_day", "per_workday", "n_from_zero")
_COARSE = 0.1  # fraction of equal time stamps above which the page mentions the clock
_MAX_WINDOWS = 150  # with more windows their intervals would cover each other, and are not drawn
_WINDOW_COLUMNS = ["start_s", "duration_s", "n_requests", "alpha", "alpha_lo", "alpha_hi", "beta_s",
            "beta_lo_s", "beta_hi_s", "cv", "ks"]  # fmt: skip


def bucket_s(duration_s: float, n_buckets: int) -> int:
    """Return a round length of time of which about so many fit into the trace, or fewer."""
    wanted = duration_s / n_buckets
    return next((size for size in _BUCKETS_S if size >= wanted), 7 * DAY_S)


def measure_traffic(trace: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the series of requests and tokens of up to `MAX_SHOWN` LLMs and services, with the
    mean and quartiles of requests per hour of the day and week, what the hour explains
    (`explained`), or `why_no_profile`; `n_requests_per_bucket` is of buckets wholly in the trace.
    """
    duration_s = facts["duration_s"]
    n_buckets = min(max(facts["n_requests"] // _REQUESTS_PER_BUCKET, 10), _N_BUCKETS)
    size = bucket_s(duration_s, n_buckets)
    series, why, has_clock = profiles.traffic_series(trace, size), None, False
    if duration_s >= _MIN_DAYS * DAY_S:
        hourly, profile = profiles.traffic_series(trace, HOUR_S), profiles.traffic_profile(trace)
        has_clock = bool(profile["is_clock_known"].all())
    else:
        why = _why_no_profile(trace, duration_s)
    groups = []
    for group in facts["groups"][:MAX_SHOWN]:
        own = rows_of(series, group)[["start_s", "is_whole", *_COUNTED]]
        own = jsonable(own.astype(dict.fromkeys(_COUNTED, int)).to_dict("series"))
        entry = {"name": group["name"], "series": own, "daily": None, "weekly": None}
        regular = None
        if why is None:
            cycles = rows_of(profile, group)
            days, weeks = cycles[cycles["weekday"].isna()], cycles[cycles["weekday"].notna()]
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
    counts, has_clock = whole["n_requests"], bool(whole["moment"].notna().all())
    hours = whole["moment"].dt.hour if has_clock else whole["start_s"] // HOUR_S
    top, low = int(counts.argmax()), int(counts.argmin())
    busiest, quietest = (_hour_words(int(hours[place]), has_clock) for place in (top, low))
    than = f"{number(counts[top] / counts[low])} times the requests of the quietest, {quietest}"
    if not counts[low]:
        than = f"{plural(int(counts[top]), 'request')}, the quietest, {quietest}, none"
    repeats = f"Whether that repeats every day cannot be seen in {lasts}: it takes {_MIN_DAYS} days"
    return f"The busiest hour, {busiest}, has {than}. {repeats} or more."


def _hour_words(hour: int, has_clock: bool) -> str:
    return f"{hour:02d}:00" if has_clock else f"hour {hour} from the start"


def _end_hours(group: Mapping[str, Any], has_clock: bool) -> list[str]:
    """Return the busiest and the quietest hour of the day."""
    means, hours = group["daily"]["requests_mean"], group["daily"]["hour"]
    return [_hour_words(hours[int(pick(means))], has_clock) for pick in (np.argmax, np.argmin)]


def show_traffic(measured: Mapping[str, Any], facts: Mapping[str, Any]) -> Section:
    """Return the section of what `measure_traffic` returns."""
    blocks: list[Block] = [Headline(_traffic_takeaway(measured))]
    groups, has_clock = measured["groups"], measured["has_clock"]
    unit_s, since = time_unit(facts["duration_s"], facts["start_time"])
    size, has_whole = measured["bucket_s"], measured["n_requests_per_bucket"] is not None
    every, panels = duration_words(size).removeprefix("1 "), []
    for group in groups:
        series = pd.DataFrame(group["series"])
        series = series[series["is_whole"]] if has_whole else series
        # The last bucket gets its width from a point at its end.
        across = np.append(series["start_s"], series["start_s"].iloc[-1] + size)
        counts = np.append(series["n_requests"], series["n_requests"].iloc[-1])
        curve = Curve("requests", across / unit_s, counts)
        y = Axis(f"Requests per {every}", low=0)
        panels.append(Panel(group["name"], Axis(since), y, [curve]))
    svg = panels_figure(panels, "Requests over time", n_columns=1, height_in=1.4, is_step=True)
    which = " that the trace covers wholly" if has_whole else ""
    blocks.append(Chart(svg, f"Requests in each {every}{which}."))
    if measured["why_no_profile"] is None:
        label = "Hour of the day" if has_clock else "Hours since the first request, modulo 24"
        hours = Axis(label, ticks=range(0, 25, 6), low=0, high=23)
        blocks.append(_profile_figure(groups, "daily", "hour", hours))
        header = ("LLM · service", "Explained by hour of day", "Busiest hour", "Quietest hour")
        rows = [
            (own["name"], percent(own["hour_of_day_fraction"]), *_end_hours(own, has_clock))
            for own in groups
        ]
        blocks.append(Table(header, rows))
    if any(group["weekly"] for group in groups):
        days = Axis("Day of the week", False, range(0, 168, 24), _WEEKDAYS, low=0, high=167)
        blocks.append(_profile_figure(groups, "weekly", "hour_of_week", days))
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
    known.sort(key=lambda group: group["hour_of_day_fraction"])
    least, most = known[0], known[-1]
    share, whose = percent(most["hour_of_day_fraction"]), "the busiest hour"
    explains = f"The hour of the day explains {share} of how requests per hour vary"
    if len(known) > 1:
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
    panels, cycle = [], {"daily": "day", "weekly": "week"}[key]
    for group in groups:
        spread = (group[key][f"requests_{statistic}"] for statistic in ("median", "q1", "q3"))
        curve = Curve("median", group[key][hour], *spread)
        panels.append(Panel(group["name"], across, Axis("Requests per hour", low=0), [curve]))
    caption = (
        f"Requests per hour by hour of the {cycle}: the median of all {cycle}s, and its quartiles."
    )
    return Chart(panels_figure(panels, f"Requests by hour of the {cycle}"), caption)


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
    (least, best), (most, worst) = ranked[0], ranked[-1]
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
    (unit_s, since), panels, rows = time_unit(facts["duration_s"], facts["start_time"]), [], []
    for group in groups:
        series, own = pd.DataFrame(group["series"]), group["summary"]
        across, share = series["start_s"] / unit_s, 100 * series["failure_fraction"].astype(float)
        y = Axis("Failed (%)", low=0)
        curves = [
            Curve("failed", across, share),
            Curve("outlier", across, share.where(series["is_outlier"]), is_marks=True),
        ]
        panels.append(Panel(group["name"], Axis(since), y, curves))
        failed = (number(own["n_failed"]), percent(own["failure_fraction"]), percent(own["median"]))
        quartiles = " to ".join(percent(own[name]) for name in ("q1", "q3"))
        too_few = plural(own["n_too_few"], "span")
        rows.append((group["name"], *failed, quartiles, number(own["n_outliers"]), too_few))
    svg = panels_figure(panels, "Failure rate over time", n_columns=1, height_in=1.5, is_step=True)
    caption = (
        f"Share of failed requests in each {every}; gaps: too few requests to judge. Outliers lie "
        "more than 1.5 interquartile ranges beyond the quartiles."
    )
    header = ["LLM · service", "Failed", "Failed (%)", f"Median per {every}", "Quartiles"]
    table = Table([*header, "Outliers", "Too few to judge"], rows)
    return Section("Reliability", [Headline(takeaway), Chart(svg, caption), table])


def measure_burstiness(
    trace: Path, workloads: Sequence[FittedWorkload], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the Gamma fits of 20-minute windows (`groups`, the most frequent LLMs and services:
    counts of windows by what became of them, fits, quartiles; `n_hidden`: the clock hides their
    shape), `doublings` by duration and group, and `whole`: distinct arrival models of workloads."""
    windows, shown = fit_windows(trace), facts["groups"][:MAX_SHOWN]
    names: dict[ArrivalModel, list[str]] = {}
    for workload in workloads:
        names.setdefault(workload.arrivals, []).append(workload.name)
    doublings = []
    for minutes in DOUBLING_MINUTES:
        totals = count_doublings(trace, minutes)
        for group in shown:
            known = jsonable(rows_of(totals, group).iloc[0].to_dict())
            doublings.append({"name": group["name"], "minutes": minutes, **known})
    return {
        "window_s": WINDOW_S,
        "groups": [{"name": own["name"], **_count_windows(rows_of(windows, own))} for own in shown],
        "doublings": doublings,
        "whole": [{"workloads": own, **asdict(model)} for model, own in names.items()],
    }


def _count_windows(windows: pd.DataFrame) -> dict[str, Any]:
    fitted = windows[windows["alpha"].notna()]
    left = windows.loc[windows["alpha"].isna() & (windows["n_requests"] > 0), "reason"]
    n_gaps, step_s = int((fitted["n_requests"] - 1).sum()), windows["clock_step_s"].iloc[0]
    spreads: dict[str, dict[str, float] | None] = dict.fromkeys(("alpha", "cv", "ks"))
    for name in spreads:
        if len(values := fitted[name].dropna()):
            shares = np.percentile(values.to_numpy(float), [10, 25, 50, 75, 90]).tolist()
            spreads[name] = dict(zip(("p10", "q1", "median", "q3", "p90"), shares, strict=True))
    return {
        "n_windows": len(windows),
        "n_fitted": len(fitted),
        "n_empty": int((windows["n_requests"] == 0).sum()),
        "n_hidden": int((~left.isin((TOO_FEW, arrivals.ALL_AT_ONCE, arrivals.ALL_EQUAL))).sum()),
        "not_fitted": left.value_counts().sort_index().to_dict(),
        "zero_gap_fraction": int(fitted["n_zero_gaps"].sum()) / n_gaps if n_gaps else 0.0,
        "clock_step_s": None if np.isnan(step_s) else float(step_s),
        **spreads,
        "windows": jsonable(fitted[_WINDOW_COLUMNS].to_dict("series")),
    }


def show_burstiness(measured: Mapping[str, Any], facts: Mapping[str, Any]) -> Section:
    """Return the section of what `measure_burstiness` returns."""
    groups = measured["groups"]
    blocks: list[Block] = [Headline(_burstiness_takeaway(measured))]
    for whole in measured["whole"]:
        names = joined(whole["workloads"])
        text = f"{names}: no Gamma distribution fits all gaps of the trace ({whole['reason']})."
        if whole["alpha"] is not None:
            off = "" if whole["ks"] is None else f", and is off by {percent(whole['ks'])} of them"
            text = (
                f"{names}: the Gamma distribution of all gaps has α = {whole['alpha']:.3f} (95 % "
                f"interval {whole['alpha_lo']:.3f} to {whole['alpha_hi']:.3f}), β = "
                f"{number(float(whole['beta_s']))} s, so CV {number(float(whole['cv']))}{off}. "
                "Changes of the rate over the trace count as burstiness there."
            )
        blocks.append(Note(text))
    fitted = [group for group in groups if group["n_fitted"]]
    if fitted:
        blocks.append(_window_figure(fitted, facts))
    for group in fitted:
        if group["zero_gap_fraction"] > _COARSE:
            text = (
                f"{group['name']}: {percent(group['zero_gap_fraction'])} of the requests have the "
                "time stamp of the one before, since the clock steps by "
                f"{duration_words(group['clock_step_s'])}. The fit is to counts of steps: what the "
                "clock hides makes the intervals wider, and the fit is not tested."
            )
            blocks.append(Note(text))
    rows, reasons = [], Counter[str]()
    for group in groups:
        reasons.update(group["not_fitted"])
        counts = (group["n_windows"], group["n_empty"], sum(group["not_fitted"].values()))
        alpha, cv, ks = (group[name] for name in ("alpha", "cv", "ks"))
        fits = ["–"] * 4
        if alpha:
            ends = f"{number(alpha['p10'])} to {number(alpha['p90'])}"
            fits = [number(alpha["median"]), ends, number(cv["median"])]
            fits.append(f"{ks['median']:.3f}" if ks else "–")
        rows.append([group["name"], *map(number, (*counts, group["n_fitted"])), *fits])
    header = ["LLM · service", "Windows", "Empty", "Not fitted", "Fitted", "Median α"]
    blocks.append(Table([*header, "α, 10 to 90 %", "Median CV", "KS distance"], rows))
    if reasons:
        left = [f"{plural(count, 'window')} ({reason})" for reason, count in reasons.items()]
        blocks.append(Note(f"Not fitted, though with requests: {joined(left)}."))
    header = ["Requests double, LLM · service", "Within", "Times", "Per day", "Per workday"]
    rows = [
        [row["name"], f"{row['minutes']} minutes", *(number(row[name]) for name in _DOUBLINGS)]
        for row in measured["doublings"]
    ]
    blocks.append(Table([*header, "Rises from none"], rows))
    return Section("Burstiness", blocks)


def _burstiness_takeaway(measured: Mapping[str, Any]) -> str:
    fitted = [group for group in measured["groups"] if group["n_fitted"]]
    every = duration_words(measured["window_s"])
    if not fitted:
        reasons = {reason for group in measured["groups"] for reason in group["not_fitted"]}
        why = joined(sorted(reasons))
        return f"Burstiness is not known: no window of {every} can be fitted ({why})."
    # Where the clock hides most windows, those that it does not hide are no fair sample.
    clear = [group for group in fitted if group["n_hidden"] < group["n_fitted"]]
    if not clear:
        steps = duration_words(max(group["clock_step_s"] for group in fitted))
        return (
            f"How bursty the arrivals are is not known: the clock steps by {steps}, which hides "
            "the shape of the gaps in most windows."
        )
    ranked = sorted(clear, key=lambda group: group["cv"]["median"])
    least, most = ranked[0]["cv"]["median"], ranked[-1]["cv"]["median"]
    than = "close to a Poisson process"
    if not 0.9 <= most <= 1.1:
        than = f"{'burstier' if most > 1 else 'steadier'} than a Poisson process"
    words = f"{number(most)}, {than} (1)."
    if len(clear) > 1:
        low, high = (group["name"] for group in (ranked[0], ranked[-1]))
        words = f"{number(least)} ({low}) to {number(most)} ({high}, {than}, which has 1)."
    words = f"In the median window of {every} gaps have a coefficient of variation of {words}"
    medians = [group["ks"]["median"] for group in clear if group["ks"]]
    if not medians:
        return words
    off = " to ".join(dict.fromkeys(percent(end) for end in (min(medians), max(medians))))
    return f"{words} A Gamma distribution is off a window's gaps by {off} (KS distance, median)."


def _window_figure(groups: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Chart:
    (unit_s, since), panels = time_unit(facts["duration_s"], facts["start_time"]), []
    for group in groups:
        windows = pd.DataFrame(group["windows"])
        middle = (windows["start_s"] + windows["duration_s"] / 2) / unit_s
        for stem, unit, label in (("alpha", "", "Shape α"), ("beta", "_s", "Scale β (s)")):
            values, low, high = (windows[f"{stem}{end}{unit}"] for end in ("", "_lo", "_hi"))
            curve = Curve("a window", middle, values, low, high, is_marks=True)
            if len(windows) > _MAX_WINDOWS:
                curve = curve._replace(low=None, high=None)
            panels.append(Panel(group["name"], Axis(since), Axis(label, is_log=True), [curve]))
    caption = (
        "Shape and scale of the Gamma fit of each window over time, with its 95 % interval where "
        f"there are no more than {_MAX_WINDOWS} windows."
    )
    return Chart(panels_figure(panels, "Gamma parameters over time"), caption)


def measure_arrival_models(trace: Path, workloads: Sequence[FittedWorkload]) -> dict[str, Any]:
    """Return the trace's burstiness, and by workload how well its arrival model does."""
    times, clock_step_s = on_fine_clock(read_arrivals(trace))
    return {
        "clock_step_s": clock_step_s,
        "trace": measure_arrivals(times),
        "models": {own.name: own.validation["arrivals"] for own in workloads},
    }


def show_arrivals(measured: Mapping[str, Any]) -> Section:
    """Return the section of what `measure_arrival_models` returns."""
    alike: dict[str, list[str]] = {}
    for name, own in measured["models"].items():
        alike.setdefault(repr(own), []).append(name)
    models = [(names, measured["models"][names[0]]) for names in alike.values()]
    trace = measured["trace"]
    gaps = "The trace has no gaps to measure"
    if trace["gap_cv"] is not None:
        gaps = f"The trace's gaps have a coefficient of variation of {number(trace['gap_cv'])}"
    words = [
        f"{gaps}; its busiest second has {number(trace['busiest_1s'])} requests, its busiest "
        f"minute {number(trace['busiest_60s'])}.",
        *(f"{joined(names)}: {_model_words(own)}." for names, own in models),
    ]
    text = (
        "Dispersion is the variance of the number of requests per bin over its mean: 1 for a "
        "Poisson process, more where requests come in bursts or the rate changes. A model passes "
        f"if the medians of its samples are within {percent(REACH)} of the trace's at every scale "
        "and in the busiest minute, or if both are as steady as chance allows."
    )
    notes = [f"Why {joined(names)} has these arrivals: {own['why']}." for names, own in models]
    notes.append(text)
    if step_s := measured["clock_step_s"]:
        steps = f"The clock steps by {duration_words(step_s)}: requests of one stamp are spread "
        notes.append(f"{steps}over it at random before they are counted or replayed.")
    not_judged = {name for _, own in models for name in own["not_judged"]}
    scales = [measure_words(name).rpartition("over ")[2] for name in trace if name in not_judged]
    if scales:
        notes.append(
            f"Not judged: dispersion over {joined(scales)}, as the trace has fewer than "
            f"{arrivals.MIN_JUDGED_BINS} bins of them, whose variance is off by a third by chance "
            "alone."
        )
    alone: tuple[list[str], dict[str, Any]] = ([], {"model": REPLAY, "models": {}, "trace": trace})
    tables = [_arrivals_table(names, own) for names, own in models or [alone] if own["trace"]]
    return Section("Arrivals", [Headline(" ".join(words)), *map(Note, notes), *tables])


def _model_words(own: Mapping[str, Any]) -> str:
    """Return whether a workload's arrivals are as bursty as the trace."""
    if own["model"] == REPLAY:
        return "no model of the arrivals passes, so that the trace's own times are replayed"
    one, errors = own["models"]["gamma"]["reason"], own["models"][own["model"]]["errors"]
    known = {name: error for name, error in errors.items() if error is not None}
    off = max(abs(known[name]) for name in arrivals.JUDGED if name in known)
    reach = f"what is more than {percent(REACH)} off the trace's lies within chance"
    if off <= REACH:
        reach = "dispersion at every scale and busiest minute are within "
        reach += f"{percent(off)} of the trace's"
    words = f"the model of the arrivals ({arrivals.MODELS[own['model']]}) passes: {reach}"
    return words + (f"; one Gamma process is rejected ({one})" if one else "")


def _arrivals_table(names: Sequence[str], own: Mapping[str, Any]) -> Table:
    trace, kinds = own["trace"], dict.fromkeys(("gamma", own["model"]))
    models = {arrivals.MODELS[kind]: own["models"].get(kind) for kind in kinds}
    columns = {name: model for name, model in models.items() if model and model["measures"]}
    header = [f"Arrivals of {joined(list(names))}" if names else "Arrivals", "trace"]
    header += [cell for name in columns for cell in (name, "off by")]
    rows, order = [], ("gap", "busiest", "dispersion")
    for measure in sorted(trace, key=lambda name: order.index(name.partition("_")[0])):
        row = [measure_words(measure).removeprefix("the "), number(trace[measure])]
        for model in columns.values():
            row.append(number(model["measures"].get(measure)))
            row.append(percent(model["errors"].get(measure)))
        rows.append(row)
    return Table(header, rows)
