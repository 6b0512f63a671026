"""Burstiness: Gamma fits of windows, how often traffic doubles, and which arrival model fits."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.files import column_lists, jsonable
from sextant.pages.blocks import Block, Chart, Headline, Note, Section, Table
from sextant.pages.charts import Axis, Curve, Panel, panels_figure
from sextant.pages.wording import (
    MINUTE_S,
    duration_words,
    listed,
    number,
    percent,
    plural,
    time_unit,
)
from sextant.report.trace_file import (
    SHORTEST_BUCKET_S,
    FittedWorkload,
    TraceFile,
    row_of,
    rows_of,
)
from sextant.report.trace_traffic import MAX_SHOWN, counted_words
from sextant.workload.arrivals import (
    ALL_AT_ONCE,
    ALL_EQUAL,
    JUDGED,
    MIN_JUDGED_BINS,
    MODELS,
    REACH,
    measure_arrivals,
    measure_words,
    on_fine_clock,
)
from sextant.workload.generators import ArrivalModel
from sextant.workload.profiles import TOO_FEW, WINDOW_S, count_doublings, fit_windows, read_arrivals
from sextant.workload.trace_arrivals import REPLAY

DOUBLING_MINUTES = (SHORTEST_BUCKET_S // MINUTE_S, 10)
"""BurstGPT, III-B: how often the number of requests doubles within 5 and 10 minutes."""
"""Of fewer requests in a window, chance alone doubles many: of Poisson counts with mean 3, 23%
of windows double; with mean 10, 0.1% of those that have 10 or more."""
_COARSE = 0.1
"""Fraction of equal time stamps above which the page mentions the clock."""
_MAX_WINDOWS = 150
"""With more windows their intervals would cover each other: spans of many are drawn instead."""
_N_SPANS = 60
_EACH, _MANY = _DRAWN = ("each window with its 95 % interval", "the windows' median and quartiles")
_COLUMNS = ["start_s", "duration_s", "n_requests", "alpha", "alpha_lo", "alpha_hi", "beta_s",
            "beta_lo_s", "beta_hi_s", "cv", "ks"]  # fmt: skip
_NOT_JUDGED = ("gap_cv", "busiest_1s", "busiest_10s")


def measure_burstiness(
    trace: TraceFile, workloads: Sequence[FittedWorkload], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the Gamma fits of 20-minute windows, doublings, and the whole trace's fit.

    `groups` has one entry for each of the most frequent LLMs and services, of `n_groups`: `name`,
    `windows` (of the fitted ones, columns of `fit_windows`), `n_windows`, `n_fitted`, `n_empty`,
    `n_hidden` (the clock hides their shape), `not_fitted` (number by reason, of windows with
    requests), `clock_step_s`, and of the fitted ones `zero_gap_fraction` and quartiles of `alpha`,
    `cv` and `ks`. `doublings` has by duration and group `name`, `minutes` and the columns of
    `count_doublings`; `whole` each distinct arrival model and the names of its `workloads`.
    """
    windows = fit_windows(trace.path)
    groups = []
    for group in facts["groups"][:MAX_SHOWN]:
        own = rows_of(windows, group)
        fitted = own.loc[own["alpha"].notna(), _COLUMNS]
        groups.append({"name": group["name"], **_summary(own), "windows": column_lists(fitted)})
    names: dict[ArrivalModel, list[str]] = {}
    for workload in workloads:
        names.setdefault(workload.arrivals, []).append(workload.name)
    doublings = []
    for minutes in DOUBLING_MINUTES:
        totals = count_doublings(trace.path, minutes)
        for group in facts["groups"][:MAX_SHOWN]:
            known = jsonable(row_of(totals, group))
            doublings.append({"name": group["name"], "minutes": minutes, **known})
    return {
        "window_s": WINDOW_S,
        "groups": groups,
        "n_groups": len(facts["groups"]),
        "doublings": doublings,
        "whole": [{"workloads": own, **asdict(model)} for model, own in names.items()],
    }


def _summary(windows: pd.DataFrame) -> dict[str, Any]:
    fitted = windows[windows["alpha"].notna()]
    left = windows[windows["alpha"].isna() & (windows["n_requests"] > 0)]
    reasons = left["reason"].value_counts().sort_index()
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
        "n_hidden": int((~left["reason"].isin((TOO_FEW, ALL_AT_ONCE, ALL_EQUAL))).sum()),
        "not_fitted": {str(reason): int(count) for reason, count in reasons.items()},
        "zero_gap_fraction": int(fitted["n_zero_gaps"].sum()) / n_gaps if n_gaps else 0.0,
        "clock_step_s": None if np.isnan(step_s) else float(step_s),
        **spreads,
    }


def show_burstiness(measured: Mapping[str, Any], facts: Mapping[str, Any]) -> Section:
    """Return the section of what `measure_burstiness` returns."""
    groups = measured["groups"]
    counted = counted_words("the windows", len(groups), measured["n_groups"])
    blocks: list[Block] = [Headline(_takeaway(measured) + counted)]
    blocks += [Note(_whole_words(whole)) for whole in measured["whole"]]
    fitted = [group for group in groups if group["n_fitted"]]
    if fitted:
        blocks.append(_window_figure(fitted, facts))
    for group in fitted:
        if group["zero_gap_fraction"] > _COARSE:
            share = percent(group["zero_gap_fraction"])
            step = duration_words(group["clock_step_s"])
            text = (
                f"{group['name']}: in the fitted windows {share} of the requests have the time "
                f"stamp of the one before, since the clock steps by {step}. Gaps are counted in "
                "steps and the Gamma distribution is fitted to the counts; what the clock hides "
                "makes the intervals wider, and the fit is not tested."
            )
            blocks.append(Note(text))
    blocks.append(_window_table(groups))
    reasons = sum((Counter(group["not_fitted"]) for group in groups), Counter[str]())
    if reasons:
        left = [f"{plural(count, 'window')} ({reason})" for reason, count in reasons.items()]
        blocks.append(Note(f"Not fitted, though with requests: {listed(left)}."))
    columns: dict[str, Callable[[Any], str]] = {
        "Requests double, LLM · service": lambda row: row["name"],
        "Within": lambda row: f"{row['minutes']} minutes",
        "Times": lambda row: number(row["n_doublings"]),
        "Per day": lambda row: number(row["per_day"]),
        "Per workday": lambda row: number(row["per_workday"]),
        "Rises from none": lambda row: number(row["n_from_zero"]),
    }
    blocks.append(Table.of_rows(measured["doublings"], columns))
    return Section("Burstiness", blocks)


def _takeaway(measured: Mapping[str, Any]) -> str:
    fitted = [group for group in measured["groups"] if group["n_fitted"]]
    every = duration_words(measured["window_s"])
    if not fitted:
        reasons = {reason for group in measured["groups"] for reason in group["not_fitted"]}
        why = listed(sorted(reasons))
        return f"Burstiness is not known: no window of {every} can be fitted ({why})."
    # Where the clock hides most windows, those that it does not hide are no fair sample.
    clear = [group for group in fitted if group["n_hidden"] < group["n_fitted"]]
    if not clear:
        steps = duration_words(max(group["clock_step_s"] for group in fitted))
        return (
            f"How bursty the arrivals are is not known: the clock steps by {steps}, which hides "
            "the shape of the gaps in most windows."
        )
    spread, medians = (
        _spread_words(clear, every),
        [own["ks"]["median"] for own in clear if own["ks"]],
    )
    if not medians:
        return spread
    off = " to ".join(dict.fromkeys(percent(end) for end in (min(medians), max(medians))))
    return f"{spread} A Gamma distribution is off a window's gaps by {off} (KS distance, median)."


def _spread_words(groups: Sequence[Mapping[str, Any]], every: str) -> str:
    most = max(groups, key=lambda group: group["cv"]["median"])
    cv = most["cv"]["median"]
    than = "close to a Poisson process"
    if not 0.9 <= cv <= 1.1:
        than = f"{'burstier' if cv > 1 else 'steadier'} than a Poisson process"
    if len(groups) == 1:
        return (
            f"Gaps within {every} have a coefficient of variation of {number(cv)} in the median "
            f"window, {than} (1)."
        )
    least = min(groups, key=lambda group: group["cv"]["median"])
    return (
        f"In the median window of {every}, the coefficient of variation of gaps is from "
        f"{number(least['cv']['median'])} ({least['name']}) to {number(cv)} ({most['name']}, "
        f"{than}, which has 1)."
    )


def _whole_words(whole: Mapping[str, Any]) -> str:
    names = listed(whole["workloads"])
    if whole["alpha"] is None:
        return f"{names}: no Gamma distribution fits all gaps of the trace ({whole['reason']})."
    off = "" if whole["ks"] is None else f", and is off by {percent(whole['ks'])} of the gaps"
    return (
        f"{names}: the Gamma distribution of all gaps of the trace has α = {whole['alpha']:.3f} "
        f"(95 % interval {whole['alpha_lo']:.3f} to {whole['alpha_hi']:.3f}), β = "
        f"{number(float(whole['beta_s']))} s, so CV {number(float(whole['cv']))}{off}. Changes of "
        "the rate over the trace count as burstiness there, much more than within a window."
    )


def _window_table(groups: Sequence[Mapping[str, Any]]) -> Table:
    def of_fit(name: str, *ends: str) -> Callable[[Any], str]:
        return lambda own: " to ".join(number(own[name][end]) for end in ends) if own[name] else "–"

    columns = {
        "LLM · service": lambda group: group["name"],
        "Windows": lambda group: number(group["n_windows"]),
        "Empty": lambda group: number(group["n_empty"]),
        "Not fitted": lambda group: number(sum(group["not_fitted"].values())),
        "Fitted": lambda group: number(group["n_fitted"]),
        "Median α": of_fit("alpha", "median"),
        "α, 10 to 90 %": of_fit("alpha", "p10", "p90"),
        "Median CV": of_fit("cv", "median"),
        "KS distance": lambda group: f"{group['ks']['median']:.3f}" if group["ks"] else "–",
    }
    return Table.of_rows(groups, columns)


def _window_figure(groups: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Chart:
    time = time_unit(facts["duration_s"], facts["start_time"])
    panels = []
    for group in groups:
        windows = pd.DataFrame(group["windows"])
        middle = (windows["start_s"] + windows["duration_s"] / 2) / time.unit_s
        for stem, unit, label in (("alpha", "", "Shape α"), ("beta", "_s", "Scale β (s)")):
            values, low, high = (windows[f"{stem}{end}{unit}"] for end in ("", "_lo", "_hi"))
            if len(windows) > _MAX_WINDOWS:
                size = (middle.max() - middle.min()) / _N_SPANS
                spans = values.groupby((middle // size).astype(int))
                quartiles = spans.quantile([0.5, 0.25, 0.75]).unstack()
                across = (quartiles.index.to_numpy(float) + 0.5) * size
                curve = Curve(_MANY, across, *(quartiles[share] for share in (0.5, 0.25, 0.75)))
            else:
                curve = Curve(_EACH, middle, values, low, high, is_marks=True)
            panels.append(Panel(group["name"], Axis(time.label), Axis(label, is_log=True), [curve]))
    drawn = {curve.name for *_, (curve,) in panels}
    which = " or, where there are many, ".join(name for name in _DRAWN if name in drawn)
    caption = f"Shape and scale of the Gamma fits over time: {which}."
    return Chart(panels_figure(panels, "Gamma parameters over time"), caption)


def measure_arrival_models(trace: TraceFile, workloads: Sequence[FittedWorkload]) -> dict[str, Any]:
    """Return how bursty the trace is, and how well the arrival models of the workloads do.

    `clock_step_s` is the step of a coarse clock, over which the times are spread (None: fine),
    `trace` has the measures (see `arrivals.Measures`), `models` by the workload's name what its
    `validation.json` says of arrivals (see `fit.fit_workload`).
    """
    times, clock_step_s = on_fine_clock(read_arrivals(trace.path))
    return {
        "clock_step_s": clock_step_s,
        "trace": measure_arrivals(times),
        "models": {own.name: own.validation["arrivals"] for own in workloads},
    }


def show_arrivals(measured: Mapping[str, Any]) -> Section:
    """Return the section of what `measure_arrival_models` returns."""
    models: list[tuple[list[str], Mapping[str, Any]]] = []
    for name, own in measured["models"].items():
        names = next((names for names, other in models if other == own), None)
        if names is None:
            models.append(([name], own))
        else:
            names.append(name)
    trace = measured["trace"]
    gaps = "The trace has no gaps to measure"
    if trace["gap_cv"] is not None:
        gaps = f"The trace's gaps have a coefficient of variation of {number(trace['gap_cv'])}"
    words = [
        f"{gaps}; its busiest second has {number(trace['busiest_1s'])} requests, its busiest "
        f"minute {number(trace['busiest_60s'])}."
    ]
    words += [f"{listed(names)}: {arrivals_words(own)}." for names, own in models]
    blocks: list[Block] = [Headline(" ".join(words))]
    for names, own in models:
        blocks.append(Note(f"Why {listed(names)} has these arrivals: {own['why']}."))
    text = (
        "Dispersion is the variance of the number of requests per bin over its mean: 1 for a "
        "Poisson process at any scale, more where requests come in bursts or the rate changes. A "
        f"model passes if the medians of its samples are within {percent(REACH)} of the trace's at "
        "every scale and in the busiest minute. Where the trace does not differ from steady "
        "traffic by more than chance, a model has only to lie in that range too."
    )
    blocks.append(Note(text))
    if step_s := measured["clock_step_s"]:
        steps = f"The clock steps by {duration_words(step_s)}: requests of one stamp are spread "
        blocks.append(Note(f"{steps}over it at random before they are counted or replayed."))
    not_judged = {name for _, own in models for name in own["not_judged"]}
    if not_judged:
        scales = [
            measure_words(name).rpartition("over ")[2] for name in trace if name in not_judged
        ]
        text = (
            f"Not judged: dispersion over {listed(scales)}, as the trace has fewer than "
            f"{MIN_JUDGED_BINS} bins of them; the variance of so few counts is off by a third and "
            "more by chance alone."
        )
        blocks.append(Note(text))
    alone: tuple[list[str], dict[str, Any]] = ([], {"model": REPLAY, "models": {}, "trace": trace})
    blocks += [_arrivals_table(names, own) for names, own in models or [alone] if own["trace"]]
    return Section("Arrivals", blocks)


def arrivals_words(own: Mapping[str, Any]) -> str:
    """Return whether a workload's arrivals are as bursty as the trace."""
    if own["model"] == REPLAY:
        return "no model of the arrivals passes, so that the trace's own times are replayed"
    one, errors = own["models"]["gamma"]["reason"], own["models"][own["model"]]["errors"]
    off = max(abs(error) for name in JUDGED if (error := errors.get(name)) is not None)
    reach = "dispersion at every scale and busiest minute are within "
    reach += f"{percent(off)} of the trace's"
    if off > REACH:
        reach = f"what is more than {percent(REACH)} off the trace's lies within chance"
    far = [
        f"{measure_words(name)} ({percent(error)})"
        for name in _NOT_JUDGED
        if (error := errors.get(name)) is not None and abs(error) > REACH
    ]
    words = f"the model of the arrivals ({MODELS[own['model']]}) passes: {reach}"
    words += f", though {listed(far)} is not judged and is further off" if far else ""
    return words + (f"; one Gamma process is rejected ({one})" if one else "")


def _arrivals_table(names: Sequence[str], own: Mapping[str, Any]) -> Table:
    trace, kinds = own["trace"], dict.fromkeys(("gamma", own["model"]))
    models = {MODELS[kind]: own["models"].get(kind) for kind in kinds}
    columns = {name: model for name, model in models.items() if model and model["measures"]}
    header = [f"Arrivals of {listed(list(names))}" if names else "Arrivals", "trace"]
    header += [cell for name in columns for cell in (name, "off by")]
    rows, order = [], ("gap", "busiest", "dispersion")
    for measure in sorted(trace, key=lambda name: order.index(name.partition("_")[0])):
        row = [measure_words(measure).removeprefix("the "), number(trace[measure])]
        for model in columns.values():
            error = model["errors"].get(measure)
            off = "–" if error is None else percent(error)
            row += [number(model["measures"].get(measure)), off]
        rows.append(row)
    return Table(header, rows)
