"""How many replicas a GPU profile needs, by simulation, and how certain that is."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from sextant.decide.sizing import (
    MOST_REPLICAS,
    draws_needed,
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
"""Times the first guess of the replicas: beyond it, it is checked whether any number can do."""
_HOPELESS = 1.5
"""Times the replicas that may be paid for: where the likeliest law needs so many, none is tried."""
_AT_ONCE = 6
"""Draws between which it is checked whether so many failed that further ones are of no use."""
_ANY = 1e9
_GAIN = 1.1
_ALONE_S = 1e5  # between requests that never meet
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
    """Returns the bound of such requests by the most likely law; None where it is not known."""
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

        No number of replicas does better. The gaps of all windows are taken together. Of requests
        with the same lengths one is simulated, where no limit is on the gaps of all. Those that
        share a prefix follow each other, so that each finds of it what it can.
        """
        one_by_one = demand
        each = np.arange(demand.n)
        if demand.prefixes is not None:
            order = np.argsort(demand.prefixes.ids, kind="stable")
            one_by_one = demand.at(order)
            each = np.argsort(order, kind="stable")
        if demand.prefixes is None and "itl" not in target.limits:
            lengths = np.stack([demand.input_tokens, demand.output_tokens])
            _, first, each = np.unique(lengths, axis=1, return_index=True, return_inverse=True)
            one_by_one = demand.at(first)
            each = each.ravel()
        arrival_s = np.arange(one_by_one.n) * _ALONE_S
        span_s = one_by_one.n * _ALONE_S
        apart = replace(one_by_one, arrival_s=arrival_s, duration_s=span_s, gaps=None, turns=None)
        found = self.run(apart, 1, draw, None)
        n_windows = demand.n_windows(target.window_s)
        asked = {name: getattr(demand, name) for name in COLUMNS}
        results = {name: getattr(found, name)[each] for name in ("ttft_s", "e2e_s", "is_ok")}
        outcome = found._replace(**asked, **results)
        mean_s = float(outcome.e2e_s[outcome.is_ok].mean()) if outcome.is_ok.any() else np.nan
        return judge_windows(outcome, target, n_windows), mean_s

    def usd_per_hour(self, n_replicas: int) -> float:
        """Return the price of so many replicas."""
        return round(n_replicas * self.profile.usd_per_hour, 9)


def simulated_server(
    profile: GPUProfile,
    schedulers: Sequence[Scheduler],
    laws: Sequence[StepLaw],
    prefix_hit_rate: float = 0.0,
    router: Router = "round_robin",
) -> SimulatedReplica:
    """Return a server that is simulated step by step, each draw with its own law and KV cache.

    The most likely of `schedulers` and `laws` comes first, then draws. `prefix_hit_rate` is the
    share of each request's input that all have in common; `router` is what replicas are behind.
    """

    def run(
        demand: RequestStream, replicas: Replicas, draw: int, window_s: float | None
    ) -> ServingResults:
        if demand.gaps is not None:
            assert isinstance(replicas, int)
            demand = demand.for_one_replica(replicas)
            replicas = 1
        setting = schedulers[draw]
        law = laws[draw]
        width_s = window_s or np.inf
        stream = demand.with_common_prefix(prefix_hit_rate)
        one = partial(simulate, scheduler=setting, law=law, window_s=width_s)
        if isinstance(replicas, int):
            made = one(stream, n_replicas=replicas, router=router)
            return serving_results(demand, [(slice(None), made)], window_s)
        each = [np.flatnonzero(replicas == replica) for replica in np.unique(replicas)]
        parts = ((places, one(stream.at(places))) for places in each)
        return serving_results(demand, parts, window_s)

    def follow(
        demand: RequestStream, autoscaler: Autoscaler, draw: int, window_s: float | None
    ) -> tuple[ServingResults, Scaling]:
        made, scaling = simulate_scaled(
            demand.with_common_prefix(prefix_hit_rate),
            schedulers[draw],
            laws[draw],
            autoscaler,
            duration_s=demand.duration_s,
            window_s=window_s or np.inf,
            router=router,
        )
        return serving_results(demand, [(slice(None), made)], window_s), scaling

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
        free = limits._replace(max_num_seqs=_ANY, max_num_batched_tokens=_ANY, kv_tokens=_ANY)
        if float(saturation_rps(laws[0], free, load)) < _GAIN * rate:
            return Bound(rate, "compute")
        roomy = float(saturation_rps(laws[0], limits._replace(kv_tokens=_ANY), load))
        return Bound(rate, "kv_cache" if roomy > rate else "batch")

    return SimulatedReplica(profile, run, len(laws), bound, follow)


def serving_results(
    demand: RequestStream,
    parts: Iterable[tuple[np.ndarray | slice, Simulation]],
    window_s: float | None,
) -> ServingResults:
    """Return the outcome of a demand from simulations, each of the requests at some places.

    Gaps after the last window count in it.
    """
    (ttft_s, e2e_s) = np.full((2, demand.n), np.nan)
    is_ok = np.zeros(demand.n, bool)
    arrival_s = demand.arrival_s.copy()
    n_windows = demand.n_windows(window_s)
    counts = np.zeros((n_windows, N_BINS))
    for here, made in parts:
        ttft_s[here] = made.ttft_s
        e2e_s[here] = made.e2e_s
        is_ok[here] = made.status == OK
        if demand.turns is not None:  # turns come when they may
            arrival_s[here] = made.arrival_s
        has_any = np.flatnonzero(made.gaps.counts[:n_windows].any(axis=1))
        counts[has_any] += made.gaps.counts[has_any]  # few windows of a long trace
        counts[-1] += made.gaps.counts[n_windows:].sum(axis=0)
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
    failed_share_alone: float = 0.0  # of these, the largest share of any window's requests
    rate_rps: float | None = None
    """The mean rate of such traffic that each of the replicas serves, with as many of them as the
    likeliest law needs; None where it is not asked for."""
    binds: str | None = None  # what keeps a replica from more: `limits`, or as `Bound` says
    needs: Sequence[float] = field(default_factory=tuple)
    """Fewest replicas in each draw of law and traffic; infinite where no number is enough."""
    replicas: int | None = None  # the fewest that meet the target with the asked probability

    def probability(self, replicas: int) -> float | None:
        """Return the probability that so many replicas meet the target; None of one draw."""
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
        """The replicas, where there are any. Raises ValueError else."""
        if self.replicas is None:
            raise ValueError(f"{self.server.profile.gpu_profile_id} has no number of replicas")
        return self.replicas

    @property
    def usd_per_hour(self) -> float | None:
        """Price of the replicas."""
        return None if self.replicas is None else self.server.usd_per_hour(self.replicas)


def size_profiles(
    servers: Mapping[str, SimulatedReplica],
    traffic: Traffic,
    target: Target,
    confidence: float,
    harder: Mapping[str, Sizing] = MappingProxyType({}),
    easier: Mapping[str, Sizing] = MappingProxyType({}),
    *,
    brief_draws: int = 0,
    most_drawn: int | None = None,
    is_best_enough: bool = False,
    most_usd_per_hour: float = np.inf,
    **how: Any,
) -> dict[str, Sizing]:
    """Return what each GPU profile needs (`size_by_simulation`, which takes `how` too).

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
    found: dict[str, Sizing] = {}
    most_usd = np.inf

    def sized(name: str, n: int, known: Sizing | None = None) -> Sizing:
        own = servers[name].profile
        below_usd = most_usd_per_hour
        if is_best_enough:
            below_usd = min(below_usd, most_usd, _last(likeliest, most_drawn) if n == 1 else np.inf)
        worse = [each for each in found.values() if is_as_good(own, each.server.profile)]
        worse += [harder[name]] if name in harder else []
        asked = servers[name], traffic, target, confidence, worse
        limits: dict[str, Any] = {**how, "most_usd_per_hour": below_usd}
        if n > 1 and is_best_enough and min(most_usd, most_usd_per_hour) < np.inf:
            # A draw is hard for all GPU profiles.
            others = [*found.values(), *harder.values(), *easier.values()]
            needs = next((each.needs for each in others if len(each.needs) == n), [0] * n)
            limits["hardest"] = np.argsort(-np.array(needs), kind="stable").tolist()
        return size_by_simulation(*asked, known=known, n_draws=n, **limits)

    n_draws = max(each.n_draws for each in servers.values())
    if not brief_draws:
        for name in sorted(servers, key=lambda name: float(np.prod(might(servers[name].profile)))):
            found[name] = sized(name, n_draws)
        return {name: found[name] for name in servers}
    n_few = min(max(brief_draws, draws_needed(confidence)), n_draws)
    likeliest: dict[str, Sizing] = {}
    least_usd = {name: each.profile.usd_per_hour for name, each in servers.items()}
    if is_best_enough:
        most_usd = min(filter(None, map(_drawn_usd, harder.values())), default=np.inf)
        known_usd = {
            name: _drawn_usd(each) or np.inf for name, each in easier.items() if each.needs
        }
        least_usd |= {name: usd for name, usd in known_usd.items() if name in servers}

    def take_draws(below_usd: float) -> None:
        """Take those of the profiles that cost no more than this by the likeliest law."""
        nonlocal most_usd
        usd = {n: of.usd_per_hour for n, of in likeliest.items() if n not in found}
        for usd_per_hour, name in sorted((cost, name) for name, cost in usd.items() if cost):
            if usd_per_hour <= min(below_usd, most_usd) and len(found) < (most_drawn or np.inf):
                found[name] = sized(name, n_few, likeliest[name])
                most_usd = min(most_usd, found[name].usd_per_hour or np.inf)

    demand = traffic.drawn(0)

    def about_usd(name: str) -> float:
        bound = servers[name].bound(demand)
        return least_usd[name] * max(demand.rate_rps / bound.rate_rps if bound else 1.0, 1.0)

    for name in sorted(servers, key=about_usd if most_drawn else least_usd.__getitem__):
        if most_drawn is None:
            take_draws(least_usd[name])
        if least_usd[name] <= min(most_usd, _last(likeliest, most_drawn)):
            likeliest[name] = sized(name, 1)
    take_draws(np.inf)
    return {name: found.get(name, replace(each, needs=())) for name, each in likeliest.items()}


def _drawn_usd(sizing: Sizing) -> float | None:
    """Return the price of what draws show to be enough."""
    return sizing.usd_per_hour if len(sizing.needs) > 1 else None


def _last(likeliest: Mapping[str, Sizing], n: int | None) -> float:
    """Return what the n-th cheapest costs, infinite where there are fewer."""
    usd = sorted(each.usd_per_hour or np.inf for each in likeliest.values())
    return usd[n - 1] if n is not None and len(usd) >= n else np.inf


def is_near(sizings: Sequence[Sizing], confidence: float) -> bool:
    """Return whether one draw more or less that meets the target could change the cheapest answer.

    That is where a profile has a number of replicas which one draw keeps from the confidence, or
    holds there, at no more than the price of the cheapest that is surer than that.
    """
    ends = []
    for sizing in sizings:
        if (n := len(sizing.needs)) > 1:
            needs = np.sort([*sizing.needs, np.inf])
            is_enough = probability_of(np.arange(1, n + 1), n) >= confidence - 1e-9
            place = int(is_enough.argmax())
            ends.append(sizing.server.profile.usd_per_hour * needs[[max(place - 1, 0), place + 1]])
    surest = min((high for _, high in ends), default=np.inf)
    return any(low < high and low <= surest for low, high in ends)


def might(profile: GPUProfile) -> np.ndarray:
    """Return memory (GiB), bandwidth (GB/s) and TFLOPS (16 bits) of all GPUs together."""
    gpu = profile.gpu
    each = [gpu.memory_gib, gpu.memory_bandwidth_gb_s, gpu.dense_16bit_tflops]
    return profile.n_gpus * np.array(each)


def is_as_good(profile: GPUProfile, other: GPUProfile) -> bool:
    """Return whether a profile has no fewer GPUs, each of no less memory, bandwidth and FLOPS."""
    n = profile.n_gpus
    of_other = other.n_gpus
    is_enough = n >= of_other and bool((might(profile) / n >= might(other) / of_other).all())
    return is_enough and profile.gpu.kind == other.gpu.kind


def size_by_simulation(
    server: SimulatedReplica,
    traffic: Traffic,
    target: Target,
    confidence: float,
    worse: Sequence[Sizing] = (),
    *,
    least: int = 1,
    most_usd_per_hour: float = np.inf,
    has_rate: bool = True,
    n_draws: int | None = None,
    known: Sizing | None = None,
    hardest: Sequence[int] = (),
) -> Sizing:
    """Return the fewest replicas that meet a target with this probability.

    Each draw of the law has its own day of the traffic (`Traffic.drawn`). Bisection finds its
    fewest replicas; the draws that need no more give the probability (`probability_of`).

    `worse` are profiles that this one is at least as good as; they count where its most likely law
    needs no more than theirs: a small LLM may be slower on more GPUs. There are `least` replicas in
    any case; more than `most_usd_per_hour` pays for are not tried, and count as none. With
    `has_rate` the rate that each replica serves is found. `n_draws` are taken, all that the server
    has by default; `known` is what fewer draws gave. With an order of draws, the `hardest` first,
    drawing stops once too many have no number for this probability; then `needs` is empty.
    """
    n_draws = n_draws or server.n_draws
    if known is not None and not known.needs:
        return known
    demand = traffic.drawn(0)
    affordable = int(min(most_usd_per_hour / server.profile.usd_per_hour + 1e-9, MOST_REPLICAS))
    if known is None:
        alone, e2e_s = server.judge_alone(demand, target)
        shares = alone.n_failed / np.maximum(alone.n_requests, 1)
        n_failed = int(alone.n_failed.sum())
        n_requests = int(alone.n_requests.sum())
        ratios = alone.worst_ratio(target)
        sizing = Sizing(server, "meets", ratios, n_failed, float(shares.max()))
        if alone.n_missed or n_failed == n_requests:  # no number of replicas is enough
            is_refused = n_failed == n_requests or n_failed > target.max_failed * n_requests
            return replace(sizing, status="refused" if is_refused else "too_slow")
        bound = server.bound(demand)
        served_rps = bound.rate_rps if bound else 1 / e2e_s
        start = max(int(np.ceil(demand.rate_rps / served_rps)), 1)
        if start > min(MOST_REPLICAS, _HOPELESS * affordable):
            return replace(sizing, status="too_many", rate_rps=served_rps, binds="limits")
        first = _need(server, traffic, target, start, affordable, np.inf, 0)
        if has_rate and np.isfinite(first):
            found = rate_at_slo(server, demand, target, demand.rate_rps, int(first))
            rate = (found or demand.rate_rps) / first
            binds = "limits"
            if bound is not None and bound.rate_rps < rate:
                rate, binds = bound
            sizing = replace(sizing, rate_rps=rate, binds=binds)
        done = [first]
    else:
        sizing = known
        done = [*known.needs]
        start = int(min(done)) if np.isfinite(done).any() else 1
    most = np.full(n_draws, np.inf)
    for each in worse:
        if each.needs and done[0] <= each.needs[0]:
            own = np.array(each.needs[:n_draws])
            most[: len(own)] = np.minimum(most[: len(own)], own)
    start = int(done[0]) if np.isfinite(done[0]) else start
    need = partial(_need, server, traffic, target, start, affordable)
    rest = [draw for draw in hardest or range(n_draws) if draw >= len(done)]
    most_failed = n_draws - np.ceil(confidence * (n_draws + 1) - 0.5 - 1e-9) if hardest else n_draws
    every = np.concatenate([done, np.full(len(rest), np.nan)])
    while rest:
        ahead, rest = (rest[:_AT_ONCE], rest[_AT_ONCE:]) if hardest else (rest, [])
        every[ahead] = on_threads(need, most[ahead].tolist(), ahead)
        if np.isinf(every).sum() > most_failed:
            return replace(sizing, status="unsure", needs=(), replicas=None)
    needs = [each if np.isinf(each) else int(each) for each in every]
    sizing = replace(sizing, needs=needs)
    n = len(needs)
    is_sure = probability_of(np.arange(1, n + 1), n) >= confidence - 1e-9 if n > 1 else [True]
    enough = np.where(is_sure, np.sort(needs), np.inf).min()
    if not np.isfinite(enough):
        return replace(sizing, status="unsure", replicas=None)
    return replace(sizing, status="meets", replicas=max(int(enough), least))


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
    if (found := fewest(start, far)) is not None:
        return found
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
    many requests those of the busiest windows stand for all.
    """
    peak = demand.peak(target.window_s)

    def meets(rate_rps: float) -> bool:
        factor = rate_rps / demand.rate_rps
        window_s = target.window_s and target.window_s / factor
        stretched = replace(target, window_s=window_s and max(window_s, 1.0))
        return not server.judge(peak.at_speed(factor), replicas, stretched).n_missed

    return largest_rate(meets, start_rps)


def neighbours(sizing: Sizing, demand: RequestStream, target: Target) -> list[dict[str, Any]]:
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
                **summarise_windows(judged, target),
            }
        )
    return rows


def summarise_windows(judged: Judged, target: Target) -> dict[str, Any]:
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
