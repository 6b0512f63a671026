"""The whole simulation, compiled: arrivals go to replicas, and these work them off."""

from sextant.simulate.compiled import compiled
from sextant.simulate.steps import advance
from sextant.simulate.tables import assign
from sextant.simulate.world import LEAST_REQUESTS, NONE, PENDING, PREFIX, World


@compiled
def run_open(w: World, router: int) -> None:
    """Send each request to a replica when it arrives, and let all be answered."""
    n_replicas = w.replicas.shape[0]
    turn = 0
    for i in range(w.requests.shape[0]):
        q = w.requests[i]
        if q.status != PENDING:
            continue
        if router == LEAST_REQUESTS:
            r = _least_busy(w, q.arrival_s)
        elif router == PREFIX and q.group != NONE:
            r = q.group % n_replicas
        else:
            r = turn
            turn = (turn + 1) % n_replicas
        assign(w, r, i)
    for r in range(n_replicas):
        advance(w, r, float("inf"))


@compiled
def _least_busy(w: World, now_s: float) -> int:
    """Return the replica with the fewest requests at a time; the first of several."""
    least = 0
    for r in range(w.replicas.shape[0]):
        advance(w, r, now_s)
        s, best = w.replicas[r], w.replicas[least]
        if s.n_assigned - s.n_left < best.n_assigned - best.n_left:
            least = r
    return least


@compiled
def run_closed(w: World, users: int) -> None:
    """Have users send requests one after another, spread evenly over the replicas."""
    n_replicas = w.replicas.shape[0]
    for i in range(min(users, w.requests.shape[0])):
        w.requests[i].status = PENDING
        assign(w, i % n_replicas, i)
    for r in range(n_replicas):
        advance(w, r, float("inf"))
