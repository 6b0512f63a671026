"""The metrics of a real vLLM server (CPU build): its requests are read as they were sent."""

import json
import os
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from real_vllm import CONFIG, NEEDS_VLLM, SETTINGS, SMALL, random_weights
from sextant.bench.cell import model_folder
from sextant.engine.prometheus import MetricsQuery, fetch_metrics
from sextant.engine.vllm import VLLMServer
from sextant.trace.metric_samples import parse_readings
from sextant.trace.metrics_trace import draw_trace
from sextant.trace.model_metrics import metrics_by_model
from sextant.trace.observed import observed_of

pytestmark = [pytest.mark.slow, *NEEDS_VLLM]
N_REQUESTS = 24


def complete(server: VLLMServer, number: int) -> tuple[int, int, float]:
    """Send a request of its own lengths; return these, and how long the answer took."""
    inputs, outputs = 20 + 7 * number, 4 + number
    body = {
        "model": server.target.model,
        "prompt": np.random.default_rng(number).integers(5, 1000, inputs).tolist(),
        "max_tokens": outputs,
        "ignore_eos": True,
    }
    headers = {
        "Content-Type": "application/json",
        "Authorization": f"Bearer {server.target.api_key}",
    }
    url = f"{server.target.base_url}/v1/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    began_s = time.monotonic()
    with urllib.request.urlopen(request, timeout=60) as response:
        json.load(response)
    return inputs, outputs, time.monotonic() - began_s


def test_vllms_own_counts_are_the_requests_that_were_sent(tmp_path) -> None:
    core = max(os.sched_getaffinity(0))
    sent: list[tuple[int, int, float]] = []

    with model_folder(CONFIG) as model:
        spec = random_weights(model, SMALL, 4096, 512, core)
        with VLLMServer(spec, SETTINGS, tmp_path / "server.log") as server:
            complete(server, 9)  # what was counted before does not count

            def send_all(_: float) -> None:
                with ThreadPoolExecutor(4) as pool:
                    sent.extend(pool.map(lambda n: complete(server, n), range(N_REQUESTS)))
                time.sleep(1)

            target = replace(server.target, base_url=f"{server.target.base_url}/metrics")
            texts = fetch_metrics(MetricsQuery(target, last_s=1.0), wait=send_all)
    for number, text in enumerate(texts, start=1):
        (tmp_path / f"metrics-{number}.txt").write_text(text.text)

    readings = parse_readings(texts)
    (model_metrics,) = metrics_by_model(readings)
    assert model_metrics.engine == "vllm"
    assert model_metrics.llm == server.target.model
    assert model_metrics.n_engines == 1
    assert model_metrics.n_answered.sum() == N_REQUESTS
    assert set(model_metrics.histograms) >= {"input_tokens", "output_tokens", "ttft_s", "itl_s"}
    whole = observed_of(model_metrics, float(model_metrics.edges_s[0])).whole()
    inputs, outputs, took_s = (np.array(column) for column in zip(*sent, strict=True))
    assert whole.input_tokens == pytest.approx(inputs.mean())
    assert whole.output_tokens == pytest.approx(outputs.mean())
    assert whole.latencies_ms["itl"].n == (outputs - 1).sum()
    # Its own E2E lacks the way to the client.
    assert whole.latencies_ms["e2e"].mean == pytest.approx(1e3 * took_s.mean(), rel=0.3)
    assert 0 < whole.latencies_ms["ttft"].mean < whole.latencies_ms["e2e"].mean

    trace = draw_trace(readings, seed=0).table.to_pandas()
    assert len(trace) == N_REQUESTS
    assert trace["input_tokens"].mean() == pytest.approx(inputs.mean(), rel=0.1)
