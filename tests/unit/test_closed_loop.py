"""Closed-loop load: n users and no more, whole rows, requests that a seed decides."""

import asyncio
import itertools
import json
import socket
import time

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from sextant.load.client import Target
from sextant.load.closed_loop import run_closed_loop
from sextant.load.level import REQUEST_SCHEMA
from sextant.load.run import LEVEL_SEED_STRIDE, closed_loop, load_server
from sextant.load.source import RequestSource, unsent_parameters
from sextant.workload import RequestModel
from sextant.workload.prompts import RandomTokens
from stub_server import STREAM_HEAD, StubServer, answer_tokens, chunk, event

MODEL = RequestModel(
    pd.DataFrame({"input_tokens": [8, 30, 200], "output_tokens": [1, 3, 5], "count": [2, 3, 1]})
)
SIZES = {(8, 1), (30, 3), (200, 5)}


def load(url, users=2, duration_s=0.4, timeout_s=20.0, seed=0, epoch_ns=None):
    target = Target(url, "m")
    source = RequestSource(target, MODEL, RandomTokens(1000), seed)
    epoch_ns = time.monotonic_ns() if epoch_ns is None else epoch_ns
    return run_closed_loop(target, source, users, duration_s, timeout_s, epoch_ns)


@pytest.mark.parametrize("users", [1, 3, 16])
def test_the_server_never_sees_more_requests_than_users(users):
    with StubServer(answer_tokens(0.02, 0.002)) as server:
        result = load(server.url, users)
    assert server.most_in_flight == users
    assert server.n_connections == users
    assert {row["user"] for row in result.rows} == set(range(users))
    assert len(result.rows) == len(server.requests) >= users


def test_a_user_waits_for_the_answer_before_the_next_request():
    with StubServer(answer_tokens(0.01)) as server:
        frame = pd.DataFrame(load(server.url, users=4).rows)
    for _, rows in frame.groupby("user"):
        rows = rows.sort_values("sent_s")
        assert (rows["scheduled_s"].iloc[1:].values >= rows["last_token_s"].iloc[:-1].values).all()


def test_rows_are_whole_and_fit_the_schema():
    with StubServer(answer_tokens(0.005, 0.001)) as server:
        result = load(server.url)
    table = pa.Table.from_pylist(result.rows, schema=REQUEST_SCHEMA)
    frame = table.to_pandas()
    assert set(result.rows[0]) == set(REQUEST_SCHEMA.names)
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
    rows = pd.DataFrame(result.rows)
    # All that the server sent lies within the measured time, which no pause stretches.
    assert rows["output_tokens"].sum() == served
    assert result.started_s <= rows["sent_s"].min()
    assert rows["last_token_s"].max() <= result.ended_s
    assert 0.5 <= result.duration_s == result.ended_s - result.started_s <= wall_s
    assert result.duration_s - (rows["last_token_s"].max() - rows["sent_s"].min()) < 0.2


def test_no_request_starts_after_the_end_and_those_in_flight_run_out():
    with StubServer(answer_tokens(0.3)) as server:
        result = load(server.url, users=2, duration_s=0.1)
    assert [row["status"] for row in result.rows] == ["ok", "ok"]
    assert result.duration_s >= 0.3


def test_times_count_from_the_epoch():
    epoch_ns = time.monotonic_ns() - 1_000_000_000_000
    with StubServer(answer_tokens()) as server:
        result = load(server.url, duration_s=0.1, epoch_ns=epoch_ns)
    assert 1000 <= result.started_s < 1060
    assert all(1000 <= row["sent_s"] < 1060 for row in result.rows)


def test_the_clients_own_lag_is_recorded():
    with StubServer(answer_tokens(0.02)) as server:
        lag = load(server.url, duration_s=0.3).client_lag_ms
    assert 0 <= lag["median"] <= lag["p99"] <= lag["max"]


# What is sent


def payloads(seed: int, n: int = 50) -> list[bytes]:
    source = RequestSource(Target("http://h", "m"), MODEL, RandomTokens(1000), seed)
    source.prepare(n)
    return [source.take().payload for _ in range(n)]


def prompts(payload: bytes) -> tuple[int, ...]:
    return tuple(json.loads(payload.split(b"\r\n\r\n", 1)[1])["prompt"])


def test_a_seed_decides_every_byte():
    assert payloads(7) == payloads(7)
    assert payloads(7) != payloads(8)


def test_no_prompt_comes_twice_within_or_across_levels():
    seen = [
        prompts(payload)
        for level in (1, 2, 4, 8)
        for payload in payloads(LEVEL_SEED_STRIDE * level)
    ]
    assert len(set(seen)) == len(seen) == 200


def test_warm_up_measurement_and_late_requests_differ():
    source = RequestSource(Target("http://h", "m"), MODEL, RandomTokens(1000), 0)
    seen = []
    for n_prepared in (30, 30):
        source.prepare(n_prepared)
        seen += [prompts(source.take().payload) for _ in range(40)]
        # More are encoded, and counted, once the prepared ones have run out.
        assert source.n_prepared_late == 64
    assert len(set(seen)) == len(seen) == 80


def test_a_request_carries_the_sampling_parameters_of_the_workload():
    model = RequestModel(
        pd.DataFrame(
            {
                "input_tokens": [4, 5, 6],
                "output_tokens": [2, 2, 2],
                "is_greedy": [False, True, False],
                "temperature": [0.7, 0.7, np.nan],
                "top_k": [50, 50, 50],
                "batch_size": [1, 2, 1],
                "count": [1, 1, 1],
            }
        )
    )
    source = RequestSource(Target("http://h", "m"), model, RandomTokens(1000), 0)
    source.prepare(50)
    seen = {}
    for _ in range(50):
        body = json.loads(source.take().payload.split(b"\r\n\r\n", 1)[1])
        seen[len(body["prompt"])] = {k: body.get(k) for k in ("temperature", "top_k", "top_p")}
    assert seen == {
        4: {"temperature": 0.7, "top_k": 50, "top_p": None},
        5: {"temperature": 0, "top_k": None, "top_p": None},  # greedy
        6: {"temperature": 0, "top_k": 50, "top_p": None},
    }
    assert unsent_parameters(model) == ["batch_size"]


def test_requests_follow_the_workload():
    source = RequestSource(Target("http://h", "m"), MODEL, RandomTokens(1000), 0)
    source.prepare(3000)
    sizes = [
        (request.input_tokens, request.output_tokens)
        for request in (source.take() for _ in range(3000))
    ]
    share = {size: sizes.count(size) / 3000 for size in SIZES}
    # Counts 2 : 3 : 1; five standard errors are below 0.05.
    assert share == pytest.approx({(8, 1): 1 / 3, (30, 3): 1 / 2, (200, 5): 1 / 6}, abs=0.05)


# Servers that fail


def check_failures(result, status: str, users: int) -> None:
    rows = result.rows
    assert rows and {row["status"] for row in rows} == {status}
    # Ten tries a second and user, not thousands; none after the end.
    assert len(rows) <= users * (result.duration_s / 0.1 + 1)
    table = pa.Table.from_pylist(rows, schema=REQUEST_SCHEMA)
    assert table["error"].null_count == 0


def test_a_server_that_is_gone_is_not_called_in_a_spin():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        result = load(f"http://127.0.0.1:{bound.getsockname()[1]}", users=3, duration_s=0.5)
    check_failures(result, "connection_error", 3)
    assert all(row["sent_s"] is None and row["token_offsets_ms"] == [] for row in result.rows)
    assert 0.2 <= result.duration_s < 5


def test_a_server_that_refuses_is_not_called_in_a_spin():
    async def refuse(_, writer):
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")

    with StubServer(refuse) as server:
        check_failures(load(server.url, users=3, duration_s=0.5), "http_error", 3)


def test_a_server_that_breaks_off_is_not_called_in_a_spin():
    async def break_off(_, writer):
        writer.write(STREAM_HEAD + chunk(event(0)))
        writer.close()

    with StubServer(break_off) as server:
        check_failures(load(server.url, users=3, duration_s=0.5), "incomplete", 3)


def test_a_failure_among_good_answers_is_one_row():
    numbers = itertools.count()

    async def answer(request, writer):
        if next(numbers) == 3:
            writer.close()
        else:
            await answer_tokens(0.01)(request, writer)

    with StubServer(answer) as server:
        result = load(server.url, users=2)
        n_received = len(server.requests)
    statuses = [row["status"] for row in result.rows]
    assert statuses.count("connection_error") == 1
    assert statuses.count("ok") == len(statuses) - 1 == n_received - 1 > 3


def test_hanging_requests_time_out_each_by_itself():
    async def hang(_, writer):
        await asyncio.sleep(60)

    with StubServer(hang) as server:
        result = load(server.url, users=2, duration_s=0.1, timeout_s=0.5)
    check_failures(result, "timeout", 2)


# A server that already runs


def test_a_running_server_is_loaded_level_by_level(tmp_path):
    runs = [closed_loop(users, 0.1, 0.3) for users in (1, 3)]
    with StubServer(answer_tokens(0.01)) as server:
        target, prompts = Target(server.url, "m", "secret-key"), RandomTokens(1000)
        levels = load_server(target, MODEL, prompts, runs, tmp_path / "out", timeout_s=20.0, seed=0)
        n_received = len(server.requests)
    frame = pd.read_parquet(tmp_path / "out" / "requests.parquet")
    assert [level["level"] for level in levels] == [1, 3]
    for level in levels:
        rows = frame[frame["level"] == level["level"]]
        assert (level["n_ok"], level["n_failed"]) == (len(rows), 0)
        tokens = level["throughput_tok_s"] * level["duration_s"]
        assert tokens == pytest.approx(rows["output_tokens"].sum())
    assert json.loads((tmp_path / "out" / "levels.json").read_text())["levels"] == levels
    # Requests of the warm-up were sent but are no result.
    assert 0 < len(frame) < n_received
    assert len({request.body for request in server.requests}) == n_received
    assert "secret-key" not in (tmp_path / "out" / "levels.json").read_text()
