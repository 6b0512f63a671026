"""Replicas that come and go: which one takes a request, and what becomes of those that one loses.

Those that are up take requests in turn (round robin), so each replica is simulated by itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from sextant.answer.capacity.demand import Demand
from sextant.answer.capacity.servers import NOBODY
from sextant.answer.capacity.sizing import Sizing, fewest, summary
from sextant.answer.capacity.target import Judged, Outcome, Target, judge
from sextant.pages.wording import DAY_S, HOUR_S

Serve = Callable[[Demand, np.ndarray], Outcome]
"""Simulates a demand whose requests go to given replicas; `NOBODY` refuses one."""


class Up(NamedTuple):
    """A time in which a replica takes requests."""

    replica: int
    start_s: float
    end_s: float


def in_turn(arrival_s: np.ndarray, ups: Sequence[Up]) -> np.ndarray:
    """Return the replica of each request: those that are up when it arrives take turns."""
    edges = sorted({-np.inf, np.inf, *(end for up in ups for end in up[1:])})
    taken = np.full(len(arrival_s), NOBODY)
    for start, end in pairwise(edges):
        first, last = np.searchsorted(arrival_s, [start, end])
        here = sorted({up.replica for up in ups if up.start_s <= start and end <= up.end_s})
        if here and last > first:
            taken[first:last] = np.array(here)[np.arange(first, last) % len(here)]
    return taken


def always(n_replicas: int) -> list[Up]:
    """Return replicas that never leave."""
    return [Up(replica, -np.inf, np.inf) for replica in range(n_replicas)]


def stepped(replicas: Sequence[int], slot_s: float) -> list[Up]:
    """Return replicas whose number is set for each slot of time; the last one goes on."""
    ups = []
    for replica in range(max(replicas)):
        is_up = np.array([False, *(count > replica for count in replicas), False])
        starts, ends = (np.flatnonzero(np.diff(is_up.astype(int)) == sign) for sign in (1, -1))
        ups += [
            Up(
                replica,
                -np.inf if start == 0 else start * slot_s,
                np.inf if end == len(replicas) else end * slot_s,
            )
            for start, end in zip(starts, ends, strict=True)
        ]
    return ups


def serve_with_failure(
    serve: Serve, demand: Demand, n_replicas: int, at_s: float, back_s: float
) -> Outcome:
    """Return what becomes of requests when one replica fails, and is back later.

    What it was working on is sent again to the others at once, and waits from its first arrival
    on. With a single replica it waits until that is back.
    """
    calm = in_turn(demand.arrival_s, always(n_replicas))
    outcome = serve(demand, calm)
    end_s = demand.arrival_s + np.where(outcome.is_ok, outcome.e2e_s, 0.0)
    is_lost = (calm == 0) & (demand.arrival_s < at_s) & (end_s > at_s)
    others = [Up(0, -np.inf, at_s), Up(0, back_s, np.inf), *always(n_replicas)[1:]]
    is_stranded = is_lost
    if n_replicas == 1:  # until it is back nobody is there
        is_stranded = is_lost | ((demand.arrival_s >= at_s) & (demand.arrival_s < back_s))
    again_s = back_s if n_replicas == 1 else at_s
    sent_s = np.where(is_stranded, np.maximum(demand.arrival_s, again_s), demand.arrival_s)
    order = np.argsort(sent_s, kind="stable")
    moved = replace(demand.at(order), arrival_s=sent_s[order])
    taken = in_turn(moved.arrival_s, others)
    # What arrived before the failure stays where it was; what follows takes turns.
    is_before = (demand.arrival_s < at_s) & ~is_lost
    taken[is_before[order]] = calm[order][is_before[order]]
    served = serve(moved, taken)
    back = np.argsort(order, kind="stable")
    wait_s = sent_s - demand.arrival_s
    return served._replace(
        arrival_s=demand.arrival_s,
        input_tokens=demand.input_tokens,
        output_tokens=demand.output_tokens,
        ttft_s=served.ttft_s[back] + wait_s,
        e2e_s=served.e2e_s[back] + wait_s,
        is_ok=served.is_ok[back],
    )


_WEEK_DAYS = 14
"""From so many days on, weekdays have hours of their own."""
_ROUNDS = 8
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


class Terms(NamedTuple):
    """How replicas may come and go."""

    slot_s: float = HOUR_S
    startup_s: float = 300.0
    """From the order of a replica until it takes requests; it is paid for."""
    least: int = 1


class Schedule(NamedTuple):
    """Replicas by slot of time."""

    replicas: list[int]
    labels: list[str]
    """What each slot is called: alike ones have the same number of replicas."""
    judged: Judged
    """How the windows go if replicas follow it."""
    replica_hours: float
    """With the hours in which replicas start."""

    def facts(self, fixed: int, duration_s: float) -> dict[str, Any]:
        """Return what an answer says of it, beside a fixed number of replicas."""
        fixed_hours = fixed * duration_s / HOUR_S
        by_label = dict(zip(self.labels, self.replicas, strict=True))
        return {
            "replicas": self.replicas,
            "by_slot": [{"slot": name, "replicas": count} for name, count in by_label.items()],
            "replica_hours": self.replica_hours,
            "fixed_replica_hours": fixed_hours,
            "saved": 1 - self.replica_hours / fixed_hours,
            "n_windows_missed": self.judged.n_missed,
        }


def schedule(
    demand: Demand,
    terms: Terms,
    most: int,
    needed: Callable[[Demand, int], bool],
    follow: Callable[[Sequence[int]], Judged],
) -> Schedule:
    """Return the fewest replicas by slot.

    Each slot is sized by itself, with the time before it in which queues build up; then all are
    followed together, and a slot in which a window is missed gets one more, and so does the one
    before it. Slots with the same label, e.g. the same hour of all days, have the most that any
    of them needs.

    Args:
        demand: what arrives.
        terms: slots, start-up and least replicas.
        most: replicas that suffice all the time.
        needed: whether a number of replicas keeps the target while a demand arrives.
        follow: how windows go with these replicas by slot.
    """
    n_slots = demand.n_windows(terms.slot_s)
    labels = _labels(demand, n_slots, terms.slot_s)
    own = [_own_need(demand, place, terms, most, needed) for place in range(n_slots)]
    replicas = _alike(own, labels)
    judged = follow(replicas)
    for _ in range(_ROUNDS):
        missed = judged.start_s[~judged.is_met]
        slots = {int(start // terms.slot_s) for start in missed}
        more = [
            min(count + (place in slots or place + 1 in slots), most)
            for place, count in enumerate(replicas)
        ]
        if not slots or more == replicas:
            break
        replicas = _alike(more, labels)
        judged = follow(replicas)
    return Schedule(replicas, labels, judged, _replica_hours(replicas, terms, demand.duration_s))


def _own_need(
    demand: Demand,
    place: int,
    terms: Terms,
    most: int,
    needed: Callable[[Demand, int], bool],
) -> int:
    start_s, end_s = place * terms.slot_s, min((place + 1) * terms.slot_s, demand.duration_s)
    part = demand.between(start_s, max(end_s, start_s + 1))
    if part.n == 0:
        return terms.least
    share = part.n / part.duration_s / max(demand.n / demand.duration_s, 1e-12)
    found = fewest(lambda n: needed(part, n), max(round(most * share), 1), most)
    return max(found or most, terms.least)


def _labels(demand: Demand, n_slots: int, slot_s: float) -> list[str]:
    """Return the names of slots: hours of the day or of the week where there are days of them."""
    start, is_hourly = demand.start_time, slot_s == HOUR_S
    days = demand.duration_s / DAY_S
    if start is None or not is_hourly or days < 2:
        zero = start.replace(microsecond=0) if start else None
        return [_moment(zero, place * slot_s) for place in range(n_slots)]
    hours = [start + timedelta(hours=place) for place in range(n_slots)]
    if days < _WEEK_DAYS:
        return [f"{each:%H:%M}" for each in hours]
    return [f"{_WEEKDAYS[each.weekday()]} {each:%H:%M}" for each in hours]


def _moment(start: Any, after_s: float) -> str:
    if start is not None:
        return (start + timedelta(seconds=after_s)).strftime("%Y-%m-%d %H:%M:%S")
    hours, rest = divmod(round(after_s), int(HOUR_S))
    return f"+{hours}:{rest // 60:02d}:{rest % 60:02d}"


def _alike(replicas: Sequence[int], labels: Sequence[str]) -> list[int]:
    most: dict[str, int] = {}
    for label, count in zip(labels, replicas, strict=True):
        most[label] = max(most.get(label, 0), count)
    return [most[label] for label in labels]


def _replica_hours(replicas: Sequence[int], terms: Terms, duration_s: float) -> float:
    ends = np.minimum(np.arange(1, len(replicas) + 1) * terms.slot_s, duration_s)
    lasting = np.diff(np.append(0.0, ends))
    started = np.maximum(np.diff(replicas), 0).sum()
    return float((np.array(replicas) * lasting).sum() + started * terms.startup_s) / HOUR_S


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
