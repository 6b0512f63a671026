"""Lengths of inputs and outputs: distributions, Zipf's law, outputs by input, modes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.base.files import read_provenance
from sextant.base.ids import file_name
from sextant.base.rows import jsonable
from sextant.pages.charts import (
    Curve,
    Panel,
    bars_figure,
    cumulative_curve,
    matrix_figure,
    panels_figure,
)
from sextant.pages.figure import Axis, floats
from sextant.pages.sections import Section, Table
from sextant.pages.wording import listed, number, percent, plural
from sextant.report.trace.burstiness import arrivals_words
from sextant.report.trace.trace_file import (
    DEFAULT,
    Counts,
    Fitted,
    TraceFile,
    explained,
    value_counts,
)
from sextant.studies.importance import parameter_importance
from sextant.workload.fit import N_DRAWS, cumulative, ks_distance, largest_difference, spearman
from sextant.workload.gamma import Z_95
from sextant.workload.length_modes import modality
from sextant.workload.lengths import fit_zipf, output_by_input, zipf_probabilities
from sextant.workload.request_model import N_BINS, SAMPLERS, RequestModel
from sextant.workload.trace_requests import fit_request_model

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


LATENCY = "e2e_ms"
_MAX_FOREST_ROWS = 20_000
"""Requests that a forest is trained on: more take minutes and change no share visibly."""
_WEAK = 0.1
"""Coefficient below which the relation of two parameters cannot be seen in a plot."""


def measure_parameters(
    sampled: pd.DataFrame, n_served: int, parameters: list[str], *, seed: int
) -> dict[str, Any]:
    """Return the rank correlations of all parameters, and their importance for latency.

    `sampled`, of the trace's `n_served`, has a column per parameter, and `e2e_ms` if it is known;
    `seed` is the forest's.
    """
    names = [*parameters, LATENCY] if LATENCY in sampled else parameters
    matrix = spearman(sampled[names])
    importance, reason = None, "the trace has no latencies"
    if LATENCY in sampled:
        try:
            options: dict[str, Any] = {"seed": seed, "max_rows": _MAX_FOREST_ROWS}
            importance = asdict(parameter_importance(sampled, LATENCY, parameters, **options))
        except InputError as error:
            reason = str(error)
    return {
        "n_sampled": len(sampled),
        "n_served": n_served,
        "parameters": parameters,
        "spearman": jsonable(matrix.to_dict()),
        "importance": importance,
        "importance_reason": None if importance else reason,
    }


def show_parameters(found: Mapping[str, Any], lengths: Mapping[str, Any]) -> Section:
    """Return the section of what `measure_parameters` found, and `measure_lengths`."""
    section = Section("Parameters", _parameters_takeaway(found, lengths))
    names = list(found["spearman"])
    if found["n_sampled"] > 0 and len(names) > 1:
        cells = [[found["spearman"][row][name] for name in names] for row in names]
        svg = matrix_figure([("", names, cells)], "Rank correlations of the parameters")
        section.figures.append((svg, f"Spearman's rank correlation, {_basis(found)}; –: constant."))
    if found["importance"]:
        section.figures.append(_importance_figure(found["importance"]))
        section.tables.append(_importance_table(found["importance"]))
    else:
        section.notes.append(
            f"Importance for latency is not computed: {found['importance_reason']}."
        )
    return section


def _basis(found: Mapping[str, Any]) -> str:
    if found["n_sampled"] == found["n_served"]:
        return f"{number(found['n_served'])} requests"
    return f"a sample of {number(found['n_sampled'])} of {number(found['n_served'])} requests"


def _parameters_takeaway(found: Mapping[str, Any], lengths: Mapping[str, Any]) -> str:
    names = found["parameters"]
    pairs = [
        (found["spearman"][a][b], a, b)
        for place, a in enumerate(names)
        for b in names[:place]
        if found["spearman"][a][b] is not None
    ]
    if found["n_served"] == 0:
        return "No request succeeded, so there is nothing to relate."
    if not pairs:
        sentence = "No two parameters vary, so that nothing can go together."
    else:
        value, a, b = max(pairs, key=lambda pair: abs(pair[0]))
        sentence = _pair_words(value, b, a, len(pairs), found["n_sampled"]) + _unseen_words(
            found, lengths
        )
    if found["importance"]:
        sentence += f" {_importance_words(found['importance'])}"
    return sentence


def _pair_words(value: float, a: str, b: str, n_pairs: int, n_requests: int) -> str:
    names = f"{a} and {b}"
    which = f"{names} have a rank correlation of {value:.2f}"
    if n_pairs > 1:
        which = (
            f"Of all pairs of parameters, {names} have the strongest rank correlation, {value:.2f}"
        )
    # Under independence a coefficient's standard deviation is 1/√(n - 1).
    if abs(value) < Z_95 / np.sqrt(max(n_requests - 1, 1)):
        return f"{which}: no more than chance may show in {plural(n_requests, 'request')}."
    if abs(value) < _WEAK:
        return f"{which}: one hardly rises or falls with the other."
    return f"{which}: one {'rises' if value > 0 else 'falls'} as the other rises."


def _unseen_words(found: Mapping[str, Any], lengths: Mapping[str, Any]) -> str:
    """Say so where outputs depend on inputs in a way that no rank correlation sees."""
    fraction = lengths["output_rank_by_input_fraction"]
    value = found["spearman"]["input_tokens"]["output_tokens"]
    if fraction is None or value is None or fraction - value**2 < _WEAK:
        return ""
    return (
        f" Yet input_tokens explains {percent(fraction)} of the variance of the ranks of "
        "output_tokens: a relation that is not a mere rise or fall."
    )


def _importance_words(found: Mapping[str, Any]) -> str:
    top = max(found["mdi"], key=lambda name: found["mdi"][name])
    r2 = found["r2_held_out"]
    if r2 < _WEAK:
        return (
            "The parameters hardly tell the latency of a request: a random forest has R² "
            f"{r2:.2f} on requests it never saw."
        )
    return (
        f"The parameters tell latency with R² {r2:.2f} on requests that the forest never saw; "
        f"{top} has {percent(found['mdi'][top])} of the importance."
    )


def _importance_figure(found: Mapping[str, Any]) -> tuple[str, str]:
    names = sorted(found["mdi"], key=lambda name: -found["mdi"][name])
    groups = [
        ("MDI, share", [found["mdi"][name] for name in names]),
        ("permutation, loss of R²", [found["permutation"][name] for name in names]),
    ]
    svg = bars_figure(names, groups, "Importance for the latency of a request", "Importance")
    return svg, (
        f"Importance of each parameter for {found['target']} in a random forest of "
        f"{number(found['n_rows'])} requests: mean decrease in impurity, and R² lost on held-out "
        "requests when the parameter's values are shuffled."
    )


def _importance_table(found: Mapping[str, Any]) -> Table:
    rows = [
        ("R², training", f"{found['r2_training']:.3f}"),
        (f"R², {number(found['n_held_out'])} requests held out", f"{found['r2_held_out']:.3f}"),
        ("Requests without a latency", number(found["n_without_latency"])),
    ]
    return Table((f"Random forest for {found['target']}", ""), rows)


CAPS = ("input_tokens", "output_tokens")
REACH = 0.02
"""What the project sets itself: no distance and no difference of coefficients above."""
_fidelity_MAX_POINTS = 200


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
        "trace": cumulative(values, counts.weights, _fidelity_MAX_POINTS).to_dict(orient="list"),
        "model": cumulative(bins, weights, _fidelity_MAX_POINTS).to_dict(orient="list"),
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
    said = f"{whose}: {_fidelity_takeaway(found)}"
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


def _fidelity_takeaway(found: Mapping[str, Any]) -> str:
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
