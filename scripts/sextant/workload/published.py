"""Request models from files or published figures: workloads, histograms, use cases.

LLM-Pilot's authors published theirs with fmperf (`tgis_hist64`). All its values are kept as
published; docs/workloads.md says what they mean, and what our client sends for them.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sextant import PROJECT
from sextant.base.errors import InputError
from sextant.base.files import MAKE_WORKLOAD_AGAIN, read_parquet
from sextant.base.sheets import read_yaml
from sextant.trace.trace_format import MAX_INT32
from sextant.workload.request_model import (
    BOOLEANS,
    INTEGERS,
    N_BINS,
    PARAMETERS,
    WEIGHT_COLUMNS,
    RequestModel,
    in_bins,
    independent_model,
    typed,
)

ALIASES = {
    "input_token_count": "input_tokens",
    "generated_token_count": "output_tokens",
    "params.temperature": "temperature",
    "params.top_k": "top_k",
    "params.top_p": "top_p",
}
"""Names of published histograms -> the trace contract's."""
USE_CASES_FILE = PROJECT / "resources" / "workloads" / "use_cases.yaml"
_CITING = ("source", "conversion")
_TAIL = 1e-9
"""Probability beyond which the geometric distribution is cut off."""
# A request has tokens on both sides; engines write top_k = -1 for "no limit".
# The mean of many ones may be a rounding error above.
_HIGHEST = {"top_p": 1.0 + 1e-9}
_LOWEST = {"input_tokens": 1, "output_tokens": 1, "batch_size": 1, "top_k": -1}


def load_request_model(path: str | Path) -> RequestModel:
    """Read a request model: a workload's folder, its `requests.parquet`, or a published histogram.

    A histogram (Parquet) has a value per parameter, named as in `PARAMETERS` or `ALIASES`, and
    `count` or `probability`. Any set of parameters will do; bins keep their order.

    Raises InputError: there is no such file, it is not Parquet, a column is unknown, there twice or
    has an impossible value, or the weights are missing, negative, not finite or all zero.
    """
    path = Path(path)
    path = path / "requests.parquet" if path.is_dir() else path
    if not path.is_file():
        raise InputError("there is no request model", file=path, fix="fit the workload first")
    fix = f"{MAKE_WORKLOAD_AGAIN}; of your own, give a Parquet file with a row for each joint bin"
    stored = read_parquet(path, fix=fix).to_pandas()
    frame, known = stored.rename(columns=ALIASES), [*PARAMETERS, *WEIGHT_COLUMNS]
    for source, name in zip(stored.columns, frame.columns, strict=True):
        if name not in known:
            fix = f"the columns are {', '.join([*known, *ALIASES])}"
            raise InputError("unknown column", file=path, field=source, fix=fix)
        if list(frame.columns).count(name) > 1:
            fix = f"leave one column for {name}"
            raise InputError("column twice", file=path, field=source, fix=fix)
    names = [name for name in PARAMETERS if name in frame]
    if not names:
        fix = f"add at least one of {', '.join(PARAMETERS)}"
        raise InputError("the joint bins have no parameter", file=path, fix=fix)
    try:
        weight = _checked_weight(frame)
        for name in names:
            _check_values(frame[name])
    except InputError as error:
        raise error.at(file=path) from None
    return RequestModel(
        pd.DataFrame({**{name: typed(frame[name]) for name in names}, weight: frame[weight]})
    )


def _checked_weight(frame: pd.DataFrame) -> str:
    """Return the column of the weights; refuse weights that no distribution has."""
    names = [name for name in WEIGHT_COLUMNS if name in frame]
    if len(names) != 1:
        problem = f"the joint bins have {'two weights' if names else 'no weight'}"
        fix = f"give one of {', '.join(WEIGHT_COLUMNS)}"
        raise InputError(problem, field=WEIGHT_COLUMNS[0], fix=fix)
    (name,) = names
    weights = pd.to_numeric(frame[name], errors="coerce").to_numpy(float, na_value=np.nan)
    is_fault = ~(np.isfinite(weights) & (weights >= 0))
    if is_fault.any():
        row = int(np.argmax(is_fault))
        problem, fix = f"a weight of {frame[name].iloc[row]}", "give each joint bin 0 or more"
        raise InputError(problem, row=row + 1, field=name, fix=fix)
    if not np.isfinite(weights.sum()):
        raise InputError("the weights have no sum", field=name, fix="give counts or probabilities")
    if not weights.any():
        fix = "give at least one joint bin a weight above 0"
        raise InputError("all weights are zero", field=name, fix=fix)
    return name


def _check_values(column: pd.Series) -> None:
    """Refuse a value that no request can have; null is allowed."""
    known = column.dropna()
    if column.name in BOOLEANS:
        is_sound, wanted = known.isin([True, False]), "true or false"
    else:
        lowest, highest = _LOWEST.get(column.name, 0), _HIGHEST.get(column.name, np.inf)
        # A text that looks like a number would be drawn as a text.
        is_text = not pd.api.types.is_numeric_dtype(known)
        numbers = pd.Series(np.nan, known.index) if is_text else known
        is_sound = numbers.between(lowest, highest) & np.isfinite(numbers)
        wanted = f"a number from {lowest} to {highest}".replace(" to inf", " on")
        if column.name in INTEGERS:
            is_sound &= (numbers % 1 == 0) & (numbers <= MAX_INT32)
            wanted = f"a whole number from {lowest} to {MAX_INT32}"
    if not is_sound.all():
        row = int(is_sound.idxmin())
        problem, fix = f"a value of {column[row]}", f"give {wanted}, or null"
        raise InputError(problem, row=row + 1, field=column.name, fix=fix)


def require_lengths(model: RequestModel, path: str | Path) -> RequestModel:
    """Return a model whose every request has an input and an output length.

    Raises InputError: a length is not modelled, or unknown for some requests.
    """
    for name in ("input_tokens", "output_tokens"):
        if name not in model.frame or model.frame[name].isna().any():
            problem = "it is missing" if name not in model.frame else "null in some joint bins"
            fix = "a workload's requests need both lengths"
            raise InputError(problem, file=path, field=name, fix=fix)
    return model


@dataclass(frozen=True)
class UseCase:
    """A use case of LLMs as a workload."""

    model: RequestModel
    """Input and output lengths, independent of each other, up to 64 values each."""
    sources: tuple[str, ...]
    """Citations of the figures that the lengths are made from."""


def use_case_names() -> list[str]:
    """Return the names of the shipped use cases."""
    return list(_shipped()["use_cases"])


def load_use_case(name: str) -> UseCase:
    """Build the workload of a shipped use case from its published figures; nothing is random.

    Which figures are published and which shapes are inferred from them is in
    `resources/workloads/use_cases.yaml`.

    Raises InputError: no such use case.
    """
    shipped = _shipped()
    if name not in shipped["use_cases"]:
        fix = f"use one of {', '.join(use_case_names())}"
        raise InputError(f"there is no use case '{name}'", file=USE_CASES_FILE, fix=fix)
    described = shipped["use_cases"][name]
    sides = [described[side] for side in ("input_tokens", "output_tokens")]
    lengths = (in_bins(*_distribution(figures), N_BINS) for figures in sides)
    cited = [figures.get(key) for figures in sides for key in _CITING]
    sources = tuple(shipped["sources"][key] for key in dict.fromkeys(filter(None, cited)))
    return UseCase(independent_model(*lengths), sources)


def use_case_sha256(name: str) -> str:
    """Return the SHA-256 of a shipped use case's figures."""
    return hashlib.sha256(json.dumps(_shipped()["use_cases"][name]).encode()).hexdigest()


@cache
def _shipped() -> dict[str, Any]:
    return read_yaml(USE_CASES_FILE)


def _distribution(figures: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return lengths and their probabilities: log-normal by its quantiles, else geometric."""
    from scipy import stats

    if "median" in figures:
        return _log_normal(figures["median"], figures["p90"], figures["highest_tokens"])
    words = figures.get("mean_words", 0.0) * figures.get("tokens_per_word", 1.0)
    shape = stats.geom(1 / figures.get("mean", words))
    lengths = np.arange(1, int(shape.isf(_TAIL)) + 1)
    return lengths, shape.pmf(lengths) / shape.cdf(lengths[-1])


def _log_normal(median: float, p90: float, highest: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the log-normal distribution with this median and p90 once cut off at `highest`."""
    from scipy import optimize, stats

    def misses(parameters: np.ndarray) -> list[float]:
        mu, log_sigma = parameters
        below = stats.norm.cdf((np.log([median, p90, highest]) - mu) / np.exp(log_sigma))
        return [below[0] / below[2] - 0.5, below[1] / below[2] - 0.9]

    start = [np.log(median), np.log(np.log(p90 / median) / stats.norm.ppf(0.9))]
    mu, log_sigma = optimize.root(misses, start, tol=1e-12).x
    edges = np.arange(highest + 1) + 0.5
    edges[0], edges[-1] = 0.0, highest
    with np.errstate(divide="ignore"):
        below = stats.norm.cdf((np.log(edges) - mu) / np.exp(log_sigma))
    return np.arange(1, highest + 1), np.diff(below) / below[-1]
