"""The section Parameters of a trace's page: rank correlations of all parameters."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.files import jsonable
from sextant.pages.blocks import Block, Headline, Section, Table
from sextant.pages.words import number, plural
from sextant.workload.fit import spearman
from sextant.workload.gamma import Z_95

_WEAK = 0.1  # coefficient below which the relation of two parameters cannot be seen in a plot


def measure_parameters(
    sampled: pd.DataFrame, columns: Sequence[str], n_served: int
) -> dict[str, Any]:
    """Return the rank correlations of the `columns` of sampled requests, out of `n_served`."""
    return {
        "n_sampled": len(sampled),
        "n_served": n_served,
        "parameters": [name for name in columns if name != "e2e_ms"],
        "spearman": jsonable(spearman(sampled[columns]).to_dict()),
    }


def show_parameters(measured: Mapping[str, Any]) -> Section:
    """Return the section of what `measure_parameters` returns."""
    coefficients = measured["spearman"]
    names = measured["parameters"]
    n_sampled = measured["n_sampled"]
    pairs = [
        (coefficients[a][b], f"{b} and {a}")
        for index, a in enumerate(names)
        for b in names[:index]
        if coefficients[a][b] is not None
    ]
    if measured["n_served"] == 0:
        takeaway = "No request succeeded, so there is nothing to relate."
    elif not pairs:
        takeaway = "No two parameters vary, so there is no relation between them."
    else:
        value, pair = max(pairs, key=lambda pair: abs(pair[0]))
        takeaway = f"{pair} have a rank correlation of {value:.2f}"
        if len(pairs) > 1:
            takeaway = (
                f"Of all pairs of parameters, {pair} have the strongest rank correlation, "
                f"{value:.2f}"
            )
        # Under independence a coefficient's standard deviation is 1/√(n - 1).
        if abs(value) < Z_95 / np.sqrt(max(n_sampled - 1, 1)):
            takeaway += f": no more than chance may show in {plural(n_sampled, 'request')}."
        elif abs(value) < _WEAK:
            takeaway += ": one hardly rises or falls with the other."
        else:
            takeaway += f": one {'rises' if value > 0 else 'falls'} as the other rises."

    blocks: list[Block] = [Headline(takeaway)]
    columns = list(coefficients)
    if n_sampled > 0 and len(columns) > 1:
        basis = f"{number(measured['n_served'])} requests"
        if n_sampled != measured["n_served"]:
            basis = f"a sample of {number(n_sampled)} of {basis}"
        note = f"Spearman's rank correlation, {basis}; –: constant."
        blocks.append(correlation_table("", columns, coefficients, note))
    return Section("Parameters", blocks)


def correlation_table(
    heading: str, names: list[str], cells: Mapping[str, Mapping[str, float | None]], note: str
) -> Table:
    """Return a table of rank correlations, one row and one column per parameter."""

    def text(value: float | None) -> str | None:
        return None if value is None else f"{value:.2f}".replace("-0.00", "0.00")

    rows = [(row, *(text(cells[row][name]) for name in names)) for row in names]
    return Table([heading, *names], rows, note=note)
