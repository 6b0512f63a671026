"""A real Prometheus scrapes servers of known law for a minute; rightsize reads it."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import sextant
from served_metrics import Server, in_flight, simulated, slower_law
from sextant.base.network import reserve_port
from sextant.engine.http import ServerAddress, get
from stub_server import StubServer
from support import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("prometheus") is None,
        reason="Prometheus is not installed (apt-get install prometheus)",
    ),
]
LLM = ROOT / "resources" / "llms" / "meta-llama__Llama-3.1-8B-Instruct.json"
PROFILE = "1xH100-80GB"
REPLICAS = 2
RATE_RPS = 14.0
SCRAPED_S = 60.0
BEFORE_S = 30.0
SLOWER = 1.4


def serving(served, began_s: float):
    """Answer /metrics as vLLM does, with what was answered by now."""

    async def answer(request, writer) -> None:
        at_s = time.monotonic() - began_s
        server = Server("vllm", "llama-8b")
        for end_s, inputs, outputs, ttft_s, e2e_s in served:
            if end_s <= at_s:
                server.serve(inputs, outputs, ttft_s, e2e_s)
        server.running = in_flight(served, at_s)
        text = server.text()
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"
        writer.write(f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode())

    answer.takes_get = True
    return answer


@contextlib.contextmanager
def prometheus(targets: list[str], folder: Path) -> Iterator[str]:
    """Run Prometheus, which scrapes targets each second; yield its base URL."""
    quoted = ", ".join(f"'{target}'" for target in targets)
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        "scrape_configs:\n"
        f"  - {{job_name: vllm, static_configs: [{{targets: [{quoted}]}}]}}\n"
    )
    with reserve_port() as held:
        port = held.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [
        *("prometheus", f"--config.file={folder / 'prometheus.yml'}"),
        *(f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ)
        try:
            deadline_s = time.monotonic() + 60
            while get(ServerAddress(url, ""), "/-/ready")[0] != 200:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline_s, (folder / "log").read_text()
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()
            process.wait(30)


def test_what_prometheus_scraped_calibrates_the_law_of_the_servers(tmp_path) -> None:
    law = slower_law(LLM, PROFILE, SLOWER)
    served = simulated(RATE_RPS, BEFORE_S + 2 * SCRAPED_S, REPLICAS, *law)
    began_s = time.monotonic() - BEFORE_S
    by_server = [served[number::REPLICAS] for number in range(REPLICAS)]
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(StubServer(serving(it, began_s))) for it in by_server]
        targets = [server.url.removeprefix("http://") for server in servers]
        url = stack.enter_context(prometheus(targets, tmp_path))
        time.sleep(SCRAPED_S)
        observed = {
            "prometheus": url,
            "last": f"{SCRAPED_S - 5:g}s",
            "step": "1s",
            "match": 'model_name="llama-8b"',
        }
        report = sextant.ingest(
            format="prometheus", out=tmp_path / "trace.parquet", **observed
        ).to_dict()
        ended_s = time.monotonic() - began_s
    truth = [row for row in served if ended_s - SCRAPED_S + 5 < row[0] <= ended_s]
    assert report["n_accepted"] == pytest.approx(len(truth), rel=0.1)

    answer = sextant.rightsize(
        trace=tmp_path / "trace.parquet",
        deployed=f"{REPLICAS}x{PROFILE}",
        hf_config=LLM,
        ttft_ms="p95:500",
        itl_ms=15,
        gpu_profiles=PROFILE,
    ).result
    assert answer.observed.n_engines == REPLICAS
    assert answer.observed.llm == "llama-8b"
    assert answer.present.hours[0].start.startswith("20")
    gaps_ms = 1e3 * np.average(
        [(e2e - ttft) / (n - 1) for _, _, n, ttft, e2e in truth],
        weights=[n - 1 for _, _, n, _, _ in truth],
    )
    (load, *_) = answer.present.loads
    (itl,) = (it for it in load.comparisons if it.metric == "itl" and it.percentile is None)
    assert itl.observed_ms == pytest.approx(gaps_ms, rel=0.05)
    assert itl.calibrated.median_ms == pytest.approx(gaps_ms, rel=0.1)
    assert load.running == pytest.approx(load.in_flight, rel=0.3)
