"""Simulation of servers, step by step: what requests that arrive at these times would wait.

In go a `RequestStream` (when requests arrive, their tokens, what prefix they share), a `Scheduler`
(vLLM's settings) and a `StepLaw` (the time of one engine step); out come a `Simulation` of one or
several replicas behind a router (each request's latencies and outcome, the gaps between tokens, how
busy and how full the servers were) and its summary.

`world` makes the tables of a simulation. Compiled code changes them: `routing` sends requests to
replicas, `steps` plans a replica's steps, `tables` keeps its requests and its KV cache.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np

from sextant.base.errors import InputError
from sextant.simulate.server import (
    BIN_WIDTH,
    OK,
    REFUSED,
    SHORTEST_S,
    TIMEOUT,
    UNSENT,
    Scheduler,
    StepLaw,
)
from sextant.simulate.world import World, make_world
from sextant.workload.requests import RequestStream

Result = TypeVar("Result")
Router = Literal["round_robin", "least_requests", "prefix"]


class TooFewRequests(InputError):
    """The users of a closed loop send more requests than there are."""


class TokenGaps(NamedTuple):
    """Gaps between tokens of the requests that count, by window and length."""

    counts: np.ndarray
    """Shape (windows, `N_BINS`). A bin is 0.5% wide; the first begins at `SHORTEST_S`."""
    mean_s: float

    def quantile_s(self, share: float) -> float:
        """Return a quantile of all gaps, the middle of its bin; NaN without gaps."""
        reached = np.cumsum(self.counts.sum(axis=0))
        if not reached[-1]:
            return float("nan")
        position = min(int(np.searchsorted(reached, share * reached[-1])), len(reached) - 1)
        return float(SHORTEST_S * np.exp((position + 0.5) * BIN_WIDTH))


class ReplicaUse(NamedTuple):
    """How busy and how full the replicas were; times are after the warm-up, of all replicas."""

    n_replicas: float  #: The mean over time where replicas come and go.
    n_blocks: int  #: Of each replica's KV cache.
    most_blocks: int  #: In use on one replica at once.
    busy_s: float  #: Time in which engines ran steps.
    kv_block_s: float  #: Integral of the blocks in use over that time.
    n_steps: int
    n_evicted: int  #: Blocks of the prefix cache that were taken for others.


@dataclass(frozen=True, eq=False)
class Simulation:
    """The outcome of each request. Arrays of shape (n,) in the order of the `RequestStream`."""

    arrival_s: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    status: np.ndarray  #: Keys of `STATUS`.
    is_counted: np.ndarray  #: Whether it came after the warm-up.
    ttft_s: np.ndarray  #: NaN for requests that were not answered in time; so is `e2e_s`.
    e2e_s: np.ndarray
    preemptions: np.ndarray
    cached_tokens: np.ndarray  #: Input tokens that the request found in the prefix cache.
    gaps: TokenGaps
    use: ReplicaUse
    warmup_s: float
    end_s: float  #: When the last request was answered or given up, or the last one arrived.
    user_s: float | None = None
    """Mean time of a user from the first counted request to the last answer; None: requests arrive
    whatever the servers do."""

    @property
    def rated_s(self) -> float:
        """Time that rates are over: that of a user, else from the warm-up to the last answer.

        Users send their first counted request at different times, and end at different times.
        """
        return max(self.end_s - self.warmup_s if self.user_s is None else self.user_s, 1e-9)

    @property
    def tpot_s(self) -> np.ndarray:
        """Time per output token after the first, (E2E − TTFT) / (output tokens − 1); shape (n,)."""
        later_tokens = np.where(self.output_tokens > 1, self.output_tokens - 1, np.nan)
        return (self.e2e_s - self.ttft_s) / later_tokens


def simulate(
    requests: RequestStream,
    scheduler: Scheduler,
    law: StepLaw,
    *,
    n_replicas: int = 1,
    router: Router = "round_robin",
    warmup_s: float = 0.0,
    window_s: float = float("inf"),
) -> Simulation:
    """Return the outcome of requests that arrive whatever the servers do (an open loop).

    Args:
        requests: when they arrive, and what they ask for.
        scheduler: of each replica.
        law: time of an engine step.
        n_replicas: behind the router.
        router: `round_robin` (in turn), `least_requests` (the one with the fewest requests) or
            `prefix` (the one that weighs best its cached prefix against queue and memory in use).
        warmup_s: requests that arrive before are simulated, but not counted.
        window_s: width of the windows that `Simulation.gaps` are counted for.

    Raises:
        InputError: an unknown router, no replica, or a window or warm-up that makes no sense.
    """
    from sextant.simulate import routing  # compiled code: not all who need the types run it

    if router not in get_args(Router):
        fix = f"use one of {', '.join(get_args(Router))}"
        raise InputError(f"unknown router {router!r}", field="router", fix=fix)
    tables = make_world(requests, scheduler, law, n_replicas, warmup_s=warmup_s, window_s=window_s)
    routing.route(tables, get_args(Router).index(router), np.arange(n_replicas), np.inf, 0)
    routing.finish(tables)
    return simulation_of(tables, warmup_s)


def simulate_closed(
    users: int,
    requests: RequestStream,
    scheduler: Scheduler,
    law: StepLaw,
    *,
    duration_s: float,
    n_replicas: int = 1,
    warmup_s: float = 0.0,
) -> Simulation:
    """Return the outcome of users who each send a request when their last one is answered.

    Users are spread evenly over the replicas and stay there; all start at 0 and send nothing
    after `duration_s`. Requests are sent in their order, whatever their arrivals.

    Raises:
        TooFewRequests: users send more.
        InputError: no user, or a request that the server refuses.
    """
    from sextant.simulate import routing

    for field, value in (("users", users), ("duration_s", duration_s)):
        if not value > 0:
            raise InputError(f"{value} is not above 0", field=field, fix="give more")
    tables = make_world(
        requests, scheduler, law, n_replicas, warmup_s=warmup_s, closed_until_s=duration_s
    )
    table = tables.requests
    if (table["status"] == REFUSED).any():
        fix = f"leave out requests of more than {scheduler.longest} tokens"
        raise InputError("a request is too long for the server", field="requests", fix=fix)
    table["arrival_s"] = 0.0
    table["deadline_s"] = scheduler.timeout_s
    table["is_counted"] = warmup_s <= 0 and not requests.begins_amid
    table["is_received"][:users] |= requests.begins_amid
    table["status"][users:] = UNSENT
    routing.run_closed(tables, users)
    if not (table["status"] == UNSENT).any():
        problem = f"{users} users send more than {requests.n} requests in {duration_s:g} s"
        raise TooFewRequests(problem, field="requests", fix="give more requests")
    return rated_by_users(simulation_of(tables, warmup_s), users, scheduler.timeout_s)


def rated_by_users(simulation: Simulation, users: int, timeout_s: float) -> Simulation:
    """Return a simulation whose rates are those of users, who have one request under way each."""
    outcomes = [simulation.status == OK, simulation.status == TIMEOUT]
    under_way_s = np.select(outcomes, [simulation.e2e_s, timeout_s], 0.0)
    user_s = float(under_way_s[simulation.is_counted].sum() / users)
    return replace(simulation, user_s=user_s)


def simulation_of(world: World, warmup_s: float) -> Simulation:
    """Return the outcome of all requests, when they are over."""
    table = world.requests[world.requests["status"] != UNSENT]
    is_ok = table["status"] == OK
    e2e_s = np.where(is_ok, table["last_s"] - table["arrival_s"], np.nan)
    gave_up_s = table["deadline_s"][table["status"] == TIMEOUT]
    ends_s = (table["arrival_s"], gave_up_s, table["last_s"][is_ok])

    replicas = world.replicas
    n_gaps = replicas["n_gaps"].sum()
    mean_gap_s = float(replicas["gap_sum_s"].sum() / n_gaps) if n_gaps else float("nan")
    use = ReplicaUse(
        n_replicas=len(replicas),
        n_blocks=world.n_blocks,
        most_blocks=int(replicas["most_blocks"].max()),
        busy_s=float(replicas["busy_s"].sum()),
        kv_block_s=float(replicas["kv_block_s"].sum()),
        n_steps=int(replicas["steps"].sum()),
        n_evicted=int(replicas["n_evicted"].sum()),
    )

    return Simulation(
        arrival_s=table["arrival_s"],
        input_tokens=table["input"],
        output_tokens=table["output"],
        status=table["status"],
        is_counted=table["is_counted"].astype(bool),
        ttft_s=np.where(is_ok, table["first_s"] - table["arrival_s"], np.nan),
        e2e_s=e2e_s,
        preemptions=table["preemptions"],
        cached_tokens=table["cached"],
        gaps=TokenGaps(world.gaps, mean_gap_s),
        use=use,
        warmup_s=warmup_s,
        end_s=float(max(values.max(initial=0.0) for values in ends_s)),
    )


def on_threads(run: Callable[..., Result], *values: Iterable[Any]) -> list[Result]:
    """Return the results of `run` for each set of values, on all cores.

    Compiled code releases the GIL.
    """
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(run, *values))


INTERVAL = (0.05, 0.95)
"""Quantiles over the draws of a law: a 90% interval."""


def summarise(
    simulation: Simulation, limits_ms: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Return the numbers of the requests that came after the warm-up.

    Latencies are those of requests that were answered. Gaps between tokens (`itl_ms`) are within
    0.25%, and include the gaps of requests that gave up later. Rates are the answered requests and
    their output tokens over `Simulation.rated_s`. Goodput counts the requests within all
    `limits_ms`, by `ttft_ms`, `nttft_ms`, `itl_ms` (the mean of a request's gaps, which is its
    TPOT), `tpot_ms` and `e2e_ms`.

    Raises InputError: no request is counted, or a limit is of another latency.
    """
    from sextant.points.metrics import STATISTICS, meets_limits, statistics

    s = simulation
    if not s.is_counted.any():
        fix = "simulate longer, or shorten the warm-up"
        problem = "no request is counted: all came before the warm-up ended, or were users' first"
        raise InputError(problem, fix=fix)
    is_ok = s.is_counted & (s.status == OK)
    ttft_ms = s.ttft_s[is_ok] * 1e3
    tpot_ms = s.tpot_s[is_ok] * 1e3
    e2e_ms = s.e2e_s[is_ok] * 1e3
    inputs = s.input_tokens[is_ok]
    of_request = {"ttft_ms": ttft_ms, "tpot_ms": tpot_ms, "e2e_ms": e2e_ms}
    of_request |= {"nttft_ms": ttft_ms / inputs, "itl_ms": tpot_ms}

    span_s = max(s.end_s - s.warmup_s, 1e-9)
    replica_s = span_s * max(s.use.n_replicas, 1e-9)
    gaps_ms = {name: s.gaps.quantile_s(share) * 1e3 for name, share in STATISTICS.items()}
    return {
        "ttft_ms": statistics(ttft_ms),
        "itl_ms": {"mean": s.gaps.mean_s * 1e3, **gaps_ms},
        "tpot_ms": statistics(tpot_ms),
        "e2e_ms": statistics(e2e_ms),
        "throughput_tok_s": float(s.output_tokens[is_ok].sum() / s.rated_s),
        "request_rate_rps": float(is_ok.sum() / s.rated_s),
        "failed_fraction": float(1 - is_ok.sum() / s.is_counted.sum()),
        "goodput_rps": float(meets_limits(of_request, limits_ms or {}).sum() / s.rated_s),
        "kv_used_fraction": s.use.kv_block_s / (s.use.n_blocks * replica_s),
        "kv_used_fraction_max": s.use.most_blocks / s.use.n_blocks,
        "preemptions": int(s.preemptions[s.is_counted].sum()),
        "busy_share": min(s.use.busy_s / replica_s, 1.0),
        "cached_fraction": float(s.cached_tokens[is_ok].sum() / max(inputs.sum(), 1)),
        "evicted_blocks": s.use.n_evicted,
        "n_requests": int(s.is_counted.sum()),
    }


class DrawnNumbers(NamedTuple):
    """The numbers of `summarise` over draws of a law, both in its shape."""

    medians: dict[str, Any]
    intervals: dict[str, Any]  #: 90%, of the same draws: the median is inside.


def numbers_of_draws(summaries: Sequence[Mapping[str, Any]]) -> DrawnNumbers:
    """Return median and 90% interval of each number of `summarise`, one summary a draw."""
    shares = (0.5, *INTERVAL)
    drawn = DrawnNumbers({}, {})
    for name, value in summaries[0].items():
        of_name = [summary[name] for summary in summaries]
        if isinstance(value, Mapping):
            drawn.medians[name], drawn.intervals[name] = numbers_of_draws(of_name)
            continue
        values = np.array(of_name, float)
        median, *ends = np.quantile(values, shares, method="inverted_cdf").tolist()
        drawn.medians[name] = int(median) if isinstance(value, int) else median
        drawn.intervals[name] = ends
    return drawn
