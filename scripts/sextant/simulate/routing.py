"""Requests reach replicas: behind a router, or from users who wait for answers; compiled."""

import math

import numpy as np

from sextant.simulate import tables
from sextant.simulate.compiling import compiled
from sextant.simulate.server import PENDING
from sextant.simulate.steps import advance
from sextant.simulate.world import World
from sextant.workload.requests import NONE

ROUND_ROBIN, LEAST_REQUESTS, PREFIX = range(3)
"""In the order of `Router`."""
_OF_PREFIX = 3.0
_OF_QUEUE = 2.0
_OF_CACHE = 2.0
"""Weights of llm-d's default profile: the share of the prompt that is cached, the shortest queue,
and memory that is not in use."""
_TIE = 1e-9
_FAR_STEPS = 64
"""Steps ahead in which ends of requests are looked for."""


@compiled
def route(w: World, router: int, serving: np.ndarray, until_s: float, turn: int) -> int:
    """Send what arrives before a time to the `serving` replicas.

    Takes and returns how many were sent, by which they go in turn.
    """
    while True:
        i = tables.next_due(w)
        due_s = w.requests[i].arrival_s if i != NONE else math.inf
        if w.has_turns and _go_on(w, min(due_s, until_s)):
            continue  # what is answered by then may have others arrive before
        if i == NONE or due_s >= until_s:
            return turn
        tables.take_due(w, i)
        q = w.requests[i]
        if q.status != PENDING:
            tables.over(w, i, due_s)
            continue
        if router == ROUND_ROBIN:
            r = serving[turn % len(serving)]
        else:
            for other in serving:
                advance(w, other, due_s)
            r = _least_busy(w, serving) if router == LEAST_REQUESTS else _best(w, serving, i, turn)
        turn += 1
        tables.assign(w, r, i)


@compiled
def _least_busy(w: World, serving: np.ndarray) -> int:
    """Return the replica with the fewest requests; the first of several."""
    chosen = serving[0]
    for r in serving:
        s = w.replicas[r]
        best = w.replicas[chosen]
        if s.n_assigned - s.n_left < best.n_assigned - best.n_left:
            chosen = r
    return chosen


@compiled
def _best(w: World, serving: np.ndarray, i: int, turn: int) -> int:
    """Return the replica with the highest score for a request; of several, in turn."""
    q = w.requests[i]
    most = 0
    least = 1 << 60
    for r in serving:
        most = max(most, _n_waiting(w, r))
        least = min(least, _n_waiting(w, r))
    chosen = serving[0]
    highest = -1e9
    for k in range(len(serving)):
        r = serving[(turn + k) % len(serving)]
        hit = 0
        if q.group != NONE:
            hit = min(w.runs[r * w.n_groups + q.group].cached, q.shared)
        score = _OF_PREFIX * hit / tables.blocks_of(w, q.input)
        score += _OF_QUEUE * (most - _n_waiting(w, r)) / max(most - least, 1)
        score -= _OF_CACHE * w.replicas[r].used / w.n_blocks
        if score > highest + _TIE:
            chosen = r
            highest = score
    return chosen


@compiled
def _n_waiting(w: World, r: int) -> int:
    s = w.replicas[r]
    return s.n_assigned - s.n_left - s.n_running


@compiled
def _go_on(w: World, until_s: float) -> bool:
    """Advance all replicas to the soonest time at which a turn may arrive, and to a time at most;
    return whether time passed.

    An answer of one replica may make a turn arrive at another replica, which must not be past that
    arrival.
    """
    for r in range(w.replicas.shape[0]):
        if w.replicas[r].n_assigned > w.replicas[r].n_left:
            until_s = min(until_s, _soonest_answer_s(w, r) + w.think_s)
    if until_s <= w.clock_s[0] or math.isinf(until_s):
        return False
    for r in range(w.replicas.shape[0]):
        advance(w, r, until_s)
    w.clock_s[0] = until_s
    return True


@compiled
def _soonest_answer_s(w: World, r: int) -> float:
    """Return a time before which a busy replica gives no answer."""
    s = w.replicas[r]
    i = tables.first_waiting(w, r)
    plan_s = max(s.plan_s, w.clock_s[0])
    if s.n_running == 0 and i != NONE:
        plan_s = max(plan_s, w.requests[i].arrival_s)
    if i != NONE or s.partial != NONE or not math.isinf(w.timeout_s):
        return plan_s + w.step_s
    # Only decodes: the next answer is that of the first plan in which a request ends.
    mask = w.ends.shape[1] - 1
    steps = 0
    while steps < _FAR_STEPS and w.ends[r, (s.plan + steps) & mask].first == NONE:
        steps += 1
    return plan_s + max(steps, 1) * w.step_s


@compiled
def finish(w: World) -> None:
    """Have all replicas answer what they were sent."""
    for r in range(w.replicas.shape[0]):
        advance(w, r, float("inf"))


@compiled
def run_closed(w: World, users: int) -> None:
    """Have users send requests one after another, spread evenly over the replicas."""
    n_replicas = w.replicas.shape[0]
    for i in range(min(users, w.requests.shape[0])):
        w.requests[i].status = PENDING
        tables.assign(w, i % n_replicas, i)
    finish(w)
