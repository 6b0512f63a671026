"""Changes of a replica's lists of requests and of its KV cache in blocks, compiled; each is O(1).

Lists are linked through fields of `REQUEST`: the arrivals of a replica, its running requests, and
the requests that end in the same plan. Free cached blocks are a ring of runs (`RUN`), least
recently used first.
"""

from sextant.simulate.compiling import compiled
from sextant.simulate.server import PENDING
from sextant.simulate.world import World
from sextant.workload.requests import NONE


@compiled
def over(w: World, i: int, now_s: float) -> None:
    """Make the turns due that wait for the answer of request i, each after its think time."""
    child = w.requests[i].child
    while child != NONE:
        q = w.requests[child]
        q.arrival_s = now_s + q.think_s
        q.deadline_s = q.arrival_s + w.timeout_s
        q.is_counted = q.arrival_s >= w.replicas[0].counted_from_s
        at = w.counts[0]
        w.counts[0] += 1
        while at > 0 and w.requests[w.due[(at - 1) // 2]].arrival_s > q.arrival_s:
            w.due[at] = w.due[(at - 1) // 2]
            at = (at - 1) // 2
        w.due[at] = child
        child = q.sibling


@compiled
def next_due(w: World) -> int:
    """Return the next request to arrive whose parent, if any, is over; NONE without one."""
    while w.counts[1] < len(w.requests) and w.requests[w.counts[1]].parent != NONE:
        w.counts[1] += 1
    i = w.counts[1] if w.counts[1] < len(w.requests) else NONE
    if w.counts[0] > 0:
        first = w.due[0]
        if i == NONE or w.requests[first].arrival_s < w.requests[i].arrival_s:
            return first
    return i


@compiled
def take_due(w: World, i: int) -> None:
    """Remove the request that `next_due` returned from the due ones."""
    if w.requests[i].parent == NONE:
        w.counts[1] += 1
        return
    w.counts[0] -= 1
    n = w.counts[0]
    at = 0
    last = w.due[n]
    arrival_s = w.requests[last].arrival_s
    while 2 * at + 1 < n:
        below = 2 * at + 1
        if below + 1 < n and (
            w.requests[w.due[below + 1]].arrival_s < w.requests[w.due[below]].arrival_s
        ):
            below += 1
        if w.requests[w.due[below]].arrival_s >= arrival_s:
            break
        w.due[at] = w.due[below]
        at = below
    w.due[at] = last


@compiled
def assign(w: World, r: int, i: int) -> None:
    """Queue request i at replica r, behind all that came before."""
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
    """Return the next request to admit, preempted ones first; NONE if none waits."""
    s = w.replicas[r]
    while s.preempted != NONE and w.requests[s.preempted].status != PENDING:
        s.preempted = w.requests[s.preempted].older
    if s.preempted != NONE:
        return s.preempted
    while s.waiting != NONE and w.requests[s.waiting].status != PENDING:
        s.waiting = w.requests[s.waiting].next_arrival
    return s.waiting


@compiled
def stop_running(w: World, r: int, i: int) -> None:
    """Remove a request from the running ones."""
    s = w.replicas[r]
    q = w.requests[i]
    if q.older != NONE:
        w.requests[q.older].newer = q.newer
    if q.newer != NONE:
        w.requests[q.newer].older = q.older
    else:
        s.newest = q.older
    s.n_running -= 1
    s.promised -= q.promised


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


@compiled
def blocks_of(w: World, tokens: int) -> int:
    """Return the number of blocks that hold a number of tokens."""
    return (tokens + w.block_tokens - 1) // w.block_tokens


@compiled
def promised_to(w: World, i: int, hit: int) -> int:
    """Return the blocks that a request may need until its end, beside cached ones of its prefix."""
    q = w.requests[i]
    tokens = q.input + max(q.generated, int(w.reserved_share * q.output))
    return blocks_of(w, tokens) - min(hit, q.shared)


@compiled
def _own_run(w: World, i: int) -> int:
    return w.replicas.shape[0] * w.n_groups + i


@compiled
def _ring(w: World, r: int) -> int:
    """Return the run where a replica's list of runs begins and ends."""
    return w.runs.shape[0] - w.replicas.shape[0] + r


@compiled
def _shrink(w: World, run: int, n: int) -> None:
    """Take n blocks of a run; without any it leaves the list."""
    w.runs[run].blocks -= n
    if n > 0 and w.runs[run].blocks == 0:
        before = w.runs[run].before
        after = w.runs[run].after
        w.runs[before].after = after
        w.runs[after].before = before


@compiled
def _keep(w: World, r: int, run: int, n: int) -> None:
    """Free n blocks of a run: they, and what is left of it, are the last to be taken."""
    if n == 0:
        return
    left = w.runs[run].blocks
    _shrink(w, run, left)
    w.runs[run].blocks = left + n
    end = _ring(w, r)
    before = w.runs[end].before
    w.runs[run].before = before
    w.runs[run].after = end
    w.runs[before].after = w.runs[end].before = run


@compiled
def take(w: World, r: int, n: int) -> None:
    """Take n free blocks; at least n have to be free."""
    s = w.replicas[r]
    s.used += n
    blank = min(n, s.blank)
    s.blank -= blank
    n -= blank
    while n > 0:
        run = w.runs[_ring(w, r)].after
        taken = min(n, w.runs[run].blocks)
        _shrink(w, run, taken)
        s.n_evicted += taken
        w.runs[run].cached -= taken  # of a prefix; of a request it is never read
        n -= taken


@compiled
def cached_of(w: World, r: int, i: int) -> tuple[int, int]:
    """Return how many leading blocks of a waiting request are cached, and how many are free."""
    q = w.requests[i]
    hit = free = 0
    if q.group != NONE:
        run = w.runs[r * w.n_groups + q.group]
        hit = min(run.cached, q.shared)
        free = max(0, hit - run.held)
    if q.preemptions > 0 and hit == q.shared:
        kept = w.runs[_own_run(w, i)].blocks
        hit += kept
        free += kept
    return hit, free


@compiled
def start_running(w: World, r: int, i: int, hit: int) -> None:
    """Move the request that `first_waiting` returned from the queue to the running ones.

    It holds its `hit` leading cached blocks, as `cached_of` counted them.
    """
    s = w.replicas[r]
    q = w.requests[i]
    if i == s.preempted:
        s.preempted = q.older
    else:
        s.waiting = q.next_arrival
    q.older = s.newest
    q.newer = NONE
    if s.newest != NONE:
        w.requests[s.newest].newer = i
    s.newest = i
    s.n_running += 1
    q.promised = promised_to(w, i, hit)
    s.promised += q.promised
    of_group = min(hit, q.shared)
    if q.group != NONE:
        group = r * w.n_groups + q.group
        free = max(0, of_group - w.runs[group].held)
        _shrink(w, group, free)
        w.runs[group].held += free
        w.runs[group].users += 1
        s.used += free
    if hit > of_group:
        _shrink(w, _own_run(w, i), hit - of_group)
        s.used += hit - of_group
    q.computed = hit * w.block_tokens


@compiled
def grow(w: World, r: int, i: int, tokens: int) -> None:
    """Give a request the blocks of its next tokens."""
    q = w.requests[i]
    before = blocks_of(w, q.computed)
    q.computed += tokens
    take(w, r, blocks_of(w, q.computed) - before)
    if q.group != NONE:
        run = w.runs[r * w.n_groups + q.group]
        reached = q.computed // w.block_tokens
        run.held = max(run.held, min(q.shared, reached))
        run.cached = max(run.cached, min(q.shared, reached))


@compiled
def let_go(w: World, r: int, i: int, tokens: int, is_over: bool) -> None:
    """Free the blocks of a request that has computed a number of tokens."""
    s = w.replicas[r]
    q = w.requests[i]
    full = tokens // w.block_tokens
    shared = min(q.shared, full)
    unshared = blocks_of(w, tokens) - shared
    s.used -= unshared
    if not w.has_prefix_caching:
        s.blank += unshared
        return
    s.blank += unshared - (full - shared)
    left = full - shared
    group = r * w.n_groups + q.group
    # The prefix grows by what the request's answer adds to it.
    more = min(q.ending, full) - q.shared
    if is_over and q.group != NONE and more > 0 and w.runs[group].cached == q.shared:
        w.runs[group].cached += more
        _keep(w, r, group, more)
        left -= more
    _keep(w, r, _own_run(w, i), left)
    if q.group != NONE:
        w.runs[group].users -= 1
        if w.runs[group].users == 0:
            s.used -= w.runs[group].held
            _keep(w, r, group, w.runs[group].held)
            w.runs[group].held = 0
