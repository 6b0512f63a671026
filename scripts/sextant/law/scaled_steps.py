"""Step laws that give a predictor's own latencies, at one user and at many.

The law of a fit says what a step takes; the statistic and the error of a draw change the latencies
beyond it. In go the law's parameters and the latencies; its terms come out scaled, by groups, until
the closed form gives these latencies.
"""

from typing import Any, NamedTuple

import numpy as np

from sextant.facts.answer_times import requests_decoding
from sextant.law.means import STEP_TERMS, BatchLimits, MeanLoad, TermGroup
from sextant.law.posterior import Columns
from sextant.law.terms import batch_limits, mean_load, step_law
from sextant.simulate.server import NAMES, StepLaw

USERS = np.array([1.0, 2, 4, 8, 16, 32, 64, 128])
"""Users of the latencies that a step law has to give."""
_MANY = 6
"""Index in `USERS` of the many users at which the ITL tells what a sequence adds to a step."""
_GROUPS: tuple[TermGroup, ...] = (
    ("floor_ms", "dense_ms", "expert_ms"),
    ("sequence_ms", "kv_token_ms"),
    ("prefill_token_ms", "prefill_pair_ms"),
    ("request_ms",),
)
"""Terms that are scaled together: those of a step, of a sequence, of a prompt, of a request."""
_PRIOR_SD = (0.5, 0.5, 1.0)
"""Standard deviations of the factors of a sequence, a prompt and a request, around 1."""
_NOISE = 0.02
"""How closely a scaled law has to give the predictor's latencies, as a share of them."""
_MOST_SCALED = 20.0
"""The largest factor by which a term is scaled, up or down."""
_UNCROWDED = 0.5
"""Share of the requests that the memory holds. Above it users queue."""


def scaled_to_latencies(phi: np.ndarray, facts: Columns, log_ms: np.ndarray) -> np.ndarray:
    """Return step laws, (rows, terms), that give latencies at one and at many users.

    The ITL of one user tells the time of a step without load. The ITL and the TTFT of many users,
    whom the memory holds easily, and the TTFT of one are sums of what a sequence adds to a step,
    the time of a prompt and that of a request, as in `means.closed_loop`: linear equations in their
    factors.

    Args:
        phi: logarithms of the parameters of each row, (rows, parameters).
        facts: columns of `fact_rows`, (rows,).
        log_ms: logarithms of TTFT and ITL in ms at `USERS`, (rows, users, 2).
    """
    terms = _unscaled_terms(phi, facts)
    unscaled = StepLaw(**terms)
    load = mean_load(facts)
    limits = batch_limits(phi, facts)

    ttft_1_ms, itl_1_ms = np.exp(log_ms[:, 0]).T
    sequence_ms = unscaled.sequence_ms + unscaled.kv_token_ms * load.context_tokens
    of_step = _scale(itl_1_ms - sequence_ms, _step_ms(unscaled, 1.0))
    many = _many_users(load, limits, log_ms)
    equations = _equations(unscaled, of_step, load, limits, ttft_1_ms, many)
    of_sequence, of_prompt, of_request = equations.scales()

    scales = (of_step, of_sequence, of_prompt, of_request)
    for names, scale in zip(_GROUPS, scales, strict=True):
        terms |= {name: scale * terms[name] for name in names}
    return np.stack([terms[name] for name in NAMES], axis=1)


def _unscaled_terms(phi: np.ndarray, facts: Columns) -> dict[str, Any]:
    """Return the terms of the law's step by `NAMES`, of the statistic that ITL is predicted at."""
    law = step_law(phi, facts)
    terms: dict[str, Any] = {name: np.broadcast_to(getattr(law, name), len(phi)) for name in NAMES}
    itl_offset = np.exp(phi[:, -1])
    return terms | {name: itl_offset * terms[name] for name in STEP_TERMS}


def _step_ms(law: StepLaw, tokens: Any) -> np.ndarray:
    """Return the time of a step of this many tokens without what each sequence adds."""
    return np.asarray(law.floor_ms + law.weights_ms(tokens))


class _ManyUsers(NamedTuple):
    """What many users get whom the memory holds easily; arrays of shape (rows,)."""

    ttft_ms: np.ndarray
    itl_ms: np.ndarray
    others: np.ndarray  #: Other requests that decode beside one.


def _many_users(load: MeanLoad, limits: BatchLimits, log_ms: np.ndarray) -> _ManyUsers:
    """Return the latencies of the most of `USERS` up to a number that the memory holds easily."""
    uncrowded = np.maximum(_UNCROWDED * limits.most_decoding(load), USERS[1])
    many = np.clip(np.searchsorted(USERS, uncrowded, side="right") - 1, 1, _MANY)
    ttft_ms, itl_ms = np.exp(log_ms[np.arange(len(log_ms)), many]).T
    users = USERS[many]
    later_ms = load.later_tokens * itl_ms
    decoding = requests_decoding(users, ttft_ms, later_ms)
    return _ManyUsers(ttft_ms, itl_ms, decoding * (1 - 1 / users))


class _Equations(NamedTuple):
    """Sums of terms that latencies are wanted to be: ITL and TTFT of many users, TTFT of one."""

    shares_ms: np.ndarray
    """Of sequences, prompts and requests in each latency, (latencies, terms, rows)."""
    wanted_ms: np.ndarray
    """What they have to add up to: latencies without the step's own time, (latencies, rows)."""
    errors_ms: np.ndarray  #: How closely each is wanted, (latencies, rows).

    def scales(self) -> np.ndarray:
        """Return the factors of the terms, (terms, rows), by weighted least squares."""
        weighted = (self.shares_ms / self.errors_ms[:, None]).transpose(2, 0, 1)
        wanted = (self.wanted_ms / self.errors_ms).T
        prior = np.diag(1 / np.square(_PRIOR_SD))
        normal = weighted.transpose(0, 2, 1) @ weighted + prior
        right = (weighted.transpose(0, 2, 1) @ wanted[..., None])[..., 0] + prior.sum(axis=1)
        scales = np.linalg.solve(normal, right[..., None])[..., 0].T
        return np.clip(scales, 1 / _MOST_SCALED, _MOST_SCALED)


def _equations(
    law: StepLaw,
    of_step: np.ndarray,
    load: MeanLoad,
    limits: BatchLimits,
    ttft_1_ms: np.ndarray,
    many: _ManyUsers,
) -> _Equations:
    """Return the equations of a law whose steps are scaled by a factor, `of_step`.

    Args:
        law: terms of each row, (rows,), not scaled yet.
        of_step: (rows,).
        load: the requests.
        limits: what the server admits.
        ttft_1_ms: TTFT of one user, (rows,).
        many: latencies of many.
    """
    others = many.others
    sequence_ms = law.sequence_ms + law.kv_token_ms * load.context_tokens
    prefill_ms = law.prefill_token_ms * load.new_tokens + law.prefill_pair_ms * load.pairs
    request_ms = np.asarray(law.request_ms)
    none_ms = np.zeros_like(request_ms)

    n_steps = np.maximum(load.new_tokens / limits.max_num_batched_tokens, 1.0)
    in_step = load.new_tokens / n_steps
    step_ms = of_step * _step_ms(law, 1 + others)
    # What a prompt adds to steps beside its own time: more weights.
    beside_ms = (
        of_step * n_steps * (_step_ms(law, in_step + 1 + others) - _step_ms(law, 1 + others))
    )
    beside_1_ms = of_step * n_steps * (_step_ms(law, in_step + 1.0) - _step_ms(law, 1.0))

    # ITL of many: a step, its sequences, and the prompts that decoding requests see.
    seen = (1 - limits.wave) * others / load.later_tokens
    # TTFT of many: also longer steps, the steps under way, and prompts ahead.
    full_steps = load.new_tokens / limits.max_num_batched_tokens
    ahead = limits.wave * others
    waited_ms = limits.wait * (0.5 + limits.is_asynchronous) * many.itl_ms
    ahead_ms = ahead * full_steps * of_step * _step_ms(law, limits.max_num_batched_tokens)
    later_ms = (n_steps + ahead * full_steps) * others * sequence_ms
    of_itl = [(1 + others) * sequence_ms, seen * prefill_ms, none_ms]
    of_ttft = [later_ms, (1 + ahead) * prefill_ms, request_ms]
    of_ttft_1 = [none_ms, prefill_ms, request_ms]
    wanted_ms = [
        many.itl_ms - step_ms - seen * beside_ms,
        many.ttft_ms - waited_ms - n_steps * step_ms - beside_ms - ahead_ms,
        ttft_1_ms - n_steps * of_step * _step_ms(law, 1.0) - beside_1_ms,
    ]
    errors_ms = _NOISE * np.array([many.itl_ms, many.ttft_ms, ttft_1_ms])
    return _Equations(np.array([of_itl, of_ttft, of_ttft_1]), np.array(wanted_ms), errors_ms)


def _scale(wanted_ms: np.ndarray, unscaled_ms: np.ndarray) -> np.ndarray:
    """Return the factor from an unscaled time to the wanted one, within reason."""
    return np.clip(wanted_ms / unscaled_ms, 1 / _MOST_SCALED, _MOST_SCALED)
