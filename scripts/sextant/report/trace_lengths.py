"""The section Lengths of a trace's page: distributions, Zipf's law, outputs by input."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.pages.blocks import Block, Chart, Headline, Note, Section, Table
from sextant.pages.charts import Axis, Curve, Panel, cumulative_curve, panels_figure
from sextant.pages.words import number, percent
from sextant.report.trace_file import explained, value_counts
from sextant.workload.fit import cumulative
from sextant.workload.published import fit_zipf, output_by_input, zipf_probabilities

SIDES = {"input": "input_tokens", "output": "output_tokens"}
_QUANTILES = {"p10": 0.1, "p25": 0.25, "median": 0.5, "p75": 0.75, "p90": 0.9, "p99": 0.99}
_MAX_POINTS = 200
_FLAT_THETA = 0.2
_POOR_KS = 0.1  # from this distance on, a drawn fit is visibly another curve than the data


def measure_lengths(trace: Path, sampled: pd.DataFrame) -> dict[str, Any]:
    """Return the lengths of all served requests, and outputs by input of those `sampled`."""
    measured: dict[str, Any] = {side: _side(*value_counts(trace, SIDES[side])) for side in SIDES}
    bins = share = None
    if len(sampled):
        bins = output_by_input(*(sampled[name] for name in SIDES.values()))
        # Unlike a rank correlation, the share that the input's bin explains of the variance of the
        # outputs' ranks shows any relation, not only one that rises or falls throughout.
        input_bin = np.searchsorted(bins["input_lo"], sampled["input_tokens"], side="right")
        share = explained(sampled["output_tokens"].rank().to_numpy(), input_bin)
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
    quantiles = np.quantile(values, shares, weights=weights, method="inverted_cdf").tolist()
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
            **dict(zip(_QUANTILES, quantiles, strict=True)),
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
    rows = []
    notes = []
    panels = []
    for name in SIDES:
        side = measured[name]
        fit = measured[name]["zipf"]
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
