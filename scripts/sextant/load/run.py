"""Load a server that already runs, level by level."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sextant.files import provenance, write_json, write_parquet
from sextant.load.client import Target
from sextant.load.closed_loop import run_closed_loop
from sextant.load.level import REQUEST_SCHEMA, LevelResult
from sextant.load.open_loop import run_open_loop
from sextant.load.source import RequestSource
from sextant.workload import RequestModel
from sextant.workload.prompts import PromptSource

# Seeds of levels lie far apart: no prompt of one level comes again in another.
LEVEL_SEED_STRIDE = 1_000_003

Run = Callable[[Target, RequestSource, float, int], LevelResult]
"""Puts one level of load on a server; takes the time limit of a request (s) and the epoch (ns)."""


def closed_loop(users: int, warmup_s: float, duration_s: float) -> Run:
    """Return the run of `users` users: a warm-up that is not measured, then the level."""

    def run(target, source, timeout_s, epoch_ns) -> LevelResult:
        run_closed_loop(target, source, users, warmup_s, timeout_s, epoch_ns)
        return run_closed_loop(target, source, users, duration_s, timeout_s, epoch_ns)

    return run


def open_loop(arrival_s: np.ndarray, level: int | None = None) -> Run:
    """Return the run of a schedule: requests are sent at these times, all of them measured."""

    def run(target, source, timeout_s, epoch_ns) -> LevelResult:
        return run_open_loop(target, source, arrival_s, timeout_s, epoch_ns, level)

    return run


def load_server(
    target: Target,
    model: RequestModel,
    prompts: PromptSource,
    runs: Sequence[Run],
    out: Path,
    *,
    timeout_s: float,
    seed: int,
    sampler: str = "joint",
    **facts: Any,
) -> list[dict]:
    """Load a server; write `requests.parquet` and `levels.json` to `out`, with `facts` in both.

    Returns:
        One dict a run: level, requests by outcome, duration, throughput and, for a schedule,
        how late requests were sent.
    """
    epoch_ns = time.monotonic_ns()
    rows, summaries = [], []
    for number, run in enumerate(runs):
        source = RequestSource(target, model, prompts, seed + LEVEL_SEED_STRIDE * number, sampler)
        result = run(target, source, timeout_s, epoch_ns)
        rows += result.rows
        summaries.append(_summary(result))
    origin = provenance(
        seed=seed, sampler=sampler, base_url=target.base_url, model=target.model, **facts
    )
    table = pa.Table.from_pylist(rows, schema=REQUEST_SCHEMA)
    write_parquet(out / "requests.parquet", table, origin)
    write_json(out / "levels.json", {"levels": summaries, "provenance": origin})
    return summaries


def _summary(result: LevelResult) -> dict:
    served = [row for row in result.rows if row["status"] == "ok"]
    late_ms = [1e3 * (row["sent_s"] - row["scheduled_s"]) for row in result.rows if row["sent_s"]]
    return {
        "level": result.level,
        "n_ok": len(served),
        "n_failed": len(result.rows) - len(served),
        "duration_s": result.duration_s,
        "throughput_tok_s": sum(row["output_tokens"] for row in served) / result.duration_s,
        "send_lag_p99_ms": float(np.quantile(late_ms, 0.99)) if late_ms else None,
        "client_lag_p99_ms": result.client_lag_ms["p99"],
    }
