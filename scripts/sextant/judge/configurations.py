"""Points of different request lengths: each configuration is judged as an option of its own."""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from sextant.judge.accuracy import HeldOutPredictions
from sextant.judge.folds import FitResult
from sextant.judge.task import Task
from sextant.points.frame import IDENTIFIERS, KEYS, LENGTHS, SERVING, FactTables
from sextant.predict.predictor import Draws


def separate_configurations(task: Task) -> Task:
    """Return the task with each configuration as an option of its own; repeats become means."""
    points = as_options(task.points.dropna(subset=["users"]))
    numbers = points.select_dtypes("number").columns.difference(["users"])
    others = points.columns.difference([*numbers, *KEYS])
    aggregates = dict.fromkeys(numbers, "mean") | dict.fromkeys(others, "first")
    points = points.groupby(KEYS, as_index=False, dropna=False).agg(aggregates)
    llms = dict(zip(points["llm_id"], points["_llm_id"], strict=True))
    profiles = dict(zip(points["gpu_profile_id"], points["_gpu_profile_id"], strict=True))
    facts = FactTables(
        {option: task.facts.llms[llm_id] for option, llm_id in llms.items()},
        {option: task.facts.profiles[profile_id] for option, profile_id in profiles.items()},
    )
    served = set(points[IDENTIFIERS].itertuples(index=False, name=None))
    points = points.drop(columns=["_llm_id", "_gpu_profile_id"])
    return replace(task, points=points, facts=facts, feasible=served, failed=set(), served=served)


def fit_result(held_out: Sequence[HeldOutPredictions], seconds: float) -> FitResult:
    """Return held-out predictions as a fit on the task of `separate_configurations` has them."""
    parts = []
    draws = []
    for fold, points, samples_ms, predicted, *_ in held_out:
        named = as_options(points)
        # A point that was measured again has the same prediction.
        is_first = (points["users"].notna() & ~named.duplicated(KEYS)).to_numpy()
        X = named[is_first].astype({"users": "int64"})[[*KEYS, *LENGTHS]].reset_index(drop=True)
        parts.append(X.join(predicted[is_first].reset_index(drop=True)).assign(fold=fold))
        if samples_ms is not None:
            draws.append(Draws(X, samples_ms[:, is_first]))
    latencies = pd.concat(parts, ignore_index=True)
    return FitResult(
        llm_ids=list(dict.fromkeys(latencies["llm_id"])),
        latencies=latencies,
        is_judged=True,
        seconds=seconds,
        draws=draws,
    )


def as_options(points: pd.DataFrame) -> pd.DataFrame:
    """Return points named by configuration; the plain names are in columns of their own."""
    lengths = points[LENGTHS].map("{:.0f}".format).agg("/".join, axis=1)
    served = points[SERVING].astype("str").where(points[SERVING].notna(), "")
    ways = served.agg(",".join, axis=1)
    return points.assign(
        _llm_id=points["llm_id"],
        _gpu_profile_id=points["gpu_profile_id"],
        llm_id=points["llm_id"] + " " + lengths,
        gpu_profile_id=points["gpu_profile_id"] + " " + ways,
    )
