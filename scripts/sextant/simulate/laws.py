"""Mean latencies at a steady load without simulation, and step laws from the predictor's fit.

Little's law and the step law together say how many requests decode; a new request waits for the
steps under way and shares its own with others, as in M/G/1. docs/planning.md derives it. All
functions broadcast: laws, loads and rates may be arrays. `match` scales laws by Gauss-Newton on
logarithms, for any number at once, with normal priors on the scales.

Of configurations that nobody need have measured the law of chunked prefill says what a step takes
(`chunked.step_parts`); what its offsets and the trees say beyond it scales the parts, until the
closed form at one to many users gives the predictor's own latencies (`step_laws`).
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple, Self

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from sextant.base.errors import InputError
from sextant.predict.roofline import Roofline, chunked
from sextant.predict.roofline.posterior import columns_of
from sextant.simulate import NAMES, Scheduler, StepLaw

Values = np.ndarray | float


class Load(NamedTuple):
    """Requests of one length."""

    input_tokens: Values
    output_tokens: Values
    """At least 2."""
    cached_tokens: Values = 0.0
    """Those of the input that the prefix cache holds."""
    gap_cv2: Values = 1.0
    """Squared coefficient of variation of the gaps between requests: 1 Poisson, 0 a clock's."""

    @property
    def new_tokens(self) -> np.ndarray:
        """Tokens of a prompt that are computed: at least the last one."""
        return np.maximum(np.asarray(self.input_tokens) - self.cached_tokens, 1.0)

    @property
    def later_tokens(self) -> np.ndarray:
        """Output tokens after the first."""
        return np.asarray(self.output_tokens) - 1


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
        later = load.later_tokens
        in_memory = np.asarray(self.kv_tokens) / (load.input_tokens + (later + 1) / 2)
        in_steps = self.max_num_batched_tokens * (later / (later + load.new_tokens))
        return np.minimum(self.max_num_seqs, in_memory).clip(max=in_steps)


class Means(NamedTuple):
    """Means at a steady load, times in ms; NaN where the server is saturated."""

    ttft_ms: np.ndarray
    itl_ms: np.ndarray
    e2e_ms: np.ndarray
    request_rate_rps: np.ndarray
    decoding: np.ndarray
    """Sequences that decode."""
    prompt_ms: np.ndarray
    """What a prompt adds to its steps."""

    def logs(self) -> np.ndarray:
        """Return the logarithms of TTFT, then of ITL, along the last axis."""
        return np.log(np.concatenate([self.ttft_ms, self.itl_ms], axis=-1))


Near = np.ndarray | None
"""Sequences that decode at laws close by, from where a search may start."""


def open_loop(
    law: StepLaw, limits: Limits, load: Load, request_rate_rps: Values, near: Near = None
) -> Means:
    """Return the means of requests that come at a rate, however long the answers take."""

    def means(decoding: np.ndarray) -> Means:
        # An arriving request sees the others at random times: it counts itself on top of the mean.
        seen = np.maximum(decoding + load.gap_cv2, 1.0)
        return _means(law, limits, load, decoding, seen, 1.0, 1 - np.exp(-decoding))

    rates, carried = np.asarray(request_rate_rps, float), attrgetter("request_rate_rps")
    return _balance(means, carried, rates, limits.most_decoding(load), near)


def closed_loop(
    law: StepLaw, limits: Limits, load: Load, users: Values, near: Near = None
) -> Means:
    """Return the means of users that send a request when the last is answered.

    NaN where not all can decode at once: the simulator covers that case.
    """
    n = np.asarray(users, float)
    others = 1 - 1 / n

    def means(decoding: np.ndarray) -> Means:
        return _means(law, limits, load, decoding, 1 + decoding * others, others, n > 1)

    def in_flight(found: Means) -> np.ndarray:
        return found.request_rate_rps / 1e3 * found.e2e_ms

    return _balance(means, in_flight, n, np.minimum(limits.most_decoding(load), n), near)


def saturation_rps(law: StepLaw, limits: Limits, load: Load) -> np.ndarray:
    """Return the request rate beyond which the queue grows without end."""
    most = limits.most_decoding(load)
    decode_ms, prompt_ms, _ = _step_parts(law, limits, load, most)
    return 1e3 * most / (load.later_tokens * decode_ms + most * prompt_ms)


def _step_parts(
    law: StepLaw, limits: Limits, load: Load, decoding: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ms of a step without prompts, ms that a prompt adds to its steps, and those steps.

    They are a fraction where several prompts fit into one.
    """
    new = load.new_tokens
    steps = new / np.maximum(np.asarray(limits.max_num_batched_tokens) - decoding, 1.0)
    n_chunks = np.maximum(steps, 1.0)
    read = decoding * (load.input_tokens + np.asarray(load.output_tokens) / 2)
    pairs = (np.asarray(load.input_tokens) ** 2 - np.asarray(load.cached_tokens) ** 2) / 2
    decode_ms = law.step_ms(0, decoding, read, 0)
    mixed_ms = law.step_ms(new / n_chunks, decoding, read, pairs / n_chunks)
    return decode_ms, n_chunks * (mixed_ms - decode_ms), steps


def _means(
    law: StepLaw,
    limits: Limits,
    load: Load,
    decoding: np.ndarray,
    seen: np.ndarray,
    others: Values,
    busy: Values,
) -> Means:
    """Return the means at which so many decode, of whom a request sees `seen`, itself included.

    `others` is the share of prompts that are another's, `busy` that of arrivals to a step.
    """
    decode_ms, prompt_ms, steps = _step_parts(law, limits, load, seen)
    prompt_ms_of_others = prompt_ms * others
    later = load.later_tokens
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
    return Means(ttft_ms, itl_ms, ttft_ms + later * itl_ms, 1e3 * rate, decoding, prompt_ms)


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
    """Terms of each law, (laws, terms), in the order of `NAMES`."""
    log_scales: np.ndarray
    """By which each group of terms was scaled, (laws, groups)."""
    covariance: np.ndarray
    """Of the log scales, (laws, groups, groups)."""


def broadcast(values: np.ndarray) -> StepLaw:
    """Return laws, (laws, terms), as one whose terms are columns, (laws, 1)."""
    return StepLaw(*values.T[:, :, None])


def match(
    start: np.ndarray,
    groups: Sequence[Group],
    prior_sd: Sequence[float],
    predict: Callable[[StepLaw, Near], Means],
    known: np.ndarray,
    noise: np.ndarray | float,
) -> Matched:
    """Return the most likely laws.

    Args:
        start: laws from which the scales count, shape (laws, terms).
        groups: terms that are scaled together.
        prior_sd: of the logarithm of each group's scale.
        predict: means of laws as `broadcast` makes them, each (laws, loads).
        known: logarithms of TTFT, then of ITL, (laws, 2 · loads); NaN where not known.
        noise: their standard deviation, broadcast.
    """
    members = np.array([[float(name in group) for name in NAMES] for group in groups])
    precision = 1 / np.asarray(prior_sd) ** 2
    noise = np.broadcast_to(noise, known.shape)

    def scaled(laws: np.ndarray, scales: np.ndarray) -> np.ndarray:
        return start[laws] * np.exp(scales @ members)

    def residuals(
        laws: np.ndarray, scales: np.ndarray, near: Near = None
    ) -> tuple[np.ndarray, np.ndarray]:
        means = predict(broadcast(scaled(laws, scales)), near)
        errors = means.logs() - known[laws]
        errors = np.where(np.isnan(errors) & ~np.isnan(known[laws]), _SATURATED, errors)
        return np.nan_to_num(errors) / noise[laws], means.decoding

    def cost(scales: np.ndarray, errors: np.ndarray) -> np.ndarray:
        return (errors**2).sum(axis=1) + (precision * scales**2).sum(axis=1)

    every = laws = np.arange(len(start))
    at, hessians = np.zeros((len(laws), len(groups))), np.empty((len(laws), *[len(groups)] * 2))
    found, decoding = residuals(laws, at)
    for _ in range(_ITERATIONS):
        shifts = _STEP * np.eye(len(groups))
        ahead = [residuals(laws, at[laws] + shift, decoding[laws])[0] for shift in shifts]
        jacobian = (np.stack(ahead, axis=-1) - found[laws, :, None]) / _STEP
        hessians[laws] = np.einsum("ljg,ljh->lgh", jacobian, jacobian) + np.diag(precision)
        slope = np.einsum("ljg,lj->lg", jacobian, found[laws]) + precision * at[laws]
        move = -np.linalg.solve(hessians[laws], slope[..., None])[..., 0]
        move = np.clip(move, -_LARGEST_MOVE, _LARGEST_MOVE)
        far = laws[np.abs(move).max(axis=1) >= _CLOSE]
        # All the way, or half of it, a quarter ...: the first that costs no more.
        for _ in range(_SHORTER):
            scales = at[laws] + move
            errors, there = residuals(laws, scales, decoding[laws])
            is_better = cost(scales, errors) <= cost(at[laws], found[laws])
            better = laws[is_better]
            at[better], found[better] = scales[is_better], errors[is_better]
            decoding[better] = there[is_better]
            laws, move = laws[~is_better], move[~is_better] / 2
            if not len(laws):
                break
        laws = np.setdiff1d(far, laws)
        if not len(laws):
            break
    return Matched(scaled(every, at), at, np.linalg.inv(hessians))


_USERS = np.array([1.0, 2, 4, 8, 16, 32, 64, 128])
_GROUPS: tuple[Group, ...] = (
    ("floor_ms", "dense_ms", "expert_ms"),
    ("sequence_ms", "kv_token_ms"),
    ("prefill_token_ms", "prefill_pair_ms"),
    ("request_ms",),
)
_PRIOR_SD = (0.5, 0.5, 0.5, 1.0)
_NOISE = 0.02
"""How well a scaled law has to give the predictor's latencies, in logarithms."""
_STEP_TERMS = tuple(name for name in NAMES if name.endswith("_ms") and name != "request_ms")
_PROBED: tuple[Group, ...] = (("request_ms",), _STEP_TERMS)
_PROBED_SD = (1.5, 0.2)
"""What a deployment adds to a request is not known before; the times of steps are, up to this."""
_LEAST_REQUEST_MS = 0.1
_REQUESTS_OF_USER = 10
"""In the load tests that the law was fitted to: all users start at once, and the first of their
requests wait for half of the others' prompts."""
_UNCROWDED = 0.5
"""Share of the requests that the memory holds up to which the law's queue is that first wave."""


def step_laws(predictor: Roofline, rows: pd.DataFrame, n_draws: int, seed: int) -> np.ndarray:
    """Return the step laws of configurations, shape (rows, 1 + draws, terms), in `NAMES`' order.

    The first law of each has the most likely parameters, the others those of draws.

    The rows are as `predictor.design` gives them, of any users; their lengths are the means of the
    requests. InputError where the predictor was fitted to engines that stop to prefill.
    """
    posterior = predictor.posterior_
    if posterior.law is not chunked.CHUNKED:
        problem = "its points are of an engine that stops to prefill"
        fix = "name a source of engines with chunked prefill, e.g. --source archive:inferencex"
        raise InputError(f"no step can be simulated: {problem}", fix=fix)
    n_rows, n_users, n_laws = len(rows), len(_USERS), 1 + n_draws
    X = rows.loc[rows.index.repeat(n_users)].reset_index(drop=True)
    X = X.assign(users=np.tile(_USERS, n_rows))
    likely, _, correction = predictor.most_likely(X)
    with threadpool_limits(1):  # matrices of a few hundred columns: threads only cost
        drawn = posterior.draw_parameters(X, n_draws, seed)
    phi = np.concatenate([likely[None], drawn]).reshape(-1, likely.shape[1])
    facts = {name: np.tile(values, n_laws) for name, values in columns_of(X).items()}
    known = posterior.law.predict_log(phi, facts) + np.tile(correction, (n_laws, 1))
    known[:, 0] += np.log(facts["input_tokens"])
    in_memory = np.exp(phi[:, chunked.INDEX["memory"]]) * facts["requests_that_fit"]
    known[facts["users"] > np.maximum(_UNCROWDED * in_memory, 1), 0] = np.nan
    # What a law misses is common to all loads of a configuration, as far as it is smooth; drawn
    # alike for all GPU profiles, it does not make a better one worse.
    errors = posterior.draw_errors(X.assign(gpu_profile_id=""), n_draws, seed)
    errors = errors.reshape(n_draws, n_rows, n_users, 2)
    known = known.reshape(n_laws, n_rows, n_users, 2)
    known[1:] += errors.mean(axis=2, keepdims=True)
    known = known.reshape(-1, n_users, 2)
    alone = {name: values[::n_users] for name, values in facts.items()}
    start = _unscaled(phi[::n_users], alone, np.exp(known[:, 0, 0]))
    load = Load(X["input_tokens"].iloc[0], max(X["output_tokens"].iloc[0], 2.0))
    limits = Limits(1e6, 8192.0, 1e12)

    def predict(law: StepLaw, near: Near) -> Means:
        return _load_test(law, limits, load, _USERS, near)

    both = np.concatenate([known[..., 0], known[..., 1]], axis=1)
    values = match(start, _GROUPS, _PRIOR_SD, predict, both, _NOISE).values
    return values.reshape(n_laws, n_rows, len(NAMES)).swapaxes(0, 1)


def _unscaled(phi: np.ndarray, facts: dict[str, np.ndarray], ttft_ms: np.ndarray) -> np.ndarray:
    """Return the laws that parameters say, (laws, terms); `ttft_ms` is that of a user alone."""
    parts = chunked.step_parts(phi, facts)
    for name in ("prefill_token_ms", "prefill_pair_ms"):
        parts[name] = parts[name] * parts["mixed"]
    factor = np.exp(phi[:, chunked.INDEX["itl_offset"]])
    one = np.ones(len(phi))
    values = {name: parts.get(name, 0 * one) for name in NAMES}
    values |= {name: values[name] * factor for name in _STEP_TERMS}
    tokens = facts["input_tokens"]
    prompt = values["prefill_token_ms"] * tokens + values["prefill_pair_ms"] * tokens**2 / 2
    step = values["floor_ms"] + values["dense_ms"] + values["expert_ms"]
    values["request_ms"] = np.maximum(ttft_ms - prompt - step, _LEAST_REQUEST_MS)
    return np.stack([values[name] for name in NAMES], axis=1)


def told_by_probe(
    laws: np.ndarray,
    scheduler: Scheduler,
    load: Load,
    *,
    users: Values = 1.0,
    request_rate_rps: Values | None = None,
    ttft_ms: Values,
    itl_ms: Values,
    seed: int = 0,
) -> np.ndarray:
    """Return laws that give what loads of a deployment were measured to take.

    Two scales are found: of what the deployment adds to a request, and of all parts of a step.
    Values may be arrays, one per measurement.

    Args:
        laws: the most likely one, then draws, shape (laws, terms).
        scheduler: the server's settings.
        load: the requests.
        users: of a load test, or
        request_rate_rps: of an open loop.
        ttft_ms: measured; NaN if it is not known.
        itl_ms: the same.
        seed: of the errors of measurement, which each draw has of its own.
    """
    limits = Limits.of(scheduler)

    def predict(law: StepLaw, near: Near) -> Means:
        if request_rate_rps is None:
            return _load_test(law, limits, load, np.atleast_1d(users), near)
        return open_loop(law, limits, load, np.atleast_1d(request_rate_rps), near)

    known = np.log(np.concatenate([np.atleast_1d(ttft_ms), np.atleast_1d(itl_ms)]))
    errors = np.random.default_rng(seed).normal(0, _NOISE, (len(laws), len(known)))
    errors[0] = 0
    # A draw that takes a request for free would need a scale without end.
    place = NAMES.index("request_ms")
    laws = laws.copy()
    laws[:, place] = np.maximum(laws[:, place], laws[0, place])
    return match(laws, _PROBED, _PROBED_SD, predict, known + errors, _NOISE).values


def _load_test(law: StepLaw, limits: Limits, load: Load, users: np.ndarray, near: Near) -> Means:
    """Return the means that a load test measures."""
    means = closed_loop(law, limits, load, users, near)
    wave_ms = (users - 1) / 2 * means.prompt_ms / _REQUESTS_OF_USER
    return means._replace(ttft_ms=means.ttft_ms + wave_ms)
