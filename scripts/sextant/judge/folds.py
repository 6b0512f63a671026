"""Fit a predictor fold by fold: hold each LLM out, predict it from the others."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple, Self

import pandas as pd

from sextant.facts.slo import SLO
from sextant.judge.task import Task
from sextant.points.frame import (
    KEYS,
    LENGTHS,
    SERVING,
    TARGETS,
    FactTables,
    at_percentile,
    has_latency,
    served_as_most,
)
from sextant.predict.predictor import (
    Draws,
    JointPredictor,
    PointPredictor,
    Settings,
    TrainingRows,
    predictor_class,
    reference_profiles,
)
from sextant.predict.tuning import Tunable, choose_nested, results_of

ALL = "all"
"""The fold that trains on every measured LLM, for LLMs without a latency."""


class FitResult(NamedTuple):
    """The outcome of all folds of one fit."""

    llm_ids: list[str]  #: The predicted LLMs.
    latencies: pd.DataFrame | None
    """`llm_id, gpu_profile_id, users, input_tokens, output_tokens, nttft_ms, itl_ms, fold`; with
    draws the medians, and the bounds of their intervals. None: too few LLMs were measured."""
    is_judged: bool  #: Whether measured LLMs were held out.
    seconds: float | None
    draws: Sequence[Draws]
    """Of a predictor that draws: one for each fold with anything to predict."""

    def of(self, llm_ids: Collection[str]) -> Self:
        """Return the results of these LLMs."""
        if self.latencies is None or all(name in llm_ids for name in self.llm_ids):
            return self
        kept = [draws.of(draws.X["llm_id"].isin(llm_ids).to_numpy()) for draws in self.draws]
        return self._replace(
            llm_ids=[name for name in self.llm_ids if name in llm_ids],
            latencies=self.latencies[self.latencies["llm_id"].isin(llm_ids)],
            draws=[draws for draws in kept if len(draws.X)],
        )


def design_rows(
    predictor: PointPredictor | JointPredictor, points: pd.DataFrame, facts: FactTables
) -> TrainingRows:
    """Return points at one percentile (`at_percentile`) as a predictor takes them."""
    X = predictor.design(points[[*KEYS, *LENGTHS, *SERVING]], facts)
    return TrainingRows(X, points[[*TARGETS, "throughput_tok_s"]])


def share_lengths(
    training: pd.DataFrame, held_out: pd.DataFrame, lengths: Mapping[str, float] | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Give all rows the lengths of the workload: medians over the training rows.

    The mean length of a single point depends on the requests that it could answer, which are not
    known for a new LLM. The rows to predict may have other `lengths`.
    """
    shared = training[LENGTHS].median()
    return training.assign(**shared), held_out.assign(**(lengths or shared))


def fit_folds(
    task: Task, slo: SLO, predictor: str, seed: int, n_jobs: int, progress: Callable[[str], None]
) -> FitResult:
    """Fit a predictor for one SLO, once for each LLM held out and for all unseen ones.

    With too few measured LLMs the outcome names none. Arguments are those of `evaluate_predictor`.
    """
    start = time.monotonic()
    make = partial(predictor_class(predictor), slo, task.facts.profiles, seed)
    points = at_percentile(task.points, slo.percentiles, slo.first_token)
    usable = points[has_latency(points)]
    measured = sorted(usable["llm_id"].unique())
    least = make().min_training_llms
    # The LLMs to predict from all others, by fold; only where enough LLMs remain to train on.
    folds = {llm_id: [llm_id] for llm_id in measured if len(measured) > least}
    unseen = sorted(set(task.facts.llms) - set(measured))
    if unseen and len(measured) >= least:
        folds[ALL] = unseen
    is_judged = len(folds) > 1

    def report(step: str) -> None:
        progress(f"{predictor}, {slo.slo_id}: {step}")

    settings: dict[str, Settings] = {}
    if is_judged and isinstance(model := make(), Tunable):
        settings = choose_nested(model, design_rows(model, usable, task.facts), n_jobs, report)
    jobs = (
        partial(_predict, make(), settings.get(name), usable, llm_ids, task, slo)
        for name, llm_ids in folds.items()
    )
    predicted = []
    draws = []
    finished = results_of(jobs, n_jobs)
    for number, (name, (frame, drawn)) in enumerate(zip(folds, finished, strict=True), 1):
        report(f"fold {number} of {len(folds)} ({name})")
        predicted.append(frame.assign(fold=name))
        draws += [drawn] if drawn else []
    return FitResult(
        llm_ids=[llm_id for llm_ids in folds.values() for llm_id in llm_ids],
        latencies=pd.concat(predicted, ignore_index=True) if predicted else None,
        is_judged=is_judged,
        seconds=time.monotonic() - start if folds else None,
        draws=draws,
    )


def _predict(
    model: PointPredictor | JointPredictor,
    settings: Settings | None,
    usable: pd.DataFrame,
    llm_ids: Collection[str],
    task: Task,
    slo: SLO,
) -> tuple[pd.DataFrame, Draws | None]:
    """Return `KEYS` and latencies of a fold's LLMs on all feasible profiles, and their draws."""
    is_held_out = usable["llm_id"].isin(llm_ids)
    others = usable[~is_held_out]
    profile_ids = sorted(task.points["gpu_profile_id"].unique())
    every_key = product(llm_ids, profile_ids, sorted(others["users"].unique()))
    offered = pd.DataFrame([key for key in every_key if key[:2] in task.feasible], columns=KEYS)
    training, held_out = share_lengths(others, offered, slo.lengths)
    keys = held_out[[*KEYS, *LENGTHS]]
    if held_out.empty:  # memory facts rule out every profile
        return keys.assign(**dict.fromkeys(TARGETS, pd.Series(dtype="float64"))), None

    held_out = held_out.assign(**served_as_most(training))
    learned = design_rows(model, training, task.facts)
    X = model.design(held_out, task.facts)
    model.settings = settings
    on_references = usable["gpu_profile_id"].isin(reference_profiles(task.facts.profiles))
    is_of_slo = slo.is_of(usable[LENGTHS].to_numpy(float))
    references = usable[is_held_out & on_references & is_of_slo]
    model.fit(
        learned, design_rows(model, references, task.facts) if model.uses_references else None
    )
    if isinstance(model, JointPredictor):
        draws = Draws(keys, model.sample(X))
        return keys.join(draws.summary()), draws
    predicted = keys.join(model.predict(X)[TARGETS].astype("float64")).set_index(KEYS)
    if model.uses_references:
        predicted.update(references[[*KEYS, *TARGETS]].set_index(KEYS))
    return predicted.reset_index(), None
