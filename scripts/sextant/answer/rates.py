"""A request rate: replicas by simulation of arrivals at random, as `sextant capacity` does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from sextant.answer.candidates import Subject
from sextant.answer.capacity.demand import Demand, Outcome, Target, lengths_of
from sextant.answer.capacity.sizing import (
    Server,
    Sizing,
    rate_at_slo,
    simulated_server,
    size_profiles,
)
from sextant.answer.question import Length, Question, Requests
from sextant.answer.step_laws import ServerLaws, Settings, server_laws
from sextant.base.rows import Row
from sextant.decide.decision import SAFE
from sextant.decide.headroom import HOURS_PER_MONTH, token_prices
from sextant.decide.sizing import draws_needed, probability_of
from sextant.facts.slo import MAX_FAILED, SLO, worst_limit
from sextant.predict.latencies import INTERVAL

N_DRAWS = 16
"""Of the law and the traffic, beside the likeliest law; more where the risk asks for more."""
N_REQUESTS = 1500
"""Of one replica in a simulation: enough for a 95th percentile, in milliseconds of computing."""


@dataclass(frozen=True)
class SteadyTraffic:
    """Requests of one length distribution that arrive at random at a rate, as many in each draw."""

    rate_rps: float
    requests: Requests
    seed: int

    def drawn(self, seed: int) -> Demand:
        """Return the requests of a draw; `Arrivals` says when they arrive at a replica."""
        frame = lengths_of(self.requests)(N_REQUESTS, seed=[self.seed, seed])
        inputs, outputs = (frame[name].to_numpy() for name in frame)
        arrival_s = np.arange(N_REQUESTS) / self.rate_rps
        duration_s = N_REQUESTS / self.rate_rps
        return Demand("given lengths", arrival_s, inputs, outputs, duration_s)


@dataclass(frozen=True)
class Arrivals:
    """How the replicas of each GPU profile serve requests that arrive at random (Poisson).

    Replicas take turns, so each of n gets every n-th request: gaps of an Erlang distribution. One
    of them is simulated, with the same random numbers on every profile.
    """

    servers: Mapping[str, Server]
    requests: Requests
    seed: int
    n_draws: int
    """Of the law and the traffic, the likeliest law included."""
    most_usd_per_hour: float = np.inf
    """Options that cost more are of no use."""
    known: dict[SLO, dict[str, Sizing]] = field(default_factory=dict)
    """What was found already."""

    @classmethod
    def of(
        cls, question: Question, subject: Subject, most_usd_per_hour: float = np.inf
    ) -> "Arrivals":
        """Fit the laws of a step. Raises InputError where the points have none."""
        lengths = question.requests or Requests(*(Length(m, m) for m in subject.lengths[0]))
        wanted = SAFE if question.risk is None else 1 - question.risk
        n_draws = max(N_DRAWS, draws_needed(wanted) - 1)
        laws, _ = server_laws(question, subject, Settings(), n_draws)
        servers = {name: _steady(subject, name, each, question) for name, each in laws.items()}
        return cls(servers, lengths, question.seed, n_draws + 1, most_usd_per_hour)

    def needed(self, slo: SLO, profile_ids: Sequence[str], is_first: bool = False) -> pd.DataFrame:
        """Return the replicas that each profile needs, by draw; infinite where none are enough.

        With `is_first` as if nothing else had been asked, to the last replica.
        """
        if slo not in self.known or is_first:
            known = () if is_first else reversed(self.known.items())
            rows = (own for other, own in known if is_harder(other, slo))
            self.known[slo] = size_profiles(
                self.servers,
                self._traffic(slo),
                _target(slo),
                SAFE,
                next(rows, {}),
                most_usd_per_hour=self.most_usd_per_hour,
                has_rate=False,
            )
        found = self.known[slo]
        never = np.full(self.n_draws, np.inf)
        needs = {name: found[name].needs if name in found else never for name in profile_ids}
        return pd.DataFrame({name: np.array(each or never) for name, each in needs.items()})

    def latencies(self, slo: SLO, profile_id: str, replicas: int) -> dict[str, np.ndarray]:
        """Return each limit's latency in ms by draw, and how many requests are `in_flight`."""
        server, target, traffic = self.servers[profile_id], _target(slo), self._traffic(slo)
        rows = []
        for draw in range(server.n_draws):
            demand = traffic.drawn(draw)
            outcome = server.run(demand, replicas, draw, None)
            in_flight = slo.load / replicas * float(np.nanmean(outcome.e2e_s))
            judged = server.judge(demand, replicas, target, draw)
            rows.append({name: each[0] for name, each in judged.latencies_ms.items()})
            rows[-1]["in_flight"] = in_flight
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
        return SteadyTraffic(slo.load, self.requests, self.seed)


def is_harder(slo: SLO, other: SLO) -> bool:
    """Return whether an SLO has no less load and no looser limits than another with the same."""
    limits = [(own.limit_ms, other.limits[name].limit_ms) for name, own in slo.limits.items()]
    return slo.load >= other.load and all(own <= others for own, others in limits)


def _target(slo: SLO) -> Target:
    max_failed = MAX_FAILED if slo.max_failed is None else slo.max_failed
    return Target(slo.limits, slo.goodput, max_failed, None)


def _steady(subject: Subject, name: str, laws: ServerLaws, question: Question) -> Server:
    hit_rate, seed = question.prefix_hit_rate, question.seed
    made = simulated_server(subject.profiles[name], laws.schedulers, laws.laws, hit_rate)

    def run(asked: Demand, replicas: Any, draw: int, window_s: float | None) -> Outcome:
        gaps = np.random.default_rng([seed, draw]).gamma(replicas, 1 / asked.rate_rps, asked.n)
        own = replace(asked, arrival_s=gaps.cumsum())
        return made.run(own, 1, draw, window_s)

    return replace(made, run=run)


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
    n_enough = (arrivals.needed(slo, [name])[name] <= left).sum()
    enough = probability_of(n_enough, arrivals.n_draws)
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


def rate_notes(slo: SLO, chosen: Row, n: int, risk: float | None) -> list[str]:
    """Return how the rate was sized over `n` draws, and whether more could change the answer."""
    probability = chosen["probability_met"]
    text = f"Requests arrive at random (Poisson), simulated over {n} draws of law and traffic"
    wanted = SAFE if risk is None else 1 - risk
    if probability is None or abs(probability - wanted) <= 1 / (n + 1):
        command = f"`sextant capacity --request-rate {slo.load:.4g}`"
        text += f": the decision is near, and a longer run could change it ({command})"
    return [f"{text}."]
