"""How fast the simulator is, and how close to a plain one that goes step by step.

    .venv/bin/python benchmarks/simulator.py TRACE [--draws 1000]

TRACE is a normalised trace, such as the hour of Azure's conversations (19,366 requests). It is
served by one replica of an 8B LLM on an H100, with a law of a step of round numbers (the plain
simulation takes minutes); then 2,000 of its requests by one with a small KV cache, which preempts,
at half the rate. Prints requests a second of one core, the
plain simulation's time over the compiled one's in the same run, the largest difference of a
request's end-to-end latency, and of the means where there is preemption, and what draws of the law
take on all cores.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sextant.base.files import read_parquet
from sextant.simulate.server import Scheduler, StepLaw
from sextant.simulate.simulation import Simulation, on_threads, simulate, summarise

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from plain_simulator import Job, run_plainly
from sextant.workload.requests import RequestStream

LAW = StepLaw(2, 6, 0.02, 4e-5, 0.02, 1e-7, 1, request_ms=5)
ROOMY, TIGHT = Scheduler(400_000), Scheduler(12_000, has_prefix_caching=False)


def timed(run: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return a result with its seconds, and those of this thread on a core."""
    start, on_core = time.perf_counter(), time.thread_time()
    return run(), time.perf_counter() - start, time.thread_time() - on_core


def compare(name: str, requests: RequestStream, scheduler: Scheduler) -> None:
    """Print what one simulation takes and how it differs from the plain one."""
    simulate(requests, scheduler, LAW)
    runs = [timed(lambda: simulate(requests, scheduler, LAW)) for _ in range(5)]
    found: Simulation = runs[0][0]
    seconds = min(on_core for *_, on_core in runs)
    (jobs, _), _, plain_s = timed(lambda: run_plainly(requests, scheduler, LAW))
    n_preempted = sum(job.preemptions for job in jobs)
    print(
        f"{name}: {requests.n:,} requests, {found.use.n_steps:,} steps in {seconds:.3f} s: "
        f"{requests.n / seconds:,.0f} requests/s; plain {plain_s:.1f} s: "
        f"{plain_s / seconds:,.0f} times; {differences(found, jobs)}; "
        f"preemptions {found.preemptions.sum():,} and {n_preempted:,}"
    )


def differences(found: Simulation, jobs: list[Job]) -> str:
    """Return how far the end-to-end latencies are from the plain simulation's."""
    exact = np.array([job.token_s[-1] if job.status == "ok" else np.nan for job in jobs])
    off = np.nanmax(np.abs(found.arrival_s + found.e2e_s - exact) / (exact - found.arrival_s))
    mean = np.nansum(found.e2e_s) / np.nansum(exact - found.arrival_s) - 1
    return f"E2E differs by {off:.1e} at most, its mean by {mean:.1e}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--draws", type=int, default=1000)
    given = parser.parse_args()
    trace = read_parquet(given.trace).to_pandas().sort_values("arrival_s", kind="stable")
    trace = trace[(trace["input_tokens"] > 0) & (trace["output_tokens"] > 0)]
    columns = ("arrival_s", "input_tokens", "output_tokens")
    requests = RequestStream.of(*(trace[name].to_numpy() for name in columns))
    compare("roomy cache", requests, ROOMY)
    compare("tight cache", requests.at(slice(2000)).at_speed(0.5), TIGHT)
    factors = np.exp(0.05 * np.random.default_rng(0).standard_normal(given.draws))
    laws = [replace(LAW, dense_ms=LAW.dense_ms * factor) for factor in factors]
    _, seconds, _ = timed(
        lambda: on_threads(lambda law: summarise(simulate(requests, ROOMY, law)), laws)
    )
    print(f"{given.draws:,} draws of the law on all cores: {seconds:.1f} s")


if __name__ == "__main__":
    main()
