"""`sextant load` against a server of our own: what it writes, refuses, does when it is ended."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from command import sextant
from sextant.base.errors import InputError
from sextant.base.files import read_provenance
from sextant.load.measure import lag_warning
from sextant.points.cell_files import REQUEST_SCHEMA, damaged_files
from sextant.points.run import Quantiles
from stub_server import DONE, LAST_CHUNK, STREAM_HEAD, StubServer, answer_tokens, chunk
from support import wait_for

FIXED = ("--input-tokens", 8, "--output-tokens", 3)


def load(url: str, out: Path, *options):
    """Run the command in this process; return the rows and run.json."""
    sextant("load", "--base-url", url, "--model", "m", "--out", out, *options)
    return pd.read_parquet(out / "requests.parquet"), written_to(out)


def written_to(out: Path) -> dict:
    """Return a whole cell's run.json."""
    assert not damaged_files(out)
    return json.loads((out / "run.json").read_text())


def start(url: str, out: Path, *options, program: str = "main()", **environment: str):
    """Start the command in a process of its own."""
    code = f"from sextant.cli.app import main; {program}"
    arguments = ["load", "--base-url", url, "--model", "m", "--out", out, *FIXED, *options]
    return subprocess.Popen(
        [sys.executable, "-B", "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )


def ended(url: str, out: Path, *options, program: str = "main()"):
    """Run the command to its end; return its status and its errors."""
    process = start(url, out, *options, program=program)
    said = process.communicate(timeout=60)[1]
    return process.returncode, said


def test_users_level_by_level(tmp_path):
    with StubServer(answer_tokens(0.01)) as server:
        times = ("--duration", 0.3, "--warmup", 0.1)
        frame, written = load(
            server.url, tmp_path / "new" / "out", *FIXED, "--users", "1,3", *times
        )
        n_received = len(server.requests)
    assert written["is_complete"] is True and written["interruption"] is None
    assert [level["level"] for level in written["levels"]] == [1, 3]
    for level in written["levels"]:
        rows = frame[frame["level"] == level["level"]]
        assert (rows["status"] == "ok").all() and level["n_unfinished"] == 0 < len(rows)
        assert level["n_warmup_requests"] >= level["level"]
    # Requests of the warm-up were sent but are no rows; no prompt came twice.
    n_warmup = sum(level["n_warmup_requests"] for level in written["levels"])
    assert n_received == len(frame) + n_warmup
    assert len({request.body for request in server.requests}) == n_received
    assert len({request.request_id for request in server.requests}) == n_received
    schema = pq.read_schema(tmp_path / "new" / "out" / "requests.parquet")
    assert schema.remove_metadata().equals(REQUEST_SCHEMA)
    origin = read_provenance(tmp_path / "new" / "out" / "requests.parquet")
    assert origin == written["provenance"] and written["definition"]["max_input_tokens"] == 8
    assert (written["llm_id"], written["workload_id"]) == ("m", "8-in-3-out")
    asked = {"kind": "closed_loop", "levels": [1, 3], "warmup_s": 0.1, "duration_s": 0.3}
    stop = {"stop_nttft_ms": None, "stop_itl_ms": None, "stop_factor": 2.0}
    assert written["scenario"] == asked | stop | {"cooldown_s": 0.0, "timeout_s": 120.0}


def test_rates_and_all_at_once(tmp_path):
    with StubServer(answer_tokens(0.005)) as server:
        rates = ("--request-rate", "40,80,inf", "--n-requests", 20, "--burstiness", 0.5)
        frame, written = load(server.url, tmp_path, *FIXED, *rates)
    # JSON has no infinity; the table has.
    assert [level["level"] for level in written["levels"]] == [40, 80, "inf"]
    assert frame.groupby("level").size().to_dict() == {40.0: 20, 80.0: 20, float("inf"): 20}
    scheduled_s = frame[frame["level"] == float("inf")]["scheduled_s"]
    assert scheduled_s.nunique() == 1
    scenario = written["scenario"]
    assert (scenario["kind"], scenario["burstiness"], scenario["warmup_s"]) == ("open_loop", 0.5, 0)
    spans_s = frame.groupby("level")["scheduled_s"].agg(np.ptp)
    # The same gaps at twice the rate.
    assert spans_s[40.0] == pytest.approx(2 * spans_s[80.0], rel=1e-6)


FEW_FILES = "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (64, 64)); main()"


@pytest.mark.parametrize(
    "options",
    [
        ("--users", "10,100", "--duration", 0.3, "--warmup", 0),
        ("--request-rate", "10,100", "--duration", 1, "--warmup", 0, "--cooldown", 0),
    ],
)
def test_too_few_file_descriptors_are_named_and_finished_levels_kept(tmp_path, options):
    with StubServer(answer_tokens(0.01)) as server:
        status, said = ended(server.url, tmp_path, *options, program=FEW_FILES)
    assert status == 2 and "Traceback" not in said
    for part in ("connections needs about", "64 (RLIMIT_NOFILE)", "ulimit -n"):
        assert part in said
    written, frame = written_to(tmp_path), pd.read_parquet(tmp_path / "requests.parquet")
    assert [level["level"] for level in written["levels"]] == [10] and not written["is_complete"]
    assert "RLIMIT_NOFILE" in written["interruption"]
    assert set(frame["status"]) == {"ok"} and set(frame["level"]) == {10.0}


def test_a_workload_is_capped_and_drawn(tmp_path):
    caps = ("--max-input-tokens", 40, "--max-output-tokens", 4)
    with StubServer(answer_tokens()) as server:
        frame, written = load(
            server.url, tmp_path, "--workload", "text-generation", *caps, "--batch", 30
        )
    assert frame["input_tokens"].max() <= 40 and frame["output_tokens"].max() <= 4
    assert (written["workload_id"], written["sampler"]) == ("text-generation", "joint")
    assert written["unsent_parameters"] == []
    assert written["definition"]["max_input_tokens"] == 40


def test_a_chat_of_texts_whose_lengths_the_server_tells(tmp_path):
    async def chat(request, writer):
        body = request.json
        assert request.head.startswith("POST /v1/chat/completions ") and "ignore_eos" not in body
        n_input, events = len(body["messages"][0]["content"].split()) + 5, []
        for text in ("", "a", "b"):
            delta = {"content": text} if text else {"role": "assistant", "content": ""}
            events.append({"choices": [{"delta": delta}], "usage": None})
        usage = {"prompt_tokens": n_input, "completion_tokens": 2}
        events.append({"choices": [], "usage": usage})
        writer.write(STREAM_HEAD)
        for one in events:
            writer.write(chunk(f"data: {json.dumps(one)}\n\n".encode()))
            await asyncio.sleep(0.002)
        writer.write(chunk(DONE) + LAST_CHUNK)

    with StubServer(chat) as server:
        options = ("--chat", "--allow-eos", "--batch", 3)
        frame, written = load(f"{server.url}/v1/", tmp_path, *FIXED, *options)
    assert (frame["status"] == "ok").all() and len(frame) == 3
    assert set(frame["input_tokens"]) == {13} and set(frame["requested_input_tokens"]) == {8}
    assert set(frame["output_tokens"]) == {2} and set(frame["requested_output_tokens"]) == {3}
    assert (frame["token_offsets_ms"].map(len) == 2).all()
    assert written["prompts"] == "text of words, one for a token"
    assert written["definition"]["is_chat"] and written["definition"]["may_stop"]
    warnings = " ".join(written["levels"][0]["answer_warnings"])
    assert "3 of 3 answers: they stop before" in warnings and "its count stands" in warnings


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((*FIXED, "--users", 1, "--batch", 3), "give one of --users"),
        (("--users", 1), "'--workload'.*--input-tokens and --output-tokens"),
        (("--users", 1, "--input-tokens", 4), "both --input-tokens"),
        ((*FIXED, "--workload", "summarization", "--users", 1), "'--workload'"),
        ((*FIXED, "--max-input-tokens", 4, "--users", 1), "'--max-input-tokens'.*leave it out"),
        ((*FIXED, "--users", "two"), "'--users'.*'two'"),
        ((*FIXED, "--users", "1e30"), "'--users'.*above 1,000,000"),
        ((*FIXED, "--users", 1, "--ttft-ms", "nan"), "'--ttft-ms'.*'nan' is not a limit"),
        ((*FIXED, "--users", "0"), "'--users'.*above 0"),
        ((*FIXED, "--users", "1.5"), "'--users'.*whole numbers"),
        ((*FIXED, "--users", 1, "--n-requests", 4), "'--n-requests'.*leave it out"),
        ((*FIXED, "--users", 1, "--duration", 0), "'--duration'.*greater than 0"),
        ((*FIXED, "--users", "8,2,8"), "'--users'.*8, 2, 8 do not ascend"),
        ((*FIXED, "--batch", 1, "--duration", 4), "'--duration'.*leave it out"),
        ((*FIXED, "--request-rate", "inf"), "'--request-rate'.*give n_requests"),
        ((*FIXED, "--request-rate", "nan"), "'--request-rate'.*above 0"),
        ((*FIXED, "--request-rate", 4, "--n-requests", 4, "--duration", 1), "'--duration'"),
        ((*FIXED, "--request-rate", 4, "--n-requests", 4, "--cooldown", 1), "'--cooldown'"),
        ((*FIXED, "--users", 1, "--prompts", "text.txt"), "'--prompts'.*--tokenizer"),
        ((*FIXED, "--users", 1, "--vocab-size", 16), "'vocab_size'"),
        ((*FIXED, "--users", 1, "--base-url", "host:1"), "'--base-url': 'host:1' is not a"),
        ((*FIXED, "--users", 1, "--model", "m\udcff"), "'--model'.*broken letters"),
        (
            (*FIXED, "--users", 1, "--api-key-env", "NO_SUCH_KEY"),
            "'--api-key-env': the environment has no NO_SUCH_KEY. Fix: export it, or leave",
        ),
    ],
)
def test_options_that_do_not_go_together_are_named(tmp_path, options, said):
    with pytest.raises(InputError, match=said):
        load("http://127.0.0.1:9", tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "odd", [("--timeout", "inf"), ("--warmup", "inf"), ("--vocab-size", 99999999999)]
)
def test_a_number_beyond_its_bounds_is_refused(tmp_path, odd):
    load_of = ("load", "--base-url", "http://127.0.0.1:9", "--model", "m", "--out", tmp_path)
    sextant(*load_of, *FIXED, "--batch", 2, *odd, exit_code=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_had_ended_is_written_when_a_signal_ends_the_load(tmp_path, number, status):
    (tmp_path / "run.json").write_text('{"is_complete": true, "of": "an earlier run"}')
    with StubServer(answer_tokens(0.05)) as server:
        options = ("--users", "2,3", "--duration", 60, "--warmup", 0)
        process = start(server.url, tmp_path, *options)
        wait_for(lambda: len(server.requests) >= 20, "requests")
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == status
    name = signal.Signals(number).name
    assert f"Stopped by {name}" in said and "Traceback" not in said
    written = written_to(tmp_path)
    assert (written["is_complete"], written["interruption"]) == (False, name)
    frame = pd.read_parquet(tmp_path / "requests.parquet")
    (level,) = written["levels"]
    assert level["n_unfinished"] == 2
    assert (frame["status"] == "ok").all() and (frame["output_tokens"] == 3).all()
    assert 18 <= len(frame) <= len(server.requests) - 2


@pytest.mark.parametrize("n_signals", [1, 2])
def test_a_signal_is_no_failure_of_the_connection_that_it_came_upon(tmp_path, n_signals):
    program = (
        "import itertools, os, signal; from sextant.load.client import Connection; "
        "calls, real = itertools.count(1), Connection.data_received; "
        "Connection.data_received = lambda self, data: "
        f"(next(calls) in range(30, {30 + n_signals}) and os.kill(os.getpid(), signal.SIGINT), "
        "real(self, data)); main()"
    )
    with StubServer(answer_tokens(0.01, 0.01)) as server:
        options = ("--users", 2, "--duration", 20, "--warmup", 0)
        status, said = ended(server.url, tmp_path, *options, program=program)
    assert status == 130, said
    assert not written_to(tmp_path)["is_complete"]
    frame = pd.read_parquet(tmp_path / "requests.parquet")
    assert (frame["status"] == "ok").all() and 5 <= len(frame) <= 20


def test_a_signal_while_results_are_written_loses_nothing(tmp_path):
    program = (
        "import os, signal; from sextant.base import files; real = files.write_parquet; "
        "files.write_parquet = lambda *given: (os.kill(os.getpid(), signal.SIGINT), real(*given)); "
        "main()"
    )
    with StubServer(answer_tokens(0.01)) as server:
        options = ("--users", 2, "--duration", 0.3, "--warmup", 0)
        status, said = ended(server.url, tmp_path, *options, program=program)
    assert status == 0, said
    assert written_to(tmp_path)["is_complete"]
    assert len(pd.read_parquet(tmp_path / "requests.parquet")) > 0


FULL_RESULTS = """
import errno, sextant.base.whole_files as files
real = files._sync
def full(path):
    if path.name.endswith(".html"):
        raise OSError(errno.ENOSPC, "")
    real(path)
files._sync = full
main()
"""
SMALL_FILES = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
main()
"""


def test_a_full_disk_is_one_clear_error_and_nothing_looks_whole(tmp_path):
    out = tmp_path / "out"
    with StubServer(answer_tokens()) as server:
        load(server.url, out, *FIXED, "--batch", 1)
        earlier = {path.name: path.read_bytes() for path in out.iterdir()}
        status, said = ended(server.url, out, "--batch", 200, program=SMALL_FILES)
        assert (status, said.count("Error: ")) == (2, 1) and "File too large" in said
        status, said = ended(server.url, out, "--batch", 2, program=FULL_RESULTS)
        assert (status, said.count("Error: ")) == (2, 1) and "no room to write summary" in said
    assert {path.name: path.read_bytes() for path in out.iterdir()} == earlier


@pytest.mark.parametrize("place", ["file/out", "/proc/self"])
def test_an_output_folder_that_cannot_be_written_is_told_before_the_load(tmp_path, place):
    (tmp_path / "file").write_text("")
    with StubServer(answer_tokens()) as server:
        status, said = ended(server.url, tmp_path / place, "--batch", 2)
    assert status == 2 and said.startswith("Error: ") and len(said.splitlines()) == 1
    assert server.requests == []


def test_fixed_lengths_are_measured_without_libraries_of_data_frames(tmp_path):
    program = """
import atexit, sys, sextant.load.run as run
measure = run.run_closed_loop
def watched(*given, **options):
    result = measure(*given, **options)
    print(sorted({"pandas", "pyarrow", "duckdb", "scipy"} & set(sys.modules)))
    return result
run.run_closed_loop = watched
atexit.register(lambda: print({"pandas", "duckdb", "scipy"} & set(sys.modules)))
main()
"""
    with StubServer(answer_tokens()) as server:
        options = ("--users", "1,2", "--duration", 0.1, "--warmup", 0)
        process = start(server.url, tmp_path, *options, program=program)
        said, _ = process.communicate(timeout=60)
    assert said.splitlines()[:2] == ["[]", "[]"] and said.splitlines()[-1] == "set()"


@pytest.mark.parametrize(
    ("client_ms", "send_ms", "itl_ms", "ttft_ms", "said"),
    [
        (1.9, 4.9, 20.0, 50.0, None),
        (2.1, 4.9, 20.0, 50.0, "client lag of 2.1 ms (p99) against the median ITL of 20 ms"),
        (1.9, 5.1, 20.0, 50.0, "send lag of 5.1 ms (p99) against the median TTFT of 50 ms"),
        (9.0, 0.0, None, 50.0, None),  # no request had two tokens
        (None, None, 20.0, 50.0, None),
    ],
)
def test_a_lag_above_a_tenth_of_what_it_adds_to_is_warned_of(
    client_ms, send_ms, itl_ms, ttft_ms, said
):
    warning = lag_warning(Quantiles(p99=client_ms), Quantiles(p99=send_ms), itl_ms, ttft_ms)
    assert (warning is None) if said is None else said in warning
