"""Judge decisions where LLMs were served in many ways, for requests of many lengths.

Eq. 1-3 of LLM-Pilot know one curve of users for each LLM and GPU profile. Here each LLM with
requests of one length is something to serve of its own, and each way to serve it on a GPU profile
(engine, version, precision, layout) is an option; so the same equations judge them.
"""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from sextant.decide.accuracy import HeldOut
from sextant.points.characterizations.features import Facts
from sextant.points.characterizations.points import IDENTIFIERS, LENGTHS, SERVING
from sextant.predict.draws import Draws
from sextant.predict.folds import KEYS, FitResult, Task


def apart(task: Task) -> Task:
    """Return the task with each configuration as an option of its own; repeats become means."""
    points = as_options(task.points.dropna(subset=["users"]))
    numbers = points.select_dtypes("number").columns.difference(["users"])
    others = points.columns.difference([*numbers, *KEYS])
    how = dict.fromkeys(numbers, "mean") | dict.fromkeys(others, "first")
    points = points.groupby(KEYS, as_index=False, dropna=False).agg(how)
    llms = dict(zip(points["llm_id"], points["_llm_id"], strict=True))
    profiles = dict(zip(points["gpu_profile_id"], points["_gpu_profile_id"], strict=True))
    facts = Facts(
        {name: task.facts.llms[own] for name, own in llms.items()},
        {name: task.facts.profiles[own] for name, own in profiles.items()},
    )
    served = set(points[IDENTIFIERS].itertuples(index=False, name=None))
    points = points.drop(columns=["_llm_id", "_gpu_profile_id"])
    return replace(task, points=points, facts=facts, feasible=served, failed=set(), served=served)


def fit_result(held_out: Sequence[HeldOut], seconds: float) -> FitResult:
    """Return held-out predictions as those of a fit on `apart`'s task."""
    parts, draws = [], []
    for fold, points, samples_ms, predicted in held_out:
        named = as_options(points)
        # Of a point that was measured again, the prediction is the same.
        first = (points["users"].notna() & ~named.duplicated(KEYS)).to_numpy()
        X = named[first].astype({"users": "int64"})[[*KEYS, *LENGTHS]].reset_index(drop=True)
        parts.append(X.join(predicted[first].reset_index(drop=True)).assign(fold=fold))
        if samples_ms is not None:
            draws.append(Draws(X, samples_ms[:, first]))
    latencies = pd.concat(parts, ignore_index=True)
    return FitResult(
        llm_ids=list(dict.fromkeys(latencies["llm_id"])),
        latencies=latencies,
        is_judged=True,
        seconds=seconds,
        draws=draws,
    )


def as_options(points: pd.DataFrame) -> pd.DataFrame:
    """Return points with names that tell configurations apart, and the plain ones beside them."""
    lengths = points[LENGTHS].map("{:.0f}".format).agg("/".join, axis=1)
    served = points[SERVING].astype("str").where(points[SERVING].notna(), "")
    ways = served.agg(",".join, axis=1)
    return points.assign(
        _llm_id=points["llm_id"],
        _gpu_profile_id=points["gpu_profile_id"],
        llm_id=points["llm_id"] + " " + lengths,
        gpu_profile_id=points["gpu_profile_id"] + " " + ways,
    )
