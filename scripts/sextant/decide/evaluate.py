"""Judge a predictor on LLMs it never saw: leave one LLM out, recommend, compare with the truth."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from sextant.base.errors import InputError
from sextant.characterizations.features import Features
from sextant.characterizations.points import IDENTIFIERS, TARGETS, Pair, at_percentile, has_latency
from sextant.decide.decision import choose, weigh
from sextant.decide.recommend import candidates, recommend
from sextant.decide.score import judge, mape, summarize
from sextant.experiment.slo import SLO
from sextant.hardware.gpu import GPUProfile
from sextant.llm import LLM
from sextant.predict.folds import Outcome, World, fit_folds
from sextant.predict.references import reference_profiles
from sextant.predict.registry import PREDICTORS, predictor_class
from sextant.predict.roofline.facts import execution_classes

logger = logging.getLogger(__name__)

MEASURED = "measured"
"""The predictor that predicts nothing: recommendations straight from the points, the optimum."""

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

    `predictions` and `recommendations` have the columns of the store's tables, `candidates`
    those of `decide.recommend.candidates`. `scores` adds to the store's columns `n_left_out`
    (measured LLMs that no profile truly serves), `mape_nttft` and `mape_itl` (fractions over
    all held-out points), `n_unused_points` (points without a latency) and `note` (why there
    is no score). SLOs that share a fit each state its whole `fit_seconds`.
    """

    predictions: pd.DataFrame
    candidates: pd.DataFrame
    recommendations: pd.DataFrame
    scores: pd.DataFrame


def evaluate(
    points: pd.DataFrame,
    llms: Mapping[str, LLM],
    profiles: Mapping[str, GPUProfile],
    slos: Sequence[SLO],
    predictor: str,
    source: str,
    seed: int,
    *,
    features: Features | None = None,
    feasible: Collection[Pair] | None = None,
    n_jobs: int = 1,
    progress: Callable[[str], None] | None = None,
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
        points: closed-loop points of one source, workload and scenario: `llm_id,
            gpu_profile_id, users, {median,p90,p99}_{nttft,itl}_ms`; latencies are missing
            where nothing succeeded.
        llms: facts of the LLMs, measured or not, by `llm_id`.
        profiles: GPU profiles by `gpu_profile_id`; those without any point get no prediction.
        slos: latency targets.
        predictor: a name in `sextant.predict.registry.PREDICTORS`, or `measured`.
        source: name of the characterization, copied into the results.
        seed: seed of the predictor's training.
        features: what predictors learn from; computed from the facts unless given.
        feasible: (LLM, profile) pairs that memory facts allow; None allows all.
        n_jobs: processes to use; the result does not depend on it.
        progress: is told of each step; the log is, without it.

    Raises:
        InputError: unknown predictor, LLM or profile, or ambiguous points.
    """
    if predictor not in (names := [MEASURED, *PREDICTORS]):
        fix = f"use one of {', '.join(names)}"
        raise InputError(f"unknown predictor {predictor!r}", field="predictor", fix=fix)
    if not slos:
        raise InputError("there is no SLO", fix="add a row to the sheet of SLOs")
    _check(points, llms, profiles)
    every = {(llm_id, profile_id) for llm_id in llms for profile_id in profiles}
    world = World(
        points,
        llms,
        profiles,
        features or Features.of_facts(llms, profiles),
        set(every if feasible is None else feasible),
        execution_classes(llms, features),
    )
    fits: dict[tuple, Outcome] = {}
    parts = []
    for slo in slos:
        if predictor == MEASURED:
            part = _recommend_measured(world, slo)
        else:
            key = tuple(getattr(slo, name) for name in predictor_class(predictor).depends_on)
            if key not in fits:
                fits[key] = fit_folds(world, slo, predictor, seed, n_jobs, progress or logger.info)
            part = _recommend_predicted(world, slo, predictor, fits[key])
        named = {"source": source, "slo_id": slo.slo_id, "predictor": predictor}
        parts.append([_prefix(frame, named) for frame in part])
    frames = zip(*parts, strict=True)
    return Evaluation(*(pd.concat(same, ignore_index=True) for same in frames))


def _prefix(frame: pd.DataFrame, named: Mapping[str, str]) -> pd.DataFrame:
    return pd.concat([pd.DataFrame(named, index=frame.index, dtype="str"), frame], axis=1)


def _check(
    points: pd.DataFrame, llms: Mapping[str, LLM], profiles: Mapping[str, GPUProfile]
) -> None:
    for column, known in zip(IDENTIFIERS, (llms, profiles), strict=True):
        for name in points[column].unique():
            if name not in known:
                fix = f"add {name!r} to its sheet or remove its points"
                raise InputError(f"points name the unknown {name!r}", field=column, fix=fix)
    if points["users"].isna().any():
        raise InputError("a point has no users", field="users", fix="select closed-loop points")
    twice = points.loc[points.duplicated([*IDENTIFIERS, "users"]), [*IDENTIFIERS, "users"]]
    if len(twice):
        fix = "select one workload and one scenario"
        first = ", ".join(map(str, twice.iloc[0]))
        raise InputError(f"more than one point of {first} users", field="users", fix=fix)


def _recommend_measured(world: World, slo: SLO) -> tuple[pd.DataFrame, ...]:
    truth, optimum = _truth(world, slo)
    judged = judge(optimum, truth, optimum, slo.users)
    usable = has_latency(at_percentile(world.points, slo.percentile))
    score = {**summarize(judged), "fit_seconds": 0.0, "n_unused_points": int((~usable).sum())}
    return _as(_PREDICTION, None), truth, _as(_RECOMMENDATION, judged), _as(_SCORE, [score])


def _truth(world: World, slo: SLO) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the true candidates and optimum of the LLMs that have points."""
    latencies = at_percentile(world.points, slo.percentile)
    # A measured pair runs, whatever memory facts had said of it.
    measured = set(latencies[IDENTIFIERS].itertuples(index=False, name=None))
    llm_ids = sorted(latencies["llm_id"].unique())
    truth = candidates(latencies, llm_ids, world.profiles, slo, world.feasible | measured)
    return truth, recommend(truth)


def _recommend_predicted(
    world: World, slo: SLO, predictor: str, outcome: Outcome
) -> tuple[pd.DataFrame, ...]:
    truth, optimum = _truth(world, slo)
    options, chosen, errors = truth.iloc[:0], optimum.iloc[:0], {}
    measured = at_percentile(world.points, slo.percentile)
    usable = has_latency(measured)
    if outcome.latencies is not None:
        options = candidates(
            outcome.latencies, outcome.llm_ids, world.profiles, slo, world.feasible
        )
        chosen = _decide(outcome, world, slo) if outcome.draws else recommend(options)
        errors = mape(_without_references(predictor, outcome.latencies, world), measured[usable])
    elif outcome.decisions is not None:
        chosen = outcome.decisions
    judged = judge(chosen, truth, optimum, slo.users)
    score = {
        **summarize(judged[judged["llm_id"].isin(truth["llm_id"])]),
        **errors,
        "fit_seconds": outcome.seconds,
        "n_unused_points": int((~usable).sum()),
        "note": None if outcome.is_judged else _too_few(predictor, measured[usable]),
    }
    return (
        _as(_PREDICTION, outcome.latencies),
        options,
        _as(_RECOMMENDATION, judged),
        _as(_SCORE, [score]),
    )


def _decide(outcome: Outcome, world: World, slo: SLO) -> pd.DataFrame:
    """Return the best option of each LLM under the draws; none where memory rules out all."""
    options = [weigh(draws.samples_ms, draws.X, world.profiles, slo) for draws in outcome.draws]
    chosen = choose(pd.concat(options, ignore_index=True))
    return pd.DataFrame({"llm_id": outcome.llm_ids}).merge(chosen, on="llm_id", how="left")


def _without_references(predictor: str, latencies: pd.DataFrame, world: World) -> pd.DataFrame:
    """Return the predictions proper: what a predictor was told is no merit of it."""
    if not predictor_class(predictor).uses_references:
        return latencies
    return latencies[~latencies["gpu_profile_id"].isin(reference_profiles(world.profiles))]


def _too_few(predictor: str, measured: pd.DataFrame) -> str:
    needed, present = predictor_class(predictor).min_training_llms + 1, measured["llm_id"].nunique()
    return f"{predictor} is judged from {needed} measured LLMs on; there are {present}"


def _as(types: Mapping[str, str], rows: Any) -> pd.DataFrame:
    """Return the rows with exactly these columns and types; a column they lack is null."""
    return pd.DataFrame(rows, columns=list(types)).astype(dict(types))
