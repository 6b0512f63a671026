"""Runs one level of load, whatever its scenario, and records the outcome of each request.

Nothing here imports pandas or pyarrow: they take as much memory as the rest, and time to load.
"""

import asyncio
import ctypes
import gc
import os
import platform
import resource
import time
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import uvloop

from sextant.base.errors import InputError
from sextant.base.job_log import Progress
from sextant.engine.http import ServerAddress
from sextant.load.answer import judge
from sextant.load.client import Connection, Exchange, ExchangeTimes
from sextant.load.rows import RequestLog
from sextant.load.source import RequestSource
from sextant.points.metrics import SHAPING_FRACTION
from sextant.points.run import ClientReport, LevelConditions, LevelRun, Quantiles

if TYPE_CHECKING:
    import pyarrow as pa

_NS_PER_S = 1_000_000_000
_TFD_TIMER_ABSTIME = 1
_PERIOD_NS = 10_000_000
_SHOWN_EVERY_S = 0.5
# Answers are judged after the tokens that came with their last ones have been stamped.
_JUDGED_AFTER_S = 0.002
# Some 20 events: those who send the next request learn at once what the answer came to.
_SHORT_BYTES = 4096
_REFUSALS = (401, 403, 404)
_FIX = "check the API key, the server's address and the model's name"


class _Timerspec(ctypes.Structure):
    """`struct itimerspec`: period and first moment, each in seconds and nanoseconds."""

    _fields_ = [(name, ctypes.c_long) for name in ("period_s", "period_ns", "first_s", "first_ns")]


class Alarm:
    """An alarm that can be set again and again; made and used inside a running loop."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._libc, self._ring = ctypes.CDLL(None, use_errno=True), ring
        self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "no timer")
        asyncio.get_running_loop().add_reader(self._fd, self._on_time)

    def set(self, at_ns: int, period_ns: int = 0) -> None:
        """Ring at this moment, soon if it has passed, and each period after it if there is one."""
        first = divmod(max(at_ns, 1), _NS_PER_S)
        period = divmod(period_ns, _NS_PER_S)
        spec = _Timerspec(*period, *first)
        if self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None):
            raise OSError(ctypes.get_errno(), "the timer cannot be set")

    def close(self) -> None:
        """Never ring again."""
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)

    def _on_time(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # it was set again meanwhile
            return
        self._ring()


@dataclass(frozen=True)
class LoadTargets:
    """The replicas that a load is put on, and how its requests are timed."""

    addresses: Sequence[ServerAddress]  # one per replica
    timeout_s: float  # limit of a request from its start, connecting included
    epoch_ns: int  # zero of all times of the results, by the monotonic clock


@dataclass
class LevelResult:
    """What one level measured; times are seconds since `epoch_ns` of the monotonic clock."""

    run: LevelRun  # what `run.json` says of it
    log: RequestLog  # measured requests that have ended
    epoch_ns: int

    @property
    def started_s(self) -> float:
        """Start of the measured part."""
        return self.run.started_s or 0.0

    @property
    def warnings(self) -> tuple[str, ...]:
        """All that a person should know of the figures."""
        return self.run.client.warnings

    def medians(self, *names: str) -> list[float | None]:
        """Return medians of latencies from when requests were sent; None without any."""
        statistics = self.log.statistics(names, {"p50": 0.5}, is_due=False)
        return [statistics[name]["p50"] for name in names]

    def batches(self) -> "Iterator[pa.RecordBatch]":
        """Yield one row per measured request, as `points.cell_files.REQUEST_SCHEMA` has them."""
        return self.log.batches(self.run.level, self.epoch_ns)

    def table(self) -> "pa.Table":
        """Return all rows of `batches`."""
        import pyarrow as pa

        from sextant.points.cell_files import REQUEST_SCHEMA

        return pa.Table.from_batches(self.batches(), REQUEST_SCHEMA)


class LevelInterrupted(KeyboardInterrupt):
    """A level was interrupted; `result` holds the requests that had ended by then."""

    def __init__(self, interrupt: KeyboardInterrupt, result: LevelResult) -> None:
        super().__init__(str(interrupt))
        self.interrupt, self.result = interrupt, result


class LoadRun(ABC):
    """A way to put load on servers. What requests came to is found when there is time."""

    def __init__(self, targets: LoadTargets, source: RequestSource) -> None:
        self.log = RequestLog()
        self.addresses = targets.addresses
        self.n_in_flight = 0  # measured requests that were sent, or are to be, and have not ended
        self.sessions = dict[str, int]()  # as `LevelRun` has them
        self._source = source
        self._timeout_s, self._epoch_ns = targets.timeout_s, targets.epoch_ns
        self._keys = {address.api_key for address in self.addresses}

        self._started_ns = self._last_end_ns = 0
        self._n_left_out = {"warmup": 0, "cooldown": 0}
        self._send_lags_ms = array("f")
        self._lags_ms = array("f")

        self._ended: deque[Exchange] = deque()  # to be judged
        self._is_working = False
        self._is_refused = True  # until a request is answered
        self._broken: InputError | None = None  # why the level cannot go on
        self._break = asyncio.Event()

    @abstractmethod
    async def open(self) -> None:
        """Prepare before the clock starts, e.g. connect."""

    @abstractmethod
    async def run(self, started_ns: int) -> None:
        """Send requests from this moment (ns) on, until the last has ended."""

    @abstractmethod
    def close(self) -> None:
        """Drop all connections."""

    @abstractmethod
    def on_end(self, connection: Connection, exchange: Exchange) -> None:
        """Go on after a request of a connection has ended."""

    def connection(self, replica: int) -> Connection:
        """Return a connection to a replica, which is opened when it is needed."""
        address = self.addresses[replica]
        return Connection(address, replica, self._timeout_s, self.keep, self.on_end)

    def take(
        self, user: int, scheduled_ns: int, ready_ns: int, left_out: str | None = None
    ) -> Exchange:
        """Return the exchange of the source's next request; `left_out` names an unmeasured part."""
        if left_out:
            self._n_left_out[left_out] += 1
        else:
            self.n_in_flight += 1
        times = ExchangeTimes(scheduled_ns, ready_ns)
        return Exchange(self._source.take(), user, times, not left_out)

    def keep(self, exchange: Exchange) -> None:
        """Take a request that has ended, to judge it later; a short answer or an error at once."""
        if exchange.is_measured:
            self.n_in_flight -= 1
            self._last_end_ns = max(self._last_end_ns, exchange.times.ended_ns)
        if exchange.n_bytes <= _SHORT_BYTES:
            self._judge(exchange)
        else:
            self._ended.append(exchange)
        self.work_later()

    def work_later(self) -> None:
        """Judge answers and encode requests soon."""
        if not self._is_working:
            self._is_working = True
            asyncio.get_running_loop().call_later(_JUDGED_AFTER_S, self._work)

    def _work(self) -> None:
        """Do a little, then let the loop look at its sockets."""
        if self._ended:
            self._judge(self._ended.popleft())
        elif not self._source.top_up():
            self._is_working = False
            return
        asyncio.get_running_loop().call_soon(self._work)

    def _judge(self, exchange: Exchange) -> None:
        judge(exchange, self._keys)
        if self._broken:
            return
        if self._is_refused and exchange.head.http_status in _REFUSALS:
            where = self.addresses[exchange.replica].base_url
            problem = f"{where} refuses the requests: {exchange.error}"
            self._broken = InputError(problem, field="api_key_env", fix=_FIX)
        self._is_refused = self._is_refused and exchange.status != "ok"
        if exchange.is_measured:
            try:
                self.log.add(exchange)
            except InputError as error:
                self._broken = self._broken or error
            if exchange.times.sent_ns:
                self._send_lags_ms.append((exchange.times.sent_ns - exchange.times.ready_ns) / 1e6)
        if self._broken:
            self._break.set()

    async def _run(self, level: float) -> None:
        """Run the load to its end, or until it is broken off."""
        await self.open()
        self._started_ns = time.monotonic_ns()
        self._tick_ns, watch = self._started_ns + _PERIOD_NS, Alarm(self._note_lag)
        watch.set(self._tick_ns, _PERIOD_NS)
        shown = asyncio.create_task(self._show_progress(level))
        runs = (self.run(self._started_ns), self._break.wait())
        both = [asyncio.create_task(run) for run in runs]
        done, others = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in (*others, shown):
            task.cancel()
        for task in done:
            task.result()
        watch.close()
        self.close()

    def _note_lag(self) -> None:
        """Record, each 10 ms, how late the event loop gets to what is due."""
        now_ns = time.monotonic_ns()
        while self._tick_ns <= now_ns:  # moments that a long stall passed over were late too
            self._lags_ms.append((now_ns - self._tick_ns) / 1e6)
            self._tick_ns += _PERIOD_NS

    async def _show_progress(self, level: float) -> None:
        progress = Progress(f"load at level {level:g}" if level else "load", 0)
        try:
            while progress.is_shown:
                await asyncio.sleep(_SHOWN_EVERY_S)
                elapsed_s = (time.monotonic_ns() - self._started_ns) / 1e9
                n = self.log.n_ok + self.log.n_failed
                progress.note(f"{elapsed_s:.0f} s: {n} ended, {self.log.n_failed} failed")
        finally:
            progress.close()

    def measure(self, level: float, warmup_s: float = 0.0) -> LevelResult:
        """Put the load on the servers and return the result; level 0 stands for no level.

        What is due in the first `warmup_s` is not measured. Raises LevelInterrupted with the
        requests that had ended if KeyboardInterrupt was raised; InputError if the server refuses
        the first request (HTTP 401, 403 or 404), or a disk is full.
        """
        interrupt = self._run_until_interrupted(level)
        while self._ended:
            self._judge(self._ended.popleft())
        if self._broken:
            raise self._broken

        result = self._result(level, warmup_s)

        if interrupt:
            raise LevelInterrupted(interrupt, result)
        return result

    def _run_until_interrupted(self, level: float) -> KeyboardInterrupt | None:
        """Run the load; return what interrupted it, None if nothing did."""
        # A connection a request in flight: the usual 1,024 would fail what a server could serve.
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        gc.collect()
        gc.disable()  # it would stop the client for milliseconds, and little here is for it
        try:
            uvloop.run(self._run(level))
        except KeyboardInterrupt as error:
            return error
        finally:
            gc.enable()
        return None

    def _result(self, level: float, warmup_s: float) -> LevelResult:
        measured_ns = (self._started_ns or time.monotonic_ns()) + int(warmup_s * 1e9)
        lag = _quantiles(self._lags_ms)
        send_lag = _quantiles(self._send_lags_ms)
        oddities = self.log.oddities.items()
        run = LevelRun(
            level=float(level),
            started_s=(measured_ns - self._epoch_ns) / 1e9,
            duration_s=max(self._last_end_ns - measured_ns, 0) / 1e9,
            n_warmup_requests=self._n_left_out["warmup"],
            n_cooldown_requests=self._n_left_out["cooldown"],
            n_prepared_late=self._source.n_prepared_late,
            n_unfinished=self.n_in_flight,
            sessions=self.sessions or None,
            client=ClientReport(
                lag,
                send_lag,
                answer_warnings=tuple(
                    f"{n} of {self.log.n_ok} answers: {it}" for it, n in oddities
                ),
            ),
            conditions=LevelConditions(host=platform.node()),
        )
        result = LevelResult(run, self.log, self._epoch_ns)

        warning = lag_warning(lag, send_lag, *result.medians("itl_ms", "ttft_ms"))
        result.run = replace(run, client=replace(run.client, lag_warning=warning))
        return result


def _quantiles(lags_ms: "array[float]") -> Quantiles:
    if not len(lags_ms):
        return Quantiles()
    return Quantiles(*np.quantile(np.asarray(lags_ms, float), (0.5, 0.99, 1)).tolist())


def lag_warning(
    client: Quantiles, send: Quantiles, median_itl_ms: float | None, median_ttft_ms: float | None
) -> str | None:
    """Return a warning if the client's own lag could have shaped the result: p99 of the loop's lag
    is above a tenth of the median ITL, or p99 of the lag of sending above that of the TTFT."""
    pairs = ("client", client.p99, "ITL", median_itl_ms), ("send", send.p99, "TTFT", median_ttft_ms)
    late_parts = [
        f"{name} lag of {lag_ms:.2g} ms (p99) against the median {of} of {latency_ms:.3g} ms"
        for name, lag_ms, of, latency_ms in pairs
        if lag_ms is not None and latency_ms is not None and lag_ms > SHAPING_FRACTION * latency_ms
    ]
    late = "the load client was late and could have shaped the result: "
    return late + "; ".join(late_parts) if late_parts else None
