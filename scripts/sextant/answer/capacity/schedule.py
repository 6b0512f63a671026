"""Replicas by the hour: as many as each hour needs, checked together, and what that saves."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np

from sextant.answer.capacity.demand import Demand
from sextant.answer.capacity.search import fewest
from sextant.answer.capacity.target import Judged
from sextant.pages.wording import DAY_S, HOUR_S

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
