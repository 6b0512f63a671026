"""Puts the levels of a scenario on running servers, for the benchmark and for `sextant load`."""

import logging
import resource
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sextant.base.errors import InputError
from sextant.base.job_log import raise_between_callbacks
from sextant.engine.endpoint import EndpointServer
from sextant.engine.http import Target
from sextant.experiment.scenarios import Batch, ClosedLoop, OpenLoop, Scenario
from sextant.load.measure import LevelInterrupted, LevelResult, Measured, Subject
from sextant.load.schedules import first_connections, run_closed_loop, run_open_loop
from sextant.load.source import Source
from sextant.workload.generators import AtOnce

if TYPE_CHECKING:
    from sextant.pages.blocks import Document

LEVEL_SEED_STRIDE = 1_000_003
"""Seeds of levels lie far apart: no prompt of one level comes again in another."""
# What a level needs beside its connections: the event loop, timers, the telemetry's pipes.
_OWN_DESCRIPTORS = 16


def measure_level(
    scenario: Scenario,
    level: float,
    targets: Sequence[Target],
    source: Source,
    timeout_s: float,
    epoch_ns: int,
    *,
    seed: int,
    before: Callable[[], None] = lambda: None,
) -> LevelResult:
    """Warm servers up and load them at one level of a scenario other than `burst`.

    Requests are spread evenly over the replicas; `timeout_s` limits each, `epoch_ns` is zero of all
    times on the monotonic clock, `seed` is of the arrivals. `before` is called after the warm-up.

    Raises:
        InputError: this process may not open as many connections as the level needs.
        LevelInterrupted: KeyboardInterrupt was raised, with what was measured until then.
    """
    # At least: a rate's connections depend on the server.
    n_connections = 1 if isinstance(scenario, OpenLoop) else int(level)
    if isinstance(scenario, Batch) and scenario.n_requests:
        n_connections = min(n_connections, scenario.n_requests)
    check_descriptors(n_connections)
    load = (timeout_s, epoch_ns)
    n_warmup = _warm_up(scenario, level, targets, source, load)
    before()
    match scenario:
        case ClosedLoop(duration_s=duration_s, cooldown_s=cooldown_s):
            users = int(level)
            result = run_closed_loop(
                targets, source, users, duration_s, *load, cooldown_s=cooldown_s
            )
        case Batch():
            at_once, most = AtOnce().times(n=scenario.n_requests or int(level)), int(level)
            result = run_open_loop(targets, source, at_once, *load, level, max_in_flight=most)
        case OpenLoop(warmup_s=warmup_s, max_in_flight=max_in_flight):
            # One schedule without a pause: the load is steady when measuring begins.
            arrivals, n = scenario.arrivals_at(level), scenario.n_requests
            is_counted = n is not None
            arrival_s = arrivals.times(n=n, duration_s=scenario.extent_s, seed=seed)
            check_descriptors(first_connections(arrival_s, max_in_flight))
            result = run_open_loop(
                targets,
                source,
                arrival_s,
                *load,
                level,
                warmup_s=0.0 if is_counted else warmup_s,
                duration_s=None if is_counted else scenario.duration_s,
                max_in_flight=max_in_flight,
            )
        case _:
            raise TypeError(f"{scenario.kind} has a runner of its own")
    result.n_warmup_requests += n_warmup
    return result


def _warm_up(
    scenario: Scenario,
    level: float,
    targets: Sequence[Target],
    source: Source,
    load: tuple[float, int],
) -> int:
    """Return the number of requests; the schedule of an open loop may have its own warm-up."""
    if not scenario.warmup_s or (isinstance(scenario, OpenLoop) and scenario.n_requests is None):
        return 0
    users = len(targets) if isinstance(scenario, OpenLoop) else int(level)
    try:
        result = run_closed_loop(targets, source, users, scenario.warmup_s, *load)
        return result.n_ok + result.n_failed
    except LevelInterrupted as interrupted:
        raise interrupted.interrupt from None  # a warm-up is not a result


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


log = logging.getLogger(__name__)


class Stopped(KeyboardInterrupt):
    """A signal asked to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_status = 128 + number


@contextmanager
def _handling_signals(handler: Any) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def stoppable() -> Iterator[None]:
    """Let the first SIGINT or SIGTERM raise `Stopped`, so that what was measured can be written.

    Others are ignored: they would end the writing.
    """

    def stop(number: int, _: object) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise_between_callbacks(Stopped(number))

    with _handling_signals(stop):
        yield


def measure(
    targets: Sequence[Target],
    source_of: Callable[[int], Source],
    scenario: Scenario,
    *,
    timeout_s: float,
    seed: int,
) -> Measured:
    """Load servers with each level of a scenario.

    `source_of` makes a level's requests from its seed; `seed` is of the arrivals and of the first
    level's requests.
    """
    measured, epoch_ns = Measured(), time.monotonic_ns()
    try:
        for number, level in enumerate(scenario.levels):
            source = source_of(seed + LEVEL_SEED_STRIDE * number)
            load = (scenario, level, targets, source, timeout_s, epoch_ns)
            result = measure_level(*load, seed=seed)
            measured.results.append(result)
            for warning in result.warnings:
                log.warning("level %g: %s", level, warning)
    except LevelInterrupted as interrupted:
        measured.results.append(interrupted.result)
        measured.interruption = interrupted.interrupt
    except (KeyboardInterrupt, InputError, OSError) as between_levels:
        measured.interruption = between_levels
    return measured


def load_server(
    targets: Sequence[Target],
    source_of: Callable[[int], Source],
    scenario: Scenario,
    out: Path,
    subject: Subject,
    *,
    timeout_s: float,
    seed: int,
    limits_ms: Mapping[str, float],
) -> "tuple[Document, BaseException | None]":
    """Load servers and write a cell to `out`; other arguments are those of `measure`.

    Returns the summary, with the goodput within `limits_ms` of each request, and what ended the
    load too early: then the cell is written as not complete.

    Raises InputError: no level can run; nothing is written.
    """
    out.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(
        dir=out
    ).close()  # a folder that cannot be written to fails before the load
    started_at, version = datetime.now(UTC), None
    try:
        version = EndpointServer(targets[0]).version()
        measured = measure(targets, source_of, scenario, timeout_s=timeout_s, seed=seed)
    except KeyboardInterrupt as early:
        measured = Measured(interruption=early)
    interruption = measured.interruption
    if interruption and not measured.results and not isinstance(interruption, KeyboardInterrupt):
        raise interruption
    with _handling_signals(signal.SIG_IGN):  # it would lose all that was measured
        # Not before the last level has ended: pyarrow would double the memory of the client.
        from sextant.load.results import write_load

        how = (scenario, subject, measured, started_at, seed, version, limits_ms)
        return write_load(out, targets, *how), interruption
