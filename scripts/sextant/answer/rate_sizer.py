"""How many replicas requests that arrive at random need, for the questions of an answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from sextant.ask.case import Case
from sextant.ask.laws import candidate_laws, chosen_laws
from sextant.ask.probe_laws import missed_notes
from sextant.ask.requests import requests_of_case
from sextant.ask.scheduling import Settings
from sextant.base.errors import InputError
from sextant.decide.drawn_latencies import DrawnLatencies, latencies_at
from sextant.decide.latency_surface import (
    BorneRates,
    LatencySurface,
    ReplicaLaws,
)
from sextant.decide.replica_sizing import (
    Days,
    borne_of,
    is_read,
    is_refusing,
    replica_loads,
    whole_replicas,
)
from sextant.decide.replicas import SimulatedReplica, simulated_replica
from sextant.decide.windows import Target
from sextant.facts.slo import SLO
from sextant.law.roofline import Roofline
from sextant.workload.requests import SteadyTraffic

N_DRAWS = 1000
"""Draws of the law beside the likeliest."""
LITTLES_LAW = "by Little's law at median latencies"
_STEADY = (
    "The rate is taken as a steady load, {how}. Requests that arrive at random may need more "
    "replicas; `sextant capacity` simulates them where steps are known."
)


@dataclass(frozen=True)
class Cheapest:
    """Which GPU profiles are worth drawing: the cheapest by the likeliest law."""

    most_usd_per_hour: float
    """No option above this price is sought."""
    n: int | None = None
    """How many of them; None: all."""


@dataclass(frozen=True)
class RateSizer:
    """How the replicas of each GPU profile serve requests that arrive at random."""

    servers: Mapping[str, SimulatedReplica]
    unknown: Mapping[str, str]
    """Why other profiles have no law of a step."""
    model: Roofline
    """What the laws come from."""
    traffic: SteadyTraffic
    """At any rate."""
    surface: LatencySurface
    """Latencies of these requests at any load."""
    risk: float
    """Share of the draws that may fail at the answer."""
    borne: dict[str, BorneRates] = field(default_factory=dict, repr=False)
    """What was read already, by GPU profile."""

    @classmethod
    def of(cls, case: Case, model: Roofline, risk: float) -> "RateSizer":
        """Return the sizer of a case. Raises InputError where the points have no law of a step.

        Args:
            case: the LLM, and how it is served.
            model: what `fit_medians` returns, for any LLM of the same measurements.
            risk: share of the draws that may fail at the answer.
        """
        laws = candidate_laws(case, Settings.of(case.question), N_DRAWS, model)
        if not laws.servers:
            raise InputError("no GPU profile has a law of a step")
        traffic = requests_of_case(case)
        surface = laws.surface(traffic, case.question.prefix_hit_rate)
        return cls(_servers(case, laws.servers), laws.unknown, model, traffic, surface, risk)

    def beside(self, case: Case, cheapest: Cheapest) -> "RateSizer":
        """Return the sizer of another case with the same requests, of the cheapest profiles alone.

        The surface is that of the answer: the laws of other ways to serve differ in degree.
        Raises InputError where no profile is cheap enough.
        """

        def choose(likeliest: Mapping[str, ReplicaLaws]) -> list[str]:
            servers = _servers(case, likeliest)
            sizer = replace(self, servers=servers, borne={})
            needs = sizer.likeliest(case.question.slo, [*servers]).iloc[0]
            usd_by_profile = {
                name: needs[name] * case.gpu_profiles[name].usd_per_hour for name in servers
            }
            ranked = sorted(usd_by_profile, key=lambda name: (usd_by_profile[name], name))
            kept = [name for name in ranked if usd_by_profile[name] <= cheapest.most_usd_per_hour]
            if not kept:
                raise InputError("no GPU profile is cheap enough")
            return kept[: cheapest.n]

        laws = chosen_laws(case, Settings.of(case.question), N_DRAWS, self.model, choose)
        return replace(self, servers=_servers(case, laws.servers), unknown={}, borne={})

    def loads(self, slo: SLO, profile_ids: Sequence[str]) -> pd.DataFrame:
        """Return the load in replicas that bear just so much, a row per draw, a column per profile.

        The likeliest law is the first row. Infinite: no number of replicas is enough.
        """
        days = Days(self.traffic_of(slo), None)
        target = target_of(slo)
        return pd.DataFrame(
            {
                name: replica_loads(
                    self.servers[name], days, target, self.risk, self.borne_by(slo, name)
                )
                for name in profile_ids
            }
        )

    def needed(self, slo: SLO, profile_ids: Sequence[str]) -> pd.DataFrame:
        """Return the whole replicas that each profile needs, by draw; infinite: none are enough."""
        loads = self.loads(slo, profile_ids).iloc[1:]
        return loads.apply(lambda column: whole_replicas(column.to_numpy()))

    def likeliest(self, slo: SLO, profile_ids: Sequence[str]) -> pd.DataFrame:
        """Return the replicas that each profile needs by the likeliest law, in one row."""
        loads = self.loads(slo, profile_ids).iloc[:1]
        return loads.apply(lambda column: whole_replicas(column.to_numpy()))

    def borne_by(self, slo: SLO, profile_id: str) -> BorneRates:
        """Return what a replica bears within the limits of an SLO, at any rate."""
        target = target_of(slo)
        if profile_id not in self.borne:
            server = self.servers[profile_id]
            self.borne[profile_id] = borne_of(server, self.traffic, target, self.surface)
        return self.borne[profile_id].within(target)

    def is_read(self, slo: SLO) -> bool:
        """Return whether the replicas at any rate follow from what a replica bears (`borne_by`)."""
        target = target_of(slo)
        return all(is_read(server, self.traffic, target) for server in self.servers.values())

    def is_refusing(self, slo: SLO, profile_id: str) -> bool:
        """Return whether a replica refuses more requests than may fail."""
        return is_refusing(self.servers[profile_id], self.traffic.drawn(0), target_of(slo))

    def latencies(self, slo: SLO, profile_id: str, replicas: int) -> DrawnLatencies:
        """Return the latencies of requests that share these replicas, and how many are in flight.

        Args:
            slo: limits and rate.
            profile_id: the replicas' GPU profile.
            replicas: that share the rate.
        """
        drawn = latencies_at(self.borne_by(slo, profile_id), slo.load, replicas)
        limited_ms = {metric: values[1:] for metric, values in drawn.limited_ms.items()}
        return DrawnLatencies(limited_ms, drawn.in_flight[1:])

    def most_rps(self, slo: SLO, profile_id: str) -> float:
        """Return the largest rate per replica within the limits, the median of the draws."""
        return float(np.median(self.borne_by(slo, profile_id).at(slo.load)[1:]))

    def traffic_of(self, slo: SLO) -> SteadyTraffic:
        """Return what arrives at the rate of an SLO."""
        return replace(self.traffic, rate_rps=slo.load, _streams={})

    @property
    def kind(self) -> str:
        """How requests arrive: `poisson` or `gamma`."""
        return "poisson" if self.traffic.alpha == 1 else "gamma"

    def notes(self) -> list[str]:
        """Return how the rate was sized, and which measured loads the laws do not give back."""
        how = "Poisson"
        if self.kind == "gamma":
            how = f"Gamma gaps of shape {self.traffic.alpha:.3g}, those of the workload"
        servers = {name: server.laws for name, server in self.servers.items()}
        return [
            *missed_notes(servers),
            f"Requests arrive at random ({how}); probabilities count {N_DRAWS:,} draws of the law.",
        ]


def steady_note(slo: SLO, how: str) -> list[str]:
    """Return that a request rate is taken as a steady load; nothing where users are asked for."""
    return [] if slo.request_rate_rps is None else [_STEADY.format(how=how)]


def target_of(slo: SLO) -> Target:
    """Return what replicas have to meet over the whole time."""
    return Target(slo.limits, slo.goodput, slo.allowed_failures, None)


def _servers(case: Case, laws: Mapping[str, ReplicaLaws]) -> dict[str, SimulatedReplica]:
    return {
        name: simulated_replica(
            case.gpu_profiles[name], replica_laws, case.question.prefix_hit_rate
        )
        for name, replica_laws in laws.items()
    }
