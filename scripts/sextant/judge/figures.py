"""Held-out points beside their predictions (`prediction_table`), and figures of such a table.

Figures are errors, intervals and their width, by engine and by kind.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from sextant.judge.accuracy import HeldOutPredictions
from sextant.judge.known import LLM_KINDS, how_known
from sextant.points.frame import IDENTIFIERS, LENGTHS, LOAD, SERVING, TARGETS
from sextant.predict.predictor import JOULES

METRICS = {"ttft": "nttft_ms", "tpot": "itl_ms"}
"""Judged metrics, and the target that gives each."""
ALL = "all points"
CANNOT_BE = "cannot be"
_ENERGY = "energy"
_LEAST_RANKED = 3
"""Points that a rank correlation needs."""


@dataclass(frozen=True)
class Figures:
    """How close predictions of one metric come to `n` points, and what their intervals are worth.

    None where there is no such value: all but `mape` and `mdape` need a predictor that draws.
    """

    n: int
    mape: float | None
    """Mean of |predicted - measured| / measured, a fraction."""
    mdape: float | None
    """Median of the same."""
    coverage: float | None
    """Share of the points inside the 90% intervals."""
    high_over_low: float | None
    """Upper end of an interval over its lower end, median."""
    crps: float | None
    """Mean of `crps_of_logs`; 0 is best."""
    spearman: float | None
    """Rank correlation of an interval's width and |log(predicted / measured)|: above 0, wide
    intervals are where the errors are."""

    @property
    def shares(self) -> tuple[float | None, float | None, float | None]:
        """What is a fraction: mean and median error, and coverage."""
        return self.mape, self.mdape, self.coverage

    def flat(self, metric: str) -> dict[str, float | int | None]:
        """Return the figures by name and metric, e.g. `mape_ttft`."""
        return {f"{name}_{metric}": value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class GroupFigures:
    """Figures of one metric over some of the points."""

    metric: str
    """`ttft`, `tpot` or `energy`."""
    by: str
    """What the points have in common: `all`, `engine`, `llm_kind`, `training`, `cannot_be`."""
    group: str
    figures: Figures

    def to_dict(self) -> dict[str, Any]:
        """Return its row in the JSON."""
        return {"metric": self.metric, "by": self.by, "group": self.group, **asdict(self.figures)}


def crps_of_logs(samples: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Return the CRPS of the logarithm of each row, (rows,).

    The continuous ranked probability score of draws X of a prediction and a measurement y is
    E|X - y| - E|X - X'| / 2, X' another draw (Gneiting & Raftery 2007, "Strictly proper scoring
    rules, prediction, and estimation", eq. 21). It is in units of the logarithm: 0.1 is about 10%.
    It rewards an interval that is both right and narrow. A prediction without spread scores its
    absolute error.

    Args:
        samples: draws above 0, (draws, rows).
        measured: above 0, (rows,); NaN: not measured, and so is the result.
    """
    logs = np.sort(np.log(samples), axis=0)
    n = len(logs)
    # Of sorted draws the mean of |X - X'| over all pairs is a weighted sum.
    weights = (2 * np.arange(1, n + 1) - n - 1) / n**2
    off = np.abs(logs - np.log(measured)).mean(axis=0)
    return np.asarray(off - weights @ logs)


def prediction_table(held_out: Sequence[HeldOutPredictions]) -> pd.DataFrame:
    """Return one row per held-out point, with its measured and predicted latencies.

    Columns are identifiers, `SERVING`, `LENGTHS`, `LOAD`, `fold`, `KNOWN`; and for each of
    `METRICS` `<metric>_ms` as measured, `<metric>_predicted_ms`, the 90% interval `<metric>_lo_ms,
    <metric>_hi_ms` and `<metric>_crps` (`crps_of_logs`), null without draws. Where energy is
    predicted, `energy_j_per_token` and so on.
    """
    parts = []
    for fold, points, samples_ms, predicted, training, facts in held_out:
        known = how_known(points, training, facts)
        part = points[[*IDENTIFIERS, *SERVING, *LENGTHS, *LOAD]].assign(fold=fold).join(known)
        # Without input lengths a point has no nTTFT, and TTFT cannot be computed from it.
        for metric, target in METRICS.items():
            stem = target.removesuffix("_ms")
            tokens = points["input_tokens"] if metric == "ttft" else 1
            part[f"{metric}_ms"] = points[target] * tokens
            part[f"{metric}_crps"] = np.nan
            if samples_ms is not None:
                column = TARGETS.index(target)
                measured_ms = points[target].where(points[target] > 0).to_numpy(float)
                part[f"{metric}_crps"] = crps_of_logs(samples_ms[..., column], measured_ms)
            part[f"{metric}_predicted_ms"] = predicted[f"{stem}_ms"] * tokens
            for bound in ("lo_ms", "hi_ms"):
                part[f"{metric}_{bound}"] = predicted.get(f"{stem}_{bound}", np.nan) * tokens
        if JOULES[0] in predicted:
            part["energy_j_per_token"] = points["energy_j_per_token"].where(lambda it: it > 0)
            joules = ("energy_predicted_j_per_token", *JOULES[1:])
            part[[*joules]] = predicted[JOULES]
        parts.append(part)
    return pd.concat(parts).sort_index()


def accuracy(predictions: pd.DataFrame) -> dict[str, float | int | None]:
    """Return the `Figures` of all points that can be, by name and metric, e.g. `mape_ttft`.

    `energy` is a metric where the table has it.
    """
    possible = predictions[~predictions["is_impossible"]]
    flat: dict[str, float | int | None] = {}
    for metric in _units(predictions):
        flat |= _figures(possible, metric).flat(metric)
    return flat


def group_figures(predictions: pd.DataFrame) -> list[GroupFigures]:
    """Return figures of all points, by engine and by how well the deployment is known.

    Points that cannot be (`law.plausible`) are set aside, and judged apart at the end.
    """
    return [
        GroupFigures(metric, by, group, figures)
        for metric in _units(predictions)
        for by, group, rows in _groups(predictions)
        if (figures := _figures(rows, metric)).n
    ]


def _groups(predictions: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield what is common to some rows, its value, and the rows."""
    possible = predictions[~predictions["is_impossible"]]
    yield "all", ALL, possible
    engines = possible["engine"].fillna("unknown")
    for engine in sorted(engines.unique()):
        yield "engine", engine, possible[engines == engine]
    for kind in LLM_KINDS:
        yield "llm_kind", kind, possible[possible["llm_kind"] == kind]
    for name, column in (("version", "is_version_new"), ("GPU's maker", "is_maker_new")):
        is_new = possible[column]
        if is_new.any():  # else it says what all points say
            yield "training", f"{name} seen", possible[~is_new]
            yield "training", f"{name} never seen", possible[is_new]
    yield "cannot_be", CANNOT_BE, predictions[predictions["is_impossible"]]


def _units(predictions: pd.DataFrame) -> dict[str, str]:
    """Return the metrics of a table and the units of their columns."""
    units = dict.fromkeys(METRICS, "ms")
    if f"{_ENERGY}_predicted_j_per_token" in predictions:
        units[_ENERGY] = "j_per_token"
    return units


def _figures(predictions: pd.DataFrame, metric: str) -> Figures:
    unit = _units(predictions)[metric]
    both = [f"{metric}_{unit}", f"{metric}_predicted_{unit}"]
    rows = predictions[predictions[both].notna().all(axis=1)]
    truth = rows[both[0]]
    ratio = rows[both[1]] / truth
    low = rows[f"{metric}_lo_{unit}"]
    high = rows[f"{metric}_hi_{unit}"]
    width = high / low
    is_inside = ((low <= truth) & (truth <= high))[low.notna()]
    scores = rows.get(f"{metric}_crps", pd.Series(dtype=float))
    return Figures(
        len(rows),
        _value((ratio - 1).abs().mean()),
        _value((ratio - 1).abs().median()),
        _value(is_inside.mean()),
        _value(width.median()),
        _value(scores.mean()),
        _value(_rank_correlation(width, np.log(ratio).abs())),
    )


def _rank_correlation(one: pd.Series, other: pd.Series) -> float:
    """Return Spearman's rank correlation; NaN where all values of one are equal, or too few."""
    is_known = one.notna() & other.notna()
    if is_known.sum() < _LEAST_RANKED or one[is_known].nunique() < 2:
        return np.nan
    return float(one[is_known].rank().corr(other[is_known].rank()))


def _value(figure: float) -> float | None:
    return float(figure) if np.isfinite(figure) else None
