"""Judge a predictor on LLMs it never saw: leave one LLM out, recommend, compare with the truth."""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.decide.decision import choose, measured_draws, weigh, with_probabilities
from sextant.decide.sizing import candidates, recommend_cheapest
from sextant.facts.slo import SLO
from sextant.judge.accuracy import HeldOutPredictions, Statistic, predict_held_out
from sextant.judge.configurations import fit_result, separate_configurations
from sextant.judge.folds import FitResult, fit_folds
from sextant.judge.score import (
    LatencyErrors,
    best_policy,
    mape,
    score_recommendation,
    summarize,
)
from sextant.judge.task import Task
from sextant.points import frame
from sextant.points.frame import IDENTIFIERS, TARGETS
from sextant.predict.predictor import (
    MEASURED,
    STATIC_POLICY,
    check_predictors,
    configurable,
    predictor_class,
    reference_profiles,
)

logger = logging.getLogger(__name__)

# Names and types of the columns that each frame has after its three leading names.
_FLOAT = "float64"
_TEXT = "str"
_PREDICTION = {
    **dict.fromkeys(IDENTIFIERS, _TEXT),
    "users": "int64",
    **dict.fromkeys([*TARGETS, "nttft_lo_ms", "nttft_hi_ms", "itl_lo_ms", "itl_hi_ms"], _FLOAT),
    "fold": _TEXT,
}
_RECOMMENDATION = {
    **dict.fromkeys(IDENTIFIERS, _TEXT),
    **dict.fromkeys(["replicas", "users_per_replica"], "Int64"),
    "usd_per_hour": _FLOAT,
    "is_success": "boolean",
    **dict.fromkeys(["overspend", "probability_met"], _FLOAT),
}
_SCORE = {
    "n_llms": "int64",
    **dict.fromkeys(["success_rate", "overspend", "so_score", "fit_seconds"], _FLOAT),
    "n_left_out": "int64",
    **dict.fromkeys(["mape_nttft", "mape_itl"], _FLOAT),
    "n_unused_points": "int64",
    "note": _TEXT,
}


class Evaluation(NamedTuple):
    """The results of one predictor; every frame starts `source, slo_id, predictor`."""

    predictions: pd.DataFrame  #: Columns of the store's table `prediction`.
    candidates: pd.DataFrame
    """Columns of `decide.sizing.candidates`; of measured ones `probability_met` too."""
    recommendations: pd.DataFrame  #: Columns of the store's table `recommendation`.
    scores: pd.DataFrame
    """Columns of the store's table `score`, and `n_left_out` (measured LLMs that no profile truly
    serves), `mape_nttft` and `mape_itl` (fractions over all held-out points), `n_unused_points`
    (points without a latency) and `note` (why there is no score). SLOs that share a fit each state
    its whole `fit_seconds`."""

    def named(self, source: str, slo_id: str, predictor: str) -> Self:
        """Return the frames with the three leading columns."""
        names = {"source": source, "slo_id": slo_id, "predictor": predictor}
        return type(self)(
            *(
                pd.concat([pd.DataFrame(names, index=rows.index, dtype=_TEXT), rows], axis=1)
                for rows in self
            )
        )


Fit = Callable[[SLO], FitResult]
"""Fits a predictor for one SLO, on all folds of a task."""


def fit_of(
    task: Task,
    predictor: str,
    seed: int,
    *,
    n_jobs: int = 1,
    progress: Callable[[str], None] | None = None,
    hold_out: Callable[[Statistic], list[HeldOutPredictions]] | None = None,
) -> Fit:
    """Return how a predictor is fitted on a task; arguments are as of `evaluate_predictor`.

    `hold_out` takes the place of `predict_held_out` of this task.
    """
    log = progress or logger.info

    def fit(slo: SLO) -> FitResult:
        if not task.has_fixed_lengths:
            return fit_folds(task, slo, predictor, seed, n_jobs, log)
        start = time.monotonic()
        statistic = Statistic(slo.percentiles, slo.first_token)
        if hold_out:
            held_out = hold_out(statistic)
        else:
            held_out = predict_held_out(
                task, predictor, seed, statistic=statistic, n_jobs=n_jobs, progress=log
            )
        return fit_result(held_out, time.monotonic() - start)

    return fit


def fit_key(predictor: str, slo: SLO) -> tuple[Any, ...]:
    """Return what of an SLO a fit depends on: SLOs with the same share it."""
    shared = (getattr(slo, name) for name in predictor_class(predictor).depends_on)
    return (*shared, *slo.lengths.items())


def evaluate_predictor(
    task: Task,
    slos: Sequence[SLO],
    predictor: str,
    seed: int,
    *,
    n_jobs: int = 1,
    progress: Callable[[str], None] | None = None,
    fit: Fit | None = None,
) -> Evaluation:
    """Evaluate a predictor by leave-one-LLM-out and recommend for LLMs without points.

    Each measured LLM is held out in turn (`fold` is its name) and predicted from the others,
    on every profile of this source that is feasible for it, at every user count of the
    training points; hyperparameters are chosen on the others too. A predictor that takes
    reference measurements gets the truth on the two reference profiles, also in place of
    its predictions there. LLMs without a latency are predicted from all measured ones. With
    too few measured LLMs frames are empty and `scores` carries a `note`; `measured` needs
    none. `static_policy` is the one exception: it is chosen in hindsight.

    Args:
        task: the points.
        slos: what is recommended for.
        predictor: one of `configurable()`, or `measured`.
        seed: of the predictor.
        n_jobs: number of processes; the results do not depend on it.
        progress: gets a line for each step, in place of the log.
        fit: takes the place of `fit_of` this task.

    Raises InputError: unknown predictor, LLM or profile, or ambiguous points; a library is missing.
    """
    check_predictors([predictor], [MEASURED, *configurable()])
    if not slos:
        raise InputError("there is no SLO", fix="add a row to the sheet of SLOs")
    options = separate_configurations(task) if task.has_fixed_lengths else task
    options.check_points()
    fit = fit or fit_of(task, predictor, seed, n_jobs=n_jobs, progress=progress)

    fits: dict[tuple[Any, ...], FitResult] = {}
    parts = []
    for slo in slos:
        slo_task = options.for_slo(slo)
        if predictor == MEASURED:
            part = _recommend_measured(slo_task, slo, seed)
        elif predictor == STATIC_POLICY:
            part = _recommend_policy(slo_task, slo)
        else:
            key = fit_key(predictor, slo)
            if key not in fits:
                fits[key] = fit(slo)
            part = _recommend_predicted(slo_task, slo, predictor, fits[key])
        parts.append(part.named(task.source, slo.slo_id, predictor))
    return Evaluation(*(pd.concat(same, ignore_index=True) for same in zip(*parts, strict=True)))


class _Truth(NamedTuple):
    """What was measured at one percentile, and what follows from it."""

    latencies: pd.DataFrame
    points: pd.DataFrame  #: Rows with a latency.
    candidates: pd.DataFrame  #: Of the LLMs that have points.
    optimum: pd.DataFrame


def _truth(
    task: Task, slo: SLO, feasible: Collection[frame.Pair], *, with_failures: bool = False
) -> _Truth:
    """Return the optimum by the measured latencies.

    Predictors predict latencies and are judged on latencies alone, as in LLM-Pilot; failed requests
    count (`with_failures`) where the measurements themselves are recommended.
    """
    latencies = frame.judged(task.points, slo)
    if not with_failures:
        latencies["failed_share"] = np.nan
    # A measured pair runs, whatever memory facts say.
    pairs = {*feasible, *latencies[IDENTIFIERS].itertuples(index=False, name=None)}
    llm_ids = sorted(latencies["llm_id"].unique())
    options = candidates(latencies, llm_ids, task.facts.profiles, slo, pairs)
    points = latencies[frame.has_latency(latencies)]
    return _Truth(latencies, points, options, recommend_cheapest(options))


class _FitNotes(NamedTuple):
    """What a score says of the fit; None: nothing."""

    fit_seconds: float | None = None
    errors: LatencyErrors | None = None
    note: str | None = None  #: Why there is no score.


def _recommend_measured(task: Task, slo: SLO, seed: int) -> Evaluation:
    """Recommend straight from the measured latencies."""
    allowed = {*task.feasible, *task.served} - set(task.failed)
    truth = _truth(task, slo, allowed, with_failures=True)
    draws = measured_draws(truth.latencies, slo, seed)
    options = with_probabilities(truth.candidates, draws, slo)
    truth = truth._replace(candidates=options)
    return _judged(truth, slo, None, options, recommend_cheapest(options), _FitNotes(0.0))


def _recommend_policy(task: Task, slo: SLO) -> Evaluation:
    """Recommend the same to all LLMs, chosen in hindsight."""
    start = time.monotonic()
    truth = _truth(task, slo, task.feasible)
    no_options = truth.candidates.iloc[:0]
    if truth.points.empty:
        note = f"{STATIC_POLICY} is judged from 1 measured LLM on; there are 0"
        return _judged(truth, slo, None, no_options, truth.optimum.iloc[:0], _FitNotes(note=note))

    policy = best_policy(truth.candidates, truth.optimum, slo.load)
    decided = policy.decide(sorted(task.facts.llms))
    # What memory facts rule out becomes a row without a profile.
    pairs = decided[IDENTIFIERS].itertuples(index=False, name=None)
    fits = decided[[pair in task.feasible for pair in pairs]]
    chosen = decided[["llm_id"]].merge(fits, on="llm_id", how="left")
    return _judged(truth, slo, None, no_options, chosen, _FitNotes(time.monotonic() - start))


def _recommend_predicted(task: Task, slo: SLO, predictor: str, outcome: FitResult) -> Evaluation:
    """Recommend by predicted latencies."""
    truth = _truth(task, slo, task.feasible)
    outcome = outcome.of(task.facts.llms)
    kind = predictor_class(predictor)
    latencies = outcome.latencies
    options = truth.candidates.iloc[:0]
    chosen = truth.optimum.iloc[:0]
    errors = None
    if latencies is not None:
        profiles = task.facts.profiles
        options = candidates(latencies, outcome.llm_ids, profiles, slo, task.feasible)
        chosen = recommend_cheapest(options)
        if outcome.draws:  # the best option under the draws; none where memory rules out all
            weighed = pd.concat([weigh(draws, profiles, slo) for draws in outcome.draws])
            best = choose(weighed.reset_index(drop=True))
            chosen = pd.DataFrame({"llm_id": outcome.llm_ids}).merge(best, on="llm_id", how="left")
        if kind.uses_references:  # the given measurements are no predictions
            is_reference = latencies["gpu_profile_id"].isin(reference_profiles(profiles))
            latencies = latencies[~is_reference]
        errors = mape(latencies, truth.points)

    note = None
    if slo.lengths and truth.points.empty:
        note = "no point has requests like those of this SLO"
    elif not outcome.is_judged:
        needed = kind.min_training_llms + 1
        n_present = truth.points["llm_id"].nunique()
        note = f"{predictor} is judged from {needed} measured LLMs on; there are {n_present}"
    notes = _FitNotes(outcome.seconds, errors, note)
    return _judged(truth, slo, outcome.latencies, options, chosen, notes)


def _judged(
    truth: _Truth,
    slo: SLO,
    predictions: pd.DataFrame | None,
    options: pd.DataFrame,
    chosen: pd.DataFrame,
    notes: _FitNotes,
) -> Evaluation:
    """Return the frames of an evaluation, with exactly their columns, null where there is nothing.

    The three leading columns are missing.
    """
    results = score_recommendation(chosen, truth.candidates, truth.optimum, slo.load)
    summary = summarize(results[results["llm_id"].isin(truth.candidates["llm_id"])])
    score = summary._asdict() | (notes.errors._asdict() if notes.errors else {})
    score |= {"fit_seconds": notes.fit_seconds, "note": notes.note}
    score["n_unused_points"] = len(truth.latencies) - len(truth.points)
    stated = {name: value for name, value in score.items() if value is not None}
    return Evaluation(
        predictions=_typed(_PREDICTION, predictions),
        candidates=options,
        recommendations=_typed(_RECOMMENDATION, results),
        scores=_typed(_SCORE, [stated]),
    )


def _typed(
    types: Mapping[str, str], rows: pd.DataFrame | list[dict[str, Any]] | None
) -> pd.DataFrame:
    """Return rows with exactly these columns."""
    return pd.DataFrame(rows, columns=list(types)).astype(dict(types))
