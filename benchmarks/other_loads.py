"""How far off is the law at other loads of an LLM that a source measured, and does it know?

    python benchmarks/other_loads.py [--source archive:mlenergy]

Of each cell of a source (an LLM on a GPU profile, served in one way, with requests of one length)
some loads are left out of all that ships: half of them at random (`between`), the lower half
(`below`), the upper half (`above`), or all but the middle one (`all but one`). Prints, over the
loads that were left out, the median error of TTFT and TPOT, the share inside the 90% intervals, and
the upper over the lower end of the intervals (median), for dense LLMs and for mixtures of experts.
"""

import argparse
from collections.abc import Callable

import numpy as np
import pandas as pd

from sextant.ask.source import todays_sources
from sextant.facts.slo import SLO
from sextant.judge.task import task_of_characterization
from sextant.law.effects import deployments
from sextant.law.plausible import impossible
from sextant.law.roofline import Roofline
from sextant.points.frame import TARGETS, at_percentile, is_usable
from sextant.predict.predictor import TrainingRows

_ALIKE = np.log(1.25)
"""Logarithm of the input tokens within which requests count as of one length."""
_ANY_LOAD = SLO("any", users=1, nttft_ms=1.0, itl_ms=1.0, percentile=50)

Choice = Callable[[np.ndarray], np.ndarray]
"""Returns which of the rows of a cell, users rising, are left out."""


def choices(seed: int) -> dict[str, Choice]:
    """Return the ways of leaving out loads, by name."""
    rng = np.random.default_rng(seed)
    return {
        "between": lambda rows: rng.permutation(rows)[: len(rows) // 2],
        "below": lambda rows: rows[: len(rows) // 2],
        "above": lambda rows: rows[len(rows) - len(rows) // 2 :],
        "all but one": lambda rows: np.delete(rows, len(rows) // 2),
    }


def judged(
    model: Roofline, X: pd.DataFrame, y_ms: pd.DataFrame, is_out: np.ndarray
) -> pd.DataFrame:
    """Return a row for each latency of the rows left out: its error, and its interval."""
    model.fit(TrainingRows(X[~is_out].reset_index(drop=True), y_ms[~is_out].reset_index(drop=True)))
    asked, measured_ms = X[is_out], y_ms[is_out].to_numpy(float)
    low, middle, high = np.quantile(model.sample(asked), [0.05, 0.5, 0.95], axis=0)
    kinds = np.where(asked["is_moe"] > 0, "experts", "dense")
    rows = [
        pd.DataFrame(
            {
                "latency": name,
                "kind": kinds,
                "error": np.abs(middle[:, side] / measured_ms[:, side] - 1),
                "inside": (low[:, side] <= measured_ms[:, side])
                & (measured_ms[:, side] <= high[:, side]),
                "high_over_low": high[:, side] / low[:, side],
            }
        )
        for side, name in enumerate(("TTFT", "TPOT"))
    ]
    return pd.concat(rows).dropna()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", default="archive:mlenergy")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    task = task_of_characterization(todays_sources())
    points = at_percentile(task.points, (50, 50), "ttft")
    points = points[is_usable(points)].reset_index(drop=True)
    model = Roofline(_ANY_LOAD, task.facts.profiles, 42)
    X = model.design(points, task.facts)
    kept = ~impossible(X, points[TARGETS].to_numpy(float))
    X, y_ms = X[kept].reset_index(drop=True), points.loc[kept, TARGETS].reset_index(drop=True)

    of_source = X[X["source"] == options.source].sort_values("users", kind="stable")
    lengths = np.round(np.log(of_source["input_tokens"]) / _ALIKE).astype(str)
    cells = deployments(of_source) + "|" + lengths
    tables = {}
    for name, choose in choices(options.seed).items():
        left_out = [choose(rows) for rows in of_source.groupby(cells).groups.values()]
        is_out = X.index.isin(np.concatenate([np.asarray(rows) for rows in left_out]))
        table = judged(model, X, y_ms, is_out)
        tables[name] = table.groupby(["latency", "kind"]).agg(
            points=("error", "size"),
            median_error=("error", "median"),
            inside=("inside", "mean"),
            high_over_low=("high_over_low", "median"),
        )
    print(pd.concat(tables, names=["left out"]).round(3).to_string())


if __name__ == "__main__":
    main()
