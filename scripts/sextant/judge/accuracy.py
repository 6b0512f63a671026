"""How close the predictions of held-out points come, and how many lie inside their intervals."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.facts.slo import SLO
from sextant.judge.folds import share_lengths
from sextant.judge.task import Task
from sextant.pages.words import plural
from sextant.points.frame import IDENTIFIERS, LENGTHS, LOAD, SERVING, TARGETS, at_percentile
from sextant.predict.draws import JOULES, Draws
from sextant.predict.predictor import JointPredictor, TrainingRows
from sextant.predict.registry import draws_samples, predictor_class
from sextant.predict.tuning import results_of

HoldOut = Literal["llm", "gpu", "engine", "engine_version"]
"""What a fold has not seen: an LLM, a type of GPU, an engine, a version of one."""
_HELD_OUT = {"llm": "LLM", "gpu": "GPU type"}
_SHAPE = ["llm_type", "n_layers", "hidden_size", "ffn_size", "n_heads", "n_kv_heads", "n_experts"]
MEDIANS = (50, 50)
METRICS = {"ttft": "nttft_ms", "tpot": "itl_ms"}
"""What is judged, and the target that gives it."""


class HeldOutPredictions(NamedTuple):
    """The points of one fold, and what was predicted of them by a fit that has not seen them."""

    fold: str
    points: pd.DataFrame
    """As `at_percentile` returns them, with the lengths that the predictor was given."""
    samples_ms: np.ndarray | None
    """Joint draws of nTTFT and ITL, (draws, rows, 2); None of a predictor that does not draw."""
    predicted: pd.DataFrame  #: `nttft_ms, itl_ms`, and with draws the bounds of the 90% intervals.


def predict_held_out(
    task: Task,
    predictor: str,
    seed: int,
    hold_out: HoldOut = "llm",
    *,
    percentiles: tuple[int, int] = MEDIANS,
    first_token: str = "nttft",
    n_jobs: int = 1,
    progress: Callable[[str], None] | None = None,
) -> list[HeldOutPredictions]:
    """Predict every point from those of other LLMs, GPU types, engines or versions of them.

    LLMs of one architecture are one LLM here: DeepSeek-R1 and V3, and an LLM in two precisions,
    say nothing new of each other. Points without any latency, or without users that are stated or
    follow from their request rate, are left out and counted. `percentiles` are of nTTFT and ITL,
    `first_token` is as `at_percentile` takes it; the result does not depend on `n_jobs` processes.

    Raises InputError: there is too little to hold out, or the predictor needs references.
    """
    make = predictor_class(predictor)
    if make.uses_references:
        fix = "judge it on SLOs (--slos), or use another predictor"
        problem = f"{predictor} needs reference measurements"
        raise InputError(problem, field="--predictor", fix=fix)
    points = at_percentile(task.points, percentiles, first_token)
    known = (points[TARGETS] > 0).any(axis=1) & points["users"].notna()
    if progress and not known.all():
        progress(f"{(~known).sum()} of {len(points)} points have no latency or load: left out")
    points = points[known].reset_index(drop=True)
    missing = points[TARGETS].isna().any(axis=1).sum()
    if missing and not draws_samples(predictor):
        problem = f"{predictor} needs TTFT and ITL; {missing} of {len(points)} points lack one"
        fix = "judge roofline, or measure both"
        raise InputError(problem, field="--predictor", fix=fix)
    folds = list(held_out_folds(points, task, hold_out))
    architectures, least = _architectures(points, task), make.min_training_llms
    left = min((architectures[~rows].nunique() for _, rows in folds), default=0)
    if len(folds) < 2 or left < least:
        present = plural(len(folds), _HELD_OUT.get(hold_out, hold_out.replace("_", " ")))
        lack = f"{left} LLMs are left without one of them; " if len(folds) > 1 else ""
        problem = f"{lack}{predictor} needs {least} LLMs or more to learn from"
        fix = "name another --source beside it, or hold out something else (--hold-out)"
        raise InputError(f"the points are of {present}: {problem}", field="--hold-out", fix=fix)
    found, given = [], (predictor, seed, percentiles)
    jobs = (partial(predict_rows, task, points, fold, rows, *given) for fold, rows in folds)
    for held in results_of(jobs, n_jobs):
        found.append(held)
        if progress:
            progress(f"{predictor}: fold {len(found)} of {len(folds)} ({held.fold})")
    return found


def held_out_folds(
    points: pd.DataFrame, task: Task, hold_out: HoldOut
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each fold's name and which rows it holds out."""
    if hold_out == "llm":
        named = _architectures(points, task)
    elif hold_out == "gpu":
        gpus = {name: profile.gpu.gpu_id for name, profile in task.facts.profiles.items()}
        named = points["gpu_profile_id"].map(gpus)
    elif hold_out == "engine":
        named = points["engine"].fillna("unknown")
    else:
        versions = points["engine"].fillna("") + " " + points["engine_version"].fillna("")
        named = versions.str.strip()
    for name in sorted(named.unique()):
        yield name, (named == name).to_numpy()


def _architectures(points: pd.DataFrame, task: Task) -> pd.Series:
    """Return the name of the first LLM of each row's architecture."""
    first: dict[Hashable, str] = {}
    shape, ids = attrgetter(*_SHAPE, "vocab_size"), sorted(points["llm_id"].unique())
    named = {name: first.setdefault(shape(task.facts.llms[name]), name) for name in ids}
    return points["llm_id"].map(named)


def predict_rows(
    task: Task,
    points: pd.DataFrame,
    fold: str,
    rows: np.ndarray,
    predictor: str,
    seed: int,
    percentiles: tuple[int, int],
) -> HeldOutPredictions:
    """Return the rows of a fold, predicted by a fit on all other points (`at_percentile`)."""
    training, asked = points[~rows], points[rows]
    if not task.has_fixed_lengths:
        training, asked = share_lengths(training, asked)
    # No limits are judged; predictors that learn to be accurate near them are so at the medians.
    medians_ms = training[TARGETS].median()
    limits: dict[str, Any] = medians_ms[medians_ms > 0].to_dict()
    limits["nttft_percentile"], limits["itl_percentile"] = percentiles
    slo = SLO("held-out", users=1, **limits)
    model = predictor_class(predictor)(slo, task.facts.profiles, seed)
    design = model.design(pd.concat([training, asked]), task.facts)
    model.fit(TrainingRows(design.iloc[: len(training)], training[[*TARGETS, "throughput_tok_s"]]))
    X = design.iloc[len(training) :]
    if not isinstance(model, JointPredictor):
        return HeldOutPredictions(fold, asked, None, model.predict(X))
    samples_ms = model.sample(X)
    predicted = Draws(X, samples_ms).summary()
    joules = model.energy(training, asked, task.facts, samples_ms[..., 1])
    predicted = predicted if joules is None else predicted.join(joules)
    return HeldOutPredictions(fold, asked, samples_ms, predicted)


def prediction_table(held_out: Sequence[HeldOutPredictions]) -> pd.DataFrame:
    """Return one row per held-out point: what was measured and what was predicted.

    Columns are identifiers, `SERVING`, `LENGTHS`, `LOAD`, `fold`; and for each of `METRICS`
    `<metric>_ms` as measured, `<metric>_predicted_ms` and the 90% interval `<metric>_lo_ms,
    <metric>_hi_ms`, null without draws. Where energy is predicted, `energy_j_per_token` and so on.
    """
    parts = []
    for fold, points, _, predicted in held_out:
        part = points[[*IDENTIFIERS, *SERVING, *LENGTHS, *LOAD]].assign(fold=fold)
        # Without input lengths a point has no nTTFT, and TTFT cannot be computed from it.
        for metric, stem, tokens in (("ttft", "nttft", points["input_tokens"]), ("tpot", "itl", 1)):
            part[f"{metric}_ms"] = points[f"{stem}_ms"] * tokens
            part[f"{metric}_predicted_ms"] = predicted[f"{stem}_ms"] * tokens
            for bound in ("lo_ms", "hi_ms"):
                part[f"{metric}_{bound}"] = predicted.get(f"{stem}_{bound}", np.nan) * tokens
        if JOULES[0] in predicted:
            part["energy_j_per_token"] = points["energy_j_per_token"].where(lambda it: it > 0)
            joules = ("energy_predicted_j_per_token", *JOULES[1:])
            part[[*joules]] = predicted[JOULES]
        parts.append(part)
    return pd.concat(parts).sort_index()


def accuracy(predictions: pd.DataFrame) -> dict[str, float | int | None]:
    """Return how close a `prediction_table` comes, over all points that have the value.

    `mape_<metric>` and `mdape_<metric>`, mean and median of |predicted - measured| / measured, and
    `coverage_<metric>`, the share inside the 90% intervals, are fractions; None where there is no
    such value. `n_<metric>` counts points. `energy` is a metric where the table has it.
    """
    units = dict.fromkeys(METRICS, "ms")
    if "energy_predicted_j_per_token" in predictions:
        units["energy"] = "j_per_token"
    result: dict[str, float | int | None] = {}
    for metric, unit in units.items():
        both = [f"{metric}_{unit}", f"{metric}_predicted_{unit}"]
        known = predictions[predictions[both].notna().all(axis=1)]
        truth = known[f"{metric}_{unit}"]
        errors = ((known[f"{metric}_predicted_{unit}"] - truth) / truth).abs()
        low, high = known[f"{metric}_lo_{unit}"], known[f"{metric}_hi_{unit}"]
        inside = ((low <= truth) & (truth <= high))[low.notna()]
        result[f"mape_{metric}"] = float(errors.mean()) if len(known) else None
        result[f"mdape_{metric}"] = float(errors.median()) if len(known) else None
        result[f"coverage_{metric}"] = float(inside.mean()) if len(inside) else None
        result[f"n_{metric}"] = len(known)
    return result
