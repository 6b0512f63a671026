"""A server of `sextant serve`, started for tests, and what it answers."""

import contextlib
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from sextant.base.network import reserve_port
from support import ROOT, wait_for

LLM = "meta-llama__Llama-3.1-8B-Instruct"
README = {
    "hf_config": LLM,
    "request_rate": 8,
    "input_tokens": 1500,
    "output_tokens": 250,
    "ttft_ms": "p95:1000",
    "tpot_ms": 40,
}


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]


class Served(NamedTuple):
    """A server that runs."""

    port: int
    log: Path
    process: psutil.Popen

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """Send a request; a body that is no bytes or text is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        if body is not None and not isinstance(body, str | bytes):
            body = json.dumps(body)
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Content-Type": "application/json"} | said)
            answered = connection.getresponse()
            names = {name.lower(): value for name, value in answered.getheaders()}
            return Reply(answered.status, names, answered.read())

    def get(self, path: str, **headers: str) -> Reply:
        return self.request("GET", path, **headers)

    def ask(self, command: str, body: Any, **headers: str) -> Reply:
        return self.request("POST", f"/v1/{command}", body, **headers)


@contextlib.contextmanager
def serving(folder: Path, *options: str, **environment: str) -> Iterator[Served]:
    """Run `sextant serve` in a folder until the block ends; its workers are ready."""
    held = reserve_port()
    port = held.getsockname()[1]
    log = folder / "serve.log"
    words = [Path(sys.executable).with_name("sextant"), "serve", "--port", port, *options]
    with log.open("wb") as out:
        process = psutil.Popen(
            [str(word) for word in words],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT / "scripts")} | environment,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    held.close()
    served = Served(port, log, process)
    try:
        wait_for(lambda: _is_up(served), "the server", period_s=0.2)
        yield served
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60)


def _is_up(served: Served) -> bool:
    assert served.process.poll() is None, served.log.read_text()
    try:
        served.get("/")
    except OSError:
        return False
    return True
