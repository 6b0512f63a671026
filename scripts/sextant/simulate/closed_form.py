"""Mean latencies at a steady load without simulation, and the laws that give those that are known.

Little's law and the step law together say how many requests decode; a new request waits for the
steps under way and shares its own with others, as in M/G/1. docs/planning.md derives it. All
functions broadcast: laws, loads and rates may be arrays. `match` scales laws by Gauss-Newton on
logarithms, for any number at once, with normal priors on the scales.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Self

import numpy as np

from sextant.simulate.inputs import NAMES, Scheduler, StepLaw

Values = np.ndarray | float
_SECANTS, _ROOT_CLOSE = 40, 1e-11


class Load(NamedTuple):
    """Requests of one length."""

    input_tokens: Values
    output_tokens: Values
    """At least 2."""
    cached_tokens: Values = 0.0
    """Those of the input that the prefix cache holds."""
    gap_cv2: Values = 1.0
    """Squared coefficient of variation of the gaps between requests: 1 Poisson, 0 a clock's."""


class Limits(NamedTuple):
    """What a server admits, by vLLM's names."""

    max_num_seqs: Values
    max_num_batched_tokens: Values
    kv_tokens: Values
    is_asynchronous: Values = True

    @classmethod
    def of(cls, scheduler: Scheduler) -> Self:
        """Return those of a simulated server."""
        return cls(*(getattr(scheduler, name) for name in cls._fields))

    def most_decoding(self, load: Load) -> np.ndarray:
        """Return the sequences that can decode at once: slots, memory, tokens of a step."""
        later = np.asarray(load.output_tokens) - 1
        in_memory = np.asarray(self.kv_tokens) / (load.input_tokens + (later + 1) / 2)
        share = later / (later + _new_tokens(load))
        return np.minimum(self.max_num_seqs, in_memory).clip(
            max=self.max_num_batched_tokens * share
        )


class Means(NamedTuple):
    """Mean latencies in ms; NaN where the server is saturated."""

    ttft_ms: np.ndarray
    itl_ms: np.ndarray
    e2e_ms: np.ndarray
    request_rate_rps: np.ndarray
    decoding: np.ndarray
    """Sequences in a step."""

    def where(self, is_stable: np.ndarray) -> "Means":
        """Return these, NaN where the queue grows without end."""
        return Means(*(np.where(is_stable, value, np.nan) for value in self))

    def logs(self) -> np.ndarray:
        """Return the logarithms of TTFT, then of ITL, along the last axis."""
        return np.log(np.concatenate([self.ttft_ms, self.itl_ms], axis=-1))


class _State(NamedTuple):
    """What follows from the mean number of sequences that decode."""

    rate_per_ms: np.ndarray
    """Requests that balance it."""
    means: Means


def step_parts(
    law: StepLaw, limits: Limits, load: Load, decoding: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ms of a step without prompts, ms that a prompt adds to it, and steps of a prompt.

    Steps are a fraction where several prompts fit into one; what a prompt adds is that of all its
    steps.
    """
    new = _new_tokens(load)
    room = np.maximum(np.asarray(limits.max_num_batched_tokens) - decoding, 1.0)
    steps = new / room
    n_chunks = np.maximum(steps, 1.0)
    read = decoding * (load.input_tokens + np.asarray(load.output_tokens) / 2)
    pairs = (np.asarray(load.input_tokens) ** 2 - np.asarray(load.cached_tokens) ** 2) / 2
    decode_ms = law.step_ms(0, decoding, read, 0)
    mixed_ms = law.step_ms(new / n_chunks, decoding, read, pairs / n_chunks)
    return decode_ms, n_chunks * (mixed_ms - decode_ms), steps


def open_loop(law: StepLaw, limits: Limits, load: Load, request_rate_rps: Values) -> Means:
    """Return the means of requests that come at a rate, however long the answers take."""
    rate = np.asarray(request_rate_rps, float) / 1e3

    def state(decoding: np.ndarray) -> _State:
        # An arriving request sees the others at random times: it counts itself on top of the mean.
        seen = np.maximum(decoding + load.gap_cv2, 1.0)
        return _state(law, limits, load, decoding, seen, 1.0, 1 - np.exp(-decoding))

    most = limits.most_decoding(load)
    decoding = _root(lambda each: state(each).rate_per_ms - rate, most)
    return state(decoding).means.where(state(most).rate_per_ms > rate)


def closed_loop(law: StepLaw, limits: Limits, load: Load, users: Values) -> Means:
    """Return the means of users that send a request when the last is answered.

    NaN where not all can decode at once: the simulator covers that case.
    """
    n = np.asarray(users, float)

    def state(decoding: np.ndarray) -> _State:
        others = 1 - 1 / n
        return _state(law, limits, load, decoding, 1 + decoding * others, others, n > 1)

    def surplus(decoding: np.ndarray) -> np.ndarray:
        now = state(decoding)
        return now.rate_per_ms * now.means.e2e_ms - n

    most = limits.most_decoding(load)
    decoding = _root(surplus, np.minimum(most, n))
    return state(decoding).means.where((surplus(most) > 0) | (n <= most))


def saturation_rps(law: StepLaw, limits: Limits, load: Load) -> np.ndarray:
    """Return the request rate beyond which the queue grows without end."""
    most = limits.most_decoding(load)
    decode_ms, prompt_ms, _ = step_parts(law, limits, load, most)
    later = np.asarray(load.output_tokens) - 1
    return 1e3 * most / (later * decode_ms + most * prompt_ms)


def _state(
    law: StepLaw,
    limits: Limits,
    load: Load,
    decoding: np.ndarray,
    seen: np.ndarray,
    others: Values,
    busy: Values,
) -> _State:
    """Return the state in which so many decode, of whom a request sees `seen`, itself included.

    `others` is the share of prompts that are another's, `busy` that of arrivals to a step.
    """
    decode_ms, prompt_ms, steps = step_parts(law, limits, load, seen)
    prompt_ms_of_others = prompt_ms * others
    later = np.asarray(load.output_tokens) - 1
    # decoding = rate (output - 1) itl and itl = decode / (1 - rate prompt).
    rate = decoding / (later * decode_ms + decoding * prompt_ms_of_others)
    # Prompts that come while one's own is computed are computed right after it.
    behind_ms = rate * prompt_ms_of_others * prompt_ms / later
    itl_ms = (decode_ms + behind_ms) / np.maximum(1 - rate * prompt_ms_of_others, 1e-9)
    # Steps are longer where a request falls into them: E[s^2] / E[s].
    gathered_ms = itl_ms + rate * others * prompt_ms**2
    beside = np.maximum(rate * gathered_ms + (load.gap_cv2 - 1) / 2, 0) * others
    context = load.input_tokens + (later + 1) / 2
    of_others_ms = decode_ms - law.sequence_ms - law.kv_token_ms * context
    own_ms = np.maximum(steps, 1) * of_others_ms + prompt_ms
    full = np.minimum(rate * steps * (decode_ms + prompt_ms / np.maximum(steps, 1)), 0.999)
    queue_ms = full**2 / (2 * (1 - full)) * (1 + load.gap_cv2) / 2 / np.maximum(rate, 1e-12)
    waiting_ms = gathered_ms / 2 + limits.is_asynchronous * itl_ms + beside * prompt_ms
    ttft_ms = law.request_ms + own_ms + busy * (waiting_ms + queue_ms * others)
    e2e_ms = ttft_ms + later * itl_ms
    return _State(rate, Means(ttft_ms, itl_ms, e2e_ms, 1e3 * rate, np.asarray(seen)))


def _new_tokens(load: Load) -> np.ndarray:
    """Return the tokens of a prompt that are computed: at least the last one."""
    return np.maximum(np.asarray(load.input_tokens) - load.cached_tokens, 1.0)


def _root(rising: Callable[[np.ndarray], np.ndarray], most: np.ndarray) -> np.ndarray:
    """Return where a rising function of 0 to `most` is 0; `most` if nowhere.

    By the Illinois method: a secant between both ends, the end that stays counting for half.
    """
    most = np.asarray(most, float)
    above = rising(most)
    high = np.broadcast_to(most, above.shape)
    low = np.zeros(above.shape)
    below = rising(low)
    at, is_open, side = high, (above > 0) & (below < 0), np.zeros(above.shape)
    for _ in range(_SECANTS):
        if not is_open.any():
            break
        before = at
        with np.errstate(invalid="ignore", divide="ignore"):
            at = np.where(is_open, high - above * (high - low) / (above - below), at)
        value = rising(at)
        is_above = value > 0
        below = np.where(is_above, np.where(side > 0, below / 2, below), value)
        above = np.where(is_above, value, np.where(side < 0, above / 2, above))
        low, high = np.where(is_above, low, at), np.where(is_above, at, high)
        side = np.where(is_above, 1, -1)
        is_open = is_open & (np.abs(at - before) > _ROOT_CLOSE * most)
    return at


_ITERATIONS = 8
_STEP = 1e-3
_CLOSE = 1e-3
"""A step of the logarithms after which a law is found."""
_LARGEST_MOVE = 1.0
_SHORTER = 5
_SATURATED = 3.0
"""Logarithm by which a latency is too long where the server is saturated."""

Group = tuple[str, ...]


class Matched(NamedTuple):
    """Laws that give what is known, and how sure their scales are."""

    values: np.ndarray
    """Terms of each law, (laws, terms), in the order of `inputs.NAMES`."""
    log_scales: np.ndarray
    """By which each group of terms was scaled, (laws, groups)."""
    covariance: np.ndarray
    """Of the log scales, (laws, groups, groups)."""
    errors: np.ndarray
    """Logarithms of predicted over known latencies, (laws, latencies)."""


def broadcast(values: np.ndarray) -> StepLaw:
    """Return laws of values (laws, terms) as one whose terms are columns, (laws, 1)."""
    return StepLaw(*values.T[:, :, None])


def match(
    start: np.ndarray,
    groups: Sequence[Group],
    prior_sd: Sequence[float],
    predict: Callable[[StepLaw], np.ndarray],
    known: np.ndarray,
    noise: np.ndarray | float,
) -> Matched:
    """Return the most likely laws.

    Args:
        start: laws from which the scales count, shape (laws, terms).
        groups: terms that are scaled together.
        prior_sd: of the logarithm of each group's scale.
        predict: logarithms of the latencies of laws as `broadcast` makes them, (laws, latencies).
        known: logarithms of the latencies, (laws, latencies); NaN where not known.
        noise: standard deviation of each, broadcast against `known`.
    """
    places = [[NAMES.index(name) for name in group] for group in groups]
    precision = 1 / np.asarray(prior_sd) ** 2
    noise = np.broadcast_to(noise, known.shape)

    def scaled(laws: np.ndarray, log_scales: np.ndarray) -> np.ndarray:
        values = start[laws]
        for group, place in enumerate(places):
            values[:, place] *= np.exp(log_scales[:, group, None])
        return values

    def residuals(laws: np.ndarray, log_scales: np.ndarray) -> np.ndarray:
        errors = predict(broadcast(scaled(laws, log_scales))) - known[laws]
        errors = np.where(np.isnan(errors) & ~np.isnan(known[laws]), _SATURATED, errors)
        return np.nan_to_num(errors) / noise[laws]

    laws = np.arange(len(start))
    at, hessians = np.zeros((len(laws), len(groups))), np.empty((len(laws), *[len(groups)] * 2))
    found = residuals(laws, at)
    for _ in range(_ITERATIONS):
        errors_of = partial(residuals, laws)
        jacobian, hessians[laws] = _curvature(errors_of, at[laws], found[laws], precision)
        slope = np.einsum("ljg,lj->lg", jacobian, found[laws]) + precision * at[laws]
        move = -np.linalg.solve(hessians[laws], slope[..., None])[..., 0]
        move = np.clip(move, -_LARGEST_MOVE, _LARGEST_MOVE)
        is_far = np.abs(move).max(axis=1) >= _CLOSE
        laws = laws[_moved(residuals, precision, laws, at, found, move) & is_far]
        if not len(laws):
            break
    values = scaled(np.arange(len(start)), at)
    return Matched(values, at, np.linalg.inv(hessians), found * noise)


def _curvature(
    residuals: Callable[[np.ndarray], np.ndarray],
    at: np.ndarray,
    found: np.ndarray,
    precision: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return derivatives of the residuals, (laws, latencies, groups), and their Hessian."""
    shifts = np.eye(at.shape[1]) * _STEP
    jacobian = np.stack([(residuals(at + shift) - found) / _STEP for shift in shifts], axis=-1)
    return jacobian, np.einsum("ljg,ljh->lgh", jacobian, jacobian) + np.diag(precision)


def _moved(
    residuals: Callable[[np.ndarray, np.ndarray], np.ndarray],
    precision: np.ndarray,
    laws: np.ndarray,
    at: np.ndarray,
    found: np.ndarray,
    move: np.ndarray,
) -> np.ndarray:
    """Move the scales and residuals of laws as far as it costs no more; return which moved.

    That is all the way, half of it, ...
    """

    def cost(scales: np.ndarray, errors: np.ndarray) -> np.ndarray:
        return (errors**2).sum(axis=1) + (precision * scales**2).sum(axis=1)

    is_open = np.ones(len(laws), bool)
    for _ in range(_SHORTER):
        tried = laws[is_open]
        scales = at[tried] + move[is_open]
        errors = residuals(tried, scales)
        is_better = cost(scales, errors) <= cost(at[tried], found[tried])
        at[tried[is_better]], found[tried[is_better]] = scales[is_better], errors[is_better]
        is_open[is_open] = ~is_better
        if not is_open.any():
            break
        move = move / 2
    return ~is_open
