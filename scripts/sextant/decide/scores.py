"""Scores of predictors on a sheet of SLOs, from a characterization."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from sextant.base.errors import InputError
from sextant.base.rows import frame_rows
from sextant.decide.evaluate import evaluate
from sextant.decide.tasks import task_of_characterization
from sextant.facts.slo import load_slos
from sextant.points.characterization import Characterization
from sextant.predict.accuracy import (
    MEDIANS,
    HeldOut,
    HoldOut,
    accuracy,
    predict_held_out,
    prediction_table,
)
from sextant.predict.folds import Task
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
    slos: Path | None,
    predictors: Sequence[str] | None,
    seed: int,
    *,
    hold_out: HoldOut = "llm",
    progress: Callable[[str], None] | None = None,
) -> dict[str, list[Any]]:
    """Judge predictors by leave-one-LLM-out: on every SLO of a sheet, and on every point.

    Args:
        known: the points.
        slos: the sheet; without it only the accuracy on the points is judged.
        predictors: their names; those that the store has scores of by default.
        seed: seed of the training.
        hold_out: what a fold has not seen where accuracy is judged; SLOs hold out LLMs.
        progress: called with a line for each step.

    Returns:
        `predictors`: means over the SLOs and the accuracy (`predict.accuracy.accuracy`), one row
        per predictor; `scenarios`: one row per predictor and SLO; `left_out`: which LLMs of a
        folder are not judged, and why. A mean leaves out SLOs without a value, e.g. where no
        recommendation succeeded. With SLOs, accuracy is that of predictors that draw.
    """
    # Not all that there are: some take many minutes.
    names = list(dict.fromkeys(predictors or ())) or [
        name for name in configurable() if name in (known.predictors or [PREDICTOR])
    ]
    _check_names(names, has_slos=slos is not None)
    check_installed(names, "--predictor")
    task = task_of_characterization(known)
    result: dict[str, list[Any]] = {
        "predictors": [{"predictor": name} for name in names],
        "scenarios": [],
        "left_out": list(known.left_out),
    }
    held_out = _remembered()
    if slos is not None:
        # For the traffic of a trace predictors say nothing that could be judged.
        targets = [slo for slo in load_slos(slos).values() if slo.trace_id is None]
        judge = partial(evaluate, task, targets, seed=seed, n_jobs=ALL_CPUS, progress=progress)
        scores = pd.concat(judge(predictor=name, hold_out=held_out).scores for name in names)
        result |= {"predictors": _means(scores), "scenarios": frame_rows(scores)}
    for row in result["predictors"]:
        if slos is not None and not draws_samples(row["predictor"]):
            continue
        name, how = row["predictor"], {"n_jobs": ALL_CPUS, "progress": progress}
        # Where all requests of a point are alike, TTFT is what a limit on TTFT is compared with.
        first = "ttft" if task.has_fixed_lengths else "nttft"
        found = held_out(task, name, seed, hold_out, percentiles=MEDIANS, first_token=first, **how)
        row |= accuracy(prediction_table(found))
    return result


def _remembered() -> Callable[..., list[HeldOut]]:
    """Return `predict_held_out` that fits once for what SLOs and accuracy both ask."""
    known: dict[tuple[Any, ...], list[HeldOut]] = {}

    def predict(
        task: Task, predictor: str, seed: int, hold_out: HoldOut = "llm", **how: Any
    ) -> list[HeldOut]:
        key = (predictor, hold_out, how["percentiles"], how["first_token"])
        if key not in known:
            known[key] = predict_held_out(task, predictor, seed, hold_out, **how)
        return known[key]

    return predict


def _check_names(names: list[str], *, has_slos: bool) -> None:
    for name in names:
        if name not in configurable():
            problem, fix = f"unknown predictor {name!r}", f"use one of {', '.join(configurable())}"
            raise InputError(problem, field="--predictor", fix=fix)
        if name == STATIC_POLICY and not has_slos:
            problem, fix = f"{name} predicts no latencies", "judge it on SLOs (--slos)"
            raise InputError(problem, field="--predictor", fix=fix)


def _means(scores: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the means over the SLOs, one row per predictor."""
    means = scores.groupby("predictor", sort=False).agg(
        so_score=("so_score", "mean"),
        success_rate=("success_rate", "mean"),
        overspend=("overspend", "mean"),
        mape_nttft=("mape_nttft", "mean"),
        mape_itl=("mape_itl", "mean"),
        n_scenarios=("slo_id", "size"),
        # SLOs that share a fit state the same number: it was spent once.
        fit_seconds=("fit_seconds", lambda seconds: seconds.drop_duplicates().sum()),
    )
    return frame_rows(means.reset_index())
