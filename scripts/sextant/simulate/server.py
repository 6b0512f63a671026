"""A server that is simulated: how it schedules, what a step takes, how its requests may end."""

import math
from dataclasses import astuple, dataclass, fields
from typing import Any, Self

import numpy as np

from sextant.base.errors import InputError

OVERLAP = 3.0
"""Exponent of the smooth maximum of launches and of the work that they overlap with."""


@dataclass(frozen=True)
class Scheduler:
    """How a replica schedules. Checked when it is made, as vLLM does when it starts."""

    kv_tokens: int  #: Tokens that the KV cache holds: vLLM's log says `GPU KV cache size`.
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int | None = None
    """Tokens of the longest request, input and output; None: the tokens of the whole KV cache."""
    block_tokens: int = 16  #: Tokens of a block of the KV cache (vLLM: `block_size`).
    has_prefix_caching: bool = True  #: vLLM: `enable_prefix_caching`.
    is_asynchronous: bool = True
    """vLLM: `async_scheduling`. A step is planned while the one before it runs."""
    reserved_share: float = 0.0
    """Share of its output for which a request must find memory when it joins (TensorRT-LLM: 1)."""
    prompts_first: bool = False  #: Steps with prompts have no decodes (SGLang).
    receives_cache: bool = False
    """Another server computed the prompts: they join with their KV cache, in no time."""
    timeout_s: float = float("inf")  #: When a client gives up, from the request's arrival on.

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_tokens", "timeout_s"):
            if not getattr(self, name) > 0:
                problem = f"{getattr(self, name)} is not above 0"
                raise InputError(problem, field=name, fix="give a number above 0")
        tokens = self.max_num_batched_tokens
        requests = self.max_num_seqs
        if tokens < requests:
            problem = f"{tokens} tokens a step for {requests} requests"
            fix = "give at least max_num_seqs: each of them decodes one token a step"
            raise InputError(problem, field="max_num_batched_tokens", fix=fix)
        if self.n_blocks < 1:
            problem = f"a KV cache of {self.kv_tokens} tokens holds no request"
            fix = f"give {2 * self.block_tokens} or more"
            raise InputError(problem, field="kv_tokens", fix=fix)
        most = self.n_blocks * self.block_tokens
        if self.max_model_len is not None and not 1 < self.max_model_len <= most:
            problem = f"a request of {self.max_model_len} tokens and a cache of {most}"
            fix = f"give max_model_len from 2 to {most}, or more KV memory"
            raise InputError(problem, field="max_model_len", fix=fix)

    @property
    def n_blocks(self) -> int:
        """Blocks for requests: one of them all is vLLM's own, its null block."""
        return self.kv_tokens // self.block_tokens - 1

    @property
    def longest(self) -> int:
        """Tokens of the longest request that is not refused."""
        return self.max_model_len or self.n_blocks * self.block_tokens


@dataclass(frozen=True)
class StepLaw:
    """Time of one engine step. With P prompt tokens, D decoding sequences and C tokens of context:

        t = (host_ms³ + device³)^⅓
        device = floor_ms + prompt_step_ms [P > 0] + weights(D + P) + prefill
                 + sequence_ms D + kv_token_ms C
        weights(n) = dense_ms + expert_ms (1 − (1 − expert_share)^(n^touch))
        prefill = prefill_token_ms P + prefill_pair_ms pairs

    C counts the tokens that all decoding sequences read, the newest of each included. A pair is a
    prompt token and a token that it looks back on, itself included.

    Fields may be arrays, of many laws at once, in fits; the simulator takes one law at a time.
    """

    floor_ms: float
    dense_ms: float
    sequence_ms: float
    kv_token_ms: float
    prefill_token_ms: float
    prefill_pair_ms: float = 0.0
    prompt_step_ms: float = 0.0
    expert_ms: float = 0.0  #: Time to read all experts; 0 for a dense LLM.
    expert_share: float = 0.0  #: Share of the experts that one token uses.
    touch: float = 1.0
    request_ms: float = 0.0
    """What the deployment adds before a request reaches the scheduler; no engine is held by it."""
    host_ms: float = 0.0
    """Time to launch a step's kernels one by one, while the first run; 0 with CUDA graphs."""

    def __post_init__(self) -> None:
        for name, term in vars(self).items():
            # Thousands of laws are drawn: their numbers are compared without NumPy.
            if isinstance(term, float) and 0 <= term < math.inf:
                continue
            value = np.asarray(term, float)
            is_good = (value >= 0) & (value < np.inf)
            if not is_good.all():
                fix = "give a finite number from 0"
                problem = f"{value[~is_good].ravel()[0]} is not a term of a step"
                raise InputError(problem, field=name, fix=fix)
        if np.any(self.expert_share > 1):
            raise InputError("not a share", field="expert_share", fix="give at most 1")
        if np.any(self.floor_ms + self.dense_ms + self.sequence_ms <= 0):
            fix = "give floor_ms, dense_ms or sequence_ms"
            raise InputError("a step takes no time", field="floor_ms", fix=fix)

    def array(self) -> np.ndarray:
        """Return the terms in `NAMES`' order, float64 of shape (12,)."""
        return np.array(astuple(self), float)

    @classmethod
    def of(cls, values: np.ndarray) -> Self:
        """Return the law of `array`'s values."""
        return cls(*values.tolist())

    def weights_ms(self, tokens: Any) -> Any:
        """Return the time to read the weights that a number of tokens touches; takes arrays too."""
        if not np.any(self.expert_ms):
            return self.dense_ms + np.zeros(np.shape(tokens))
        touched = 1 - (1 - self.expert_share) ** (np.maximum(tokens, 1) ** self.touch)
        return self.dense_ms + self.expert_ms * touched

    def step_ms(self, prompt_tokens: Any, sequences: Any, context: Any, pairs: Any) -> Any:
        """Return the time of a step; takes arrays too."""
        prefill = self.prefill_token_ms * prompt_tokens + self.prefill_pair_ms * pairs
        body = self.weights_ms(prompt_tokens + sequences) + prefill
        floor = self.floor_ms + self.prompt_step_ms * np.greater(prompt_tokens, 0)
        device = floor + body + self.sequence_ms * sequences + self.kv_token_ms * context
        return overlapped(self.host_ms, device)


def overlapped(host_ms: Any, device_ms: Any) -> Any:
    """Return the time of a step whose kernels are launched while earlier ones run.

    It is a smooth maximum: neither is ahead of the other all the time.
    """
    if not np.any(host_ms):
        return device_ms
    return (host_ms**OVERLAP + device_ms**OVERLAP) ** (1 / OVERLAP)


NAMES = tuple(field.name for field in fields(StepLaw))
"""The terms of a law, in the order of its arrays."""

PENDING, OK, TIMEOUT, REFUSED, UNSENT = range(5)
STATUS = {OK: "ok", TIMEOUT: "timeout", REFUSED: "refused"}
"""How a request ended."""

BIN_WIDTH = np.log(1.005)
SHORTEST_S = 1e-5
N_BINS = int(np.ceil(np.log(1e9) / BIN_WIDTH))
"""Bins of gaps between tokens, each 0.5% wide, from 10 µs to 10,000 s."""
EDGES_MS = 1e3 * SHORTEST_S * np.exp(np.arange(N_BINS + 1) * BIN_WIDTH)
