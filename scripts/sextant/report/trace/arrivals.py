"""Arrivals: how bursty the trace is, and whether a workload's arrivals are as bursty."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sextant.pages.charts import Curve, Panel, panels_figure
from sextant.pages.figure import Axis
from sextant.pages.sections import Section, Table
from sextant.pages.wording import listed, number, percent
from sextant.report.trace.fitted_workloads import DEFAULT, Fitted
from sextant.report.trace.trace_file import TraceFile
from sextant.workload.arrival_choice import (
    MODELS,
    REACH,
    Fit,
    Judge,
    fit_trace_arrivals,
    measure_words,
)
from sextant.workload.arrival_fits import fit_one_gamma
from sextant.workload.arrival_measures import (
    JUDGED,
    MIN_JUDGED_BINS,
    SCALES_S,
    tally_arrivals,
)
from sextant.workload.arrivals import ArrivalModel, read_stored
from sextant.workload.fitted_arrivals import fitted_arrivals
from sextant.workload.generators import Arrivals, Gamma
from sextant.workload.trace_arrivals import REPLAY
from sextant.workload.trace_stream import TraceTimes

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
    models = _distinct(found["models"])
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
        section.figures.append(_figure(found["trace"], models))
    section.tables += [_table(found["trace"], names, own) for names, own in models]
    return section


def _distinct(models: Mapping[str, Mapping[str, Any]]) -> list[tuple[list[str], Mapping[str, Any]]]:
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


def _figure(
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
