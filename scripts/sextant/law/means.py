"""Mean latencies at a steady load without simulation, and the laws that give measured means.

`open_loop` and `closed_loop` plan steps as the simulator does. Little's law and the step law
together say how many requests decode. A new request waits for the steps under way and shares its
own with others: requests at random times wait as in M/G/1, users of a closed loop as they follow on
each other. docs/planning.md derives it. All functions broadcast: laws, loads and rates may be
arrays.

`match_means` is the inverse: it scales step laws until their means are those that were measured, by
Gauss-Newton on logarithms, for any number of laws at once, with normal priors on the scales.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import numpy as np

from sextant.simulate.server import NAMES, Scheduler, StepLaw

Values = np.ndarray | float


ALIKE_SHARPNESS = 20.0
"""How sharply the memory bounds the sequences that decode where requests are alike."""


class MeanLoad(NamedTuple):
    """Requests of one length."""

    input_tokens: Values
    output_tokens: Values  #: At least 2.
    cached_tokens: Values = 0.0  #: Input tokens that the prefix cache holds.
    gap_cv2: Values = 1.0
    """Squared coefficient of variation of the gaps between requests: 1 Poisson, 0 equal gaps."""

    @property
    def new_tokens(self) -> np.ndarray:
        """Computed tokens of a prompt: at least the last one."""
        return np.maximum(np.asarray(self.input_tokens) - self.cached_tokens, 1.0)

    @property
    def context_tokens(self) -> np.ndarray:
        """Mean tokens in the KV cache of a decoding request."""
        return np.asarray(self.input_tokens) + np.asarray(self.output_tokens) / 2

    @property
    def pairs(self) -> np.ndarray:
        """Pairs of a computed prompt token and a token that it looks back on."""
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
    """Share of the output for which a request has to find memory when it joins."""
    prompts_first: Values = False  #: Whether steps with prompts have no decodes.
    wave: Values = 0.06
    """Closed loop: share of the others' prompts that a new prompt waits for; the rest is computed
    while other requests decode. The default is the simulator's where all users start at once and
    each sends ten requests: 1/20 is the first wave, whose users stay together for a while."""
    wait: Values = 1.0
    """Closed loop: wait for the steps under way, as a multiple of the wait at random arrivals."""
    sharpness: Values = ALIKE_SHARPNESS
    """Closed loop: how sharply the memory bounds the sequences that decode. The less requests
    differ in length, the less often some of few users wait."""
    queue: Values = 1.0
    """Closed loop: wait of users beyond the memory, as a multiple of the wait at a steady load."""
    wait_steps: Values = 0.0
    """Closed loop: steps for which a server gathers prompts, or does not look for new ones."""
    gathering: Values = 0.0
    """Number of other requests at which a prompt waits half of `wait_steps`; 0: any number."""

    @classmethod
    def of(cls, scheduler: Scheduler) -> Self:
        """Return the limits of a simulated server."""
        return cls(*(getattr(scheduler, name) for name in cls._fields[:6]))

    def most_decoding(self, load: MeanLoad) -> np.ndarray:
        """Return the sequences that can decode at once: slots, memory, tokens of a step."""
        later = load.later_tokens
        # A decoding sequence holds half of its answer's memory on average.
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
    batch: np.ndarray  #: Sequences in a step of one that decodes, itself included.
    prompt_ms: np.ndarray  #: Part of the TTFT: the prompt on an idle server.
    waiting_ms: np.ndarray  #: Part of the TTFT: until the steps under way have ended.

    def logs(self) -> np.ndarray:
        """Return the logarithms of TTFT, then of ITL, along the last axis."""
        return np.log(np.concatenate([self.ttft_ms, self.itl_ms], axis=-1))


Near = np.ndarray | None
"""Sequences that decode at laws close by, from where a search may start."""


_SECANTS = 40
_ROOT_CLOSE = 1e-12


def open_loop(
    law: StepLaw, limits: BatchLimits, load: MeanLoad, request_rate_rps: Values, near: Near = None
) -> Means:
    """Return the means of requests that come at a rate, however long the answers take.

    They are NaN at a rate that saturates the server. The rate rises with the sequences that decode.
    Secants find their number; the interval is halved where a secant leaves it.
    """
    rates_rps = np.asarray(request_rate_rps, float)
    most = np.asarray(limits.most_decoding(load), float)
    means = open_loop_at(law, limits, load, most)
    over = means.request_rate_rps - rates_rps
    is_stable = over > 0
    is_open = is_stable
    low = np.zeros(over.shape)
    high = np.broadcast_to(most, over.shape)
    before = low
    over_before = -rates_rps
    at = high
    if near is not None:
        at = np.where(np.isfinite(near) & is_stable, near, high)
        means = open_loop_at(law, limits, load, at)
        over = means.request_rate_rps - rates_rps

    for _ in range(_SECANTS):
        is_over = over > 0
        low = np.where(is_over, low, at)
        high = np.where(is_over, at, high)
        with np.errstate(invalid="ignore", divide="ignore"):
            after = at - over * (at - before) / (over - over_before)
        is_inside = (low <= after) & (after <= high)
        after = np.where(is_inside, after, (low + high) / 2)
        is_open = is_open & (np.abs(after - at) > _ROOT_CLOSE * most)
        if not is_open.any():
            break
        before = at
        over_before = over
        at = np.where(is_open, after, at)
        means = open_loop_at(law, limits, load, at)
        over = means.request_rate_rps - rates_rps
    return Means(*(np.where(is_stable, value, np.nan) for value in means))


def open_loop_at(law: StepLaw, limits: BatchLimits, load: MeanLoad, decoding: np.ndarray) -> Means:
    """Return the means of the open loop in which this many sequences decode on average.

    The rate of the requests is among them, so no root has to be found.
    """
    # An arriving request sees the others at random times: it counts itself on top of the mean.
    batch = np.maximum(decoding + load.gap_cv2, 1.0)
    parts = step_parts(law, limits, load, batch)
    prompt_ms = parts.prompt_ms
    decode_ms = parts.decode_ms
    later = load.later_tokens

    # decoding = rate (output - 1) itl and itl = decode / (1 - rate prompt).
    rate = decoding / (later * decode_ms + decoding * prompt_ms)
    # Prompts that come while one's own is computed are computed right after it.
    behind_ms = rate * prompt_ms**2 / later
    itl_ms = (decode_ms + behind_ms) / np.maximum(1 - rate * prompt_ms, 1e-9)

    # Steps are longer where a request falls into them: E[s^2] / E[s].
    gathered_ms = itl_ms + rate * prompt_ms**2
    beside = np.maximum(rate * gathered_ms + (load.gap_cv2 - 1) / 2, 0)
    step_ms = decode_ms + prompt_ms / np.maximum(parts.n_steps, 1)
    full = np.minimum(rate * parts.n_steps * step_ms, 0.999)
    queue_ms = full**2 / (2 * (1 - full)) * (1 + load.gap_cv2) / 2 / np.maximum(rate, 1e-12)
    under_way_ms = gathered_ms / 2 + limits.is_asynchronous * itl_ms + beside * prompt_ms
    waiting_ms = (1 - np.exp(-decoding)) * (under_way_ms + queue_ms)

    idle_ms = _alone_ms(law, limits, load, parts)
    ttft_ms = idle_ms + waiting_ms
    e2e_ms = ttft_ms + later * itl_ms
    return Means(ttft_ms, itl_ms, e2e_ms, 1e3 * rate, decoding, batch, idle_ms, waiting_ms)


_ROUNDS = 5
"""Rounds of the search for the sequences that decode: each leaves a few percent of the error."""
_CROWDING = 1.5
"""Exponent of the number of others: the more there are, the longer a server gathers prompts."""


def closed_loop(law: StepLaw, limits: BatchLimits, load: MeanLoad, users: Values) -> Means:
    """Return the means of users who send a request when the last is answered.

    In a cycle of all users each prompt is computed once: decoding requests see it in their gaps, or
    a new prompt waits for it. Users queue where the memory does not hold all of them.
    """
    n = np.asarray(users, float)
    others = 1 - 1 / n
    later = load.later_tokens
    most = np.maximum(limits.most_decoding(load), 1.0)
    decoding = lesser(n, most, limits.sharpness)
    for _ in range(_ROUNDS):
        batch = 1 + decoding * others
        parts = step_parts(law, limits, load, batch)
        prompt_ms = parts.prompt_ms
        itl_ms = parts.decode_ms + (1 - limits.wave) * decoding * others * prompt_ms / later
        idle_ms = _alone_ms(law, limits, load, parts)

        # Users do not come at random times, but when steps end.
        crowd = np.maximum(decoding * others, 1e-9) ** _CROWDING
        gathered = limits.wait_steps * (crowd / (crowd + limits.gathering**_CROWDING))
        waited_steps = limits.wait * (0.5 + limits.is_asynchronous) + gathered
        waiting_ms = (n > 1) * waited_steps * itl_ms

        # A prompt takes this time while steps are full of waiting prompts.
        budget = np.maximum(np.asarray(limits.max_num_batched_tokens) - parts.beside, 1.0)
        n_steps = load.new_tokens / budget
        beside_tokens = parts.beside * load.context_tokens
        full_ms = law.step_ms(budget, parts.beside, beside_tokens, load.pairs / n_steps)
        backlog_ms = n_steps * full_ms
        wave_ms = limits.wave * decoding * others * backlog_ms

        ttft_ms = idle_ms + waiting_ms + wave_ms
        answer_ms = ttft_ms + later * itl_ms
        decoding = lesser(n * later * itl_ms / answer_ms, most, limits.sharpness)

    # A user's cycle takes n answers' decoding, divided by the number that decode at once. What
    # exceeds an answer is the queue.
    queue_ms = np.maximum(n * later * itl_ms / decoding - answer_ms, 0) * limits.queue
    ttft_ms = ttft_ms + queue_ms
    e2e_ms = answer_ms + queue_ms
    rate_rps = 1e3 * n / e2e_ms
    return Means(ttft_ms, itl_ms, e2e_ms, rate_rps, decoding, batch, idle_ms, waiting_ms)


def lesser(values: Values, most: Values, sharpness: Values) -> np.ndarray:
    """Return a smooth minimum, the closer to the lesser the sharper."""
    over = sharpness * np.log(values / most)
    return np.asarray(values * np.exp(-np.logaddexp(0.0, over) / sharpness))


def saturation_rps(law: StepLaw, limits: BatchLimits, load: MeanLoad) -> np.ndarray:
    """Return the request rate beyond which the queue grows without end."""
    most = limits.most_decoding(load)
    parts = step_parts(law, limits, load, most)
    return 1e3 * most / (load.later_tokens * parts.decode_ms + most * parts.prompt_ms)


class StepParts(NamedTuple):
    """What a prompt adds to the steps of others."""

    prompt_ms: np.ndarray  #: Time that a prompt adds to its steps.
    decode_ms: np.ndarray  #: Time of a step without prompts.
    n_steps: np.ndarray  #: Steps of a prompt; below 1 where several prompts fit into one step.
    beside: np.ndarray  #: Sequences that decode in a step with prompts.


def step_parts(
    law: StepLaw, limits: BatchLimits, load: MeanLoad, decoding: np.ndarray
) -> StepParts:
    """Return the parts of steps in which this many sequences decode."""
    new = load.new_tokens
    n_steps = new / np.maximum(np.asarray(limits.max_num_batched_tokens) - decoding, 1.0)
    n_chunks = np.maximum(n_steps, 1.0)
    beside = np.where(limits.prompts_first, 0.0, decoding)
    decode_ms = law.step_ms(0, decoding, decoding * load.context_tokens, 0)
    chunk_ms = law.step_ms(
        new / n_chunks, beside, beside * load.context_tokens, load.pairs / n_chunks
    )
    prompt_ms = n_chunks * (chunk_ms - np.where(limits.prompts_first, 0.0, decode_ms))
    return StepParts(prompt_ms, decode_ms, n_steps, beside)


def _alone_ms(law: StepLaw, limits: BatchLimits, load: MeanLoad, parts: StepParts) -> np.ndarray:
    """Return the time of a prompt that does not wait, with the steps that compute it."""
    others_ms = parts.decode_ms - law.sequence_ms - law.kv_token_ms * load.context_tokens
    steps_ms = np.maximum(parts.n_steps, 1) * others_ms
    beside_ms = np.where(limits.prompts_first, 0.0, steps_ms)
    return law.request_ms + beside_ms + parts.prompt_ms


TermGroup = tuple[str, ...]
"""Terms of a step law that are scaled together."""
STEP_TERMS: TermGroup = tuple(n for n in NAMES if n.endswith("_ms") and n != "request_ms")
"""The terms of a step's time, without what a request takes beside the engine."""

_ITERATIONS = 8
_STEP = 1e-3
"""Step of the logarithms in finite differences."""
_CLOSE = 1e-3
"""A law is found when a step changes no logarithm by more."""
_LARGEST_MOVE = 1.0
_HALVINGS = 5
_SATURATED = 3.0
"""Logarithm by which a latency is too long where the server is saturated."""


class MatchedLaws(NamedTuple):
    """Laws that give the measured means, and how sure their scales are."""

    values: np.ndarray  #: Terms of each law, (laws, terms), in the order of `NAMES`.
    log_scales: np.ndarray  #: Logarithm of the scale of each group of terms, (laws, groups).
    covariance: np.ndarray  #: Of the log scales, (laws, groups, groups).

    def draw_log_scales(
        self, prior_sd: Sequence[float], misfit: float, n_draws: int, seed: int
    ) -> np.ndarray:
        """Return draws of the first law's log scales, shape (draws, groups).

        Where no law fits, measurements are noisier by `misfit`, a factor of the variance. The prior
        is not: a term that no measurement determines keeps its spread, whatever the misfit.
        """
        prior = np.diag(1 / np.square(prior_sd))
        data = np.linalg.inv(self.covariance[0]) - prior
        covariance = np.linalg.inv(data / misfit + prior)
        random = np.random.default_rng(seed)
        return random.multivariate_normal(self.log_scales[0], covariance, n_draws, method="eigh")


def broadcast_laws(values: np.ndarray) -> StepLaw:
    """Return laws, (laws, terms), as one whose terms are columns, (laws, 1)."""
    return StepLaw(*values.T[:, :, None])


def scaled_laws(
    laws: np.ndarray, log_scales: np.ndarray, groups: Sequence[TermGroup]
) -> np.ndarray:
    """Return laws, (laws, terms), of which groups of terms are scaled, (laws, groups).

    A term of several groups takes the scales of all of them.
    """
    members = np.array([[float(name in group) for name in NAMES] for group in groups])
    return laws * np.exp(log_scales @ members)


class _Match(NamedTuple):
    """Laws, what their means should be, and how likely their scales are."""

    start: np.ndarray
    groups: Sequence[TermGroup]
    precision: np.ndarray  #: Of the prior of each group's log scale, (groups,).
    predict: Callable[[StepLaw, np.ndarray, Near], Means]
    measured: np.ndarray
    noise: np.ndarray

    def scaled(self, laws: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """Return the terms of some laws, by their indices, at their log scales."""
        return scaled_laws(self.start[laws], scales, self.groups)

    def residuals(
        self, laws: np.ndarray, scales: np.ndarray, near: Near = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the errors over their noise, and the sequences that decode."""
        means = self.predict(broadcast_laws(self.scaled(laws, scales)), laws, near)
        measured = self.measured[laws]
        errors = means.logs() - measured
        errors = np.where(np.isnan(errors) & ~np.isnan(measured), _SATURATED, errors)
        return np.nan_to_num(errors) / self.noise[laws], means.decoding

    def cost(self, scales: np.ndarray, residuals: np.ndarray) -> np.ndarray:
        """Return the negative logarithm of each law's posterior, times 2."""
        return (residuals**2).sum(axis=1) + (self.precision * scales**2).sum(axis=1)


def match_means(
    start: np.ndarray,
    groups: Sequence[TermGroup],
    prior_sd: Sequence[float],
    predict: Callable[[StepLaw, np.ndarray, Near], Means],
    measured: np.ndarray,
    noise: np.ndarray | float,
    first_log_scales: np.ndarray | float = 0.0,
) -> MatchedLaws:
    """Scale laws to measured means; return the most likely laws.

    Args:
        start: laws at scales of 1, shape (laws, terms).
        groups: terms that are scaled together.
        prior_sd: of the logarithm of each group's scale.
        predict: returns the means, (laws, loads), of laws as `broadcast_laws` makes them, of their
            indices in `start`, and of the sequences that decode at laws close by.
        measured: logarithms of TTFT, then of ITL, (laws, 2 · loads); NaN: not measured.
        noise: their standard deviation, broadcast.
        first_log_scales: where to start, (laws, groups): a law that a rate saturates has no slope.
    """
    precision = 1 / np.asarray(prior_sd) ** 2
    noise = np.broadcast_to(noise, measured.shape)
    match = _Match(start, groups, precision, predict, measured, noise)

    every = np.arange(len(start))
    scales = np.zeros((len(every), len(groups))) + first_log_scales
    hessians = np.empty((len(every), len(groups), len(groups)))
    residuals, decoding = match.residuals(every, scales)
    laws = every
    for _ in range(_ITERATIONS):
        shifts = _STEP * np.eye(len(groups))
        ahead = [match.residuals(laws, scales[laws] + it, decoding[laws])[0] for it in shifts]
        jacobian = (np.stack(ahead, axis=-1) - residuals[laws, :, None]) / _STEP
        hessians[laws] = np.einsum("ljg,ljh->lgh", jacobian, jacobian) + np.diag(precision)
        slope = np.einsum("ljg,lj->lg", jacobian, residuals[laws]) + precision * scales[laws]
        move = -np.linalg.solve(hessians[laws], slope[..., None])[..., 0]
        move = np.clip(move, -_LARGEST_MOVE, _LARGEST_MOVE)
        is_far = np.abs(move).max(axis=1) >= _CLOSE

        # All the way, or half of it, a quarter …: the first that costs no more.
        stuck = laws
        for _ in range(_HALVINGS):
            tried = scales[stuck] + move
            errors, their_decoding = match.residuals(stuck, tried, decoding[stuck])
            is_better = match.cost(tried, errors) <= match.cost(scales[stuck], residuals[stuck])
            better = stuck[is_better]
            scales[better] = tried[is_better]
            residuals[better] = errors[is_better]
            decoding[better] = their_decoding[is_better]
            stuck = stuck[~is_better]
            move = move[~is_better] / 2
            if not len(stuck):
                break
        laws = np.setdiff1d(laws[is_far], stuck)
        if not len(laws):
            break
    return MatchedLaws(match.scaled(every, scales), scales, np.linalg.inv(hessians))
