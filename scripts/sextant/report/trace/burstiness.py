"""Burstiness: Gamma fits of windows and of the whole trace, and how often traffic doubles."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.rows import column_lists, jsonable
from sextant.pages.charts import Curve, Panel, panels_figure
from sextant.pages.figure import Axis
from sextant.pages.sections import Section, Table
from sextant.pages.wording import (
    MINUTE_S,
    duration_words,
    listed,
    number,
    percent,
    plural,
    time_unit,
)
from sextant.report.trace.trace_file import (
    DEFAULT,
    SHORTEST_BUCKET_S,
    Fitted,
    TraceFile,
    row_of,
    rows_of,
)
from sextant.report.trace.traffic import MAX_SHOWN, counted_words
from sextant.workload.arrival_choice import (
    MODELS,
    REACH,
    Fit,
    Judge,
    fit_one_gamma,
    fit_trace_arrivals,
    measure_words,
)
from sextant.workload.arrivals import (
    ALL_AT_ONCE,
    ALL_EQUAL,
    JUDGED,
    MIN_JUDGED_BINS,
    SCALES_S,
    tally_arrivals,
)
from sextant.workload.generators import Arrivals, Gamma
from sextant.workload.profiles import count_doublings, summarize_doublings
from sextant.workload.trace_arrivals import REPLAY, ArrivalModel, fitted_arrivals, read_stored
from sextant.workload.windows import TOO_FEW, WINDOW_S, TraceTimes, fit_windows

REJECTED_BELOW = 0.05
"""p-value below which a window's gaps are said not to be Gamma-distributed."""
_COARSE = 0.1
"""Fraction of equal time stamps above which the reader is told of the clock."""
_MAX_WINDOWS = 150
"""With more windows their intervals would cover each other: spans of many are drawn instead."""
_N_SPANS = 60
_EACH, _MANY = _DRAWN = ("each window with its 95 % interval", "the windows' median and quartiles")
_COLUMNS = ["start_s", "duration_s", "n_requests", "alpha", "alpha_lo", "alpha_hi", "beta_s",
            "beta_lo_s", "beta_hi_s", "cv", "ks", "p_value"]  # fmt: skip


def measure_burstiness(
    trace: TraceFile, workloads: Sequence[Fitted], facts: Mapping[str, Any], *, seed: int
) -> dict[str, Any]:
    """Return the Gamma fits of 20-minute windows, doublings, and the whole trace's fit.

    `groups` has an entry each of the most frequent LLMs and services, of `n_groups`: `name`,
    `windows` (of the fitted ones, columns of `fit_windows`), `n_windows`, `n_fitted`, `n_empty`,
    `n_hidden` (the clock hides their shape), `not_fitted` (number by reason, of windows with
    requests), `clock_step_s`, and of the fitted ones `rejected_fraction`, `zero_gap_fraction` and
    quartiles of `alpha`, `cv` and `ks`. `whole` has each distinct arrival model and the names of
    its `workloads`.
    """
    windows = fit_windows(trace.path, seed=seed)
    groups = []
    for group in facts["groups"][:MAX_SHOWN]:
        own = rows_of(windows, group)
        fitted = own.loc[own["alpha"].notna(), _COLUMNS]
        groups.append({"name": group["name"], **_summary(own), "windows": column_lists(fitted)})
    return {
        "window_s": WINDOW_S,
        "groups": groups,
        "n_groups": len(facts["groups"]),
        "doublings": measure_doublings(trace, facts["groups"][:MAX_SHOWN]),
        "whole": _distinct(workloads),
    }


def _distinct(workloads: Sequence[Fitted]) -> list[dict[str, Any]]:
    names: dict[ArrivalModel, list[str]] = {}
    for workload in workloads:
        names.setdefault(workload.arrivals, []).append(workload.name)
    return [{"workloads": own, **asdict(model)} for model, own in names.items()]


def _summary(windows: pd.DataFrame) -> dict[str, Any]:
    fitted = windows[windows["alpha"].notna()]
    left = windows[windows["alpha"].isna() & (windows["n_requests"] > 0)]
    reasons = left["reason"].value_counts().sort_index()
    n_gaps = int((fitted["n_requests"] - 1).sum())
    step_s, n_rejected = windows["clock_step_s"].iloc[0], (fitted["p_value"] < REJECTED_BELOW).sum()
    return {
        "n_windows": len(windows),
        "n_fitted": len(fitted),
        "n_empty": int((windows["n_requests"] == 0).sum()),
        "n_hidden": int((~left["reason"].isin((TOO_FEW, ALL_AT_ONCE, ALL_EQUAL))).sum()),
        "not_fitted": {str(reason): int(count) for reason, count in reasons.items()},
        "rejected_fraction": int(n_rejected) / len(fitted) if len(fitted) else None,
        "zero_gap_fraction": int(fitted["n_zero_gaps"].sum()) / n_gaps if n_gaps else 0.0,
        "clock_step_s": None if np.isnan(step_s) else float(step_s),
        "alpha": _quartiles(fitted["alpha"]),
        "cv": _quartiles(fitted["cv"]),
        "ks": _quartiles(fitted["ks"]),
    }


def _quartiles(values: pd.Series) -> dict[str, float] | None:
    if values.empty:
        return None
    found = np.percentile(values.to_numpy(float), [10, 25, 50, 75, 90])
    return dict(zip(("p10", "q1", "median", "q3", "p90"), found.tolist(), strict=True))


def show_burstiness(found: Mapping[str, Any], facts: Mapping[str, Any]) -> Section:
    """Return the section of what `measure_burstiness` found."""
    counted = counted_words("the windows", len(found["groups"]), found["n_groups"])
    section = Section("Burstiness", _takeaway(found) + counted)
    section.notes += [_whole_words(whole) for whole in found["whole"]]
    fitted = [group for group in found["groups"] if group["n_fitted"]]
    if fitted:
        section.figures.append(_figure(fitted, facts))
    coarse = [group for group in fitted if group["zero_gap_fraction"] > _COARSE]
    section.notes += [_clock_words(group) for group in coarse]
    section.tables.append(_window_table(found["groups"]))
    if any(group["not_fitted"] for group in found["groups"]):
        section.notes.append(_left_words(found["groups"]))
    if found["doublings"]:
        section.tables.append(doubling_table(found["doublings"]))
    return section


def _takeaway(found: Mapping[str, Any]) -> str:
    fitted = [group for group in found["groups"] if group["n_fitted"]]
    every = duration_words(found["window_s"])
    if not fitted:
        reasons = listed(sorted({reason for g in found["groups"] for reason in g["not_fitted"]}))
        return f"Burstiness is not known: no window of {every} can be fitted ({reasons})."
    # Where the clock hides most windows, those that it does not hide are no fair sample.
    clear = [group for group in fitted if group["n_hidden"] < group["n_fitted"]]
    if not clear:
        steps = duration_words(max(group["clock_step_s"] for group in fitted))
        return (
            f"How bursty the arrivals are is not known: the clock steps by {steps}, which hides "
            "the shape of the gaps in most windows."
        )
    return _fit_words(clear, every)


def _fit_words(fitted: Sequence[Mapping[str, Any]], every: str) -> str:
    n_fitted = sum(group["n_fitted"] for group in fitted)
    n_rejected = round(sum(group["rejected_fraction"] * group["n_fitted"] for group in fitted))
    medians = [group["ks"]["median"] for group in fitted]
    off = " to ".join(dict.fromkeys(percent(end) for end in (min(medians), max(medians))))
    return (
        f"{_spread_words(fitted, every)} A Gamma law misses a window's gaps by {off} (KS distance, "
        f"median) and is rejected at the {percent(REJECTED_BELOW)} level in {number(n_rejected)} "
        f"of {plural(n_fitted, 'window')}."
    )


def _spread_words(groups: Sequence[Mapping[str, Any]], every: str) -> str:
    most = max(groups, key=lambda group: group["cv"]["median"])
    cv = most["cv"]["median"]
    if len(groups) == 1:
        return (
            f"Gaps within {every} have a coefficient of variation of {number(cv)} in the median "
            f"window, {_than_poisson(cv)} (1)."
        )
    least = min(groups, key=lambda group: group["cv"]["median"])
    low = least["cv"]["median"]
    return (
        f"In the median window of {every}, the coefficient of variation of gaps is from "
        f"{number(low)} ({least['name']}) to {number(cv)} ({most['name']}, {_than_poisson(cv)}, "
        "which has 1)."
    )


def _than_poisson(cv: float) -> str:
    if cv > 1.1:
        return "burstier than a Poisson process"
    return "steadier than a Poisson process" if cv < 0.9 else "close to a Poisson process"


def _whole_words(whole: Mapping[str, Any]) -> str:
    names = listed(whole["workloads"])
    if whole["alpha"] is None:
        return f"No Gamma law for the whole trace is in {names}: {whole['reason']}."
    return (
        f"The one Gamma law for all gaps of the trace in {names} has α = "
        f"{whole['alpha']:.3f} (95 % interval {whole['alpha_lo']:.3f} to {whole['alpha_hi']:.3f}), "
        f"β = {number(float(whole['beta_s']))} s, so CV {number(float(whole['cv']))}, and is off "
        f"by {percent(whole['ks'])} of the gaps at most. It takes changes of the rate over the "
        "trace for burstiness too; a window does so much less."
    )


def _clock_words(group: Mapping[str, Any]) -> str:
    share, step = percent(group["zero_gap_fraction"]), duration_words(group["clock_step_s"])
    return (
        f"{group['name']}: in the fitted windows {share} of the requests have the time stamp of "
        f"the one before, for the clock steps by {step}. Gaps are counted in steps and the law is "
        "fitted to the counts; what the clock hides makes the intervals wider."
    )


def _left_words(groups: Sequence[Mapping[str, Any]]) -> str:
    reasons = sum((Counter(group["not_fitted"]) for group in groups), Counter[str]())
    said = [f"{plural(count, 'window')} ({reason})" for reason, count in reasons.items()]
    return f"Not fitted, though with requests: {listed(said)}."


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
        "Gamma rejected": lambda group: percent(group["rejected_fraction"]),
    }
    return Table.of_rows(groups, columns)


def _figure(groups: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> tuple[str, str]:
    time = time_unit(facts["duration_s"], facts["start_time"])
    panels = []
    for group in groups:
        windows = pd.DataFrame(group["windows"])
        middle = (windows["start_s"] + windows["duration_s"] / 2) / time.unit_s
        for stem, unit, label in (("alpha", "", "Shape α"), ("beta", "_s", "Scale β (s)")):
            values, low, high = (windows[f"{stem}{end}{unit}"] for end in ("", "_lo", "_hi"))
            if len(windows) > _MAX_WINDOWS:
                curve = _spans(middle, values)
            else:
                curve = Curve(_EACH, middle, values, low, high, is_marks=True)
            panels.append(Panel(group["name"], Axis(time.label), Axis(label, is_log=True), [curve]))
    drawn = {curve.name for *_, (curve,) in panels}
    said = " or, where there are many, ".join(name for name in _DRAWN if name in drawn)
    caption = f"Shape and scale of the Gamma fits over time: {said}."
    return panels_figure(panels, "Gamma parameters over time"), caption


def _spans(middle: pd.Series, values: pd.Series) -> Curve:
    """Return median and quartiles of the windows in each of some spans of the time."""
    size = (middle.max() - middle.min()) / _N_SPANS
    quartiles = values.groupby((middle // size).astype(int)).quantile([0.5, 0.25, 0.75]).unstack()
    across = (quartiles.index.to_numpy(float) + 0.5) * size
    return Curve(_MANY, across, *(quartiles[share] for share in (0.5, 0.25, 0.75)))


DOUBLING_MINUTES = (SHORTEST_BUCKET_S // MINUTE_S, 10)
"""BurstGPT, III-B: how often the number of requests doubles within 5 and 10 minutes."""
BUSY_REQUESTS = 10
"""Of fewer requests in a window, chance alone doubles many: of Poisson counts with mean 3, 23%
of windows double; with mean 10, 0.1% of those that have 10 or more."""


def measure_doublings(
    trace: TraceFile, groups: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return how often requests double within 5 and 10 minutes (BurstGPT, III-B): a row a duration
    and group, with `name`, `minutes`, the columns of `summarize_doublings`, and
    `n_busy_doublings`, those from `BUSY_REQUESTS` requests or more.
    """
    found = []
    for minutes in DOUBLING_MINUTES:
        totals = summarize_doublings(count_doublings(trace.path, minutes))
        busy = summarize_doublings(count_doublings(trace.path, minutes, min_count=BUSY_REQUESTS))
        for group in groups:
            known = jsonable(row_of(totals, group))
            known["n_busy_doublings"] = float(row_of(busy, group)["n_doublings"])
            found.append({"name": group["name"], "minutes": minutes, **known})
    return found


def doubling_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of what `measure_doublings` found."""
    columns = {
        "Requests double, LLM · service": lambda row: row["name"],
        "Within": lambda row: f"{row['minutes']} minutes",
        "Times": lambda row: number(row["n_doublings"]),
        f"Of them from {BUSY_REQUESTS} or more": lambda row: number(row["n_busy_doublings"]),
        "Per day": lambda row: number(row["per_day"]),
        "Per workday": lambda row: number(row["per_workday"]),
        "Rises from none": lambda row: number(row["n_from_zero"]),
    }
    return Table.of_rows(rows, columns)


_NOT_JUDGED = ("gap_cv", "busiest_1s", "busiest_10s")


def measure_arrival_models(
    trace: TraceFile, workloads: Sequence[Fitted], *, seed: int
) -> dict[str, Any]:
    """Compare the arrivals of workloads with the trace's, by samples as long as the trace.

    `trace` has its measures (see `arrival_measures.Measures`), read in batches; `models` has by the
    workload's name (`DEFAULT` where none is given: the fit's choice, made here): `model`, `why` it
    was chosen, and of it and of `gamma`, the one Gamma process, a `reason` (why it is rejected
    here, or not to be had; None: it passes), `measures` (medians of samples) and `errors`.
    """
    judge = Judge(tally_arrivals(TraceTimes(trace.path)), seed)
    models = {
        own.name: _compared(judge, own.arrivals, *_of_folder(own.folder)) for own in workloads
    }
    if not workloads:
        gamma, choice = fit_trace_arrivals(trace.path, seed)
        process = choice.fits[choice.model].process if choice.model != REPLAY else None
        models[DEFAULT] = _compared(judge, gamma, choice.model, choice.why, process)
    return {"trace": judge.trace, "not_judged": judge.left_out(), "models": models}


def _of_folder(folder: Path) -> tuple[str | None, str, Arrivals | None]:
    """Return the model of a workload, why it was chosen, and the process unless it is a replay."""
    stored = read_stored(folder)
    is_drawn = stored["model"] not in (None, REPLAY)
    return stored["model"], str(stored["why"]), fitted_arrivals(folder) if is_drawn else None


def _compared(
    judge: Judge, gamma: ArrivalModel, model: str | None, why: str, process: Arrivals | None
) -> dict[str, Any]:
    one = fit_one_gamma(gamma)
    if judge.duration_s > 0:
        poisson = Gamma(judge.n_requests / judge.duration_s, 1.0)
        samples = judge.learn_chance(poisson if isinstance(one, str) else one)
    if isinstance(one, str) or not judge.duration_s > 0:
        of_one = Fit(None, str(one) if isinstance(one, str) else "the trace has no duration")
    else:
        of_one = judge.fit(one, samples)
    own = Fit(None, why if model is None else None)
    if process is not None:
        own = of_one if process == one else judge.fit(process)
    return {"model": model, "why": why, **_figures(own), "gamma": _figures(of_one)}


def _figures(fit: Fit) -> dict[str, Any]:
    return {"reason": fit.reason, "measures": fit.measures, "errors": fit.errors}


def show_arrivals(found: Mapping[str, Any]) -> Section:
    """Return the section of what `measure_arrival_models` found."""
    models = _arrivals_distinct(found["models"])
    said = [f"{_whose(names)}: {arrivals_words(own)}." for names, own in models]
    section = Section("Arrivals", " ".join([_trace_words(found["trace"]), *said]))
    for names, own in models:
        if own["model"] == REPLAY or own["why"] != own["reason"]:
            chosen = f"Why {_whose(names, is_subject=False)} has these arrivals"
            section.notes.append(f"{chosen}: {own['why']}.")
    section.notes.append(
        "Dispersion is the variance of the number of requests per bin over its mean: 1 for a "
        "Poisson process at any scale, more where requests come in bursts or the rate changes. A "
        f"model passes if the medians of its samples are within {percent(REACH)} of the trace's at "
        "every scale and in the busiest minute. Where the trace does not differ from steady "
        "traffic by more than chance, a model has only to lie in that range too."
    )
    if found["not_judged"]:
        scales = listed(
            [measure_words(name).rpartition("over ")[2] for name in found["not_judged"]]
        )
        section.notes.append(
            f"Not judged: dispersion over {scales}, {len(found['not_judged'])} of the trace's "
            f"scales, as the trace has fewer than {MIN_JUDGED_BINS} bins of them; the variance "
            "of so few counts is off by a third and more by chance alone."
        )
    if any(f"dispersion_{scale}s" in found["trace"] for scale in SCALES_S):
        section.figures.append(_arrivals_figure(found["trace"], models))
    section.tables += [_table(found["trace"], names, own) for names, own in models]
    return section


def _arrivals_distinct(
    models: Mapping[str, Mapping[str, Any]],
) -> list[tuple[list[str], Mapping[str, Any]]]:
    """Return models that differ, each with the workloads that have it."""
    found: list[tuple[list[str], Mapping[str, Any]]] = []
    for name, own in models.items():
        for names, other in found:
            if other == own:
                names.append(name)
                break
        else:
            found.append(([name], own))
    return found


def _whose(names: Sequence[str], *, is_subject: bool = True) -> str:
    if list(names) == [DEFAULT]:
        return "The default model" if is_subject else "the default model"
    return listed(list(names))


def arrivals_words(own: Mapping[str, Any]) -> str:
    """Return whether a workload's arrivals are as bursty as the trace."""
    if own["model"] is None:
        return f"it has no arrivals to compare ({own['why']})"
    if own["model"] == REPLAY:
        return "no model of the arrivals passes, so that the trace's own times are replayed"
    model, one = MODELS[own["model"]], own["gamma"]["reason"]
    if own["reason"]:
        return f"the model of the arrivals ({model}) is rejected: {own['reason']}"
    words = f"the model of the arrivals ({model}) passes: {_reach_words(own['errors'])}"
    if own["model"] != "gamma" and one:
        words += f"; one Gamma process is rejected ({one})"
    return words


def _reach_words(errors: Mapping[str, float | None]) -> str:
    off = max(abs(error) for name in JUDGED if (error := errors.get(name)) is not None)
    words = "dispersion at every scale and busiest minute are within "
    words += f"{percent(off)} of the trace's"
    if off > REACH:
        words = f"what is more than {percent(REACH)} off the trace's lies within chance"
    far = [
        f"{measure_words(name)} ({percent(error)})"
        for name in _NOT_JUDGED
        if (error := errors.get(name)) is not None and abs(error) > REACH
    ]
    return f"{words}, though {listed(far)} is not judged and is further off" if far else words


def _trace_words(measures: Mapping[str, float | None]) -> str:
    cv = measures["gap_cv"]
    busiest = f"its busiest second has {number(measures['busiest_1s'])} requests"
    busiest += f", its busiest minute {number(measures['busiest_60s'])}"
    gaps = "The trace has no gaps to measure"
    if cv is not None:
        gaps = f"The trace's gaps have a coefficient of variation of {number(cv)}"
    return f"{gaps}; {busiest}."


def _arrivals_figure(
    trace: Mapping[str, float | None], models: Sequence[tuple[list[str], Mapping[str, Any]]]
) -> tuple[str, str]:
    panels = []
    for names, own in models or [([], {"gamma": {"measures": None}, "measures": None})]:
        drawn = {"trace": trace, "one Gamma process": own["gamma"]["measures"]}
        if own["measures"] and own["model"] != "gamma":
            drawn[MODELS[own["model"]]] = own["measures"]
        curves = [
            Curve(name, [*points], [*points.values()])
            for name, measures in drawn.items()
            if (points := _dispersions(measures))
        ]
        x, y = Axis("Bin (s)", is_log=True), Axis("Variance over mean", is_log=True)
        panels.append(Panel(listed(names), x, y, curves))
    svg = panels_figure(panels, "Dispersion of counts by scale", has_points=True)
    return svg, "Dispersion of the number of requests per bin, by the bin's duration."


def _dispersions(measures: Mapping[str, float | None] | None) -> dict[int, float]:
    named = {scale: (measures or {}).get(f"dispersion_{scale}s") for scale in SCALES_S}
    return {scale: value for scale, value in named.items() if value}


def _table(
    trace: Mapping[str, float | None], names: Sequence[str], own: Mapping[str, Any]
) -> Table:
    columns = {"one Gamma process": own["gamma"]}
    if own["measures"] and own["model"] != "gamma":
        columns[MODELS[own["model"]]] = own
    header = [f"Arrivals of {_whose(names, is_subject=False)}", "trace"]
    for name in columns:
        header += [name, "off by"]
    rows = []
    for measure in sorted(trace, key=_place):
        value = trace[measure]
        if value is None and measure.startswith("autocorrelation"):
            continue
        row = [measure_words(measure).removeprefix("the "), number(value)]
        for model in columns.values():
            row += _cells(measure, model["measures"], model["errors"])
        rows.append(row)
    return Table(header, rows)


def _place(measure: str) -> int:
    """Return where a measure stands in the table: gaps, busiest, dispersion, autocorrelation."""
    kinds = ("gap", "busiest", "dispersion", "autocorrelation")
    return kinds.index(measure.partition("_")[0])


def _cells(
    measure: str, measures: Mapping[str, Any] | None, errors: Mapping[str, Any] | None
) -> list[str]:
    if not measures or not errors:
        return ["–", "–"]
    error = errors.get(measure)
    is_share = not measure.startswith("autocorrelation")
    off = "–" if error is None else percent(error) if is_share else f"{error:+.2f}"
    return [number(measures.get(measure)), off]
