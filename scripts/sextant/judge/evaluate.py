"""Judge a predictor on LLMs it never saw: leave one LLM out, recommend, compare with the truth."""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.decide.decision import choose, measured_draws, weigh, with_probabilities
from sextant.decide.sizing import candidates, check_curves, recommend_cheapest
from sextant.facts.slo import SLO
from sextant.judge.accuracy import HeldOutPredictions, predict_held_out
from sextant.judge.configurations import fit_result, separate_configurations
from sextant.judge.folds import FitResult, fit_folds
from sextant.judge.score import best_policy, mape, score_recommendation, summarize
from sextant.judge.task import Task
from sextant.points import frame
from sextant.points.frame import IDENTIFIERS, LENGTHS, TARGETS
from sextant.predict.predictor import reference_profiles
from sextant.predict.registry import (
    MEASURED,
    STATIC_POLICY,
    check_installed,
    configurable,
    predictor_class,
)

logger = logging.getLogger(__name__)

# Names and types of the columns that each frame has after its three leading names.
_FLOAT, _TEXT = "float64", "str"
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
    """What one predictor did, one frame each; every frame starts `source, slo_id, predictor`.
    `predictions` and `recommendations` have the columns of the store's tables, `candidates` those
    of `decide.sizing.candidates`, measured ones `probability_met` too. `scores` adds to the store's
    columns `n_left_out` (measured LLMs that no profile truly serves), `mape_nttft` and `mape_itl`
    (fractions over all held-out points), `n_unused_points` (points without a latency) and `note`
    (why there is no score). SLOs that share a fit each state its whole `fit_seconds`."""

    predictions: pd.DataFrame
    candidates: pd.DataFrame
    recommendations: pd.DataFrame
    scores: pd.DataFrame


def evaluate_predictor(
    task: Task,
    slos: Sequence[SLO],
    predictor: str,
    seed: int,
    *,
    n_jobs: int = 1,
    progress: Callable[[str], None] | None = None,
    hold_out: Callable[..., list[HeldOutPredictions]] | None = None,
) -> Evaluation:
    """Evaluate a predictor by leave-one-LLM-out and recommend for LLMs without points.

    Each measured LLM is held out in turn (`fold` is its name) and predicted from the others,
    on every profile of this source that is feasible for it, at every user count of the
    training points; hyperparameters are chosen on the others too. A predictor that takes
    reference measurements gets the truth on the two reference profiles, also in place of
    its predictions there. LLMs without a latency are predicted from all measured ones. With
    too few measured LLMs frames are empty and `scores` carries a `note`; `measured` needs
    none. `static_policy` is the one exception: it is chosen in hindsight.

    The `predictor` is one of `configurable()`, or `measured`; results do not depend
    on `n_jobs` processes. `progress` gets a line for each step, in place of the log; `hold_out`
    takes the place of `predict_held_out` of this task, with the same keywords.

    Raises InputError: unknown predictor, LLM or profile, or ambiguous points; a library is missing.
    """
    if predictor not in (names := [MEASURED, *configurable()]):
        fix = f"use one of {', '.join(names)}"
        raise InputError(f"unknown predictor {predictor!r}", field="predictor", fix=fix)
    check_installed([predictor])
    if not slos:
        raise InputError("there is no SLO", fix="add a row to the sheet of SLOs")
    every = separate_configurations(task) if task.has_fixed_lengths else task
    for column, facts in zip(IDENTIFIERS, (every.facts.llms, every.facts.profiles), strict=True):
        for name in every.points[column].unique():
            if name not in facts:
                fix = f"add {name!r} to its sheet or remove its points"
                raise InputError(f"points name the unknown {name!r}", field=column, fix=fix)
    check_curves(every.points)
    fits: dict[tuple[Any, ...], FitResult] = {}
    parts = []
    for slo in slos:
        asked = _of_its_requests(every, slo)
        if predictor == MEASURED:
            part = _recommend_measured(asked, slo, seed)
        elif predictor == STATIC_POLICY:
            part = _recommend_policy(asked, slo)
        else:
            shared = (getattr(slo, name) for name in predictor_class(predictor).depends_on)
            key = (*shared, *slo.lengths.items())
            if key not in fits:
                log = progress or logger.info
                if task.has_fixed_lengths:
                    start = time.monotonic()
                    how: dict[str, Any] = {"n_jobs": n_jobs, "progress": log}
                    ask = hold_out or partial(predict_held_out, task, predictor, seed, **how)
                    found = ask(percentiles=slo.percentiles, first_token=slo.first_token)
                    fits[key] = fit_result(found, time.monotonic() - start)
                else:
                    fits[key] = fit_folds(task, slo, predictor, seed, n_jobs, log)
            part = _recommend_predicted(asked, slo, predictor, fits[key])
        named = {"source": task.source, "slo_id": slo.slo_id, "predictor": predictor}
        parts.append(
            [
                pd.concat([pd.DataFrame(named, index=rows.index, dtype="str"), rows], axis=1)
                for rows in part
            ]
        )
    tables = zip(*parts, strict=True)
    return Evaluation(*(pd.concat(same, ignore_index=True) for same in tables))


def _of_its_requests(task: Task, slo: SLO) -> Task:
    """Return the task with those points alone that can judge an SLO: of requests like its own.
    Raises InputError: there are none, and nothing else is predicted either."""
    is_own = slo.is_of(task.points[LENGTHS].to_numpy(float)) if slo.lengths else None
    if is_own is None or is_own.all():
        return task
    if task.has_fixed_lengths and not is_own.any():
        known = task.points[LENGTHS].dropna().drop_duplicates().sort_values(LENGTHS)
        measured = ", ".join(f"{row[0]:.0f}/{row[1]:.0f}" for row in known.to_numpy())
        asked = " and ".join(f"{value:g} {name}" for name, value in slo.lengths.items())
        problem = f"no point of {task.source} has requests like those of {slo.slo_id}: {asked}"
        fix = f"use lengths that were measured, or leave them out; input/output: {measured}"
        raise InputError(problem, field="input_tokens, output_tokens", fix=fix)
    points = task.points[is_own]
    if not task.has_fixed_lengths:  # LLMs without such a point are predicted
        return replace(task, points=points)
    llms = {name: task.facts.llms[name] for name in points["llm_id"].unique()}
    return replace(task, points=points, facts=task.facts._replace(llms=llms))


class _Truth(NamedTuple):
    """What was measured at one percentile, and what follows from it."""

    latencies: pd.DataFrame
    points: pd.DataFrame  # those with a latency
    candidates: pd.DataFrame  # of the LLMs that have points
    optimum: pd.DataFrame


def _truth(
    task: Task, slo: SLO, feasible: Collection[frame.Pair], *, with_failures: bool = False
) -> _Truth:
    """Return the optimum by the measured latencies. Predictors predict latencies and are judged on
    them, as in LLM-Pilot; what was measured is recommended with its failures counted."""
    latencies = frame.judged(task.points, slo)
    if not with_failures:
        latencies["failed_share"] = np.nan
    # A measured pair runs, whatever memory facts say.
    pairs = {*feasible, *latencies[IDENTIFIERS].itertuples(index=False, name=None)}
    llm_ids = sorted(latencies["llm_id"].unique())
    found = candidates(latencies, llm_ids, task.facts.profiles, slo, pairs)
    return _Truth(
        latencies, latencies[frame.has_latency(latencies)], found, recommend_cheapest(found)
    )


def _recommend_measured(task: Task, slo: SLO, seed: int) -> tuple[pd.DataFrame, ...]:
    allowed = {*task.feasible, *task.served} - set(task.failed)
    truth = _truth(task, slo, allowed, with_failures=True)
    draws = measured_draws(truth.latencies, slo, seed)
    found = with_probabilities(truth.candidates, draws, slo)
    truth = truth._replace(candidates=found)
    return _judged(truth, slo, None, found, recommend_cheapest(found), {"fit_seconds": 0.0})


def _recommend_policy(task: Task, slo: SLO) -> tuple[pd.DataFrame, ...]:
    start = time.monotonic()
    truth = _truth(task, slo, task.feasible)
    chosen, options = truth.optimum.iloc[:0], truth.candidates.iloc[:0]
    if truth.points.empty:
        note = f"{STATIC_POLICY} is judged from 1 measured LLM on; there are 0"
        return _judged(truth, slo, None, options, chosen, {"note": note})
    policy = best_policy(truth.candidates, truth.optimum, slo.load)
    decided = policy.decide(sorted(task.facts.llms))
    # What memory facts rule out becomes a row without a profile.
    pairs = decided[IDENTIFIERS].itertuples(index=False, name=None)
    fits = decided[[pair in task.feasible for pair in pairs]]
    chosen = decided[["llm_id"]].merge(fits, on="llm_id", how="left")
    score = {"fit_seconds": time.monotonic() - start}
    return _judged(truth, slo, None, options, chosen, score)


def _recommend_predicted(
    task: Task, slo: SLO, predictor: str, outcome: FitResult
) -> tuple[pd.DataFrame, ...]:
    truth, outcome = _truth(task, slo, task.feasible), outcome.of(task.facts.llms)
    options, chosen = truth.candidates.iloc[:0], truth.optimum.iloc[:0]
    latencies, profiles, kind = outcome.latencies, task.facts.profiles, predictor_class(predictor)
    score: dict[str, Any] = {"fit_seconds": outcome.seconds}
    if latencies is not None:
        options = candidates(latencies, outcome.llm_ids, profiles, slo, task.feasible)
        chosen = recommend_cheapest(options)
        if outcome.draws:  # the best option under the draws; none where memory rules out all
            weighed = pd.concat([weigh(draws, profiles, slo) for draws in outcome.draws])
            best = choose(weighed.reset_index(drop=True))
            chosen = pd.DataFrame({"llm_id": outcome.llm_ids}).merge(best, on="llm_id", how="left")
        if kind.uses_references:  # what it was given is not predicted
            given = latencies["gpu_profile_id"].isin(reference_profiles(profiles))
            latencies = latencies[~given]
        score |= mape(latencies, truth.points)
    if slo.lengths and truth.points.empty:
        score["note"] = "no point has requests like those of this SLO"
    elif not outcome.is_judged:
        needed, n_present = kind.min_training_llms + 1, truth.points["llm_id"].nunique()
        note = f"{predictor} is judged from {needed} measured LLMs on; there are {n_present}"
        score["note"] = note
    return _judged(truth, slo, outcome.latencies, options, chosen, score)


def _judged(
    truth: _Truth,
    slo: SLO,
    predictions: pd.DataFrame | None,
    options: pd.DataFrame,
    chosen: pd.DataFrame,
    score: Mapping[str, Any],
) -> tuple[pd.DataFrame, ...]:
    """Return the four frames of an evaluation, with exactly their columns, or null."""
    results = score_recommendation(chosen, truth.candidates, truth.optimum, slo.load)
    summary = summarize(results[results["llm_id"].isin(truth.candidates["llm_id"])])
    summary |= {"n_unused_points": len(truth.latencies) - len(truth.points), **score}

    def typed(types: Mapping[str, str], rows: Any) -> pd.DataFrame:
        return pd.DataFrame(rows, columns=list(types)).astype(dict(types))

    judged_rows = typed(_RECOMMENDATION, results)
    return typed(_PREDICTION, predictions), options, judged_rows, typed(_SCORE, [summary])
