"""A replica's lists of requests, compiled: arrivals, preempted ones, running ones, ends.

All are linked through the table of requests, so that each change costs O(1).
"""

from sextant.simulate.compiled import compiled
from sextant.simulate.world import NONE, PENDING, World


@compiled
def assign(w: World, r: int, i: int) -> None:
    """Have request i wait at replica r, behind all that came before."""
    s = w.replicas[r]
    w.requests[i].replica = r
    if s.last_arrival != NONE:
        w.requests[s.last_arrival].next_arrival = i
    s.last_arrival = i
    if s.waiting == NONE:
        s.waiting = i
    if s.oldest == NONE:
        s.oldest = i
    s.n_assigned += 1


@compiled
def first_waiting(w: World, r: int) -> int:
    """Return who is next to be admitted, preempted ones first; NONE if nobody waits."""
    s = w.replicas[r]
    while s.preempted != NONE and w.requests[s.preempted].status != PENDING:
        s.preempted = w.requests[s.preempted].older
    if s.preempted != NONE:
        return s.preempted
    while s.waiting != NONE and w.requests[s.waiting].status != PENDING:
        s.waiting = w.requests[s.waiting].next_arrival
    return s.waiting


@compiled
def leave_queue(w: World, r: int, i: int) -> None:
    """Take the one off the queue that `first_waiting` returned."""
    s = w.replicas[r]
    if i == s.preempted:
        s.preempted = w.requests[i].older
    else:
        s.waiting = w.requests[i].next_arrival


@compiled
def start_running(w: World, r: int, i: int) -> None:
    """Append a request to the running ones."""
    s = w.replicas[r]
    w.requests[i].older, w.requests[i].newer = s.newest, NONE
    if s.newest != NONE:
        w.requests[s.newest].newer = i
    s.newest = i
    s.n_running += 1


@compiled
def stop_running(w: World, r: int, i: int) -> None:
    """Remove a request from the running ones."""
    s, q = w.replicas[r], w.requests[i]
    if q.older != NONE:
        w.requests[q.older].newer = q.newer
    if q.newer != NONE:
        w.requests[q.newer].older = q.older
    else:
        s.newest = q.older
    s.n_running -= 1


@compiled
def append_end(w: World, r: int, i: int) -> None:
    """Note that a request's last token comes in its `end_plan`."""
    q = w.requests[i]
    slot = q.end_plan & (w.ends.shape[1] - 1)
    last = w.ends[r, slot].last
    q.end_before, q.end_after = last, NONE
    if last == NONE:
        w.ends[r, slot].first = i
    else:
        w.requests[last].end_after = i
    w.ends[r, slot].last = i


@compiled
def remove_end(w: World, r: int, i: int) -> None:
    """Forget when a request ends."""
    q = w.requests[i]
    slot = q.end_plan & (w.ends.shape[1] - 1)
    if q.end_before == NONE:
        w.ends[r, slot].first = q.end_after
    else:
        w.requests[q.end_before].end_after = q.end_after
    if q.end_after == NONE:
        w.ends[r, slot].last = q.end_before
    else:
        w.requests[q.end_after].end_before = q.end_before
