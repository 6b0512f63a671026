"""Fits of predictors that are kept beside their results: a price or an SLO makes none again.

A kept fit is named by everything that decides it: the points, the facts but for prices, what of the
SLO the predictor looks at, the seed, and the code. It holds the predictions of all folds.
"""

import json
import logging
import math
from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd

from sextant.base.files import sha256_file
from sextant.base.kept import keep_arrays, read_arrays
from sextant.facts.slo import SLO
from sextant.judge.evaluate import Fit, fit_key
from sextant.judge.folds import FitResult
from sextant.judge.task import Task
from sextant.predict.predictor import Draws

log = logging.getLogger(__name__)
_FACTS = "facts"
"""Name of the array with what is not a table: JSON."""


def keeping(
    fit: Fit, folder: Path, task: Task, predictor: str, seed: int, code: Iterable[Path]
) -> Fit:
    """Return a way to fit that keeps its results in a folder, and takes them from there.

    Args:
        fit: makes a fit that is not kept.
        folder: of the files; it may be deleted.
        task: what the fit is made on.
        predictor: what is fitted.
        seed: of the predictor.
        code: files of the library that the fit follows from.
    """
    digest = _digest(task, predictor, seed, code)

    def kept(slo: SLO) -> FitResult:
        name = sha256(f"{digest} {fit_key(predictor, slo)}".encode()).hexdigest()[:32]
        path = folder / f"fit-{name}.npz"
        if (arrays := read_arrays(path)) is not None:
            log.info("%s, %s: the fit of these points is kept", predictor, slo.slo_id)
            return _result_of(arrays)
        result = fit(slo)
        keep_arrays(path, _arrays_of(result))
        return result

    return kept


def _digest(task: Task, predictor: str, seed: int, code: Iterable[Path]) -> str:
    """Return a hash of all that decides the fits of a task, whichever the SLO."""
    digest = sha256(f"{predictor} {seed} {task.source} {task.has_fixed_lengths}".encode())
    digest.update(repr([sha256_file(path) for path in sorted(code)]).encode())
    digest.update(repr([*task.points.columns]).encode())
    digest.update(pd.util.hash_pandas_object(task.points, index=False).to_numpy().tobytes())
    digest.update(repr(sorted(task.feasible)).encode())
    digest.update(repr(sorted(task.facts.llms.items())).encode())
    for name, profile in sorted(task.facts.profiles.items()):
        unpriced = replace(profile, usd_per_hour=math.nan, price_source=None, price_as_of=None)
        digest.update(f"{name} {unpriced!r}".encode())
    for features in task.facts.published or ():
        digest.update(features.to_csv().encode())
    return digest.hexdigest()


def _arrays_of(result: FitResult) -> dict[str, np.ndarray]:
    """Return a fit as arrays by name."""
    facts = {
        "llm_ids": result.llm_ids,
        "is_judged": result.is_judged,
        "seconds": result.seconds,
        "n_draws": len(result.draws),
        "has_latencies": result.latencies is not None,
    }
    arrays = {_FACTS: np.array(json.dumps(facts))}
    if result.latencies is not None:
        arrays |= _columns("latencies", result.latencies)
    for number, draws in enumerate(result.draws):
        arrays |= _columns(f"draws{number}", draws.X)
        arrays[f"samples{number}"] = draws.samples_ms
    return arrays


def _result_of(arrays: dict[str, np.ndarray]) -> FitResult:
    """Return the fit that `_arrays_of` was given."""
    facts = json.loads(str(arrays[_FACTS]))
    draws = [
        Draws(_frame(f"draws{number}", arrays), arrays[f"samples{number}"])
        for number in range(facts["n_draws"])
    ]
    latencies = _frame("latencies", arrays) if facts["has_latencies"] else None
    return FitResult(facts["llm_ids"], latencies, facts["is_judged"], facts["seconds"], draws)


def _columns(prefix: str, frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return the columns of a frame as arrays; text as text, never as objects."""
    columns = {}
    for name in frame:
        values = frame[name].to_numpy()
        columns[f"{prefix}/{name}"] = values if values.dtype.kind in "biuf" else values.astype(str)
    return columns | {f"{prefix}#index": frame.index.to_numpy()}


def _frame(prefix: str, arrays: dict[str, np.ndarray]) -> pd.DataFrame:
    """Return the frame that `_columns` was given."""
    columns = {
        name.removeprefix(f"{prefix}/"): values
        for name, values in arrays.items()
        if name.startswith(f"{prefix}/")
    }
    index = arrays[f"{prefix}#index"]
    texts = {name: "str" for name, values in columns.items() if values.dtype.kind == "U"}
    return pd.DataFrame(columns, index=index).astype(texts)
