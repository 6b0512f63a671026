"""Simulates requests on replicas, and summarises latencies, rates and use."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from sextant.base.errors import InputError
from sextant.simulate.inputs import (
    BIN_WIDTH,
    OK,
    REFUSED,
    SERIES,
    SHORTEST_S,
    TIMEOUT,
    UNSENT,
    Requests,
    Scheduler,
    StepLaw,
    World,
    make_world,
)

Router = Literal["round_robin", "least_requests", "prefix"]
Result = TypeVar("Result")
STATUS = {OK: "ok", TIMEOUT: "timeout", REFUSED: "refused"}


class TooFewRequests(InputError):
    """The users of a closed loop send more requests than there are."""


@dataclass(frozen=True, eq=False)
class Simulation:
    """The outcome of each request. Arrays of shape (n,) in the order of `Requests`."""

    arrival_s: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    status: np.ndarray
    """Keys of `STATUS`."""
    is_counted: np.ndarray
    """Whether it came after the warm-up."""
    ttft_s: np.ndarray
    """NaN for requests that were not answered in time; so are the others."""
    e2e_s: np.ndarray
    replica: np.ndarray
    preemptions: np.ndarray
    """How often each was preempted."""
    cached_tokens: np.ndarray
    """Input that each found in the prefix cache."""
    gaps: np.ndarray
    """Gaps between tokens of counted requests, by window and by length: (windows, bins), counts.
    A bin is 0.5% wide; `gap_s` has their lengths."""
    mean_gap_s: float
    series: dict[str, np.ndarray]
    """`busy_s`, `kv_block_s`, `output_tokens` and `steps` of all replicas, by window."""
    window_s: float
    warmup_s: float
    end_s: float
    """When the last request was answered or given up, or the last one arrived."""
    n_replicas: int
    n_blocks: int
    """Blocks of each replica's KV cache."""
    most_blocks: int
    """Largest number of blocks in use on one replica."""
    busy_s: float
    """Time in which engines ran steps after the warm-up, summed over the replicas."""
    kv_block_s: float
    """Integral of the blocks in use over that time."""
    n_steps: int
    n_preemptions: int

    @property
    def tpot_s(self) -> np.ndarray:
        """Time per output token after the first, (E2E − TTFT) / (output tokens − 1); shape (n,)."""
        more = np.where(self.output_tokens > 1, self.output_tokens - 1, np.nan)
        return (self.e2e_s - self.ttft_s) / more

    def gap_s(self, share: float) -> float:
        """Return a quantile of the gaps between tokens, the middle of its bin; NaN without gaps."""
        reached = np.cumsum(self.gaps.sum(axis=0))
        if not reached[-1]:
            return float("nan")
        position = min(int(np.searchsorted(reached, share * reached[-1])), len(reached) - 1)
        return float(SHORTEST_S * np.exp((position + 0.5) * BIN_WIDTH))


def simulate(
    requests: Requests,
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
        scheduler: settings of each replica.
        law: time of an engine step.
        n_replicas: replicas behind the router.
        router: `round_robin` (in turn), `least_requests` (the one with the fewest requests) or
            `prefix` (requests of one prefix go to one replica, others in turn).
        warmup_s: requests that arrive before are simulated, but not counted.
        window_s: width of the windows that `Simulation.series` and `gaps` are kept for.

    Raises:
        InputError: an unknown router, no replica, or a window or warm-up that makes no sense.
    """
    from sextant.simulate.steps import run_open  # with Numba, which takes a second to load

    if router not in get_args(Router):
        fix = f"use one of {', '.join(get_args(Router))}"
        raise InputError(f"unknown router {router!r}", field="router", fix=fix)
    _check(n_replicas, warmup_s, window_s)
    world = make_world(requests, scheduler, law, n_replicas, warmup_s=warmup_s, window_s=window_s)
    run_open(world, get_args(Router).index(router))
    return _result(world, warmup_s)


def simulate_closed(
    users: int,
    requests: Requests,
    scheduler: Scheduler,
    law: StepLaw,
    *,
    duration_s: float,
    n_replicas: int = 1,
    warmup_s: float = 0.0,
    window_s: float = float("inf"),
) -> Simulation:
    """Return the outcome of users who each send a request when their last one is answered.

    Users are spread evenly over the replicas and stay there; all start at 0 and send nothing
    after `duration_s`. Requests are sent in their order; their arrivals are not used.

    Raises:
        TooFewRequests: users send more.
        InputError: no user, or a request that the server refuses.
    """
    from sextant.simulate.steps import run_closed

    _check(n_replicas, warmup_s, window_s)
    for field, value in (("users", users), ("duration_s", duration_s)):
        if not value > 0:
            raise InputError(f"{value} is not above 0", field=field, fix="give more")
    world = make_world(
        requests,
        scheduler,
        law,
        n_replicas,
        warmup_s=warmup_s,
        window_s=window_s,
        closed_until_s=duration_s,
    )
    table = world.requests
    if (table["status"] == REFUSED).any():
        fix = f"leave out requests of more than {scheduler.longest} tokens"
        raise InputError("a request is too long for the server", field="requests", fix=fix)
    table["arrival_s"], table["deadline_s"] = 0.0, scheduler.timeout_s
    table["is_counted"] = warmup_s <= 0
    table["status"][users:] = UNSENT
    run_closed(world, users)
    if not (table["status"] == UNSENT).any():
        problem = f"{users} users send more than {len(requests)} requests in {duration_s:g} s"
        raise TooFewRequests(problem, field="requests", fix="give more requests")
    return _result(world, warmup_s)


def on_threads(run: Callable[..., Result], *values: Iterable[Any]) -> list[Result]:
    """Return what `run` makes of each set of values, as `map` does, on all cores.

    The compiled part frees the GIL.
    """
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(run, *values))


def _check(n_replicas: int, warmup_s: float, window_s: float) -> None:
    given = {"n_replicas": (n_replicas, 1), "warmup_s": (warmup_s, 0), "window_s": (window_s, 1)}
    for field, (value, lowest) in given.items():
        if not value >= lowest:
            fix = f"give {lowest:g} or more"
            raise InputError(f"{value} is too small", field=field, fix=fix)


def _result(world: World, warmup_s: float) -> Simulation:
    table = world.requests[world.requests["status"] != UNSENT]
    n_gaps = world.replicas["n_gaps"].sum()
    replicas, is_ok = world.replicas, table["status"] == OK
    ends = np.where(is_ok, table["last_s"], np.nan)
    gave_up = table["deadline_s"][table["status"] == TIMEOUT]
    last = [table["arrival_s"].max(initial=0.0), gave_up.max(initial=0.0)]
    return Simulation(
        arrival_s=table["arrival_s"],
        input_tokens=table["input"],
        output_tokens=table["output"],
        status=table["status"],
        is_counted=table["is_counted"].astype(bool),
        ttft_s=np.where(is_ok, table["first_s"] - table["arrival_s"], np.nan),
        e2e_s=ends - table["arrival_s"],
        replica=table["replica"],
        preemptions=table["preemptions"],
        cached_tokens=table["cached"],
        gaps=world.gaps,
        mean_gap_s=float(replicas["gap_sum_s"].sum() / n_gaps) if n_gaps else float("nan"),
        series={name: world.series[:, column] for column, name in enumerate(SERIES)},
        window_s=world.window_s,
        warmup_s=warmup_s,
        end_s=float(max(*last, np.nanmax(ends, initial=0.0))),
        n_replicas=len(replicas),
        n_blocks=world.n_blocks,
        most_blocks=int(replicas["most_blocks"].max()),
        busy_s=float(replicas["busy_s"].sum()),
        kv_block_s=float(replicas["kv_block_s"].sum()),
        n_steps=int(replicas["steps"].sum()),
        n_preemptions=int(replicas["n_preemptions"].sum()),
    )


INTERVAL = (0.05, 0.95)
"""Quantiles over the draws of a law: a 90% interval."""


def summarise(
    simulation: Simulation, limits_ms: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Return the numbers of the requests that came after the warm-up.

    Latencies are those of requests that were answered; gaps between tokens (`itl_ms`) are within
    0.25%, and those of requests that gave up later are among them. Rates are over the time from the
    end of the warm-up to the last answer or arrival.

    Args:
        simulation: the outcome of each request.
        limits_ms: limits that each request has to keep to count as goodput, of `ttft_ms`,
            `nttft_ms`, `itl_ms` (the mean of its own gaps, which is its TPOT), `tpot_ms` and
            `e2e_ms`; without any, all that are answered count.

    Raises:
        InputError: no request came after the warm-up, or a limit is of another latency.
    """
    from sextant.points.metrics import STATISTICS, meets_limits, statistics

    s, counted = simulation, simulation.is_counted
    if not counted.any():
        fix = "shorten the warm-up, or give more requests"
        raise InputError("no request came after the warm-up", field="warmup_s", fix=fix)
    is_ok = counted & (s.status == OK)
    each_ms = {
        "ttft_ms": s.ttft_s[is_ok] * 1e3,
        "tpot_ms": s.tpot_s[is_ok] * 1e3,
        "e2e_ms": s.e2e_s[is_ok] * 1e3,
    }
    own_ms = {"nttft_ms": each_ms["ttft_ms"] / s.input_tokens[is_ok], "itl_ms": each_ms["tpot_ms"]}
    span_s = max(s.end_s - s.warmup_s, 1e-9)
    time_s = span_s * s.n_replicas
    gaps_ms = {name: s.gap_s(share) * 1e3 for name, share in STATISTICS.items()}
    return {
        "ttft_ms": statistics(each_ms["ttft_ms"]),
        "itl_ms": {"mean": s.mean_gap_s * 1e3, **gaps_ms},
        "tpot_ms": statistics(each_ms["tpot_ms"]),
        "e2e_ms": statistics(each_ms["e2e_ms"]),
        "throughput_tok_s": float(s.output_tokens[is_ok].sum() / span_s),
        "request_rate_rps": float(is_ok.sum() / span_s),
        "failed_fraction": float(1 - is_ok.sum() / counted.sum()),
        "goodput_rps": float(meets_limits(each_ms | own_ms, limits_ms or {}).sum() / span_s),
        "kv_used_fraction": s.kv_block_s / (s.n_blocks * time_s),
        "kv_used_fraction_max": s.most_blocks / s.n_blocks,
        "preemptions": int(s.preemptions[counted].sum()),
        "utilisation": min(s.busy_s / time_s, 1.0),
        "cached_fraction": float(
            s.cached_tokens[is_ok].sum() / max(s.input_tokens[is_ok].sum(), 1)
        ),
        "n_requests": int(counted.sum()),
    }


def intervals(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the 90% interval over draws of each number of `summarise`, in the same shape."""
    found: dict[str, Any] = {}
    for name, value in summaries[0].items():
        of_name = [summary[name] for summary in summaries]
        if isinstance(value, Mapping):
            found[name] = intervals(of_name)
        else:
            found[name] = [
                float(bound) for bound in np.quantile(np.array(of_name, float), INTERVAL)
            ]
    return found
