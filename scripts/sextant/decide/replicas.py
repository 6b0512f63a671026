"""How a replica serves requests: simulated by its law of a step, and judged by a target."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from sextant.decide.latency_surface import ReplicaLaws
from sextant.decide.windows import Judged, ServingResults, Target, judge_windows
from sextant.facts.gpu import GPUProfile
from sextant.law.means import BatchLimits, MeanLoad, saturation_rps
from sextant.simulate.scaling import Autoscaler, Scaling, simulate_scaled
from sextant.simulate.server import EDGES_MS, N_BINS, OK
from sextant.simulate.simulation import Router, Simulation, simulate
from sextant.workload.requests import COLUMNS, RequestStream

Replicas = int | np.ndarray
"""How many replicas take requests in turn, or the replica of each request."""
Run = Callable[[RequestStream, Replicas, int, float | None], ServingResults]
"""Simulates a demand on replicas, with a draw of the law (0: the most likely one); gaps between
tokens are counted in windows of this length (None: all together)."""
_UNLIMITED = 1e9
_GAIN = 1.1
"""A limit of the batch binds where the rate without it is 1.1 times as high, or more."""
_ALONE_S = 1e5
"""Time between requests that never meet."""

Follow = Callable[[RequestStream, Autoscaler, int, float | None], tuple[ServingResults, Scaling]]
"""Simulates requests while an autoscaler adds and removes replicas; otherwise as `Run`."""


class Bound(NamedTuple):
    """The rate of requests beyond which the queue of a replica grows without end."""

    rate_rps: float
    binds: str
    """`kv_cache` or `batch` where that keeps more sequences from decoding at once; `compute`."""


@dataclass(frozen=True)
class SimulatedReplica:
    """How a replica on a GPU profile serves the LLM."""

    profile: GPUProfile
    laws: ReplicaLaws
    run: Run
    guide: Target | None = None
    """Of a replica that computes prompts or tokens alone: the target of replicas that do both. What
    these bear tells its draws apart. None: it does both."""
    bound: Callable[[RequestStream], Bound | None] = lambda demand: None
    """Returns the bound of a demand by the most likely law; None where it is not known."""
    follow: Follow | None = None

    @property
    def n_draws(self) -> int:
        """Draws of its law beside the likeliest."""
        return self.laws.n_draws

    def judge(
        self, demand: RequestStream, replicas: Replicas, target: Target, draw: int = 0
    ) -> Judged:
        """Return the results by window."""
        gaps_s = target.window_s if "itl" in target.limits else None  # a month's counts are large
        outcome = self.run(demand, replicas, draw, gaps_s)
        return judge_windows(outcome, target, demand.n_windows(target.window_s))

    def judge_alone(self, demand: RequestStream, target: Target, draw: int = 0) -> Judged:
        """Return the results if each request were alone on a replica.

        No number of replicas does better. The gaps of all windows are taken together. Requests of
        equal lengths are simulated once, unless a limit is on the gaps between all tokens. Requests
        that share a prefix follow each other, so that each one finds it in the cache.
        """
        one_by_one = demand
        position = np.arange(demand.n)  # of each request of the demand in `one_by_one`
        if demand.prefixes is not None:
            order = np.argsort(demand.prefixes.ids, kind="stable")
            one_by_one = demand.at(order)
            position = np.argsort(order, kind="stable")
        if demand.prefixes is None and "itl" not in target.limits:
            lengths = np.stack([demand.input_tokens, demand.output_tokens])
            _, first, position = np.unique(lengths, axis=1, return_index=True, return_inverse=True)
            one_by_one = demand.at(first)
            position = position.ravel()

        arrival_s = np.arange(one_by_one.n) * _ALONE_S
        span_s = one_by_one.n * _ALONE_S
        apart = replace(one_by_one, arrival_s=arrival_s, duration_s=span_s, gaps=None, turns=None)
        simulated = self.run(apart, 1, draw, None)

        outcome = simulated._replace(
            **{name: getattr(demand, name) for name in COLUMNS},
            ttft_s=simulated.ttft_s[position],
            e2e_s=simulated.e2e_s[position],
            is_ok=simulated.is_ok[position],
        )
        return judge_windows(outcome, target, demand.n_windows(target.window_s))

    def usd_per_hour(self, n_replicas: int) -> float:
        """Return the price of this many replicas, in USD/h."""
        return round(n_replicas * self.profile.usd_per_hour, 9)


def simulated_replica(
    profile: GPUProfile,
    laws: ReplicaLaws,
    prefix_hit_rate: float = 0.0,
    router: Router = "round_robin",
) -> SimulatedReplica:
    """Return a replica that is simulated step by step, each draw with its own law.

    Args:
        profile: of each replica.
        laws: how it works, in each draw.
        prefix_hit_rate: share of a request's input that all requests have in common.
        router: in front of the replicas.
    """
    steps = _StepByStep(laws, prefix_hit_rate, router)
    return SimulatedReplica(profile, laws, steps.run, bound=steps.bound, follow=steps.follow)


@dataclass(frozen=True, eq=False)
class _StepByStep:
    """Simulates replicas behind a router; requests have a share of their inputs in common."""

    laws: ReplicaLaws
    prefix_hit_rate: float
    router: Router

    def run(
        self, demand: RequestStream, replicas: Replicas, draw: int, window_s: float | None
    ) -> ServingResults:
        """Return the results of replicas that stay (`Run`)."""
        if demand.gaps is not None:
            assert isinstance(replicas, int)
            demand = demand.for_one_replica(replicas)
            replicas = 1
        stream = demand.with_common_prefix(self.prefix_hit_rate)
        simulated = partial(
            simulate,
            scheduler=self.laws.scheduler,
            law=self.laws.law(draw),
            window_s=window_s or np.inf,
        )
        if isinstance(replicas, int):
            simulation = simulated(stream, n_replicas=replicas, router=self.router)
            return serving_results(demand, [(slice(None), simulation)], window_s)
        by_replica = (np.flatnonzero(replicas == replica) for replica in np.unique(replicas))
        parts = ((rows, simulated(stream.at(rows))) for rows in by_replica)
        return serving_results(demand, parts, window_s)

    def follow(
        self, demand: RequestStream, autoscaler: Autoscaler, draw: int, window_s: float | None
    ) -> tuple[ServingResults, Scaling]:
        """Return the results of replicas that come and go (`Follow`)."""
        simulation, scaling = simulate_scaled(
            demand.with_common_prefix(self.prefix_hit_rate),
            self.laws.scheduler,
            self.laws.law(draw),
            autoscaler,
            duration_s=demand.duration_s,
            window_s=window_s or np.inf,
            router=self.router,
        )
        return serving_results(demand, [(slice(None), simulation)], window_s), scaling

    def bound(self, demand: RequestStream) -> Bound | None:
        """Return the rate that one replica bears by the most likely law; None: not known."""
        scheduler = self.laws.scheduler
        taken = demand.input_tokens + demand.output_tokens <= scheduler.longest
        if not taken.any() or demand.prefixes is not None:
            return None  # how much memory requests share depends on which of them meet
        inputs = float(demand.input_tokens[taken].mean())
        outputs = max(float(demand.output_tokens[taken].mean()), 2.0)
        load = MeanLoad(inputs, outputs, self.prefix_hit_rate * inputs)
        likeliest = self.laws.law(0)
        limits = BatchLimits.of(scheduler)
        rate = float(saturation_rps(likeliest, limits, load))
        # What limits the sequences binds only if more of them would raise the rate.
        names = ("max_num_seqs", "max_num_batched_tokens", "kv_tokens")
        free = limits._replace(**dict.fromkeys(names, _UNLIMITED))
        if float(saturation_rps(likeliest, free, load)) < _GAIN * rate:
            return Bound(rate, "compute")
        roomy = float(saturation_rps(likeliest, limits._replace(kv_tokens=_UNLIMITED), load))
        return Bound(rate, "kv_cache" if roomy > rate else "batch")


def serving_results(
    demand: RequestStream,
    parts: Iterable[tuple[np.ndarray | slice, Simulation]],
    window_s: float | None,
) -> ServingResults:
    """Return the outcome of a demand from simulations of parts of its requests.

    `parts` are the rows of these requests in the demand, and their simulation. Gaps after the last
    window count in it.
    """
    ttft_s, e2e_s = np.full((2, demand.n), np.nan)
    is_ok = np.zeros(demand.n, bool)
    arrival_s = demand.arrival_s.copy()
    n_windows = demand.n_windows(window_s)
    counts = np.zeros((n_windows, N_BINS))
    for rows, simulation in parts:
        ttft_s[rows] = simulation.ttft_s
        e2e_s[rows] = simulation.e2e_s
        is_ok[rows] = simulation.status == OK
        if demand.turns is not None:  # when a turn arrives follows from the answers before it
            arrival_s[rows] = simulation.arrival_s
        gaps = simulation.gaps.counts
        has_any = np.flatnonzero(gaps[:n_windows].any(axis=1))  # few windows of a long trace
        counts[has_any] += gaps[has_any]
        counts[-1] += gaps[n_windows:].sum(axis=0)
    columns = arrival_s, demand.input_tokens, demand.output_tokens, ttft_s, e2e_s, is_ok
    order = np.argsort(arrival_s, kind="stable") if demand.turns is not None else slice(None)
    return ServingResults._make([*(column[order] for column in columns), EDGES_MS, counts])
