"""Load a server that already runs, level by level."""

import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from sextant.files import provenance, write_json, write_parquet
from sextant.load.client import Target
from sextant.load.closed_loop import run_closed_loop
from sextant.load.level import REQUEST_SCHEMA
from sextant.load.source import RequestSource
from sextant.workload import load_request_model

# Seeds of levels lie far apart: no prompt of one level comes again in another.
LEVEL_SEED_STRIDE = 1_000_003


def load_server(
    target: Target,
    workload: Path,
    levels: Sequence[int],
    warmup_s: float,
    duration_s: float,
    timeout_s: float,
    vocab_size: int,
    seed: int,
    out: Path,
) -> list[dict]:
    """Load a server in closed loop; write `requests.parquet` and `levels.json` to `out`.

    Returns:
        One dict a level: users, requests by outcome, duration and throughput.
    """
    model = load_request_model(workload)
    epoch_ns = time.monotonic_ns()
    rows, summaries = [], []
    for level in levels:
        source = RequestSource(target, model, vocab_size, seed + LEVEL_SEED_STRIDE * level)
        run_closed_loop(target, source, level, warmup_s, timeout_s, epoch_ns)
        result = run_closed_loop(target, source, level, duration_s, timeout_s, epoch_ns)
        rows += result.rows
        served = [row for row in result.rows if row["status"] == "ok"]
        summaries.append(
            {
                "users": level,
                "n_ok": len(served),
                "n_failed": len(result.rows) - len(served),
                "duration_s": result.duration_s,
                "throughput_tok_s": sum(row["output_tokens"] for row in served) / result.duration_s,
                "client_lag_p99_ms": result.client_lag_ms["p99"],
            }
        )
    origin = provenance(seed=seed, base_url=target.base_url, model=target.model)
    write_parquet(
        out / "requests.parquet", pa.Table.from_pylist(rows, schema=REQUEST_SCHEMA), origin
    )
    write_json(out / "levels.json", {"levels": summaries, "provenance": origin})
    return summaries
