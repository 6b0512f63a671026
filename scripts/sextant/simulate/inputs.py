"""What a simulation is given: requests, the scheduler's settings, the law of an engine step.

Then the tables that it works on: settings, requests, replicas, blocks.
"""

from dataclasses import astuple, dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np

from sextant.base.errors import InputError

NO_PREFIX = -1


@dataclass(frozen=True, eq=False)
class Requests:
    """Requests in the order of their arrival; each array of shape (n,). Checked when made."""

    arrival_s: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    prefix_id: np.ndarray
    """Requests of the same id have the same tokens as far as `prefix_tokens` goes; -1: none."""
    prefix_tokens: np.ndarray
    """Leading tokens, of input and then output, that belong to the prefix; 0 without one."""

    def __post_init__(self) -> None:
        if not len(self.arrival_s):
            raise InputError("there are no requests", fix="give one or more")
        if any(values.shape != self.arrival_s.shape for values in vars(self).values()):
            raise InputError("arrays of different lengths", fix="give one value a request")
        arrivals = self.arrival_s
        if not np.isfinite(arrivals).all() or arrivals[0] < 0 or (np.diff(arrivals) < 0).any():
            fix = "give finite seconds from 0, ascending"
            raise InputError("arrivals are not in order", field="arrival_s", fix=fix)
        for name in ("input_tokens", "output_tokens"):
            _check_least(getattr(self, name), 1, name)
        _check_least(self.prefix_tokens, 0, "prefix_tokens")

    @classmethod
    def of(
        cls,
        arrival_s: np.ndarray,
        input_tokens: np.ndarray,
        output_tokens: np.ndarray,
        prefix_id: np.ndarray | None = None,
        prefix_tokens: np.ndarray | None = None,
    ) -> Self:
        """Return requests of any numeric arrays; without prefixes where none are given.

        Raises:
            InputError: there are none, an arrival is out of order, or a length is below 1.
        """
        if prefix_id is None or prefix_tokens is None:
            prefix_id, prefix_tokens = np.full(len(arrival_s), NO_PREFIX), np.zeros(len(arrival_s))
        tokens = (input_tokens, output_tokens, prefix_id, prefix_tokens)
        integers = (np.asarray(values).astype(np.int64) for values in tokens)
        return cls(np.asarray(arrival_s, dtype=np.float64), *integers)

    def __len__(self) -> int:
        return len(self.arrival_s)

    def repeating(self, n_prompts: int, seed: int = 0) -> Self:
        """Return the same requests, each with one of `n_prompts` whole prompts at random.

        A prompt has the input length of the first request that was given it.
        """
        if n_prompts < 1:
            raise InputError(f"{n_prompts} prompts", field="unique_prompts", fix="give 1 or more")
        ids = np.random.default_rng(seed).integers(n_prompts, size=len(self))
        chosen, first = np.unique(ids, return_index=True)
        inputs = self.input_tokens[first[np.searchsorted(chosen, ids)]]
        return type(self).of(self.arrival_s, inputs, self.output_tokens, ids, inputs)


def _check_least(values: np.ndarray, least: int, name: str) -> None:
    if (values < least).any():
        row = int(np.argmax(values < least))
        problem, fix = f"request {row} has {values[row]} tokens", f"give at least {least}"
        raise InputError(problem, field=name, fix=fix)


@dataclass(frozen=True)
class Scheduler:
    """How a replica schedules. Checked when it is made, as vLLM does when it starts."""

    kv_tokens: int
    """Tokens that the KV cache holds: vLLM's log says `GPU KV cache size`."""
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int | None = None
    """Tokens of the longest request, input and output; as many as the KV cache holds if None."""
    block_tokens: int = 16
    """Tokens of a block of the KV cache (vLLM: `block_size`)."""
    has_prefix_caching: bool = True
    """vLLM: `enable_prefix_caching`."""
    is_asynchronous: bool = True
    """vLLM: `async_scheduling`. A step is planned while the one before it runs."""
    timeout_s: float = float("inf")
    """When a client gives up, from the request's arrival on."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_tokens", "timeout_s"):
            if not getattr(self, name) > 0:
                problem = f"{getattr(self, name)} is not above 0"
                raise InputError(problem, field=name, fix="give a number above 0")
        if self.max_num_batched_tokens < self.max_num_seqs:
            problem = (
                f"{self.max_num_batched_tokens} tokens a step for {self.max_num_seqs} requests"
            )
            fix = "give at least max_num_seqs: each of them decodes one token a step"
            raise InputError(problem, field="max_num_batched_tokens", fix=fix)
        if self.n_blocks < 1:
            problem = f"a KV cache of {self.kv_tokens} tokens holds no request"
            fix = f"give {2 * self.block_tokens} or more"
            raise InputError(problem, field="kv_tokens", fix=fix)
        if self.max_model_len is not None and not 1 < self.max_model_len <= self.most_tokens:
            problem = f"a request of {self.max_model_len} tokens and a cache of {self.most_tokens}"
            fix = f"give max_model_len from 2 to {self.most_tokens}, or more KV memory"
            raise InputError(problem, field="max_model_len", fix=fix)

    @property
    def n_blocks(self) -> int:
        """Blocks for requests: one of them all is vLLM's own, its null block."""
        return self.kv_tokens // self.block_tokens - 1

    @property
    def most_tokens(self) -> int:
        """Tokens of the longest request that the KV cache holds."""
        return self.n_blocks * self.block_tokens

    @property
    def longest(self) -> int:
        """Tokens of the longest request that is not refused."""
        return self.max_model_len or self.most_tokens


@dataclass(frozen=True)
class StepLaw:
    """Time of one engine step. With P prompt tokens, D decoding sequences and C tokens of context:

        t = floor_ms + prompt_step_ms [P > 0] + (weights(D + P) ∘ prefill)
            + sequence_ms D + kv_token_ms C
        weights(n) = dense_ms + expert_ms (1 − (1 − expert_share)^(n^touch))
        prefill = prefill_token_ms P + prefill_pair_ms pairs
        a ∘ b = (a^overlap + b^overlap)^(1/overlap)

    C counts the tokens that all decoding sequences read, the newest of each included; pairs are
    those of a prompt token and a token that it looks back on, itself included. Reading the weights
    and multiplying a prompt overlap: with `overlap` 1 they add up, with infinity the longer counts.

    Fields may be arrays, of many laws at once: fits take them so, the simulator one at a time.
    """

    floor_ms: float
    dense_ms: float
    sequence_ms: float
    kv_token_ms: float
    prefill_token_ms: float
    prefill_pair_ms: float = 0.0
    prompt_step_ms: float = 0.0
    expert_ms: float = 0.0
    """Time to read all experts; 0 for a dense LLM."""
    expert_share: float = 0.0
    """Share of the experts that one token uses."""
    touch: float = 1.0
    overlap: float = 1.0
    request_ms: float = 0.0
    """What the deployment adds before a request reaches the scheduler; no engine is held by it."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = np.asarray(getattr(self, field.name), float)
            is_bad = np.isnan(value) | (value < 0) | (np.isinf(value) & (field.name != "overlap"))
            if is_bad.any():
                fix = "give a finite number from 0"
                problem = f"{value[is_bad].ravel()[0]} is not a term of a step"
                raise InputError(problem, field=field.name, fix=fix)
        if np.any(self.overlap < 1) or np.any(self.expert_share > 1):
            fix = "give an overlap from 1, and at most 1 as the share of experts"
            raise InputError("not a law", field="overlap, expert_share", fix=fix)
        if np.any(self.floor_ms + self.dense_ms + self.sequence_ms <= 0):
            fix = "give floor_ms, dense_ms or sequence_ms"
            raise InputError("a step takes no time", field="floor_ms", fix=fix)

    def array(self) -> np.ndarray:
        """Return the terms in `NAMES`' order, float64 of shape (12,)."""
        return np.array(astuple(self))

    @classmethod
    def of(cls, values: np.ndarray) -> Self:
        """Return the law of `array`'s values."""
        return cls(*map(float, values))

    def weights_ms(self, tokens: Any) -> Any:
        """Return the time to read the weights that so many tokens touch; takes arrays too."""
        touched = 1 - (1 - self.expert_share) ** (np.maximum(tokens, 1) ** self.touch)
        return self.dense_ms + self.expert_ms * touched

    def step_ms(self, prompt_tokens: Any, sequences: Any, context: Any, pairs: Any) -> Any:
        """Return the time of a step; takes arrays too."""
        prefill = self.prefill_token_ms * prompt_tokens + self.prefill_pair_ms * pairs
        weights = self.weights_ms(prompt_tokens + sequences)
        longer = np.maximum(np.maximum(weights, prefill), 1e-12)
        # As shares of the longer one, so that an infinite overlap is right too.
        shares = (weights / longer) ** self.overlap + (prefill / longer) ** self.overlap
        body = longer * shares ** (1 / np.asarray(self.overlap, float))
        floor = self.floor_ms + self.prompt_step_ms * np.greater(prompt_tokens, 0)
        return floor + body + self.sequence_ms * sequences + self.kv_token_ms * context


NAMES = tuple(field.name for field in fields(StepLaw))


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
