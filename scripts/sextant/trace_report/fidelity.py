"""Fidelity: the fitted request model against the trace."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sextant.files import read_json, read_provenance
from sextant.report.promises import percent
from sextant.report.read import number
from sextant.trace_report.drawing import Axis, cumulative_curve, matrix_figure, panels_figure
from sextant.trace_report.lengths import SIDES, rank_by_input_fraction
from sextant.trace_report.read import Counts, TraceFile, value_counts
from sextant.trace_report.section import Section, Table
from sextant.workload.fidelity import N_DRAWS, cumulative, ks_distance, model_fidelity
from sextant.workload.lengths import output_by_input
from sextant.workload.published import load_request_model
from sextant.workload.request_model import RequestModel

CAPS = ("input_tokens", "output_tokens")
REACH = 0.02
"""What the project sets itself: no distance and no difference of coefficients above."""
_MAX_POINTS = 200


def measure_fidelity(
    trace: TraceFile, workload: Path, sampled: pd.DataFrame, *, seed: int, n_draws: int = N_DRAWS
) -> dict[str, Any]:
    """Compare the workload's request model with the trace it was fitted to.

    Distributions are compared over all served requests, each joint bin at its weight; how
    parameters go together over `sampled`. Where the workload was fitted with caps, the trace is
    clipped to them first, as the fit did.

    Returns:
        `is_of_other_trace` (whether both say what they come from, and it differs), `caps`,
        `n_draws`, `n_compared`, `parameters` (per parameter `ks`, and `trace` and `model`:
        points of the cumulative distributions), `spearman` and `spearman_difference` by sampler,
        and `output_rank_by_input_fraction` (see `rank_by_input_fraction`) of the trace and by
        sampler, None where there are not both lengths.
    """
    model, facts = load_request_model(workload), _fit_facts(workload)
    caps = {name: facts.get(f"max_{name}") for name in CAPS}
    clipped = sampled.assign(
        **{name: sampled[name].clip(upper=cap) for name, cap in caps.items() if cap is not None}
    )
    figures = model_fidelity(clipped, model, n_draws, seed=seed)
    samplers = [
        name for name in figures if isinstance(figures[name], dict) and "ks" in figures[name]
    ]
    return {
        "is_of_other_trace": _is_other(trace, facts),
        "caps": caps,
        "n_draws": figures["n_draws"],
        "n_compared": len(sampled),
        "parameters": {
            name: _compared(value_counts(trace, name), model, name, caps.get(name))
            for name in model.parameters
        },
        "spearman": {"trace": figures["spearman_trace"]}
        | {name: figures[name]["spearman"] for name in samplers},
        "spearman_difference": {name: figures[name]["spearman_difference"] for name in samplers},
        "output_rank_by_input_fraction": _by_input(clipped, model, samplers, seed),
    }


def _fit_facts(workload: Path) -> dict[str, Any]:
    """Return how the workload was fitted, nothing where it does not say."""
    stored = workload / "arrivals.json"
    return read_json(stored).get("fit", {}) if stored.is_file() else {}


def _is_other(trace: TraceFile, facts: Mapping[str, Any]) -> bool:
    own, fitted = read_provenance(trace.path).get("inputs_sha256"), facts.get("inputs_sha256")
    return bool(own) and bool(fitted) and own != fitted


def _by_input(
    clipped: pd.DataFrame, model: RequestModel, samplers: Sequence[str], seed: int
) -> dict[str, float | None] | None:
    if not {*SIDES.values()} <= {*model.parameters}:
        return None
    input_lo = output_by_input(*(clipped[name] for name in SIDES.values()))["input_lo"]
    drawn = {name: model.sample(len(clipped), seed=seed, sampler=name) for name in samplers}
    return {
        name: rank_by_input_fraction(requests, input_lo)
        for name, requests in ({"trace": clipped} | drawn).items()
    }


def _compared(counts: Counts, model: RequestModel, name: str, cap: int | None) -> dict[str, Any]:
    values = counts.values if cap is None else np.minimum(counts.values, cap)
    bins, weights = model.frame[name], model.weights
    # The trace's nulls take part in the distance, as the model's do.
    all_values, all_weights = np.append(values, np.nan), np.append(counts.weights, counts.n_null)
    return {
        "ks": ks_distance(all_values, bins, all_weights, weights),
        "trace": cumulative(values, counts.weights, _MAX_POINTS).to_dict(orient="list"),
        "model": cumulative(bins, weights, _MAX_POINTS).to_dict(orient="list"),
    }


def show_fidelity(found: Mapping[str, Any]) -> Section:
    """Return the section of what `measure_fidelity` found."""
    section = Section("fidelity", "Fidelity of the fitted model", _takeaway(found))
    if found["is_of_other_trace"]:
        section.notes.append("The workload was fitted to another trace than this one.")
    caps = {name: cap for name, cap in found["caps"].items() if cap is not None}
    if caps:
        said = " and ".join(f"{name} at {number(cap)}" for name, cap in caps.items())
        section.notes.append(f"The workload caps {said}: the trace is clipped likewise here.")
    section.figures.append(_cdf_figure(found))
    section.tables.append(_table(found))
    if len(found["parameters"]) > 1:
        section.figures.append(_spearman_figure(found))
    return section


def _takeaway(found: Mapping[str, Any]) -> str:
    worst = max(found["parameters"], key=lambda name: found["parameters"][name]["ks"])
    ks = found["parameters"][worst]["ks"]
    verdict = "within" if ks <= REACH else "above"
    sentence = "The model's distributions are the trace's own"
    if ks > 0:
        sentence = (
            f"No distribution of the model is more than {percent(ks)} of the requests off the "
            f"trace's ({worst}), {verdict} the {percent(REACH)} aimed at"
        )
    joint, independent = (
        found["spearman_difference"].get(name) for name in ("joint", "independent")
    )
    if joint is None:
        return f"{sentence}; there are no two parameters that vary, so none can go together."
    return (
        f"{sentence}; rank correlations are off by {_coefficient(joint)} when parameters are drawn "
        f"jointly, by {_coefficient(independent)} when each is drawn alone."
    )


def _coefficient(difference: float) -> str:
    return "less than 0.001" if difference < 0.001 else f"at most {difference:.3f}"


def _cdf_figure(found: Mapping[str, Any]) -> tuple[str, str]:
    panels = []
    for name, compared in found["parameters"].items():
        curves = [cumulative_curve(which, compared[which]) for which in ("trace", "model")]
        values = [value for curve in curves for value in curve.x]
        across = Axis(name, is_log=min(values) > 0 and max(values) > 20 * min(values))
        heading = f"KS distance {compared['ks']:.4f}"
        panels.append((heading, across, Axis("Share up to it", low=0, high=1.02), curves))
    svg = panels_figure(
        panels,
        "Distributions of trace and model",
        is_step=True,
        n_columns=min(3, max(2, len(panels))),
    )
    return svg, "Cumulative distribution of each parameter, in the trace and in the fitted model."


def _table(found: Mapping[str, Any]) -> Table:
    rows = [(f"KS distance, {name}", f"{c['ks']:.4f}") for name, c in found["parameters"].items()]
    for sampler, difference in found["spearman_difference"].items():
        value = "–" if difference is None else f"{difference:.4f}"
        rows.append((f"Largest difference of a rank correlation, {sampler} sampler", value))
    for whose, fraction in (found["output_rank_by_input_fraction"] or {}).items():
        name = whose if whose == "trace" else f"{whose} sampler"
        rows.append(
            (f"Variance of output ranks that the input's bin explains, {name}", percent(fraction))
        )
    return Table(("Model against trace", "Distance"), rows)


def _spearman_figure(found: Mapping[str, Any]) -> tuple[str, str]:
    names = list(found["parameters"])
    matrices = [
        (which, names, [[cells[row][column] for column in names] for row in names])
        for which, cells in found["spearman"].items()
    ]
    caption = (
        f"Spearman's rank correlation in the trace ({number(found['n_compared'])} requests) and in "
        f"{number(found['n_draws'])} requests drawn from the model by each sampler; –: constant."
    )
    return matrix_figure(matrices, "Rank correlations of trace and model"), caption
