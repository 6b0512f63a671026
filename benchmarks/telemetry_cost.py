"""What watching costs the load client: the watcher's process against threads of our own.

Usage: python benchmarks/telemetry_cost.py [--seconds 10] [--rounds 3] [--gpus 8]

Prints the processor time of each way per second watched, and the lag of an event loop that
ticks every 2 ms beside it: the baseline is the same sampling in threads of the client's own
process; "nothing" is the loop alone. GPUs are those of the fake NVML, a call of which costs
nothing; the metrics are vLLM's, from a server of ours.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import threading
import time

import numpy as np
import psutil

TICK_S = 0.002
BUCKETS = "".join(
    f'vllm:bucket_{name}{{engine="0",le="{le}",model_name="sextant"}} {le}.0\n'
    for name in range(30)
    for le in range(20)
)
METRICS = (
    'vllm:num_requests_running{engine="0",model_name="sextant"} 3.0\n'
    'vllm:num_requests_waiting{engine="0",model_name="sextant"} 0.0\n'
    'vllm:kv_cache_usage_perc{engine="0",model_name="sextant"} 0.5\n'
    'vllm:num_preemptions_total{engine="0",model_name="sextant"} 0.0\n' + BUCKETS
)


def plan_of(gpus: int, url: str):
    from sextant.engine.watcher import WatchPlan

    return WatchPlan("gpu", tuple(range(gpus)), (), (url,))


async def lags_ms(seconds: float) -> list[float]:
    lags, due = [], time.monotonic()
    end = due + seconds
    while due < end:
        due += TICK_S
        await asyncio.sleep(max(due - time.monotonic(), 0))
        lags.append((time.monotonic() - due) * 1e3)
    return lags


def run_threads(plan, seconds: float) -> tuple[list[float], float]:
    """Return the loop's lags beside threads, and their processor time."""
    from dataclasses import asdict

    from sextant.engine.gauges import all_series

    began = time.monotonic()
    files = {name: os.memfd_create(name) for name in ("telemetry_file", "server_file")}
    series = all_series({**asdict(plan), **files}, lambda: time.monotonic() - began, print)
    stopped, begun = threading.Event(), threading.Event()
    threads = [threading.Thread(target=one.run, args=(stopped, begun)) for one in series]
    for thread in threads:
        thread.start()
    before = time.process_time()
    lags = asyncio.run(lags_ms(seconds))
    used_s = time.process_time() - before
    stopped.set()
    for thread in threads:
        thread.join()
    return lags, used_s


def run_watcher(plan, seconds: float) -> tuple[list[float], float]:
    """Return the loop's lags beside the watcher, and the processor time of both."""
    from sextant.engine.watcher import Watcher

    with Watcher(plan, time.monotonic_ns(), 1) as watcher:
        other = psutil.Process(watcher.process.pid)
        before, others = time.process_time(), sum(other.cpu_times()[:2])
        lags = asyncio.run(lags_ms(seconds))
        return lags, time.process_time() - before + sum(other.cpu_times()[:2]) - others


def run_nothing(_, seconds: float) -> tuple[list[float], float]:
    """Return the lags of the loop alone, and its processor time."""
    before = time.process_time()
    return asyncio.run(lags_ms(seconds)), time.process_time() - before


WAYS = {"nothing": run_nothing, "threads": run_threads, "watcher": run_watcher}


def measure(way: str, gpus: int, url: str, seconds: float) -> None:
    """Print one measurement as JSON; in a process of its own, so that none warms another."""
    lags, used_s = WAYS[way](plan_of(gpus, url), seconds)
    print(json.dumps({"lags_ms": lags, "used_s": used_s}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--measure", nargs=2, metavar=("WAY", "URL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        return measure(options.measure[0], options.gpus, options.measure[1], options.seconds)

    import pytest

    from fake_nvml import use_fake_nvml
    from stub_server import StubServer

    async def answer(_, writer):
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(METRICS)}\r\n\r\n".encode())
        writer.write(METRICS.encode())

    found: dict[str, list[dict]] = {way: [] for way in WAYS}
    with pytest.MonkeyPatch.context() as patch, StubServer(answer) as server:
        use_fake_nvml(patch, gpus=options.gpus)
        shared = ["--seconds", str(options.seconds), "--gpus", str(options.gpus)]
        for way in [way for _ in range(options.rounds) for way in WAYS]:
            command = [sys.executable, __file__, *shared, "--measure", way, server.url]
            found[way].append(json.loads(subprocess.check_output(command)))
    report(found, options.seconds)


def report(found: dict[str, list[dict]], seconds: float) -> None:
    """Print a row a way: medians over the rounds."""
    print("way       CPU ms per s   lag median ms   p99 ms   max ms")
    for way, rounds in found.items():
        lags = [np.quantile(one["lags_ms"], [0.5, 0.99, 1]) for one in rounds]
        used = np.median([one["used_s"] for one in rounds]) / seconds * 1e3
        median, p99, worst = np.median(lags, axis=0)
        print(f"{way:<9} {used:12.1f} {median:15.3f} {p99:8.3f} {worst:8.3f}")


if __name__ == "__main__":
    main()
