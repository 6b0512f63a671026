"""Parameters: which go together, and which decide latency where the trace has it."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.base.rows import jsonable
from sextant.pages.charts import bars_figure, matrix_figure
from sextant.pages.sections import Section, Table
from sextant.pages.wording import number, percent, plural
from sextant.predict.importance import parameter_importance
from sextant.workload.fidelity import spearman
from sextant.workload.gamma import Z_95

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
    section = Section("Parameters", _takeaway(found, lengths))
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


def _takeaway(found: Mapping[str, Any], lengths: Mapping[str, Any]) -> str:
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
