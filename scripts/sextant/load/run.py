"""Load servers that already run, level by level, and write what was measured."""

import logging
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sextant.load.closed_loop import run_closed_loop
from sextant.load.measure import LevelInterrupted, LevelResult, Source
from sextant.load.open_loop import run_open_loop
from sextant.load.request import Target
from sextant.processes.signals import raise_between_callbacks

log = logging.getLogger(__name__)
# Seeds of levels lie far apart: no prompt of one level comes again in another.
LEVEL_SEED_STRIDE = 1_000_003

Run = Callable[[Sequence[Target], Source, float, int], LevelResult]
"""Puts one level of load on servers; takes the time limit of a request (s) and the epoch (ns)."""


def closed_loop(users: int, warmup_s: float, duration_s: float, cooldown_s: float = 0.0) -> Run:
    """Return the run of `users` users: a warm-up that is not measured, then the level."""

    def run(targets, source, timeout_s, epoch_ns) -> LevelResult:
        limits, n_warmup = (timeout_s, epoch_ns), 0
        if warmup_s:
            try:
                warmup = run_closed_loop(targets, source, users, warmup_s, *limits)
            except LevelInterrupted as level:
                raise level.interrupt from None  # a warm-up is no result
            n_warmup = len(warmup.exchanges)
        result = run_closed_loop(targets, source, users, duration_s, *limits, cooldown_s=cooldown_s)
        result.n_warmup_requests = n_warmup
        return result

    return run


def open_loop(arrival_s: np.ndarray, level: float | None = None, **options: Any) -> Run:
    """Return the run of a schedule; `options` are those of `run_open_loop`."""

    def run(targets, source, timeout_s, epoch_ns) -> LevelResult:
        return run_open_loop(targets, source, arrival_s, timeout_s, epoch_ns, level, **options)

    return run


def batch(in_flight: int, n_requests: int | None = None) -> Run:
    """Return the run of requests all due at once, of which so many at most are in flight."""
    at_once = np.zeros(n_requests or in_flight)
    return open_loop(at_once, in_flight, max_in_flight=in_flight)


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


def load_server(
    targets: Sequence[Target],
    source_of: Callable[[int], Source],
    runs: Sequence[Run],
    out: Path,
    *,
    timeout_s: float,
    seed: int,
    **facts: Any,
) -> list[dict]:
    """Load servers; write `requests.parquet` and `levels.json` to `out`, with `facts` in both.

    Args:
        targets: replicas of one server; requests are spread evenly over them.
        source_of: makes the requests of a level from its seed.
        runs: the levels.
        out: folder for the results.
        timeout_s: limit of a request.
        seed: of the first level.
        **facts: what else to say of the run.

    Returns:
        One dict a run: level, requests by outcome, duration, throughput and the client's lag.

    Raises:
        KeyboardInterrupt: after what had ended until then was written, as not complete.
    """
    (out / "levels.json").unlink(missing_ok=True)  # it must not vouch for the files of two runs
    out.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=out).close()  # what cannot be written is told before the load
    epoch_ns = time.monotonic_ns()
    results: list[LevelResult] = []
    interrupt: KeyboardInterrupt | None = None
    try:
        for number, run in enumerate(runs):
            source = source_of(seed + LEVEL_SEED_STRIDE * number)
            results.append(run(targets, source, timeout_s, epoch_ns))
            if results[-1].lag_warning:
                log.warning("level %s: %s", results[-1].level, results[-1].lag_warning)
    except LevelInterrupted as level:
        results.append(level.result)
        interrupt = level.interrupt
    except KeyboardInterrupt as between_levels:
        interrupt = between_levels
    with _handling_signals(signal.SIG_IGN):  # it would lose all that was measured
        summaries = _write(results, out, interrupt, targets[0], {"seed": seed, **facts})
    if interrupt:
        raise interrupt
    return summaries


def _write(results, out, interrupt, target, facts) -> list[dict]:
    # Not before the last level has ended: pyarrow would double the memory of the client.
    import pyarrow as pa

    from sextant.base.files import provenance, write_json, write_parquet
    from sextant.load.level import REQUEST_SCHEMA

    summaries = [_summary(result) for result in results]
    origin = provenance(base_url=target.base_url, model=target.model, **facts)
    empty = REQUEST_SCHEMA.empty_table()
    table = pa.concat_tables([empty, *(result.table() for result in results)])
    write_parquet(out / "requests.parquet", table, origin)
    verdict = {
        "is_complete": interrupt is None,
        "reason": str(interrupt) if interrupt else None,
    }
    write_json(out / "levels.json", {**verdict, "levels": summaries, "provenance": origin})
    return summaries


def _summary(result: LevelResult) -> dict:
    n_tokens = sum(each.output_tokens for each in result.exchanges if each.status == "ok")
    return {
        "level": _json_number(result.level),
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


def _json_number(level: float | None) -> float | str | None:
    """Return a level as JSON has it: no infinity, so all at once is the text `inf`."""
    return "inf" if level == float("inf") else level
