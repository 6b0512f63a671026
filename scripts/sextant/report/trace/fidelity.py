"""Fidelity: fitted request models against the trace."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.base.files import read_provenance
from sextant.base.ids import file_name
from sextant.base.rows import jsonable
from sextant.pages.charts import Panel, cumulative_curve, matrix_figure, panels_figure
from sextant.pages.figure import Axis, floats
from sextant.pages.sections import Section, Table
from sextant.pages.wording import listed, number, percent, plural
from sextant.report.trace.arrivals import arrivals_words
from sextant.report.trace.fitted_workloads import DEFAULT, Fitted
from sextant.report.trace.lengths import SIDES, rank_by_input_fraction
from sextant.report.trace.trace_file import Counts, TraceFile, value_counts
from sextant.workload.fidelity import (
    N_DRAWS,
    cumulative,
    ks_distance,
    largest_difference,
    spearman,
)
from sextant.workload.lengths import output_by_input
from sextant.workload.request_model import N_BINS, SAMPLERS, RequestModel
from sextant.workload.trace_requests import fit_request_model

CAPS = ("input_tokens", "output_tokens")
REACH = 0.02
"""What the project sets itself: no distance and no difference of coefficients above."""
_MAX_POINTS = 200


def measure_fidelity(
    trace: TraceFile, workloads: Sequence[Fitted], sampled: pd.DataFrame, *, seed: int
) -> dict[str, dict[str, Any]]:
    """Compare the request models of workloads with the trace they were fitted to.

    Distributions are compared over all served requests, each joint bin at its weight; how
    parameters go together over `sampled` and `N_DRAWS` draws of each sampler. The trace is clipped
    to a workload's caps first, as the fit did. Without a workload, the model that a fit makes by
    default is fitted to `sampled`, by the name `DEFAULT`; where no request succeeded nothing is
    compared.

    By name: `is_fitted_here` (no workload was given), `is_of_other_trace` (both say what they come
    from, and it differs), `caps`, `n_draws`, `n_compared`, `parameters` (each with `ks`,
    `clipped_fraction` of the trace's values above the cap, and `trace` and `model`: points of the
    cumulative distributions), `spearman` and `spearman_difference` by sampler, and
    `output_rank_by_input_fraction` of the trace and by sampler, None without both lengths. Raises
    InputError if a workload models a parameter that no served request has.
    """
    if not workloads and sampled.empty:
        return {}
    given: list[tuple[str, RequestModel, Mapping[str, Any], Path | None]]
    given = [(own.name, own.model, own.facts, own.folder) for own in workloads]
    given = given or [(DEFAULT, fit_request_model(sampled), {}, None)]
    counts: dict[str, Counts] = {}
    for _, model, _, folder in given:
        _require_parameters(trace, model, folder, counts)
    found = {}
    for name, model, facts, folder in given:
        caps = {side: facts.get(f"max_{side}") for side in CAPS}
        found[name] = {
            "is_fitted_here": folder is None,
            "is_of_other_trace": _is_other(trace, facts),
            "caps": caps,
            "n_draws": N_DRAWS,
            "n_compared": len(sampled),
            "parameters": {
                parameter: _compared(counts[parameter], model, parameter, caps.get(parameter))
                for parameter in model.parameters
            },
            **_together(_clipped(sampled, model, caps), model, seed),
        }
    return found


def _require_parameters(
    trace: TraceFile, model: RequestModel, folder: Path | None, counts: dict[str, Counts]
) -> None:
    """Put what the trace has of each of the model's parameters into `counts`."""
    for name in model.parameters:
        counts[name] = counts[name] if name in counts else value_counts(trace, name)
        if not len(counts[name].values):
            problem = "the workload models it, but no request of the trace that succeeded has it"
            fix = "give a workload that was fitted to this trace"
            raise InputError(problem, file=folder, field=name, fix=fix)


def _is_other(trace: TraceFile, facts: Mapping[str, Any]) -> bool:
    own, fitted = read_provenance(trace.path).get("inputs_sha256"), facts.get("inputs_sha256")
    return bool(own) and bool(fitted) and own != fitted


def _clipped(
    sampled: pd.DataFrame, model: RequestModel, caps: Mapping[str, int | None]
) -> pd.DataFrame:
    """Return the model's columns of `sampled`, with no value above its cap."""
    own = sampled[model.parameters]
    return own.assign(
        **{name: own[name].clip(upper=cap) for name, cap in caps.items() if name in own}
    )


def _together(clipped: pd.DataFrame, model: RequestModel, seed: int) -> dict[str, Any]:
    """Return how the parameters go together in the trace and in draws of each sampler."""
    drawn = {name: model.sample(N_DRAWS, seed=seed, sampler=name) for name in SAMPLERS}
    rows_of = {"trace": clipped, **drawn}
    coefficients = {name: spearman(rows) for name, rows in rows_of.items()}
    fractions, lengths = None, [*SIDES.values()]
    if {*lengths} <= {*model.parameters}:
        input_lo = output_by_input(*(clipped[side] for side in lengths))["input_lo"]
        # As many as of the trace will do.
        fractions = {
            name: rank_by_input_fraction(rows.head(len(clipped)), input_lo)
            for name, rows in rows_of.items()
        }
    of_trace = coefficients["trace"]
    return {
        "spearman": {name: jsonable(each.to_dict()) for name, each in coefficients.items()},
        "spearman_difference": {
            name: largest_difference(of_trace, coefficients[name]) for name in SAMPLERS
        },
        "output_rank_by_input_fraction": fractions,
    }


def _compared(counts: Counts, model: RequestModel, name: str, cap: int | None) -> dict[str, Any]:
    values = counts.values if cap is None else np.minimum(counts.values, cap)
    is_clipped = counts.values > values
    bins, weights = model.frame[name], model.weights
    # The trace's nulls take part in the distance, as the model's do.
    all_values, all_weights = np.append(values, np.nan), np.append(counts.weights, counts.n_null)
    return {
        "ks": ks_distance(all_values, bins, all_weights, weights),
        "clipped_fraction": float(counts.weights[is_clipped].sum() / counts.weights.sum()),
        "trace": cumulative(values, counts.weights, _MAX_POINTS).to_dict(orient="list"),
        "model": cumulative(bins, weights, _MAX_POINTS).to_dict(orient="list"),
    }


def show_fidelity(
    name: str, found: Mapping[str, Any], arrivals: Mapping[str, Any] | None
) -> Section:
    """Return the section of what `measure_fidelity` found of one workload.

    `arrivals` is what `arrivals.measure_arrival_models` found of it, which the headline tells too.
    """
    title, whose = f"Fidelity of {name}", name
    if found["is_fitted_here"]:
        title, whose = "Fidelity of the default model", "The default model"
    said = f"{whose}: {_takeaway(found)}"
    words = arrivals_words(arrivals) if arrivals else ""
    said += f" {words[:1].upper()}{words[1:]}." if words else ""
    section = Section(title, said, key=f"fidelity-{file_name(name)}")
    if found["is_fitted_here"]:
        section.notes.append(
            f"No workload was given: judged is what a fit makes by default ({N_BINS} bins a "
            f"parameter, no caps), fitted here to {plural(found['n_compared'], 'request')}."
        )
    if found["is_of_other_trace"]:
        section.notes.append("The workload was fitted to another trace than this one.")
    caps = {name: cap for name, cap in found["caps"].items() if cap is not None}
    if caps:
        said = listed(
            [f"{name} at {number(cap)}{_clipped_words(found, name)}" for name, cap in caps.items()]
        )
        section.notes.append(f"The workload caps {said}: the trace is clipped likewise here.")
    section.figures.append(_cdf_figure(found))
    section.tables.append(_table(found))
    if len(found["parameters"]) > 1:
        section.figures.append(_spearman_figure(found))
    return section


def _clipped_words(found: Mapping[str, Any], name: str) -> str:
    clipped = found["parameters"].get(name, {}).get("clipped_fraction", 0.0)
    return f" ({percent(clipped)} of the requests have more)" if clipped else ""


def _takeaway(found: Mapping[str, Any]) -> str:
    worst = max(found["parameters"], key=lambda name: found["parameters"][name]["ks"])
    ks = found["parameters"][worst]["ks"]
    verdict = "within" if ks <= REACH else "above"
    sentence = "The distributions of lengths and parameters are the trace's own"
    if ks > 0:
        sentence = (
            f"No distribution of lengths and parameters is more than {percent(ks)} of the requests "
            f"off the trace's ({worst}), {verdict} the {percent(REACH)} aimed at"
        )
    clipped = max(each["clipped_fraction"] for each in found["parameters"].values())
    sentence += f", with {percent(clipped)} of the trace's requests cut to a cap" if clipped else ""
    joint, independent = (found["spearman_difference"].get(name) for name in SAMPLERS)
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
        values = np.concatenate([floats(curve.x) for curve in curves])
        is_wide = values.min() > 0 and values.max() > 20 * values.min()
        across = Axis(name, is_log=bool(is_wide))
        heading = f"KS distance {compared['ks']:.4f}"
        panels.append(Panel(heading, across, Axis("Share up to it", low=0, high=1.02), curves))
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
    what = "Variance of output ranks that the input's bin explains"
    for whose, fraction in (found["output_rank_by_input_fraction"] or {}).items():
        name = whose if whose == "trace" else f"{whose} sampler"
        rows.append((f"{what}, {name}", percent(fraction)))
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
