"""The tables that a simulation reads and writes, before its first step.

`World` holds them all: requests, replicas, the blocks of their KV caches, and counts of gaps
between tokens. `tables` and `steps` change them in compiled code.
"""

from typing import NamedTuple

import numpy as np

from sextant.base.errors import InputError
from sextant.simulate.server import N_BINS, PENDING, REFUSED, Scheduler, StepLaw
from sextant.workload.requests import NONE, RequestStream


def _fields(times: str, counts: str) -> np.dtype:
    return np.dtype([*((t, "f8") for t in times.split()), *((n, "i8") for n in counts.split())])


REQUEST = _fields(
    "arrival_s deadline_s first_s last_s think_s",
    # What it asks for. `shared` are the blocks of its prompt that belong to its prefix.
    "input output group shared ending is_counted "
    # Whether its prompt was computed before, here or elsewhere.
    "is_received "
    # Its outcome.
    "status replica preemptions cached "
    # Where it is: tokens with keys and values, generated tokens; the plans that sampled its first
    # token since it was admitted and its last one.
    "computed generated start_plan end_plan "
    # Blocks that it may need until its end, beside its prefix's blocks.
    "promised "
    # Lists: arrivals, running requests, requests that end in the same plan.
    "next_arrival older newer end_before end_after "
    # Requests that wait for its answer: the first one, and the next one of the same parent.
    "child sibling parent",
)
REPLICA = _fields(
    # When the next step is planned, and when the engine is free to run it.
    "plan_s free_s "
    # After the warm-up: busy, blocks in use times seconds, sum of the gaps that count.
    "counted_from_s busy_s kv_block_s gap_sum_s "
    # Times of the last tokens of the requests that wait for prompts, summed.
    "paused_s",
    "plan steps n_preemptions n_assigned n_left most_blocks n_gaps "
    # Running requests: how many, the last admitted, the one whose prompt is computed in part; and
    # whether no other request may join before one of them leaves.
    "n_running newest partial is_blocked "
    # Decodes: how many, how many whose gaps count, their tokens in the cache, and how many of the
    # counted ones wait for prompts.
    "n_decodes n_counted context n_paused "
    # The queue: preempted requests, newest first, then arrivals; and the next that may give up.
    "preempted waiting last_arrival oldest "
    # Blocks: in use, free and empty, promised to running requests, and cached ones that were taken
    # for other requests.
    "used blank promised n_evicted",
)
END = _fields("", "first last")
"""Requests that end in the same plan, as a list."""
RUN = _fields("", "blocks before after cached held users")
"""Free blocks that one prefix or request left, in a list, least recently used first. Of a prefix
also: how many of its leading blocks are cached, how many of these are in use, and how many requests
run with it."""


class World(NamedTuple):
    """Everything that a simulation reads and writes.

    Numba passes a flat tuple of arrays and numbers by value and reads each field at once; fields in
    groups would be tuples in a tuple. That is why the type is wide.
    """

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
    request_s: float
    window_s: float
    timeout_s: float
    due: np.ndarray  #: Requests whose parent is answered, a heap by arrival; (n,).
    counts: np.ndarray
    """How many requests are in `due`; the first request without a parent that is still unsent."""
    clock_s: np.ndarray
    """Time up to which all replicas were brought while answers decide what arrives; (1,)."""
    step_s: float  #: No step takes less.
    think_s: float  #: No turn comes sooner after the answer that it waits for.
    has_turns: bool  #: Whether some requests wait for the answers of others.
    closed_until_s: float
    """Until when the users of a closed loop send requests; below 0 in an open loop."""


_LITTLE_LESS = 0.999
"""Factor on least times: arrivals are computed in another order, which rounds them otherwise."""


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
    least_of = {"n_replicas": (n_replicas, 1), "warmup_s": (warmup_s, 0), "window_s": (window_s, 1)}
    for field, (value, least) in least_of.items():
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
    rings = np.arange(len(runs))[-n_replicas:]
    runs["before"][rings] = runs["after"][rings] = rings
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
        request_s=law.request_ms * 1e-3,
        window_s=float(window_s),
        timeout_s=float(scheduler.timeout_s),
        due=np.zeros(len(table), np.int64),
        counts=np.zeros(2, np.int64),
        clock_s=np.zeros(1),
        step_s=_LITTLE_LESS * 1e-3 * float(law.array()[0] + law.weights_ms(np.arange(2.0)).min()),
        think_s=_LITTLE_LESS * _least_think_s(requests),
        has_turns=bool((table["parent"] != NONE).any()),
        closed_until_s=float(closed_until_s),
    )


def _least_think_s(requests: RequestStream) -> float:
    if requests.turns is None or not (waits := requests.turns.parent != NONE).any():
        return 0.0
    return float(requests.turns.think_s[waits].min())


def renew(world: World, r: int, ready_s: float) -> None:
    """Put a new replica, with an empty cache, in the place of a replica without requests."""
    s = world.replicas[r]
    ring = len(world.runs) - len(world.replicas) + r
    s["plan_s"] = s["free_s"] = ready_s
    s["blank"] = world.n_blocks
    s["used"] = 0
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
    table["is_received"] = scheduler.receives_cache
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
