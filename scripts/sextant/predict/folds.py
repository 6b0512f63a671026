"""Fit a predictor fold by fold: hold each LLM out, predict it from the others."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from joblib import Parallel, delayed

from sextant.base.errors import InputError
from sextant.characterizations.features import Features
from sextant.characterizations.points import IDENTIFIERS, TARGETS, Pair, at_percentile, has_latency
from sextant.experiment.slo import SLO
from sextant.hardware.gpu import GPUProfile
from sextant.llm import LLM
from sextant.predict.features import design_matrix
from sextant.predict.references import Rows, reference_profiles
from sextant.predict.registry import predictor_class
from sextant.predict.roofline.facts import fact_rows
from sextant.predict.roofline.predictor import summary
from sextant.predict.static_policy import StaticPolicy
from sextant.predict.tuning import Settings, choose_nested

ALL = "all"
"""The fold that trains on every measured LLM, for those without a latency."""


class _Fold(NamedTuple):
    name: str
    llm_ids: list[str]
    """Whom to predict, from all others."""


class Draws(NamedTuple):
    """Joint draws of what some rows' latencies may be."""

    X: pd.DataFrame
    """`llm_id, gpu_profile_id, users`."""
    samples_ms: np.ndarray
    """nTTFT and ITL, shape (draws, rows, 2)."""


class Outcome(NamedTuple):
    """What came of all folds of one fit: latencies or decisions for `llm_ids`."""

    llm_ids: list[str]
    latencies: pd.DataFrame | None
    decisions: pd.DataFrame | None
    is_judged: bool
    """Whether measured LLMs were held out."""
    seconds: float | None
    draws: Sequence[Draws] = ()
    """Of predictors that know how sure they are: from these options are chosen."""


class World(NamedTuple):
    """A characterization, and which (LLM, GPU profile) pairs may be recommended."""

    points: pd.DataFrame
    llms: Mapping[str, LLM]
    profiles: Mapping[str, GPUProfile]
    features: Features
    feasible: set[Pair]
    execution: Mapping[str, str]
    """How the engine executes each LLM (`sextant.predict.roofline.facts`)."""


def rows_of(points: pd.DataFrame, percentile: int, features: Features) -> Rows:
    """Return points as predictors take them, latencies at one percentile."""
    latencies = at_percentile(points, percentile)
    y = latencies[[*TARGETS, "throughput_tok_s"]]
    return Rows(design_matrix(latencies, features), y)


def fact_rows_of(world: World, percentile: int) -> Rows:
    """Return points as the mechanistic predictor takes them, latencies at one percentile.

    Lengths are each point's own, missing where they were not published.
    """
    latencies = at_percentile(world.points, percentile)
    ordered = world.points.sort_values([*IDENTIFIERS, "users"], ignore_index=True)
    lengths = ordered.reindex(columns=["mean_input_tokens", "mean_output_tokens"]).astype(float)
    X = fact_rows(
        latencies, world.llms, world.profiles, world.execution, *(lengths[c] for c in lengths)
    )
    return Rows(X, latencies[[*TARGETS, "throughput_tok_s"]])


def share_lengths(training: pd.DataFrame, asked: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Give all rows the lengths of the workload: medians over the training rows.

    A point's own mean length depends on which requests it could answer, and nobody knows it of
    an LLM that was not measured.

    Raises:
        InputError: no training row has lengths.
    """
    lengths = training[["input_tokens", "output_tokens"]].median()
    if lengths.isna().any():
        problem = "the points do not say how long the workload's requests are"
        fix = "build the store again from its measurements"
        raise InputError(problem, field="mean_input_tokens, mean_output_tokens", fix=fix)
    return training.assign(**lengths), asked.assign(**lengths)


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
    `sextant.decide.evaluate.evaluate`.
    """
    make = predictor_class(predictor)
    if _learns_from_facts(make):
        rows = fact_rows_of(world, slo.percentile)
    else:
        rows = rows_of(world.points, slo.percentile, world.features)
    usable = rows.where(has_latency(rows.y))
    start = time.monotonic()
    if hasattr(make, "decide"):
        outcome = _decide(world, make(slo, world.profiles, seed), rows, usable)
    else:
        named = partial(_say, progress, f"{predictor}, {slo.slo_id}")
        outcome = _learn(world, partial(make, slo, world.profiles, seed), usable, n_jobs, named)
    return outcome._replace(seconds=time.monotonic() - start if outcome.llm_ids else None)


def _learns_from_facts(make: type) -> bool:
    return getattr(make, "learns_from_facts", False)


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
    in_facts = _learns_from_facts(make.func)
    jobs = (
        delayed(_predict)(
            make, settings.get(fold.name), usable, fold, _grid(world, fold, usable, in_facts)
        )
        for fold in folds
    )
    predicted, draws = [], []
    finished = Parallel(n_jobs=n_jobs, return_as="generator")(jobs)
    for number, (fold, (frame, drawn)) in enumerate(zip(folds, finished, strict=True), 1):
        progress(f"fold {number} of {len(folds)} ({fold.name})")
        predicted.append(frame.assign(fold=fold.name))
        draws += [drawn] if drawn else []
    return Outcome(
        llm_ids=[llm_id for fold in folds for llm_id in fold.llm_ids],
        latencies=pd.concat(predicted, ignore_index=True) if predicted else None,
        decisions=None,
        is_judged=is_judged,
        seconds=None,
        draws=draws,
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
) -> tuple[pd.DataFrame, Draws | None]:
    """Return the identifiers and `users` of the asked rows with latencies, and their draws."""
    keys = [*IDENTIFIERS, "users"]
    if asked.empty:  # memory facts rule out every profile
        return asked[keys].assign(**dict.fromkeys(TARGETS, pd.Series(dtype="float64"))), None
    model = make(settings=settings) if settings else make()
    training = usable.without(fold.llm_ids)
    if _learns_from_facts(make.func):
        X, asked = share_lengths(training.X, asked)
        samples_ms = model.fit(training._replace(X=X)).sample(asked)
        draws = Draws(asked[keys], samples_ms)
        return asked[keys].join(summary(samples_ms, asked.index)), draws
    known = usable.of([])
    if make.func.uses_references:
        known = usable.of(fold.llm_ids).on(reference_profiles(model.profiles))
    latencies = model.fit(training, known).predict(asked)[TARGETS]
    predicted = asked[keys].join(latencies.astype("float64")).set_index(keys)
    predicted.update(known.X[keys].join(known.y[TARGETS]).set_index(keys))
    return predicted.reset_index(), None


def _grid(world: World, fold: _Fold, usable: Rows, in_facts: bool) -> pd.DataFrame:
    """Return the design matrix, or the facts, of everything to predict in a fold."""
    users = sorted(usable.without(fold.llm_ids).X["users"].unique())
    rows = [
        (llm_id, profile_id, count)
        for llm_id in fold.llm_ids
        for profile_id in sorted(world.points["gpu_profile_id"].unique())
        if (llm_id, profile_id) in world.feasible
        for count in users
    ]
    keys = pd.DataFrame(rows, columns=[*IDENTIFIERS, "users"])
    if in_facts and rows:
        unknown = float("nan")  # `share_lengths` fills them in
        return fact_rows(keys, world.llms, world.profiles, world.execution, unknown, unknown)
    return design_matrix(keys, world.features)


def _only_feasible(decisions: pd.DataFrame, world: World) -> pd.DataFrame:
    """Return the decisions; what memory facts rule out becomes a row without a profile."""
    pairs = decisions[IDENTIFIERS].itertuples(index=False, name=None)
    kept = decisions[[pair in world.feasible for pair in pairs]]
    return decisions[["llm_id"]].merge(kept, on="llm_id", how="left")
