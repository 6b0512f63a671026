"""Importance by random forests, and which parameters of a request decide its latency.

As in LLM-Pilot (III-A), a random forest predicts the latency of single requests from their
parameters, and the mean decrease in impurity (MDI) is each parameter's share in the forest's
splits. The paper gives R² ≈ 0.93 and not of which rows: here it is given for rows the forest was
trained on and for rows it never saw.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from sextant.base.errors import InputError

# It takes a second to import, and most traces have no latencies.
if TYPE_CHECKING:
    from sklearn.ensemble import RandomForestRegressor

MIN_ROWS = 50
HELD_OUT_FRACTION = 0.2
_N_REPEATS = 5


class ForestImportance(NamedTuple):
    """A random forest and the importance of each column."""

    forest: "RandomForestRegressor"
    mdi: np.ndarray
    """Share of each column in the decrease of impurity, in sum 1. It favours columns of many
    values and is computed on the training rows."""
    permutation: np.ndarray
    """Loss of R² when a column's values change places at random, mean of five times. Two columns
    that vary together share their importance."""


def forest_importance(
    x: np.ndarray,
    y: np.ndarray,
    *,
    seed: int,
    held_out: tuple[np.ndarray, np.ndarray] | None = None,
    oob_score: bool = False,
) -> ForestImportance:
    """Train scikit-learn's forest with its defaults: 100 trees grown to the end.

    Args:
        x: rows to train on, shape (rows, columns); NaN is a value of its own.
        y: what to predict, shape (rows,).
        seed: seed of forest and permutations.
        held_out: rows that values change places in; those of the training by default, which says
            what the forest uses, not how well it would do elsewhere.
        oob_score: whether R² out of bag is computed.
    """
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance

    forest = RandomForestRegressor(oob_score=oob_score, random_state=seed).fit(x, y)
    rows = (x, y) if held_out is None else held_out
    lost = permutation_importance(forest, *rows, n_repeats=_N_REPEATS, random_state=seed)
    return ForestImportance(forest, forest.feature_importances_, lost.importances_mean)


@dataclass(frozen=True)
class ParameterImportance:
    """What a random forest says of the parameters of requests."""

    target: str
    n_rows: int
    """Requests that took part, those of the training and those held out."""
    n_held_out: int
    n_failed: int
    """Left out: not `ok`, so their latency is not that of a served request."""
    n_without_latency: int
    """Left out: served, but their latency is unknown."""
    n_not_sampled: int
    """Left out at random, above `max_rows`."""
    r2_training: float
    r2_held_out: float
    mdi: dict[str, float]
    """By parameter, as in `ForestImportance`."""
    permutation: dict[str, float]
    """By parameter, on the rows held out."""


def parameter_importance(
    requests: pd.DataFrame,
    target: str,
    parameters: Sequence[str],
    *,
    seed: int,
    max_rows: int | None = None,
) -> ParameterImportance:
    """Train a random forest to predict a latency of requests from their parameters.

    A fifth of the rows, chosen at random, is held out; `forest_importance` does the rest.

    Args:
        requests: one row per request; `status` may be missing where all are `ok`.
        target: column of a latency in ms; NaN where it is not known.
        parameters: columns of numbers or booleans, e.g. `input_tokens`.
        seed: seed of sample, split, forest and permutations.
        max_rows: most rows to take part, drawn at random; all by default.

    Raises:
        InputError: a column is missing, fewer than 50 rows have a latency, or all have the same.
    """
    from sklearn.model_selection import train_test_split

    for name in (*parameters, target):
        if name not in requests:
            raise InputError("the requests lack the column", field=name, fix="choose another")
    served = requests[requests["status"] == "ok"] if "status" in requests else requests
    latency_ms = served[target].to_numpy(float)
    rows = np.flatnonzero(~np.isnan(latency_ms))
    if len(rows) < MIN_ROWS:
        problem, fix = f"{len(rows)} requests have a latency", f"give {MIN_ROWS} or more"
        raise InputError(problem, field=target, fix=fix)
    if np.ptp(latency_ms[rows]) == 0:
        fix = "give requests that differ"
        raise InputError("all requests have the same latency", field=target, fix=fix)
    n_known = len(rows)
    if max_rows is not None and n_known > max_rows:
        rows = np.sort(np.random.default_rng(seed).choice(rows, max_rows, replace=False))
    x = served[list(parameters)].astype(float).to_numpy()[rows]
    y = latency_ms[rows]
    x_training, x_held_out, y_training, y_held_out = train_test_split(
        x, y, test_size=HELD_OUT_FRACTION, random_state=seed
    )
    grown = forest_importance(x_training, y_training, seed=seed, held_out=(x_held_out, y_held_out))
    return ParameterImportance(
        target=target,
        n_rows=len(rows),
        n_held_out=len(y_held_out),
        n_failed=len(requests) - len(served),
        n_without_latency=len(served) - n_known,
        n_not_sampled=n_known - len(rows),
        r2_training=float(grown.forest.score(x_training, y_training)),
        r2_held_out=float(grown.forest.score(x_held_out, y_held_out)),
        mdi=dict(zip(parameters, grown.mdi.tolist(), strict=True)),
        permutation=dict(zip(parameters, grown.permutation.tolist(), strict=True)),
    )
