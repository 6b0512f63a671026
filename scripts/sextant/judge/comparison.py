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
    predict_held_out,
)
from sextant.judge.evaluate import evaluate_predictor, fit_of
from sextant.judge.figures import GroupFigures, accuracy, group_figures, prediction_table
from sextant.judge.random_slos import random_slos
from sextant.judge.score import mean_scores
from sextant.judge.task import Task, task_of_characterization
from sextant.law.plausible import set_aside_note
from sextant.points.characterization import Characterization
from sextant.predict.predictor import (
    PREDICTOR,
    STATIC_POLICY,
    check_predictors,
    configurable,
    draws_samples,
)
from sextant.predict.tuning import ALL_CPUS


@dataclass(frozen=True)
class Comparison:
    """How good predictors are."""

    predictors: list[dict[str, Any]]
    """One row per predictor: means over the SLOs, and `judge.figures.accuracy`."""
    scenarios: list[dict[str, Any]]
    """One row per predictor and SLO, as `Evaluation.scores`."""
    groups: dict[str, list[GroupFigures]]
    """By predictor: its accuracy by engine and by how well the deployment is known."""
    left_out: list[str]
    """Which LLMs of a folder are not judged, and which points cannot be."""
    hold_out: HoldOut = "llm"
    """What a fold has not seen where the accuracy is judged."""

    def to_dict(self) -> dict[str, Any]:
        """Return the parts by name, as JSON has them."""
        groups = [
            {"predictor": name, **figures.to_dict()}
            for name, judged in self.groups.items()
            for figures in judged
        ]
        return dict(vars(self)) | {"groups": groups}


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
        predictors: their names; by default the ones that the store has scores of.
        seed: of predictors and random SLOs.
        hold_out: what a fold has not seen where the accuracy is judged.
        progress: gets a line for each step.
    """
    names = _judged_names(characterization, predictors)
    if slos is None and STATIC_POLICY in names:
        problem = f"{STATIC_POLICY} predicts no latencies"
        raise InputError(problem, field="--predictor", fix="judge it on SLOs (--slos)")
    task = task_of_characterization(characterization)

    @cache  # SLOs and accuracy may ask the same
    def held_out(name: str, fold: HoldOut, statistic: Statistic) -> list[HeldOutPredictions]:
        return predict_held_out(
            task, name, seed, fold, statistic=statistic, n_jobs=ALL_CPUS, progress=progress
        )

    rows: list[dict[str, Any]] = [{"predictor": name} for name in names]
    scenarios: list[dict[str, Any]] = []
    if slos is not None:
        fits = {
            name: fit_of(
                task,
                name,
                seed,
                n_jobs=ALL_CPUS,
                progress=progress,
                hold_out=partial(held_out, name, "llm"),
            )
            for name in names
        }
        judged_slos = _judged_slos(slos, task, seed)
        evaluations = (
            evaluate_predictor(task, judged_slos, name, seed, fit=fits[name]) for name in names
        )
        scores = pd.concat(evaluation.scores for evaluation in evaluations)
        rows = frame_rows(mean_scores(scores).reset_index())
        scenarios = frame_rows(scores)

    # Where all requests of a point are alike, TTFT is what a limit on TTFT is compared with.
    medians = Statistic(first_token="ttft" if task.has_fixed_lengths else "nttft")
    groups: dict[str, list[GroupFigures]] = {}
    set_aside: list[str] = []
    for row in rows:
        name = row["predictor"]
        if slos is None or draws_samples(name):
            table = prediction_table(held_out(name, hold_out, medians))
            row |= accuracy(table)
            groups[name] = group_figures(table)
            set_aside = set_aside_note(table.loc[table["is_impossible"], "llm_id"])
    left_out = [*characterization.left_out, *set_aside]
    return Comparison(rows, scenarios, groups, left_out, hold_out)


def _judged_names(
    characterization: Characterization, predictors: Sequence[str] | None
) -> list[str]:
    """Return the predictors to judge. Raises InputError for a name that no predictor has."""
    names = list(dict.fromkeys(predictors or ()))
    if not names:  # Not all that there are: some take many minutes.
        scored = characterization.predictors or [PREDICTOR]
        names = [name for name in configurable() if name in scored]
    check_predictors(names, configurable(), "--predictor")
    return names


def _judged_slos(slos: Path | int, task: Task, seed: int) -> Sequence[SLO]:
    """Return the SLOs of a sheet, or as many random ones."""
    if isinstance(slos, int):
        return random_slos(task, slos, seed)
    # For the traffic of a trace predictors say nothing that could be judged.
    return [slo for slo in load_slos(slos).values() if slo.trace_id is None]
