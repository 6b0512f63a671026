"""How many replicas a GPU profile needs, by simulation, and how certain that is."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from sextant.decide.sizing import (
    MOST_REPLICAS,
    fewest_replicas,
    largest_rate,
    probability_of,
)
from sextant.decide.windows import Judged, ServingResults, Target, judge_windows
from sextant.facts.gpu import GPUProfile
from sextant.law.means import BatchLimits, MeanLoad, saturation_rps
from sextant.simulate.scaling import Autoscaler, Scaling, simulate_scaled
from sextant.simulate.simulation import (
    BIN_WIDTH,
    N_BINS,
    OK,
    SHORTEST_S,
    Router,
    Scheduler,
    Simulation,
    StepLaw,
    on_threads,
    simulate,
)
from sextant.workload.requests import COLUMNS, RequestStream, Traffic

Replicas = int | np.ndarray
"""How many replicas take requests in turn, or the replica of each request."""
Run = Callable[[RequestStream, Replicas, int, float | None], ServingResults]
"""Simulates a demand on replicas, with a draw of the law (0: the most likely one); gaps between
tokens are counted in windows of this length (None: all together)."""
_FAR = 8
"""After 8 times the first guess, check whether any number of replicas is enough."""
_HOPELESS = 1.5
"""Skip a GPU profile whose first guess is above 1.5 times the affordable replicas."""
_AT_ONCE = 6
"""Check for an early stop every 6 draws."""
_UNLIMITED = 1e9
_GAIN = 1.1
"""A limit of the batch binds where the rate without it is 1.1 times as high, or more."""
_ALONE_S = 1e5
"""Time between requests that never meet."""
EDGES_MS = 1e3 * SHORTEST_S * np.exp(np.arange(N_BINS + 1) * BIN_WIDTH)


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
    run: Run
    n_draws: int = 1
    bound: Callable[[RequestStream], Bound | None] = lambda demand: None
    """Returns the bound of a demand by the most likely law; None where it is not known."""
    follow: Follow | None = None

    def judge(
        self, demand: RequestStream, replicas: Replicas, target: Target, draw: int = 0
    ) -> Judged:
        """Return the results by window."""
        gaps_s = target.window_s if "itl" in target.limits else None  # a month's counts are large
        outcome = self.run(demand, replicas, draw, gaps_s)
        return judge_windows(outcome, target, demand.n_windows(target.window_s))

    def judge_alone(
        self, demand: RequestStream, target: Target, draw: int = 0
    ) -> tuple[Judged, float]:
        """Return the results if each request were alone on a replica, and its mean E2E in s.

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
        mean_s = float(outcome.e2e_s[outcome.is_ok].mean()) if outcome.is_ok.any() else np.nan
        return judge_windows(outcome, target, demand.n_windows(target.window_s)), mean_s

    def usd_per_hour(self, n_replicas: int) -> float:
        """Return the price of this many replicas, in USD/h."""
        return round(n_replicas * self.profile.usd_per_hour, 9)


def simulated_server(
    profile: GPUProfile,
    schedulers: Sequence[Scheduler],
    laws: Sequence[StepLaw],
    prefix_hit_rate: float = 0.0,
    router: Router = "round_robin",
) -> SimulatedReplica:
    """Return a server that is simulated step by step, each draw with its own law and KV cache.

    Args:
        profile: of each replica.
        schedulers: the most likely one first, then draws.
        laws: likewise.
        prefix_hit_rate: share of a request's input that all requests have in common.
        router: in front of the replicas.
    """

    def run(
        demand: RequestStream, replicas: Replicas, draw: int, window_s: float | None
    ) -> ServingResults:
        if demand.gaps is not None:
            assert isinstance(replicas, int)
            demand = demand.for_one_replica(replicas)
            replicas = 1
        stream = demand.with_common_prefix(prefix_hit_rate)
        simulated = partial(
            simulate, scheduler=schedulers[draw], law=laws[draw], window_s=window_s or np.inf
        )
        if isinstance(replicas, int):
            simulation = simulated(stream, n_replicas=replicas, router=router)
            return serving_results(demand, [(slice(None), simulation)], window_s)
        by_replica = (np.flatnonzero(replicas == replica) for replica in np.unique(replicas))
        parts = ((rows, simulated(stream.at(rows))) for rows in by_replica)
        return serving_results(demand, parts, window_s)

    def follow(
        demand: RequestStream, autoscaler: Autoscaler, draw: int, window_s: float | None
    ) -> tuple[ServingResults, Scaling]:
        simulation, scaling = simulate_scaled(
            demand.with_common_prefix(prefix_hit_rate),
            schedulers[draw],
            laws[draw],
            autoscaler,
            duration_s=demand.duration_s,
            window_s=window_s or np.inf,
            router=router,
        )
        return serving_results(demand, [(slice(None), simulation)], window_s), scaling

    def bound(demand: RequestStream) -> Bound | None:
        taken = demand.input_tokens + demand.output_tokens <= schedulers[0].longest
        if not taken.any():
            return None
        inputs = float(demand.input_tokens[taken].mean())
        outputs = max(float(demand.output_tokens[taken].mean()), 2.0)
        load = MeanLoad(inputs, outputs, prefix_hit_rate * inputs)
        limits = BatchLimits.of(schedulers[0])
        rate = float(saturation_rps(laws[0], limits, load))
        # What limits the sequences binds only if more of them would raise the rate.
        names = ("max_num_seqs", "max_num_batched_tokens", "kv_tokens")
        free = limits._replace(**dict.fromkeys(names, _UNLIMITED))
        if float(saturation_rps(laws[0], free, load)) < _GAIN * rate:
            return Bound(rate, "compute")
        roomy = float(saturation_rps(laws[0], limits._replace(kv_tokens=_UNLIMITED), load))
        return Bound(rate, "kv_cache" if roomy > rate else "batch")

    return SimulatedReplica(profile, run, len(laws), bound, follow)


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


@dataclass(frozen=True)
class Sizing:
    """The replicas that one GPU profile needs."""

    server: SimulatedReplica
    status: str
    """`meets`; or `too_slow` (a request alone breaks a limit), `refused` (no replica takes some
    requests), `too_many` (more replicas than are tried), `unsure` (no number is as certain)."""
    alone: dict[str, float]
    """Largest latency over its limit in any window, by metric, if each request were alone."""
    n_failed_alone: int
    """Requests that fail even if each is alone."""
    failed_share_alone: float = 0.0
    """Their largest share of the requests of a window."""
    rate_rps: float | None = None
    """Mean rate that a replica serves beside the others that the likeliest law needs; None where it
    was not computed."""
    binds: str | None = None
    """What keeps a replica from a higher rate: `limits`, or as `Bound.binds`."""
    needs: Sequence[float] = field(default_factory=tuple)
    """Fewest replicas in each draw of law and traffic; infinite where no number is enough."""
    replicas: int | None = None
    """The fewest that meet the target with the asked probability."""

    def probability(self, replicas: int) -> float | None:
        """Return the probability that this many replicas meet the target; None with one draw."""
        n = len(self.needs)
        n_met = np.sum(np.array(self.needs) <= replicas)
        return float(probability_of(n_met, n)) if n > 1 else None

    @property
    def draw(self) -> int:
        """The draw whose required replica count equals the answer; used for the what-if runs."""
        needs = np.array(self.needs)
        return int(np.where(needs <= (self.replicas or 0), needs, -1).argmax())

    @property
    def count(self) -> int:
        """The replicas. Raises ValueError where no number is enough."""
        if self.replicas is None:
            raise ValueError(f"{self.server.profile.gpu_profile_id} has no number of replicas")
        return self.replicas

    @property
    def usd_per_hour(self) -> float | None:
        """Price of the replicas."""
        return None if self.replicas is None else self.server.usd_per_hour(self.replicas)


@dataclass(frozen=True)
class SizingSettings:
    """What a sizing finds, and where it stops."""

    least: int = 1
    """Replicas that there are in any case."""
    has_rate: bool = True
    """Whether the rate that each replica serves is found."""
    most_usd_per_hour: float = np.inf
    """The most that all replicas may cost, in USD/h: more of them are not tried."""
    brief_draws: int = 0
    """Draws per GPU profile, or as many as the confidence needs; 0: all draws of all profiles."""
    most_drawn: int | None = None
    """Of a brief sizing, how many GPU profiles are drawn, the cheapest by the likeliest law first.
    None: any number."""
    is_best_enough: bool = False
    """Whether nothing is tried of a GPU profile that cannot be cheaper than the best one."""


DEFAULT_SIZING = SizingSettings()


@dataclass(frozen=True)
class SizingDraws:
    """The draws of law and traffic that a sizing takes, and what is known before they are taken."""

    n: int | None = None
    """How many draws; None: all that the server has."""
    earlier: Sizing | None = None
    """What fewer draws gave."""
    worse: Sequence[Sizing] = ()
    """Sizings of profiles that this one is at least as good as. They count where the most likely
    law of this one needs no more than theirs: a small LLM may be slower on more GPUs."""
    hardest: Sequence[int] = ()
    """The order of the draws, the hardest first. With an order, drawing stops once too many have
    no number of replicas for the confidence."""


def size_by_simulation(
    server: SimulatedReplica,
    traffic: Traffic,
    target: Target,
    confidence: float,
    settings: SizingSettings = DEFAULT_SIZING,
    draws: SizingDraws = SizingDraws(),
) -> Sizing:
    """Return the fewest replicas that meet a target with this probability.

    Each draw of the law has its own day of the traffic (`Traffic.drawn`). Bisection finds its
    fewest replicas; the draws that need no more give the probability (`probability_of`). Where
    `SizingDraws.hardest` stops the drawing, `needs` is empty.
    """
    if draws.earlier is None:
        sizing, start = _size_likeliest(server, traffic, target, settings)
    else:
        sizing = draws.earlier
        start = int(min(sizing.needs)) if np.isfinite(sizing.needs).any() else 1
    if not sizing.needs:
        return sizing

    start = int(sizing.needs[0]) if np.isfinite(sizing.needs[0]) else start
    need = partial(_need, server, traffic, target, start, _affordable(server, settings))
    needs = _take_draws(need, sizing.needs, draws.n or server.n_draws, confidence, draws)
    if needs is None:
        return replace(sizing, status="unsure", needs=(), replicas=None)

    sizing = replace(sizing, needs=needs)
    n = len(needs)
    is_sure = probability_of(np.arange(1, n + 1), n) >= confidence - 1e-9 if n > 1 else [True]
    enough = np.where(is_sure, np.sort(needs), np.inf).min()
    if not np.isfinite(enough):
        return replace(sizing, status="unsure", replicas=None)
    return replace(sizing, status="meets", replicas=max(int(enough), settings.least))


def _affordable(server: SimulatedReplica, settings: SizingSettings) -> int:
    """Return the most replicas that are tried."""
    most = settings.most_usd_per_hour / server.profile.usd_per_hour + 1e-9
    return int(min(most, MOST_REPLICAS))


def _size_likeliest(
    server: SimulatedReplica, traffic: Traffic, target: Target, settings: SizingSettings
) -> tuple[Sizing, int]:
    """Return what the most likely law needs, and the first guess of the replicas.

    `needs` of the sizing is empty where no number of replicas is enough, or too many would be.
    """
    demand = traffic.drawn(0)
    affordable = _affordable(server, settings)
    alone, e2e_s = server.judge_alone(demand, target)
    shares = alone.n_failed / np.maximum(alone.n_requests, 1)
    n_failed = int(alone.n_failed.sum())
    n_requests = int(alone.n_requests.sum())
    ratios = alone.worst_ratio(target)
    sizing = Sizing(server, "meets", ratios, n_failed, float(shares.max()))
    if alone.n_missed or n_failed == n_requests:  # no number of replicas is enough
        is_refused = n_failed == n_requests or n_failed > target.max_failed * n_requests
        return replace(sizing, status="refused" if is_refused else "too_slow"), 1

    bound = server.bound(demand)
    served_rps = bound.rate_rps if bound else 1 / e2e_s
    start = max(int(np.ceil(demand.rate_rps / served_rps)), 1)
    if start > min(MOST_REPLICAS, _HOPELESS * affordable):
        return replace(sizing, status="too_many", rate_rps=served_rps, binds="limits"), start

    first = _need(server, traffic, target, start, affordable, np.inf, 0)
    if settings.has_rate and np.isfinite(first):
        total_rps = rate_at_slo(server, demand, target, demand.rate_rps, int(first))
        rate = (total_rps or demand.rate_rps) / first
        binds = "limits"
        if bound is not None and bound.rate_rps < rate:
            rate, binds = bound
        sizing = replace(sizing, rate_rps=rate, binds=binds)
    return replace(sizing, needs=[first]), start


def _take_draws(
    need: Callable[[float, int], float],
    taken: Sequence[float],
    n_draws: int,
    confidence: float,
    draws: SizingDraws,
) -> list[float] | None:
    """Return the fewest replicas in each draw; None where too many draws have no number.

    `need` returns the fewest replicas for a number that is enough and a draw; `taken` are the
    results of the first draws.
    """
    most = np.full(n_draws, np.inf)
    for worse in draws.worse:
        if worse.needs and taken[0] <= worse.needs[0]:
            enough = np.array(worse.needs[:n_draws])
            most[: len(enough)] = np.minimum(most[: len(enough)], enough)

    hardest = draws.hardest
    rest = [draw for draw in hardest or range(n_draws) if draw >= len(taken)]
    most_failed = n_draws - np.ceil(confidence * (n_draws + 1) - 0.5 - 1e-9) if hardest else n_draws
    needs = np.concatenate([taken, np.full(len(rest), np.nan)])
    while rest:
        ahead, rest = (rest[:_AT_ONCE], rest[_AT_ONCE:]) if hardest else (rest, [])
        needs[ahead] = on_threads(need, most[ahead].tolist(), ahead)
        if np.isinf(needs).sum() > most_failed:
            return None
    return [replicas if np.isinf(replicas) else int(replicas) for replicas in needs]


def _need(
    server: SimulatedReplica,
    traffic: Traffic,
    target: Target,
    start: int,
    affordable: int,
    most: float,
    draw: int,
) -> float:
    """Return the fewest replicas in one draw; infinite if a request alone breaks a limit there.

    `most` are known to be enough, infinite where nothing is known; `affordable` are worth trying.
    """
    if most == 1 or affordable < 1:
        return 1 if most == 1 else np.inf
    demand = traffic.drawn(draw)
    # What fails in the busiest windows fails; few numbers of replicas are tried on all requests.
    peak = demand.peak(target.window_s)

    @cache
    def meets_peak(replicas: int) -> bool:
        return not server.judge(peak, replicas, target, draw).n_missed

    @cache
    def meets(replicas: int) -> bool:
        if not meets_peak(replicas):
            return False
        return peak is demand or not server.judge(demand, replicas, target, draw).n_missed

    def meets_alone() -> bool:
        return not server.judge_alone(demand, target, draw)[0].n_missed

    fewest = partial(fewest_replicas, meets, is_steady=demand.gaps is not None)
    far = int(min(_FAR * start, most - 1, affordable))
    is_alike = np.ptp(demand.input_tokens) == np.ptp(demand.output_tokens) == 0
    if is_alike and np.isinf(most) and start < far and not meets(start) and not meets_alone():
        return np.inf  # one request shows it
    if peak is not demand:
        start = fewest_replicas(meets_peak, start, far) or start
    if (replicas := fewest(start, far)) is not None:
        return replicas
    if far == affordable:
        return np.inf
    if np.isfinite(most):
        return most if far == most - 1 else (fewest(far, int(most) - 1) or most)
    return (fewest(far, affordable) or np.inf) if meets_alone() else np.inf


def rate_at_slo(
    server: SimulatedReplica,
    demand: RequestStream,
    target: Target,
    start_rps: float,
    replicas: int = 1,
) -> float | None:
    """Return the mean rate at which replicas just meet the target, None if at no rate.

    The gaps of the traffic are stretched, and the windows with them: each keeps its requests. Of
    many requests, the busiest windows stand for all.
    """
    peak = demand.peak(target.window_s)

    def meets(rate_rps: float) -> bool:
        factor = rate_rps / demand.rate_rps
        window_s = target.window_s and target.window_s / factor
        stretched = replace(target, window_s=window_s and max(window_s, 1.0))
        return not server.judge(peak.at_speed(factor), replicas, stretched).n_missed

    return largest_rate(meets, start_rps)
