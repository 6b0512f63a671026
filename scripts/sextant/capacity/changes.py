"""What would change the answer: another number of replicas, a failure, more traffic, two pools."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from sextant.base.errors import InputError
from sextant.capacity.answer import (
    Growth,
    Neighbour,
    ReplicaFailure,
    Split,
    SplitPool,
    WindowsSummary,
)
from sextant.decide.latency_surface import LatencySurface
from sextant.decide.replica_sizing import Sizing, size_profiles
from sextant.decide.replicas import SimulatedReplica
from sextant.decide.sizing import fewest_replicas
from sextant.decide.windows import Judged, ServingResults, Target, judge_windows
from sextant.pages.words import MINUTE_S
from sextant.workload.requests import RequestStream, ScalableTraffic, Traffic

GROWTH = 1.5


def with_neighbours(
    sizing: Sizing, requests: RequestStream, target: Target, judged_as_chosen: Judged | None
) -> list[Neighbour]:
    """Return the results of one replica fewer, the answer's number, and one more.

    Those of the answer's number are `judged_as_chosen`, where they are known.
    """
    chosen = sizing.count
    neighbours = []
    for replicas in range(max(chosen - 1, 1), chosen + 2):
        judged = judged_as_chosen if replicas == chosen else None
        judged = judged or sizing.server.judge(requests, replicas, target, sizing.draw)
        neighbours.append(
            Neighbour(
                replicas,
                sizing.server.usd_per_hour(replicas),
                sizing.probability(replicas),
                WindowsSummary.of(judged, target, requests.part),
            )
        )
    return neighbours


def serve_with_failure(
    sizing: Sizing,
    requests: RequestStream,
    at_s: float,
    back_s: float,
    window_s: float | None = None,
) -> ServingResults:
    """Return the results of requests when one replica fails, and is back later.

    Replicas take requests in turn, so each replica is simulated alone. Requests on the failed
    replica are sent again to the others at once; their wait counts from their first arrival. A
    single replica serves them when it is back.
    """
    requests = replace(requests, turns=None)  # turns keep their times
    count = sizing.count
    arrival_s = requests.arrival_s
    turn = np.arange(requests.n)
    run = sizing.server.run
    healthy = run(requests, turn % count, sizing.draw, window_s)

    end_s = arrival_s + np.where(healthy.is_ok, healthy.e2e_s, 0.0)
    is_lost = (turn % count == 0) & (arrival_s < at_s) & (end_s > at_s)
    sent_s = np.where(is_lost, at_s, arrival_s)
    if count == 1:  # nobody serves until it is back
        sent_s = np.where((sent_s >= at_s) & (sent_s < back_s), back_s, sent_s)

    order = np.argsort(sent_s, kind="stable")
    moved = replace(requests.at(order), arrival_s=sent_s[order])
    is_down = (moved.arrival_s >= at_s) & (moved.arrival_s < back_s)
    replica = np.where(is_down, 1 + turn % max(count - 1, 1), turn % count)
    # What arrived before the failure stays where it was; what follows takes turns.
    is_before = ((arrival_s < at_s) & ~is_lost)[order]
    replica[is_before] = (turn % count)[order][is_before]
    served = run(moved, replica, sizing.draw, window_s)

    in_order = np.argsort(order, kind="stable")
    return served._replace(
        arrival_s=arrival_s,
        input_tokens=requests.input_tokens,
        output_tokens=requests.output_tokens,
        ttft_s=served.ttft_s[in_order] + sent_s - arrival_s,
        e2e_s=served.e2e_s[in_order] + sent_s - arrival_s,
        is_ok=served.is_ok[in_order],
    )


def after_failure(
    sizing: Sizing, requests: RequestStream, target: Target, startup_s: float
) -> ReplicaFailure:
    """Return the results when one replica fails in the middle of the busiest minute.

    Another one takes its place after the start-up time.
    """
    start_s, _ = requests.busiest(MINUTE_S)
    at_s = start_s + min(MINUTE_S, requests.duration_s - start_s) / 2
    gaps_s = target.window_s if "itl" in target.limits else None
    results = serve_with_failure(sizing, requests, at_s, at_s + startup_s, gaps_s)
    judged = judge_windows(results, target, requests.n_windows(target.window_s))
    return ReplicaFailure(at_s, at_s + startup_s, WindowsSummary.of(judged, target, requests.part))


def after_growth(sizing: Sizing, traffic: ScalableTraffic, target: Target) -> Growth:
    """Return the results with more traffic, and the replicas that it needs."""
    server = sizing.server
    more = traffic.scaled(GROWTH).drawn(sizing.day)
    peak = more.peak(target.window_s)  # what fails there fails

    def meets(requests: RequestStream, replicas: int) -> bool:
        return not server.judge(requests, replicas, target, sizing.draw).n_missed

    needed = fewest_replicas(partial(meets, peak), round(sizing.count * GROWTH))
    if needed is not None:  # what meets the busiest windows may miss others
        needed = fewest_replicas(partial(meets, more), needed)
    judged = server.judge(more, sizing.count, target, sizing.draw)
    return Growth(
        GROWTH,
        needed,
        None if needed is None else server.usd_per_hour(needed),
        WindowsSummary.of(judged, target, more.part),
    )


class _OneSide(NamedTuple):
    """Requests of some traffic on one side of an input length."""

    traffic: Traffic
    tokens: int
    is_long: bool

    def drawn(self, seed: int) -> RequestStream:
        """Return the requests of a draw that are on this side."""
        requests = self.traffic.drawn(seed)
        is_long = requests.input_tokens > self.tokens
        return requests.at(np.flatnonzero(is_long == self.is_long))


def size_split(
    servers: Mapping[str, SimulatedReplica],
    traffic: Traffic,
    tokens: int,
    target: Target,
    confidence: float,
    surface: LatencySurface,
) -> Split:
    """Return the cheapest pool for inputs up to `tokens`, and the cheapest for longer inputs.

    The probability counts the draws in which both pools meet the target.

    Raises:
        InputError: all requests are on one side.
    """
    requests = traffic.drawn(0)
    n_long = int((requests.input_tokens > tokens).sum())
    if not 0 < n_long < requests.n:
        problem = f"{n_long:,} of {requests.n:,} requests have more than {tokens:,} input tokens"
        fix = "give a length between those of the requests"
        raise InputError(problem, field="--split-tokens", fix=fix)

    cheapest: list[Sizing | None] = []
    for is_long in (False, True):
        side = _OneSide(traffic, tokens, is_long)
        sizings = size_profiles(servers, side, target, confidence, surface).values()
        enough = [sizing for sizing in sizings if sizing.replicas]
        cheapest.append(min(enough, key=lambda sizing: sizing.usd_per_hour or np.inf, default=None))

    short, long = cheapest
    pools = [SplitPool.of(sizing) for sizing in cheapest]
    if short is None or long is None:
        return Split(tokens, None, None, *pools)
    needs = np.array([short.needs, long.needs])
    counts = np.array([[short.count], [long.count]])
    probability = float((needs <= counts).all(axis=0).mean())
    usd = (short.usd_per_hour or 0.0) + (long.usd_per_hour or 0.0)
    return Split(tokens, usd, probability, *pools)
