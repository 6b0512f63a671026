"""API keys: in the environment of who needs them, and nowhere else."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import psutil
import pytest
from test_cell import measure_prepared, prepare_cell

from fake_servers import CPU, SETTINGS
from sextant.base.files import write_json, write_parquet
from sextant.base.job_log import job_log
from sextant.base.network import without_keys
from sextant.engine import http
from sextant.engine.http import ServerAddress
from sextant.engine.protocol import ServerError
from sextant.engine.vllm import VLLMServer
from sextant.load.measure import LoadTargets
from sextant.load.schedules import run_closed_loop
from sextant.load.source import RequestSource, draw_in_order
from sextant.workload.prompts import RandomTokens

KEY = "sk-distinctive-0123456789abcdefghijklmnop"


@pytest.fixture
def leaky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The fake engine tells its key in its log and in errors; the file says what it told."""
    told = tmp_path / "told"
    monkeypatch.setenv("FAKE_LEAK", str(told))
    monkeypatch.setattr("secrets.token_hex", lambda _: KEY)
    return told


def files_with(text: str, folder: Path) -> list[str]:
    return [
        path.name
        for path in folder.rglob("*")
        if path.is_file() and text.encode() in path.read_bytes()
    ]


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (f"bad key {KEY}!", "bad key [API key]!"),
        (f"{KEY} {KEY}", "[API key] [API key]"),
        (f"HTTP 401: you sent {KEY[:-1]}", "HTTP 401: you sent [API key]"),
        (f"HTTP 401: you sent {KEY[:5]}", "HTTP 401: you sent [API key]"),
        ("no key, sk", "no key, sk"),
    ],
)
def test_what_a_server_said_is_kept_without_the_key(said: str, kept: str) -> None:
    assert without_keys(said, [KEY]) == kept


def test_requests_that_a_server_refuses_with_their_headers_do_not_tell_the_key(
    leaky, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("FAKE_REFUSE", "500:0")
    source = RequestSource(
        "m", draw_in_order(np.full(100, 4), np.full(100, 2), RandomTokens(100)), 0
    )
    with VLLMServer(CPU, SETTINGS, tmp_path / "server.log") as server:
        targets = [ServerAddress(server.target.base_url, "m", server.api_key)]
        assert KEY not in repr(targets)
        result = run_closed_loop(LoadTargets(targets, 5.0, 0), source, 1, 0.1)
    write_parquet(tmp_path / "requests.parquet", result.table(), {})
    errors = result.table()["error"].to_pylist()
    assert errors and all('"authorization": "Bearer [API key]"' in error for error in errors)
    assert files_with(KEY, tmp_path) == ["told"]


def test_a_cell_that_fails_does_not_tell_the_key(leaky, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FAKE_REFUSE", "500:0")
    cell, outputs = prepare_cell(tmp_path)
    with pytest.raises(ServerError) as caught, job_log(tmp_path / "job.log"):
        measure_prepared(cell, outputs)
    assert "[API key]" in str(caught.value) and KEY not in str(caught.value)
    assert "[API key]" in (tmp_path / "job.log").read_text()
    assert files_with(KEY, tmp_path) == ["told"]


def test_a_whole_cell_keeps_the_key_to_itself(leaky, tmp_path) -> None:
    cell, outputs = prepare_cell(tmp_path)
    with job_log(tmp_path / "job.log"):
        measure_prepared(cell, outputs)
    assert outputs.run.exists() and "VLLM_API_KEY" in outputs.server_log.read_text()
    assert files_with(KEY, tmp_path) == ["told"]


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch):
    """A proxy that all of the environment names; what it was asked for."""
    asked = []

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(502)

        do_POST = do_CONNECT = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            for spelling in (name, name.upper()):
                monkeypatch.setenv(spelling, f"http://127.0.0.1:{server.server_port}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        yield asked
        server.shutdown()


def test_a_proxy_never_sees_what_goes_to_servers_on_this_machine(proxy, tmp_path) -> None:
    cell, outputs = prepare_cell(tmp_path)
    measure_prepared(cell, outputs)
    with VLLMServer(CPU, SETTINGS, tmp_path / "server.log") as server:
        assert "vllm:num_requests_running" in http.fetch_response(server.target.base_url)
        assert server.version() == "fake"
    assert proxy == []


def test_json_has_no_place_for_a_target(tmp_path: Path) -> None:
    """A key cannot slip into a result by way of an object that holds it."""
    with pytest.raises(TypeError):
        write_json(tmp_path / "x.json", {"target": ServerAddress("http://h", "m", KEY)})


def test_a_servers_key_is_in_no_command_line_no_repr_and_not_in_its_log(leaky, tmp_path) -> None:
    log = tmp_path / "server.log"
    with VLLMServer(CPU, SETTINGS, log) as server:
        assert server.api_key == KEY
        assert leaky.read_text() == f"{KEY}\n"
        assert KEY in log.read_text()  # the fake engine says too much while it runs
        processes = [psutil.Process(server.pids[0]), *psutil.Process().children(recursive=True)]
        assert all(KEY not in " ".join(process.cmdline()) for process in processes)
        assert KEY not in repr(server) and KEY not in str(server.command)
        assert KEY not in str(server.error("something is wrong"))
    assert "VLLM_API_KEY" in log.read_text()
    assert files_with(KEY, tmp_path) == ["told"]
