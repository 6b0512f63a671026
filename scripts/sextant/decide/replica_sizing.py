"""How many replicas of GPU profiles meet a target with a probability: the one sizing.

Each draw of the law is a possible truth and has its own number of replicas; the draws that need no
more give the probability. Requests at a steady rate are read from a surface of latencies
(`latency_surface`). Other traffic is simulated in a few draws, chosen by what a replica bears of a
steady rate; the other draws lie between them (`_tried_loads`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from sextant.decide.asked_limits import is_smooth
from sextant.decide.latency_surface import BorneRates, LatencySurface
from sextant.decide.most_replicas import MOST_REPLICAS
from sextant.decide.replicas import SimulatedReplica
from sextant.decide.sizing import fewest_replicas, reached_by
from sextant.decide.windows import Judged, Target
from sextant.simulate.simulation import on_threads
from sextant.workload.requests import RequestStream, SteadyTraffic, Traffic

_TRIALS = (0.25, 0.6, 0.85, 1.0, 1.15, 1.5, 2.5, 5.0, 8.0)
"""Ranks of the draws that are simulated, over the share of the draws that may fail: most of them
are near the draw that decides."""
_HIGHEST_RANK = 0.95
_FAR = 32
"""Times the guessed replicas beyond which no number is tried."""
_FASTER = (1.0, 16.0)
"""How many times as fast requests arrive, in search of the rate that one replica bears."""
_N_FASTER = 8
"""Steps of that search, by bisection."""


class Trial(NamedTuple):
    """A draw of the law with a draw of the traffic, and what they need."""

    draw: int  #: Of the law; 0: the likeliest.
    day: int  #: Of the traffic.
    load: float  #: In replicas that bear just so much; infinite where no number is enough.


class DrawnLoads(NamedTuple):
    """What some traffic needs."""

    loads: np.ndarray
    """Load in replicas that bear just so much, (1 + draws,), the likeliest law first."""
    trials: tuple[Trial, ...] = ()
    """What was simulated; none where all loads were read from a surface."""


@dataclass(frozen=True)
class Sizing:
    """The replicas that one GPU profile needs."""

    server: SimulatedReplica
    status: str
    """`meets`; or `too_slow` (a request alone breaks a limit), `refused` (no replica takes some
    requests), `too_many` (more replicas than are tried), `unsure` (no number is as certain)."""
    alone: Mapping[str, float] = field(default_factory=dict)
    """Largest latency over its limit in any window, by metric, if each request were alone."""
    n_failed_alone: int = 0
    """Requests that fail even if each is alone."""
    failed_share_alone: float = 0.0
    """Their largest share of the requests of a window."""
    rate_rps: float | None = None
    """Mean rate that a replica serves beside the others, by the likeliest law; None: not known."""
    binds: str | None = None
    """What keeps a replica from a higher rate: `limits`, or as `Bound.binds`."""
    loads: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)
    """Load in replicas that bear just so much, by draw of law and traffic, (draws,); infinite where
    no number is enough. Without draws it is that of the likeliest law alone."""
    replicas: int | None = None
    """The fewest that meet the target with the asked probability."""
    trials: tuple[Trial, ...] = ()
    """The draws that were simulated; none where all were read from a surface."""

    @property
    def needs(self) -> np.ndarray:
        """Fewest replicas in each draw; infinite where no number is enough."""
        return whole_replicas(self.loads)

    def probability(self, replicas: int) -> float | None:
        """Return the probability that this many replicas meet the target; None without draws.

        It is the share of the draws, but no closer to 0 or 1 than so many draws can show.
        """
        n_draws = self.server.n_draws
        if not n_draws:
            return None
        least = 0.5 / (n_draws + 1)
        return float(np.clip((self.needs <= replicas).mean(), least, 1 - least))

    def counts(self, least: int = 1) -> list[int]:
        """Return the numbers of replicas, at least so many, that some draw needs."""
        finite = self.needs[np.isfinite(self.needs)].astype(int)
        return [*map(int, np.unique(np.maximum(finite, least)))]

    @cached_property
    def example(self) -> Trial:
        """The draws of law and traffic that need as many replicas as the answer has.

        What else is simulated of the answer is simulated with these: with draws that were tried, if
        any were.
        """
        if not self.server.n_draws:
            return Trial(0, 0, float(self.loads[0]))
        trials = [trial for trial in self.trials if trial.draw and trial.load <= self.count]
        if not trials:
            rows = np.flatnonzero(self.needs <= self.count)
            trials = [Trial(1 + row, 1 + row, float(self.loads[row])) for row in rows.tolist()]
        most = max(np.ceil(trial.load - 1e-9) for trial in trials)
        hardest = [trial for trial in trials if np.ceil(trial.load - 1e-9) == most]
        return min(hardest, key=lambda trial: abs(trial.load - (self.count - 0.5)))

    @property
    def draw(self) -> int:
        """The draw of the law of `example`."""
        return self.example.draw

    @property
    def day(self) -> int:
        """The draw of the traffic of `example`."""
        return self.example.day

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


def whole_replicas(loads: np.ndarray) -> np.ndarray:
    """Return the whole replicas that bear loads; infinite above `MOST_REPLICAS`."""
    needs = np.maximum(np.ceil(loads - 1e-9), 1.0)
    return np.where(needs <= MOST_REPLICAS, needs, np.inf)


def enough_replicas(needs: np.ndarray, probability: float) -> int | None:
    """Return the fewest replicas that are enough in this share of the draws; None: none are."""
    enough = reached_by(needs, probability)
    return int(enough) if np.isfinite(enough) else None


@dataclass(frozen=True)
class Days:
    """Draws of some traffic, and their busiest windows: every GPU profile sees the same few."""

    traffic: Traffic
    window_s: float | None  #: Of the target.
    peaks: dict[int, RequestStream] = field(default_factory=dict, repr=False)

    @cached_property
    def likeliest(self) -> RequestStream:
        """The likeliest draw, whole."""
        return self.traffic.drawn(0)

    def peak(self, number: int) -> RequestStream:
        """Return the busiest windows of a draw: what fails there fails."""
        if number not in self.peaks:
            self.peaks[number] = self.traffic.drawn(number).peak(self.window_s)
        return self.peaks[number]


def size_profiles(
    servers: Mapping[str, SimulatedReplica],
    traffic: Traffic,
    target: Target,
    probability: float,
    surface: LatencySurface,
    least: int = 1,
) -> dict[str, Sizing]:
    """Return what each GPU profile needs to meet a target with a probability.

    Args:
        servers: a replica of each GPU profile; all with the same draws.
        traffic: what arrives.
        target: what has to hold.
        probability: that the replicas meet it.
        surface: latencies of requests like those of the traffic.
        least: replicas that there are in any case.
    """
    days = Days(traffic, target.window_s)
    return {
        name: size_replicas(server, days, target, probability, surface, least)
        for name, server in servers.items()
    }


def size_replicas(
    server: SimulatedReplica,
    days: Days,
    target: Target,
    probability: float,
    surface: LatencySurface,
    least: int = 1,
) -> Sizing:
    """Return what one GPU profile needs; other arguments as of `size_profiles`."""
    demand = days.likeliest
    peak = days.peak(0)
    alone = server.judge_alone(peak, target)
    n_requests = np.maximum(alone.n_requests, 1)
    n_failed = int(alone.n_failed.sum())
    sizing = Sizing(
        server,
        "meets",
        alone=alone.worst_ratio(target),
        n_failed_alone=n_failed,
        failed_share_alone=float((alone.n_failed / n_requests).max()),
    )
    if n_failed == peak.n or n_failed > target.max_failed * peak.n:
        return replace(sizing, status="refused")
    if alone.n_missed:
        return replace(sizing, status="too_slow")

    borne = borne_of(server, days.traffic, target, surface)
    loads, trials = drawn_loads(server, days, target, 1 - probability, borne)
    sizing = replace(sizing, loads=loads[1:] if server.n_draws else loads, trials=trials)
    if not np.isfinite(whole_replicas(loads)).any():
        return replace(sizing, status="too_many", loads=np.empty(0))
    if np.isfinite(loads[0]):
        sizing = _with_rate(sizing, demand, loads[0])
    replicas = enough_replicas(sizing.needs, probability)
    if replicas is None:
        return replace(sizing, status="unsure")
    return replace(sizing, replicas=max(replicas, least))


def _with_rate(sizing: Sizing, demand: RequestStream, load: float) -> Sizing:
    """Return a sizing with the rate that a replica serves, and what keeps it from a higher one."""
    rate_rps = demand.rate_rps / load
    bound = sizing.server.bound(demand)
    if bound is not None and bound.rate_rps < rate_rps:
        return replace(sizing, rate_rps=bound.rate_rps, binds=bound.binds)
    return replace(sizing, rate_rps=rate_rps, binds="limits")


def borne_of(
    server: SimulatedReplica, traffic: Traffic, target: Target, surface: LatencySurface
) -> BorneRates:
    """Return what a replica bears of requests like those of some traffic at a steady rate."""
    alpha = traffic.alpha if isinstance(traffic, SteadyTraffic) else 1.0
    return BorneRates(surface, server.laws, server.guide or target, alpha)


def replica_loads(
    server: SimulatedReplica, days: Days, target: Target, risk: float, borne: BorneRates
) -> np.ndarray:
    """Return the load of some traffic, in replicas that bear just so much, (1 + draws,).

    Arguments as of `drawn_loads`.
    """
    return drawn_loads(server, days, target, risk, borne).loads


def drawn_loads(
    server: SimulatedReplica, days: Days, target: Target, risk: float, borne: BorneRates
) -> DrawnLoads:
    """Return the load of some traffic, in replicas that bear just so much, and what was tried.

    Infinite: no number of replicas is enough.

    Args:
        server: the replica.
        days: what arrives.
        target: what has to hold.
        risk: share of the draws that may fail: near these, draws are simulated.
        borne: what the replica bears of a steady rate (`borne_of`).
    """
    demand = days.likeliest
    borne_rps = borne.at(demand.rate_rps)
    if not is_read(server, days.traffic, target):
        tried = _tried_loads(server, days, target, risk, borne_rps)
        least = demand.rate_rps / borne.most_measured_rps()
        return tried._replace(loads=np.maximum(tried.loads, least))
    if is_refusing(server, demand, target):
        return DrawnLoads(np.full(len(borne_rps), np.inf))
    with np.errstate(divide="ignore"):
        return DrawnLoads(np.asarray(demand.rate_rps / borne_rps))


def is_read(server: SimulatedReplica, traffic: Traffic, target: Target) -> bool:
    """Return whether a surface tells what some traffic needs; other traffic is simulated."""
    is_steady = isinstance(traffic, SteadyTraffic) and np.isinf(server.laws.scheduler.timeout_s)
    return bool(is_steady and server.guide is None and is_smooth(target))


def is_refusing(server: SimulatedReplica, demand: RequestStream, target: Target) -> bool:
    """Return whether a replica refuses more requests, as too long, than a target lets fail."""
    is_refused = demand.input_tokens + demand.output_tokens > server.laws.scheduler.longest
    return bool(is_refused.mean() > target.max_failed)


def _tried_loads(
    server: SimulatedReplica,
    days: Days,
    target: Target,
    risk: float,
    borne_rps: np.ndarray,
) -> DrawnLoads:
    """Return the loads by simulating a few draws; the others lie between them by what they bear.

    Args:
        server: the replica.
        days: what arrives; each draw that is tried has another day.
        target: what has to hold.
        risk: share of the draws that may fail.
        borne_rps: what a replica bears of a steady rate, (1 + draws,).
    """
    from scipy.optimize import isotonic_regression  # only traffic that is not steady is tried

    rate_rps = days.likeliest.rate_rps
    likeliest_rps = borne_rps[0] or float(np.median(borne_rps)) or 1.0
    first = _tried_load(server, days, target, 0, 0, rate_rps / likeliest_rps)
    ranked = 1 + np.argsort(borne_rps[1:], kind="stable")
    n_none = int((borne_rps[1:] <= 0).sum())
    last = max(len(ranked) - 1, 0)
    ranks = [round(min(share * risk, _HIGHEST_RANK) * last) for share in _TRIALS]
    draws = (
        [int(ranked[rank]) for rank in dict.fromkeys(ranks) if rank >= n_none]
        if len(ranked)
        else []
    )
    guess = first if np.isfinite(first) else 2 * rate_rps / likeliest_rps
    starts = [guess * likeliest_rps / borne_rps[draw] for draw in draws]
    numbers = range(1, 1 + len(draws))
    tried = on_threads(partial(_tried_load, server, days, target), numbers, draws, starts)
    trials = tuple(map(Trial, [0, *draws], [0, *numbers], [first, *tried]))

    loads = np.full(len(borne_rps), np.inf)
    loads[0] = first
    known_rps = borne_rps[[0, *draws]]
    known = np.array([first, *tried])
    is_finite = np.isfinite(known) & (known_rps > 0)
    if not is_finite.any():
        return DrawnLoads(loads, trials)
    order = np.argsort(known_rps[is_finite])
    log_rps = np.log(known_rps[is_finite][order])
    log_loads = _alike(np.log(known[is_finite][order]), log_rps)
    log_loads = isotonic_regression(log_loads, increasing=False).x

    least_rps = np.max(known_rps[~is_finite], initial=0.0)
    rows = np.flatnonzero(borne_rps > least_rps)
    at = np.log(borne_rps[rows])
    beyond = np.minimum(at - log_rps[0], 0) + np.maximum(at - log_rps[-1], 0)
    loads[rows] = np.exp(np.interp(at, log_rps, log_loads) - beyond)
    loads[0] = first
    return DrawnLoads(loads, trials)


def _alike(log_loads: np.ndarray, log_rps: np.ndarray) -> np.ndarray:
    """Return loads of tried draws that are one multiple of what they bear, as far as they may be.

    A trial tells whole replicas; how much of the last one is needed is a guess. So the load of each
    draw moves towards that multiple between the replicas that are too few and those that are
    enough.

    Args:
        log_loads: logarithms of the loads, (draws,).
        log_rps: logarithms of the rates that a replica bears, (draws,).
    """
    enough = whole_replicas(np.exp(log_loads))
    with np.errstate(divide="ignore"):
        lowest = np.log(enough - 1) + log_rps + 1e-6
    highest = np.log(enough) + log_rps

    # The multiple that is outside of the fewest of these ranges, and by the least.
    is_above = np.isfinite(lowest)
    ends = np.sort(np.concatenate([lowest[is_above], highest]))
    n_above = int(is_above.sum())
    least = ends[n_above - 1] if n_above else -np.inf
    multiple = np.clip(np.median(log_loads + log_rps), least, ends[n_above])
    return np.asarray(np.clip(multiple, lowest, highest) - log_rps)


def _tried_load(
    server: SimulatedReplica, days: Days, target: Target, number: int, draw: int, guess: float
) -> float:
    """Return the load of one draw: the fewest replicas, less what the last of them has to spare.

    Between one replica fewer and these, it is where the largest latency over its limit is 1.
    `number` is that of the traffic's draw, `draw` that of the law's.
    """
    demand = days.peak(number)
    start = int(np.clip(np.ceil(guess), 1, MOST_REPLICAS))
    judged: dict[int, Judged] = {}

    def meets(replicas: int) -> bool:
        if replicas not in judged:
            judged[replicas] = server.judge(demand, replicas, target, draw)
        return not judged[replicas].n_missed

    most = min(_FAR * start, MOST_REPLICAS)
    replicas = fewest_replicas(meets, start, most, is_steady=demand.gaps is not None)
    if replicas is None:
        return np.inf
    if replicas == 1 and demand.gaps is not None:  # latencies at a light load say little of it
        return min(guess, 1.0)
    if replicas == 1 and draw == 0:  # the answer says what a replica bears
        return 1 / _most_times_faster(server, demand, target)
    spare = _log_worst(judged[replicas], target)
    if replicas == 1:
        return float(np.exp(min(spare, 0.0)))
    if replicas - 1 not in judged:
        return replicas - 0.5
    missing = _log_worst(judged[replicas - 1], target)
    if missing <= 0 or spare > 0:
        return replicas - 0.5
    return replicas - 1 + missing / (missing - spare)


def _most_times_faster(server: SimulatedReplica, demand: RequestStream, target: Target) -> float:
    """Return how many times as fast requests may arrive, so that one replica still serves them.

    The law is the likeliest one. Latencies at a light load say little of it: it is simulated.
    """
    low, high = np.log(_FASTER)
    for _ in range(_N_FASTER):
        middle = (low + high) / 2
        faster = demand.faster(float(np.exp(middle)))
        is_met = not server.judge(faster, 1, target).n_missed
        low, high = (middle, high) if is_met else (low, middle)
    return float(np.exp(low))


def _log_worst(judged: Judged, target: Target) -> float:
    """Return the logarithm of the largest latency over its limit in any window."""
    worst = max(judged.worst_ratio(target).values(), default=1.0)
    return float(np.log(max(worst, 1e-3)))
