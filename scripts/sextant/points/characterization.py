"""A characterization: all points of one source, with the facts of its LLMs and GPU profiles.

`combined` makes one of several. `folder` reads one from a folder, `measured` from a store or cells.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pandas as pd

from sextant.base.errors import InputError
from sextant.base.files import jsonable
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM
from sextant.points.folder_sheets import Description
from sextant.points.frame import Features

CHAT_SOURCE = "archive:llm-pilot"
"""The source with a workload of its own, of TGIS; the others that ship are of today's engines."""


@dataclass(frozen=True)
class Characterization:
    """The points of one source, workload and scenario, ready for the predictors."""

    source: str
    workload_id: str
    scenario_id: str
    points: pd.DataFrame
    llms: dict[str, LLM]
    profiles: dict[str, GPUProfile]
    feasibility: pd.DataFrame
    features: Features | None
    """Features that came with the source; None: predictors learn from computed features."""
    longest_request_tokens: int | None = None  # None: the workload is not known in full
    predictors: Sequence[str] = ()  # predictors that the store has scores of
    descriptions: tuple[Description, ...] = ()  # one per folder; none for a store
    left_out: tuple[str, ...] = ()  # one sentence for what is not among the points, and why
    priced_by_sheet: frozenset[str] = frozenset()
    """GPU profiles at the price of a pipeline's sheet, which holds before tables that ship."""

    @property
    def has_fixed_lengths(self) -> bool:
        """Whether each point has requests of its own lengths, not one workload's for all."""
        return any(description.lengths == "fixed" for description in self.descriptions)

    @property
    def memory_utilization(self) -> float:
        """Fraction of the memory that servers may use; vLLM's default (0.9) if all ran already."""
        described = [description.memory_utilization for description in self.descriptions]
        measured = self.feasibility["memory_utilization"].dropna().tolist()
        return max([*filter(None, described), *measured], default=0.9)

    def description(self, licence: str, attribution: str) -> Description:
        """Return the description of a folder with these points, which were measured here."""
        return Description(
            source=self.source,
            licence=licence,
            attribution=attribution,
            statistic="median",
            load="closed_loop" if self.points["users"].notna().all() else "rate",
            lengths="varying",
            memory_utilization=self.memory_utilization,
            longest_request_tokens=self.longest_request_tokens,
            workload_id=self.workload_id,
            scenario_id=self.scenario_id,
        )


_T = TypeVar("_T", LLM, GPUProfile)


def combined(parts: Sequence[Characterization]) -> Characterization:
    """Return several characterizations as one, with a column `source`.

    The first price of a profile counts. InputError: a source twice, or other facts of the same LLM
    or profile.
    """
    if len(parts) == 1:
        return parts[0]
    names = [part.source for part in parts]
    if len(set(names)) < len(names):
        fix = "leave one out, or change `source` in its characterization.yaml"
        raise InputError(f"two sources are called {max(names, key=names.count)}", fix=fix)

    longest = [part.longest_request_tokens for part in parts]
    features = [part.features for part in parts if part.features]

    priced: dict[str, GPUProfile] = {}
    by_sheet: set[str] = set()
    for part in parts:
        for name, profile in part.profiles.items():
            if name not in priced or math.isnan(priced[name].usd_per_hour):
                priced[name] = replace(profile, gpu_model=None)
                by_sheet |= part.priced_by_sheet & {name}

    # Profiles have to agree but for their prices. Zero, because one nan is not equal to another.
    bare: dict[str, Any] = dict.fromkeys(("price_source", "price_as_of", "gpu_model"))
    unpriced = {
        part.source: {
            name: replace(profile, **bare, usd_per_hour=0.0)
            for name, profile in part.profiles.items()
        }
        for part in parts
    }

    return Characterization(
        source=" + ".join(names),
        workload_id=" + ".join(part.workload_id for part in parts),
        scenario_id=" + ".join(part.scenario_id for part in parts),
        points=pd.concat([part.points for part in parts], ignore_index=True),
        llms=_agreed({part.source: part.llms for part in parts}),
        profiles={name: priced[name] for name in _agreed(unpriced)},
        features=Features(*map(pd.concat, zip(*features, strict=True))) if features else None,
        feasibility=pd.concat([part.feasibility for part in parts], ignore_index=True),
        longest_request_tokens=None if None in longest else max(filter(None, longest)),
        descriptions=tuple(description for part in parts for description in part.descriptions),
        left_out=tuple(sentence for part in parts for sentence in part.left_out),
        priced_by_sheet=frozenset(by_sheet),
    )


def _agreed(facts: Mapping[str, Mapping[str, _T]]) -> dict[str, _T]:
    """Return the facts of all sources by id; InputError if two sources have other facts."""
    first: dict[str, tuple[str, _T]] = {}
    for source, of_source in facts.items():
        for name, value in of_source.items():
            first_source, first_value = first.setdefault(name, (source, value))
            if first_value != value:
                problem = f"{first_source} and {source} have other facts of {name!r}"
                fix = "rename it in one of them, or give one source alone"
                raise InputError(problem, field="--source", fix=fix)
    return {name: value for name, (_, value) in sorted(first.items())}


def characterization_summary(characterization: Characterization, location: str) -> dict[str, Any]:
    """Return what `--format json` and `as_text` say; ranges are `[least, most]`, None: unknown."""
    points = characterization.points
    profiles = characterization.profiles
    gpus = {profiles[name].gpu.gpu_id for name in points["gpu_profile_id"].unique()}
    named = {"llms": "llm_id", "engines": "engine", "precisions": "precision"}
    ranges = ("users", "request_rate_rps", "input_tokens", "output_tokens", "measured_on")
    ends = {
        name: None if points[name].isna().all() else jsonable([*points[name].agg(["min", "max"])])
        for name in ranges
    }
    return {
        "source": characterization.source,
        "place": location,
        "licences": [description.licence for description in characterization.descriptions],
        "n_points": len(points),
        **{key: sorted(points[name].dropna().unique()) for key, name in named.items()},
        "gpus": sorted(gpus),
        **ends,
    }


def characterization_text(row: dict[str, Any]) -> str:
    """Return a summary as lines for a person."""

    def span(name: str, unit: str) -> list[str]:
        ends = [f"{value:,.4g}" for value in row[name] or ()]
        return [f"{' to '.join(dict.fromkeys(ends))} {unit}"] if ends else []

    loads = span("users", "users") or span("request_rate_rps", "requests per second")
    lengths = span("input_tokens", "input tokens") + span("output_tokens", "output tokens")
    days = " to ".join(dict.fromkeys(row["measured_on"] or ["a time that is not known"]))
    how = ", ".join(row["precisions"]) or "precisions as the LLMs' configurations say"
    return f"""{row["source"]} ({row["place"]})
  {row["n_points"]:,} points: {len(row["llms"])} LLMs on {", ".join(row["gpus"])}
  {", ".join(row["engines"]) or "engine not known"}; {how}
  {"; ".join(loads + lengths)}
  measured at {days}; {", ".join(row["licences"]) or "your own"}
  LLMs: {", ".join(row["llms"])}"""
