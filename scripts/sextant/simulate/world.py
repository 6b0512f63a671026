"""The tables that the compiled simulation works on: settings, requests, replicas, blocks."""

from typing import NamedTuple

import numpy as np

from sextant.simulate.inputs import Requests, Scheduler, StepLaw

NONE = -1
PENDING, OK, TIMEOUT, REFUSED, UNSENT = range(5)
ROUND_ROBIN, LEAST_REQUESTS, PREFIX = range(3)

BIN_WIDTH = np.log(1.005)
SHORTEST_S = 1e-5
N_BINS = int(np.ceil(np.log(1e9) / BIN_WIDTH))
"""Bins of gaps between tokens, each 0.5% wide, from 10 µs to 10,000 s."""
SERIES = ("busy_s", "kv_block_s", "output_tokens", "steps")

_TIMES = ("arrival_s", "deadline_s", "first_s", "last_s")
_COUNTS = (
    # What it asks for. `shared` are the blocks of its prompt that belong to its prefix.
    *("input", "output", "group", "shared", "ending", "is_counted"),
    # Its outcome.
    *("status", "replica", "preemptions", "cached"),
    # Where it is: tokens with keys and values, generated tokens; the plans that sampled its first
    # token since it was admitted and its last one.
    *("computed", "generated", "start_plan", "end_plan"),
    # Lists: of arrivals, of the running ones, of those that end in the same plan.
    *("next_arrival", "older", "newer", "end_before", "end_after"),
)
REQUEST = np.dtype([(name, "f8") for name in _TIMES] + [(name, "i8") for name in _COUNTS])

_REPLICA_TIMES = (
    # When the next step is planned, and when the engine is free to run it.
    *("plan_s", "free_s"),
    # After the warm-up: busy, blocks in use times seconds, sum of the gaps that count.
    *("counted_from_s", "busy_s", "kv_block_s", "gap_sum_s"),
)
_REPLICA_COUNTS = (
    *("plan", "steps", "n_preemptions", "n_assigned", "n_left", "most_blocks", "n_gaps"),
    # The running ones: how many, the last admitted, the one whose prompt is computed in part; and
    # whether no other may join before one of them leaves.
    *("n_running", "newest", "partial", "is_blocked"),
    # Decodes: how many, of how many the gaps count, and tokens that they have in the cache.
    *("n_decodes", "n_counted", "context"),
    # The queue: preempted ones, newest first, then arrivals; and the next who may give up.
    *("preempted", "waiting", "last_arrival", "oldest"),
    # Blocks: in use, and free ones that hold nothing of use.
    *("used", "blank"),
)
REPLICA = np.dtype(
    [(name, "f8") for name in _REPLICA_TIMES] + [(name, "i8") for name in _REPLICA_COUNTS]
)
END = np.dtype([("first", "i8"), ("last", "i8")])
"""Requests that end in the same plan, as a list."""
RUN = np.dtype([(name, "i8") for name in ("blocks", "before", "after", "cached", "held", "users")])
"""Free blocks that one prefix or request left, in a list, least recently used first. Of a prefix
also: its leading blocks that are in the cache, those of them in use, and who runs with it."""


class World(NamedTuple):
    """Everything that a simulation reads and writes."""

    requests: np.ndarray
    """`REQUEST` of shape (n,)."""
    replicas: np.ndarray
    """`REPLICA` of shape (replicas,)."""
    crossing: np.ndarray
    """Decodes that need a block in every plan p with p % block_tokens = column."""
    ends: np.ndarray
    """`END` of plan p in column p % size; (replicas, size)."""
    runs: np.ndarray
    """`RUN`: of each replica's prefixes, of requests, and one empty one for each replica."""
    gaps: np.ndarray
    """Gaps between tokens, counted: (windows, N_BINS)."""
    series: np.ndarray
    """`SERIES` by the window in which a step ends: (windows, 4)."""
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
    request_s: float
    window_s: float
    timeout_s: float
    closed_until_s: float
    """Until when the users of a closed loop send requests; below 0 in an open loop."""


def make_world(
    requests: Requests,
    scheduler: Scheduler,
    law: StepLaw,
    n_replicas: int,
    *,
    warmup_s: float = 0.0,
    window_s: float = float("inf"),
    closed_until_s: float = -1.0,
) -> World:
    """Return the tables before the first arrival. Requests that are too long are refused here."""
    table, n_groups = _table(requests, scheduler, warmup_s)
    last_s = max(requests.arrival_s[-1], closed_until_s)
    n_windows = 1 if np.isinf(window_s) else int(last_s // window_s) + 2
    longest = int(table["output"][table["status"] == PENDING].max(initial=1))
    ends = np.empty((n_replicas, 1 << int(np.ceil(np.log2(longest + 4)))), END)
    ends["first"] = ends["last"] = NONE
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
        series=np.zeros((n_windows, len(SERIES))),
        weights_ms=law.weights_ms(np.arange(scheduler.max_num_batched_tokens + 1.0)),
        law=law.array(),
        n_groups=n_groups,
        n_blocks=scheduler.n_blocks,
        block_tokens=scheduler.block_tokens,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        lag=2 if scheduler.is_asynchronous else 1,
        has_prefix_caching=scheduler.has_prefix_caching,
        request_s=law.request_ms * 1e-3,
        window_s=float(window_s),
        timeout_s=float(scheduler.timeout_s),
        closed_until_s=float(closed_until_s),
    )


def _table(requests: Requests, scheduler: Scheduler, warmup_s: float) -> tuple[np.ndarray, int]:
    table = np.zeros(len(requests), REQUEST)
    table["arrival_s"] = requests.arrival_s
    table["deadline_s"] = requests.arrival_s + scheduler.timeout_s
    table["first_s"] = table["last_s"] = np.nan
    table["input"], table["output"] = requests.input_tokens, requests.output_tokens
    table["is_counted"] = requests.arrival_s >= warmup_s
    n_tokens = requests.input_tokens + requests.output_tokens
    table["status"] = np.where(n_tokens > scheduler.longest, REFUSED, PENDING)
    for name in ("replica", "next_arrival", "older", "newer", "end_before", "end_after"):
        table[name] = NONE
    table["group"] = NONE
    has_prefix = (requests.prefix_tokens > 0) & (requests.prefix_id >= 0)
    if not (scheduler.has_prefix_caching and has_prefix.any()):
        return table, 0
    ids, groups = np.unique(requests.prefix_id[has_prefix], return_inverse=True)
    table["group"][has_prefix] = groups
    # The last token of a prompt is always computed: its logits are what the answer starts with.
    of_prompt = np.minimum(requests.prefix_tokens, requests.input_tokens - 1)
    has_more = requests.prefix_tokens > requests.input_tokens
    of_all = np.where(has_more, np.minimum(requests.prefix_tokens, n_tokens - 1), of_prompt)
    table["shared"][has_prefix] = of_prompt[has_prefix] // scheduler.block_tokens
    table["ending"][has_prefix] = of_all[has_prefix] // scheduler.block_tokens
    return table, len(ids)
