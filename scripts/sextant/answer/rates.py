"""A request rate: replicas by simulation of arrivals at random, as `sextant capacity` does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from sextant.answer.candidates import Subject
from sextant.answer.demand import SteadyTraffic, Target, judge, lengths_of
from sextant.answer.question import Length, Question, Requests
from sextant.answer.sizing import (
    Server,
    Sizing,
    is_near,
    rate_at_slo,
    simulated_server,
    size_profiles,
)
from sextant.answer.step_laws import Settings, server_laws
from sextant.base.errors import InputError
from sextant.base.files import Row
from sextant.decide.decision import SAFE
from sextant.decide.sizing import draws_needed, probability_of
from sextant.facts.gpu import HOURS_PER_MONTH, token_prices
from sextant.facts.slo import MAX_FAILED, SLO, worst_limit
from sextant.predict.latencies import INTERVAL
from sextant.simulate.run import on_threads

N_DRAWS = 32
"""Of the law and the traffic, beside the likeliest law; more where the risk needs more. Of 17 days
that all meet an SLO one more in four may miss it."""
FEW_DRAWS = 17
"""For what the answer does not rest on, as what would change it."""


@dataclass(frozen=True)
class Arrivals:
    """How the replicas of each GPU profile serve requests that arrive at random (Poisson)."""

    servers: Mapping[str, Server]
    unknown: Mapping[str, str]
    """Why other profiles have no law of a step."""
    requests: Requests
    seed: int
    confidence: float
    """The probability to find replicas for."""
    most_usd_per_hour: float = np.inf
    """Options that cost more are of no use."""
    known: dict[SLO, dict[str, Sizing]] = field(default_factory=dict)
    """What was found already."""

    @classmethod
    def of(
        cls, question: Question, subject: Subject, most_usd_per_hour: float = np.inf
    ) -> "Arrivals":
        """Fit the laws of a step. Raises InputError where the points have none at all."""
        lengths = question.requests or Requests(*(Length(m, m) for m in subject.lengths[0]))
        wanted = SAFE if question.risk is None else 1 - question.risk
        n_draws = max(N_DRAWS, draws_needed(wanted) - 1)
        laws, unknown = server_laws(question, subject, Settings(), n_draws)
        hit_rate, profiles = question.prefix_hit_rate, subject.profiles
        servers = {
            name: simulated_server(profiles[name], each.schedulers, each.laws, hit_rate)
            for name, each in laws.items()
        }
        if not servers:
            raise InputError("no GPU profile has a law of a step")
        return cls(servers, unknown, lengths, question.seed, wanted, most_usd_per_hour)

    def needed(self, slo: SLO, profile_ids: Sequence[str], is_first: bool = False) -> pd.DataFrame:
        """Return the replicas that each profile needs, by draw; infinite where none are enough.

        The first question is answered in full, others briefly (`size_profiles`); so are those with
        a price to undercut. With `is_first` as if nothing else had been asked.
        """
        if slo not in self.known or is_first:
            known = () if is_first else reversed(self.known.items())
            is_other = bool(self.known) and not is_first
            has_price = self.most_usd_per_hour < np.inf
            rows = (own for other, own in known if is_harder(other, slo))
            self.known[slo] = size_profiles(
                self.servers,
                self._traffic(slo),
                _target(slo),
                self.confidence,
                next(rows, {}),
                brief_draws=FEW_DRAWS if is_other else 1 + N_DRAWS if has_price else 0,
                most_usd_per_hour=self.most_usd_per_hour,
                has_rate=False,
            )
        found = self.known[slo]
        never = [np.inf] * self.n_draws(slo)
        needs = {name: found[name].needs if name in found else () for name in profile_ids}
        return pd.DataFrame({name: np.array(each or never) for name, each in needs.items()})

    def n_draws(self, slo: SLO) -> int:
        """Return how many draws decide, the likeliest law included."""
        return max((len(each.needs) for each in self.known[slo].values()), default=0) or FEW_DRAWS

    def latencies(self, slo: SLO, profile_id: str, replicas: int) -> dict[str, np.ndarray]:
        """Return each limit's latency in ms by draw, and how many requests are `in_flight`."""
        server, target, traffic = self.servers[profile_id], _target(slo), self._traffic(slo)

        def one(draw: int) -> dict[str, float]:
            outcome = server.run(traffic.drawn(draw), replicas, draw, None)
            found = judge(outcome, target, 1).latencies_ms
            in_flight = slo.load / replicas * float(np.nanmean(outcome.e2e_s))
            return {name: each[0] for name, each in found.items()} | {"in_flight": in_flight}

        rows = on_threads(one, range(self.n_draws(slo)))
        return {name: np.array([row[name] for row in rows]) for name in rows[0]}

    def most_rps(self, slo: SLO, profile_id: str, replicas: int) -> float:
        """Return the rate that each of so many replicas serves within the limits, by the likeliest
        law.
        """
        server, demand = self.servers[profile_id], self._traffic(slo).drawn(0)
        found = rate_at_slo(server, demand, _target(slo), slo.load, replicas)
        bound = server.bound(demand)
        return min((found or 0.0) / replicas, bound.rate_rps if bound else np.inf)

    def _traffic(self, slo: SLO) -> SteadyTraffic:
        return SteadyTraffic("given lengths", lengths_of(self.requests), slo.load, 1.0, self.seed)

    def is_near(self, slo: SLO) -> bool:
        """Return whether further draws could change the answer (`sizing.is_near`)."""
        return is_near([*self.known[slo].values()], self.confidence)


def is_harder(slo: SLO, other: SLO) -> bool:
    """Return whether an SLO has no less load and no looser limits than another with the same."""
    limits = [(own.limit_ms, other.limits[name].limit_ms) for name, own in slo.limits.items()]
    return slo.load >= other.load and all(own <= others for own, others in limits)


def _target(slo: SLO) -> Target:
    max_failed = MAX_FAILED if slo.max_failed is None else slo.max_failed
    return Target(slo.limits, slo.goodput, max_failed, None)


def latency_of(arrivals: Arrivals, slo: SLO, chosen: Row) -> Row:
    """Return what is expected of a replica of the chosen option, and the rate it could serve."""
    name, replicas = chosen["gpu_profile_id"], chosen["replicas"]
    found = arrivals.latencies(slo, name, replicas)
    in_flight = float(np.median(found.pop("in_flight")))
    row: Row = {"users": max(round(in_flight), 1)}
    for metric, values in found.items():
        low, median, high = np.quantile(values, [INTERVAL[0], 0.5, INTERVAL[1]])
        row |= {f"{metric}_ms": median, f"{metric}_lo_ms": low, f"{metric}_hi_ms": high}
        row[f"{metric}_ratio"] = median / slo.limits[metric].limit_ms
    most = arrivals.most_rps(slo, name, replicas)
    return row | {
        "binding_limit": worst_limit(row),
        "load": slo.load / replicas,
        "load_median": most,
        "requests_per_s": slo.load / replicas,
        "checked_at_users": None,
    }


def headroom_of(
    arrivals: Arrivals, slo: SLO, chosen: Row, latency: Row, lengths: np.ndarray
) -> Row:
    """Return the headroom of the chosen option, as `measure_headroom` has it."""
    replicas, usd_per_hour = chosen["replicas"], chosen["usd_per_hour"]
    most, left = latency["load_median"], replicas - 1
    name = chosen["gpu_profile_id"]
    needs = arrivals.needed(slo, [name])[name]
    enough = probability_of((needs <= left).sum(), len(needs))
    limits = [
        {
            "metric": metric,
            **limit._asdict(),
            "latency_ms": latency[f"{metric}_ms"],
            "lo_ms": latency[f"{metric}_lo_ms"],
            "hi_ms": latency[f"{metric}_hi_ms"],
            "headroom": 1 - latency[f"{metric}_ratio"],
            "load": replicas * most,
            "is_most_tried": False,
        }
        for metric, limit in slo.limits.items()
    ]
    without = {"replicas": left, "load": left * most, "is_kept": bool(enough >= SAFE)}
    without["probability_met"] = enough
    return {
        "users_per_replica": latency["users"],
        "level_users": latency["users"],
        "limits": limits,
        "load": replicas * most,
        "is_most_tried": False,
        "is_open": False,
        "without_one": without if left else None,
        "requests_per_s": slo.load,
        "usd_per_hour": usd_per_hour,
        "usd_per_month": HOURS_PER_MONTH * usd_per_hour,
        "usd_per_million_tokens": token_prices(usd_per_hour, slo.load, lengths.tolist())[0],
    }


def rate_notes(arrivals: Arrivals, slo: SLO, is_near: bool) -> list[str]:
    """Return how the rate was sized, and whether more draws could change the answer."""
    n = arrivals.n_draws(slo)
    text = f"Requests arrive at random (Poisson), simulated over {n} draws of law and traffic"
    if is_near or arrivals.is_near(slo):
        command = f"`sextant capacity --request-rate {slo.load:.4g} --draws {4 * N_DRAWS}`"
        text += f": the decision is near, and a longer run could change it ({command})"
    return [f"{text}."]
