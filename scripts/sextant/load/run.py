"""Puts the levels of a scenario on running servers, for the benchmark and for `sextant load`."""

import logging
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sextant.base.errors import InputError
from sextant.base.files import provenance
from sextant.base.job_log import raise_between_callbacks
from sextant.engine.devices import host_facts
from sextant.engine.http import VLLM_METRICS, ServerAddress, accepted_length, fetch_response
from sextant.engine.protocol import RunningServer
from sextant.experiment.scenarios import Batch, ClosedLoop, OpenLoop, Scenario, scenario_json
from sextant.experiment.servers import Variant
from sextant.experiment.sheets import DEFAULT_VARIANT, CellKey
from sextant.load.measure import LevelInterrupted, LevelResult
from sextant.load.schedules import run_closed_loop, run_open_loop
from sextant.load.source import Draw, Form, RequestSource
from sextant.points.run import CellOrigin, CellRun, SentRequests, ServerFacts, ServerReport
from sextant.points.verdict import FEASIBLE
from sextant.workload.generators import AtOnce
from sextant.workload.requests import Turns
from sextant.workload.trace_arrivals import Replay

if TYPE_CHECKING:
    from sextant.pages.blocks import Document

log = logging.getLogger(__name__)
LEVEL_SEED_STRIDE = 1_000_003  # far apart: no prompt of one level comes again in another
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _metrics(targets: Sequence[ServerAddress]) -> str:
    """Return the metrics of all servers one after another; nothing where one has none."""
    try:
        return "\n".join(fetch_response(target.base_url) for target in targets)
    except OSError:
        return ""


def measure_level(
    scenario: Scenario,
    level: float,
    targets: Sequence[ServerAddress],
    source: RequestSource,
    timeout_s: float,
    epoch_ns: int,
    *,
    seed: int,
    before: Callable[[], None] = lambda: None,
) -> LevelResult:
    """Warm servers up and load them at one level of a scenario other than `burst`, evenly over the
    replicas. `timeout_s` limits a request, `epoch_ns` is zero of all times, `seed` is of arrivals,
    `before` is called after the warm-up. Raises as `Load.measure`; InputError: too few descriptors.
    """
    load, n_warmup = (timeout_s, epoch_ns), 0
    # The schedule of an open loop may have its own warm-up.
    if scenario.warmup_s and not (isinstance(scenario, OpenLoop) and scenario.n_requests is None):
        users = len(targets) if isinstance(scenario, OpenLoop) else int(level)
        try:
            warmup = run_closed_loop(targets, source, users, scenario.warmup_s, *load)
        except LevelInterrupted as interrupted:
            raise interrupted.interrupt from None  # a warm-up is not a result
        n_warmup = warmup.log.n_ok + warmup.log.n_failed
    before()
    match scenario:
        case ClosedLoop(duration_s=duration_s, cooldown_s=cooldown_s):
            loop = (targets, source, int(level), duration_s, *load)
            result = run_closed_loop(*loop, cooldown_s=cooldown_s)
        case Batch():
            at_once, most = AtOnce().times(n=scenario.n_requests or int(level)), int(level)
            result = run_open_loop(targets, source, at_once, *load, level, max_in_flight=most)
        case OpenLoop(warmup_s=warmup_s, max_in_flight=max_in_flight):
            # One schedule without a pause: the load is steady when measuring begins.
            arrivals, n = scenario.arrivals_at(level), scenario.n_requests
            arrival_s = arrivals.times(n=n, duration_s=scenario.extent_s, seed=seed)
            how: dict[str, Any] = {"max_in_flight": max_in_flight}
            if n is None:
                how |= {"warmup_s": warmup_s, "duration_s": scenario.duration_s}
            how["turns"] = _turns(arrivals, arrival_s) if isinstance(arrivals, Replay) else None
            result = run_open_loop(targets, source, arrival_s, *load, level, **how)
    n_warmup += result.run.n_warmup_requests or 0
    return replace(result, run=replace(result.run, n_warmup_requests=n_warmup))


def _turns(replay: Replay, arrival_s: np.ndarray) -> Turns | None:
    """Return the turns of a trace's sessions; None where they cannot be followed."""
    try:
        return replay.turns(arrival_s)
    except InputError as error:
        if error.field == "e2e_ms":
            log.warning("turns of sessions come at the trace's times: %s", error.problem)
        return None


class Stopped(KeyboardInterrupt):
    """A signal asked to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_status = 128 + number


def _stop(number: int, _: object) -> None:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
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
    targets: Sequence[ServerAddress],
    draw: Draw,
    form: Form,
    scenario: Scenario,
    out: Path,
    subject: Mapping[str, Any],
    *,
    engine: str,
    timeout_s: float,
    seed: int,
    limits_ms: Mapping[str, float],
) -> "tuple[Document, BaseException | None]":
    """Load servers with each level of a scenario, and write a cell to `out`. `draw` gives requests,
    put in a `form`; `seed` is of the arrivals and of the first level's requests; `subject` are
    fields of its `CellRun`. Returns the summary, with the goodput within `limits_ms`, and what
    ended the load too early: then the cell is not complete. InputError: no level can run."""
    out.mkdir(parents=True, exist_ok=True)
    # A folder that cannot be written to fails before the load.
    tempfile.TemporaryFile(dir=out).close()
    started_at, epoch_ns, version = datetime.now(UTC), time.monotonic_ns(), None
    results: list[LevelResult] = []
    interruption: BaseException | None = None
    try:
        version, after = RunningServer(targets[0]).version(), _metrics(targets)
        for number, level in enumerate(scenario.levels):
            own_seed = seed + LEVEL_SEED_STRIDE * number
            source = RequestSource(targets[0].model, draw, own_seed, form)
            load, before = (scenario, level, targets, source, timeout_s, epoch_ns), after
            results.append(measure_level(*load, seed=seed))
            after = _metrics(targets) if before else ""
            length = accepted_length(before, after, (VLLM_METRICS,))
            report = ServerReport(server_accepted_length=length)
            level_run = replace(results[-1].run, server_report=report)
            results[-1] = replace(results[-1], run=level_run)
            for warning in results[-1].warnings:
                log.warning("level %g: %s", level, warning)
    except LevelInterrupted as interrupted:
        results.append(interrupted.result)  # which is not whole
        interruption = interrupted.interrupt
    except (KeyboardInterrupt, InputError, OSError) as between_levels:
        interruption = between_levels
        if not results and not isinstance(interruption, KeyboardInterrupt):
            raise
    with stoppable(signal.SIG_IGN):  # a signal would lose all that was measured
        # Not before the last level has ended: pyarrow would double the memory of the client.
        from sextant.load.results import write_load

        first, n_replicas = targets[0], len(targets)
        run = CellRun(
            source="measured",
            key=CellKey(
                subject["llm_id"],
                subject["gpu_profile_id"],
                subject["workload_id"],
                scenario.kind,
                DEFAULT_VARIANT if n_replicas == 1 else f"{n_replicas}-replicas",
            ),
            scenario=scenario_json(scenario),
            variant=Variant(replicas=n_replicas),
            verdict=FEASIBLE,
            server=ServerFacts(engine=engine, version=version, url=first.base_url),
            requests=SentRequests(
                seed,
                subject.get("sampler"),
                subject.get("prompts"),
                subject.get("unsent_parameters"),
            ),
            levels=tuple(
                replace(
                    result.run,
                    conditions=replace(
                        result.run.conditions,
                        engine_version=version,
                        timeout_s=scenario.timeout_s,
                        times_since=started_at,
                    ),
                )
                for result in results
            ),
            is_complete=interruption is None,
            interruption=str(interruption) if interruption else None,
            origin=CellOrigin(
                started_at=started_at.replace(microsecond=0),
                host=host_facts(),
                definition=subject["definition"],
                provenance=provenance(base_url=first.base_url, model=first.model, seed=seed),
            ),
        )
        return write_load(out, run, results, limits_ms), interruption
