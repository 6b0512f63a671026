"""Questions of many clients to `sextant serve`: whether any is lost, and how long answers take.

    .venv/bin/python benchmarks/serve_load.py [--questions 200] [--clients 8] [--alike]

Each client asks its next question when the last one is answered. The questions are README's, each
at another rate and of other lengths, so that no answer is kept; with --alike all are the same one.
Two workers use two cores: run it where nothing else does, or see the CPU seconds.
"""

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from sextant.base.network import reserve_port
from sextant.serve.answering import WARM


class Asked(NamedTuple):
    """What became of a question."""

    status: int
    seconds: float


def question(number: int) -> dict[str, Any]:
    """Return README's question at another rate, of other lengths."""
    return {
        **WARM.body,
        "request_rate": 4 + number / 25,
        "input_tokens": 1200 + 3 * number,
        "output_tokens": 200 + number,
    }


def ask(port: int, body: dict[str, Any]) -> Asked:
    """Ask a question and wait for its answer; status 0 where there is none."""
    start = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3600)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/recommend", json.dumps(body), headers)
        reply = connection.getresponse()
        reply.read()
        status = reply.status
    except OSError:
        status = 0
    finally:
        connection.close()
    return Asked(status, time.perf_counter() - start)


def wait_until_ready(port: int, workers: int) -> None:
    """Wait until each worker has answered a question."""
    while ask(port, WARM.body | {"seed": 0}).status == 0:
        time.sleep(0.5)
    with ThreadPoolExecutor(workers) as clients:
        [*clients.map(lambda seed: ask(port, WARM.body | {"seed": seed}), range(1, workers + 1))]


def cpu_seconds(server: int) -> float:
    """Return the CPU time that a server and its workers have taken."""
    family = psutil.Process(server)
    times = [it.cpu_times() for it in (family, *family.children(recursive=True))]
    return sum(it.user + it.system for it in times)


def main() -> None:
    """Start a server, ask it, and print what came back."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--alike", action="store_true")
    options = parser.parse_args()

    with reserve_port() as held:
        port = held.getsockname()[1]
    words = ["serve", "--port", port, "--workers", options.workers]
    command = [Path(sys.executable).with_name("sextant"), *words]
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen([str(word) for word in command], cwd=folder)
        try:
            wait_until_ready(port, options.workers)
            bodies = [question(0 if options.alike else n) for n in range(options.questions)]
            start = time.perf_counter()
            before_s = cpu_seconds(server.pid)
            with ThreadPoolExecutor(options.clients) as clients:
                asked = [*clients.map(lambda body: ask(port, body), bodies)]
            whole_s = time.perf_counter() - start
            spent_s = cpu_seconds(server.pid) - before_s
        finally:
            server.terminate()
            server.wait()

    seconds = sorted(it.seconds for it in asked)
    statuses = dict(Counter(it.status for it in asked))
    lost = sum(it.status != 200 for it in asked)
    p95 = statistics.quantiles(seconds, n=20)[-1]
    print(f"{len(asked)} questions of {options.clients} clients, {options.workers} workers")
    print(f"lost: {lost}; statuses: {statuses}")
    print(f"seconds: median {statistics.median(seconds):.2f}, p95 {p95:.2f}, all {whole_s:.0f}")
    print(f"CPU seconds of the server: {spent_s:.0f}, {spent_s / len(asked):.2f} a question")


if __name__ == "__main__":
    main()
