"""How many replicas a GPU profile needs, by simulation, and how certain that is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from sextant.answer.capacity.demand import Demand, Traffic
from sextant.answer.capacity.target import Judged, Outcome, Target, judge
from sextant.decide.sizing import fewest_replicas, largest_rate
from sextant.facts.gpu import GPUProfile
from sextant.simulate.inputs import Requests, Scheduler, StepLaw
from sextant.simulate.run import Router, Simulation, on_threads, simulate
from sextant.simulate.world import BIN_WIDTH, N_BINS, OK, SHORTEST_S

NOBODY = -1
"""In place of a replica: the request is refused."""
Replicas = int | np.ndarray
"""How many replicas take requests in turn, or the replica of each request."""
Run = Callable[[Demand, Replicas, int, float | None], Outcome]
"""Simulates a demand on replicas, with a draw of the law (0: the most likely one); gaps between
tokens are counted in windows of this length (None: all together)."""
_FAR = 8
"""Times the first guess of the replicas: beyond it, it is checked whether any number can do."""
_ALONE_S = 1e5
"""Between requests that never meet."""
_EDGES_MS = 1e3 * SHORTEST_S * np.exp(np.arange(N_BINS + 1) * BIN_WIDTH)


@dataclass(frozen=True)
class Server:
    """How a replica on a GPU profile serves the LLM."""

    profile: GPUProfile
    run: Run
    n_draws: int = 1

    def judge(self, demand: Demand, replicas: Replicas, target: Target, draw: int = 0) -> Judged:
        """Return the results by window."""
        outcome = self.run(demand, replicas, draw, target.window_s)
        return judge(outcome, target, demand.n_windows(target.window_s))

    def judge_alone(self, demand: Demand, target: Target, draw: int = 0) -> tuple[Judged, float]:
        """Return the results if each request were alone on a replica, and its mean E2E in s.

        No number of replicas does better. The gaps of all windows are taken together.
        """
        arrival_s, duration_s = np.arange(demand.n) * _ALONE_S, demand.n * _ALONE_S
        one_by_one = replace(demand, arrival_s=arrival_s, duration_s=duration_s)
        outcome = self.run(one_by_one, 1, draw, None)
        n_windows = demand.n_windows(target.window_s)
        counts = np.repeat(outcome.itl_counts[:1], n_windows, axis=0)
        outcome = outcome._replace(arrival_s=demand.arrival_s, itl_counts=counts)
        mean_s = float(outcome.e2e_s[outcome.is_ok].mean()) if outcome.is_ok.any() else np.nan
        return judge(outcome, target, n_windows), mean_s

    def usd_per_hour(self, n_replicas: int) -> float:
        """Return the price of so many replicas."""
        return round(n_replicas * self.profile.usd_per_hour, 9)


def simulated_server(
    profile: GPUProfile,
    schedulers: Sequence[Scheduler],
    laws: Sequence[StepLaw],
    prefix_hit_rate: float = 0.0,
    router: Router = "round_robin",
) -> Server:
    """Return a server that is simulated step by step, each draw with its own law and KV cache.

    Args:
        profile: what one replica runs on.
        schedulers, laws: the most likely one first, then draws.
        prefix_hit_rate: share of each request's input that all requests have in common.
        router: not used where the replica of each request is given.
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
    """Return the results of requests whose simulations are given with their positions."""
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


@dataclass(frozen=True)
class Sizing:
    """The replicas that one GPU profile needs."""

    server: Server
    status: str
    """`meets`; or `too_slow` (a request alone breaks a limit), `refused` (no replica takes some
    requests), `too_many` (more replicas than are tried)."""
    alone: dict[str, float]
    """Largest latency over its limit in any window, by metric, if each request were alone."""
    n_failed_alone: int
    rate_rps: float | None = None
    """The mean rate of such traffic that one replica serves; infinite if all of it at once."""
    needs: Sequence[float] = field(default_factory=tuple)
    """Fewest replicas in each draw of law and traffic; infinite where no number is enough."""
    replicas: int | None = None
    """The fewest that meet the target with the asked probability."""

    def probability(self, replicas: int) -> float:
        """Return the share of draws in which so many replicas meet the target."""
        return float(np.mean(np.array(self.needs) <= replicas))

    @property
    def draw(self) -> int:
        """The draw whose required replica count equals the answer; used for the what-if runs."""
        needs = np.array(self.needs)
        return int(np.where(needs <= (self.replicas or 0), needs, -1).argmax())

    @property
    def count(self) -> int:
        """The replicas, where there are any. Raises ValueError else."""
        if self.replicas is None:
            raise ValueError(f"{self.server.profile.gpu_profile_id} has no number of replicas")
        return self.replicas

    @property
    def usd_per_hour(self) -> float | None:
        """Price of the replicas."""
        return None if self.replicas is None else self.server.usd_per_hour(self.replicas)


def size_by_simulation(
    server: Server, traffic: Traffic, target: Target, confidence: float
) -> Sizing:
    """Return the fewest replicas that meet a target with this probability.

    Each draw of the law has its own day of the traffic (`Traffic.drawn`). Bisection finds its
    fewest replicas; the probability of a number is the share of draws that need no more.
    """
    demand = traffic.drawn(0)
    alone, e2e_s = server.judge_alone(demand, target)
    sizing = Sizing(server, "meets", alone.worst_ratio(target), int(alone.n_failed.sum()))
    if status := _why_impossible(alone, target):
        return replace(sizing, status=status)
    rate = _rate_at_slo(server, demand, target, 1 / e2e_s)
    if rate is None:
        return replace(sizing, status="too_slow")
    start = max(int(np.ceil(demand.rate_rps / rate)), 1)

    need = partial(_need, server, traffic, target, start)
    needs = on_threads(need, range(server.n_draws))
    enough = np.quantile(needs, confidence, method="inverted_cdf")
    if not np.isfinite(enough):
        return replace(sizing, status="too_many", rate_rps=rate, needs=needs)
    return replace(sizing, rate_rps=rate, needs=needs, replicas=int(enough))


def _need(server: Server, traffic: Traffic, target: Target, start: int, draw: int) -> float:
    """Return the fewest replicas in one draw; infinite if a request alone breaks a limit there."""
    demand = traffic.drawn(draw)

    def meets(replicas: int) -> bool:
        return not server.judge(demand, replicas, target, draw).n_missed

    far = _FAR * start
    if (fewest := fewest_replicas(meets, start, far)) is not None:
        return fewest
    alone, _ = server.judge_alone(demand, target, draw)
    return np.inf if alone.n_missed else fewest_replicas(meets, far) or np.inf


def _why_impossible(alone: Judged, target: Target) -> str:
    """Return the status if no number of replicas is enough, else nothing."""
    n_failed, n_requests = alone.n_failed.sum(), alone.n_requests.sum()
    if n_failed == n_requests:
        return "refused"
    if not alone.n_missed:
        return ""
    return "refused" if n_failed > target.max_failed * n_requests else "too_slow"


def _rate_at_slo(server: Server, demand: Demand, target: Target, start_rps: float) -> float | None:
    """Return the mean rate at which one replica just meets the target, None if at no rate.

    The gaps of the traffic are stretched, and the windows with them: each keeps its requests.
    """

    def meets(rate_rps: float) -> bool:
        factor = rate_rps / demand.rate_rps
        window_s = target.window_s and target.window_s / factor
        stretched = replace(target, window_s=window_s and max(window_s, 1.0))
        return not server.judge(demand.at_rate(factor), 1, stretched).n_missed

    return largest_rate(meets, start_rps)


def neighbours(sizing: Sizing, demand: Demand, target: Target) -> list[dict[str, Any]]:
    """Return the results of one replica fewer, the answer's number, and one more."""
    chosen = sizing.replicas or 0
    rows = []
    for replicas in range(max(chosen - 1, 1), chosen + 2):
        judged = sizing.server.judge(demand, replicas, target, sizing.draw)
        rows.append(
            {
                "replicas": replicas,
                "usd_per_hour": sizing.server.usd_per_hour(replicas),
                "probability_met": sizing.probability(replicas),
                **summary(judged, target),
            }
        )
    return rows


def summary(judged: Judged, target: Target) -> dict[str, Any]:
    """Return how many windows are missed and by how much, and the share of failed requests."""
    n_requests = int(judged.n_requests.sum())
    ratios = judged.worst_ratio(target)
    return {
        "n_windows": len(judged.start_s),
        "n_windows_missed": judged.n_missed,
        "failed_fraction": float(judged.n_failed.sum() / n_requests),
        "worst_ratio": max(ratios.values(), default=0.0),
        "worst_limit": max(ratios, key=ratios.__getitem__, default=None),
    }
