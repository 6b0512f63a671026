"""Importance by random forests, and which parameters of a request decide its latency.

As in LLM-Pilot (III-A), a random forest predicts the latency of single requests from their
parameters, and the mean decrease in impurity (MDI) is each parameter's share in the forest's
splits. The paper gives R² ≈ 0.93 and not of which rows: here it is given for rows the forest was
trained on and for rows it never saw.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import duckdb
import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.points.metrics import LATENCIES

# It takes a second to import, and most traces have no latencies.
if TYPE_CHECKING:
    from sklearn.ensemble import RandomForestRegressor

MIN_ROWS = 50
HELD_OUT_FRACTION = 0.2
_N_REPEATS = 5
_TIMES = ("sent_s", "first_token_s", "last_token_s")
# One value a request; gaps between tokens are many.
_DERIVED = {metric.name: metric.sql for metric in LATENCIES if metric.name != "itl_ms"}


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
        requests: one row per request, of a trace with `e2e_ms` or of a benchmark's
            `requests.parquet`, whose latencies are derived from its times (`cells.metrics`).
        target: a column, or `ttft_ms`, `nttft_ms` or `e2e_ms` of a benchmark, in ms.
        parameters: columns of numbers or booleans, e.g. `input_tokens`.
        seed: seed of sample, split, forest and permutations.
        max_rows: most rows to take part, drawn at random; all by default.

    Raises:
        InputError: a column is missing, fewer than 50 rows have a latency, or all have the same.
    """
    from sklearn.model_selection import train_test_split

    served, latency, n_failed = _served(requests, target, parameters)
    is_known = latency.notna().to_numpy()
    rows = np.flatnonzero(is_known)
    _check_latency(latency.to_numpy(float)[rows], target)
    n_known = len(rows)
    if max_rows is not None and n_known > max_rows:
        rows = np.sort(np.random.default_rng(seed).choice(rows, max_rows, replace=False))
    x = served[list(parameters)].astype(float).to_numpy()[rows]
    y = latency.to_numpy(float)[rows]
    x_training, x_held_out, y_training, y_held_out = train_test_split(
        x, y, test_size=HELD_OUT_FRACTION, random_state=seed
    )
    grown = forest_importance(x_training, y_training, seed=seed, held_out=(x_held_out, y_held_out))
    return ParameterImportance(
        target=target,
        n_rows=len(rows),
        n_held_out=len(y_held_out),
        n_failed=n_failed,
        n_without_latency=int(np.sum(~is_known)),
        n_not_sampled=n_known - len(rows),
        r2_training=float(grown.forest.score(x_training, y_training)),
        r2_held_out=float(grown.forest.score(x_held_out, y_held_out)),
        mdi=dict(zip(parameters, grown.mdi.tolist(), strict=True)),
        permutation=dict(zip(parameters, grown.permutation.tolist(), strict=True)),
    )


def _served(
    requests: pd.DataFrame, target: str, parameters: Sequence[str]
) -> tuple[pd.DataFrame, pd.Series, int]:
    """Return the requests that are ok, their latency, and how many others there are."""
    for name in parameters:
        if name not in requests:
            fix = "choose columns of the requests"
            raise InputError("the requests lack the parameter", field=name, fix=fix)
    is_ok = np.ones(len(requests), bool)
    if "status" in requests:
        is_ok = requests["status"].eq("ok").to_numpy(bool)
    served = requests[is_ok].reset_index(drop=True)
    return served, _latency(served, target), int(np.sum(~is_ok))


def _latency(served: pd.DataFrame, target: str) -> pd.Series:
    if target in served:
        return served[target]
    needed = [*_TIMES, "input_tokens"] if target in _DERIVED else [target]
    for name in needed:
        if name not in served:
            fix = f"give a trace with {target}, or requests with {', '.join(_TIMES)}"
            raise InputError("the requests lack the latency", field=name, fix=fix)
    with duckdb.connect() as database:
        # The time that a request waited in the client tells nothing of its parameters.
        database.register("requests", served[needed].rename(columns={"sent_s": "start_s"}))
        return database.execute(f"SELECT {_DERIVED[target]} AS ms FROM requests").df()["ms"]


def _check_latency(known: np.ndarray, target: str) -> None:
    if len(known) < MIN_ROWS:
        problem, fix = f"{len(known)} requests have a latency", f"give {MIN_ROWS} or more"
        raise InputError(problem, field=target, fix=fix)
    if np.ptp(known) == 0:
        fix = "give requests that differ"
        raise InputError("all requests have the same latency", field=target, fix=fix)
