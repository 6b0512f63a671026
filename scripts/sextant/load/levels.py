"""The level runner: puts one level of a scenario on servers, for the benchmark and for `load`."""

import resource
from collections.abc import Sequence
from pathlib import Path

from sextant.base.errors import InputError
from sextant.engine.http import Target
from sextant.experiment.scenarios import Batch, ClosedLoop, OpenLoop, Scenario
from sextant.load.closed_loop import run_closed_loop
from sextant.load.measure import LevelInterrupted, LevelResult
from sextant.load.open_loop import first_connections, run_open_loop
from sextant.load.source import Source
from sextant.workload.generators import AtOnce

LEVEL_SEED_STRIDE = 1_000_003
"""Seeds of levels lie far apart: no prompt of one level comes again in another."""
# What a level needs beside its connections: the event loop, timers, the telemetry's pipes.
_OWN_DESCRIPTORS = 16


def warm_up(
    scenario: Scenario,
    level: float,
    targets: Sequence[Target],
    source: Source,
    timeout_s: float,
    epoch_ns: int,
) -> int:
    """Put load on servers before a level; return the number of requests.

    An open loop with a duration has its warm-up in its own schedule instead.

    Raises:
        InputError: the level needs more connections than this process may open.
    """
    check_descriptors(_least_connections(scenario, level))
    if not scenario.warmup_s or (isinstance(scenario, OpenLoop) and scenario.n_requests is None):
        return 0
    users = len(targets) if isinstance(scenario, OpenLoop) else int(level)
    try:
        load = (targets, source, users, scenario.warmup_s, timeout_s, epoch_ns)
        return len(run_closed_loop(*load).exchanges)
    except LevelInterrupted as interrupted:
        raise interrupted.interrupt from None  # a warm-up is not a result


def measure_level(
    scenario: Scenario,
    level: float,
    targets: Sequence[Target],
    source: Source,
    timeout_s: float,
    epoch_ns: int,
    seed: int,
) -> LevelResult:
    """Load servers at one level of a scenario other than `burst`.

    Args:
        scenario: how.
        level: one of its levels.
        targets: replicas of one server; requests are spread evenly over them.
        source: where requests come from.
        timeout_s: limit of a request.
        epoch_ns: zero of all times, on the monotonic clock.
        seed: of the arrivals.

    Raises:
        InputError: this process may not open as many connections as the level needs.
        LevelInterrupted: KeyboardInterrupt was raised, with what was measured until then.
    """
    load = (timeout_s, epoch_ns)
    check_descriptors(_least_connections(scenario, level))
    match scenario:
        case ClosedLoop(duration_s=duration_s, cooldown_s=cooldown_s):
            users = int(level)
            return run_closed_loop(targets, source, users, duration_s, *load, cooldown_s=cooldown_s)
        case Batch():
            arrival_s = AtOnce().times(n=scenario.n_requests or int(level))
            return run_open_loop(targets, source, arrival_s, *load, level, max_in_flight=int(level))
        case OpenLoop():
            return _measure_open_loop(scenario, level, targets, source, load, seed)
    raise TypeError(f"{scenario.kind} has a runner of its own")


def _measure_open_loop(
    scenario: OpenLoop,
    level: float,
    targets: Sequence[Target],
    source: Source,
    load: tuple[float, int],
    seed: int,
) -> LevelResult:
    """Run one schedule without a pause: the load is steady when measuring begins."""
    arrivals, is_counted = scenario.arrivals_at(level), scenario.n_requests is not None
    arrival_s = arrivals.times(n=scenario.n_requests, duration_s=scenario.extent_s, seed=seed)
    check_descriptors(first_connections(arrival_s, scenario.max_in_flight))
    return run_open_loop(
        targets,
        source,
        arrival_s,
        *load,
        level,
        warmup_s=0.0 if is_counted else scenario.warmup_s,
        duration_s=None if is_counted else scenario.duration_s,
        max_in_flight=scenario.max_in_flight,
    )


def _least_connections(scenario: Scenario, level: float) -> int:
    """Return how many connections a level opens at least; a rate's depend on the server."""
    if isinstance(scenario, ClosedLoop):
        return int(level)
    if isinstance(scenario, Batch):
        return min(int(level), scenario.n_requests or int(level))
    return 1


def check_descriptors(n_connections: int) -> None:
    """Raise InputError if the hard limit on open files is too low for a level."""
    n_open = len(list(Path("/proc/self/fd").iterdir()))
    n_needed = n_open + n_connections + _OWN_DESCRIPTORS
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and n_needed > most:
        problem = (
            f"a level of {n_connections} connections needs about {n_needed} file descriptors, "
            f"the limit of this process is {most} (RLIMIT_NOFILE)"
        )
        fix = f"raise it (`ulimit -n {n_needed}`, by root or in limits.conf), or lower the level"
        raise InputError(problem, field="levels", fix=fix)
