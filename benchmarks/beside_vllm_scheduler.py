"""The simulator beside vLLM's own scheduler, request by request, without a model or a server.

    .venv/bin/python benchmarks/beside_vllm_scheduler.py [--requests 1000]

The classes `Scheduler` and `AsyncScheduler` of vLLM V1 plan steps of made-up requests; each step
takes what the law says, each token is made up (`tests/vllm_scheduler.py`). Sextant's simulator gets
the same requests, settings and law. Needs `.venv-vllm`.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from sextant.simulate.server import Scheduler, StepLaw
from sextant.simulate.simulation import Simulation, simulate

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from real_vllm import Scheduled, schedule_with_vllm
from sextant.workload.requests import RequestStream

LAW = StepLaw(3, 4, 0.21, 3e-4, 0.023, 1.1e-6, 1.3)
ROOMY = Scheduler(100_000, 64, 2048, max_model_len=2048, has_prefix_caching=False)
CACHED = replace(ROOMY, has_prefix_caching=True)
CASES = {
    "no prefix cache": ROOMY,
    "chunks of 128 tokens": replace(ROOMY, max_num_batched_tokens=128),
    "8 sequences": replace(ROOMY, max_num_seqs=8),
    "small KV cache": replace(ROOMY, kv_tokens=6_000),
    "small KV cache, chunks of 128": replace(ROOMY, kv_tokens=6_000, max_num_batched_tokens=128),
    "small KV cache, clients give up": replace(ROOMY, kv_tokens=6_000, timeout_s=6.0),
    "ten prefixes": CACHED,
    "ten prefixes, chunks of 128": replace(CACHED, max_num_batched_tokens=128),
    "ten prefixes, small KV cache": replace(CACHED, kv_tokens=6_000),
    "ten prefixes, blocks of 32, small": replace(CACHED, kv_tokens=8_000, block_tokens=32),
    "one prefix for all": CACHED,
    "one prefix for all, small KV cache": replace(CACHED, kv_tokens=6_000),
}


def made_up(n: int, seed: int = 0) -> RequestStream:
    """Return bursty requests, half of them with one of ten prefixes of up to 300 tokens."""
    random = np.random.default_rng(seed)
    arrival_s = random.gamma(0.5, 1 / (0.5 * 25), n).cumsum()
    inputs, outputs = random.integers(300, 700, n), random.integers(1, 120, n)
    lengths = random.integers(20, 300, 10)
    prefix = np.where(random.random(n) < 0.5, random.integers(0, 10, n), -1)
    return RequestStream.of(
        arrival_s, inputs, outputs, prefix, np.where(prefix >= 0, lengths[prefix], 0)
    )


def with_one_prefix(requests: RequestStream) -> RequestStream:
    """Return the same requests, the first 40% of each prompt the same for all."""
    return requests.with_common_prefix(0.4)


def compare(made: Simulation, real: Scheduled) -> dict[str, float]:
    """Return how far the simulation is from vLLM's scheduler, of requests that both answer."""
    rows, n_steps = real.requests, len(real.steps)
    first_s, last_s = made.arrival_s + made.ttft_s, made.arrival_s + made.e2e_s
    off_s = np.maximum(np.abs(first_s - rows["first_s"]), np.abs(last_s - rows["last_s"]))
    both = off_s.notna()
    exact = (rows[["first_s", "last_s"]].sub(made.arrival_s, axis=0))[both].mean()
    return {
        "steps": n_steps,
        "more steps": made.use.n_steps - n_steps,
        "tokens a step": real.steps.sum() / n_steps,
        "preemptions": rows["preemptions"].sum(),
        "more": made.preemptions.sum() - rows["preemptions"].sum(),
        "cached tokens": rows["cached"].sum(),
        "more ": made.cached_tokens.sum() - rows["cached"].sum(),
        "answered": both.sum(),
        "other than 1 us": (off_s > 1e-6).sum(),
        "largest, ms": 1e3 * off_s.max(),
        "mean TTFT, %": 100 * (made.ttft_s[both].mean() / exact["first_s"] - 1),
        "mean E2E, %": 100 * (made.e2e_s[both].mean() / exact["last_s"] - 1),
    }


def main() -> None:
    """Print the table: vLLM's numbers, and by how much the simulator's are larger."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    ten = made_up(parser.parse_args().requests)
    one = with_one_prefix(ten)
    cases = {
        f"{name}{', asynchronous' if is_asynchronous else ''}": (
            one if name.startswith("one") else ten,
            replace(scheduler, is_asynchronous=is_asynchronous),
        )
        for is_asynchronous in (False, True)
        for name, scheduler in CASES.items()
    }
    real = schedule_with_vllm([*cases.values()], LAW)
    made = [simulate(requests, scheduler, LAW) for requests, scheduler in cases.values()]
    print(pd.DataFrame(map(compare, made, real), index=[*cases]).round(3).to_string())


if __name__ == "__main__":
    main()
