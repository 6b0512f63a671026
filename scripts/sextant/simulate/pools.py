"""Prefill and decode apart: two pools of replicas, between which each request's KV cache travels.

A request is computed by a replica of the first pool, its cache is sent over, and a replica of the
second pool gives all of its tokens. Pools do not wait for each other, so one simulation follows the
other.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sextant.simulate.server import OK, TIMEOUT, Scheduler, StepLaw
from sextant.simulate.simulation import Simulation, rated_by_users, simulate
from sextant.workload.requests import RequestStream

_ROUNDS = 4
"""Most rounds for each request of a user: answers differ in length."""
_CLOSE_S = 1e-3


class ReplicaPool(NamedTuple):
    """Replicas that are alike, behind a router that takes them in turn."""

    scheduler: Scheduler
    law: StepLaw
    n_replicas: int


class Handover(NamedTuple):
    """How long a request is between the pools."""

    fixed_ms: float
    token_ms: float  #: For the KV cache of each token of its input.

    def after_s(self, input_tokens: np.ndarray) -> np.ndarray:
        """Return the time from the end of prefill to the arrival at the second pool."""
        return 1e-3 * (self.fixed_ms + self.token_ms * input_tokens)


def prefilled(requests: RequestStream, pool: ReplicaPool, handover: Handover) -> Simulation:
    """Return the first part: E2E and TTFT end when the cache has arrived at the second pool."""
    alone = replace(requests, output_tokens=np.ones_like(requests.output_tokens))
    prefill = simulate(alone, pool.scheduler, pool.law, n_replicas=pool.n_replicas)
    sent_s = prefill.ttft_s + handover.after_s(prefill.input_tokens)
    return replace(prefill, ttft_s=sent_s, e2e_s=sent_s)


def decoded(
    requests: RequestStream, pool: ReplicaPool, window_s: float = np.inf, warmup_s: float = 0.0
) -> Simulation:
    """Return the second part, of requests that arrive with their cache."""
    scheduler, law = of_decode(pool.scheduler, pool.law)
    return simulate(
        requests,
        scheduler,
        law,
        n_replicas=pool.n_replicas,
        window_s=window_s,
        warmup_s=warmup_s,
    )


def of_decode(scheduler: Scheduler, law: StepLaw) -> tuple[Scheduler, StepLaw]:
    """Return the scheduler and the law of a replica that computes no prompts."""
    # Clients count from the first arrival (`simulate_apart`).
    plan = replace(scheduler, receives_cache=True, prompts_first=False, timeout_s=np.inf)
    return plan, replace(law, request_ms=0.0)


def simulate_apart(
    requests: RequestStream,
    prefill: ReplicaPool,
    decode: ReplicaPool,
    handover: Handover,
    warmup_s: float = 0.0,
) -> Simulation:
    """Return the outcome of requests that both pools serve.

    Blocks, the use of engines and the gaps between tokens are of the second pool.
    """
    first = prefilled(requests, prefill, handover)
    is_ok = first.status == OK
    arrival_s = requests.arrival_s + np.nan_to_num(first.ttft_s)
    order = np.flatnonzero(is_ok)[np.argsort(arrival_s[is_ok], kind="stable")]
    is_counted = requests.arrival_s >= warmup_s
    status = first.status.copy()
    ttft_s = np.full(requests.n, np.nan)
    e2e_s = ttft_s.copy()
    preemptions = np.zeros(requests.n, int)
    merged = replace(
        first,
        output_tokens=requests.output_tokens,
        status=status,
        is_counted=is_counted,
        ttft_s=ttft_s,
        e2e_s=e2e_s,
        warmup_s=warmup_s,
    )
    if not len(order):
        return merged
    inputs = requests.input_tokens[order]
    outputs = requests.output_tokens[order]
    second = decoded(RequestStream.of(arrival_s[order], inputs, outputs), decode, warmup_s=warmup_s)
    between_s = arrival_s[order] - requests.arrival_s[order]
    status[order] = second.status
    preemptions[order] = second.preemptions
    ttft_s[order] = second.ttft_s + between_s
    e2e_s[order] = second.e2e_s + between_s
    is_late = e2e_s > prefill.scheduler.timeout_s
    status[is_late] = TIMEOUT
    ttft_s[is_late] = np.nan
    e2e_s[is_late] = np.nan
    return replace(
        merged,
        preemptions=preemptions,
        gaps=second.gaps,
        use=second.use._replace(n_steps=first.use.n_steps + second.use.n_steps),
        end_s=max(first.end_s, second.end_s),
    )


def simulate_users_apart(
    users: int,
    requests: RequestStream,
    prefill: ReplicaPool,
    decode: ReplicaPool,
    handover: Handover,
) -> Simulation:
    """Return the outcome of users who each send their next request when the last is answered.

    User u sends requests u, u + users, u + 2 users ... from 0 on. When a request is sent depends on
    the answers before it, so arrivals are found in rounds: each round simulates all requests with
    the arrivals that follow from the answers of the round before, until arrivals stay the same.
    """
    n = requests.n
    arrival_s = np.zeros(n)
    for _ in range(_ROUNDS * -(-n // users)):
        order = np.argsort(arrival_s, kind="stable")
        inputs = requests.input_tokens[order]
        outputs = requests.output_tokens[order]
        stream = RequestStream.of(arrival_s[order], inputs, outputs)
        simulation = simulate_apart(stream, prefill, decode, handover)

        e2e_s = np.empty(n)
        e2e_s[order] = np.nan_to_num(simulation.e2e_s)
        before_s = arrival_s
        arrival_s = np.zeros(n)
        for first in range(users, n, users):
            current = slice(first, min(first + users, n))
            previous = slice(first - users, first - users + len(arrival_s[current]))
            arrival_s[current] = arrival_s[previous] + e2e_s[previous]
        if np.allclose(arrival_s, before_s, rtol=1e-3, atol=_CLOSE_S):
            break
    return rated_by_users(simulation, users, prefill.scheduler.timeout_s)
