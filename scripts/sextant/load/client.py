"""One streaming request after another on one connection, timed when bytes arrive.

A hot path of a few microseconds: `data_received` stamps the bytes with the monotonic
clock and keeps them; they are searched for tokens only after the request has ended.
Token counts are the server's own (`usage` of each chunk), never chunks counted as tokens.
"""

import asyncio
import json
import re
import ssl
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools
import numpy as np

from sextant.errors import InputError

# The closing quote of a key cannot appear unescaped inside generated text.
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens"\s*:\s*(\d+)')
_PROMPT_TOKENS = re.compile(rb'"prompt_tokens"\s*:\s*(\d+)')
# Generated text may hold the same words, but never at the start of a line.
_EVENT = re.compile(rb"^data:\s*\{", re.MULTILINE)
_DONE = re.compile(rb"^data:\s*\[DONE\]", re.MULTILINE)
_ERROR_EXCERPT_BYTES = 300


@dataclass(frozen=True)
class Target:
    """An OpenAI-compatible server."""

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)

    def address(self) -> tuple[str, int, ssl.SSLContext | None]:
        """Return host, port and the TLS context (None for plain HTTP)."""
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            fix = "write it as http://HOST:PORT or https://HOST"
            raise InputError(f"{self.base_url!r} is no base URL", field="base_url", fix=fix)
        if parts.scheme == "https":
            return parts.hostname, parts.port or 443, ssl.create_default_context()
        return parts.hostname, parts.port or 80, None


@dataclass(frozen=True)
class PreparedRequest:
    """A request as bytes, ready to send, and what it asks for."""

    payload: bytes = field(repr=False)
    """Holds the API key."""
    input_tokens: int
    output_tokens: int


@dataclass
class Outcome:
    """What became of a request. Times are nanoseconds of the monotonic clock."""

    scheduled_ns: int
    sent_ns: int = 0
    token_times_ns: list[int] = field(default_factory=list)
    """Arrival of each output token; two tokens in one chunk share a time."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    status: str = "ok"
    error: str | None = None

    def fail(self, status: str, error: str) -> "Outcome":
        """Mark the request as failed."""
        self.status, self.error = status, error
        return self


def prepare(
    target: Target,
    prompt: Sequence[int] | np.ndarray,
    output_tokens: int,
    sampling: Mapping[str, float] | None = None,
) -> PreparedRequest:
    """Encode a `/v1/completions` request of exact input and output length.

    `ignore_eos` with equal `min_tokens` and `max_tokens` forces the output's length.
    `sampling` holds `temperature`, `top_k` and `top_p` where they are not greedy.
    """
    body = json.dumps(
        {
            "model": target.model,
            "prompt": np.asarray(prompt).tolist(),
            "max_tokens": output_tokens,
            "min_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            **(sampling or {}),
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
        separators=(",", ":"),
    ).encode()
    parts = urlsplit(target.base_url)
    head = [
        f"POST {parts.path.rstrip('/')}/v1/completions HTTP/1.1",
        f"Host: {parts.netloc}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    if target.api_key:
        head.append(f"Authorization: Bearer {target.api_key}")
    payload = "\r\n".join(head).encode() + b"\r\n\r\n" + body
    return PreparedRequest(payload, len(prompt), output_tokens)


class Connection(asyncio.Protocol):
    """A keep-alive connection that carries one request at a time."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future | None = None
        self._now_ns = 0

    async def send(self, request: PreparedRequest, scheduled_ns: int, timeout_s: float) -> Outcome:
        """Send a request and wait for its end; failures are outcomes, not exceptions."""
        outcome = Outcome(scheduled_ns=scheduled_ns)
        try:
            async with asyncio.timeout(timeout_s):
                if self._transport is None:
                    await self._connect()
                self._chunks: list[tuple[int, bytes]] = []
                self._ended = asyncio.get_running_loop().create_future()
                self._parser = httptools.HttpResponseParser(self)
                outcome.sent_ns = time.monotonic_ns()
                self._transport.write(request.payload)
                await self._ended
        except TimeoutError:
            self.close()
            return outcome.fail("timeout", f"no end within {timeout_s:g} s")
        except (OSError, httptools.HttpParserError) as error:
            self.close()
            was_answered = bool(outcome.sent_ns and self._chunks)
            status = "incomplete" if was_answered else "connection_error"
            return outcome.fail(status, str(error) or type(error).__name__)
        return _read_answer(outcome, request, self._parser.get_status_code(), self._chunks)

    def close(self) -> None:
        """Drop the connection; the next request opens a new one."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    async def _connect(self) -> None:
        host, port, tls = self._target.address()
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_connection(lambda: self, host, port, ssl=tls)

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        """Stamp the bytes and hand them to the HTTP parser."""
        self._now_ns = time.monotonic_ns()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the request in flight, if any."""
        self._transport = None
        self._end(exc or ConnectionResetError("the server closed the connection"))

    # httptools callbacks

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body with its time."""
        self._chunks.append((self._now_ns, body))

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if not self._parser.should_keep_alive():
            self.close()
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._ended is None or self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)


def _read_answer(
    outcome: Outcome, request: PreparedRequest, http_status: int, chunks: list[tuple[int, bytes]]
) -> Outcome:
    body = b"".join(chunk for _, chunk in chunks)
    excerpt = body[:_ERROR_EXCERPT_BYTES].decode(errors="replace")
    if http_status != 200:
        return outcome.fail("http_error", f"HTTP {http_status}: {excerpt}")
    outcome.token_times_ns, outcome.output_tokens = token_times(body, chunks)
    prompts = _PROMPT_TOKENS.findall(body)
    outcome.input_tokens = int(prompts[-1]) if prompts else None
    if outcome.output_tokens is None or outcome.input_tokens is None:
        return outcome.fail("incomplete", f"the server reported no usage: {excerpt}")
    if not _DONE.search(body):
        return outcome.fail("incomplete", "the stream ended without [DONE]")
    if outcome.output_tokens != request.output_tokens:
        problem = f"{outcome.output_tokens} of {request.output_tokens} output tokens"
        return outcome.fail("incomplete", problem)
    return outcome


def token_times(body: bytes, chunks: list[tuple[int, bytes]]) -> tuple[list[int], int | None]:
    """Return the arrival time (ns) of each output token and the server's count of them.

    Where the server reports usage with every chunk, a chunk's tokens are the increase of
    that count. Where it reports usage only at the end, each chunk but the last, which
    holds the usage, is timed once: the times are then those of chunks, and their number
    may be below the count.
    """
    ends = np.cumsum([len(chunk) for _, chunk in chunks]).tolist()
    usages = [(match.end(), int(match[1])) for match in _COMPLETION_TOKENS.finditer(body)]
    if not usages:
        return [], None
    total = usages[-1][1]
    if len(usages) == 1:
        events = [match.end() for match in _EVENT.finditer(body)]
        starts = events[:-1] or events
        return [chunks[bisect_left(ends, start)][0] for start in starts][:total], total
    times: list[int] = []
    for position, count in usages:
        arrived = chunks[bisect_left(ends, position)][0]
        times.extend([arrived] * (count - len(times)))
    return times, total
