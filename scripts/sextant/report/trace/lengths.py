"""Lengths of inputs and outputs: distributions, Zipf's law, outputs by input, modes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.pages.charts import Curve, Panel, cumulative_curve, panels_figure
from sextant.pages.figure import Axis
from sextant.pages.sections import Section, Table
from sextant.pages.wording import listed, number, percent, plural
from sextant.report.trace.trace_file import Counts, TraceFile, value_counts
from sextant.report.trace.variance_explained import explained
from sextant.workload.fidelity import cumulative
from sextant.workload.length_modes import modality
from sextant.workload.lengths import fit_zipf, output_by_input, zipf_probabilities

SIDES = {"input": "input_tokens", "output": "output_tokens"}
_QUANTILES = {"p10": 0.1, "p25": 0.25, "median": 0.5, "p75": 0.75, "p90": 0.9, "p99": 0.99}
_MAX_POINTS = 200
_FLAT_THETA = 0.2
_POOR_KS = 0.1
"""From this distance on, a fit that is drawn beside the data is visibly another curve."""


def measure_lengths(trace: TraceFile, sampled: pd.DataFrame, *, seed: int) -> dict[str, Any]:
    """Return distributions and Zipf fits of all served requests; of those `sampled`, outputs by
    input and the modes of outputs, whose test is seeded.
    """
    found: dict[str, Any] = {side: _side(value_counts(trace, SIDES[side])) for side in SIDES}
    found["n_served"] = found["input"]["n"]
    bins = output_by_input(*(sampled[name] for name in SIDES.values())) if len(sampled) else None
    found["output_by_input"] = None if bins is None else bins.to_dict(orient="list")
    fraction = None if bins is None else rank_by_input_fraction(sampled, bins["input_lo"])
    found["output_rank_by_input_fraction"] = fraction
    try:
        found["output_modes"] = asdict(modality(sampled["output_tokens"].to_numpy(), seed=seed))
    except InputError as error:
        found["output_modes"] = {"reason": str(error)}
    return found


def rank_by_input_fraction(requests: pd.DataFrame, input_lo: pd.Series) -> float | None:
    """Return how much of the variance of the outputs' ranks the input's bin explains.

    Unlike a rank correlation it sees any relation, not only one that rises or falls throughout.
    `requests` have both lengths; `input_lo` is the lowest input of each bin, ascending.
    """
    place = np.searchsorted(input_lo, requests["input_tokens"], side="right")
    found = explained(requests["output_tokens"].rank().to_numpy(), place)
    return None if found is None else found.fraction


def _side(counts: Counts) -> dict[str, Any]:
    """Return one side's distribution: quantiles, points of the curve, and the Zipf fit."""
    n = int(counts.weights.sum())
    if n == 0:
        return {"n": 0, "quantiles": None, "cdf": None, "zipf": None, "zipf_reason": "no request"}
    try:
        fit, reason = asdict(fit_zipf(counts.values, counts=counts.weights)), None
    except InputError as error:
        fit, reason = None, str(error)
    told = distribution(counts.values, counts.weights)
    return {"n": n, **told, "zipf": fit, "zipf_reason": reason}


def distribution(values: np.ndarray, weights: np.ndarray) -> dict[str, Any]:
    """Return `mean`, `quantiles` and `cdf` (points of the curve) of ascending weighted values."""
    return {
        "mean": float(np.average(values, weights=weights)),
        "quantiles": quantiles(values, weights),
        "cdf": cumulative(values, weights, _MAX_POINTS).to_dict(orient="list"),
    }


def quantiles(values: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    """Return lowest, percentiles and highest of ascending weighted values."""
    shares = np.cumsum(weights) / np.sum(weights)
    # A share may miss 0.9 by rounding where the count hits it exactly.
    places = np.searchsorted(shares, np.array([*_QUANTILES.values()]) - 1e-12)
    percentiles = values[np.minimum(places, len(values) - 1)]
    named = dict(zip(_QUANTILES, percentiles.astype(float).tolist(), strict=True))
    return {"lowest": float(values[0]), **named, "highest": float(values[-1])}


def show_lengths(found: Mapping[str, Any]) -> Section:
    """Return the section of what `measure_lengths` found."""
    section = Section("Lengths", _takeaway(found))
    if found["n_served"] == 0:
        return section
    section.tables.append(quantile_table({f"{side.capitalize()}s": found[side] for side in SIDES}))
    section.figures.append(_distribution_figure(found))
    section.tables.append(_zipf_table(found))
    section.notes.append(_zipf_words(found["input"]))
    if found["output_by_input"]:
        section.figures.append(
            _by_input_figure(found["output_by_input"], found["output_rank_by_input_fraction"])
        )
    section.notes.append(_mode_words(found["output_modes"]))
    return section


def _takeaway(found: Mapping[str, Any]) -> str:
    if found["n_served"] == 0:
        return "No request succeeded, so there are no lengths to describe."
    inputs, outputs = (found[side]["quantiles"] for side in SIDES)
    if inputs["lowest"] == inputs["highest"] and outputs["lowest"] == outputs["highest"]:
        return (
            f"All requests are alike: {number(inputs['median'])} tokens in, "
            f"{number(outputs['median'])} out."
        )
    return (
        f"The median request has {number(inputs['median'])} tokens in and "
        f"{number(outputs['median'])} out; one in ten has more than {number(inputs['p90'])} in, "
        f"one in ten more than {number(outputs['p90'])} out."
    )


def _zipf_words(side: Mapping[str, Any]) -> str:
    fit = side["zipf"]
    if fit is None:
        return f"Zipf's law is not fitted to the inputs: {side['zipf_reason']}"
    law = (
        f"A bounded Zipf law fits the inputs best with θ = {fit['theta']:.3f} (95 % interval "
        f"{fit['theta_lo']:.3f} to {fit['theta_hi']:.3f}; {fit['lowest']} to "
        f"{number(fit['highest'])} tokens, the shortest and longest seen)"
    )
    if fit["ks"] <= _POOR_KS:
        flat = " With θ near 0 it is next to uniform." if abs(fit["theta"]) < _FLAT_THETA else ""
        return f"{law}, and is nowhere more than {percent(fit['ks'])} of the requests off.{flat}"
    return (
        f"{law}, but is off by {percent(fit['ks'])} of the requests at its worst: inputs of this "
        "trace do not follow Zipf's law, and a generator should draw from the histogram instead."
    )


def _mode_words(modes: Mapping[str, Any]) -> str:
    if "reason" in modes:
        return f"Modes of the outputs are not counted: {modes['reason']}"
    places = listed([f"{place:,.0f}" for place in modes["modes_tokens"]])
    tested = f"Silverman's test, {plural(modes['n_tested'], 'request')}"
    p_value = f"p = {modes['p_value']:.2g}" if modes["p_value"] > 0 else "p < 0.005"
    if modes["n_modes"] == 1:
        return f"Output lengths have one mode, near {places} tokens ({tested}, {p_value})."
    most = " or more" if modes["n_modes"] >= 6 else ""
    return (
        f"Output lengths have {modes['n_modes']}{most} modes, near {places} tokens ({tested}; for "
        f"a single mode {p_value})."
    )


def quantile_table(sides: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return a row a side, by its name: `mean` and `quantiles` of its lengths."""
    rows = [
        (name, *(number(value) for value in (side["mean"], *side["quantiles"].values())))
        for name, side in sides.items()
    ]
    names = next(iter(sides.values()))["quantiles"]
    return Table(("Tokens", "Mean", *(name.capitalize() for name in names)), rows)


def _zipf_table(found: Mapping[str, Any]) -> Table:
    header = ("Bounded Zipf fit", "θ", "95 % interval", "Shortest", "Longest", "KS distance")
    rows = []
    for side in SIDES:
        fit, name = found[side]["zipf"], f"{side.capitalize()}s"
        if fit is None:
            rows.append((name, "not fitted", "–", "–", "–", "–"))
            continue
        interval = f"{fit['theta_lo']:.3f} to {fit['theta_hi']:.3f}"
        bounds = (number(fit["lowest"]), number(fit["highest"]))
        rows.append((name, f"{fit['theta']:.3f}", interval, *bounds, f"{fit['ks']:.3f}"))
    return Table(header, rows)


def _distribution_figure(found: Mapping[str, Any]) -> tuple[str, str]:
    panels = []
    for side in SIDES:
        curves = [cumulative_curve("trace", found[side]["cdf"])]
        fit = found[side]["zipf"]
        if fit is not None:
            curves.append(_zipf_curve(fit))
        is_log = found[side]["quantiles"]["lowest"] > 0
        panels.append(distribution_panel(side, curves, is_log=is_log))
    svg = panels_figure(panels, "Distribution of lengths", is_step=True)
    return svg, "Cumulative distributions of the lengths, and the bounded Zipf law that fits best."


def distribution_panel(side: str, curves: Sequence[Curve], *, is_log: bool) -> Panel:
    """Return a panel of the distribution functions of one side's lengths."""
    across = Axis(f"{side.capitalize()} (tokens)", is_log=is_log)
    up = Axis("Share of requests up to it", low=0, high=1.02)
    return Panel(f"{side.capitalize()}s", across, up, curves)


def _zipf_curve(fit: Mapping[str, Any]) -> Curve:
    shares = np.cumsum(zipf_probabilities(fit["theta"], fit["lowest"], fit["highest"]))
    spaced = np.geomspace(fit["lowest"], fit["highest"], _MAX_POINTS)
    values = np.unique(np.rint(spaced).astype(int))
    points = {"value": values, "fraction": shares[values - fit["lowest"]]}
    return cumulative_curve("bounded Zipf fit", points)


def _by_input_figure(bins: Mapping[str, Any], fraction: float | None) -> tuple[str, str]:
    middle = np.sqrt(np.maximum(bins["input_lo"], 0.5) * np.maximum(bins["input_hi"], 0.5))
    curves = [
        Curve("median, quartiles", middle, bins["median"], bins["p25"], bins["p75"]),
        Curve("mean", middle, bins["mean"]),
        Curve("10th and 90th percentile", middle, bins["p10"]),
    ]
    curves.append(curves[-1]._replace(y=bins["p90"]))
    is_wide = middle[-1] > 10 * middle[0]
    panel = Panel(
        "", Axis("Input (tokens)", is_log=is_wide), Axis("Output (tokens)", low=0), curves
    )
    svg = panels_figure([panel], "Output lengths by input length", n_columns=1, height_in=2.6)
    return svg, (
        f"Output lengths in {len(middle)} bins of the input's length, about equally many requests "
        f"in each. The bin explains {percent(fraction)} of the variance of the outputs' ranks."
    )
