"""What would change the answer: a failed replica, more traffic, the worst minute, a schedule.

Replicas that are up take requests in turn (round robin), so each is simulated by itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from sextant.answer.capacity.traffic import multiplied_demand
from sextant.answer.demand import Demand, Judged, Outcome, Target, judge
from sextant.answer.sizing import NOBODY, Sizing, summary
from sextant.decide.sizing import fewest_replicas
from sextant.pages.wording import DAY_S, HOUR_S

GROWTH = 1.5
_MINUTE_S = 60.0
_WEEK_DAYS = 14
"""From so many days on, weekdays have hours of their own."""
_ROUNDS = 8
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
Serve = Callable[[Demand, np.ndarray], Outcome]
"""Simulates a demand whose requests go to given replicas; `NOBODY` refuses one."""


class Up(NamedTuple):
    """A time in which a replica takes requests."""

    replica: int
    start_s: float
    end_s: float


def take_turns(arrival_s: np.ndarray, ups: Sequence[Up]) -> np.ndarray:
    """Return the replica of each request: those that are up when it arrives take turns."""
    edges = sorted({-np.inf, np.inf, *(end for up in ups for end in up[1:])})
    taken = np.full(len(arrival_s), NOBODY)
    for start, end in pairwise(edges):
        first, last = np.searchsorted(arrival_s, [start, end])
        present = sorted({up.replica for up in ups if up.start_s <= start and end <= up.end_s})
        if present and last > first:
            taken[first:last] = np.array(present)[np.arange(first, last) % len(present)]
    return taken


def always_up(n_replicas: int) -> list[Up]:
    """Return replicas that never leave."""
    return [Up(replica, -np.inf, np.inf) for replica in range(n_replicas)]


def up_by_slot(replicas: Sequence[int], slot_s: float) -> list[Up]:
    """Return replicas whose number is set for each slot of time; the last number stays."""
    ups = []
    for replica in range(max(replicas)):
        is_up = np.array([False, *(count > replica for count in replicas), False])
        starts, ends = (np.flatnonzero(np.diff(is_up.astype(int)) == sign) for sign in (1, -1))
        for start, end in zip(starts, ends, strict=True):
            start_s = -np.inf if start == 0 else start * slot_s
            ups.append(Up(replica, start_s, np.inf if end == len(replicas) else end * slot_s))
    return ups


def serve_with_failure(
    serve: Serve, demand: Demand, n_replicas: int, at_s: float, back_s: float
) -> Outcome:
    """Return the results of requests when one replica fails, and is back later.

    What it was working on is sent again to the others at once, and waits from its first arrival
    on. With a single replica it waits until that is back.
    """
    calm = take_turns(demand.arrival_s, always_up(n_replicas))
    outcome = serve(demand, calm)
    end_s = demand.arrival_s + np.where(outcome.is_ok, outcome.e2e_s, 0.0)
    is_lost = (calm == 0) & (demand.arrival_s < at_s) & (end_s > at_s)
    others = [Up(0, -np.inf, at_s), Up(0, back_s, np.inf), *always_up(n_replicas)[1:]]
    is_sent_again, again_s = is_lost, at_s
    if n_replicas == 1:  # nobody serves until it is back
        is_sent_again = is_lost | ((demand.arrival_s >= at_s) & (demand.arrival_s < back_s))
        again_s = back_s
    sent_s = np.where(is_sent_again, np.maximum(demand.arrival_s, again_s), demand.arrival_s)
    order = np.argsort(sent_s, kind="stable")
    moved = replace(demand.at(order), arrival_s=sent_s[order])
    taken = take_turns(moved.arrival_s, others)
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


def after_failure(
    sizing: Sizing, demand: Demand, target: Target, startup_s: float
) -> dict[str, Any]:
    """Return the results when one replica fails in the middle of the busiest minute.

    Another one takes its place after the start-up time.
    """
    start_s, _ = demand.busiest(_MINUTE_S)
    at_s = start_s + min(_MINUTE_S, demand.duration_s - start_s) / 2

    def serve(part: Demand, taken: np.ndarray) -> Outcome:
        return sizing.server.run(part, taken, sizing.draw, target.window_s)

    outcome = serve_with_failure(serve, demand, sizing.count, at_s, at_s + startup_s)
    judged = judge(outcome, target, demand.n_windows(target.window_s))
    return {"at_s": at_s, "back_s": at_s + startup_s, **summary(judged, target)}


def after_growth(sizing: Sizing, demand: Demand, target: Target) -> dict[str, Any]:
    """Return the results with more traffic, and the replicas that it needs."""
    server, count = sizing.server, sizing.count
    more = multiplied_demand(demand, GROWTH, target.window_s)

    def judged(replicas: int) -> Judged:
        return server.judge(more, replicas, target, sizing.draw)

    needed = fewest_replicas(lambda n: not judged(n).n_missed, round(count * GROWTH))
    return {
        "factor": GROWTH,
        "replicas_needed": needed,
        "usd_per_hour": None if needed is None else server.usd_per_hour(needed),
        **summary(judged(count), target),
    }


def in_busiest_minute(sizing: Sizing, demand: Demand, target: Target) -> dict[str, Any]:
    """Return the results of the busiest minute, judged by itself."""
    by_minute = replace(target, window_s=_MINUTE_S)
    # Whole minutes: the last one takes nothing of the next, as the demand counts them.
    whole = replace(demand, duration_s=_MINUTE_S * np.ceil(demand.duration_s / _MINUTE_S))
    judged = sizing.server.judge(whole, sizing.count, by_minute, sizing.draw)
    place = int(judged.n_requests.argmax())
    latencies_ms = {name: float(row[place]) for name, row in judged.latencies_ms.items()}
    return {
        "start_s": float(judged.start_s[place]),
        "n_requests": int(judged.n_requests[place]),
        "failed_fraction": int(judged.n_failed[place]) / max(int(judged.n_requests[place]), 1),
        "is_met": bool(judged.is_met[place]),
        "latencies_ms": {
            name: None if np.isnan(value) else value for name, value in latencies_ms.items()
        },
        "n_minutes": len(judged.start_s),
        "n_minutes_missed": judged.n_missed,
    }


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
    """The name of each slot; slots of one name have the same number of replicas."""
    judged: Judged
    """Results by window if replicas follow the schedule."""
    replica_hours: float
    """With the hours in which replicas start."""

    def facts(self, fixed: int, duration_s: float) -> dict[str, Any]:
        """Return the schedule for an answer, compared with a fixed number of replicas."""
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


def find_schedule(sizing: Sizing, demand: Demand, target: Target, terms: Terms) -> Schedule:
    """Return the fewest replicas by slot of time that meet the target.

    Each slot is sized by itself, with the time before it in which queues build up. Then all are
    followed together: a slot with a missed window gets one more, and so does the one before it.
    Slots with the same label, e.g. the same hour of all days, have the most that any of them needs.
    """
    server, most, draw = sizing.server, sizing.count, sizing.draw

    def follow(replicas: Sequence[int]) -> Judged:
        taken = take_turns(demand.arrival_s, up_by_slot(replicas, terms.slot_s))
        return server.judge(demand, taken, target, draw)

    def need(place: int) -> int:
        start_s, end_s = place * terms.slot_s, min((place + 1) * terms.slot_s, demand.duration_s)
        part = demand.between(start_s, max(end_s, start_s + 1))
        if part.n == 0:
            return terms.least
        share = part.n / part.duration_s / max(demand.n / demand.duration_s, 1e-12)
        fewest = fewest_replicas(
            lambda n: not server.judge(part, n, target, draw).n_missed,
            max(round(most * share), 1),
            most,
        )
        return max(fewest or most, terms.least)

    n_slots = demand.n_windows(terms.slot_s)
    labels = _labels(demand, n_slots, terms.slot_s)
    replicas = _most_by_label([need(place) for place in range(n_slots)], labels)
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
        replicas = _most_by_label(more, labels)
        judged = follow(replicas)
    ends = np.minimum(np.arange(1, n_slots + 1) * terms.slot_s, demand.duration_s)
    lasting = np.diff(np.append(0.0, ends))
    started = np.maximum(np.diff(replicas), 0).sum()
    replica_s = (np.array(replicas) * lasting).sum() + started * terms.startup_s
    return Schedule(replicas, labels, judged, float(replica_s) / HOUR_S)


def _labels(demand: Demand, n_slots: int, slot_s: float) -> list[str]:
    """Return the names of slots: hours of the day or of the week where there are days of them."""
    start, days = demand.start_time, demand.duration_s / DAY_S
    if start is None or slot_s != HOUR_S or days < 2:
        zero = start.replace(microsecond=0) if start else None
        return [_label(zero, place * slot_s) for place in range(n_slots)]
    hours = [start + timedelta(hours=place) for place in range(n_slots)]
    if days < _WEEK_DAYS:
        return [f"{each:%H:%M}" for each in hours]
    return [f"{_WEEKDAYS[each.weekday()]} {each:%H:%M}" for each in hours]


def _label(start: datetime | None, after_s: float) -> str:
    if start is not None:
        return (start + timedelta(seconds=after_s)).strftime("%Y-%m-%d %H:%M:%S")
    hours, rest = divmod(round(after_s), int(HOUR_S))
    return f"+{hours}:{rest // 60:02d}:{rest % 60:02d}"


def _most_by_label(replicas: Sequence[int], labels: Sequence[str]) -> list[int]:
    most: dict[str, int] = {}
    for label, count in zip(labels, replicas, strict=True):
        most[label] = max(most.get(label, 0), count)
    return [most[label] for label in labels]
