"""Mean latencies at a steady load without simulation: the same plan of steps as the simulator's.

Little's law and the step law together say how many requests decode. A new request waits for the
steps under way and shares its own with others: requests at random times wait as in M/G/1, users of
a closed loop as they follow on each other. docs/planning.md derives it. All functions broadcast:
laws, loads and rates may be arrays.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple, Self

import numpy as np

from sextant.simulate.simulation import Scheduler, StepLaw

Values = np.ndarray | float


class MeanLoad(NamedTuple):
    """Requests of one length."""

    input_tokens: Values
    output_tokens: Values  #: At least 2.
    cached_tokens: Values = 0.0  #: Those of the input that the prefix cache holds.
    gap_cv2: Values = 1.0
    """Squared coefficient of variation of the gaps between requests: 1 Poisson, 0 a clock's."""

    @property
    def new_tokens(self) -> np.ndarray:
        """Tokens of a prompt that are computed: at least the last one."""
        return np.maximum(np.asarray(self.input_tokens) - self.cached_tokens, 1.0)

    @property
    def context_tokens(self) -> np.ndarray:
        """Tokens in the cache of a request that decodes, on average."""
        return np.asarray(self.input_tokens) + np.asarray(self.output_tokens) / 2

    @property
    def pairs(self) -> np.ndarray:
        """Pairs of a computed token of the prompt and one that it looks back on."""
        cached = np.asarray(self.cached_tokens)
        return (np.asarray(self.input_tokens) ** 2 - cached**2) / 2

    @property
    def later_tokens(self) -> np.ndarray:
        """Output tokens after the first."""
        return np.asarray(self.output_tokens) - 1


class BatchLimits(NamedTuple):
    """What a server admits, and how the requests of a load test follow on each other."""

    max_num_seqs: Values
    max_num_batched_tokens: Values
    kv_tokens: Values
    is_asynchronous: Values = True
    reserved_share: Values = 0.0
    """Of the output, for which a request has to find memory when it joins."""
    prompts_first: Values = False  #: Whether steps with prompts have no decodes.
    wave: Values = 0.06
    """Closed loop: share of the others' prompts that a prompt waits for, instead of being seen by
    those that decode. By default what the simulator gives where all users start at once and each
    sends ten requests: 1/20 is the first wave, whose users stay together for a while."""
    wait: Values = 1.0
    """Closed loop: wait for the steps under way over that of a request that comes at any time."""
    queue: Values = 1.0
    """Closed loop: wait of users beyond the memory over that of a load that lasts."""
    wait_steps: Values = 0.0
    """Closed loop: steps for which a server gathers prompts, or does not look for new ones."""
    gathering: Values = 0.0
    """Others at which a prompt waits half of these steps; 0: with any."""

    @classmethod
    def of(cls, scheduler: Scheduler) -> Self:
        """Return those of a simulated server."""
        return cls(*(getattr(scheduler, name) for name in cls._fields[:6]))

    def most_decoding(self, load: MeanLoad) -> np.ndarray:
        """Return the sequences that can decode at once: slots, memory, tokens of a step."""
        later = load.later_tokens
        # Those that decode hold half of their answers' memory on average.
        held = np.maximum(self.reserved_share, 0.5) * (later + 1)
        in_memory = self.kv_tokens / (load.input_tokens + held)
        # Steps of decodes alone have room for all.
        mixed = self.max_num_batched_tokens * (later / (later + load.new_tokens))
        in_steps = np.where(self.prompts_first, np.inf, mixed)
        return np.minimum(self.max_num_seqs, in_memory).clip(max=in_steps)


class Means(NamedTuple):
    """Means at a steady load, times in ms; NaN where a rate saturates the server."""

    ttft_ms: np.ndarray
    itl_ms: np.ndarray
    e2e_ms: np.ndarray
    request_rate_rps: np.ndarray
    decoding: np.ndarray  #: Sequences that decode.
    seen: np.ndarray  #: Those that share a step with one that decodes, itself included.
    own_ms: np.ndarray  #: Of the TTFT, what a prompt takes on an idle server.
    waiting_ms: np.ndarray  #: Of the TTFT, until the steps under way have ended.

    def logs(self) -> np.ndarray:
        """Return the logarithms of TTFT, then of ITL, along the last axis."""
        return np.log(np.concatenate([self.ttft_ms, self.itl_ms], axis=-1))


Near = np.ndarray | None
"""Sequences that decode at laws close by, from where a search may start."""


def open_loop(
    law: StepLaw, limits: BatchLimits, load: MeanLoad, request_rate_rps: Values, near: Near = None
) -> Means:
    """Return the means of requests that come at a rate, however long the answers take."""

    def means(decoding: np.ndarray) -> Means:
        # An arriving request sees the others at random times: it counts itself on top of the mean.
        seen = np.maximum(decoding + load.gap_cv2, 1.0)
        step = _step_parts(law, limits, load, seen)
        later, prompt_ms, decode_ms, steps = load.later_tokens, *step
        # decoding = rate (output - 1) itl and itl = decode / (1 - rate prompt).
        rate = decoding / (later * decode_ms + decoding * prompt_ms)
        # Prompts that come while one's own is computed are computed right after it.
        behind_ms = rate * prompt_ms**2 / later
        itl_ms = (decode_ms + behind_ms) / np.maximum(1 - rate * prompt_ms, 1e-9)
        # Steps are longer where a request falls into them: E[s^2] / E[s].
        gathered_ms = itl_ms + rate * prompt_ms**2
        beside = np.maximum(rate * gathered_ms + (load.gap_cv2 - 1) / 2, 0)
        full = np.minimum(rate * steps * (decode_ms + prompt_ms / np.maximum(steps, 1)), 0.999)
        queue_ms = full**2 / (2 * (1 - full)) * (1 + load.gap_cv2) / 2 / np.maximum(rate, 1e-12)
        waiting_ms = gathered_ms / 2 + limits.is_asynchronous * itl_ms + beside * prompt_ms
        waiting_ms = (1 - np.exp(-decoding)) * (waiting_ms + queue_ms)
        own_ms = _alone_ms(law, limits, load, *step)
        ttft_ms = own_ms + waiting_ms
        e2e_ms = ttft_ms + later * itl_ms
        return Means(ttft_ms, itl_ms, e2e_ms, 1e3 * rate, decoding, seen, own_ms, waiting_ms)

    rates, carried = np.asarray(request_rate_rps, float), attrgetter("request_rate_rps")
    return _balance(means, carried, rates, limits.most_decoding(load), near)


_ROUNDS = 5
"""Of the search for the sequences that decode: each leaves a few percent of the error."""
_SHARPNESS = 6.0
"""How sharply the memory bounds the sequences that decode: requests differ in length."""
_CROWDING = 1.5
"""Exponent of the others, by which a prompt waits longer for a step that computes it."""


def closed_loop(law: StepLaw, limits: BatchLimits, load: MeanLoad, users: Values) -> Means:
    """Return the means of users who send a request when the last is answered.

    Of a cycle of all users each prompt is computed once: those that decode see it, or a prompt
    waits for it. Users whom the memory does not hold queue.
    """
    n = np.asarray(users, float)
    others, later = 1 - 1 / n, load.later_tokens
    most = np.maximum(limits.most_decoding(load), 1.0)
    decoding = _lesser(n, most)
    for _ in range(_ROUNDS):
        seen = 1 + decoding * others
        step = _step_parts(law, limits, load, seen)
        prompt_ms, decode_ms, _ = step
        itl_ms = decode_ms + (1 - limits.wave) * decoding * others * prompt_ms / later
        own_ms = _alone_ms(law, limits, load, *step)
        # Users do not come at any time, but when steps end.
        crowd = np.maximum(decoding * others, 1e-9) ** _CROWDING
        gathered = limits.wait_steps * (crowd / (crowd + limits.gathering**_CROWDING))
        waited = limits.wait * (0.5 + limits.is_asynchronous) + gathered
        waiting_ms = (n > 1) * waited * itl_ms
        wave_ms = limits.wave * decoding * others * _backlog_ms(law, limits, load, seen)
        ttft_ms = own_ms + waiting_ms + wave_ms
        answer_ms = ttft_ms + later * itl_ms
        decoding = _lesser(n * later * itl_ms / answer_ms, most)
    # All users take n answers' decoding over those at once; what is beyond an answer is the queue.
    queue_ms = np.maximum(n * later * itl_ms / decoding - answer_ms, 0) * limits.queue
    ttft_ms, e2e_ms = ttft_ms + queue_ms, answer_ms + queue_ms
    rate_rps = 1e3 * n / e2e_ms
    return Means(ttft_ms, itl_ms, e2e_ms, rate_rps, decoding, seen, own_ms, waiting_ms)


def _lesser(values: np.ndarray, most: np.ndarray) -> np.ndarray:
    """Return a smooth minimum."""
    return values * (1 + (values / most) ** _SHARPNESS) ** (-1 / _SHARPNESS)


def saturation_rps(law: StepLaw, limits: BatchLimits, load: MeanLoad) -> np.ndarray:
    """Return the request rate beyond which the queue grows without end."""
    most = limits.most_decoding(load)
    prompt_ms, decode_ms, _ = _step_parts(law, limits, load, most)
    return 1e3 * most / (load.later_tokens * decode_ms + most * prompt_ms)


def _step_parts(
    law: StepLaw, limits: BatchLimits, load: MeanLoad, decoding: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ms that a prompt adds to its steps, ms of a step without prompts, and those steps.

    They are a fraction where several prompts fit into one.
    """
    new = load.new_tokens
    steps = new / np.maximum(np.asarray(limits.max_num_batched_tokens) - decoding, 1.0)
    n_chunks = np.maximum(steps, 1.0)
    beside = _beside(limits, decoding)
    decode_ms = law.step_ms(0, decoding, decoding * load.context_tokens, 0)
    chunk_ms = law.step_ms(
        new / n_chunks, beside, beside * load.context_tokens, load.pairs / n_chunks
    )
    return n_chunks * (chunk_ms - np.where(limits.prompts_first, 0.0, decode_ms)), decode_ms, steps


def _beside(limits: BatchLimits, decoding: np.ndarray) -> np.ndarray:
    """Return the sequences that decode in a step with prompts."""
    return np.where(limits.prompts_first, 0.0, decoding)


def _backlog_ms(
    law: StepLaw, limits: BatchLimits, load: MeanLoad, decoding: np.ndarray
) -> np.ndarray:
    """Return what each prompt takes where so many wait that the steps are full of them."""
    beside = _beside(limits, decoding)
    budget = np.maximum(np.asarray(limits.max_num_batched_tokens) - beside, 1.0)
    steps = load.new_tokens / budget
    return steps * law.step_ms(budget, beside, beside * load.context_tokens, load.pairs / steps)


def _alone_ms(
    law: StepLaw,
    limits: BatchLimits,
    load: MeanLoad,
    prompt_ms: np.ndarray,
    decode_ms: np.ndarray,
    steps: np.ndarray,
) -> np.ndarray:
    """Return what a prompt takes, with the steps that it is computed in, from `_step_parts`."""
    of_others_ms = decode_ms - law.sequence_ms - law.kv_token_ms * load.context_tokens
    beside_ms = np.where(limits.prompts_first, 0.0, np.maximum(steps, 1) * of_others_ms)
    return law.request_ms + beside_ms + prompt_ms


_SECANTS, _ROOT_CLOSE = 40, 1e-12


def _balance(
    means: Callable[[np.ndarray], Means],
    load_of: Callable[[Means], np.ndarray],
    load: np.ndarray,
    most: np.ndarray,
    near: Near,
) -> Means:
    """Return the means whose load, which rises with the sequences that decode, is this one.

    NaN where `most` sequences carry less. By secants, halving the interval where one leaves it.
    """
    found = means(np.asarray(most, float))
    over = load_of(found) - load
    is_open = is_stable = over > 0
    low, high = np.zeros(over.shape), np.broadcast_to(np.asarray(most, float), over.shape)
    before, over_before, at = low, -load, high
    if near is not None:
        at = np.where(np.isfinite(near) & is_stable, near, high)
        found = means(at)
        over = load_of(found) - load
    for _ in range(_SECANTS):
        low, high = np.where(over > 0, low, at), np.where(over > 0, at, high)
        with np.errstate(invalid="ignore", divide="ignore"):
            after = at - over * (at - before) / (over - over_before)
        is_inside = (low <= after) & (after <= high)
        after = np.where(is_inside, after, (low + high) / 2)
        is_open = is_open & (np.abs(after - at) > _ROOT_CLOSE * most)
        if not is_open.any():
            break
        before, over_before, at = at, over, np.where(is_open, after, at)
        found = means(at)
        over = load_of(found) - load
    return Means(*(np.where(is_stable, value, np.nan) for value in found))
