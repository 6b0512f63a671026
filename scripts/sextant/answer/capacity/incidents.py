"""What happens to the answer when a replica fails, traffic grows, or the worst burst comes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sextant.answer.capacity.demand import Demand
from sextant.answer.capacity.fleet import in_turn, serve_with_failure, stepped
from sextant.answer.capacity.schedule import Schedule, Terms, schedule
from sextant.answer.capacity.search import fewest
from sextant.answer.capacity.sizing import Sizing, summary
from sextant.answer.capacity.target import Judged, Target, judge

GROWTH = 1.5
_MINUTE_S = 60.0


def failure(sizing: Sizing, demand: Demand, target: Target, startup_s: float) -> dict[str, Any]:
    """Return what happens when one replica fails in the middle of the busiest minute.

    Another one takes its place after the start-up time.
    """
    server, count = sizing.server, _count(sizing)
    start_s, _ = demand.busiest(_MINUTE_S)
    at_s = start_s + min(_MINUTE_S, demand.duration_s - start_s) / 2
    outcome = serve_with_failure(
        lambda part, taken: server.run(part, taken, sizing.draw, target.window_s),
        demand,
        count,
        at_s,
        at_s + startup_s,
    )
    judged = judge(outcome, target, demand.n_windows(target.window_s))
    return {"at_s": at_s, "back_s": at_s + startup_s, **summary(judged, target)}


def growth(sizing: Sizing, demand: Demand, target: Target) -> dict[str, Any]:
    """Return how the windows go with more traffic, and the replicas that it needs."""
    server, count, more = sizing.server, _count(sizing), demand.at_rate(GROWTH)

    def judged(replicas: int) -> Judged:
        return server.judge(more, replicas, target, sizing.draw)

    needed = fewest(lambda n: not judged(n).n_missed, round(count * GROWTH))
    usd_per_hour = None if needed is None else server.usd_per_hour(needed)
    return {
        "factor": GROWTH,
        "replicas_needed": needed,
        "usd_per_hour": usd_per_hour,
        **summary(judged(count), target),
    }


def burst(sizing: Sizing, demand: Demand, target: Target) -> dict[str, Any]:
    """Return how the busiest minute goes, judged by itself."""
    by_minute = replace(target, window_s=_MINUTE_S)
    # Whole minutes: the last one takes nothing of the next, as the demand counts them.
    whole = replace(demand, duration_s=_MINUTE_S * np.ceil(demand.duration_s / _MINUTE_S))
    judged = sizing.server.judge(whole, _count(sizing), by_minute, sizing.draw)
    place = int(judged.n_requests.argmax())
    failed = int(judged.n_failed[place])
    return {
        "start_s": float(judged.start_s[place]),
        "n_requests": int(judged.n_requests[place]),
        "failed_fraction": failed / max(int(judged.n_requests[place]), 1),
        "is_met": bool(judged.is_met[place]),
        "latencies_ms": {name: _number(row[place]) for name, row in judged.latencies_ms.items()},
        "n_minutes": len(judged.start_s),
        "n_minutes_missed": judged.n_missed,
    }


def scheduled(sizing: Sizing, demand: Demand, target: Target, terms: Terms) -> Schedule:
    """Return the fewest replicas by slot of time that keep the target."""
    server, count, draw = sizing.server, _count(sizing), sizing.draw

    def follow(replicas: Sequence[int]) -> Judged:
        taken = in_turn(demand.arrival_s, stepped(replicas, terms.slot_s))
        return server.judge(demand, taken, target, draw)

    def is_enough(part: Demand, replicas: int) -> bool:
        return not server.judge(part, replicas, target, draw).n_missed

    return schedule(demand, terms, count, is_enough, follow)


def _count(sizing: Sizing) -> int:
    if sizing.replicas is None:
        raise ValueError(f"{sizing.server.profile.gpu_profile_id} has no number of replicas")
    return sizing.replicas


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
