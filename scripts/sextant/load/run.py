"""Load servers that already run, level by level, and write what was measured."""

import logging
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.base.job_log import raise_between_callbacks
from sextant.engine.http import Target
from sextant.experiment.scenarios import Scenario
from sextant.load.levels import LEVEL_SEED_STRIDE, measure_level
from sextant.load.measure import LevelInterrupted, LevelResult
from sextant.load.source import Source

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


@dataclass
class Measured:
    """What became of the levels of a scenario."""

    results: list[LevelResult] = field(default_factory=list)
    """The last one is not whole if it was interrupted."""
    interruption: BaseException | None = None
    """What ended the load before its last level had ended."""


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


@dataclass(frozen=True)
class Subject:
    """What a load run measures, as far as the user has said."""

    llm_id: str
    gpu_profile_id: str
    workload_id: str
    engine: str
    sampler: str | None
    prompts: str
    unsent_parameters: Sequence[str]
    facts: Mapping[str, Any]
    """What its store needs (see `sextant.points.store.of_cells`), and other facts to record."""


def load_server(
    targets: Sequence[Target],
    source_of: Callable[[int], Source],
    scenario: Scenario,
    out: Path,
    subject: Subject,
    *,
    timeout_s: float,
    seed: int,
) -> Measured:
    """Load servers and write a cell to `out`; other arguments are those of `measure`.

    Raises KeyboardInterrupt, or InputError if a level cannot run: after what had ended until then
    was written, as not complete.
    """
    out.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=out).close()  # what cannot be written is told before the load
    started_at = datetime.now(UTC)
    measured = measure(targets, source_of, scenario, timeout_s=timeout_s, seed=seed)
    interruption = measured.interruption
    if interruption and not measured.results and not isinstance(interruption, KeyboardInterrupt):
        raise interruption
    with _handling_signals(signal.SIG_IGN):  # it would lose all that was measured
        # Not before the last level has ended: pyarrow would double the memory of the client.
        from sextant.load.results import write_load

        write_load(out, targets, scenario, subject, measured, started_at, seed)
    if interruption:
        if not isinstance(interruption, KeyboardInterrupt):
            log.warning("levels that had ended are in %s, not complete", out)
        raise interruption
    return measured
