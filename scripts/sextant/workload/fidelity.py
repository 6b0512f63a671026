"""How faithful a request model is to its trace: distributions, and how parameters go together.

LLM-Pilot judges its generator by eye, from cumulative distributions (V-A); here the figures are
the largest differences: of two cumulative distributions (Kolmogorov-Smirnov), and of two
matrices of Spearman's rank correlation.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from sextant.base.errors import InputError
from sextant.workload.request_model import SAMPLERS, RequestModel
from sextant.workload.seeds import Seed

N_DRAWS = 1_000_000


def ks_distance(
    a: ArrayLike,
    b: ArrayLike,
    weights_a: np.ndarray | None = None,
    weights_b: np.ndarray | None = None,
) -> float:
    """Return the Kolmogorov-Smirnov distance: the largest difference of two cumulative shares.

    `a` (n,) and `b` (m,) are numbers, booleans or nulls, of equal weight by default. A null counts
    as a value below all others, so that different shares of nulls are seen too.

    Raises:
        InputError: one of them is empty.
    """
    (values_a, shares_a), (values_b, shares_b) = (
        _cumulative_shares(np.where(np.isnan(numbers), -np.inf, numbers), weights)
        for numbers, weights in ((_numbers(a), weights_a), (_numbers(b), weights_b))
    )
    at = np.union1d(values_a, values_b)
    reached_a = np.append(0.0, shares_a)[np.searchsorted(values_a, at, side="right")]
    reached_b = np.append(0.0, shares_b)[np.searchsorted(values_b, at, side="right")]
    return float(np.abs(reached_a - reached_b).max())


def cumulative(
    values: ArrayLike, weights: np.ndarray | None = None, max_points: int = 512
) -> pd.DataFrame:
    """Return a cumulative distribution to draw: `value`, and `fraction` of values up to it.

    Nulls are left out. Of more distinct values than `max_points`, those nearest to equal steps
    of the fraction are kept, the lowest and the highest among them; each point is exact.

    Raises:
        InputError: there is no value but null.
    """
    numbers = _numbers(values)
    is_known = ~np.isnan(numbers)
    known_weights = None if weights is None else np.asarray(weights)[is_known]
    distinct, shares = _cumulative_shares(numbers[is_known], known_weights)
    if len(distinct) > max_points:
        steps = np.linspace(shares[0], 1, max_points)
        kept = np.unique(np.minimum(np.searchsorted(shares, steps), len(distinct) - 1))
        distinct, shares = distinct[kept], shares[kept]
    return pd.DataFrame({"value": distinct, "fraction": shares})


def spearman(frame: pd.DataFrame, weights: np.ndarray | None = None) -> pd.DataFrame:
    """Return Spearman's rank correlation of each pair of columns; NaN: one of the two is constant.

    Ranks are mid-ranks, and a row of weight w (1 by default) counts as w equal rows: so are ranks
    and correlations those of the rows a histogram stands for. A pair uses the rows where both are
    known.
    """
    names = list(frame.columns)
    row_weights = np.ones(len(frame)) if weights is None else np.asarray(weights, float)
    # -1 is null. Ranks only need the order of values.
    places = [pd.factorize(_numbers(frame[name]), sort=True)[0] for name in names]
    matrix = np.full((len(names), len(names)), np.nan)
    for row, place_a in enumerate(places):
        for column, place_b in enumerate(places[: row + 1]):
            is_known = (place_a >= 0) & (place_b >= 0) & (row_weights > 0)
            pair = (place_a[is_known], place_b[is_known], row_weights[is_known])
            matrix[row, column] = matrix[column, row] = _rank_correlation(*pair)
    return pd.DataFrame(matrix, index=names, columns=names)


def largest_difference(truth: pd.DataFrame, other: pd.DataFrame) -> float | None:
    """Return the largest difference of two matrices of coefficients, None if there is no pair.

    Pairs for which `truth` has none are left out; where only `other` has none, it shows no
    correlation, which is 0.
    """
    differences = (truth - other.fillna(0.0)).to_numpy()
    off_diagonal = differences[~np.eye(len(truth), dtype=bool)]
    known = np.abs(off_diagonal[~np.isnan(off_diagonal)])
    return float(known.max()) if len(known) else None


def compare(
    served: pd.DataFrame,
    modelled: pd.DataFrame,
    *,
    of_trace: pd.DataFrame | None = None,
) -> dict[str, Any]:
    """Compare requests of a trace, a column per parameter, with draws.

    `of_trace` is `spearman(served)`, where it is known already.

    Returns:
        By parameter `ks`, and `mean_ratio`, the mean over that of the trace (None where that is
        0 or nothing is known); `spearman`, coefficients of `modelled`, None where a parameter is
        constant; `spearman_difference`, the largest (see `largest_difference`).
    """
    names, coefficients = list(served), spearman(modelled[list(served)])
    of_trace = spearman(served) if of_trace is None else of_trace
    return {
        "ks": {name: ks_distance(served[name], modelled[name]) for name in names},
        "mean_ratio": {name: _ratio(_mean(modelled[name]), _mean(served[name])) for name in names},
        "spearman": _nested(coefficients),
        "spearman_difference": largest_difference(of_trace, coefficients),
    }


def exact_fidelity(
    traced: Mapping[str, tuple[np.ndarray, np.ndarray]],
    of_trace: pd.DataFrame,
    model: RequestModel,
) -> dict[str, Any]:
    """Compare a trace with a model's own distribution: each joint bin at its weight, no draws.

    Args:
        traced: of each parameter the trace's values (NaN: null) and their weights.
        of_trace: the trace's rank correlations.
        model: as fitted to the trace.

    Returns:
        `ks` and `mean_ratio` by parameter (see `compare`); `spearman_trace`, `spearman_model`;
        `spearman_difference`: `joint` that of the model, `independent` that of independent
        parameters, whose coefficients are all 0.
    """
    frame, weights = model.frame[model.parameters], model.weights
    of_model = spearman(frame, weights)
    return {
        "ks": {
            name: ks_distance(values, frame[name], own, weights)
            for name, (values, own) in traced.items()
        },
        "mean_ratio": {
            name: _ratio(_mean(frame[name], weights), _mean(pd.Series(values), own))
            for name, (values, own) in traced.items()
        },
        "spearman_trace": _nested(of_trace),
        "spearman_model": _nested(of_model),
        "spearman_difference": {
            "joint": largest_difference(of_trace, of_model),
            "independent": largest_difference(of_trace, of_trace * 0.0),
        },
    }


def model_fidelity(
    served: pd.DataFrame, model: RequestModel, n_draws: int = N_DRAWS, *, seed: Seed
) -> dict[str, Any]:
    """Compare a trace with what each sampler of its model draws.

    Returns:
        `n_draws`; `spearman_trace`; and what `compare` says of the samplers `joint` and
        `independent`, each by its name.
    """
    served = served[model.parameters]
    of_trace = spearman(served)
    figures: dict[str, Any] = {"n_draws": n_draws, "spearman_trace": _nested(of_trace)}
    for sampler in SAMPLERS:
        drawn = model.sample(n_draws, seed=seed, sampler=sampler)
        figures[sampler] = compare(served, drawn, of_trace=of_trace)
    return figures


def _numbers(values: ArrayLike) -> np.ndarray:
    return pd.Series(values).astype(float).to_numpy()


def _mean(values: pd.Series, weights: np.ndarray | None = None) -> float:
    numbers = _numbers(values)
    is_known = ~np.isnan(numbers)
    known_weights = is_known.astype(float) if weights is None else is_known * weights
    total = known_weights.sum()
    return float(np.sum(numbers[is_known] * known_weights[is_known]) / total) if total else np.nan


def _ratio(value: float, truth: float) -> float | None:
    return value / truth if truth and np.isfinite(value / truth) else None


def _cumulative_shares(
    numbers: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct values in order, and the share of the weight up to each."""
    distinct, place = np.unique(numbers, return_inverse=True)
    sums = np.cumsum(np.bincount(place, weights, len(distinct)))
    if not len(sums) or sums[-1] <= 0:
        raise InputError("there is no value to compare", fix="give at least one request")
    return distinct, sums / sums[-1]


def _rank_correlation(place_a: np.ndarray, place_b: np.ndarray, weights: np.ndarray) -> float:
    """Return the weighted correlation of the mid-ranks of two columns without nulls."""
    ranks_a, ranks_b = (
        centred_ranks(np.bincount(place, weights))[place] for place in (place_a, place_b)
    )
    if ranks_a.any() and np.array_equal(ranks_a, ranks_b):
        return 1.0
    spread_a, spread_b = (np.sum(weights * ranks**2) for ranks in (ranks_a, ranks_b))
    return rank_correlation(np.sum(weights * ranks_a * ranks_b), spread_a, spread_b)


def rank_correlation(together: float, spread_a: float, spread_b: float) -> float:
    """Return the correlation of centred ranks by the sum of their products and of their squares."""
    # A constant has all its ranks at their mean, 0, exactly.
    if not spread_a or not spread_b:
        return float("nan")
    return float(np.clip(together / np.sqrt(spread_a * spread_b), -1, 1))


def centred_ranks(mass: np.ndarray) -> np.ndarray:
    """Return the mid-rank of each value less the mean rank, by the weight of each, ascending."""
    middle = np.cumsum(mass) - mass / 2
    return middle - mass.sum() / 2


def _nested(matrix: pd.DataFrame) -> dict[str, dict[str, float | None]]:
    """Return a matrix as JSON has it, None where a coefficient is undefined."""
    return {
        row: {name: None if np.isnan(value) else float(value) for name, value in cells.items()}
        for row, cells in matrix.to_dict().items()
    }
