"""Held-out predictions: each point beside what a fit says that has not seen its kind."""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.facts.slo import SLO
from sextant.judge.folds import share_lengths
from sextant.judge.task import Task
from sextant.pages.words import plural
from sextant.points.frame import TARGETS, FactTables, at_percentile, is_usable
from sextant.predict.predictor import (
    Draws,
    JointPredictor,
    TrainingRows,
    draws_samples,
    predictor_class,
)
from sextant.predict.tuning import results_of

HoldOut = Literal["llm", "gpu", "engine", "engine_version"]
"""What a fold has not seen: an LLM, a type of GPU, an engine, a version of one."""
_HELD_OUT = {"llm": "LLM", "gpu": "GPU type"}
_SHAPE = ["llm_type", "n_layers", "hidden_size", "ffn_size", "n_heads", "n_kv_heads", "n_experts"]
MEDIANS = (50, 50)


@dataclass(frozen=True)
class Statistic:
    """The statistic of the latencies that is predicted."""

    percentiles: tuple[int, int] = MEDIANS  #: Of nTTFT and ITL.
    first_token: str = "nttft"  #: As `at_percentile` takes it.


class HeldOutPredictions(NamedTuple):
    """The points of one fold, and their predictions by a fit that has not seen them."""

    fold: str
    points: pd.DataFrame
    """As `at_percentile` returns them, with the lengths that the predictor was given."""
    samples_ms: np.ndarray | None
    """Joint draws of nTTFT and ITL, (draws, rows, 2); None of a predictor that does not draw."""
    predicted: pd.DataFrame  #: `nttft_ms, itl_ms`, and with draws the bounds of the 90% intervals.
    training: pd.DataFrame  #: The points that the fit has seen.
    facts: FactTables  #: Of the LLMs and GPU profiles of both.


def predict_held_out(
    task: Task,
    predictor: str,
    seed: int,
    hold_out: HoldOut = "llm",
    *,
    statistic: Statistic = Statistic(),
    n_jobs: int = 1,
    progress: Callable[[str], None] | None = None,
) -> list[HeldOutPredictions]:
    """Predict every point from the points of other LLMs, GPU types, engines or engine versions.

    LLMs of one architecture are one LLM here: DeepSeek-R1 and V3, or one LLM in two precisions, say
    nothing new of each other. Left out and counted are points without any latency, and points whose
    users are neither stated nor follow from their request rate. The result does not depend on
    `n_jobs`, the number of processes.

    Raises InputError: there is too little to hold out, or the predictor needs references.
    """
    points = _usable_points(task, predictor, statistic, progress)
    folds = list(held_out_folds(points, task, hold_out))

    architectures = _architectures(points, task)
    least = predictor_class(predictor).min_training_llms
    left = min((architectures[~rows].nunique() for _, rows in folds), default=0)
    if len(folds) < 2 or left < least:
        present = plural(len(folds), _HELD_OUT.get(hold_out, hold_out.replace("_", " ")))
        lack = f"{left} LLMs are left without one of them; " if len(folds) > 1 else ""
        problem = f"{lack}{predictor} needs {least} LLMs or more to learn from"
        fix = "name another --source beside it, or hold out something else (--hold-out)"
        raise InputError(f"the points are of {present}: {problem}", field="--hold-out", fix=fix)

    jobs = (
        partial(predict_rows, task, points, fold, rows, predictor, seed, statistic.percentiles)
        for fold, rows in folds
    )
    predictions: list[HeldOutPredictions] = []
    for fold_predictions in results_of(jobs, n_jobs):
        predictions.append(fold_predictions)
        if progress:
            number = f"fold {len(predictions)} of {len(folds)}"
            progress(f"{predictor}: {number} ({fold_predictions.fold})")
    return predictions


def _usable_points(
    task: Task, predictor: str, statistic: Statistic, progress: Callable[[str], None] | None
) -> pd.DataFrame:
    """Return the points with a latency and users; InputError where the predictor needs more."""
    if predictor_class(predictor).uses_references:
        fix = "judge it on SLOs (--slos), or use another predictor"
        problem = f"{predictor} needs reference measurements"
        raise InputError(problem, field="--predictor", fix=fix)
    points = at_percentile(task.points, statistic.percentiles, statistic.first_token)
    usable = points[is_usable(points)].reset_index(drop=True)
    if progress and len(usable) < len(points):
        n_left_out = len(points) - len(usable)
        progress(f"{n_left_out} of {len(points)} points have no latency or load: left out")

    missing = usable[TARGETS].isna().any(axis=1).sum()
    if missing and not draws_samples(predictor):
        problem = f"{predictor} needs TTFT and ITL; {missing} of {len(usable)} points lack one"
        fix = "judge roofline, or measure both"
        raise InputError(problem, field="--predictor", fix=fix)
    return usable


def held_out_folds(
    points: pd.DataFrame, task: Task, hold_out: HoldOut
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each fold's name and which rows it holds out."""
    if hold_out == "llm":
        named = _architectures(points, task)
    elif hold_out == "gpu":
        gpus = {name: profile.gpu.gpu_id for name, profile in task.facts.profiles.items()}
        named = points["gpu_profile_id"].map(gpus)
    elif hold_out == "engine":
        named = points["engine"].fillna("unknown")
    else:
        versions = points["engine"].fillna("") + " " + points["engine_version"].fillna("")
        named = versions.str.strip()
    for name in sorted(named.unique()):
        yield name, (named == name).to_numpy()


def _architectures(points: pd.DataFrame, task: Task) -> pd.Series:
    """Return the name of the first LLM of each row's architecture."""
    first: dict[Hashable, str] = {}
    shape = attrgetter(*_SHAPE, "vocab_size")
    named = {
        llm_id: first.setdefault(shape(task.facts.llms[llm_id]), llm_id)
        for llm_id in sorted(points["llm_id"].unique())
    }
    return points["llm_id"].map(named)


def predict_rows(
    task: Task,
    points: pd.DataFrame,
    fold: str,
    rows: np.ndarray,
    predictor: str,
    seed: int,
    percentiles: tuple[int, int],
) -> HeldOutPredictions:
    """Return the rows of a fold, predicted by a fit on all other points (`at_percentile`)."""
    training, held_out = points[~rows], points[rows]
    fitted_to = training
    if not task.has_fixed_lengths:
        fitted_to, held_out = share_lengths(training, held_out)

    # No limits are judged; predictors that learn to be accurate near them are so at the medians.
    medians_ms = fitted_to[TARGETS].median()
    limits: dict[str, Any] = medians_ms[medians_ms > 0].to_dict()
    limits["nttft_percentile"], limits["itl_percentile"] = percentiles
    slo = SLO("held-out", users=1, **limits)
    model = predictor_class(predictor)(slo, task.facts.profiles, seed)
    design = model.design(pd.concat([fitted_to, held_out]), task.facts)
    n = len(fitted_to)
    model.fit(TrainingRows(design.iloc[:n], fitted_to[[*TARGETS, "throughput_tok_s"]]))
    X = design.iloc[n:]
    if not isinstance(model, JointPredictor):
        return HeldOutPredictions(fold, held_out, None, model.predict(X), training, task.facts)

    samples_ms = model.sample(X)
    predicted = Draws(X, samples_ms).summary()
    joules = model.energy(fitted_to, held_out, task.facts, samples_ms[..., 1])
    predicted = predicted if joules is None else predicted.join(joules)
    return HeldOutPredictions(fold, held_out, samples_ms, predicted, training, task.facts)
