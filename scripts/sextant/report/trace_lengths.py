"""Requests: lengths of inputs and outputs, how parameters go together, fidelity of the models."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.base.files import jsonable, read_provenance
from sextant.base.sheets import file_name
from sextant.pages.blocks import (
    Block,
    Chart,
    Headline,
    Note,
    Section,
    Table,
    listed,
    number,
    percent,
    plural,
)
from sextant.pages.charts import Axis, Curve, Panel, cumulative_curve, matrix_figure, panels_figure
from sextant.report.trace_file import FittedWorkload, explained, value_counts
from sextant.workload.fit import cumulative, spearman
from sextant.workload.gamma import Z_95
from sextant.workload.published import fit_zipf, output_by_input, zipf_probabilities

SIDES = {"input": "input_tokens", "output": "output_tokens"}
REACH = 0.02  # what the project sets itself: no distance and no difference of coefficients above
_QUANTILES = {"p10": 0.1, "p25": 0.25, "median": 0.5, "p75": 0.75, "p90": 0.9, "p99": 0.99}
_MAX_POINTS = 200
_FLAT_THETA = 0.2
_POOR_KS = 0.1  # from this distance on, a drawn fit is visibly another curve than the data
_WEAK = 0.1  # coefficient below which the relation of two parameters cannot be seen in a plot


def measure_lengths(trace: Path, sampled: pd.DataFrame) -> dict[str, Any]:
    """Return the lengths of all served requests, and outputs by input of those `sampled`."""
    measured: dict[str, Any] = {side: _side(*value_counts(trace, SIDES[side])) for side in SIDES}
    bins = share = None
    if len(sampled):
        bins = output_by_input(*(sampled[name] for name in SIDES.values()))
        # Unlike a rank correlation, the share that the input's bin explains of the variance of the
        # outputs' ranks shows any relation, not only one that rises or falls throughout.
        place = np.searchsorted(bins["input_lo"], sampled["input_tokens"], side="right")
        share = explained(sampled["output_tokens"].rank().to_numpy(), place)
    return measured | {
        "n_served": measured["input"]["n"],
        "output_by_input": None if bins is None else bins.to_dict(orient="list"),
        "output_rank_by_input_fraction": share and share[0],
    }


def _side(values: np.ndarray, weights: np.ndarray) -> dict[str, Any]:
    """Return one side's distribution: mean, quantiles, points of the curve, and the Zipf fit."""
    n = int(weights.sum())
    if n == 0:
        return {"n": 0, "quantiles": None, "cdf": None, "zipf": None, "zipf_reason": "no request"}
    shares = [*_QUANTILES.values()]
    found = np.quantile(values, shares, weights=weights, method="inverted_cdf").tolist()
    fit = reason = None
    try:
        fit = asdict(fit_zipf(values, counts=weights))
    except InputError as error:
        reason = str(error)
    return {
        "n": n,
        "mean": float(np.average(values, weights=weights)),
        "quantiles": {
            "lowest": float(values[0]),
            **dict(zip(_QUANTILES, found, strict=True)),
            "highest": float(values[-1]),
        },
        "cdf": cumulative(values, weights, _MAX_POINTS).to_dict(orient="list"),
        "zipf": fit,
        "zipf_reason": reason,
    }


def show_lengths(measured: Mapping[str, Any]) -> Section:
    """Return the section of what `measure_lengths` returns."""
    if measured["n_served"] == 0:
        words = "No request succeeded, so there are no lengths to describe."
        return Section("Lengths", [Headline(words)])
    inputs, outputs = (measured[side]["quantiles"] for side in SIDES)
    takeaway = (
        f"The median request has {number(inputs['median'])} tokens in and "
        f"{number(outputs['median'])} out; one in ten has more than {number(inputs['p90'])} in, "
        f"one in ten more than {number(outputs['p90'])} out."
    )
    if inputs["lowest"] == inputs["highest"] and outputs["lowest"] == outputs["highest"]:
        takeaway = (
            f"All requests are alike: {number(inputs['median'])} tokens in, "
            f"{number(outputs['median'])} out."
        )
    rows, notes, panels = [], [], []
    for name in SIDES:
        side, fit = measured[name], measured[name]["zipf"]
        rows.append([f"{name.capitalize()}s", side["mean"], *side["quantiles"].values()])
        notes.append(Note(_zipf_words(name, side)))
        curves = [cumulative_curve("trace", side["cdf"])]
        if fit is not None:
            shares = np.cumsum(zipf_probabilities(fit["theta"], fit["lowest"], fit["highest"]))
            spaced = np.geomspace(fit["lowest"], fit["highest"], _MAX_POINTS)
            values = np.unique(np.rint(spaced).astype(int))
            points = {"value": values, "fraction": shares[values - fit["lowest"]]}
            curves.append(cumulative_curve("bounded Zipf fit", points))
        across = Axis(f"{name.capitalize()} (tokens)", is_log=side["quantiles"]["lowest"] > 0)
        up = Axis("Share of requests up to it", low=0, high=1.02)
        panels.append(Panel(f"{name.capitalize()}s", across, up, curves))
    caption = "Cumulative distributions of the lengths, and the bounded Zipf law that fits best."
    blocks: list[Block] = [
        Headline(takeaway),
        Table(("Tokens", "Mean", *(name.capitalize() for name in inputs)), rows),
        Chart(panels_figure(panels, "Distribution of lengths", is_step=True), caption),
        *notes,
    ]
    if bins := measured["output_by_input"]:
        middle = np.sqrt(np.maximum(bins["input_lo"], 0.5) * np.maximum(bins["input_hi"], 0.5))
        curves = [
            Curve("median, quartiles", middle, bins["median"], bins["p25"], bins["p75"]),
            Curve("mean", middle, bins["mean"]),
            Curve("10th and 90th percentile", middle, bins["p10"]),
            Curve("10th and 90th percentile", middle, bins["p90"]),
        ]
        across = Axis("Input (tokens)", is_log=middle[-1] > 10 * middle[0])
        panel = Panel("", across, Axis("Output (tokens)", low=0), curves)
        svg = panels_figure([panel], "Output lengths by input length", n_columns=1, height_in=2.6)
        share = percent(measured["output_rank_by_input_fraction"])
        caption = (
            f"Output lengths in {len(middle)} bins of the input's length, about equally many "
            f"requests in each. The bin explains {share} of the variance of the outputs' ranks."
        )
        blocks.append(Chart(svg, caption))
    return Section("Lengths", blocks)


def _zipf_words(name: str, side: Mapping[str, Any]) -> str:
    fit = side["zipf"]
    if fit is None:
        return f"Zipf's law is not fitted to the {name}s: {side['zipf_reason']}"
    law = (
        f"A bounded Zipf law fits the {name}s best with θ = {fit['theta']:.3f} (95 % interval "
        f"{fit['theta_lo']:.3f} to {fit['theta_hi']:.3f}; {fit['lowest']} to "
        f"{number(fit['highest'])} tokens, the shortest and longest seen)"
    )
    if fit["ks"] <= _POOR_KS:
        flat = " With θ near 0 it is next to uniform." if abs(fit["theta"]) < _FLAT_THETA else ""
        return f"{law}, and is nowhere more than {percent(fit['ks'])} of the requests off.{flat}"
    return (
        f"{law}, but is off by {percent(fit['ks'])} of the requests at its worst: {name}s "
        "of this trace do not follow Zipf's law; draw from the histogram instead."
    )


def measure_parameters(
    sampled: pd.DataFrame, n_served: int, parameters: list[str]
) -> dict[str, Any]:
    """Return rank correlations of all parameters, and with the latency where it is known."""
    names = [*parameters, "e2e_ms"] if "e2e_ms" in sampled else parameters
    return {
        "n_sampled": len(sampled),
        "n_served": n_served,
        "parameters": parameters,
        "spearman": jsonable(spearman(sampled[names]).to_dict()),
    }


def show_parameters(measured: Mapping[str, Any]) -> Section:
    """Return the section of what `measure_parameters` returns."""
    blocks: list[Block] = [Headline(_parameters_takeaway(measured))]
    names = list(measured["spearman"])
    if measured["n_sampled"] > 0 and len(names) > 1:
        matrix = _matrix("", names, measured["spearman"])
        basis = f"{number(measured['n_served'])} requests"
        if measured["n_sampled"] != measured["n_served"]:
            basis = f"a sample of {number(measured['n_sampled'])} of {basis}"
        svg = matrix_figure([matrix], "Rank correlations of the parameters")
        blocks.append(Chart(svg, f"Spearman's rank correlation, {basis}; –: constant."))
    return Section("Parameters", blocks)


def _matrix(heading: str, names: list[str], cells: Mapping[str, Mapping[str, Any]]) -> tuple:
    return heading, names, [[cells[row][name] for name in names] for row in names]


def _parameters_takeaway(measured: Mapping[str, Any]) -> str:
    names, coefficients = measured["parameters"], measured["spearman"]
    n_requests = measured["n_sampled"]
    pairs = [
        (coefficients[a][b], f"{b} and {a}")
        for place, a in enumerate(names)
        for b in names[:place]
        if coefficients[a][b] is not None
    ]
    if measured["n_served"] == 0:
        return "No request succeeded, so there is nothing to relate."
    if not pairs:
        return "No two parameters vary, so there is no relation between them."
    value, pair = max(pairs, key=lambda pair: abs(pair[0]))
    words = f"{pair} have a rank correlation of {value:.2f}"
    if len(pairs) > 1:
        words = (
            f"Of all pairs of parameters, {pair} have the strongest rank correlation, {value:.2f}"
        )
    # Under independence a coefficient's standard deviation is 1/√(n - 1).
    if abs(value) < Z_95 / np.sqrt(max(n_requests - 1, 1)):
        words += f": no more than chance may show in {plural(n_requests, 'request')}."
    elif abs(value) < _WEAK:
        words += ": one hardly rises or falls with the other."
    else:
        words += f": one {'rises' if value > 0 else 'falls'} as the other rises."
    return words


def measure_fidelity(trace: Path, workloads: Sequence[FittedWorkload]) -> dict[str, dict[str, Any]]:
    """Return by workload its `validation.json`, `caps`, and whether it is of this trace."""
    own = read_provenance(trace).get("inputs_sha256")
    measured = {}
    for workload in workloads:
        fitted = workload.facts.get("inputs_sha256")
        left_out = ("arrivals", "provenance")
        measured[workload.name] = {
            "is_of_other_trace": bool(own) and bool(fitted) and own != fitted,
            "caps": {side: workload.facts.get(f"max_{side}") for side in SIDES.values()},
            **{key: value for key, value in workload.validation.items() if key not in left_out},
        }
    return measured


def show_fidelity(name: str, measured: Mapping[str, Any]) -> Section:
    """Return the section of one workload of `measure_fidelity`."""
    blocks: list[Block] = [Headline(f"{name}: {_fidelity_takeaway(measured)}")]
    if measured["is_of_other_trace"]:
        text = (
            "The workload was fitted to another trace than this one: its figures are of that trace."
        )
        blocks.append(Note(text))
    caps = []
    for column, cap in measured["caps"].items():
        n_clipped = measured[f"n_clipped_{column.removesuffix('_tokens')}"]
        share = percent(n_clipped / measured["n_requests"])
        more = f" ({share} of the requests have more)" if n_clipped else ""
        caps += [] if cap is None else [f"{column} at {number(cap)}{more}"]
    if caps:
        text = f"The workload caps {listed(caps)}: it is compared with the trace as capped."
        blocks.append(Note(text))
    rows = [(f"KS distance, {column}", f"{ks:.4f}") for column, ks in measured["ks"].items()]
    for sampler, difference in measured["spearman_difference"].items():
        value = "–" if difference is None else f"{difference:.4f}"
        rows.append((f"Largest difference of a rank correlation, {sampler} sampler", value))
    blocks.append(Table(("Model against trace", "Distance"), rows))
    names = list(measured["ks"])
    if len(names) > 1:
        sides = ("trace", "model")
        matrices = [_matrix(side, names, measured[f"spearman_{side}"]) for side in sides]
        svg = matrix_figure(matrices, "Rank correlations of trace and model")
        caption = "Spearman's rank correlation in the trace and in the model; –: constant."
        blocks.append(Chart(svg, caption))
    return Section(f"Fidelity of {name}", blocks, key=f"fidelity-{file_name(name)}")


def _fidelity_takeaway(measured: Mapping[str, Any]) -> str:
    ks, worst = max((ks, name) for name, ks in measured["ks"].items())
    sentence = "The distributions of lengths and parameters are the trace's own"
    if ks > 0:
        verdict = "within" if ks <= REACH else "above"
        sentence = (
            f"No distribution of lengths and parameters is more than {percent(ks)} of the requests "
            f"off the trace's ({worst}), {verdict} the {percent(REACH)} aimed at"
        )
    if None in measured["spearman_difference"].values():
        return f"{sentence}; no two parameters vary, so there is no relation to keep."
    joint, independent = (
        "less than 0.001" if difference < 0.001 else f"at most {difference:.3f}"
        for difference in measured["spearman_difference"].values()
    )
    return (
        f"{sentence}; rank correlations are off by {joint} when parameters are drawn jointly, by "
        f"{independent} when each is drawn alone."
    )
