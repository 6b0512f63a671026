"""A replica's KV cache in blocks, compiled: who holds them, and which cached ones are free.

Free blocks that hold nothing of use are taken first. The others lie in runs, least recently used
first; a run is what one prefix or one request left, and loses its end first. A preempted request
finds what is left of its own run when it comes back. O(1) a block run that is made or used up.
"""

from sextant.simulate.compiled import compiled
from sextant.simulate.world import NONE, World


@compiled
def blocks_of(w: World, tokens: int) -> int:
    """Return the blocks that hold so many tokens."""
    return (tokens + w.block_tokens - 1) // w.block_tokens


@compiled
def _own_run(w: World, i: int) -> int:
    return w.replicas.shape[0] * w.n_groups + i


@compiled
def _ring(w: World, r: int) -> int:
    """Return the run where a replica's list of runs begins and ends."""
    return w.runs.shape[0] - w.replicas.shape[0] + r


@compiled
def _unlink(w: World, run: int) -> None:
    before, after = w.runs[run].before, w.runs[run].after
    w.runs[before].after, w.runs[after].before = after, before


@compiled
def _shrink(w: World, run: int, n: int) -> None:
    w.runs[run].blocks -= n
    if n > 0 and w.runs[run].blocks == 0:
        _unlink(w, run)


@compiled
def _keep(w: World, r: int, run: int, n: int) -> None:
    """Free n blocks of a run: they, and what is left of it, are the last to be taken."""
    if n == 0:
        return
    if w.runs[run].blocks > 0:
        _unlink(w, run)
    w.runs[run].blocks += n
    end = _ring(w, r)
    before = w.runs[end].before
    w.runs[run].before, w.runs[run].after = before, end
    w.runs[before].after = w.runs[end].before = run


@compiled
def take(w: World, r: int, n: int) -> None:
    """Take n free blocks. There have to be as many."""
    s = w.replicas[r]
    s.used += n
    blank = min(n, s.blank)
    s.blank -= blank
    n -= blank
    while n > 0:
        run = w.runs[_ring(w, r)].after
        taken = min(n, w.runs[run].blocks)
        _shrink(w, run, taken)
        w.runs[run].cached -= taken  # of a prefix; nobody reads it of a request
        n -= taken


@compiled
def cached_of(w: World, r: int, i: int) -> tuple[int, int]:
    """Return how many leading blocks of a waiting request are cached, and how many are free."""
    q = w.requests[i]
    hit = free = 0
    if q.group != NONE:
        group = r * w.n_groups + q.group
        hit = min(w.runs[group].cached, q.shared)
        free = max(0, hit - w.runs[group].held)
    if q.preemptions > 0 and hit == q.shared:
        own = w.runs[_own_run(w, i)].blocks
        hit, free = hit + own, free + own
    return hit, free


@compiled
def hold_cached(w: World, r: int, i: int, hit: int) -> None:
    """Have a request hold its leading cached blocks, as many as `cached_of` said."""
    s, q = w.replicas[r], w.requests[i]
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
    """Have a request hold the blocks of its next tokens."""
    q = w.requests[i]
    before = blocks_of(w, q.computed)
    q.computed += tokens
    take(w, r, blocks_of(w, q.computed) - before)
    if q.group != NONE:
        group = r * w.n_groups + q.group
        reached = min(q.shared, q.computed // w.block_tokens)
        w.runs[group].held = max(w.runs[group].held, reached)
        w.runs[group].cached = max(w.runs[group].cached, reached)


@compiled
def let_go(w: World, r: int, i: int, tokens: int, is_over: bool) -> None:
    """Free the blocks of a request that has computed so many tokens."""
    s, q = w.replicas[r], w.requests[i]
    full = tokens // w.block_tokens
    shared = min(q.shared, full)
    own = blocks_of(w, tokens) - shared
    s.used -= own
    if not w.has_prefix_caching:
        s.blank += own
        return
    s.blank += own - (full - shared)
    left = full - shared
    if is_over and q.group != NONE:
        left -= _lengthen(w, r, i, full)
    _keep(w, r, _own_run(w, i), left)
    if q.group != NONE:
        group = r * w.n_groups + q.group
        w.runs[group].users -= 1
        if w.runs[group].users == 0:
            s.used -= w.runs[group].held
            _keep(w, r, group, w.runs[group].held)
            w.runs[group].held = 0


@compiled
def _lengthen(w: World, r: int, i: int, full: int) -> int:
    """Have the prefix grow by what the request's answer adds to it; return by how many blocks."""
    q = w.requests[i]
    group = r * w.n_groups + q.group
    more = min(q.ending, full) - q.shared
    if more <= 0 or w.runs[group].cached != q.shared:
        return 0
    w.runs[group].cached += more
    _keep(w, r, group, more)
    return more
