"""Step laws of configurations that nobody need have measured, from the predictor's fit.

The law of chunked prefill says what a step takes (`chunked.step_parts`); what its offsets and the
trees say beyond it scales the parts, until the closed form at one to many users gives the
predictor's own latencies.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from sextant.base.errors import InputError
from sextant.predict.roofline import Roofline, chunked
from sextant.predict.roofline.posterior import columns_of
from sextant.simulate.closed_form import (
    Group,
    Limits,
    Load,
    Values,
    closed_loop,
    match,
    open_loop,
    step_parts,
)
from sextant.simulate.inputs import NAMES, Scheduler, StepLaw

_USERS = np.array([1.0, 2, 4, 8, 16, 32, 64, 128])
_GROUPS = (
    ("floor_ms", "dense_ms", "expert_ms"),
    ("sequence_ms", "kv_token_ms"),
    ("prefill_token_ms", "prefill_pair_ms"),
    ("request_ms",),
)
_PRIOR_SD = (0.5, 0.5, 0.5, 1.0)
_NOISE = 0.02
"""How well a scaled law has to give the predictor's latencies, in logarithms."""
_PROBED: tuple[Group, ...] = (
    ("request_ms",),
    tuple(name for name in NAMES if name.endswith("_ms") and name != "request_ms"),
)
_PROBED_SD = (1.5, 0.2)
"""What a deployment adds to a request is not known before; the times of steps are, up to this."""
_LEAST_REQUEST_MS = 0.1
_REQUESTS_OF_USER = 10
"""In the load tests that the law was fitted to: all users start at once, and the first of their
requests wait for half of the others' prompts."""
_UNCROWDED = 0.5
"""Share of the requests that the memory holds up to which the law's queue is that first wave."""


class FittedLaws(NamedTuple):
    """The step law of one configuration and what is not known of it."""

    law: StepLaw
    """At the most likely parameters."""
    draws: np.ndarray
    """Laws at draws of the posterior, shape (draws, terms)."""


def step_laws(predictor: Roofline, rows: pd.DataFrame, n_draws: int, seed: int) -> list[FittedLaws]:
    """Return the step laws of configurations, one for each row.

    Args:
        predictor: fitted to points of engines with chunked prefill.
        rows: configurations as `predictor.design` gives them, of any users; their lengths are the
            means of the requests.
        n_draws: draws of the posterior.
        seed: of the draws.

    Raises:
        InputError: the predictor was fitted to engines that stop to prefill.
    """
    posterior = predictor.posterior_
    if posterior.law.names != chunked.NAMES:
        problem = "its points are of an engine that stops to prefill"
        fix = "name a source of engines with chunked prefill, e.g. --source archive:inferencex"
        raise InputError(f"no step can be simulated: {problem}", fix=fix)
    n_rows, n_users = len(rows), len(_USERS)
    X = rows.loc[rows.index.repeat(n_users)].reset_index(drop=True)
    X = X.assign(users=np.tile(_USERS, n_rows))
    phi = posterior.most_likely(X)
    predicted = posterior.law.predict_log(phi, columns_of(X))
    correction = predictor.residuals_.correction(X, predicted)
    with threadpool_limits(1):  # matrices of a few hundred columns: threads only cost
        drawn = posterior.draw_parameters(X, n_draws, seed)
    # What a law misses is common to all loads of a configuration, as far as it is smooth.
    errors = posterior.draw_errors(X, n_draws, seed).reshape(n_draws, n_rows, n_users, 2)
    errors = np.concatenate([np.zeros((1, *errors.shape[1:])), errors]).mean(axis=2, keepdims=True)
    correction = correction.reshape(n_rows, n_users, 2) + errors
    laws = _matched(np.concatenate([phi[None], drawn]), X, correction)
    return [FittedLaws(StepLaw.of(of[0]), of[1:]) for of in laws.swapaxes(0, 1)]


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

    Args:
        laws: the most likely one, then draws, shape (laws, terms).
        scheduler: the server's settings.
        load: the requests; its fields may be arrays, one value per measurement.
        users: of a load test, or
        request_rate_rps: of an open loop, one value per measurement.
        ttft_ms: measured, one value per measurement; NaN if it is not known.
        itl_ms: the same.
        seed: of the errors of measurement, which each draw has of its own.
    """
    limits = Limits.of(scheduler)

    def predict(law: StepLaw) -> np.ndarray:
        if request_rate_rps is None:
            return _load_test(law, limits, load, np.atleast_1d(users))
        return open_loop(law, limits, load, np.atleast_1d(request_rate_rps)).logs()

    known = np.log(np.concatenate([np.atleast_1d(ttft_ms), np.atleast_1d(itl_ms)]))
    errors = np.random.default_rng(seed).normal(0, _NOISE, (len(laws), len(known)))
    errors[0] = 0
    return match(laws, _PROBED, _PROBED_SD, predict, known + errors, _NOISE).values


def _load_test(law: StepLaw, limits: Limits, load: Load, users: np.ndarray) -> np.ndarray:
    """Return the logarithms of TTFT and of ITL that a load test measures, (laws, 2 · users)."""
    means = closed_loop(law, limits, load, users)
    prompt_ms = step_parts(law, limits, load, means.decoding)[1]
    wave_ms = (users - 1) / 2 * prompt_ms / _REQUESTS_OF_USER
    return means._replace(ttft_ms=means.ttft_ms + wave_ms).logs()


def _matched(phi: np.ndarray, X: pd.DataFrame, correction: np.ndarray) -> np.ndarray:
    """Return step laws, (laws, configurations, terms).

    Args:
        phi: parameters, (laws, rows of `X`, parameters).
        X: of each configuration a row for each of `_USERS`.
        correction: of the logarithms of the latencies, (laws, configurations, users, 2).
    """
    n_laws, n_users = len(phi), len(_USERS)
    facts = {name: np.tile(values, n_laws) for name, values in columns_of(X).items()}
    flat = phi.reshape(-1, phi.shape[2])
    terms = chunked.terms(flat, facts)
    offsets = flat[:, [chunked.INDEX["ttft_offset"], chunked.INDEX["itl_offset"]]]
    ttft_ms = terms["prefill_ms"] + terms["batching_ms"] + terms["queueing_ms"]
    most = np.maximum(_UNCROWDED * terms["capacity_requests"], 1)
    ttft_ms = np.where(facts["users"] > most, np.nan, ttft_ms)
    itl_ms = sum(terms[name] for name in chunked.ITL_TERMS)
    known = np.log(np.stack([ttft_ms, itl_ms], axis=1)) + offsets
    known = known.reshape(-1, n_users, 2) + correction.reshape(-1, correction.shape[2], 2)
    first = {name: values[::n_users] for name, values in facts.items()}
    start = _start(flat[::n_users], first, known[:, 0])
    lengths = X.iloc[0]
    load = Load(lengths["input_tokens"], lengths["output_tokens"])
    limits = Limits(1e6, 8192.0, 1e12)

    def predict(law: StepLaw) -> np.ndarray:
        return _load_test(law, limits, load, _USERS)

    both = np.concatenate([known[..., 0], known[..., 1]], axis=1)
    values = match(start, _GROUPS, _PRIOR_SD, predict, both, _NOISE).values
    return values.reshape(n_laws, -1, values.shape[1])


def _start(phi: np.ndarray, facts: dict[str, np.ndarray], alone: np.ndarray) -> np.ndarray:
    """Return the laws without corrections, (laws, terms); `alone`: log latencies of one user."""
    parts = chunked.step_parts(phi, facts)
    factor = np.exp(phi[:, chunked.INDEX["itl_offset"]])
    for name in ("prefill_token_ms", "prefill_pair_ms"):
        parts[name] = parts[name] * parts["mixed"]
    zero = np.zeros(len(phi))
    values = {name: parts.get(name, zero) for name in NAMES} | {"overlap": zero + 1}
    for name in NAMES:
        if name.endswith("_ms") and name != "request_ms":
            values[name] = values[name] * factor
    tokens = facts["input_tokens"]
    prompt = values["prefill_token_ms"] * tokens + values["prefill_pair_ms"] * tokens**2 / 2
    step = values["floor_ms"] + values["dense_ms"] + values["expert_ms"]
    values["request_ms"] = np.maximum(np.exp(alone[:, 0]) - prompt - step, _LEAST_REQUEST_MS)
    return np.stack([values[name] for name in NAMES], axis=1)
