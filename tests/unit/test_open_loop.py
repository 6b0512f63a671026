"""Open-loop load: requests go out when they are due, whatever became of those before."""

import time

import numpy as np
import pandas as pd
import pytest

from sextant.load.client import Target
from sextant.load.open_loop import run_open_loop
from sextant.load.source import RequestSource
from sextant.workload import RequestModel
from sextant.workload.prompts import RandomTokens
from stub_server import StubServer, answer_tokens

MODEL = RequestModel(pd.DataFrame({"input_tokens": [8], "output_tokens": [3], "count": [1]}))


def load(url: str, arrival_s, timeout_s: float = 20.0, level: int | None = None):
    target = Target(url, "m")
    source = RequestSource(target, MODEL, RandomTokens(1000), 0)
    arrivals = np.asarray(arrival_s, float)
    return run_open_loop(target, source, arrivals, timeout_s, time.monotonic_ns(), level)


def test_a_slow_answer_delays_no_later_request():
    arrival_s = np.arange(10) * 0.05
    with StubServer(answer_tokens(1.0)) as server:
        rows = pd.DataFrame(load(server.url, arrival_s).rows).sort_values("user")
        received_s = np.array([request.received_ns for request in server.requests]) / 1e9
    # All ten were sent within half a second, while the first answer took a whole one.
    assert np.ptp(received_s) < 0.95
    assert rows["sent_s"].max() < rows["first_token_s"].min()
    assert server.most_in_flight == 10
    scheduled_s = rows["scheduled_s"].to_numpy()
    assert scheduled_s - scheduled_s[0] == pytest.approx(arrival_s, abs=1e-6)
    assert (rows["sent_s"] >= rows["scheduled_s"]).all()


def test_a_free_connection_is_used_again():
    with StubServer(answer_tokens(0.001)) as server:
        result = load(server.url, np.arange(6) * 0.1)
    assert len(result.rows) == 6 and server.n_connections < 6


def test_best_effort_is_everything_at_once():
    with StubServer(answer_tokens(0.2)) as server:
        result = load(server.url, np.zeros(20), level=20)
    assert server.most_in_flight == 20
    assert {row["level"] for row in result.rows} == {20}
    assert {row["status"] for row in result.rows} == {"ok"}
    assert result.n_prepared_late == 0


def test_a_request_that_times_out_is_a_row_and_the_rest_goes_on():
    delays_s = iter([5.0, *[0.01] * 9])

    async def answer(request, writer):
        await answer_tokens(next(delays_s))(request, writer)

    with StubServer(answer) as server:
        rows = load(server.url, np.arange(4) * 0.1, timeout_s=1.0).rows
    statuses = [row["status"] for row in sorted(rows, key=lambda row: row["user"])]
    assert statuses == ["timeout", "ok", "ok", "ok"]


def test_no_arrivals_are_no_rows():
    with StubServer(answer_tokens(0.01)) as server:
        assert load(server.url, []).rows == []
