"""One streaming request after another on one connection, timed when bytes arrive.

A hot path of a few microseconds: `data_received` stamps the bytes with the monotonic clock, and
the events in them are read at once, while the processor's caches hold them. What the answer came
to is found later (see `answer`), when there is time.
"""

import asyncio
import os
import select
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import httptools

from sextant.engine.http import ServerAddress
from sextant.load.events import AnswerReader
from sextant.load.source import PreparedRequest

_OPENED_AT_ONCE = 32
# No answer is longer: far above the events of a token, and what comes before and after them.
_MOST_BYTES = 1 << 20
_MOST_BYTES_A_TOKEN = 4096


@dataclass(slots=True, eq=False)
class ExchangeTimes:
    """Moments of a request in nanoseconds of the monotonic clock; 0: it has not come to that."""

    scheduled_ns: int  # when it was due
    ready_ns: int  # from when on no limit on requests in flight held it back
    sent_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0
    ended_ns: int = 0


@dataclass(slots=True)
class AnswerHead:
    """What an answer begins with."""

    http_status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    """By name in lower case: those of `TOLD`."""


@dataclass(slots=True, eq=False)
class Exchange:
    """A request in flight, then its outcome."""

    request: PreparedRequest
    user: int
    times: ExchangeTimes
    is_measured: bool = True
    replica: int = 0
    n_bytes: int = 0
    head: AnswerHead = field(default_factory=AnswerHead)
    token_offsets_ms: "array[float]" = field(default_factory=lambda: array("f"))
    """Arrival of each output token since the request was sent; 4 bytes a token."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    oddities: list[str] = field(default_factory=list)
    """Why the figures of a good answer are less than exact (constants of `answer`)."""
    status: str = "ok"
    error: str | None = None
    reader: AnswerReader = field(default_factory=AnswerReader)  # of the answer as it comes

    def fail(self, status: str, error: str) -> None:
        """Mark the request as failed."""
        self.status, self.error = status, error


TOLD = (b"content-type", b"content-encoding", b"location")
"""Headers by which an answer that cannot be read is explained."""
_MOST_OF_HEADER = 200


class Connection(asyncio.Protocol):
    """A keep-alive connection to one replica that carries one request at a time. `timeout_s` limits
    a request from its start, connecting included. As soon as a request has ended, `keep` takes it,
    then `on_end` is called."""

    def __init__(
        self,
        target: ServerAddress,
        replica: int,
        timeout_s: float,
        keep: Callable[[Exchange], None],
        on_end: Callable[["Connection", Exchange], None],
    ) -> None:
        self.replica, self.idle_since_ns = replica, 0
        self._target, self._timeout_s = target, timeout_s
        self._keep, self._on_end = keep, on_end
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._opening: asyncio.Task[None] | None = None
        self._now_ns = self._most_bytes = self._n_dropped = 0
        self._was_answered = self._is_complete = self._is_second = False

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def open(self) -> asyncio.Transport:
        """Connect. Raises OSError: nobody listens, or the certificate is not trusted."""
        host, port, tls = self._target.address()
        async with asyncio.timeout(self._timeout_s):
            transport, _ = await self._loop.create_connection(lambda: self, host, port, ssl=tls)
        self._parser = httptools.HttpResponseParser(self)
        # Plain sockets are written to at once: the loop would write only after it has read all
        # that waits, and the time sent would be too early.
        self._transport, socket = transport, transport.get_extra_info("socket")
        self._fd = socket.fileno() if tls is None and socket else None
        self._waiting = select.poll()
        if self._fd is not None:
            self._waiting.register(self._fd, select.POLLIN)
        self.idle_since_ns = time.monotonic_ns()
        return transport

    def start(self, exchange: Exchange) -> None:
        """Send a request, on a new connection if there is none; failures are outcomes too."""
        self._exchange, exchange.replica = exchange, self.replica
        self._most_bytes = _MOST_BYTES + _MOST_BYTES_A_TOKEN * exchange.request.output_tokens
        self._was_answered = self._is_complete = self._is_second = False
        self._timer = self._loop.call_later(self._timeout_s, self._time_out)
        if self._transport is not None and self._waiting.poll(0):
            self.close()  # the server has closed it, or sends what was not asked for
        if self._transport is None:
            self._opening = self._loop.create_task(self._open_and_send(exchange))
        else:
            self._send(exchange, self._transport)

    def close(self) -> None:
        """Drop the connection; the next request opens a new one."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
            self._n_dropped += 1  # `connection_lost` comes later, perhaps after another was opened

    async def _open_and_send(self, exchange: Exchange) -> None:
        try:
            transport = await self.open()
        except (OSError, UnicodeError) as error:  # a host name may be no name at all
            self._end("connection_error", str(error) or type(error).__name__)
            return
        self._send(exchange, transport)

    def _send(self, exchange: Exchange, transport: asyncio.Transport) -> None:
        request = exchange.request
        data = request.wire(self._target.head)
        request.body = b""  # a level's bodies are larger than all that is kept of it
        exchange.times.sent_ns = time.monotonic_ns()
        n_written = 0
        if self._fd is not None and not transport.get_write_buffer_size():
            try:
                n_written = os.write(self._fd, data)
            except BlockingIOError:
                pass
            except OSError as error:  # reported after this call, as all ends are
                self._loop.call_soon(self._fail, error, exchange)
                return
        if n_written < len(data):
            transport.write(data[n_written:])

    def _time_out(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        self.close()
        self._end("timeout", f"no end within {self._timeout_s:g} s")

    def _fail(self, error: Exception, of: Exchange | None = None) -> None:
        if of and of is not self._exchange:
            return
        self.close()
        status = "incomplete" if self._was_answered else "connection_error"
        self._end(status, str(error) or type(error).__name__)

    def _end(self, status: str = "ok", error: str | None = None) -> None:
        exchange, self._exchange, self._opening = self._exchange, None, None
        if exchange is None:
            return
        self._timer.cancel()
        exchange.times.ended_ns = self.idle_since_ns = time.monotonic_ns()
        exchange.status, exchange.error = status, error
        exchange.reader.finish()
        if status == "ok" and (exchange.head.http_status != 200 or not exchange.reader.is_done):
            exchange.status = "incomplete"  # until it has been judged
        self._keep(exchange)
        self._on_end(self, exchange)

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        """Stamp the bytes and hand them to the HTTP parser."""
        self._now_ns = time.monotonic_ns()
        exchange = self._exchange
        if exchange is None:
            self.close()  # no request is in flight
            return
        exchange.n_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(error)
            return
        if self._is_complete:
            if not self._is_kept_alive or self._is_second:
                self.close()
            self._end()
        elif exchange.n_bytes > self._most_bytes:
            self._fail(ConnectionError(f"cut off: an answer above {self._most_bytes:,} bytes"))

    def connection_lost(self, exc: Exception | None) -> None:
        """End the request in flight, if any."""
        if self._n_dropped:
            self._n_dropped -= 1
            return
        self._transport = None
        if self._exchange is None:
            return
        status = self._parser.get_status_code() if self._was_answered else 0
        # An answer may end with its connection; of an error, the status says all.
        self._exchange.reader.finish()
        if exc is None and (self._exchange.reader.is_done or status >= 300):
            self._exchange.head.http_status = status
            self._end()
        else:
            self._fail(exc or ConnectionResetError("the server closed the connection"))

    # httptools callbacks, out of `data_received`, which parses only while a request is on its way

    def on_message_begin(self) -> None:
        """What follows a whole answer is no answer to the next request."""
        self._is_second = self._is_second or self._is_complete

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep what says of which kind an answer is."""
        if name.lower() in TOLD and self._exchange is not None and not self._is_second:
            text = value.decode(errors="replace")
            self._exchange.head.headers[name.lower().decode()] = text[:_MOST_OF_HEADER]

    def on_headers_complete(self) -> None:
        """Something that speaks HTTP has begun to answer."""
        self._was_answered = True

    def on_body(self, body: bytes) -> None:
        """Read a piece of the body."""
        if not self._is_second:
            self._exchange.reader.feed(body, self._now_ns)  # type: ignore[union-attr]  # it is set

    def on_message_complete(self) -> None:
        """The answer is whole, unless it only announces another (100 Continue)."""
        status = self._parser.get_status_code()
        if status >= 200 and not self._is_second:
            self._exchange.head.http_status = status  # type: ignore[union-attr]  # it is set
            self._is_complete = True
            self._is_kept_alive = self._parser.should_keep_alive()  # known only now


async def open_all(connections: Sequence[Connection]) -> None:
    """Connect, a few at a time: servers queue few who knock at once."""
    for first in range(0, len(connections), _OPENED_AT_ONCE):
        some = connections[first : first + _OPENED_AT_ONCE]
        # What fails here fails again when a request needs the connection, and is recorded then.
        await asyncio.gather(*(one.open() for one in some), return_exceptions=True)
