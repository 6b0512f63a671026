"""What `sextant load` says after a run and while it runs."""

import io
import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import numpy as np
import pytest

from cells import failed_request, request, write_cell
from html_page import Page
from sextant.base.errors import InputError
from sextant.engine.http import ServerAddress
from sextant.load.client import Exchange, ExchangeTimes
from sextant.load.measure import LoadTargets
from sextant.load.results import LoadSummary
from sextant.load.rows import RequestLog
from sextant.load.schedules import run_closed_loop
from sextant.load.source import PreparedRequest, RequestSource, draw_in_order
from sextant.pages.blocks import as_text
from sextant.pages.page import as_page
from sextant.points.cell_files import read_cell
from sextant.points.metrics import points_query
from sextant.points.run import ClientReport
from sextant.workload.prompts import RandomTokens
from stub_server import StubServer, answer_tokens

EPOCH_NS = 7_000_000_000_000
N, N_TOKENS, TTFT_MS, ITL_MS = 20, 12, 51.0, 10.0


def a_request(number: int, **values) -> dict:
    """Return request number n: sent each second, one more ms of TTFT for each before it."""
    ttft_ms = TTFT_MS + number
    offsets_ms = [ttft_ms + ITL_MS * place for place in range(N_TOKENS)]
    times = {"first_token_s": number + ttft_ms / 1e3, "last_token_s": number + offsets_ms[-1] / 1e3}
    sent = {"sent_s": float(number), "scheduled_s": number - 0.5, "request_id": f"r{number}"}
    tokens = {"output_tokens": N_TOKENS, "token_offsets_ms": offsets_ms}
    return request(4.0, **(sent | times | tokens | values))


@pytest.fixture
def rows() -> list[dict]:
    failures = [
        failed_request(4.0, status="http_error", error="HTTP 429: slow down"),
        failed_request(4.0, status="http_error", error="HTTP 429: slow down"),
        failed_request(4.0, status="http_error", error="HTTP 500: boom"),
        failed_request(4.0),
    ]
    return [a_request(number) for number in range(N)] + failures


def summary(rows: list[dict], limits_ms: dict[str, float], **cell) -> LoadSummary:
    """Return the summary of these rows, the requests of one level."""
    log = RequestLog()
    for row in rows:
        asked = PreparedRequest(row["request_id"], b"", row["input_tokens"], N_TOKENS)
        scheduled_ns = round(1e9 * row["scheduled_s"]) + EPOCH_NS
        times = ExchangeTimes(scheduled_ns, scheduled_ns)
        exchange = Exchange(asked, row["user"], times)
        for name in ("sent", "first_token", "last_token"):
            at_s = row[f"{name}_s"]
            setattr(times, f"{name}_ns", round(1e9 * at_s) + EPOCH_NS if at_s is not None else 0)
        for name in ("input_tokens", "output_tokens", "status", "error"):
            setattr(exchange, name, row[name])
        exchange.token_offsets_ms.extend(row["token_offsets_ms"])
        if row["status"] == "http_error":
            exchange.head.http_status = int(row["error"][5:8])
        log.add(exchange)
    with TemporaryDirectory() as folder:
        run = read_cell(write_cell(Path(folder), rows, **cell)).run
    return LoadSummary.of(run, [log], limits_ms)


def summarise(rows: list[dict], limits_ms: dict[str, float], **cell) -> dict:
    """Return the summary of these rows as JSON has it."""
    return summary(rows, limits_ms, **cell).to_dict()


def test_latencies_rates_and_goodput_of_known_requests(rows):
    limits_ms = {"ttft_ms": 60.5, "tpot_ms": 11}
    (level,) = summarise(rows, limits_ms, durations_s={4.0: 25.0})["levels"]
    ttft_ms = TTFT_MS + np.arange(N)
    names = ("mean", "p50", "p90", "p95", "p99")
    expected = [ttft_ms.mean(), *np.quantile(ttft_ms, [0.5, 0.9, 0.95, 0.99])]
    assert [level["ttft_ms"][name] for name in names] == pytest.approx(expected)
    # Offsets are 32-bit.
    assert [level["itl_ms"][name] for name in names] == pytest.approx([ITL_MS] * 5, rel=1e-5)
    assert level["tpot_ms"]["p99"] == pytest.approx(ITL_MS)
    assert level["e2e_ms"]["mean"] == pytest.approx(expected[0] + 11 * ITL_MS)
    assert level["throughput_tok_s"] == N * N_TOKENS / 25
    assert level["request_rate_rps"] == N / 25
    assert (level["n_good"], level["goodput_rps"]) == (10, 10 / 25)  # TTFT of 51 to 60 ms
    assert level["failures"] == {"HTTP 429": 2, "HTTP 500": 1, "timeout": 1}
    assert level["first_failure"] == "HTTP 429: slow down"


def test_an_open_loop_counts_from_when_a_request_was_due(rows):
    (level,) = summarise(rows, {}, kind="open_loop")["levels"]
    assert level["ttft_ms"]["mean"] == pytest.approx(500 + TTFT_MS + (N - 1) / 2)
    assert level["goodput_rps"] is None and level["n_good"] is None


def test_the_table_the_json_and_the_page_say_the_same(rows):
    warned = {4.0: {"client": ClientReport(answer_warnings=("20 of 20 answers: <odd>",))}}
    load = summary(rows, {"ttft_ms": 60.5}, durations_s={4.0: 25.0}, levels=warned)
    document = load.document()
    text, page = as_text(document), Page(as_page(document))
    json.dumps(load.to_dict(), allow_nan=False)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "4 users: 20 answers in 25 s" in lines
    assert "TTFT, ms 60.5 60.5 68.1 69 69.8" in lines
    assert "goodput, requests a second with TTFT ≤ 60.5 ms 0.4 (41.7 % of all)" in lines
    kinds = "2 HTTP 429, 1 HTTP 500, 1 timeout; the first: HTTP 429: slow"
    failed = f"4 of 24 failed, more than 1 %: no SLO is met: {kinds}"
    for said in (failed, "20 of 20 answers: <odd>", "TTFT, ms", "41.7 %"):
        assert said in text and said in page.text
    assert not [link for link in page.links if link[0] != "#"]
    scripts = [tag for tag, _ in page.elements if tag == "script"]
    assert len(scripts) == 1, "that of tables that sort"


def test_a_limit_of_no_latency(rows):
    with pytest.raises(InputError, match=r"'throughput'.*give limits of"):
        summarise(rows, {"throughput": 3})


def test_what_is_shown_while_a_level_runs(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with StubServer(answer_tokens(0.01)) as server:
        source = RequestSource("m", draw_in_order([4], [3], RandomTokens(100)), 1)
        targets = LoadTargets([ServerAddress(server.url, "m")], 10.0, time.monotonic_ns())
        run_closed_loop(targets, source, 2, 1.5)
    shown = terminal.getvalue()
    assert "load at level 2: " in shown and " ended, 0 failed" in shown


def test_the_latencies_of_the_summary_are_those_of_the_store(rows):
    """A summary is made without a database, whose formulas are the store's."""
    rows += [a_request(N, output_tokens=1, token_offsets_ms=[99.0], last_token_s=N + 0.071)]
    shown = summarise(rows, {}, durations_s={4.0: 25.0})["levels"][0]
    with TemporaryDirectory() as folder, duckdb.connect() as database:
        requests = read_cell(write_cell(Path(folder), rows)).requests()
        database.register("rows", requests)
        query = points_query(
            "(SELECT 0 AS cell, sent_s AS start_s, * FROM rows)",
            "(SELECT 0 AS cell, 4.0::DOUBLE AS level, 25.0 AS duration_s)",
        )
        (stored,) = database.sql(query).df().to_dict("records")
    for name in ("ttft_ms", "itl_ms", "e2e_ms"):
        for ours, theirs in {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}.items():
            assert shown[name][ours] == pytest.approx(stored[f"{theirs}_{name}"], rel=1e-12)
    for name in ("n_ok", "n_failed", "throughput_tok_s", "request_rate_rps"):
        assert shown[name] == stored[name]


def test_an_answer_of_one_token_has_no_time_per_token():
    one = a_request(0, output_tokens=1, token_offsets_ms=[51.0], last_token_s=0.051)
    (level,) = summarise([one, a_request(1)], {"tpot_ms": 10.5})["levels"]
    assert level["tpot_ms"]["p50"] == pytest.approx(ITL_MS) and level["n_good"] == 2
    (level,) = summarise([one], {"tpot_ms": 1.0})["levels"]
    assert set(level["tpot_ms"].values()) == set(level["itl_ms"].values()) == {None}
