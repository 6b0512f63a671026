"""Replicas by slot of time: the fewest that meet the target in each, starts included."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

import numpy as np

from sextant.answer.drafting import draft_by_load
from sextant.ask.laws import CaseLaws
from sextant.capacity.answer import Schedule, Slot
from sextant.capacity.question import Terms
from sextant.decide.replica_sizing import Sizing
from sextant.decide.sizing import fewest_replicas
from sextant.decide.windows import Judged, Target
from sextant.facts.startup import Startup
from sextant.pages.words import DAY_S, HOUR_S
from sextant.workload.requests import RequestStream

_ROUNDS = 8
"""Times that missed windows get one more replica."""


@dataclass(frozen=True)
class ScheduleResults:
    """A schedule, and its results by window."""

    schedule: Schedule
    judged: Judged


def find_schedule(
    sizing: Sizing,
    requests: RequestStream,
    target: Target,
    terms: Terms,
    startup: Startup,
    *,
    has_labels: bool = True,
) -> ScheduleResults:
    """Return the fewest replicas by slot of time that meet the target, and the results by window.

    Each slot is sized alone. Then all slots are followed together, so that queues go on from one to
    the next: a slot with a missed window gets one replica more, and so does the one before it. Of
    a long trace, slots of which nothing was simulated have no number.

    Args:
        sizing: the answer, whose replicas are enough at any time.
        requests: what arrives.
        target: what has to hold.
        terms: the length of a slot, and the least replicas.
        startup: how long a replica takes to start.
        has_labels: whether slots with the same label, e.g. an hour of all days, have the most
            replicas that any of them needs. Without labels each slot has its own.
    """
    n_slots = requests.n_windows(terms.slot_s)
    days = requests.duration_s / DAY_S
    labels = slot_labels(requests.origin.start_time, days, n_slots, terms.slot_s)
    if not has_labels:
        labels = [str(slot) for slot in range(n_slots)]

    replicas, judged = _SlotSearch(sizing, requests, target, terms).fewest_together(labels)
    judged_part = judged if requests.part is None else judged.at(requests.part.windows)

    ends_s = np.minimum(np.arange(1, n_slots + 1) * terms.slot_s, requests.duration_s)
    paid = np.array([sizing.count if count is None else count for count in replicas])
    n_started = np.maximum(np.diff(paid), 0).sum()
    replica_s = (paid * np.diff(ends_s, prepend=0.0)).sum() + n_started * startup.median_s
    hours = float(replica_s) / HOUR_S
    fixed_hours = sizing.count * requests.duration_s / HOUR_S
    saved_replicas = (fixed_hours - hours) / requests.duration_s * HOUR_S
    by_label = dict(zip(labels, replicas, strict=True))
    schedule = Schedule(
        replicas=replicas,
        by_slot=[Slot(label, count) for label, count in by_label.items()],
        replica_hours=hours,
        fixed_replica_hours=fixed_hours,
        saved=1 - hours / fixed_hours,
        n_windows_missed=judged_part.n_missed,
        slot_s=terms.slot_s,
        least=terms.least,
        startup=startup,
        usd_per_hour_saved=saved_replicas * sizing.server.profile.usd_per_hour,
    )
    return ScheduleResults(schedule, judged)


def with_drafts(
    schedule: Schedule, sizing: Sizing, requests: RequestStream, laws: CaseLaws
) -> Schedule:
    """Return the schedule with what speculation is worth in each slot (`draft_by_load`).

    Args:
        schedule: the replicas by slot.
        sizing: the answer, on whose replicas the requests in flight are counted.
        requests: what arrives, in the likeliest draw.
        laws: of a step of the LLM.
    """
    slot_s = schedule.slot_s
    n_slots = len(schedule.replicas)
    results = sizing.server.run(requests, sizing.count, 0, None)
    slots = np.minimum(requests.arrival_s // slot_s, n_slots - 1).astype(int)
    busy_s = np.bincount(slots, np.nan_to_num(results.e2e_s), n_slots)
    starts_s = slot_s * np.arange(len(busy_s))
    in_flight = busy_s / np.minimum(slot_s, requests.duration_s - starts_s) / sizing.count

    n_names = len(schedule.by_slot)
    users = [float(in_flight[first::n_names].max()) for first in range(n_names)]
    drafts = draft_by_load(laws, sizing.server.profile.gpu_profile_id, users)
    by_slot = [
        replace(slot, draft=draft) for slot, draft in zip(schedule.by_slot, drafts, strict=True)
    ]
    return replace(schedule, by_slot=by_slot, drafting=drafts[int(np.argmax(users))])


@dataclass(frozen=True)
class _SlotSearch:
    """Finds the replicas of one slot, and follows all slots together."""

    sizing: Sizing
    requests: RequestStream
    target: Target
    terms: Terms

    def fewest_together(self, labels: Sequence[str]) -> tuple[list[int | None], Judged]:
        """Return replicas by slot, and their results; slots of one label have the same replicas.

        A few times, slots with missed windows and those before them get one replica more.
        """
        replicas = _by_label(labels, self.fewest_alone(len(labels)))
        judged = self.follow(replicas)
        for _ in range(_ROUNDS):
            missed_s = judged.start_s[~judged.is_met]
            missed = {int(start_s // self.terms.slot_s) for start_s in missed_s}
            more = [
                count
                if count is None
                else min(count + (slot in missed or slot + 1 in missed), self.sizing.count)
                for slot, count in enumerate(replicas)
            ]
            if not missed or more == replicas:
                break
            replicas = _by_label(labels, more)
            judged = self.follow(replicas)
        return replicas, judged

    def fewest_alone(self, n_slots: int) -> list[int | None]:
        """Return the fewest replicas that each slot needs by itself; None: not simulated."""
        part = self.requests.part
        is_simulated = np.ones(n_slots, bool)
        if part is not None:
            is_simulated = part.has_slots(n_slots, self.terms.slot_s)
        return [self.fewest(slot) if is_simulated[slot] else None for slot in range(n_slots)]

    def fewest(self, slot: int) -> int:
        """Return the fewest replicas that one slot needs by itself."""
        requests = self.requests
        most = self.sizing.count
        start_s = slot * self.terms.slot_s
        end_s = min((slot + 1) * self.terms.slot_s, requests.duration_s)
        part = requests.between(start_s, max(end_s, start_s + 1))
        if part.n == 0:
            return self.terms.least
        share = part.n / part.duration_s / max(requests.rate_rps, 1e-12)
        judge = partial(self.sizing.server.judge, part, target=self.target, draw=self.sizing.draw)
        start = max(round(most * share), 1)
        fewest = fewest_replicas(lambda n: not judge(n).n_missed, min(start, most), most)
        return max(fewest or most, self.terms.least)

    def follow(self, replicas: Sequence[int | None]) -> Judged:
        """Return the results of all requests with these replicas by slot.

        Slots without a number have all replicas.
        """
        counts = [self.sizing.count if count is None else count for count in replicas]
        requests = self.requests
        slots = np.minimum(requests.arrival_s // self.terms.slot_s, len(replicas) - 1).astype(int)
        replica_of = np.arange(requests.n) % np.array(counts)[slots]
        return self.sizing.server.judge(requests, replica_of, self.target, self.sizing.draw)


def _by_label(labels: Sequence[str], counts: Sequence[int | None]) -> list[int | None]:
    """Return for each slot the most replicas that a slot of its label needs; None: none has any."""
    most: dict[str, int] = {}
    for label, count in zip(labels, counts, strict=True):
        if count is not None:
            most[label] = max(most.get(label, 0), count)
    return [most.get(label) for label in labels]


def slot_labels(start: datetime | None, days: float, n_slots: int, slot_s: float) -> list[str]:
    """Return the names of slots: from two days on the hours of the day, else dates and times."""
    offsets = [timedelta(seconds=slot * slot_s) for slot in range(n_slots)]
    if start is None:
        seconds = [round(offset.total_seconds()) for offset in offsets]
        return [f"+{s // 3600}:{s // 60 % 60:02d}:{s % 60:02d}" for s in seconds]
    form = "%H:%M" if slot_s == HOUR_S and days >= 2 else "%Y-%m-%d %H:%M:%S"
    return [(start + offset).strftime(form) for offset in offsets]
