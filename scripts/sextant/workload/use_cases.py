"""Four shipped workloads, from published figures: what LLMs are used for (workload choice)."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from sextant import PROJECT
from sextant.base.errors import InputError
from sextant.base.sheets import read_yaml
from sextant.workload.request_model import N_BINS, RequestModel, in_bins, independent_model

USE_CASES_FILE = PROJECT / "resources" / "workloads" / "use_cases.yaml"
LENGTHS = ("input_tokens", "output_tokens")
_CITING = ("source", "conversion")
_TAIL = 1e-9
"""Probability beyond which the geometric distribution is cut off."""


@dataclass(frozen=True)
class UseCase:
    """A use case of LLMs as a workload."""

    name: str
    description: str
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

    Raises:
        InputError: no such use case.
    """
    shipped = _shipped()
    if name not in shipped["use_cases"]:
        fix = f"use one of {', '.join(use_case_names())}"
        raise InputError(f"there is no use case '{name}'", file=USE_CASES_FILE, fix=fix)
    described = shipped["use_cases"][name]
    lengths = (in_bins(*_distribution(described[side]), N_BINS) for side in LENGTHS)
    cited = [described[parameter].get(key) for parameter in LENGTHS for key in _CITING]
    sources = tuple(shipped["sources"][key] for key in dict.fromkeys(filter(None, cited)))
    return UseCase(name, described["description"], independent_model(*lengths), sources)


def use_case_sha256(name: str) -> str:
    """Return the SHA-256 of a shipped use case's figures."""
    return hashlib.sha256(json.dumps(_shipped()["use_cases"][name]).encode()).hexdigest()


@cache
def _shipped() -> dict[str, Any]:
    return read_yaml(USE_CASES_FILE)


def _distribution(figures: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    if "median" in figures:
        return _log_normal(figures["median"], figures["p90"], figures["highest_tokens"])
    words = figures.get("mean_words", 0.0) * figures.get("tokens_per_word", 1.0)
    return _geometric(figures.get("mean", words))


def _geometric(mean: float) -> tuple[np.ndarray, np.ndarray]:
    from scipy import stats

    shape = stats.geom(1 / mean)
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
