"""Servers that send anything: every request is counted once, and no key or answer is let go of."""

import asyncio
import gc
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command import sextant
from sextant.base.errors import InputError
from sextant.engine.http import ServerAddress, api_key_of, get
from sextant.engine.protocol import RunningServer
from sextant.load.answer import OTHER_INPUT, judge
from sextant.load.client import Exchange, ExchangeTimes
from sextant.load.measure import LoadTargets
from sextant.load.rows import RequestLog
from sextant.load.schedules import run_closed_loop
from sextant.load.source import RequestSource, draw_in_order, prepare
from sextant.workload.prompts import RandomTokens
from stub_server import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    StubServer,
    answer_tokens,
    chunk,
    event,
    usage_alone,
)

KEY = "sk-a/very+secret-key"
DEEP = b'data: {"choices":' + b"[" * 100_000 + b"\n\n"
NOT_UTF8 = event(1).replace(b'"a"', b'"\xff"')
GOOD = event(1) + event(2) + DONE


def an_exchange(n_output: int = 3) -> Exchange:
    times = ExchangeTimes(scheduled_ns=1, ready_ns=1, sent_ns=1)
    exchange = Exchange(prepare("m", "r", np.arange(4), n_output), 0, times)
    exchange.head.http_status = 200
    return exchange


def read(exchange: Exchange, *pieces: bytes) -> None:
    """Read all pieces of an answer, which came one after another."""
    for at_ns, piece in enumerate(pieces, 2):
        exchange.reader.feed(piece, at_ns)
    exchange.reader.finish()
    judge(exchange, ["key"])


def row_of(exchange: Exchange) -> dict:
    log = RequestLog()
    log.add(exchange)
    (table,) = log.batches(1.0, 0)
    (row,) = table.to_pylist()
    return row


def load(url: str, *, users: int = 1, duration_s: float = 0.3, key=None, n_output: int = 2):
    source = RequestSource("m", draw_in_order([4], [n_output], RandomTokens(100)), 0)
    # No request here ends by its timeout, however busy the machine is.
    targets = LoadTargets([ServerAddress(url, "m", key)], timeout_s=60.0, epoch_ns=0)
    return run_closed_loop(targets, source, users, duration_s)


def saying(body: bytes):
    async def answer(_, writer):
        writer.write(STREAM_HEAD + chunk(body) + LAST_CHUNK)

    return answer


# Bytes of answers

ERRORS = [b'data: {"error": %s}\n' % it for it in (b'"\\ud800"', b"[" * 900 + b"]" * 900)]
LINES = [*GOOD.splitlines(keepends=True), NOT_UTF8, DEEP, usage_alone(2), b"event: error\n"]
PARTS = [b"\r", b"\n", b"data:", b": \n", b"\xef\xbb\xbf", b"9" * 5000]
BYTES = st.one_of(st.binary(max_size=40), *map(st.sampled_from, (LINES, ERRORS, PARTS)))


@settings(deadline=None, max_examples=150)
@given(st.lists(BYTES, max_size=8), st.data())
def test_any_bytes_cut_anywhere_are_one_request(some, data) -> None:
    text = b"".join(some)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    places, exchange = [0, *cuts, len(text)], an_exchange(2)
    read(exchange, *(text[first:last] for first, last in itertools.pairwise(places)))
    row = row_of(exchange)
    assert row["status"] in ("ok", "incomplete")
    assert (row["status"] == "ok") == (row["error"] is None)
    if row["status"] == "ok":
        assert len(row["token_offsets_ms"]) > 0 and row["output_tokens"] == 2


@pytest.mark.parametrize("odd", [NOT_UTF8, DEEP, b"data: \xff\n\n", b"event: error\n\n"])
@pytest.mark.parametrize("at_end", [True, False])
def test_each_request_that_the_server_saw_is_recorded(odd: bytes, at_end) -> None:
    body = event(1) + event(2) + odd + DONE if at_end else odd + GOOD
    with StubServer(saying(body)) as server:
        result = load(server.url)
        n_sent = len(server.requests)
    rows = result.table().to_pylist()
    assert n_sent == result.log.n_ok + result.log.n_failed == len(rows) > 0
    assert {row["status"] for row in rows} == {"incomplete"} and all(row["error"] for row in rows)


@pytest.mark.parametrize(
    ("count", "error"),
    [(10**9, "of 3 output"), (10**12, "of 3 output"), ("9" * 5000, "range"), ("[" * 500, "JSON")],
)
def test_a_server_cannot_make_up_tokens(count, error) -> None:
    usage = b'{"prompt_tokens": 4, "completion_tokens": %s}' % str(count).encode()
    exchange = an_exchange()
    read(exchange, event(1) + b'data: {"choices":[{"text":"a"}],"usage":' + usage + b"}\n\n" + DONE)
    row = row_of(exchange)  # 32-bit columns
    assert len(row["token_offsets_ms"]) <= 3
    assert row["status"] == "incomplete" and error in row["error"] and len(row["error"]) < 400


def test_a_line_without_an_end_is_not_kept() -> None:
    exchange, piece = an_exchange(), b"x" * 2**18
    for number in range(64):
        exchange.reader.feed(piece, number + 2)
        assert sum(map(len, exchange.reader.line_parts)) <= 2**20
    read(exchange, b"\n" + event(3))
    assert exchange.status == "incomplete" and len(exchange.error) < 400


@pytest.mark.parametrize("piece", [b": a\n", b'data: {"choices":[{"text":"a"}]}\n'])
def test_an_endless_answer_is_cut_off(piece: bytes) -> None:
    async def endless(_, writer):
        writer.write(STREAM_HEAD)
        while not writer.is_closing():
            writer.write(chunk(piece) * 2000)
            await writer.drain()

    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with StubServer(endless) as server:
        result = load(server.url, users=4, duration_s=0.2)
        n_sent = len(server.requests)
    assert n_sent == result.log.n_failed > 0
    errors = {row["error"] for row in result.table().to_pylist()}
    assert all("cut off: an answer above" in error for error in errors), errors
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 150_000


def test_an_answer_that_was_not_asked_for_is_nobodys() -> None:
    """The server sends each answer twice; the second one belongs to no request."""

    async def twice(_, writer):
        await asyncio.sleep(0.05)
        answer = STREAM_HEAD + chunk(GOOD) + LAST_CHUNK
        writer.write(answer + answer)

    with StubServer(twice) as server:
        result = load(server.url, duration_s=0.5)
    rows = result.table().to_pylist()
    assert len(rows) > 2 and all(row["token_offsets_ms"][0] >= 49 for row in rows)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_the_first_answers_decide_whether_a_server_lets_us_in(
    tmp_path, monkeypatch, status
) -> None:
    async def refuse(request, writer):
        said = f"no {request.head.partition('Bearer ')[2].partition(chr(13))[0]} here"
        head = f"HTTP/1.1 {status} No\r\nContent-Length: {len(said)}\r\n\r\n"
        writer.write(f"{head}{said}".encode())

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    lengths = ("--input-tokens", 8, "--output-tokens", 3, "--users", "4,8,16")
    out = ("--model", "m", "--out", tmp_path / "out")
    with StubServer(refuse) as server:
        with pytest.raises(
            InputError, match=rf"refuses the requests: HTTP {status}: no \[API key\]"
        ):
            sextant("load", "--base-url", server.url, *out, *lengths)
        assert len(server.requests) <= 8
    assert list((tmp_path / "out").iterdir()) == []


def test_a_key_is_stripped_and_checked_and_never_shown(monkeypatch) -> None:
    monkeypatch.setenv("K", f" {KEY}\r\n")
    assert api_key_of("K", "key") == KEY
    monkeypatch.setenv("K", " \n")
    assert api_key_of("K", "key") is None
    for odd in (f"{KEY}\nX: y", f"{KEY} b", "sk-ключ"):
        monkeypatch.setenv("K", odd)
        with pytest.raises(InputError, match="'key': the API key holds") as caught:
            api_key_of("K", "key")
        assert odd[:6] not in str(caught.value)


def test_a_key_given_in_place_of_its_variable_is_not_repeated(tmp_path) -> None:
    options = ("--users", 1, "--input-tokens", 1, "--output-tokens", 1, "--api-key-env", KEY)
    to = ("--base-url", "http://127.0.0.1:9", "--model", "m", "--out", tmp_path / "out")
    with pytest.raises(InputError, match="has no such variable") as caught:
        sextant("load", *to, *options)
    assert KEY not in str(caught.value)


def test_a_server_that_repeats_its_key_everywhere(tmp_path) -> None:
    """In its version, in errors as JSON has them, and in a redirect to another host."""
    escaped = KEY.replace("/", "\\/")

    async def answer(request, writer):
        path = request.head.split(" ", 2)[1]
        said, status = f'{{"version": "Bearer {KEY}"}}', "200 OK"
        if path.endswith("/completions"):
            said, status = f'{{"error": "Bearer {escaped}, {KEY[:9]}"}}', "500 Oops"
            if len(server.requests) % 2:
                status = f"307 Elsewhere\r\nLocation: {other.url}/v1/completions"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(said)}\r\n\r\n{said}".encode())

    answer.takes_get = True
    out = tmp_path / "out"
    options = f"--model m --out {out} --input-tokens 4 --output-tokens 2 --batch 4".split()
    with StubServer(answer) as server, StubServer(answer_tokens()) as other:
        code = "from sextant.cli.app import main; main()"
        command = [sys.executable, "-c", code, "load", "--base-url", server.url]
        done = subprocess.run(
            [*command, *options],
            env=os.environ | {"OPENAI_API_KEY": f"{KEY}\n"},
            capture_output=True,
            text=True,
        )
        assert other.requests == []
    assert done.returncode == 1 and "no request that is measured succeeded" in done.stderr
    assert json.loads((out / "run.json").read_text())["server"]["version"] == "Bearer [API key]"
    written = [done.stdout, done.stderr, *(str(pd.read_parquet(p)) for p in out.glob("*.parquet"))]
    written += [path.read_bytes().decode(errors="replace") for path in out.iterdir()]
    assert not [text for text in written if KEY in text or escaped in text]


# What a server says of itself

AN_HOUR_S = 3600.0


@pytest.mark.parametrize(
    "said",
    [
        b'HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n{"version": "1"}',
        b"HTTP/1.1 200 OK\r\nContent-Length: 9" + b"9" * 5000 + b"\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 50_000,
        b'HTTP/1.1 200 OK\r\n\r\n{"version": "\\ud800"}',
        b'HTTP/1.1 200 OK\r\n\r\n{"version": %s}' % (b"9" * 5000),
        b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe",
        b"HTTP/1.1 200 OK\r\nX: ",
        b"",
    ],
)
@pytest.mark.parametrize("way", ["ends", "hangs", "drips", "floods"])
def test_a_version_is_optional_bounded_and_in_time(said, way, monkeypatch) -> None:
    async def answer(_, writer):
        writer.write(said)
        while way != "ends" and not writer.is_closing():
            writer.write(b"x" * (way == "drips") + b"x" * 100_000 * (way == "floods"))
            await writer.drain()
            await asyncio.sleep(AN_HOUR_S if way == "hangs" else 0.01)
        writer.close()

    answer.takes_get = True
    monkeypatch.setattr("sextant.engine.protocol.GET_TIMEOUT_S", 0.3)
    with StubServer(answer) as server:
        began_s = time.monotonic()
        version = RunningServer(ServerAddress(server.url, "m")).version()
        assert time.monotonic() - began_s < 30  # far below an hour
        assert get(ServerAddress(server.url, "m"), "/v1/models", timeout_s=0.2)[0] in (None, 200)
    assert version in (None, "\\ud800", "?")
    json.dumps(version).encode()


def test_what_was_read_is_let_go_of() -> None:
    """While a level runs no garbage is collected: no cycle may hold on to an answer."""
    said = event(1) + event(2) + b"data: [1]\n\n" + DONE
    gc.collect()
    gc.disable()
    for _ in range(100):
        read(an_exchange(2), said)
    n_left = gc.collect()
    gc.enable()
    assert n_left < 20


def test_a_full_disk_of_temporary_files_ends_the_load(tmp_path, monkeypatch) -> None:
    class Full:
        def write(self, _) -> None:
            raise OSError(28, "No space left on device")

    with StubServer(answer_tokens()) as server:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full())
        began_s = time.monotonic()
        with pytest.raises(InputError, match=r"No space left on device.*TMPDIR"):
            load(server.url, duration_s=60)
    assert time.monotonic() - began_s < 30


def test_a_server_cannot_make_up_an_input() -> None:
    exchange = an_exchange()
    said = b"".join(event(n, int("7" * 19)) for n in (1, 2, 3)) + DONE
    read(exchange, said)
    assert row_of(exchange)["input_tokens"] == 4 and OTHER_INPUT in exchange.oddities


@pytest.mark.parametrize(
    ("head", "body", "said"),
    [
        ("200 OK\r\nContent-Encoding: gzip", b"\x1f\x8b\x08", "compressed (gzip)"),
        ("200 OK\r\nContent-Type: application/json", b'{"usage": {}}', "one JSON object"),
        ("200 OK\r\nContent-Type: text/html; charset=utf-8", b"<html>login", "is text/html"),
        (
            "307 Moved\r\nLocation: http://other/v1",
            b"",
            "HTTP 307: it redirects to http://other/v1",
        ),
    ],
)
def test_an_answer_that_is_no_stream_is_named_by_its_cause(head, body, said):
    async def answer(_, writer) -> None:
        length = f"\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(f"HTTP/1.1 {head}{length}".encode() + body)

    with StubServer(answer) as server:
        result = load(server.url, duration_s=0.2)
    assert said in result.log.first_failure
