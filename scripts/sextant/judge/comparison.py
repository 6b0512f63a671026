"""Compare predictors on a characterization: their scores on SLOs, their accuracy on points."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd

from sextant.base.errors import InputError
from sextant.base.files import frame_rows
from sextant.facts.slo import SLO, load_slos
from sextant.judge.accuracy import (
    HeldOutPredictions,
    HoldOut,
    Statistic,
    accuracy,
    predict_held_out,
    prediction_table,
)
from sextant.judge.evaluate import evaluate_predictor
from sextant.judge.random_slos import random_slos
from sextant.judge.task import Task, task_of_characterization
from sextant.points.characterization import Characterization
from sextant.predict.registry import (
    PREDICTOR,
    STATIC_POLICY,
    check_installed,
    configurable,
    draws_samples,
)
from sextant.predict.tuning import ALL_CPUS

_MEANS = ("so_score", "success_rate", "overspend", "mape_nttft", "mape_itl")


@dataclass(frozen=True)
class Comparison:
    """How good predictors are."""

    predictors: list[dict[str, Any]]
    """One row per predictor: means over the SLOs, and `judge.accuracy.accuracy`."""
    scenarios: list[dict[str, Any]]
    """One row per predictor and SLO, as `Evaluation.scores`."""
    left_out: list[str]
    """Which LLMs of a folder are not judged, and why."""

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the parts by name, as JSON has them."""
        return dict(vars(self))


def evaluate_predictors(
    characterization: Characterization,
    slos: Path | int | None,
    predictors: Sequence[str] | None,
    seed: int,
    *,
    hold_out: HoldOut = "llm",
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Judge predictors by leave-one-LLM-out: on every SLO, and on every point.

    A mean over SLOs leaves out SLOs without a value, e.g. where no recommendation succeeded. With
    SLOs the accuracy on points is that of predictors that draw.

    Args:
        characterization: the points.
        slos: a sheet, or how many to draw at random (`random_slos`); None: only the accuracy on the
            points is judged.
        predictors: their names; by default those that the store has scores of.
        seed: of predictors and random SLOs.
        hold_out: what a fold has not seen where the accuracy is judged.
        progress: gets a line for each step.
    """
    # Not all that there are: some take many minutes.
    names = list(dict.fromkeys(predictors or ())) or [
        name for name in configurable() if name in (characterization.predictors or [PREDICTOR])
    ]
    _check_names(names, has_slos=slos is not None)
    task = task_of_characterization(characterization)

    @cache  # SLOs and accuracy may ask the same
    def held_out(name: str, fold: HoldOut, statistic: Statistic) -> list[HeldOutPredictions]:
        return predict_held_out(
            task, name, seed, fold, statistic=statistic, n_jobs=ALL_CPUS, progress=progress
        )

    rows: list[dict[str, Any]] = [{"predictor": name} for name in names]
    scenarios: list[dict[str, Any]] = []
    if slos is not None:
        targets = _slos(slos, task, seed)
        evaluations = (
            evaluate_predictor(
                task,
                targets,
                name,
                seed,
                n_jobs=ALL_CPUS,
                progress=progress,
                hold_out=partial(held_out, name, "llm"),
            )
            for name in names
        )
        scores = pd.concat(evaluation.scores for evaluation in evaluations)
        rows = frame_rows(_means(scores).reset_index())
        scenarios = frame_rows(scores)

    # Where all requests of a point are alike, TTFT is what a limit on TTFT is compared with.
    medians = Statistic(first_token="ttft" if task.has_fixed_lengths else "nttft")
    for row in rows:
        if slos is None or draws_samples(row["predictor"]):
            row |= accuracy(prediction_table(held_out(row["predictor"], hold_out, medians)))
    return Comparison(rows, scenarios, list(characterization.left_out))


def _check_names(names: Sequence[str], *, has_slos: bool) -> None:
    """Raise InputError where a predictor is unknown, cannot be judged so, or lacks a library."""
    for name in names:
        if name not in configurable():
            fix = f"use one of {', '.join(configurable())}"
            raise InputError(f"unknown predictor {name!r}", field="--predictor", fix=fix)
        if name == STATIC_POLICY and not has_slos:
            problem = f"{name} predicts no latencies"
            raise InputError(problem, field="--predictor", fix="judge it on SLOs (--slos)")
    check_installed(names, "--predictor")


def _slos(slos: Path | int, task: Task, seed: int) -> list[SLO]:
    """Return the SLOs of a sheet, or random ones."""
    if isinstance(slos, int):
        return random_slos(task, slos, seed)
    # For the traffic of a trace predictors say nothing that could be judged.
    return [slo for slo in load_slos(slos).values() if slo.trace_id is None]


def _means(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the means of scores over the SLOs, by predictor."""
    return scores.groupby("predictor", sort=False).agg(
        **{name: (name, "mean") for name in _MEANS},
        n_scenarios=("slo_id", "size"),
        # SLOs that share a fit state the same number: it was spent once.
        fit_seconds=("fit_seconds", lambda seconds: seconds.drop_duplicates().sum()),
    )
