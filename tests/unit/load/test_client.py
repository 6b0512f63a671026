"""The load client against servers that answer well, badly, in pieces, or not at all."""

import asyncio
import itertools
import json
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import uvloop
from tokenizers import Tokenizer, models, pre_tokenizers

from sextant.base.errors import InputError
from sextant.engine.http import ServerAddress
from sextant.load.answer import judge
from sextant.load.client import Connection, Exchange, ExchangeTimes
from sextant.load.source import Form, Text, Texts, prepare
from sextant.workload.prompts import CorpusTokens
from stub_server import DONE, LAST_CHUNK, STREAM_HEAD, StubServer, answer_tokens, chunk, event

PROMPT = np.array([101, 102, 103, 104], dtype=np.int32)


def ask(
    server: str | ServerAddress, n_output: int = 3, n: int = 1, timeout_s: float = 20.0, keep=None
) -> list[Exchange]:
    """Send the same request `n` times in a row on one connection, and `keep` or judge answers."""
    target = (
        server if isinstance(server, ServerAddress) else ServerAddress(server, "m", "secret-key")
    )
    keep = keep or judge

    async def send() -> list[Exchange]:
        ended: asyncio.Queue[Exchange] = asyncio.Queue()

        def on_end(_, exchange: Exchange) -> None:
            ended.put_nowait(exchange)

        connection = Connection(target, 0, timeout_s, keep, on_end)
        exchanges = []
        for number in range(n):
            request, now_ns = prepare("m", f"r{number}", PROMPT, n_output), time.monotonic_ns()
            connection.start(Exchange(request, 0, ExchangeTimes(now_ns, now_ns)))
            exchanges.append(await ended.get())
        connection.close()
        return exchanges

    return uvloop.run(send())


def playing(*pieces: bytes | float, close: bool = False):
    """Answer with these bytes, each sent by itself, and pauses (seconds) between them."""

    async def answer(_, writer):
        for piece in pieces:
            if isinstance(piece, float):
                await asyncio.sleep(piece)
            else:
                writer.write(piece)
                await writer.drain()
        if close:
            writer.close()

    return answer


def ask_once(*pieces: bytes | float, close: bool = False, **options) -> Exchange:
    with StubServer(playing(*pieces, close=close)) as server:
        return ask(server.url, **options)[0]


def test_a_stream_is_counted_and_ordered_in_time():
    with StubServer(answer_tokens(0.02, 0.005)) as server:
        (outcome,) = ask(server.url, n_output=20)
    assert (outcome.status, outcome.error) == ("ok", None)
    assert (outcome.input_tokens, outcome.output_tokens) == (4, 20)
    offsets_ms = outcome.token_offsets_ms.tolist()
    assert len(offsets_ms) == 20 and outcome.token_offsets_ms.itemsize == 4
    assert offsets_ms == sorted(offsets_ms) and offsets_ms[0] >= 20
    assert outcome.times.scheduled_ns <= outcome.times.sent_ns < outcome.times.first_token_ns
    assert outcome.times.first_token_ns < outcome.times.last_token_ns <= outcome.times.ended_ns
    first_ms = (outcome.times.first_token_ns - outcome.times.sent_ns) / 1e6
    assert offsets_ms[0] == pytest.approx(first_ms, abs=1e-3)
    assert offsets_ms[-1] >= 20 + 19 * 5


def test_times_are_those_at_which_the_server_sent():
    written_ns = []

    async def answer(_, writer):
        writer.write(STREAM_HEAD)
        for count in range(1, 11):
            await asyncio.sleep(0.03)
            written_ns.append(time.monotonic_ns())
            writer.write(chunk(event(count)))
        writer.write(chunk(DONE) + LAST_CHUNK)

    with StubServer(answer) as server:
        (outcome,) = ask(server.url, n_output=10)
        received_ns = server.requests[0].received_ns
    assert outcome.times.sent_ns <= received_ns
    written_ms = (np.array(written_ns) - outcome.times.sent_ns) / 1e6
    late_ms = np.array(outcome.token_offsets_ms) - written_ms
    assert (late_ms >= -1e-3).all()
    # A busy machine delays some, never most of them.
    assert np.median(late_ms) < 5


def test_an_answer_broken_at_any_byte_is_the_same():
    stream = STREAM_HEAD + b"".join(chunk(event(n)) for n in (1, 2, 3)) + chunk(DONE) + LAST_CHUNK
    cuts = iter(range(1, len(stream)))

    async def answer(_, writer):
        cut = next(cuts)
        for piece in (stream[:cut], stream[cut:]):
            writer.write(piece)
            await asyncio.sleep(0.001)

    n = len(stream) - 1
    with StubServer(answer) as server:
        outcomes = ask(server.url, n=n)
    seen = {(out.status, out.output_tokens, len(out.token_offsets_ms)) for out in outcomes}
    assert seen == {("ok", 3, 3)} and server.n_connections == 1


def test_what_follows_the_end_mark_is_no_failure():
    """By this status users send their next request at once, or pause."""
    bye = chunk(b": bye\n" * 99) + LAST_CHUNK
    pieces = [STREAM_HEAD, chunk(event(1) + DONE[:9]), 0.01, chunk(DONE[9:]), bye]
    outcome = ask_once(*pieces, keep=lambda exchange: None)
    assert outcome.status == "ok"
    assert ask_once(*pieces[:2], bye, keep=lambda exchange: None).status == "incomplete"


def test_an_answer_may_end_with_its_connection():
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    well = ask_once(head, event(1) + event(2), DONE, close=True, n_output=2)
    assert (well.status, well.output_tokens) == ("ok", 2)
    early = ask_once(head, event(1), close=True, n_output=2)
    assert (early.status, early.output_tokens) == ("incomplete", 1)


def test_connection_close_is_obeyed():
    head = STREAM_HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    body = chunk(event(1) + event(2) + event(3) + DONE) + LAST_CHUNK
    with StubServer(playing(head + body, close=True)) as server:
        outcomes = ask(server.url, n=5)
    assert [outcome.status for outcome in outcomes] == ["ok"] * 5
    assert server.n_connections == 5


@pytest.mark.parametrize("status", ["500 Internal Server Error", "429 Too Many Requests"])
def test_http_errors_are_told_with_their_text(status):
    body = b'{"error": "CUDA error: an illegal memory access"}'
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with StubServer(playing(head + body)) as server:
        first, second = ask(server.url, n=2)
    assert first.status == second.status == "http_error"
    assert first.error.startswith(f"HTTP {status[:3]}: ") and "illegal memory" in first.error
    assert len(first.token_offsets_ms) == 0 and first.output_tokens is None
    assert server.n_connections == 1


def test_closed_before_any_byte_and_broken_chunks():
    with StubServer(playing(close=True)) as server:
        closed = ask(server.url, n=2)
    assert [outcome.status for outcome in closed] == ["connection_error"] * 2
    assert all(outcome.times.sent_ns and outcome.error for outcome in closed)
    broken, answers = b"zz\r\nnot a chunk\r\n", iter([True, False])

    async def answer(request, writer):
        if next(answers):
            writer.write(STREAM_HEAD + chunk(event(1)) + broken)
        else:
            await answer_tokens()(request, writer)

    with StubServer(answer) as server:
        first, second = ask(server.url, n=2)
    assert first.status == "incomplete"
    assert second.status == "ok"  # on a new connection
    assert server.n_connections == 2


def test_a_timeout_ends_the_request_and_the_next_one_is_its_own():
    answers = iter([True, False])

    async def answer(request, writer):
        if next(answers):
            writer.write(STREAM_HEAD + chunk(event(1)))
            await asyncio.sleep(60)
        await answer_tokens()(request, writer)

    with StubServer(answer) as server:
        started = time.monotonic()
        first, second = ask(server.url, n=2, timeout_s=3.0)
    assert time.monotonic() - started < 50
    assert (first.status, first.error) == ("timeout", "no end within 3 s")
    assert (first.output_tokens, len(first.token_offsets_ms)) == (1, 1)  # what came is kept
    assert (second.status, second.output_tokens) == ("ok", 3)


def test_the_request_fixes_both_lengths_streams_usage_and_never_shows_the_key():
    with StubServer(answer_tokens()) as server:
        ask(server.url, n_output=7)
    (request,) = server.requests
    assert request.head.startswith("POST /v1/completions HTTP/1.1\r\n")
    assert "\r\nAuthorization: Bearer secret-key\r\n" in request.head
    body = request.json
    assert body["prompt"] == [101, 102, 103, 104]
    assert (body["min_tokens"], body["max_tokens"], body["ignore_eos"]) == (7, 7, True)
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert (body["model"], body["temperature"], body["stream"]) == ("m", 0, True)
    target = ServerAddress("http://127.0.0.1:1", "m", "secret-key")
    assert "secret-key" not in repr(target) + str(target) + repr(prepare("m", "r", PROMPT, 3))
    assert b"Authorization" not in ServerAddress("http://a", "m").head


@pytest.mark.parametrize(
    ("url", "said"),
    [
        *((url, r"'base_url'.*http://HOST:PORT") for url in ("127.0.0.1:8000", "ftp://host", "")),
        *((url, r"'base_url'.*http://HOST:PORT") for url in ("http://", "http://h:x")),
        ("http://me:secret-word@host", "user's name"),
    ],
)
def test_a_base_url_that_is_none_is_refused_without_its_password(url, said):
    with pytest.raises(InputError, match=said) as caught:
        ServerAddress(url, "m").address()
    assert "secret-word" not in str(caught.value)


def test_a_wall_clock_that_steps_changes_nothing(monkeypatch):
    steps = itertools.cycle([0.0, 4e9, -4e9])
    monkeypatch.setattr(time, "time", lambda: next(steps))
    monkeypatch.setattr(time, "time_ns", lambda: int(next(steps)) * 10**9)
    with StubServer(answer_tokens(0.02, 0.01)) as server:
        outcomes = ask(server.url, n_output=5, n=3, timeout_s=10.0)
    assert [outcome.status for outcome in outcomes] == ["ok"] * 3
    for outcome in outcomes:
        assert 20 <= outcome.token_offsets_ms[0] < 5000
        assert min(np.diff(outcome.token_offsets_ms)) > 0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    """A certificate for 127.0.0.1 that its own key signed, with that key."""
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", path, "-out", f"{path}.crt"]
    subprocess.run(command, check=True, capture_output=True)
    with path.open("ab") as file:
        file.write(Path(f"{path}.crt").read_bytes())
    return path


def test_https_with_a_private_certificate(certificate):
    with StubServer(answer_tokens(), certificate) as server:
        trusting = ServerAddress(server.url, "m", "secret-key", certificate)
        (well, again), (refused,) = ask(trusting, n=2), ask(server.url)
    assert [well.status, again.status, well.output_tokens] == ["ok", "ok", 3]
    assert server.requests[0].head.count("secret-key") == 1
    # A certificate that nobody vouches for is not trusted: nothing was sent, the key least.
    assert (refused.status, refused.times.sent_ns) == ("connection_error", 0)
    assert "certificate" in refused.error.lower() and len(server.requests) == 2


def test_a_file_that_holds_no_certificates(tmp_path):
    (tmp_path / "ca.pem").write_text("nothing")
    for name in ("ca.pem", "missing.pem"):
        with pytest.raises(InputError, match=rf"{name}, field 'ca_file'.*PEM"):
            ServerAddress("https://host", "m", None, tmp_path / name).address()


def test_a_chat_and_a_prompt_as_text():
    forms = (Form(is_chat=True), Form())
    chat, prompt = (prepare("m", "r", Text("a b", 2), 7, form=form) for form in forms)
    body = json.loads(chat.body)
    assert body["messages"] == [{"role": "user", "content": "a b"}] and "prompt" not in body
    assert (body["min_tokens"], body["ignore_eos"]) == (7, True)
    assert json.loads(prompt.body)["prompt"] == "a b" and prompt.input_tokens == 2


@pytest.mark.parametrize("form", ["words", "exact", "cut"])
def test_texts_have_the_tokens_that_are_asked_for(form):
    words = {"<unk>": 0} | {word: number for number, word in enumerate("abcde", 1)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()

    def made() -> list[Text]:
        ids = CorpusTokens([1, 2, 3, 4, 5] * 9) if form == "cut" else None
        return Texts(None if form == "words" else tokenizer, ids).prompts([9, 1], 3)

    assert [prompt.n_tokens for prompt in made()] == [9, 1]
    assert [len(tokenizer.encode(prompt.text)) for prompt in made()] == [9, 1]
    assert made() == made()
