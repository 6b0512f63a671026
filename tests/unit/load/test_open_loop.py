"""Open-loop load: requests go out when they are due, whatever became of those before."""

import asyncio
import time

import numpy as np
import pandas as pd
import pytest

from sextant.engine.http import ServerAddress
from sextant.load.measure import LoadTargets
from sextant.load.schedules import ArrivalSchedule, run_open_loop
from sextant.load.source import RequestSource, drawn_from
from sextant.workload.prompts import RandomTokens
from sextant.workload.request_model import RequestModel
from stub_server import StubServer, answer_tokens

MODEL = RequestModel(pd.DataFrame({"input_tokens": [8], "output_tokens": [3], "count": [1]}))


def load(*urls: str, arrival_s, timeout_s: float = 20.0, level: float = 0.0, **options):
    source = RequestSource("m", drawn_from(MODEL, RandomTokens(1000)), 0)
    addresses = [ServerAddress(url, "m") for url in urls]
    targets = LoadTargets(addresses, timeout_s, epoch_ns=time.monotonic_ns())
    return run_open_loop(targets, source, ArrivalSchedule(arrival_s, **options), level)


def rows_of(result) -> pd.DataFrame:
    return result.table().to_pandas().sort_values("user")


def test_a_slow_answer_delays_no_later_request():
    arrival_s = np.arange(10) * 0.05

    async def answer(request, writer):
        while len(server.requests) < len(arrival_s):
            await asyncio.sleep(0.01)
        await answer_tokens()(request, writer)

    with StubServer(answer) as server:
        rows = rows_of(load(server.url, arrival_s=arrival_s))
    # The first answer came when the last request had.
    assert set(rows["status"]) == {"ok"}
    assert rows["sent_s"].max() < rows["first_token_s"].min()
    assert server.most_in_flight == 10
    scheduled_s = rows["scheduled_s"].to_numpy()
    assert scheduled_s - scheduled_s[0] == pytest.approx(arrival_s, abs=1e-6)
    assert (rows["sent_s"] >= rows["scheduled_s"]).all()


def test_a_free_connection_is_used_again():
    with StubServer(answer_tokens(0.001)) as server:
        # One connection for each that could be under way is opened beforehand, and no more.
        result = load(server.url, arrival_s=np.arange(400) * 0.002)
    # A busy machine may put more under way than that.
    assert result.log.n_ok == 400 and server.n_connections <= max(256, server.most_in_flight)


def test_a_limit_queues_and_the_queue_counts():
    with StubServer(answer_tokens(0.2)) as server:
        result = load(server.url, arrival_s=np.zeros(6), level=2, max_in_flight=2)
    assert server.most_in_flight == server.n_connections == 2
    rows = rows_of(result)
    assert (rows["scheduled_s"] == rows["scheduled_s"].iloc[0]).all()
    # Three pairs, one after the other, each of 0.2 s: the last waited for two of them.
    waited_s = (rows["sent_s"] - rows["scheduled_s"]).to_numpy()
    assert (waited_s[2:4] >= 0.2).all() and (waited_s[4:] >= 0.4).all()
    # That is the queue's doing, not the client's.
    assert result.run.client.send_lag_ms.max < 1e3 * waited_s[4:].min()


def test_a_hanging_request_gives_its_place_free():
    delays_s = iter([60.0, *[0.01] * 9])

    async def answer(request, writer):
        await answer_tokens(next(delays_s))(request, writer)

    with StubServer(answer) as server:
        result = load(server.url, arrival_s=np.zeros(3), timeout_s=2.0, max_in_flight=1)
    rows = rows_of(result)
    assert rows["status"].tolist() == ["timeout", "ok", "ok"]
    assert server.n_connections == 2  # the one that hung was not used again


def test_scheduled_is_when_it_was_due_however_late_the_client_is(monkeypatch):
    """The client is kept busy for a third of a second; what was due meanwhile says so."""
    take, n_taken = RequestSource.take, iter(range(100))

    def busy_take(source):
        if next(n_taken) == 2:
            time.sleep(0.33)
        return take(source)

    monkeypatch.setattr(RequestSource, "take", busy_take)
    arrival_s = np.arange(10) * 0.02
    with StubServer(answer_tokens(0.01)) as server:
        result = load(server.url, arrival_s=arrival_s)
    rows = rows_of(result)
    scheduled_s = rows["scheduled_s"].to_numpy()
    assert scheduled_s - scheduled_s[0] == pytest.approx(arrival_s, abs=1e-6)
    late_s = (rows["sent_s"] - rows["scheduled_s"]).to_numpy()
    assert late_s[2] >= 0.3 and late_s[9] >= 0.33 - 7 * 0.02 - 0.001
    assert result.run.client.send_lag_ms.max >= 300 and result.run.client.client_lag_ms.max >= 200
    assert "could have shaped the result" in result.run.client.lag_warning


def test_warm_up_and_cool_down_are_sent_and_left_out():
    arrival_s = np.arange(20) * 0.05
    with StubServer(answer_tokens(0.3)) as server:
        result = load(server.url, arrival_s=arrival_s, warmup_s=0.25, duration_s=0.5)
        n_received = len(server.requests)
    rows = rows_of(result)
    assert rows["user"].tolist() == list(range(5, 15))
    assert result.run.n_warmup_requests == 5
    # The load stays on until the last measured request, due at 0.7 s, ends after 1 s.
    assert result.run.n_cooldown_requests == 5 == n_received - 15
    # The measured part begins after the warm-up and ends with the last measured request.
    assert result.started_s == pytest.approx(rows["scheduled_s"].iloc[0], abs=1e-6)
    assert result.run.duration_s >= 0.45 + 0.3
    assert result.run.ended_s + 1e-9 >= rows["last_token_s"].max()


def test_requests_are_spread_over_replicas():
    with StubServer(answer_tokens(0.01)) as one, StubServer(answer_tokens(0.01)) as two:
        rows = rows_of(load(one.url, two.url, arrival_s=np.arange(9) * 0.01))
        n_received = len(one.requests), len(two.requests)
    assert (rows["replica"] == rows["user"] % 2).all()
    assert n_received == (5, 4)
