"""What a server says is data of bounded size, whatever it says."""

import time

import numpy as np
import pytest

from sextant.load.answer import AnswerReader
from sextant.load.client import Exchange
from sextant.load.measure import requests_table
from sextant.load.source import prepare


@pytest.fixture
def exchange() -> Exchange:
    now_ns = time.monotonic_ns()
    made = Exchange(prepare("m", "r", np.arange(4), 3), 0, now_ns, now_ns)
    made.sent_ns, made.http_status = now_ns, 200
    return made


def event(completion_tokens: object) -> bytes:
    usage = f'{{"prompt_tokens":4,"completion_tokens":{completion_tokens}}}'
    return f'data: {{"choices":[{{"text":"a"}}],"usage":{usage}}}\n\n'.encode()


@pytest.mark.parametrize(
    ("count", "error"),
    [
        (10**9, "of 3 output"),
        (10**12, "of 3 output"),
        ("9" * 5000, "out of range"),
        ("[" * 500, "JSON"),
    ],
)
def test_a_server_cannot_make_up_tokens(exchange: Exchange, count, error) -> None:
    said = event(1) + event(count) + b"data: [DONE]\n\n"
    assert AnswerReader().read((exchange, [(exchange.sent_ns, said)], True))
    assert len(exchange.token_offsets_ms) <= 3
    assert exchange.status == "incomplete" and error in exchange.error
    assert len(exchange.error) < 400
    (row,) = requests_table(1.0, [exchange], exchange.sent_ns).to_pylist()  # 32-bit columns
    assert row["status"] == "incomplete"


def test_a_line_without_an_end_is_not_kept(exchange: Exchange) -> None:
    reader, piece = AnswerReader(), b"x" * 2**18
    for number in range(64):
        reader.read((exchange, [(exchange.sent_ns + number, piece)], False))
        kept = sum(len(rest) for _, rest in reader._readings[exchange].rest)
        assert kept <= 2**20
    reader.read((exchange, [(exchange.sent_ns + 64, b"\n" + event(3))], True))
    assert exchange.status == "incomplete"
    assert len(exchange.error) < 400


def test_an_error_is_kept_as_an_excerpt(exchange: Exchange) -> None:
    exchange.http_status = 500
    said = b"<script>" + b"\xff\x00\x1b[31m" + b"x" * 10_000
    AnswerReader().read((exchange, [(exchange.sent_ns, said)], True))
    assert exchange.status == "http_error"
    assert exchange.error.startswith("HTTP 500: <script>\ufffd\ufffd\ufffd[31mxx")
    assert len(exchange.error) <= 320
