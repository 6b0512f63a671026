"""Scores of predictors on a sheet of SLOs, from a characterization."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd

from sextant.base.errors import InputError
from sextant.base.files import frame_rows
from sextant.facts.slo import load_slos
from sextant.judge import accuracy
from sextant.judge.accuracy import MEDIANS, HeldOutPredictions, HoldOut
from sextant.judge.evaluate import evaluate_predictor
from sextant.judge.random_slos import random_slos
from sextant.judge.task import task_of_characterization
from sextant.points.characterization import Characterization
from sextant.predict.registry import (
    PREDICTOR,
    STATIC_POLICY,
    check_installed,
    configurable,
    draws_samples,
)
from sextant.predict.tuning import ALL_CPUS


def evaluate_predictors(
    known: Characterization,
    slos: Path | int | None,
    predictors: Sequence[str] | None,
    seed: int,
    *,
    hold_out: HoldOut = "llm",
    progress: Callable[[str], None] | None = None,
) -> dict[str, list[Any]]:
    """Judge predictors by leave-one-LLM-out: on every SLO, and on every point.

    `slos` is a sheet, or how many to draw at random (`random_slos`); without it only the accuracy
    on the points is judged, where a fold has not seen `hold_out`. `predictors` are those that the
    store has scores of by default. `progress` gets a line for each step.

    Returns `predictors`, means over the SLOs and the accuracy (`predict.accuracy.accuracy`), one
    row per predictor; `scenarios`, one row per predictor and SLO; `left_out`, which LLMs of a
    folder are not judged, and why. A mean leaves out SLOs without a value, e.g. where no
    recommendation succeeded. With SLOs, accuracy is that of predictors that draw.
    """
    # Not all that there are: some take many minutes.
    names = list(dict.fromkeys(predictors or ())) or [
        name for name in configurable() if name in (known.predictors or [PREDICTOR])
    ]
    for name in names:
        problem = fix = ""
        if name not in configurable():
            problem, fix = f"unknown predictor {name!r}", f"use one of {', '.join(configurable())}"
        elif name == STATIC_POLICY and slos is None:
            problem, fix = f"{name} predicts no latencies", "judge it on SLOs (--slos)"
        if problem:
            raise InputError(problem, field="--predictor", fix=fix)
    check_installed(names, "--predictor")
    task = task_of_characterization(known)
    result: dict[str, list[Any]] = {
        "predictors": [{"predictor": name} for name in names],
        "scenarios": [],
        "left_out": list(known.left_out),
    }

    @cache  # SLOs and accuracy may ask the same
    def held_out(name: str, fold: HoldOut, **asked: Any) -> list[HeldOutPredictions]:
        asked |= {"n_jobs": ALL_CPUS, "progress": progress}
        return accuracy.predict_held_out(task, name, seed, fold, **asked)

    if slos is not None:
        if isinstance(slos, int):
            targets = random_slos(task, slos, seed)
        else:  # for the traffic of a trace predictors say nothing that could be judged
            targets = [slo for slo in load_slos(slos).values() if slo.trace_id is None]
        judge = partial(
            evaluate_predictor, task, targets, seed=seed, n_jobs=ALL_CPUS, progress=progress
        )
        folds = {name: partial(held_out, name, "llm") for name in names}
        scores = pd.concat(judge(predictor=name, hold_out=folds[name]).scores for name in names)
        means = ("so_score", "success_rate", "overspend", "mape_nttft", "mape_itl")
        by_predictor = scores.groupby("predictor", sort=False).agg(
            **{name: (name, "mean") for name in means},
            n_scenarios=("slo_id", "size"),
            # SLOs that share a fit state the same number: it was spent once.
            fit_seconds=("fit_seconds", lambda seconds: seconds.drop_duplicates().sum()),
        )
        rows = frame_rows(by_predictor.reset_index())
        result |= {"predictors": rows, "scenarios": frame_rows(scores)}
    for row in result["predictors"]:
        if slos is not None and not draws_samples(row["predictor"]):
            continue
        # Where all requests of a point are alike, TTFT is what a limit on TTFT is compared with.
        first = "ttft" if task.has_fixed_lengths else "nttft"
        found = held_out(row["predictor"], hold_out, percentiles=MEDIANS, first_token=first)
        row |= accuracy.accuracy(accuracy.prediction_table(found))
    return result
