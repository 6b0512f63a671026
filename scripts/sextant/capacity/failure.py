"""What happens when one replica fails, and when there is more traffic."""

from dataclasses import replace
from functools import partial

import numpy as np

from sextant.ask.traffic import multiplied_demand
from sextant.capacity.answer import Growth, ReplicaFailure, WindowsSummary
from sextant.decide.simulated_sizing import Sizing
from sextant.decide.sizing import fewest_replicas
from sextant.decide.windows import ServingResults, Target, judge_windows
from sextant.workload.requests import RequestStream

GROWTH = 1.5
_MINUTE_S = 60.0


def serve_with_failure(
    sizing: Sizing,
    requests: RequestStream,
    at_s: float,
    back_s: float,
    window_s: float | None = None,
) -> ServingResults:
    """Return the results of requests when one replica fails, and is back later.

    Replicas take requests in turn, so each is simulated alone. What the failed one was working on
    is sent again to the others at once, and waits from its first arrival on. With a single replica
    it waits until that is back.
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
    start_s, _ = requests.busiest(_MINUTE_S)
    at_s = start_s + min(_MINUTE_S, requests.duration_s - start_s) / 2
    gaps_s = target.window_s if "itl" in target.limits else None
    results = serve_with_failure(sizing, requests, at_s, at_s + startup_s, gaps_s)
    judged = judge_windows(results, target, requests.n_windows(target.window_s))
    return ReplicaFailure(at_s, at_s + startup_s, WindowsSummary.of(judged, target))


def after_growth(sizing: Sizing, requests: RequestStream, target: Target) -> Growth:
    """Return the results with more traffic, and the replicas that it needs."""
    server = sizing.server
    more = multiplied_demand(requests, GROWTH, target.window_s)
    results = partial(server.judge, more, target=target, draw=sizing.draw)
    needed = fewest_replicas(lambda n: not results(n).n_missed, round(sizing.count * GROWTH))
    return Growth(
        GROWTH,
        needed,
        None if needed is None else server.usd_per_hour(needed),
        WindowsSummary.of(results(sizing.count), target),
    )
