"""A characterization: all points of one source, with the facts they refer to."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pandas as pd

from sextant.base.errors import InputError
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM
from sextant.points.features import Features
from sextant.points.points_file import DescriptionFile

DEFAULT_MEMORY_UTILIZATION = 0.9
"""vLLM's default of `--gpu-memory-utilization`."""
FILE = "characterization.yaml"


@dataclass(frozen=True, kw_only=True)
class Description(DescriptionFile):
    """What a folder says of its points; `defaults` by column."""

    defaults: Mapping[str, Any] = field(default_factory=dict)  # type: ignore[assignment]


@dataclass(frozen=True)
class Characterization:
    """The points of one source, workload and scenario, ready for the predictors."""

    source: str
    workload_id: str
    scenario_id: str
    points: pd.DataFrame
    llms: dict[str, LLM]
    profiles: dict[str, GPUProfile]
    predictors: list[str]
    """Those that the store has scores of."""
    features: Features | None
    """What predictors learn from, where it came with the source; else computed from facts."""
    feasibility: pd.DataFrame
    longest_request_tokens: int | None
    """None for an archive, whose workload is not known in full."""
    descriptions: tuple[Description, ...] = ()
    """What folders say of their points; none for a store."""
    left_out: tuple[str, ...] = ()
    """What is not among the points, and why, a sentence each."""

    @property
    def has_fixed_lengths(self) -> bool:
        """Whether each point has requests of its own lengths, not one workload's for all."""
        return any(each.lengths == "fixed" for each in self.descriptions)

    @property
    def memory_utilization(self) -> float:
        """Fraction of the memory that servers may use; vLLM's default if all ran already."""
        known = [each.memory_utilization for each in self.descriptions if each.memory_utilization]
        known += self.feasibility["memory_utilization"].dropna().tolist()
        return max(known, default=DEFAULT_MEMORY_UTILIZATION)


_T = TypeVar("_T", LLM, GPUProfile)


def combined(parts: Sequence[Characterization]) -> Characterization:
    """Return several characterizations as one; column `source` has the source of each point.

    If a GPU profile has several prices, the first one counts.

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
    features = [part.features for part in parts if part.features]
    return Characterization(
        source=" + ".join(names),
        workload_id=" + ".join(part.workload_id for part in parts),
        scenario_id=" + ".join(part.scenario_id for part in parts),
        points=pd.concat([part.points for part in parts], ignore_index=True),
        llms=_agreed({part.source: part.llms for part in parts}),
        profiles=_priced(parts),
        predictors=[],
        features=Features(*map(pd.concat, zip(*features, strict=True))) if features else None,
        feasibility=pd.concat([part.feasibility for part in parts], ignore_index=True),
        longest_request_tokens=max(known) if len(known) == len(parts) else None,
        descriptions=tuple(each for part in parts for each in part.descriptions),
        left_out=tuple(each for part in parts for each in part.left_out),
    )


def _agreed(facts: Mapping[str, Mapping[str, _T]]) -> dict[str, _T]:
    """Return the facts of all sources by id; InputError if two sources have other facts."""
    first: dict[str, tuple[str, _T]] = {}
    for source, of_source in facts.items():
        for name, value in of_source.items():
            other, known = first.setdefault(name, (source, value))
            if known != value:
                problem = f"{other} and {source} have other facts of {name!r}"
                fix = "rename it in one of them, or give one source alone"
                raise InputError(problem, field="--source", fix=fix)
    return {name: value for name, (_, value) in sorted(first.items())}


def _priced(parts: Sequence[Characterization]) -> dict[str, GPUProfile]:
    """Return the profiles of all sources, which have to agree but for their prices."""
    # Zero, because one nan is not equal to another.
    bare: dict[str, Any] = {
        "usd_per_hour": 0.0,
        "price_source": None,
        "price_as_of": None,
        "gpu_model": None,
    }
    unpriced = {
        part.source: {name: replace(profile, **bare) for name, profile in part.profiles.items()}
        for part in parts
    }
    priced: dict[str, GPUProfile] = {}
    for part in parts:
        for name, profile in part.profiles.items():
            if name not in priced or math.isnan(priced[name].usd_per_hour):
                priced[name] = replace(profile, gpu_model=None)
    return {name: priced[name] for name in _agreed(unpriced)}


def summary(known: Characterization, place: str) -> dict[str, Any]:
    """Return what a characterization holds, for `--json` and `as_text`.

    Numbers and days are `[least, most]`, or None where they are not known.
    """
    points = known.points
    profiles = [known.profiles[name] for name in points["gpu_profile_id"].unique()]
    named = {"llms": "llm_id", "engines": "engine", "precisions": "precision"}
    ranges = ("users", "request_rate_rps", "input_tokens", "output_tokens", "measured_on")
    return {
        "source": known.source,
        "place": place,
        "licences": [each.licence for each in known.descriptions],
        "n_points": len(points),
        **{key: sorted(points[name].dropna().unique()) for key, name in named.items()},
        "gpus": sorted({profile.gpu.gpu_id for profile in profiles}),
        **{name: _range(points[name].dropna()) for name in ranges},
    }


def _range(known: pd.Series) -> list[Any] | None:
    ends = [known.min(), known.max()]
    if known.empty:
        return None
    return ends if isinstance(ends[0], str) else [float(end) for end in ends]


def as_text(row: dict[str, Any]) -> str:
    """Return a summary as lines for a person."""

    def span(name: str, unit: str) -> list[str]:
        ends = [f"{value:,.4g}" for value in row[name] or ()]
        return [f"{' to '.join(dict.fromkeys(ends))} {unit}"] if ends else []

    loads = span("users", "users") or span("request_rate_rps", "requests per second")
    lengths = span("input_tokens", "input tokens") + span("output_tokens", "output tokens")
    days = " to ".join(dict.fromkeys(row["measured_on"] or ["a time that is not known"]))
    how = ", ".join(row["precisions"]) or "precisions as the LLMs' configurations say"
    return "\n".join(
        [
            f"{row['source']} ({row['place']})",
            f"  {row['n_points']:,} points: {len(row['llms'])} LLMs on {', '.join(row['gpus'])}",
            f"  {', '.join(row['engines']) or 'engine not known'}; {how}",
            f"  {'; '.join(loads + lengths)}",
            f"  measured at {days}; {', '.join(row['licences']) or 'your own'}",
            f"  LLMs: {', '.join(row['llms'])}",
        ]
    )
