"""Replicas that come and go: which one takes a request, and what becomes of those that one loses.

Those that are up take requests in turn (round robin), so each replica is simulated by itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sextant.answer.capacity.demand import Demand
from sextant.answer.capacity.target import Outcome

NOBODY = -1
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
