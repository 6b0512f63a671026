"""The section Burstiness of a trace's page: Gamma fits of windows, and sudden rises."""

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
from sextant.pages.words import duration_words, joined, number, percent, plural, time_unit
from sextant.report.trace_file import MAX_SHOWN, FittedWorkload, rows_of
from sextant.workload import arrivals
from sextant.workload.generators import ArrivalModel
from sextant.workload.profiles import TOO_FEW, WINDOW_S, count_doublings, fit_windows

DOUBLING_MINUTES = (5, 10)  # BurstGPT, III-B: within how long requests double
_DOUBLINGS = ("n_doublings", "per_day", "per_workday", "n_from_zero")
_COARSE = 0.1  # fraction of equal time stamps above which the page mentions the clock
_MAX_WINDOWS = 150  # with more windows their intervals would cover each other, and are not drawn
_WINDOW_COLUMNS = ["start_s", "duration_s", "n_requests", "alpha", "alpha_lo", "alpha_hi", "beta_s",
            "beta_lo_s", "beta_hi_s", "cv", "ks"]  # fmt: skip


def measure_burstiness(
    trace: Path, workloads: Sequence[FittedWorkload], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return how bursty the arrivals are.

    `groups` has the Gamma fits of 20-minute windows of the most frequent LLMs and services: counts
    of windows by outcome (`n_hidden`: the clock hides the shape of the gaps), the fits, and their
    quantiles. `doublings` has sudden rises by duration and group, `whole` the distinct arrival
    models of the workloads.
    """
    windows = fit_windows(trace)
    shown = facts["groups"][:MAX_SHOWN]
    names: dict[ArrivalModel, list[str]] = {}
    for workload in workloads:
        names.setdefault(workload.arrivals, []).append(workload.name)
    doublings = []
    for minutes in DOUBLING_MINUTES:
        totals = count_doublings(trace, minutes)
        for group in shown:
            rises = jsonable(rows_of(totals, group).iloc[0].to_dict())
            doublings.append({"name": group["name"], "minutes": minutes, **rises})

    groups = []
    for group in shown:
        of_group = rows_of(windows, group)
        fitted = of_group[of_group["alpha"].notna()]
        left = of_group.loc[of_group["alpha"].isna() & (of_group["n_requests"] > 0), "reason"]
        n_gaps = int((fitted["n_requests"] - 1).sum())
        step_s = of_group["clock_step_s"].iloc[0]
        spreads: dict[str, dict[str, float] | None] = dict.fromkeys(("alpha", "cv", "ks"))
        for name in spreads:
            if len(values := fitted[name].dropna()):
                shares = np.percentile(values.to_numpy(float), [10, 25, 50, 75, 90]).tolist()
                spreads[name] = dict(zip(("p10", "q1", "median", "q3", "p90"), shares, strict=True))
        is_hidden = ~left.isin((TOO_FEW, arrivals.ALL_AT_ONCE, arrivals.ALL_EQUAL))
        entry = {
            "name": group["name"],
            "n_windows": len(of_group),
            "n_fitted": len(fitted),
            "n_empty": int((of_group["n_requests"] == 0).sum()),
            "n_hidden": int(is_hidden.sum()),
            "not_fitted": left.value_counts().sort_index().to_dict(),
            "zero_gap_fraction": int(fitted["n_zero_gaps"].sum()) / n_gaps if n_gaps else 0.0,
            "clock_step_s": None if np.isnan(step_s) else float(step_s),
            **spreads,
            "windows": jsonable(fitted[_WINDOW_COLUMNS].to_dict("series")),
        }
        groups.append(entry)

    return {
        "window_s": WINDOW_S,
        "groups": groups,
        "doublings": doublings,
        "whole": [
            {"workloads": workload_names, **asdict(model)}
            for model, workload_names in names.items()
        ],
    }


def show_burstiness(measured: Mapping[str, Any], facts: Mapping[str, Any]) -> Section:
    """Return the section of what `measure_burstiness` returns."""
    groups = measured["groups"]
    blocks: list[Block] = [Headline(_burstiness_takeaway(measured, facts["duration_s"]))]
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
    if any(group["n_fitted"] > 1 for group in fitted):
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
    rows = []
    reasons = Counter[str]()
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
        if row["n_doublings"] or row["n_from_zero"]
    ]
    blocks.append(Table([*header, "Rises from none"], rows))
    if not rows:
        spans = joined([f"{minutes} minutes" for minutes in DOUBLING_MINUTES])
        blocks.append(Note(f"Requests never double within {spans}."))
    return Section("Burstiness", blocks)


def _burstiness_takeaway(measured: Mapping[str, Any], duration_s: float) -> str:
    fitted = [group for group in measured["groups"] if group["n_fitted"]]
    every = duration_words(measured["window_s"])
    where = f"In the median window of {every}"
    if duration_s <= measured["window_s"]:
        where = f"Over the whole trace, {duration_words(duration_s)},"
    if not fitted:
        reasons = {reason for group in measured["groups"] for reason in group["not_fitted"]}
        why = joined(sorted(reasons))
        return f"Burstiness is not known: no window of {every} can be fitted ({why})."
    # If the clock hides most windows of a group, its other windows are not a fair sample.
    clear = [group for group in fitted if group["n_hidden"] < group["n_fitted"]]
    if not clear:
        steps = duration_words(max(group["clock_step_s"] for group in fitted))
        return (
            f"How bursty the arrivals are is not known: the clock steps by {steps}, which hides "
            "the shape of the gaps in most windows."
        )
    ranked = sorted(clear, key=lambda group: group["cv"]["median"])
    least = ranked[0]["cv"]["median"]
    most = ranked[-1]["cv"]["median"]
    than = "close to a Poisson process"
    if not 0.9 <= most <= 1.1:
        than = f"{'burstier' if most > 1 else 'steadier'} than a Poisson process"
    words = f"{number(most)}, {than} (1)."
    if len(clear) > 1:
        low, high = (group["name"] for group in (ranked[0], ranked[-1]))
        words = f"{number(least)} ({low}) to {number(most)} ({high}, {than}, which has 1)."
    words = f"{where} gaps have a coefficient of variation of {words}"
    medians = [group["ks"]["median"] for group in clear if group["ks"]]
    if not medians:
        return words
    off = " to ".join(dict.fromkeys(percent(end) for end in (min(medians), max(medians))))
    return f"{words} A Gamma distribution is off the gaps by {off} (KS distance, median)."


def _window_figure(groups: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Chart:
    unit_s, since = time_unit(facts["duration_s"], facts["start_time"])
    panels = []
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
