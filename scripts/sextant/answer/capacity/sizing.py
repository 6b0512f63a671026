"""The fewest replicas and the largest rate that keep a target, by simulation.

More replicas keep a target better in the mean. One simulation is noisy, so a count may meet it by
luck where a larger one misses it: what a search returns meets it, and the next larger count does.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np

from sextant.answer.capacity.demand import Demand, Traffic
from sextant.answer.capacity.servers import Server
from sextant.answer.capacity.target import Judged, Target
from sextant.simulate.run import on_threads

MOST_REPLICAS = 4096
_RATE_STEP = 2.0
_RATE_PRECISION = 1.02
_MOST_DOUBLINGS = 24


def fewest(meets: Callable[[int], bool], start: int, most: int = MOST_REPLICAS) -> int | None:
    """Return the fewest replicas that meet a target, None if `most` do not.

    From `start` the steps double until the answer lies between a count that misses and one that
    meets; bisection finds it. A count that meets while the next larger one misses is not taken.
    """
    known = cache(meets)
    low, high = _bracket(known, min(max(start, 1), most), most)
    while high is not None:
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if known(middle) else (middle, high)
        if high == most or known(high + 1):
            return high
        low, high = _bracket(known, min(high + 2, most), most, least=high + 1)
    return None


def _bracket(
    meets: Callable[[int], bool], start: int, most: int, least: int = 0
) -> tuple[int, int | None]:
    """Return a count that misses, or `least`, and a larger one that meets; None if none does."""
    step = 1
    if meets(start):
        high = start
        while (low := max(high - step, least)) > least and meets(low):
            high, step = low, 2 * step
        return low, high
    low = start
    while low < most:
        high = min(low + step, most)
        if meets(high):
            return low, high
        low, step = high, 2 * step
    return low, None


def largest_rate(meets: Callable[[float], bool], start_rps: float) -> float | None:
    """Return the largest rate that meets a target, to 2%; None if no rate does, infinite if all do.

    Doubling or halving from `start_rps` finds two rates between which it lies; then their
    geometric mean is tried.
    """
    low, high = None, None
    rate = start_rps
    for _ in range(_MOST_DOUBLINGS):
        if meets(rate):
            low, rate = rate, rate * _RATE_STEP
        else:
            high, rate = rate, rate / _RATE_STEP
        if low is not None and high is not None:
            break
    if low is None:
        return None
    if high is None:
        return math.inf
    while high / low > _RATE_PRECISION:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


_FAR = 8
"""Times the first guess of the replicas: beyond it, it is asked whether any number is enough."""


@dataclass(frozen=True)
class Sizing:
    """What was found of one GPU profile."""

    server: Server
    status: str
    """`meets`; or `too_slow` (a request alone breaks a limit), `refused` (requests that no replica
    takes), `too_many` (more replicas than are tried)."""
    alone: dict[str, float]
    """Largest latency over its limit in any window, by metric, if each request were alone."""
    n_failed_alone: int
    rate_rps: float | None = None
    """The mean rate of such traffic that one replica bears; infinite if all of it at once."""
    needs: Sequence[float] = field(default_factory=tuple)
    """Fewest replicas in each draw of law and traffic; infinite where none sufficed."""
    replicas: int | None = None
    """The fewest that meet the target as surely as was asked."""

    def probability(self, replicas: int) -> float:
        """Return in which share of the draws so many replicas meet the target."""
        return float(np.mean(np.array(self.needs) <= replicas))

    @property
    def draw(self) -> int:
        """The draw that needs the answer's replicas: the law to ask what would happen with."""
        needs = np.array(self.needs)
        return int(np.where(needs <= (self.replicas or 0), needs, -1).argmax())

    @property
    def usd_per_hour(self) -> float | None:
        """Price of the replicas."""
        return None if self.replicas is None else self.server.usd_per_hour(self.replicas)


def size(server: Server, traffic: Traffic, target: Target, confidence: float) -> Sizing:
    """Return the fewest replicas that meet a target with this probability.

    Each draw of the law meets another day of the traffic (`Traffic.drawn`); its need is found by
    bisection, and the probability of a number of replicas is the share of draws that need no more.
    """
    demand = traffic.drawn(0)
    alone, e2e_s = server.judge_alone(demand, target)
    found = Sizing(server, "meets", alone.worst_ratio(target), int(alone.n_failed.sum()))
    if status := _hopeless(alone, target):
        return replace(found, status=status)
    rate = rate_at_slo(server, demand, target, 1 / e2e_s)
    if rate is None:
        return replace(found, status="too_slow")
    start = max(int(np.ceil(demand.rate_rps / rate)), 1)

    need = partial(_need, server, traffic, target, start)
    needs = on_threads(need, range(server.n_draws))
    enough = np.quantile(needs, confidence, method="inverted_cdf")
    if not np.isfinite(enough):
        return replace(found, status="too_many", rate_rps=rate, needs=needs)
    return replace(found, rate_rps=rate, needs=needs, replicas=int(enough))


def _need(server: Server, traffic: Traffic, target: Target, start: int, draw: int) -> float:
    """Return the fewest replicas in one draw; infinite if a request alone breaks a limit there."""
    demand = traffic.drawn(draw)

    def meets(replicas: int) -> bool:
        return not server.judge(demand, replicas, target, draw).n_missed

    far = _FAR * start
    if (found := fewest(meets, start, far)) is not None:
        return found
    alone, _ = server.judge_alone(demand, target, draw)
    return np.inf if alone.n_missed else fewest(meets, far) or np.inf


def _hopeless(alone: Judged, target: Target) -> str:
    n_failed, n_requests = alone.n_failed.sum(), alone.n_requests.sum()
    if n_failed == n_requests:
        return "refused"
    if not alone.n_missed:
        return ""
    return "refused" if n_failed > target.max_failed * n_requests else "too_slow"


def rate_at_slo(server: Server, demand: Demand, target: Target, start_rps: float) -> float | None:
    """Return the mean rate at which one replica just meets the target, None if at no rate.

    The gaps of the traffic are stretched, and the windows with them: each has the same requests.
    """

    def meets(rate_rps: float) -> bool:
        factor = rate_rps / demand.rate_rps
        window_s = target.window_s and target.window_s / factor
        stretched = replace(target, window_s=window_s and max(window_s, 1.0))
        return not server.judge(demand.at_rate(factor), 1, stretched).n_missed

    return largest_rate(meets, start_rps)


def neighbours(sizing: Sizing, demand: Demand, target: Target) -> list[dict[str, Any]]:
    """Return what one replica fewer and one more change, beside the answer."""
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
    """Return what windows come to: how many are missed, by how much, and how many fail."""
    n_requests = int(judged.n_requests.sum())
    ratios = judged.worst_ratio(target)
    return {
        "n_windows": len(judged.start_s),
        "n_windows_missed": judged.n_missed,
        "failed_fraction": float(judged.n_failed.sum() / n_requests),
        "worst_ratio": max(ratios.values(), default=0.0),
        "worst_limit": max(ratios, key=ratios.__getitem__, default=None),
    }
