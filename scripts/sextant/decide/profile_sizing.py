"""How many replicas each of several GPU profiles needs.

`size_profiles` sizes all profiles for the same traffic and target (`size_by_simulation`). What one
profile needs bounds what a better one needs. A brief sizing takes draws only of the profiles that
may be the cheapest: the likeliest law tells which. `is_near` says whether more draws could change
the answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from sextant.decide.simulated_sizing import (
    DEFAULT_SIZING,
    SimulatedReplica,
    Sizing,
    SizingDraws,
    SizingSettings,
    size_by_simulation,
)
from sextant.decide.sizing import draws_needed, probability_of
from sextant.decide.windows import Target
from sextant.facts.gpu import GPUProfile
from sextant.workload.requests import Traffic


def size_profiles(
    servers: Mapping[str, SimulatedReplica],
    traffic: Traffic,
    target: Target,
    confidence: float,
    settings: SizingSettings = DEFAULT_SIZING,
    harder: Mapping[str, Sizing] = MappingProxyType({}),
    easier: Mapping[str, Sizing] = MappingProxyType({}),
) -> dict[str, Sizing]:
    """Return what each GPU profile needs (`size_by_simulation`).

    All see the same draws of law and traffic, the likeliest law first. In each of them a profile
    needs no more replicas than one that it is at least as good as (`is_as_good`), nor than for a
    `harder` question of no less load and no looser limits.

    With `brief_draws` no more than these are taken, or as many as the confidence needs. Profiles
    are left out of which one replica costs more than an answer of this confidence, and are without
    `needs` where they miss the target by the likeliest law or cost more by it than such an answer,
    or where `most_drawn` others cost less by it. Where the best answer `is_best_enough`, no more is
    tried of a profile than may be better: no numbers that cost more, and no draws once too many
    have failed; nor a profile that costs more than that for an `easier` question.
    """
    search = _Search(servers, traffic, target, confidence, settings, harder, easier)
    return search.brief() if settings.brief_draws else search.whole()


@dataclass
class _Search:
    """The sizing of several GPU profiles, one after the other, and what it has found so far."""

    servers: Mapping[str, SimulatedReplica]
    traffic: Traffic
    target: Target
    confidence: float
    settings: SizingSettings
    harder: Mapping[str, Sizing]
    easier: Mapping[str, Sizing]
    sizings: dict[str, Sizing] = field(default_factory=dict)
    """What the draws gave, by GPU profile."""
    likeliest: dict[str, Sizing] = field(default_factory=dict)
    """What the likeliest law gave, by GPU profile."""
    best_usd: float = np.inf
    """Price of the cheapest answer so far, in USD/h."""

    def whole(self) -> dict[str, Sizing]:
        """Take all draws of all GPU profiles, the weakest first."""
        servers = self.servers
        for name in sorted(servers, key=lambda name: float(np.prod(might(servers[name].profile)))):
            self.sizings[name] = self._size(name, self._n_draws)
        return {name: self.sizings[name] for name in servers}

    def brief(self) -> dict[str, Sizing]:
        """Take draws only of the GPU profiles that may be the cheapest by the likeliest law."""
        most_drawn = self.settings.most_drawn
        if self.settings.is_best_enough:
            self.best_usd = min(filter(None, map(_drawn_usd, self.harder.values())), default=np.inf)
        least_usd = self._least_usd()
        demand = self.traffic.drawn(0)

        def about_usd(name: str) -> float:
            bound = self.servers[name].bound(demand)
            return least_usd[name] * max(demand.rate_rps / bound.rate_rps if bound else 1.0, 1.0)

        for name in sorted(self.servers, key=about_usd if most_drawn else least_usd.__getitem__):
            if most_drawn is None:
                self._take_draws(least_usd[name])
            if least_usd[name] <= min(self.best_usd, _last(self.likeliest, most_drawn)):
                self.likeliest[name] = self._size(name, 1)
        self._take_draws(np.inf)
        return {
            name: self.sizings.get(name, replace(sizing, needs=()))
            for name, sizing in self.likeliest.items()
        }

    @property
    def _n_draws(self) -> int:
        return max(server.n_draws for server in self.servers.values())

    def _least_usd(self) -> dict[str, float]:
        """Return the least that each GPU profile costs: one replica, or its easier answer."""
        least_usd = {name: server.profile.usd_per_hour for name, server in self.servers.items()}
        if self.settings.is_best_enough:
            least_usd |= {
                name: _drawn_usd(sizing) or np.inf
                for name, sizing in self.easier.items()
                if sizing.needs and name in self.servers
            }
        return least_usd

    def _take_draws(self, below_usd: float) -> None:
        """Take draws of the profiles that cost no more than this by the likeliest law."""
        n_few = max(self.settings.brief_draws, draws_needed(self.confidence))
        usd = {
            name: sizing.usd_per_hour
            for name, sizing in self.likeliest.items()
            if name not in self.sizings
        }
        most_drawn = self.settings.most_drawn or np.inf
        for usd_per_hour, name in sorted((cost, name) for name, cost in usd.items() if cost):
            if usd_per_hour <= min(below_usd, self.best_usd) and len(self.sizings) < most_drawn:
                sizing = self._size(name, min(n_few, self._n_draws), self.likeliest[name])
                self.sizings[name] = sizing
                self.best_usd = min(self.best_usd, sizing.usd_per_hour or np.inf)

    def _size(self, name: str, n_draws: int, earlier: Sizing | None = None) -> Sizing:
        """Return what a GPU profile needs in the first draws; `earlier` is what fewer gave."""
        server = self.servers[name]
        most_usd = self.settings.most_usd_per_hour
        hardest: list[int] = []
        if self.settings.is_best_enough:
            if n_draws > 1 and min(self.best_usd, most_usd) < np.inf:
                hardest = self._hardest(n_draws)
            last = _last(self.likeliest, self.settings.most_drawn) if n_draws == 1 else np.inf
            most_usd = min(most_usd, self.best_usd, last)
        worse = [
            sizing
            for sizing in self.sizings.values()
            if is_as_good(server.profile, sizing.server.profile)
        ]
        worse += [self.harder[name]] if name in self.harder else []
        return size_by_simulation(
            server,
            self.traffic,
            self.target,
            self.confidence,
            replace(self.settings, most_usd_per_hour=most_usd),
            SizingDraws(n_draws, earlier, worse, hardest),
        )

    def _hardest(self, n_draws: int) -> list[int]:
        """Return the order of the draws, the hardest first: a draw is hard for all profiles."""
        others = [*self.sizings.values(), *self.harder.values(), *self.easier.values()]
        alike = (sizing.needs for sizing in others if len(sizing.needs) == n_draws)
        needs = next(alike, [0] * n_draws)
        return [int(draw) for draw in np.argsort(-np.array(needs), kind="stable")]


def _drawn_usd(sizing: Sizing) -> float | None:
    """Return the price of what draws show to be enough."""
    return sizing.usd_per_hour if len(sizing.needs) > 1 else None


def _last(likeliest: Mapping[str, Sizing], n: int | None) -> float:
    """Return what the n-th cheapest costs, infinite where there are fewer."""
    usd = sorted(sizing.usd_per_hour or np.inf for sizing in likeliest.values())
    return usd[n - 1] if n is not None and len(usd) >= n else np.inf


def is_near(sizings: Sequence[Sizing], confidence: float) -> bool:
    """Return whether one draw more or less that meets the target could change the cheapest answer.

    With one draw more a profile's answer would cost `low` USD/h, with one draw less `high`. The
    answer may change if these differ and `low` is not above the least `high` of all profiles.
    """
    ends = []
    for sizing in sizings:
        if (n := len(sizing.needs)) > 1:
            needs = np.sort([*sizing.needs, np.inf])
            is_enough = probability_of(np.arange(1, n + 1), n) >= confidence - 1e-9
            first = int(is_enough.argmax())
            ends.append(sizing.server.profile.usd_per_hour * needs[[max(first - 1, 0), first + 1]])
    surest = min((high for _, high in ends), default=np.inf)
    return any(low < high and low <= surest for low, high in ends)


def might(profile: GPUProfile) -> np.ndarray:
    """Return memory (GiB), bandwidth (GB/s) and TFLOPS (16 bits) of all GPUs together."""
    gpu = profile.gpu
    figures = [gpu.memory_gib, gpu.memory_bandwidth_gb_s, gpu.dense_16bit_tflops]
    return profile.n_gpus * np.array(figures)


def is_as_good(profile: GPUProfile, other: GPUProfile) -> bool:
    """Return whether a profile is of the same kind and has no less than another of anything.

    Compared are the number of GPUs, and memory, bandwidth and FLOPS of one GPU.
    """
    n = profile.n_gpus
    of_other = other.n_gpus
    is_enough = n >= of_other and bool((might(profile) / n >= might(other) / of_other).all())
    return is_enough and profile.gpu.kind == other.gpu.kind
