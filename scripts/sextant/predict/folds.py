"""Fit a predictor fold by fold: hold each LLM out, predict it from the others."""

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import pandas as pd
from joblib import Parallel, delayed

from sextant.gpu import GPUProfile
from sextant.llm import LLM
from sextant.predict.features import Features, design_matrix
from sextant.predict.references import Rows, reference_profiles
from sextant.predict.registry import PREDICTORS
from sextant.predict.static_policy import StaticPolicy
from sextant.predict.tuning import Settings, choose_nested
from sextant.recommend import IDENTIFIERS, SLO, TARGETS, Pair, at_percentile, has_latency

ALL = "all"
"""The fold that trains on every measured LLM, for those without a latency."""


class _Fold(NamedTuple):
    name: str
    llm_ids: list[str]
    """Whom to predict, from all others."""


class Outcome(NamedTuple):
    """What came of all folds of one fit: latencies or decisions for `llm_ids`."""

    llm_ids: list[str]
    latencies: pd.DataFrame | None
    decisions: pd.DataFrame | None
    is_judged: bool
    """Whether measured LLMs were held out."""
    seconds: float | None


class World(NamedTuple):
    """A characterization, and which (LLM, GPU profile) pairs may be recommended."""

    points: pd.DataFrame
    llms: Mapping[str, LLM]
    profiles: Mapping[str, GPUProfile]
    features: Features
    feasible: set[Pair]


def rows_of(points: pd.DataFrame, percentile: int, features: Features) -> Rows:
    """Return points as predictors take them, latencies at one percentile."""
    latencies = at_percentile(points, percentile)
    y = latencies[[*TARGETS, "throughput_tok_s"]]
    return Rows(design_matrix(latencies, features), y)


def fit_folds(
    world: World,
    slo: SLO,
    predictor: str,
    seed: int,
    n_jobs: int,
    progress: Callable[[str], None],
) -> Outcome:
    """Fit a predictor for one SLO, once for each LLM held out and for all unseen ones.

    With too few measured LLMs the outcome names none. Arguments are those of
    `sextant.predict.evaluate.evaluate`.
    """
    make = PREDICTORS[predictor]
    rows = rows_of(world.points, slo.percentile, world.features)
    usable = rows.where(has_latency(rows.y))
    start = time.monotonic()
    if hasattr(make, "decide"):
        outcome = _decide(world, make(slo, world.profiles, seed), rows, usable)
    else:
        named = partial(_say, progress, f"{predictor}, {slo.slo_id}")
        outcome = _learn(world, partial(make, slo, world.profiles, seed), usable, n_jobs, named)
    return outcome._replace(seconds=time.monotonic() - start if outcome.llm_ids else None)


def _say(progress: Callable[[str], None], who: str, what: str) -> None:
    progress(f"{who}: {what}")


def _decide(world: World, model: StaticPolicy, rows: Rows, usable: Rows) -> Outcome:
    measured = usable.X["llm_id"].unique()
    if len(measured) < model.min_training_llms:
        return Outcome([], None, None, False, None)
    llm_ids = sorted(world.llms)
    decided = model.fit(rows.of(measured)).decide(llm_ids)
    return Outcome(llm_ids, None, _only_feasible(decided, world), True, None)


def _learn(
    world: World,
    make: partial,
    usable: Rows,
    n_jobs: int,
    progress: Callable[[str], None],
) -> Outcome:
    min_llms = make.func.min_training_llms
    folds = list(_folds(world, sorted(usable.X["llm_id"].unique()), min_llms))
    is_judged = len(folds) > 1
    settings: dict[str, Settings] = {}
    if is_judged and hasattr(make.func, "GRID"):
        settings = choose_nested(make(), usable, n_jobs, progress)
    jobs = (
        delayed(_predict)(make, settings.get(fold.name), usable, fold, _grid(world, fold, usable))
        for fold in folds
    )
    predicted = []
    finished = Parallel(n_jobs=n_jobs, return_as="generator")(jobs)
    for number, (fold, frame) in enumerate(zip(folds, finished, strict=True), 1):
        progress(f"fold {number} of {len(folds)} ({fold.name})")
        predicted.append(frame.assign(fold=fold.name))
    return Outcome(
        llm_ids=[llm_id for fold in folds for llm_id in fold.llm_ids],
        latencies=pd.concat(predicted, ignore_index=True) if predicted else None,
        decisions=None,
        is_judged=is_judged,
        seconds=None,
    )


def _folds(world: World, measured: list[str], min_llms: int) -> Iterator[_Fold]:
    """Yield the folds for which enough LLMs remain to train on."""
    if len(measured) > min_llms:
        for llm_id in measured:
            yield _Fold(llm_id, [llm_id])
    unseen = sorted(set(world.llms) - set(measured))
    if unseen and len(measured) >= min_llms:
        yield _Fold(ALL, unseen)


def _predict(
    make: partial, settings: Settings | None, usable: Rows, fold: _Fold, asked: pd.DataFrame
) -> pd.DataFrame:
    """Return the identifiers and `users` of the asked rows, with `nttft_ms` and `itl_ms`."""
    keys = [*IDENTIFIERS, "users"]
    if asked.empty:  # memory facts rule out every profile
        return asked[keys].assign(**dict.fromkeys(TARGETS, pd.Series(dtype="float64")))
    model = make(settings=settings) if settings else make()
    known = usable.of([])
    if make.func.uses_references:
        known = usable.of(fold.llm_ids).on(reference_profiles(model.profiles))
    latencies = model.fit(usable.without(fold.llm_ids), known).predict(asked)[TARGETS]
    predicted = asked[keys].join(latencies.astype("float64")).set_index(keys)
    predicted.update(known.X[keys].join(known.y[TARGETS]).set_index(keys))
    return predicted.reset_index()


def _grid(world: World, fold: _Fold, usable: Rows) -> pd.DataFrame:
    """Return the design matrix of everything to predict in a fold."""
    users = sorted(usable.without(fold.llm_ids).X["users"].unique())
    rows = [
        (llm_id, profile_id, count)
        for llm_id in fold.llm_ids
        for profile_id in sorted(world.points["gpu_profile_id"].unique())
        if (llm_id, profile_id) in world.feasible
        for count in users
    ]
    keys = pd.DataFrame(rows, columns=[*IDENTIFIERS, "users"])
    return design_matrix(keys, world.features)


def _only_feasible(decisions: pd.DataFrame, world: World) -> pd.DataFrame:
    """Return the decisions; what memory facts rule out becomes a row without a profile."""
    pairs = decisions[IDENTIFIERS].itertuples(index=False, name=None)
    kept = decisions[[pair in world.feasible for pair in pairs]]
    return decisions[["llm_id"]].merge(kept, on="llm_id", how="left")
