"""What a simulation works on: a replica's lists of requests and its KV cache in blocks, compiled.

Each change costs O(1).

`compiled` has Numba compile functions, and keeps what it compiled in the user's cache, since the
library's own folder may be read-only; without one, each process compiles for itself. The folder's
name is a hash of what is compiled: Numba would not see that a function of another file has changed.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

import numpy as np

from sextant.base.errors import InputError
from sextant.base.files import import_without
from sextant.simulate.simulation import (
    N_BINS,
    PENDING,
    REFUSED,
    Scheduler,
    StepLaw,
)
from sextant.workload.requests import NONE, RequestStream

Function = TypeVar("Function", bound=Callable)
_SOURCES = ("simulation", "tables", "steps")
# Numba would load SciPy's linear algebra and a tool for coverage on the first call.
numba = import_without("numba", "coverage")
import_without("numba.np.arraymath", "scipy.linalg")


def _cache_folder() -> str | None:
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        return given
    digest = hashlib.sha256(numba.__version__.encode())
    for name in _SOURCES:
        digest.update((Path(__file__).parent / f"{name}.py").read_bytes())
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = home / "sextant" / f"simulate-{digest.hexdigest()[:16]}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # a home that is read-only, or none
        return None
    return str(folder) if os.access(folder, os.W_OK) else None


_FOLDER = _cache_folder()
if _FOLDER is not None:
    numba.core.config.CACHE_DIR = _FOLDER


def compiled(function: Function) -> Function:
    """Return a function that Numba compiles on its first call; it releases the GIL."""
    return cast(Function, numba.njit(nogil=True, cache=_FOLDER is not None)(function))


def _fields(times: str, counts: str) -> np.dtype:
    return np.dtype([*((t, "f8") for t in times.split()), *((n, "i8") for n in counts.split())])


REQUEST = _fields(
    "arrival_s deadline_s first_s last_s think_s",
    # What it asks for. `shared` are the blocks of its prompt that belong to its prefix.
    "input output group shared ending is_counted "
    # Its outcome.
    "status replica preemptions cached "
    # Where it is: tokens with keys and values, generated tokens; the plans that sampled its first
    # token since it was admitted and its last one.
    "computed generated start_plan end_plan "
    # Blocks that it may need until its end, beside those of its prefix.
    "promised "
    # Lists: of arrivals, of the running ones, of those that end in the same plan.
    "next_arrival older newer end_before end_after "
    # Those that wait for its answer: the first one, and the next one of the same parent.
    "child sibling parent",
)
REPLICA = _fields(
    # When the next step is planned, and when the engine is free to run it.
    "plan_s free_s "
    # After the warm-up: busy, blocks in use times seconds, sum of the gaps that count.
    "counted_from_s busy_s kv_block_s gap_sum_s "
    # When those that wait for prompts had their last tokens, summed.
    "paused_s",
    "plan steps n_preemptions n_assigned n_left most_blocks n_gaps "
    # The running ones: how many, the last admitted, the one whose prompt is computed in part; and
    # whether no other may join before one of them leaves.
    "n_running newest partial is_blocked "
    # Decodes: how many, of how many the gaps count, tokens that they have in the cache, how many of
    # those counted wait for prompts.
    "n_decodes n_counted context n_paused "
    # The queue: preempted ones, newest first, then arrivals; and the next who may give up.
    "preempted waiting last_arrival oldest "
    # Blocks: in use, free ones that hold nothing of use, those promised to running requests, and
    # cached ones that were taken for others.
    "used blank promised n_evicted",
)
END = _fields("", "first last")
"""Requests that end in the same plan, as a list."""
RUN = _fields("", "blocks before after cached held users")
"""Free blocks that one prefix or request left, in a list, least recently used first. Of a prefix
also: its leading blocks that are in the cache, those of them in use, and who runs with it."""


class World(NamedTuple):
    """Everything that a simulation reads and writes."""

    requests: np.ndarray  #: `REQUEST` of shape (n,).
    replicas: np.ndarray  #: `REPLICA` of shape (replicas,).
    crossing: np.ndarray
    """Decodes that need a block in every plan p with p % block_tokens = column."""
    ends: np.ndarray  #: `END` of plan p in column p % size; (replicas, size).
    runs: np.ndarray
    """`RUN`: of each replica's prefixes, of requests, and one empty one for each replica."""
    gaps: np.ndarray  #: Gaps between tokens, counted: (windows, N_BINS).
    weights_ms: np.ndarray
    """Time to read the weights for a number of tokens, from 0 to max_num_batched_tokens."""
    law: np.ndarray
    n_groups: int
    n_blocks: int
    block_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int
    lag: int
    """Plans between a request's last token and the one that knows of it: 2 if asynchronous."""
    has_prefix_caching: bool
    reserved_share: float
    prompts_first: bool
    receives_cache: bool
    request_s: float
    window_s: float
    timeout_s: float
    due: np.ndarray  #: Requests that wait for nobody any more, a heap by arrival; (n,).
    counts: np.ndarray
    """How many requests are due; the first one that waits for nobody and is still to be sent."""
    clock_s: np.ndarray
    """Time up to which all replicas were brought while answers decide what arrives; (1,)."""
    quantum_s: float
    """By how much replicas go on together where answers decide what arrives: hardly anybody thinks
    for less, so that no replica is past the arrival of who waited for another's answer."""
    has_turns: bool  #: Whether some requests wait for the answers of others.
    closed_until_s: float
    """Until when the users of a closed loop send requests; below 0 in an open loop."""


def make_world(
    requests: RequestStream,
    scheduler: Scheduler,
    law: StepLaw,
    n_replicas: int,
    *,
    warmup_s: float,
    window_s: float = float("inf"),
    closed_until_s: float = -1.0,
) -> World:
    """Return the tables before the first arrival. Requests that are too long are refused here."""
    given = {"n_replicas": (n_replicas, 1), "warmup_s": (warmup_s, 0), "window_s": (window_s, 1)}
    for field, (value, least) in given.items():
        if not value >= least:
            raise InputError(f"{value} is too small", field=field, fix=f"give {least} or more")
    requests.check()
    table, n_groups = _request_table(requests, scheduler, warmup_s)
    n_windows = 1 if np.isinf(window_s) else int(requests.arrival_s[-1] // window_s) + 2
    longest = int(table["output"][table["status"] == PENDING].max(initial=1))
    ends = np.full((n_replicas, 1 << int(np.ceil(np.log2(longest + 4)))), NONE, END)
    replicas = np.zeros(n_replicas, REPLICA)
    replicas["blank"] = scheduler.n_blocks
    replicas["counted_from_s"] = warmup_s
    for name in ("newest", "partial", "preempted", "waiting", "last_arrival", "oldest"):
        replicas[name] = NONE
    runs = np.zeros(n_replicas * n_groups + len(table) + n_replicas, RUN)
    # Each replica's list of runs is a ring around an empty run of its own.
    own = np.arange(len(runs))[-n_replicas:]
    runs["before"][own] = runs["after"][own] = own
    return World(
        requests=table,
        replicas=replicas,
        crossing=np.zeros((n_replicas, scheduler.block_tokens), np.int64),
        ends=ends,
        runs=runs,
        gaps=np.zeros((n_windows, N_BINS), np.int64),
        weights_ms=law.weights_ms(np.arange(scheduler.max_num_batched_tokens + 1.0)),
        law=law.array(),
        n_groups=n_groups,
        n_blocks=scheduler.n_blocks,
        block_tokens=scheduler.block_tokens,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        lag=2 if scheduler.is_asynchronous else 1,
        has_prefix_caching=scheduler.has_prefix_caching,
        reserved_share=float(scheduler.reserved_share),
        prompts_first=scheduler.prompts_first,
        receives_cache=scheduler.receives_cache,
        request_s=law.request_ms * 1e-3,
        window_s=float(window_s),
        timeout_s=float(scheduler.timeout_s),
        due=np.zeros(len(table), np.int64),
        counts=np.zeros(2, np.int64),
        clock_s=np.zeros(1),
        quantum_s=_quantum_s(requests),
        has_turns=bool((table["parent"] != NONE).any()),
        closed_until_s=float(closed_until_s),
    )


def _quantum_s(requests: RequestStream) -> float:
    if requests.turns is None or not (waits := requests.turns.parent != NONE).any():
        return 1.0
    thinks_s = requests.turns.think_s[waits]
    return float(np.clip(np.quantile(thinks_s, 0.01, method="lower"), 0.02, 1.0))


def renew(world: World, r: int, ready_s: float) -> None:
    """Have a new replica, with an empty cache, take the place of one that nobody is left on."""
    s, ring = world.replicas[r], len(world.runs) - len(world.replicas) + r
    s["plan_s"] = s["free_s"] = ready_s
    s["blank"], s["used"] = world.n_blocks, 0
    world.runs[r * world.n_groups : (r + 1) * world.n_groups] = 0
    world.runs["before"][ring] = world.runs["after"][ring] = ring


def _request_table(
    requests: RequestStream, scheduler: Scheduler, warmup_s: float
) -> tuple[np.ndarray, int]:
    """Return the requests as `REQUEST`, and how many prefixes they have that may be cached."""
    table = np.zeros(requests.n, REQUEST)
    for name in ("replica", "group", "next_arrival", "older", "newer", "end_before", "end_after"):
        table[name] = NONE
    table["parent"] = table["child"] = table["sibling"] = NONE
    table["arrival_s"] = requests.arrival_s
    if requests.turns is not None:
        _, parent, table["think_s"] = requests.turns
        table["parent"] = parent
        # It is not known yet when requests arrive that wait for an answer.
        table["arrival_s"][parent != NONE] = np.inf
        for i in np.flatnonzero(parent != NONE)[::-1]:
            table["sibling"][i] = table["child"][parent[i]]
            table["child"][parent[i]] = i
    table["deadline_s"] = table["arrival_s"] + scheduler.timeout_s
    table["first_s"] = table["last_s"] = np.nan
    table["input"] = requests.input_tokens
    table["output"] = requests.output_tokens
    table["is_counted"] = requests.arrival_s >= warmup_s
    n_tokens = table["input"] + table["output"]
    table["status"] = np.where(n_tokens > scheduler.longest, REFUSED, PENDING)

    if requests.prefixes is None or not scheduler.has_prefix_caching:
        return table, 0
    prefix_id, prefix_tokens = requests.prefixes
    has_prefix = (prefix_tokens > 0) & (prefix_id >= 0)
    if not has_prefix.any():
        return table, 0
    ids, groups = np.unique(prefix_id[has_prefix], return_inverse=True)
    table["group"][has_prefix] = groups
    # The last token of a prompt is always computed: its logits are what the answer starts with.
    of_prompt = np.minimum(prefix_tokens, table["input"] - 1)
    has_more = prefix_tokens > table["input"]
    of_all = np.where(has_more, np.minimum(prefix_tokens, n_tokens - 1), of_prompt)
    table["shared"][has_prefix] = of_prompt[has_prefix] // scheduler.block_tokens
    table["ending"][has_prefix] = of_all[has_prefix] // scheduler.block_tokens
    return table, len(ids)


@compiled
def over(w: World, i: int, now_s: float) -> None:
    """Have those that wait for the answer of request i be due after they have thought."""
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
    """Return the request that arrives next, of those that wait for nobody; NONE without one."""
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
    """Have the request that `next_due` returned be due no more."""
    if w.requests[i].parent == NONE:
        w.counts[1] += 1
        return
    w.counts[0] -= 1
    n, at = w.counts[0], 0
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
def cache_depths(prefix: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each block how deep in the cache it lies, and the request that used it last.

    That is the number of blocks used since: a cache of more blocks still has it. Both are -1 of a
    block that is new. O(log of all blocks) for each.

    Args:
        prefix: (all blocks,) number of each block with all before it, from 0 on, one request after
            the other.
        ends: (n,) where each request's blocks end.
    """
    n = len(prefix)
    depth, used_by = np.full(n, -1), np.full(n, -1)
    last, last_request = np.full(n, -1), np.full(n, -1)
    # Fenwick tree: node i counts the marks of places up to i, back to the one below its lowest bit.
    marks = np.zeros(n + 1, np.int64)
    n_held, start = 0, 0
    for request in range(len(ends)):
        for k in range(start, ends[request]):
            found = last[prefix[k]]
            if found >= 0:
                older, node = 0, found + 1
                while node > 0:
                    older += marks[node]
                    node -= node & -node
                depth[k] = n_held - older
                used_by[k] = last_request[prefix[k]]
        for k in range(start, ends[request]):
            # The end of a prompt counts as used before its beginning.
            now = start + ends[request] - 1 - k
            for place, step in ((last[prefix[k]], -1), (now, 1)):
                node = place + 1
                while 0 < node <= n:
                    marks[node] += step
                    node += node & -node
            n_held += last[prefix[k]] < 0
            last[prefix[k]], last_request[prefix[k]] = now, request
        start = ends[request]
    return depth, used_by


@compiled
def blocks_of(w: World, tokens: int) -> int:
    """Return the blocks that hold so many tokens."""
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
        before, after = w.runs[run].before, w.runs[run].after
        w.runs[before].after, w.runs[after].before = after, before


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
        s.n_evicted += taken
        w.runs[run].cached -= taken  # of a prefix; nobody reads it of a request
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
        own = w.runs[_own_run(w, i)].blocks
        hit, free = hit + own, free + own
    return hit, free


@compiled
def start_running(w: World, r: int, i: int, hit: int) -> None:
    """Have the one that `first_waiting` returned leave the queue and run.

    It holds its leading cached blocks, as many as `cached_of` said.
    """
    s, q = w.replicas[r], w.requests[i]
    if i == s.preempted:
        s.preempted = q.older
    else:
        s.waiting = q.next_arrival
    q.older, q.newer = s.newest, NONE
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
    """Have a request hold the blocks of its next tokens."""
    q = w.requests[i]
    before = blocks_of(w, q.computed)
    q.computed += tokens
    take(w, r, blocks_of(w, q.computed) - before)
    if q.group != NONE:
        run, reached = w.runs[r * w.n_groups + q.group], q.computed // w.block_tokens
        run.held = max(run.held, min(q.shared, reached))
        run.cached = max(run.cached, min(q.shared, reached))


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
