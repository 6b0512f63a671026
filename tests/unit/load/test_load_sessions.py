"""`sextant load --replay` of a trace with sessions: turns wait for the answers of the server."""

import json
import logging
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from test_load_command import load

from command import sextant
from sextant.engine.http import ServerAddress
from sextant.load.measure import LoadTargets
from sextant.load.schedules import ArrivalSchedule, run_open_loop
from sextant.load.source import RequestSource, draw_in_order
from sextant.workload.prompts import RandomTokens
from sextant.workload.requests import Turns
from stub_server import StubServer, answer_tokens

N_TOKENS = 80  # of an answer: long enough to be read after it has ended


def replay(answer, arrival_s, parent, think_s, **options):
    """Send a schedule of turns to a server; return the rows by place, the level and the server."""
    session, place = np.arange(len(parent)), np.arange(len(parent))
    for turn in np.flatnonzero(np.asarray(parent) >= 0):
        session[turn] = session[parent[turn]]
    source = RequestSource(
        "m", draw_in_order(4 + place, np.full(len(place), N_TOKENS), RandomTokens(1000)), 0
    )
    turns = Turns(session, np.asarray(parent), np.asarray(think_s, float))
    with StubServer(answer) as server:
        targets = LoadTargets([ServerAddress(server.url, "m")], 20.0, time.monotonic_ns())
        schedule = ArrivalSchedule(np.asarray(arrival_s), turns=turns, **options)
        result = run_open_loop(targets, source, schedule)
    rows = result.table().to_pandas().set_index("user").sort_index()
    return rows, result.run, server


@pytest.mark.parametrize("max_in_flight", [None, 3])
def test_a_turn_is_never_sent_before_the_answer_was_thought_about(max_in_flight):
    rng = np.random.default_rng(1)
    arrival_s = np.sort(rng.uniform(0, 0.4, 60))
    parent = [int(rng.integers(-1, place)) if place else -1 for place in range(60)]
    think_s = rng.choice([0.0, 0.002, 0.05], 60)
    rows, run, server = replay(
        answer_tokens(0.01), arrival_s, parent, think_s, max_in_flight=max_in_flight
    )
    assert set(rows["status"]) == {"ok"} and len(rows) == len(server.requests) == 60
    # Each place has its own request, in whatever order they were sent.
    assert (rows["input_tokens"] == 4 + rows.index).all()
    is_turn = np.array(parent) >= 0
    before = rows.loc[np.array(parent)[is_turn]]
    due_s = before["last_token_s"].to_numpy() + think_s[is_turn]
    turns, roots = rows[is_turn], rows[~is_turn]
    # An answer ends some bytes after its last token.
    assert (turns["scheduled_s"].to_numpy() >= due_s).all()
    assert np.median(turns["scheduled_s"].to_numpy() - due_s) < 0.05
    assert (rows["sent_s"] >= rows["scheduled_s"]).all()
    assert np.diff(roots["scheduled_s"]) == pytest.approx(np.diff(arrival_s[~is_turn]), abs=1e-6)
    assert (np.diff(roots["sent_s"]) > 0).all()
    n_roots = int((~is_turn).sum())
    assert run.sessions == {"n_sessions": n_roots, "n_turns": 60 - n_roots, "n_not_sent": 0}
    assert server.most_in_flight <= (max_in_flight or 60)


# Two sessions: of the first, turn 2 fails, for which 4 waits, and 6 and 7 for that.
PARENT = [-1, -1, 0, 1, 2, 0, 4, 4, 3]


@pytest.mark.parametrize("is_told_late", [False, True])
def test_what_waits_for_a_failed_answer_is_not_sent_and_counted(is_told_late):
    tokens = answer_tokens()

    async def answer(request, writer):
        if len(request.json["prompt"]) != 4 + 2:
            await tokens(request, writer)
        elif is_told_late:  # only who reads the whole answer knows that a token is missing
            request.body = request.body.replace(b'"max_tokens":80', b'"max_tokens":79')
            await tokens(request, writer)
        else:
            writer.write(b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n")

    rows, run, server = replay(answer, np.arange(9) * 0.01, PARENT, np.full(9, 0.001))
    assert rows.index.tolist() == [0, 1, 2, 3, 5, 8] and len(server.requests) == 6
    assert rows["status"].eq("ok").tolist() == [True, True, False, True, True, True]
    assert run.sessions == {"n_sessions": 2, "n_turns": 7, "n_not_sent": 3}


def test_which_turns_are_measured_goes_by_the_trace():
    at_s, parent = [0.0, 0.1, 0.2, 0.3], [-1, 0, 1, 2]
    rows, run, _ = replay(
        answer_tokens(), at_s, parent, [0, 0, 0, 9.0], warmup_s=0.05, duration_s=0.2
    )
    assert rows.index.tolist() == [1, 2]
    # Nobody waits for the last turn, which is not measured.
    assert (run.n_warmup_requests, run.n_cooldown_requests) == (1, 0)


COLUMNS = {
    "arrival_s": [0.0, 1.0, 2.0, 4.0, 5.0],
    "input_tokens": [20, 30, 40, 50, 60],
    "output_tokens": [3, 3, 0, 3, 3],
    "session_id": ["a", "b", "a", "a", "b"],
    "e2e_ms": [500, 1000, 100, 100, 100],
}


def ingested(folder: Path, **columns) -> Path:
    table = {name: values for name, values in (COLUMNS | columns).items() if values}
    pd.DataFrame(table).to_csv(folder / "t.csv", index=False)
    out = folder / "t.parquet"
    sextant("ingest", folder / "t.csv", "--format", "sextant", "--out", out)
    return out


def sent(trace: Path, answer):
    """Replay a trace a hundred times as fast; return the rows, the level and bodies by request."""
    with StubServer(answer) as server:
        options = ("--replay", trace, "--time-factor", 0.01)
        rows, written = load(server.url, trace.parent / "load", *options)
    bodies = {request.request_id: request.body for request in server.requests}
    return rows.set_index("user").sort_index(), written["levels"][0], bodies


def test_a_replay_follows_the_sessions_of_its_trace(tmp_path, caplog):
    rows, level, bodies = sent(ingested(tmp_path), answer_tokens(0.05))
    # The third request failed in the trace: the fourth follows the answer before.
    assert level["sessions"] == {"n_sessions": 2, "n_turns": 3, "n_not_sent": 0}
    assert rows["requested_input_tokens"].tolist() == COLUMNS["input_tokens"]
    for turn, before, think_s in ((2, 0, 0.015), (3, 0, 0.035), (4, 1, 0.03)):
        waited_s = rows["scheduled_s"][turn] - rows["last_token_s"][before]
        assert think_s <= waited_s < think_s + 0.05
    summary = json.loads((tmp_path / "load" / "summary.json").read_text())
    assert summary["levels"][0]["sessions"] == level["sessions"]
    page = (tmp_path / "load" / "summary.html").read_text()
    assert "2 sessions with 3 turns that wait for an answer and think as in the trace" in page
    # Without sessions the same requests come at the trace's times.
    for columns in ({"session_id": []}, {"session_id": ["a", "b", "c", "d", "e"]}, {"e2e_ms": []}):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            rows, level, own = sent(ingested(tmp_path, **columns), answer_tokens())
        assert own == bodies and level["sessions"] is None
        assert np.diff(rows["scheduled_s"]) == pytest.approx([0.01, 0.01, 0.02, 0.01], abs=1e-6)
        assert ("turns of sessions come at the trace's times" in caplog.text) == (
            "e2e_ms" in columns
        )
        assert "sessions" not in (tmp_path / "load" / "summary.json").read_text()


def test_turns_that_were_not_sent_are_said(tmp_path):
    async def fail(request, writer):
        writer.write(b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n")

    trace = ingested(tmp_path)
    with StubServer(fail) as server:
        options = ("--replay", trace, "--time-factor", 0.01, "--out", tmp_path / "load")
        said = sextant("load", "--base-url", server.url, "--model", "m", *options, exit_code=1)
    assert len(server.requests) == 2
    assert "3 turns (100 %) not sent, which no figure counts: an answer before them failed" in said
