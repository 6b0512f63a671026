"""What a real prefix cache finds in a replayed trace, against the trace's report and simulation.

Mooncake's conversations are made 16 times shorter, a block of 512 tokens becoming one of 32 (two of
Qwen-Bailian's format), so that a small LLM on CPU cores can take them; which requests share which
blocks stays the same.
`sextant load --replay` sends them one after the other to vLLM with prefix caching, for caches of
several sizes, and vLLM's own counters say how many input tokens it found.

    SEXTANT_MIRROR=<folder> .venv/bin/python benchmarks/prefix_reuse.py --requests 400

Needs `.venv-vllm`. Nothing is timed, so the machine need not be quiet.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from real_vllm import CONFIG, SETTINGS
from sextant.ask.traffic import demand_of_trace
from sextant.bench.cell import model_folder
from sextant.engine.http import total
from sextant.engine.protocol import ServerSpec
from sextant.engine.vllm import VLLMServer
from sextant.facts.gpu import Devices
from sextant.facts.llm import load_llm
from sextant.simulate.cache_depths import cache_depths
from sextant.simulate.server import Scheduler, StepLaw
from sextant.simulate.simulation import simulate
from sextant.trace.job import ingest_trace
from sextant.workload.shared_blocks import read_shared_blocks

LLM = load_llm(CONFIG, "bfloat16")
BLOCK, THEIRS, LONGEST = 32, 512, 2040
ENGINE = replace(SETTINGS, block_size_tokens=BLOCK, extra_arguments=("--enable-prefix-caching",))
LAW = StepLaw(
    floor_ms=1, dense_ms=1, sequence_ms=0.1, kv_token_ms=0, prefill_token_ms=0.01, request_ms=0
)


def shortened(source: Path, n_requests: int) -> Iterator[str]:
    """Yield rows in Qwen-Bailian's format, a second apart; ids of whole blocks alone."""
    n_made = 0
    for line in source.read_text().splitlines():
        row = json.loads(line)
        n_whole, rest = divmod(row["input_length"], THEIRS)
        inputs = BLOCK * n_whole + -(-rest * BLOCK // THEIRS)
        if inputs > LONGEST or n_made == n_requests:
            continue
        made = {"chat_id": n_made, "timestamp": n_made, "input_length": inputs, "output_length": 1}
        ids = [2 * each + half for each in row["hash_ids"][:n_whole] for half in (0, 1)]
        yield json.dumps(made | {"hash_ids": ids})
        n_made += 1


def measured(trace: Path, cache_blocks: int, folder: Path) -> float:
    """Return the share of input tokens that vLLM finds with a cache of so many blocks."""
    with model_folder(CONFIG) as model:
        spec = ServerSpec(
            model=model,
            load_format="dummy",
            devices=Devices("cpu", 1, 8.0),
            batch_weight_tokens=BLOCK * cache_blocks,
            kv_bytes_per_token=LLM.kv_bytes_per_token,
            max_request_tokens=2048,
            device_indices=(0,),
            seed=1,
        )
        with VLLMServer(spec, ENGINE, folder / "server.log") as server:
            program = "from sextant.cli.app import main; main()"
            options = ["--replay", trace, "--vocab-size", LLM.vocab_size, "--batch", 1]
            options += [
                "--n-requests",
                len(read_shared_blocks(trace).ends),
                "--out",
                folder / "load",
            ]
            url, key = server.target.base_url, server.target.api_key or ""
            where = ["--base-url", url, "--model", server.target.model]
            command = [sys.executable, "-c", program, "load", *where, *options]
            environment = os.environ | {"OPENAI_API_KEY": key}
            subprocess.run([*map(str, command)], env=environment, check=True, stdout=sys.stderr)
            text = server.metrics()
    hits, asked = (total(text, f"vllm:prefix_cache_{name}_total") for name in ("hits", "queries"))
    return (hits or 0.0) / (asked or 1.0)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--cache-blocks", type=int, nargs="+", default=[256, 1024, 4096, 16384])
    given = parser.parse_args()
    mirror = Path(os.environ["SEXTANT_MIRROR"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, trace = folder / "source.jsonl", folder / "trace.parquet"
        rows = shortened(mirror / "mooncake" / "conversation_trace.jsonl", given.requests)
        source.write_text("\n".join(rows))
        ingest_trace(source, "qwen-bailian", trace, folder / "rejected.parquet", folder / "r.json")
        blocks = read_shared_blocks(trace)
        depth, _ = cache_depths(blocks.prefixes(), blocks.ends)
        n_tokens = blocks.input_tokens.sum()
        print(f"{len(blocks.ends)} requests, {n_tokens} input tokens, {len(depth)} blocks with ids")
        print("cache (blocks)  reported  simulated  vLLM")
        requests = demand_of_trace(trace, window_s=60, has_prefixes=True)
        for size in given.cache_blocks:
            is_found = (depth >= 0) & (depth < size * BLOCK // blocks.block_tokens)
            reported = blocks.tokens[is_found].sum() / n_tokens
            scheduler = Scheduler(kv_tokens=BLOCK * size, block_tokens=BLOCK)
            simulated = simulate(requests, scheduler, LAW).cached_tokens.sum() / n_tokens
            found = measured(trace, size, folder)
            print(f"{size:14}  {reported:8.4f}  {simulated:9.4f}  {found:.4f}", flush=True)


if __name__ == "__main__":
    main()
