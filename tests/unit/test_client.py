"""The load client against servers that answer well, badly, in pieces, or not at all."""

import asyncio
import socket
import time

import numpy as np
import pytest
import uvloop

from sextant.errors import InputError
from sextant.load.batch import run_batch
from sextant.load.client import Connection, Outcome, Target, prepare
from stub_server import DONE, LAST_CHUNK, STREAM_HEAD, StubServer, answer_tokens, chunk, event

PROMPT = np.array([101, 102, 103, 104], dtype=np.int32)
# A pause between two tokens, and what a busy machine leaves of it at the very least.
PAUSE_S, SEEN_MS = 0.1, 30


def ask(url: str, n_output: int = 3, n: int = 1, timeout_s: float = 20.0) -> list[Outcome]:
    """Send the same request `n` times in a row on one connection."""
    target = Target(url, "m", "secret-key")

    async def send() -> list[Outcome]:
        connection = Connection(target)
        request = prepare(target, PROMPT, n_output)
        outcomes = []
        for _ in range(n):
            outcomes.append(await connection.send(request, time.monotonic_ns(), timeout_s))
        connection.close()
        return outcomes

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


def ask_once(*pieces: bytes | float, close: bool = False, **options) -> Outcome:
    with StubServer(playing(*pieces, close=close)) as server:
        return ask(server.url, **options)[0]


def gaps_ms(outcome: Outcome) -> list[float]:
    return (np.diff(outcome.token_times_ns) / 1e6).tolist()


# What comes back well


def test_a_stream_is_counted_and_ordered_in_time():
    with StubServer(answer_tokens(0.02, 0.005)) as server:
        (outcome,) = ask(server.url, n_output=20)
    assert (outcome.status, outcome.error) == ("ok", None)
    assert (outcome.input_tokens, outcome.output_tokens) == (4, 20)
    times = [outcome.scheduled_ns, outcome.sent_ns, *outcome.token_times_ns]
    assert len(outcome.token_times_ns) == 20
    assert times == sorted(times)
    assert outcome.token_times_ns[0] - outcome.sent_ns >= 20e6
    assert np.median(gaps_ms(outcome)) >= 4


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
    assert outcome.sent_ns <= received_ns
    late_ms = (np.array(outcome.token_times_ns) - np.array(written_ns)) / 1e6
    assert (late_ms >= 0).all()
    # A busy machine delays some, never most of them.
    assert np.median(late_ms) < 5


def test_two_tokens_in_one_chunk_share_their_time():
    outcome = ask_once(
        STREAM_HEAD,
        chunk(event(1)),
        PAUSE_S,
        chunk(event(3)),
        chunk(DONE) + LAST_CHUNK,
    )
    assert (outcome.status, outcome.output_tokens) == ("ok", 3)
    first, second = gaps_ms(outcome)
    assert first > SEEN_MS and second == 0


def test_two_events_in_one_chunk_are_two_tokens():
    outcome = ask_once(STREAM_HEAD, chunk(event(1) + event(2)), chunk(event(3) + DONE) + LAST_CHUNK)
    assert (outcome.status, len(outcome.token_times_ns)) == ("ok", 3)


@pytest.mark.parametrize("cut", range(5, len(event(12)) - 3, 16))
def test_an_event_split_over_two_segments_is_one_token(cut):
    data = event(12)
    outcome = ask_once(
        STREAM_HEAD,
        chunk(event(11)),
        PAUSE_S,
        chunk(data[:cut]),
        PAUSE_S,
        chunk(data[cut:]),
        chunk(DONE) + LAST_CHUNK,
        n_output=12,
    )
    assert (outcome.status, outcome.output_tokens) == ("ok", 12)
    assert len(outcome.token_times_ns) == 12
    # It came with its first or its second half, not with the token before it.
    assert gaps_ms(outcome)[-1] > SEEN_MS


def test_a_chunk_of_http_split_anywhere_changes_nothing():
    stream = STREAM_HEAD + b"".join(chunk(event(n)) for n in (1, 2, 3)) + chunk(DONE) + LAST_CHUNK
    pieces = [stream[start : start + 7] for start in range(0, len(stream), 7)]
    outcome = ask_once(*pieces)
    assert (outcome.status, outcome.output_tokens, outcome.input_tokens) == ("ok", 3, 4)


def test_usage_only_at_the_end_gives_the_times_of_chunks():
    outcome = ask_once(
        STREAM_HEAD,
        chunk(event(None)),
        PAUSE_S,
        chunk(event(None)),
        chunk(event(5)),
        chunk(DONE) + LAST_CHUNK,
        n_output=5,
    )
    assert (outcome.status, outcome.output_tokens) == ("ok", 5)
    (gap,) = gaps_ms(outcome)
    assert gap > SEEN_MS


def test_one_token_with_usage_at_the_end_is_timed_by_its_own_chunk():
    outcome = ask_once(
        STREAM_HEAD, chunk(event(None)), 0.3, chunk(event(1) + DONE) + LAST_CHUNK, n_output=1
    )
    assert (outcome.status, outcome.output_tokens) == ("ok", 1)
    (at,) = outcome.token_times_ns
    assert at - outcome.sent_ns < 250e6


def test_one_token_in_one_event():
    outcome = ask_once(STREAM_HEAD, chunk(event(1) + DONE) + LAST_CHUNK, n_output=1)
    assert (outcome.status, len(outcome.token_times_ns)) == ("ok", 1)


def test_generated_text_cannot_pass_for_usage_or_for_the_end():
    text = 'data: {"completion_tokens": 99, "prompt_tokens": 98} data: [DONE]'
    well = [chunk(event(n, text=text)) for n in (1, 2, 3)]
    outcome = ask_once(STREAM_HEAD, *well, chunk(DONE) + LAST_CHUNK)
    assert (outcome.status, outcome.output_tokens, outcome.input_tokens) == ("ok", 3, 4)
    outcome = ask_once(STREAM_HEAD, *well, LAST_CHUNK)
    assert (outcome.status, outcome.error) == ("incomplete", "the stream ended without [DONE]")
    chunks = [chunk(event(None, text=text)) for _ in range(2)]
    outcome = ask_once(STREAM_HEAD, *chunks, chunk(event(3) + DONE) + LAST_CHUNK)
    assert (outcome.status, len(outcome.token_times_ns)) == ("ok", 2)


def test_a_connection_is_kept_alive():
    with StubServer(answer_tokens()) as server:
        outcomes = ask(server.url, n=5)
    assert [outcome.status for outcome in outcomes] == ["ok"] * 5
    assert server.n_connections == 1


def test_connection_close_is_obeyed():
    head = STREAM_HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    body = chunk(event(1) + event(2) + event(3) + DONE) + LAST_CHUNK
    with StubServer(playing(head + body, close=True)) as server:
        outcomes = ask(server.url, n=5)
    assert [outcome.status for outcome in outcomes] == ["ok"] * 5
    assert server.n_connections == 5


# What goes wrong: an outcome, never an exception


@pytest.mark.parametrize("status", ["500 Internal Server Error", "429 Too Many Requests"])
def test_http_errors_are_told_with_their_text(status):
    body = b'{"error": "CUDA error: an illegal memory access"}'
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with StubServer(playing(head + body)) as server:
        first, second = ask(server.url, n=2)
    assert first.status == second.status == "http_error"
    assert first.error.startswith(f"HTTP {status[:3]}: ") and "illegal memory" in first.error
    assert first.token_times_ns == [] and first.output_tokens is None
    assert server.n_connections == 1


def test_no_usage_at_all_is_not_guessed_from_chunks():
    outcome = ask_once(STREAM_HEAD, chunk(event(None) * 3), chunk(DONE) + LAST_CHUNK)
    assert outcome.status == "incomplete" and "no usage" in outcome.error
    assert outcome.output_tokens is None


@pytest.mark.parametrize("count", [2, 4])
def test_another_number_of_tokens_than_asked_for(count):
    events = b"".join(event(n) for n in range(1, count + 1))
    outcome = ask_once(STREAM_HEAD, chunk(events + DONE) + LAST_CHUNK)
    assert (outcome.status, outcome.error) == ("incomplete", f"{count} of 3 output tokens")


def test_closed_before_the_end():
    outcome = ask_once(STREAM_HEAD, chunk(event(1)), chunk(event(2)), close=True)
    assert outcome.status == "incomplete"


def test_an_answer_without_done():
    outcome = ask_once(STREAM_HEAD, chunk(event(1) + event(2) + event(3)), LAST_CHUNK)
    assert (outcome.status, outcome.error) == ("incomplete", "the stream ended without [DONE]")


def test_closed_before_any_byte():
    with StubServer(playing(close=True)) as server:
        outcomes = ask(server.url, n=2)
    assert [outcome.status for outcome in outcomes] == ["connection_error"] * 2
    assert all(outcome.sent_ns and outcome.error for outcome in outcomes)


def test_nobody_listens():
    with socket.socket() as bound:  # bound, so nobody else can take it, but not listening
        bound.bind(("127.0.0.1", 0))
        (outcome,) = ask(f"http://127.0.0.1:{bound.getsockname()[1]}")
    assert (outcome.status, outcome.sent_ns) == ("connection_error", 0)


def test_broken_chunks_and_what_follows_them():
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


def test_an_answer_that_is_not_http():
    assert ask_once(b"SSH-2.0-OpenSSH_9.6\r\n").status == "connection_error"


def test_a_timeout_ends_the_request_and_the_next_one_is_its_own():
    answers = iter([True, False])

    async def answer(request, writer):
        if next(answers):
            writer.write(STREAM_HEAD + chunk(event(1)))
            await asyncio.sleep(60)
        await answer_tokens()(request, writer)

    with StubServer(answer) as server:
        started = time.monotonic()
        first, second = ask(server.url, n=2, timeout_s=1.0)
    assert time.monotonic() - started < 10
    assert (first.status, first.error) == ("timeout", "no end within 1 s")
    assert (second.status, second.output_tokens) == ("ok", 3)


# What is sent


def test_the_request_fixes_both_lengths_and_streams_usage():
    with StubServer(answer_tokens()) as server:
        ask(server.url, n_output=7)
    (request,) = server.requests
    assert request.head.startswith("POST /v1/completions HTTP/1.1\r\n")
    body = request.json
    assert body["prompt"] == [101, 102, 103, 104]
    assert (body["min_tokens"], body["max_tokens"], body["ignore_eos"]) == (7, 7, True)
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert (body["model"], body["temperature"], body["stream"]) == ("m", 0, True)


def test_the_api_key_is_sent_and_never_shown():
    target = Target("http://127.0.0.1:1", "m", "secret-key")
    request = prepare(target, PROMPT, 3)
    assert b"\r\nAuthorization: Bearer secret-key\r\n" in request.payload
    assert "secret-key" not in repr(target) + str(target) + repr(request)
    assert b"Authorization" not in prepare(Target("http://a", "m"), PROMPT, 3).payload


def test_a_base_url_may_have_a_path():
    payload = prepare(Target("http://host:81/llm/", "m"), PROMPT, 3).payload
    assert payload.startswith(b"POST /llm/v1/completions HTTP/1.1\r\nHost: host:81\r\n")


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://", ""])
def test_a_base_url_that_is_none(url):
    with pytest.raises(InputError, match=r"'base_url'.*http://HOST:PORT"):
        Target(url, "m").address()


# All at once


def test_a_batch_is_sent_at_once_and_answered_in_order():
    inputs, outputs = np.array([4, 5, 6, 7]), np.array([1, 2, 3, 4])
    with StubServer(answer_tokens(ttft_s=0.5)) as server:
        outcomes = run_batch(Target(server.url, "m"), inputs, outputs, 1000, 0, 20.0)
    assert server.most_in_flight == 4
    assert [outcome.status for outcome in outcomes] == ["ok"] * 4
    assert [outcome.input_tokens for outcome in outcomes] == [4, 5, 6, 7]
    assert [outcome.output_tokens for outcome in outcomes] == [1, 2, 3, 4]
