"""Closed-loop load: n users and no more, whole rows, requests that a seed decides."""

import asyncio
import itertools
import json
import signal
import socket
import time

import numpy as np
import pandas as pd
import pytest

import stub_server
from sextant.base.job_log import job_log
from sextant.engine.http import ServerAddress
from sextant.load.client import Connection
from sextant.load.measure import LoadTargets
from sextant.load.schedules import run_closed_loop
from sextant.load.source import RequestSource, draw_in_order, drawn_from, unsent_parameters
from sextant.points.cell_files import REQUEST_SCHEMA
from sextant.workload.prompts import RandomTokens
from sextant.workload.request_model import RequestModel
from stub_server import DONE, LAST_CHUNK, STREAM_HEAD, StubServer, answer_tokens, chunk, event

MODEL = RequestModel(
    pd.DataFrame({"input_tokens": [8, 30, 200], "output_tokens": [1, 3, 5], "count": [2, 3, 1]})
)
SIZES = {(8, 1), (30, 3), (200, 5)}


def load(*urls, users=2, duration_s=0.4, timeout_s=20.0, **options):
    source = RequestSource("m", drawn_from(MODEL, RandomTokens(1000)), 0)
    addresses = [ServerAddress(url, "m") for url in urls]
    targets = LoadTargets(addresses, timeout_s, epoch_ns=time.monotonic_ns())
    return run_closed_loop(targets, source, users, duration_s, **options)


def frame_of(result) -> pd.DataFrame:
    return result.table().to_pandas()


@pytest.mark.parametrize("users", [1, 3, 16])
def test_the_server_never_sees_more_requests_than_users(users):
    with StubServer(answer_tokens(0.02, 0.002)) as server:
        result = load(server.url, users=users)
    assert server.most_in_flight == users
    assert server.n_connections == users
    frame = frame_of(result)
    assert set(frame["user"]) == set(range(users)) and set(frame["replica"]) == {0}
    assert len(frame) == result.log.n_ok == len(server.requests) >= users


def test_rows_are_whole_and_fit_the_schema():
    with StubServer(answer_tokens(0.005, 0.001)) as server:
        result = load(server.url)
    assert result.table().schema.equals(REQUEST_SCHEMA)
    frame = frame_of(result)
    sent = {request.request_id: request.json for request in server.requests}
    for row in frame.itertuples():
        assert len(sent[row.request_id]["prompt"]) == row.requested_input_tokens
        assert sent[row.request_id]["max_tokens"] == row.requested_output_tokens
    assert len(sent) == len(frame)  # each its own id
    assert (frame["status"] == "ok").all() and frame["error"].isna().all()
    assert (frame["level"] == 2).all()
    # The server counts the tokens that arrived: what was asked for is what was sent.
    assert (frame["input_tokens"] == frame["requested_input_tokens"]).all()
    assert (frame["output_tokens"] == frame["requested_output_tokens"]).all()
    assert set(zip(frame["input_tokens"], frame["output_tokens"], strict=True)) <= SIZES
    assert (frame["token_offsets_ms"].map(len) == frame["output_tokens"]).all()
    ordered = frame[["scheduled_s", "sent_s", "first_token_s", "last_token_s"]].to_numpy()
    assert (np.diff(ordered, axis=1) >= 0).all()
    ttft_ms = (frame["first_token_s"] - frame["sent_s"]) * 1e3
    assert frame["token_offsets_ms"].map(lambda offsets: offsets[0]).to_numpy() == pytest.approx(
        ttft_ms.to_numpy(), abs=0.01
    )


def test_throughput_is_output_tokens_over_the_measured_time():
    with StubServer(answer_tokens(0.01, 0.001)) as server:
        began = time.monotonic()
        result = load(server.url, users=4, duration_s=0.5)
        wall_s = time.monotonic() - began
        served = sum(request.json["max_tokens"] for request in server.requests)
    rows = frame_of(result)
    # All that the server sent lies within the measured time, which no pause stretches.
    assert rows["output_tokens"].sum() == served
    assert result.started_s <= rows["sent_s"].min()
    assert rows["last_token_s"].max() <= result.run.ended_s + 1e-9  # of seconds, rounded
    assert 0.5 <= result.run.duration_s <= wall_s
    idle_s = result.run.duration_s - (rows["last_token_s"].max() - rows["sent_s"].min())
    assert (
        idle_s < 0.2 + result.run.client.client_lag_ms.max / 1e3
    )  # what a busy machine takes aside


def test_no_request_starts_after_the_end_and_those_in_flight_run_out():
    with StubServer(answer_tokens(0.3)) as server:
        result = load(server.url, users=2, duration_s=0.1)
    assert (result.log.n_ok, result.log.n_failed, result.run.n_cooldown_requests) == (2, 0, 0)
    assert result.run.duration_s >= 0.3


def test_a_cool_down_keeps_the_load_on_and_is_left_out():
    """One slow request of each of two users is measured; fast ones go on beside the last."""
    delays_s = iter([0.6, 0.2, *[0.01] * 1000])

    async def answer(request, writer):
        await answer_tokens(next(delays_s))(request, writer)

    with StubServer(answer) as server:
        began_s = time.monotonic()
        result = load(server.url, users=2, duration_s=0.1, cooldown_s=600.0)
    assert result.log.n_ok == 2
    assert result.run.n_cooldown_requests == len(server.requests) - 2 > 2
    assert 0.6 <= result.run.duration_s <= time.monotonic() - began_s < 600


def requests_of(source, n: int, n_ahead: int = 50) -> list:
    source.prepare(n_ahead)
    return [source.take() for _ in range(n)]


def test_bytes_do_not_depend_on_when_requests_were_encoded():
    early, late = (RequestSource("m", drawn_from(MODEL, RandomTokens(1000)), 7) for _ in range(2))
    for source in (early, late):
        source.prepare(10)
    seen = []
    for _ in range(200):
        while early.top_up():
            pass
        seen.append((early.take(), late.take()))
    assert all(one == other for one, other in seen)
    assert (early.n_prepared_late, late.n_prepared_late) == (0, 190)
    # Neither does what comes after: a warm-up may take more or fewer.
    assert requests_of(early, 30) == requests_of(late, 30)


def test_listed_requests_come_in_their_order_and_again():
    source = RequestSource("m", draw_in_order([4, 9], [2, 3], RandomTokens(1000)), seed=1)
    requests = requests_of(source, 5, n_ahead=3)
    bodies = [json.loads(request.body) for request in requests]
    prompts = [tuple(body["prompt"]) for body in bodies]
    assert [body["max_tokens"] for body in bodies] == [2, 3, 2, 3, 2]
    assert [request.input_tokens for request in requests] == [*map(len, prompts)] == [4, 9, 4, 9, 4]
    assert len(set(prompts)) == 5
    assert all(16 <= token < 1000 for prompt in prompts for token in prompt)


def test_a_request_carries_the_sampling_parameters_of_the_workload():
    frame = pd.DataFrame({"input_tokens": [4, 5, 6], "output_tokens": 2, "count": 1, "top_k": 50})
    own = {"is_greedy": [False, True, False], "temperature": [0.7, 0.7, np.nan]}
    model = RequestModel(frame.assign(**own, batch_size=[1, 2, 1]))
    seen = {}
    for request in requests_of(RequestSource("m", drawn_from(model, RandomTokens(1000)), 0), 50):
        body = json.loads(request.body)
        seen[len(body["prompt"])] = {k: body.get(k) for k in ("temperature", "top_k", "top_p")}
    assert seen == {
        4: {"temperature": 0.7, "top_k": 50, "top_p": None},
        5: {"temperature": 0, "top_k": None, "top_p": None},  # greedy
        6: {"temperature": 0, "top_k": 50, "top_p": None},
    }
    assert unsent_parameters(model) == ["batch_size"]


EMPTY = (DONE, event(0) + DONE, *(stub_server.usage_alone(n) + DONE for n in (0, 2)))


def check_failures(result, status: str, users: int) -> None:
    frame = frame_of(result)
    assert len(frame) and set(frame["status"]) == {status}
    # Ten tries a second and user, not thousands; none after the end.
    assert len(frame) <= users * (result.run.duration_s / 0.1 + 1)
    assert frame["error"].notna().all()
    assert (result.log.n_ok, result.log.n_failed) == (0, len(frame))


def test_a_server_that_is_gone_is_not_called_in_a_spin():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        result = load(f"http://127.0.0.1:{bound.getsockname()[1]}", users=3, duration_s=0.5)
    check_failures(result, "connection_error", 3)
    frame = frame_of(result)
    assert frame["sent_s"].isna().all() and frame["last_token_s"].isna().all()
    assert (frame["token_offsets_ms"].map(len) == 0).all()
    assert 0.2 <= result.run.duration_s < 5


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", "http_error"),
        (STREAM_HEAD + chunk(event(0)), "incomplete"),  # and breaks off
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "incomplete"),
        *((STREAM_HEAD + chunk(empty) + LAST_CHUNK, "incomplete") for empty in EMPTY),
    ],
)
def test_a_server_that_refuses_or_breaks_off_is_not_called_in_a_spin(said, status):
    async def answer(_, writer):
        writer.write(said)
        if not said.endswith((LAST_CHUNK, b"\r\n\r\n")):
            writer.close()

    with StubServer(answer) as server:
        check_failures(load(server.url, users=3, duration_s=0.5), status, 3)


def test_a_burst_of_refusals_is_recorded_and_load_goes_on_after_it():
    numbers = itertools.count()

    async def answer(request, writer):
        if 3 <= next(numbers) < 8:
            writer.write(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n")
        else:
            await answer_tokens(0.01)(request, writer)

    with StubServer(answer) as server:
        result = load(server.url, users=2, duration_s=1.0)
        n_received = len(server.requests)
    frame = frame_of(result)
    failed = frame[frame["status"] != "ok"]
    assert set(failed["status"]) == {"http_error"} and len(failed) == 5 == result.log.n_failed
    assert failed["error"].str.startswith("HTTP 429").all()
    assert failed["first_token_s"].isna().all()
    assert result.log.n_ok == n_received - 5 > 5
    assert frame["sent_s"].max() > failed["sent_s"].max()


def test_hanging_requests_time_out_each_by_itself():
    async def hang(_, writer):
        await asyncio.sleep(60)

    with StubServer(hang) as server:
        result = load(server.url, users=2, duration_s=0.1, timeout_s=0.5)
    check_failures(result, "timeout", 2)


def test_sigterm_ends_a_job_and_is_no_failure_of_its_connection(tmp_path, monkeypatch):
    received = Connection.data_received

    def signalled(connection: Connection, data: bytes) -> None:
        monkeypatch.setattr(Connection, "data_received", received)
        signal.raise_signal(signal.SIGTERM)
        received(connection, data)

    monkeypatch.setattr(Connection, "data_received", signalled)
    with (
        StubServer(answer_tokens(0.01)) as server,
        pytest.raises(SystemExit, match="143"),
        job_log(tmp_path / "job.log"),
    ):
        load(server.url, duration_s=20)
