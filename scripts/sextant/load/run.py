"""Puts the levels of a scenario on running servers, for the benchmark and for `sextant load`."""

import logging
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sextant.base.errors import InputError
from sextant.base.files import provenance
from sextant.base.job_log import raise_between_callbacks
from sextant.engine.devices import host_facts
from sextant.engine.http import VLLM_METRICS, ServerAddress, accepted_length, fetch_response
from sextant.engine.protocol import RunningServer
from sextant.experiment.scenarios import Batch, ClosedLoop, OpenLoop, Scenario, scenario_json
from sextant.experiment.servers import Variant
from sextant.experiment.sheets import DEFAULT_VARIANT, CellKey
from sextant.load.measure import LevelInterrupted, LevelResult, LoadTargets
from sextant.load.schedules import ArrivalSchedule, run_closed_loop, run_open_loop
from sextant.load.source import Draw, Form, RequestSource
from sextant.points.run import (
    CellOrigin,
    CellRun,
    SentRequests,
    ServerFacts,
    ServerReport,
)
from sextant.points.verdict import FEASIBLE
from sextant.workload.generators import AtOnce
from sextant.workload.requests import Turns
from sextant.workload.trace_arrivals import Replay

if TYPE_CHECKING:
    from sextant.pages.blocks import Document

log = logging.getLogger(__name__)
LEVEL_SEED_STRIDE = 1_000_003  # far apart: no prompt of one level comes again in another
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class RequestPlan:
    """Which requests a load sends."""

    draw: Draw  # what draws them
    form: Form  # how they are put
    seed: int  # of the arrivals, and of the first level's requests


@dataclass(frozen=True)
class LoadSubject:
    """What `run.json` says of what is loaded, and with which requests."""

    llm_id: str
    gpu_profile_id: str
    engine: str
    workload_id: str
    definition: Mapping[str, Any]  # facts of LLM, GPU profile and requests, plain data
    prompts: str  # what the prompts are made of
    sampler: str | None = None  # how requests are drawn from a workload
    unsent_parameters: tuple[str, ...] | None = None  # parameters that no request carries

    def cell_key(self, scenario: Scenario, n_replicas: int) -> CellKey:
        """Return the ids of the cell that the results are."""
        variant_id = DEFAULT_VARIANT if n_replicas == 1 else f"{n_replicas}-replicas"
        return CellKey(
            self.llm_id, self.gpu_profile_id, self.workload_id, scenario.kind, variant_id
        )


def measure_level(
    scenario: Scenario,
    level: float,
    targets: LoadTargets,
    source: RequestSource,
    *,
    seed: int,
    before: Callable[[], None] = lambda: None,
) -> LevelResult:
    """Warm servers up, then load them at one level of a scenario, evenly over the replicas.

    The scenario is not `burst`. `seed` is of the arrivals; `before` is called after the warm-up,
    which is a closed loop.
    Raises as `LoadRun.measure`; InputError if the level needs more file descriptors than allowed.
    """
    n_warmup = 0
    # An open loop of a given duration begins with a warm-up of its own.
    warms_itself = isinstance(scenario, OpenLoop) and scenario.n_requests is None
    if scenario.warmup_s and not warms_itself:
        users = len(targets.addresses) if isinstance(scenario, OpenLoop) else int(level)
        try:
            warmup = run_closed_loop(targets, source, users, scenario.warmup_s)
        except LevelInterrupted as interrupted:
            raise interrupted.interrupt from None  # a warm-up is not a result
        n_warmup = warmup.log.n_ok + warmup.log.n_failed

    before()
    match scenario:
        case ClosedLoop(duration_s=duration_s, cooldown_s=cooldown_s):
            users = int(level)
            result = run_closed_loop(targets, source, users, duration_s, cooldown_s=cooldown_s)
        case Batch():
            at_once = AtOnce().times(n=scenario.n_requests or int(level))
            schedule = ArrivalSchedule(at_once, max_in_flight=int(level))
            result = run_open_loop(targets, source, schedule, level)
        case OpenLoop():
            schedule = _schedule(scenario, level, seed)
            result = run_open_loop(targets, source, schedule, level)

    n_warmup += result.run.n_warmup_requests or 0
    return replace(result, run=replace(result.run, n_warmup_requests=n_warmup))


def _schedule(scenario: OpenLoop, level: float, seed: int) -> ArrivalSchedule:
    """Return an open loop's schedule, its warm-up included: measuring begins under steady load.

    The sessions of a trace are followed where the trace has what that needs.
    """
    arrivals = scenario.arrivals_at(level)
    arrival_s = arrivals.times(n=scenario.n_requests, duration_s=scenario.extent_s, seed=seed)

    turns: Turns | None = None
    if isinstance(arrivals, Replay):
        try:
            turns = arrivals.turns(arrival_s)
        except InputError as error:
            if error.field == "e2e_ms":
                log.warning("turns of sessions come at the trace's times: %s", error.problem)

    is_timed = scenario.n_requests is None
    return ArrivalSchedule(
        arrival_s,
        warmup_s=scenario.warmup_s if is_timed else 0.0,
        duration_s=scenario.duration_s if is_timed else None,
        max_in_flight=scenario.max_in_flight,
        turns=turns,
    )


class Stopped(KeyboardInterrupt):
    """A signal asked to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_status = 128 + number


def _stop(number: int, _: object) -> None:
    for signal_number in _SIGNALS:
        signal.signal(signal_number, signal.SIG_IGN)
    raise_between_callbacks(Stopped(number))


@contextmanager
def stoppable(handler: Any = _stop) -> Iterator[None]:
    """Let the first SIGINT or SIGTERM raise `Stopped`, and ignore others: results get written."""
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def load_server(
    addresses: Sequence[ServerAddress],
    requests: RequestPlan,
    scenario: Scenario,
    out: Path,
    subject: LoadSubject,
    *,
    timeout_s: float,
    limits_ms: Mapping[str, float],
) -> "tuple[Document, BaseException | None]":
    """Load servers with each level of a scenario, and write a cell to the folder `out`.

    Returns the summary, with the goodput within `limits_ms`, and what ended the load too early, if
    anything did: then the cell is not complete. Raises InputError if no level can run.
    """
    out.mkdir(parents=True, exist_ok=True)
    # A folder that cannot be written to fails before the load.
    tempfile.TemporaryFile(dir=out).close()
    measured = _measure(addresses, requests, scenario, timeout_s)
    with stoppable(signal.SIG_IGN):  # a signal would lose all that was measured
        # Not before the last level has ended: pyarrow would double the memory of the client.
        from sextant.load.results import write_load

        run = _run_of(measured, addresses, requests, scenario, subject)
        return write_load(out, run, measured.results, limits_ms), measured.interruption


class _MeasuredLevels(NamedTuple):
    """The levels of a load, until something ended it."""

    started_at: datetime
    version: str | None  #: Of the engine; None: the server does not tell.
    results: list[LevelResult]  #: Of an interrupted load the last one is not whole.
    interruption: BaseException | None  #: None: all levels are there.


def _measure(
    addresses: Sequence[ServerAddress], requests: RequestPlan, scenario: Scenario, timeout_s: float
) -> _MeasuredLevels:
    """Measure levels until the last one, or until something ends them.

    Raises InputError or OSError: no level can run.
    """
    started_at = datetime.now(UTC)
    targets = LoadTargets(addresses, timeout_s, epoch_ns=time.monotonic_ns())
    version: str | None = None
    results: list[LevelResult] = []
    interruption: BaseException | None = None

    try:
        version = RunningServer(addresses[0]).version()
        _measure_levels(targets, requests, scenario, results)
    except LevelInterrupted as interrupted:
        results.append(interrupted.result)
        interruption = interrupted.interrupt
    except (KeyboardInterrupt, InputError, OSError) as between_levels:
        interruption = between_levels
        if not results and not isinstance(interruption, KeyboardInterrupt):
            raise
    return _MeasuredLevels(started_at, version, results, interruption)


def _run_of(
    measured: _MeasuredLevels,
    addresses: Sequence[ServerAddress],
    requests: RequestPlan,
    scenario: Scenario,
    subject: LoadSubject,
) -> CellRun:
    """Return what is written of a load beside its requests."""
    first = addresses[0]
    seed = requests.seed
    version = measured.version
    levels = [
        result.run.with_conditions(
            engine_version=version,
            timeout_s=scenario.timeout_s,
            times_since=measured.started_at,
        )
        for result in measured.results
    ]
    interruption = measured.interruption
    return CellRun(
        source="measured",
        key=subject.cell_key(scenario, n_replicas=len(addresses)),
        scenario=scenario_json(scenario),
        variant=Variant(replicas=len(addresses)),
        verdict=FEASIBLE,
        server=ServerFacts(engine=subject.engine, version=version, url=first.base_url),
        requests=SentRequests(seed, subject.sampler, subject.prompts, subject.unsent_parameters),
        levels=tuple(levels),
        is_complete=interruption is None,
        interruption=str(interruption) if interruption else None,
        origin=CellOrigin(
            started_at=measured.started_at.replace(microsecond=0),
            host=host_facts(),
            definition=subject.definition,
            provenance=provenance(base_url=first.base_url, model=first.model, seed=seed),
        ),
    )


def _measure_levels(
    targets: LoadTargets, requests: RequestPlan, scenario: Scenario, results: list[LevelResult]
) -> None:
    """Measure all levels; append each to `results` as soon as it has ended."""
    addresses = targets.addresses
    metrics_after = _metrics(addresses)
    for number, level in enumerate(scenario.levels):
        metrics_before = metrics_after
        level_seed = requests.seed + LEVEL_SEED_STRIDE * number
        source = RequestSource(addresses[0].model, requests.draw, level_seed, requests.form)
        results.append(measure_level(scenario, level, targets, source, seed=requests.seed))

        metrics_after = _metrics(addresses) if metrics_before else ""
        length = accepted_length(metrics_before, metrics_after, (VLLM_METRICS,))
        report = ServerReport(server_accepted_length=length)
        results[-1] = replace(results[-1], run=replace(results[-1].run, server_report=report))
        for warning in results[-1].warnings:
            log.warning("level %g: %s", level, warning)


def _metrics(addresses: Sequence[ServerAddress]) -> str:
    """Return the metrics of all servers one after another, or nothing if one server has none."""
    try:
        return "\n".join(fetch_response(address.base_url) for address in addresses)
    except OSError:
        return ""
