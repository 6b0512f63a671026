"""One replica on a GPU profile, and what it makes of a demand under each draw of its law."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from sextant.answer.capacity.demand import Demand
from sextant.answer.capacity.target import Judged, Outcome, Target, judge
from sextant.facts.gpu import GPUProfile
from sextant.simulate.inputs import Requests, Scheduler, StepLaw
from sextant.simulate.run import Router, Simulation, simulate
from sextant.simulate.world import BIN_WIDTH, N_BINS, OK, SHORTEST_S

NOBODY = -1
"""In place of a replica: the request is refused."""
Replicas = int | np.ndarray
"""How many replicas take requests in turn, or the replica of each request."""
Run = Callable[[Demand, Replicas, int, float | None], Outcome]
"""Simulates a demand on replicas, with a draw of the law (0: the most likely one); gaps between
tokens are counted in windows of this length (None: all together)."""
_APART_S = 1e5


@dataclass(frozen=True)
class Server:
    """How a replica on a GPU profile serves the LLM."""

    profile: GPUProfile
    run: Run
    n_draws: int = 1

    def judge(self, demand: Demand, replicas: Replicas, target: Target, draw: int = 0) -> Judged:
        """Return how the windows go."""
        outcome = self.run(demand, replicas, draw, target.window_s)
        return judge(outcome, target, demand.n_windows(target.window_s))

    def judge_alone(self, demand: Demand, target: Target, draw: int = 0) -> tuple[Judged, float]:
        """Return how the windows would go if each request were alone, and its mean E2E in s.

        No number of replicas does better. The gaps of all windows are taken together.
        """
        apart = replace(demand, arrival_s=np.arange(demand.n) * _APART_S)
        apart = replace(apart, duration_s=demand.n * _APART_S)
        outcome = self.run(apart, 1, draw, None)
        n_windows = demand.n_windows(target.window_s)
        counts = np.repeat(outcome.itl_counts[:1], n_windows, axis=0)
        outcome = outcome._replace(arrival_s=demand.arrival_s, itl_counts=counts)
        mean_s = float(outcome.e2e_s[outcome.is_ok].mean()) if outcome.is_ok.any() else np.nan
        return judge(outcome, target, n_windows), mean_s

    def usd_per_hour(self, n_replicas: int) -> float:
        """Return the price of so many replicas."""
        return round(n_replicas * self.profile.usd_per_hour, 9)


_EDGES_MS = 1e3 * SHORTEST_S * np.exp(np.arange(N_BINS + 1) * BIN_WIDTH)


def simulated(
    profile: GPUProfile,
    schedulers: Sequence[Scheduler],
    laws: Sequence[StepLaw],
    prefix_hit_rate: float = 0.0,
    router: Router = "round_robin",
) -> Server:
    """Return a server of this law; the first is the most likely one, the others are draws.

    `prefix_hit_rate` is the share of each request's input that all of them have in common. The
    router is not asked where the replica of each request is given.
    """

    def run(demand: Demand, replicas: Replicas, draw: int, window_s: float | None) -> Outcome:
        setting, law, width_s = schedulers[draw], laws[draw], window_s or np.inf
        one = partial(simulate, scheduler=setting, law=law, window_s=width_s)
        if isinstance(replicas, int):
            requests = _requests(demand, prefix_hit_rate)
            made = one(requests, n_replicas=replicas, router=router)
            return _outcome(demand, [(np.arange(demand.n), made)], window_s)
        parts = []
        for replica in np.unique(replicas[replicas != NOBODY]):
            places = np.flatnonzero(replicas == replica)
            own = _requests(demand.at(places), prefix_hit_rate)
            parts.append((places, one(own)))
        return _outcome(demand, parts, window_s)

    return Server(profile, run, len(laws))


def _requests(demand: Demand, prefix_hit_rate: float) -> Requests:
    if not prefix_hit_rate:
        return demand.simulated()
    arrays = (demand.arrival_s, demand.input_tokens, demand.output_tokens)
    shared = np.round(prefix_hit_rate * demand.input_tokens)
    return Requests.of(*arrays, np.zeros(demand.n), shared)


def _outcome(
    demand: Demand, parts: Sequence[tuple[np.ndarray, Simulation]], window_s: float | None
) -> Outcome:
    """Put together what simulations made of the requests at these places."""
    ttft_s, e2e_s = np.full(demand.n, np.nan), np.full(demand.n, np.nan)
    is_ok = np.zeros(demand.n, bool)
    n_windows = demand.n_windows(window_s)
    counts = np.zeros((n_windows, N_BINS))
    for places, made in parts:
        ttft_s[places], e2e_s[places] = made.ttft_s, made.e2e_s
        is_ok[places] = made.status == OK
        own = made.gaps
        counts[: len(own)] += own[:n_windows]
        counts[-1] += own[n_windows:].sum(axis=0)
    lengths = demand.input_tokens, demand.output_tokens
    return Outcome(demand.arrival_s, *lengths, ttft_s, e2e_s, is_ok, _EDGES_MS, counts)
