"""Choose hyperparameters by leave-one-LLM-out, alone or nested, in several processes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sextant.points.frame import TARGETS
from sextant.predict.predictor import PointPredictor, Settings, TrainingRows, reference_profiles

ALL_CPUS = -1
"""As a number of processes: one for each CPU that this process may use."""
_T = TypeVar("_T")


def results_of(jobs: Iterable[Callable[[], _T]], n_jobs: int) -> Iterator[_T]:
    """Yield what each job returns, in their order, from `n_jobs` processes."""
    from joblib import Parallel, delayed  # its import takes longer than many an answer's work

    return Parallel(n_jobs=n_jobs, return_as="generator")(delayed(job)() for job in jobs)


class HeldOutRows(NamedTuple):
    """One LLM that is not among the training rows."""

    rows: TrainingRows
    references: TrainingRows
    """Its rows on the reference profiles; there may be none."""


class Tunable(PointPredictor):
    """A predictor with hyperparameters: `settings`, or else it chooses them."""

    GRID: Sequence[Settings]  #: What settings are chosen from.

    def validation_errors(
        self, training: TrainingRows, held_out: Sequence[HeldOutRows]
    ) -> np.ndarray:
        """Train every setting of the grid; return errors, (LLMs held out, settings)."""
        raise NotImplementedError


def errors_of_trees(
    grid: Sequence[Settings],
    held_out: Sequence[HeldOutRows],
    grow: Callable[[Settings, int], Callable[[int], np.ndarray]],
) -> np.ndarray:
    """Return the error of each setting of trees on each LLM held out, (LLMs, settings).

    The first trees of a model are the smaller model, so the largest one is trained alone.

    Args:
        grid: the settings.
        held_out: the LLMs.
        grow: trains one model with settings and a number of trees. It returns a function that
            predicts all rows held out, in their order, by a number of the model's first trees.
    """
    truth = [llm.rows.y[TARGETS].to_numpy() for llm in held_out]
    ends = np.cumsum([len(latencies) for latencies in truth])[:-1]
    errors = np.empty((len(held_out), len(grid)))
    groups: dict[tuple[tuple[str, Any], ...], dict[int, int]] = {}
    for position, settings in enumerate(grid):
        others = tuple(item for item in settings.items() if item[0] != "n_estimators")
        groups.setdefault(others, {})[settings["n_estimators"]] = position
    for others, positions in groups.items():
        predict = grow(dict(others), max(positions))
        for n_estimators, position in positions.items():
            parts = np.split(predict(n_estimators), ends)
            errors[:, position] = [mape_error(*pair) for pair in zip(truth, parts, strict=True)]
    return errors


def mape_error(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Return the mean of |predicted - truth| / truth over rows and targets, a fraction.

    LLM-Pilot's paper (section IV-B3) weights it by eq. 4, its published code does not; this
    follows the code, which made the published figures.
    """
    return float(np.mean(np.abs(predicted - truth) / truth))


def choose_settings(model: Tunable, training: TrainingRows) -> Settings:
    """Return the first settings of the least mean error over the LLMs, each held out in turn."""
    return _best(model, [_errors(model, training, (name,))[0] for name in _llm_ids(training)])


def choose_nested(
    model: Tunable, rows: TrainingRows, n_jobs: int, progress: Callable[[str], None]
) -> dict[str, Settings]:
    """Return, by LLM, what `choose_settings` would return for the rows without that LLM.

    To judge LLM a, settings are chosen on the other LLMs. Each of them, b, is left out in turn: a
    training without a and b. The same training, validated on a, serves to judge b. So each pair of
    the 3 LLMs or more is left out once. LLM a's rows never take part in choosing for a. The result
    does not depend on the number of processes.
    """
    llm_ids = _llm_ids(rows)
    pairs = list(combinations(llm_ids, 2))
    progress(f"tuning: {len(pairs)} pairs of LLMs, {len(model.GRID)} settings")
    jobs = (partial(_errors, model, rows, pair) for pair in pairs)
    errors: dict[str, list[np.ndarray]] = {llm_id: [] for llm_id in llm_ids}
    for (first, second), (on_first, on_second) in zip(pairs, results_of(jobs, n_jobs), strict=True):
        errors[first].append(on_second)
        errors[second].append(on_first)
    return {judged: _best(model, others) for judged, others in errors.items()}


def _errors(model: Tunable, rows: TrainingRows, llm_ids: Sequence[str]) -> np.ndarray:
    measured = reference_profiles(model.profiles) if model.uses_references else ()
    parts = [rows.of([llm_id]) for llm_id in llm_ids]
    held_out = [HeldOutRows(part, part.on(measured)) for part in parts]
    return model.validation_errors(rows.without(llm_ids), held_out)


def _llm_ids(rows: TrainingRows) -> list[str]:
    return sorted(rows.X["llm_id"].unique())


def _best(model: Tunable, errors: Sequence[np.ndarray]) -> Settings:
    return model.GRID[int(np.mean(errors, axis=0).argmin())]
