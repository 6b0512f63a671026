"""An HTTP server in a thread: a test decides each byte that it sends, and when."""

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Received:
    """A request as it came over the wire, and the time when it was complete."""

    head: str
    body: bytes
    connection: int
    received_ns: int

    @property
    def json(self) -> dict:
        return json.loads(self.body)

    @property
    def request_id(self) -> str:
        return self.head.partition("X-Request-ID: ")[2].partition("\r\n")[0]


Answer = Callable[[Received, asyncio.StreamWriter], Awaitable[None]]


class StubServer:
    """Calls `answer` for each request; use it as a context manager.

    A GET is answered 404, unless the answer has the attribute `takes_get`.
    With `certificate`, a file of a certificate and its key, it speaks https.
    """

    def __init__(self, answer: Answer, certificate: Path | None = None) -> None:
        self.answer, self._tls = answer, None
        if certificate:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(certificate)
        self.requests: list[Received] = []
        self.n_connections = self.in_flight = self.most_in_flight = 0
        self._ready, self._loop = threading.Event(), asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "StubServer":
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        starting = asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        server = self._loop.run_until_complete(starting)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        server.close()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.n_connections += 1
        connection = self.n_connections
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lengths = [line for line in head.splitlines() if line.startswith("Content-Length")]
                body = await reader.readexactly(int(lengths[0].split()[1]) if lengths else 0)
                request = Received(head, body, connection, time.monotonic_ns())
                if head.startswith("GET") and not hasattr(self.answer, "takes_get"):
                    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                    continue
                self.requests.append(request)
                self.in_flight += 1
                self.most_in_flight = max(self.most_in_flight, self.in_flight)
                try:
                    await self.answer(request, writer)
                finally:
                    self.in_flight -= 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
DONE = b"data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """Frame a piece of body for chunked encoding."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(n_output: int | None, n_input: int = 4, text: str = "a") -> bytes:
    """Encode one event of a completion; with `n_output` None it reports no usage."""
    body: dict = {"choices": [{"index": 0, "text": text}]}
    if n_output is not None:
        body["usage"] = {"prompt_tokens": n_input, "completion_tokens": n_output}
    return f"data: {json.dumps(body)}\n\n".encode()


def usage_alone(n_output: int, n_input: int = 4) -> bytes:
    """Encode the event after the last token."""
    usage = f'{{"prompt_tokens": {n_input}, "completion_tokens": {n_output}}}'
    return f'data: {{"choices": [], "usage": {usage}}}\n\n'.encode()


def answer_tokens(ttft_s: float = 0.0, itl_s: float = 0.0) -> Answer:
    """Answer as vLLM does: usage with every token, once more at the end, then `[DONE]`."""

    async def answer(request: Received, writer: asyncio.StreamWriter) -> None:
        n_input, n_output = len(request.json["prompt"]), request.json["max_tokens"]
        writer.write(STREAM_HEAD)
        await asyncio.sleep(ttft_s)
        for count in range(1, n_output + 1):
            writer.write(chunk(event(count, n_input)))
            await writer.drain()
            if count < n_output:
                await asyncio.sleep(itl_s)
        writer.write(chunk(usage_alone(n_output, n_input)) + chunk(DONE) + LAST_CHUNK)

    return answer


def answer_text(body: str, status: str = "200 OK", length: int | None = None) -> Answer:
    """Return an answer to every request: a text.

    With `length`, the head promises that many bytes, and the connection closes after the text.
    """

    async def answer(_: Received, writer: asyncio.StreamWriter) -> None:
        data = body.encode()
        head = f"HTTP/1.1 {status}\r\nContent-Length: {length or len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        if length is not None:
            writer.close()

    answer.takes_get = True  # type: ignore[attr-defined]
    return answer


def answer_endpoint(
    model: str, *, key: str | None = None, metrics: str | None = None, itl_s: float = 0.002
) -> Answer:
    """Answer as an OpenAI-compatible server does that serves one model; `metrics` is its text."""
    tokens = answer_tokens(itl_s, itl_s)
    texts = {
        "/v1/models": json.dumps({"data": [{"id": model}]}),
        "/version": json.dumps({"version": "9.9"}),
        "/metrics": metrics,
    }

    async def answer(request: Received, writer: asyncio.StreamWriter) -> None:
        path = request.head.split(" ", 2)[1]
        is_known = key is None or f"Authorization: Bearer {key}\r\n" in request.head
        if path.startswith("/v1/") and not is_known:
            writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
        elif path.endswith("/completions"):
            await tokens(request, writer)
        elif (text := texts.get(path)) is not None:
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
        else:
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    answer.takes_get = True  # type: ignore[attr-defined]
    return answer
