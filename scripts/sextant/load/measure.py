"""Runs one level of load, whatever its scenario, and records the outcome of each request.

Nothing here imports pandas or pyarrow: they take as much memory as the rest, and time to load.
"""

import asyncio
import gc
import resource
import time
from array import array
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import uvloop

from sextant.base.job_log import Progress
from sextant.engine.http import Target
from sextant.load.answer import AnswerReader
from sextant.load.client import Exchange, Part
from sextant.load.clock import LagWatch, lag_warning, quantiles_ms
from sextant.load.source import Source

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN_EVERY_S = 0.5
# Answers are read after the tokens that came with them have been stamped.
_READ_AFTER_S = 0.002


@dataclass
class LevelResult:
    """What one level measured. Times are seconds since `epoch_ns` of the monotonic clock."""

    level: float | None
    """Users, requests per second or requests in flight; None for a schedule without one."""
    exchanges: list[Exchange]
    """Measured requests that have ended, in the order of their ends."""
    epoch_ns: int
    started_s: float
    """Start of the measured part."""
    ended_s: float
    """The last measured request ended."""
    n_warmup_requests: int
    n_cooldown_requests: int
    n_prepared_late: int
    """Requests encoded while one was due, because the prepared ones had run out."""
    client_lag_ms: dict[str, float | None]
    """How late the client's event loop was."""
    send_lag_ms: dict[str, float | None]
    """From when a request could be sent to when it was."""
    n_unfinished: int = 0
    """Measured requests in flight when the level was interrupted."""
    lag_warning: str | None = field(init=False)
    answer_warnings: tuple[str, ...] = field(init=False)
    """What makes figures of answers less than exact, and of how many."""

    def __post_init__(self) -> None:
        self.lag_warning = lag_warning(
            self.client_lag_ms, self.send_lag_ms, *_median_latencies_ms(self.exchanges)
        )
        ok = [exchange for exchange in self.exchanges if exchange.status == "ok"]
        found = Counter(oddity for exchange in ok for oddity in exchange.oddities)
        self.answer_warnings = tuple(f"{n} of {len(ok)} answers: {it}" for it, n in found.items())

    @property
    def warnings(self) -> tuple[str, ...]:
        """All that a person should know of the figures."""
        return (*filter(None, [self.lag_warning]), *self.answer_warnings)

    @property
    def duration_s(self) -> float:
        """Measured wall time, from the start of the measured part to the last end."""
        return self.ended_s - self.started_s

    @property
    def n_ok(self) -> int:
        """Measured requests that succeeded."""
        return sum(exchange.status == "ok" for exchange in self.exchanges)

    @property
    def n_failed(self) -> int:
        """Measured requests that failed."""
        return len(self.exchanges) - self.n_ok

    def table(self) -> "pa.Table":
        """Return one row per measured request, as `points.cell_files.REQUEST_SCHEMA` has them."""
        return requests_table(self.level, self.exchanges, self.epoch_ns)


def requests_table(level: float | None, exchanges: Sequence[Exchange], epoch_ns: int) -> "pa.Table":
    """Return one row per exchange, in their order; times are seconds since `epoch_ns`."""
    import pyarrow as pa

    from sextant.points.cell_files import REQUEST_SCHEMA

    columns: dict[str, list] = {
        name: [getattr(exchange, name) for exchange in exchanges]
        for name in ("replica", "user", "input_tokens", "output_tokens", "status", "error")
    }
    for moment in ("scheduled", "sent", "first_token", "last_token"):
        times_ns = [getattr(exchange, f"{moment}_ns") for exchange in exchanges]
        columns[f"{moment}_s"] = [(at - epoch_ns) / 1e9 if at else None for at in times_ns]
    requests = [exchange.request for exchange in exchanges]
    columns["request_id"] = [request.request_id for request in requests]
    for name in ("input_tokens", "output_tokens"):
        columns[f"requested_{name}"] = [getattr(request, name) for request in requests]
    columns["level"] = [level] * len(exchanges)
    lengths = [len(exchange.token_offsets_ms) for exchange in exchanges]
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int32)]).astype(np.int32)
    offsets = b"".join(exchange.token_offsets_ms.tobytes() for exchange in exchanges)
    arrays = {
        field.name: pa.ListArray.from_arrays(ends, pa.array(np.frombuffer(offsets, np.float32)))
        if field.name == "token_offsets_ms"
        else pa.array(columns[field.name], field.type)
        for field in REQUEST_SCHEMA
    }
    return pa.table(arrays, schema=REQUEST_SCHEMA)


@dataclass
class Measured:
    """The results of a scenario's levels."""

    results: list[LevelResult] = field(default_factory=list)
    """The last one is not whole if it was interrupted."""
    interruption: BaseException | None = None
    """What ended the load before its last level had ended."""


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
    """What its answers need (see `sextant.points.measured`), and other facts to record."""


def _median_latencies_ms(exchanges: list[Exchange]) -> tuple[float | None, float | None]:
    ok = [exchange for exchange in exchanges if exchange.status == "ok"]
    ttft_ms = [exchange.token_offsets_ms[0] for exchange in ok if exchange.token_offsets_ms]
    itl_ms = [np.diff(np.frombuffer(each.token_offsets_ms, np.float32)) for each in ok]
    gaps_ms = np.concatenate(itl_ms) if itl_ms else np.empty(0)
    return quantiles_ms(gaps_ms)["median"], quantiles_ms(ttft_ms)["median"]


class Recorder:
    """Takes what connections give while a level runs, and reads it when there is time."""

    def __init__(self, source: Source, targets: Sequence[Target]) -> None:
        self.ended: list[Exchange] = []
        self.send_lags_ms = array("f")
        self.n_left_out = {"warmup": 0, "cooldown": 0}
        self.n_in_flight = 0
        """Measured requests that were sent, or are to be, and have not ended."""
        self.last_end_ns = 0
        self.n_failed = 0
        """Of those that were read."""
        self._source = source
        self._reader = AnswerReader({target.api_key for target in targets})
        self._parts: deque[Part] = deque()
        self._is_working = False

    def take(
        self, user: int, scheduled_ns: int, ready_ns: int, left_out: str | None = None
    ) -> Exchange:
        """Return the exchange of the source's next request; `left_out` names an unmeasured part."""
        if left_out:
            self.n_left_out[left_out] += 1
        else:
            self.n_in_flight += 1
        return Exchange(self._source.take(), user, scheduled_ns, ready_ns, not left_out)

    def keep(self, part: Part) -> None:
        """Take a part of an answer, to read it later."""
        self._parts.append(part)
        exchange, _, is_last = part
        if is_last and exchange.is_measured:
            self.n_in_flight -= 1
            self.last_end_ns = max(self.last_end_ns, exchange.ended_ns)
        self.work_later()

    def work_later(self) -> None:
        """Read answers and encode requests soon."""
        if not self._is_working:
            self._is_working = True
            asyncio.get_running_loop().call_later(_READ_AFTER_S, self._work)

    def _work(self) -> None:
        """Do a little, then let the loop look at its sockets."""
        if self._parts:
            self._read(self._parts.popleft())
        elif not self._source.top_up():
            self._is_working = False
            return
        asyncio.get_running_loop().call_soon(self._work)

    def read_all(self) -> None:
        """Read what is left."""
        while self._parts:
            self._read(self._parts.popleft())

    def _read(self, part: Part) -> None:
        exchange = part[0]
        if self._reader.read(part) and exchange.is_measured:
            self.ended.append(exchange)
            self.n_failed += exchange.status != "ok"
            if exchange.sent_ns:
                self.send_lags_ms.append((exchange.sent_ns - exchange.ready_ns) / 1e6)


class Load(Protocol):
    """A scenario's way to put load on a server."""

    async def open(self) -> None:
        """Prepare before the clock starts, e.g. connect."""

    async def run(self, started_ns: int) -> None:
        """Send requests from this moment (ns) on, until the last has ended."""

    def close(self) -> None:
        """Drop all connections."""

    def time_left_s(self, elapsed_s: float, n_ended: int) -> float | None:
        """Return how long it will go on, None if that is not known."""


class LevelInterrupted(KeyboardInterrupt):
    """A level was interrupted; `result` holds the requests that had ended by then."""

    def __init__(self, interrupt: KeyboardInterrupt, result: LevelResult) -> None:
        super().__init__(str(interrupt))
        self.interrupt, self.result = interrupt, result


def progress_text(n_ended: int, n_failed: int, elapsed_s: float, left_s: float | None) -> str:
    """Return what is shown while a level runs."""
    left = "" if left_s is None else f", about {max(0.0, left_s):.0f} s left"
    return f"{n_ended} ended, {n_ended / elapsed_s:.3g}/s, {n_failed} failed{left}"


async def _show_progress(
    level: float | None, recorder: Recorder, load: Load, started_ns: int
) -> None:
    title = "load" if level is None else f"load at level {level:g}"
    progress = Progress(title, 0)
    try:
        while progress.is_shown:
            await asyncio.sleep(_SHOWN_EVERY_S)
            elapsed_s, n = (time.monotonic_ns() - started_ns) / 1e9, len(recorder.ended)
            left_s = load.time_left_s(elapsed_s, n)
            progress.note(progress_text(n, recorder.n_failed, elapsed_s, left_s))
    finally:
        progress.close()


def run_level(
    level: float | None,
    source: Source,
    recorder: Recorder,
    load: Load,
    epoch_ns: int,
    warmup_s: float = 0.0,
) -> LevelResult:
    """Put a prepared load on a server and return what was measured.

    Raises LevelInterrupted, with what was measured so far, for a KeyboardInterrupt.
    """
    # A connection a request in flight: the usual 1,024 would fail what a server could serve.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    lags_ms, started_ns = array("f"), 0

    async def run() -> None:
        nonlocal lags_ms, started_ns
        await load.open()
        watch = LagWatch()
        lags_ms, started_ns = watch.lags_ms, time.monotonic_ns()
        shown = asyncio.create_task(_show_progress(level, recorder, load, started_ns))
        await load.run(started_ns)
        shown.cancel()
        watch.stop()
        load.close()

    interrupt: KeyboardInterrupt | None = None
    gc.collect()
    gc.disable()  # it would stop the client for milliseconds, and little here is for it
    try:
        uvloop.run(run())
    except KeyboardInterrupt as error:
        interrupt = error
    finally:
        gc.enable()
    recorder.read_all()
    measured_ns = (started_ns or time.monotonic_ns()) + int(warmup_s * 1e9)
    result = LevelResult(
        level=None if level is None else float(level),
        exchanges=recorder.ended,
        epoch_ns=epoch_ns,
        started_s=(measured_ns - epoch_ns) / 1e9,
        ended_s=(max(recorder.last_end_ns, measured_ns) - epoch_ns) / 1e9,
        n_warmup_requests=recorder.n_left_out["warmup"],
        n_cooldown_requests=recorder.n_left_out["cooldown"],
        n_prepared_late=source.n_prepared_late,
        client_lag_ms=quantiles_ms(lags_ms),
        send_lag_ms=quantiles_ms(recorder.send_lags_ms),
        n_unfinished=recorder.n_in_flight,
    )
    if interrupt:
        raise LevelInterrupted(interrupt, result)
    return result
