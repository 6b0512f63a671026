"""Several characterizations as one."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pandas as pd

from sextant.base.errors import InputError
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM
from sextant.points.characterizations.characterization import Characterization
from sextant.points.characterizations.features import Features

_T = TypeVar("_T", LLM, GPUProfile)
_UNKNOWN: dict[str, Any] = {"usd_per_hour": math.nan, "price_source": None, "price_as_of": None}
"""The fields of a GPU profile that are its price, where it has none."""


def combined(parts: Sequence[Characterization]) -> Characterization:
    """Return several characterizations as one; column `source` tells their points apart.

    Of two prices of a GPU profile the first one that is known counts.

    Raises:
        InputError: two are the same source, or have other facts of the same LLM or GPU profile.
    """
    if len(parts) == 1:
        return parts[0]
    names = [part.source for part in parts]
    if len(set(names)) < len(names):
        fix = "leave one out, or change `source` in its characterization.yaml"
        raise InputError(f"two sources are called {max(names, key=names.count)}", fix=fix)
    longest = [part.longest_request_tokens for part in parts]
    known = [tokens for tokens in longest if tokens is not None]
    return Characterization(
        source=" + ".join(names),
        workload_id=" + ".join(part.workload_id for part in parts),
        scenario_id=" + ".join(part.scenario_id for part in parts),
        points=pd.concat([part.points for part in parts], ignore_index=True),
        llms=_agreed({part.source: part.llms for part in parts}),
        profiles=_profiles(parts),
        predictors=[],
        features=_features([part.features for part in parts if part.features]),
        feasibility=pd.concat([part.feasibility for part in parts], ignore_index=True),
        longest_request_tokens=max(known) if len(known) == len(parts) else None,
        descriptions=tuple(each for part in parts for each in part.descriptions),
        left_out=tuple(each for part in parts for each in part.left_out),
    )


def _agreed(facts: Mapping[str, Mapping[str, _T]]) -> dict[str, _T]:
    """Return the facts of all sources by id, after those of the same id were compared."""
    found: dict[str, tuple[str, _T]] = {}
    for source, of_source in facts.items():
        for name, value in of_source.items():
            other, known = found.setdefault(name, (source, value))
            if known != value:
                problem = f"{other} and {source} have other facts of {name!r}"
                fix = "rename it in one of them, or give one source alone"
                raise InputError(problem, field="--source", fix=fix)
    return {name: value for name, (_, value) in sorted(found.items())}


def _profiles(parts: Sequence[Characterization]) -> dict[str, GPUProfile]:
    known = {
        name: {field: getattr(profile, field) for field in _UNKNOWN}
        for part in reversed(parts)
        for name, profile in part.profiles.items()
        if not math.isnan(profile.usd_per_hour)
    }
    unpriced = {
        part.source: {
            # Infinite, for one nan is not equal to another.
            name: replace(profile, **{**_UNKNOWN, "usd_per_hour": math.inf}, gpu_model=None)
            for name, profile in part.profiles.items()
        }
        for part in parts
    }
    return {
        name: replace(profile, **known.get(name, _UNKNOWN))
        for name, profile in _agreed(unpriced).items()
    }


def _features(parts: Sequence[Features]) -> Features | None:
    if not parts:
        return None
    llms, profiles = zip(*parts, strict=True)
    return Features(pd.concat(llms), pd.concat(profiles))
