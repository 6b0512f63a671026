"""Percentiles of the latencies of a case's users, by simulation of the fitted law."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from sextant.ask.case import Case
from sextant.ask.requests import requests_of_case
from sextant.ask.scheduling import Settings, scheduler_of
from sextant.facts.gpu import GPUProfile
from sextant.facts.slo import PERCENTILE_PREFIX, SLO, factor
from sextant.law.means import BatchLimits
from sextant.law.roofline import Roofline
from sextant.law.user_percentiles import (
    UserFactors,
    UserLatencies,
    UserRequests,
    percentile_factors,
)
from sextant.points.frame import BASES, KEYS, TARGETS, has_percentiles
from sextant.simulate.server import Scheduler, StepLaw
from sextant.simulate.simulation import on_threads

_MOST = 0.5
"""Share of the points above which a percentile, or a mean, is what the points have."""
_CROWDED = (0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
"""Users over the requests that a replica holds, between which latencies bend. Below the first,
powers of 2 tell them; beyond the last most users wait to be let in, and the spread of what they
wait hardly changes."""
SIMULATED_USERS = (
    "Latencies of users are those of simulated users who come at all times. Most measurements are "
    "means of load tests, which count a first wave of requests that come all at once."
)
_SIDES = (("ttft", "nttft"), ("itl", "tpot"))
"""Latencies of the first token, and of the later ones."""


class SimulatedLatencies(NamedTuple):
    """Latencies that a question asks for and most points lack."""

    asked: UserLatencies
    is_mean: tuple[bool, bool]
    """Whether most points have means of first and later tokens; else they have medians."""


def latencies_to_simulate(points: pd.DataFrame, slo: SLO) -> SimulatedLatencies | None:
    """Return which latencies an SLO asks for that most points lack; None: most have them.

    The percentile of the first token decides: it is the one that a load test's first wave moves.
    """
    first, later = (_has_any(points, names) for names in _SIDES)
    has_asked = has_percentiles(points, slo.percentiles)
    if not first.any() or has_asked[first, 0].mean() > _MOST:
        return None
    has_median = has_percentiles(points, (50, 50))
    is_mean = (
        bool(has_median[first, 0].mean() <= _MOST),
        bool(later.any() and has_median[later, 1].mean() <= _MOST),
    )
    limited = tuple(name for name in _SIDES[1] if name in slo.limits)
    asked = UserLatencies(
        slo.first_token, limited or ("tpot",), slo.percentiles, is_of_e2e=[*slo.limits] == ["e2e"]
    )
    return SimulatedLatencies(asked, is_mean)


def _has_any(points: pd.DataFrame, names: Sequence[str]) -> np.ndarray:
    """Return which points have a mean or a median of some latencies."""
    columns = [f"{statistic}_{name}_ms" for statistic in ("mean", "median") for name in names]
    has: np.ndarray = points.reindex(columns=columns).notna().any(axis=1).to_numpy()
    return has


class _LevelsBeside(NamedTuple):
    """Simulated numbers of users on both sides of another, and how far it is from the lower."""

    low: int
    high: int
    share: float  #: Of the difference of the logarithms.


def _beside(levels: np.ndarray, users: float) -> _LevelsBeside:
    """Return between which of the simulated numbers of users another lies."""
    users = float(np.clip(users, levels[0], levels[-1]))
    place = int(np.clip(np.searchsorted(levels, users), 1, max(len(levels) - 1, 1)))
    low, high = levels[place - 1], levels[min(place, len(levels) - 1)]
    if high == low or users == low:
        return _LevelsBeside(int(low), int(low), 0.0)
    return _LevelsBeside(int(low), int(high), math.log(users / low) / math.log(high / low))


@dataclass(frozen=True, eq=False)
class UserPercentiles:
    """What turns the latencies of a fitted law into the percentiles that are asked for."""

    case: Case
    model: Roofline
    simulated: SimulatedLatencies
    gpu_profiles: Mapping[str, GPUProfile]
    """All that may be asked about."""
    _found: dict[tuple[str, int], UserFactors] = field(default_factory=dict, repr=False)
    """By GPU profile and users."""
    _schedulers: dict[str, Scheduler] = field(default_factory=dict, repr=False)

    def factors(self, keys: pd.DataFrame) -> np.ndarray:
        """Return percentiles over what the law gives, of nTTFT and ITL, (rows, 2).

        Args:
            keys: `gpu_profile_id, users`; between the users of `_levels` it is interpolated.
        """
        both = self._over_published(keys)
        return np.where(self.simulated.is_mean, both.over_mean, both.over_median)

    def _over_published(self, keys: pd.DataFrame) -> UserFactors:
        """Return the factors at keys, each (rows, 2)."""
        names = keys["gpu_profile_id"].astype(str).to_numpy()
        levels = {name: self._levels(name) for name in dict.fromkeys(names)}
        users = keys["users"].to_numpy(float)
        beside = [_beside(levels[name], it) for name, it in zip(names, users, strict=True)]
        ends = pd.DataFrame(beside, columns=_LevelsBeside._fields)
        pairs = [[*zip(names, ends[end], strict=True)] for end in ("low", "high")]
        self._simulate({*pairs[0], *pairs[1]})

        below, above = (np.log([self._found[pair] for pair in level]) for level in pairs)
        share = ends["share"].to_numpy()[:, None, None]
        found = np.exp((1 - share) * below + share * above).reshape(len(keys), 2, 2)
        return UserFactors(found[:, 0], found[:, 1])

    def filled(self, points: pd.DataFrame) -> pd.DataFrame:
        """Return points of users with the asked percentiles, from means and medians.

        `BASES` say of which: a percentile that was measured stays.
        """
        is_of_users = points["users"].notna()
        rows = points[is_of_users]
        over = self._over_published(rows)
        percentiles = self.simulated.asked.percentiles
        has = has_percentiles(rows, percentiles)
        columns: dict[str, pd.Series] = {}
        for side, (names, basis) in enumerate(zip(_SIDES, BASES, strict=True)):
            prefix = PERCENTILE_PREFIX[percentiles[side]]
            for name in names:
                column = f"{prefix}_{name}_ms"
                median_ms = rows[f"median_{name}_ms"] * over.over_median[:, side]
                mean_ms = rows[f"mean_{name}_ms"] * over.over_mean[:, side]
                columns[column] = rows[column].where(has[:, side], median_ms.fillna(mean_ms))
            median_ms, mean_ms = (rows[f"{it}_{names[0]}_ms"] for it in ("median", "mean"))
            basis_ms = median_ms.fillna(mean_ms).where(~has[:, side])
            statistics = np.where(median_ms.notna(), "median", "mean")
            columns[basis] = pd.Series(np.where(basis_ms.isna(), "", statistics), rows.index)
            columns[f"{basis}_ms"] = basis_ms
        return pd.concat([rows.assign(**columns), points[~is_of_users]])

    def _simulate(self, pairs: set[tuple[str, int]]) -> None:
        """Simulate numbers of users on GPU profiles that were not simulated yet."""
        missing = sorted(pairs - self._found.keys())
        laws = self._laws({name for name, _ in missing})

        def run(name: str, users: int) -> UserFactors:
            if name not in laws:
                return self._without_steps()
            return percentile_factors(
                laws[name],
                self._scheduler(name),
                users,
                self._requests,
                self.simulated.asked,
                self.case.question.seed,
            )

        factors = on_threads(run, *zip(*missing, strict=True)) if missing else []
        self._found.update(zip(missing, factors, strict=True))

    def _scheduler(self, name: str) -> Scheduler:
        if name not in self._schedulers:
            profile = self.gpu_profiles[name]
            self._schedulers[name] = scheduler_of(
                self.case, Settings.of(self.case.question), profile
            )
        return self._schedulers[name]

    def _levels(self, name: str) -> np.ndarray:
        """Return the numbers of users, ascending, that are simulated on a GPU profile."""
        limits = BatchLimits.of(self._scheduler(name))
        held = max(float(limits.most_decoding(self._requests.load)), 1.0)
        crowded = np.ceil(held * np.array(_CROWDED))
        doubled = 2.0 ** np.arange(math.ceil(math.log2(crowded[0])))
        return np.unique([*doubled, *crowded])

    def _laws(self, names: set[str]) -> dict[str, StepLaw]:
        """Return the likeliest law of a step on GPU profiles, where one is known."""
        if not names:
            return {}
        ordered = sorted(names)
        keys = pd.DataFrame([(self.case.llm_id, name, 1) for name in ordered], columns=KEYS)
        # The cache saves prompt tokens of a simulation; the law is that of the tokens computed.
        uncached = self.case.varied({"prefix_hit_rate": 0.0})
        rows = uncached.asked_rows(self.model, keys, self.gpu_profiles)
        rows = rows[rows["is_eager"] == 0].reset_index(drop=True)
        if rows.empty:
            return {}
        laws = self.model.step_laws(rows, 0, self.case.question.seed)
        names_of_laws = rows["gpu_profile_id"]
        return {name: StepLaw.of(terms[0]) for name, terms in zip(names_of_laws, laws, strict=True)}

    def _without_steps(self) -> UserFactors:
        """Return factors of other servers, where no step can be simulated: means are medians."""
        percentiles = self.simulated.asked.percentiles
        factors = np.array(
            [factor(it, 50, at) for it, at in zip(TARGETS, percentiles, strict=True)]
        )
        return UserFactors(factors, factors)

    @cached_property
    def _requests(self) -> UserRequests:
        drawn = requests_of_case(self.case).drawn(0)
        hit_rate = self.case.question.prefix_hit_rate or 0.0
        return UserRequests(drawn.input_tokens, drawn.output_tokens, hit_rate)
