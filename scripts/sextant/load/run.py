"""Load servers that already run, level by level, and write what was measured."""

import logging
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.experiment.scenarios import Scenario, as_json, level_to_json
from sextant.load.levels import LEVEL_SEED_STRIDE, measure_level, warm_up
from sextant.load.measure import LevelInterrupted, LevelResult, Source
from sextant.load.request import Target
from sextant.processes.signals import raise_between_callbacks

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

    Args:
        targets: replicas of one server; requests are spread evenly over them.
        source_of: makes the requests of a level from its seed.
        scenario: the levels.
        timeout_s: limit of a request.
        seed: of the arrivals and of the first level's requests.
    """
    measured, epoch_ns = Measured(), time.monotonic_ns()
    try:
        for number, level in enumerate(scenario.levels):
            source = source_of(seed + LEVEL_SEED_STRIDE * number)
            load = (scenario, level, targets, source, timeout_s, epoch_ns)
            n_warmup = warm_up(*load)
            measured.results.append(measure_level(*load, seed))
            measured.results[-1].n_warmup_requests += n_warmup
            if measured.results[-1].lag_warning:
                log.warning("level %g: %s", level, measured.results[-1].lag_warning)
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
    *,
    timeout_s: float,
    seed: int,
    **facts: Any,
) -> list[dict]:
    """Load servers; write `requests.parquet` and `levels.json` to `out`, with `facts` in both.

    The other arguments are those of `measure`.

    Returns:
        One dict a run: level, requests by outcome, duration, throughput and the client's lag.

    Raises:
        KeyboardInterrupt: after what had ended until then was written, as not complete.
        InputError: likewise, if a level cannot run.
    """
    (out / "levels.json").unlink(missing_ok=True)  # it must not declare the files of two runs whole
    out.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=out).close()  # what cannot be written is told before the load
    measured = measure(targets, source_of, scenario, timeout_s=timeout_s, seed=seed)
    interruption = measured.interruption
    if interruption and not measured.results and not isinstance(interruption, KeyboardInterrupt):
        raise interruption
    with _handling_signals(signal.SIG_IGN):  # it would lose all that was measured
        facts = {"seed": seed, "scenario": as_json(scenario), **facts}
        summaries = _write(measured, out, targets[0], facts)
    if interruption:
        raise interruption
    return summaries


def _write(measured: Measured, out: Path, target: Target, facts: dict[str, Any]) -> list[dict]:
    # Not before the last level has ended: pyarrow would double the memory of the client.
    import pyarrow as pa

    from sextant.base.files import provenance, write_json, write_parquet
    from sextant.cells.tables import REQUEST_SCHEMA

    summaries = [_summary(result) for result in measured.results]
    origin = provenance(base_url=target.base_url, model=target.model, **facts)
    empty = REQUEST_SCHEMA.empty_table()
    table = pa.concat_tables([empty, *(result.table() for result in measured.results)])
    write_parquet(out / "requests.parquet", table, origin)
    interruption = measured.interruption
    verdict = {
        "is_complete": interruption is None,
        "reason": str(interruption) if interruption else None,
    }
    write_json(out / "levels.json", {**verdict, "levels": summaries, "provenance": origin})
    return summaries


def _summary(result: LevelResult) -> dict[str, Any]:
    ok = [each for each in result.exchanges if each.status == "ok"]
    n_tokens = sum(each.output_tokens or 0 for each in ok)
    return {
        "level": None if result.level is None else level_to_json(result.level),
        "n_ok": result.n_ok,
        "n_failed": result.n_failed,
        "n_unfinished": result.n_unfinished,
        "n_warmup_requests": result.n_warmup_requests,
        "n_cooldown_requests": result.n_cooldown_requests,
        "n_prepared_late": result.n_prepared_late,
        "started_s": result.started_s,
        "duration_s": result.duration_s,
        "throughput_tok_s": n_tokens / result.duration_s if result.duration_s else None,
        "send_lag_ms": result.send_lag_ms,
        "client_lag_ms": result.client_lag_ms,
        "lag_warning": result.lag_warning,
    }
