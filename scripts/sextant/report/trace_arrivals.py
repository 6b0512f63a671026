"""The section Arrivals of a trace's page: how well each arrival model does."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sextant.pages.blocks import Headline, Note, Section, Table
from sextant.pages.words import duration_words, joined, number, percent
from sextant.report.trace_file import FittedWorkload
from sextant.workload import arrivals
from sextant.workload.arrivals import REACH, measure_arrivals, measure_words, on_fine_clock
from sextant.workload.profiles import read_arrivals
from sextant.workload.trace_arrivals import REPLAY


def measure_arrival_models(trace: Path, workloads: Sequence[FittedWorkload]) -> dict[str, Any]:
    """Return the trace's burstiness, and by workload how well its arrival model does."""
    times, clock_step_s = on_fine_clock(read_arrivals(trace))
    return {
        "clock_step_s": clock_step_s,
        "trace": measure_arrivals(times),
        "models": {workload.name: workload.validation["arrivals"] for workload in workloads},
    }


def show_arrivals(measured: Mapping[str, Any]) -> Section:
    """Return the section of what `measure_arrival_models` returns."""
    alike: dict[str, list[str]] = {}
    for name, judged in measured["models"].items():
        alike.setdefault(repr(judged), []).append(name)
    models = [(names, measured["models"][names[0]]) for names in alike.values()]
    trace = measured["trace"]
    gaps = "The trace has no gaps to measure"
    if trace["gap_cv"] is not None:
        gaps = f"The trace's gaps have a coefficient of variation of {number(trace['gap_cv'])}"
    words = [
        f"{gaps}; its busiest second has {number(trace['busiest_1s'])} requests, its busiest "
        f"minute {number(trace['busiest_60s'])}.",
        *(f"{joined(names)}: {_model_words(judged)}." for names, judged in models),
    ]
    text = (
        "Dispersion is the variance of the number of requests per bin over its mean: 1 for a "
        "Poisson process, more where requests come in bursts or the rate changes. A model passes "
        f"if the medians of its samples are within {percent(REACH)} of the trace's at every scale "
        "and in the busiest minute, or if both are as steady as chance allows."
    )
    notes = [
        f"Why {joined(names)} has these arrivals: {judged['why']}." for names, judged in models
    ]
    notes.append(text)
    if step_s := measured["clock_step_s"]:
        steps = f"The clock steps by {duration_words(step_s)}: requests of one stamp are spread "
        notes.append(f"{steps}over it at random before they are counted or replayed.")
    not_judged = {name for _, judged in models for name in judged["not_judged"]}
    scales = [measure_words(name).rpartition("over ")[2] for name in trace if name in not_judged]
    if scales:
        notes.append(
            f"Not judged: dispersion over {joined(scales)}, as the trace has fewer than "
            f"{arrivals.MIN_JUDGED_BINS} bins of them, whose variance is off by a third by chance "
            "alone."
        )
    alone: tuple[list[str], dict[str, Any]] = ([], {"model": REPLAY, "models": {}, "trace": trace})
    tables = [
        _arrivals_table(names, judged) for names, judged in models or [alone] if judged["trace"]
    ]
    return Section("Arrivals", [Headline(" ".join(words)), *map(Note, notes), *tables])


def _model_words(judged: Mapping[str, Any]) -> str:
    """Return whether a workload's arrivals are as bursty as the trace."""
    if judged["model"] == REPLAY:
        return "no model of the arrivals passes, so that the trace's own times are replayed"
    one = judged["models"]["gamma"]["reason"]
    errors = judged["models"][judged["model"]]["errors"]
    known_errors = {name: error for name, error in errors.items() if error is not None}
    off = max(abs(known_errors[name]) for name in arrivals.JUDGED if name in known_errors)
    reach = f"what is more than {percent(REACH)} off the trace's lies within chance"
    if off <= REACH:
        reach = "dispersion at every scale and busiest minute are within "
        reach += f"{percent(off)} of the trace's"
    words = f"the model of the arrivals ({arrivals.MODELS[judged['model']]}) passes: {reach}"
    return words + (f"; one Gamma process is rejected ({one})" if one else "")


def _arrivals_table(names: Sequence[str], judged: Mapping[str, Any]) -> Table:
    trace = judged["trace"]
    kinds = dict.fromkeys(("gamma", judged["model"]))
    models = {arrivals.MODELS[kind]: judged["models"].get(kind) for kind in kinds}
    columns = {name: model for name, model in models.items() if model and model["measures"]}
    header = [f"Arrivals of {joined(list(names))}" if names else "Arrivals", "trace"]
    header += [cell for name in columns for cell in (name, "off by")]
    rows = []
    order = ("gap", "busiest", "dispersion")
    for measure in sorted(trace, key=lambda name: order.index(name.partition("_")[0])):
        row = [measure_words(measure).removeprefix("the "), number(trace[measure])]
        for model in columns.values():
            row.append(number(model["measures"].get(measure)))
            row.append(percent(model["errors"].get(measure)))
        rows.append(row)
    return Table(header, rows)
