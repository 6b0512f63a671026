"""Runs one level of load, whatever its scenario, and records the outcome of each request.

Nothing here imports pandas or pyarrow: they take as much memory as the rest, and time to load.
"""

import asyncio
import gc
import resource
import time
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import uvloop

from sextant.base.errors import InputError
from sextant.base.job_log import Progress
from sextant.engine.http import Target
from sextant.load.answer import AnswerReader
from sextant.load.client import Exchange, Part
from sextant.load.clock import LagWatch, lag_warning, quantiles_ms
from sextant.load.rows import RequestLog
from sextant.load.source import Source

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN_EVERY_S = 0.5
# Answers are read after the tokens that came with them have been stamped.
_READ_AFTER_S = 0.002
# Some 20 events, which are read in 30 µs.
_SHORT_BYTES = 4096
_MOST_UNREAD_PIECES = 1 << 18
_REFUSALS = (401, 403, 404)
_FIX = "check the API key, the server's address and the model's name"


@dataclass
class LevelResult:
    """What one level measured. Times are seconds since `epoch_ns` of the monotonic clock."""

    level: float | None
    """Users, requests per second or requests in flight; None for a schedule without one."""
    log: RequestLog
    """Measured requests that have ended."""
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
            self.client_lag_ms, self.send_lag_ms, *map(self._median, ("itl_ms", "ttft_ms"))
        )
        odd = self.log.oddities.items()
        self.answer_warnings = tuple(f"{n} of {self.n_ok} answers: {it}" for it, n in odd)

    def _median(self, name: str) -> float | None:
        return self.log.statistics(name, {"p50": 0.5}, is_due=False)["p50"]

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
        return self.log.n_ok

    @property
    def n_failed(self) -> int:
        """Measured requests that failed."""
        return self.log.n_failed

    def batches(self) -> "Iterator[pa.RecordBatch]":
        """Yield one row per measured request, as `points.cell_files.REQUEST_SCHEMA` has them."""
        return self.log.batches(self.level, self.epoch_ns)

    def table(self) -> "pa.Table":
        """Return all rows of `batches`."""
        import pyarrow as pa

        from sextant.points.cell_files import REQUEST_SCHEMA

        return pa.Table.from_batches(self.batches(), REQUEST_SCHEMA)


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


class Recorder:
    """Takes what connections give while a level runs, and reads it when there is time."""

    def __init__(self, source: Source, targets: Sequence[Target]) -> None:
        self.log = RequestLog()
        self.broken: InputError | None = None
        """Why the level cannot go on."""
        self.send_lags_ms = array("f")
        self.n_left_out = {"warmup": 0, "cooldown": 0}
        self.n_in_flight = 0
        """Measured requests that were sent, or are to be, and have not ended."""
        self.last_end_ns = 0
        self._source, self._targets = source, targets
        self._is_refused = True  # until one is answered
        self._reader = AnswerReader({target.api_key for target in targets})
        self._parts: deque[Part] = deque()
        self._n_unread = 0
        self._break = asyncio.Event()
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
        """Take a part of an answer, to read it later; a short answer at once, so that its user
        knows whether it is good, and all when too much is unread.
        """
        exchange, pieces, is_last = part
        if is_last and exchange.is_measured:
            self.n_in_flight -= 1
            self.last_end_ns = max(self.last_end_ns, exchange.ended_ns)
        if is_last and exchange.n_bytes <= _SHORT_BYTES and not exchange.is_split:
            self._read(part)
        else:
            self._parts.append(part)
            self._n_unread += len(pieces)
            if self._n_unread > _MOST_UNREAD_PIECES:
                self.read_all()
        self.work_later()

    def work_later(self) -> None:
        """Read answers and encode requests soon."""
        if not self._is_working:
            self._is_working = True
            asyncio.get_running_loop().call_later(_READ_AFTER_S, self._work)

    def _work(self) -> None:
        """Do a little, then let the loop look at its sockets."""
        if self._parts:
            self._read_next()
        elif not self._source.top_up():
            self._is_working = False
            return
        asyncio.get_running_loop().call_soon(self._work)

    def read_all(self) -> None:
        """Read what is left."""
        while self._parts:
            self._read_next()

    def _read_next(self) -> None:
        part = self._parts.popleft()
        self._n_unread -= len(part[1])
        self._read(part)

    def _read(self, part: Part) -> None:
        exchange = part[0]
        if not self._reader.read(part) or self.broken:
            return
        if self._is_refused and exchange.http_status in _REFUSALS:
            where = self._targets[exchange.replica].base_url
            problem = f"{where} refuses the requests: {exchange.error}"
            self._break_off(InputError(problem, field="api_key_env", fix=_FIX))
        self._is_refused = self._is_refused and exchange.status != "ok"
        if not exchange.is_measured:
            return
        try:
            self.log.add(exchange)
        except InputError as error:
            self._break_off(error)
        if exchange.sent_ns:
            self.send_lags_ms.append((exchange.sent_ns - exchange.ready_ns) / 1e6)

    def _break_off(self, why: InputError) -> None:
        self.broken = self.broken or why
        self._break.set()

    async def run(self, load: "Load", started_ns: int) -> None:
        """Run a load to its end, or until it is broken off."""
        tasks = {
            asyncio.create_task(load.run(started_ns)),
            asyncio.create_task(self._break.wait()),
        }
        done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        for task in done:
            task.result()


class Load(Protocol):
    """A scenario's way to put load on a server."""

    async def open(self) -> None:
        """Prepare before the clock starts, e.g. connect."""

    async def run(self, started_ns: int) -> None:
        """Send requests from this moment (ns) on, until the last has ended."""

    def close(self) -> None:
        """Drop all connections."""


class LevelInterrupted(KeyboardInterrupt):
    """A level was interrupted; `result` holds the requests that had ended by then."""

    def __init__(self, interrupt: KeyboardInterrupt, result: LevelResult) -> None:
        super().__init__(str(interrupt))
        self.interrupt, self.result = interrupt, result


async def _show_progress(level: float | None, log: RequestLog, started_ns: int) -> None:
    title = "load" if level is None else f"load at level {level:g}"
    progress = Progress(title, 0)
    try:
        while progress.is_shown:
            await asyncio.sleep(_SHOWN_EVERY_S)
            elapsed_s = (time.monotonic_ns() - started_ns) / 1e9
            n = log.n_ok + log.n_failed
            progress.note(f"{elapsed_s:.0f} s: {n} ended, {log.n_failed} failed")
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

    Raises:
        LevelInterrupted: KeyboardInterrupt was raised, with what was measured until then.
        InputError: the server refuses the first request (HTTP 401, 403 or 404), or the disk of
            temporary files is full.
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
        shown = asyncio.create_task(_show_progress(level, recorder.log, started_ns))
        await recorder.run(load, started_ns)
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
    if recorder.broken:
        raise recorder.broken
    measured_ns = (started_ns or time.monotonic_ns()) + int(warmup_s * 1e9)
    result = LevelResult(
        level=None if level is None else float(level),
        log=recorder.log,
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
