"""Starts and seconds of the search for the batch weight, against plain bisection.

Both tune the same LLM on real vLLM (CPU build) under the same limit of memory, which makes it
run out for real. Bisection, as in LLM-Pilot, section III-C2, halves the range until the
bracket is as narrow as the search's tolerance; it starts no server at the weight it chose.

    python benchmarks/batch_weight.py [search|bisection] [memory limit, GiB]
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from real_vllm import SEARCH as SETTINGS
from real_vllm import SMALL as LLM
from real_vllm import tuning_tools
from sextant.bench.tuning import (
    TOLERANCE,
    ProbeRecord,
    WeightRange,
    possible_gain,
    tune_and_load,
)
from sextant.engine.protocol import ServerError
from sextant.facts.gpu import GIB

LENGTHS = (16, 96, 256), (8, 24, 64)


def limits(memory_limit_gib: float) -> WeightRange:
    """Return the range that memory facts alone give: all but the weights for the KV cache."""
    kv_bytes = memory_limit_gib * GIB * SETTINGS.memory_utilization - LLM.weight_bytes
    longest = LENGTHS[0][-1] + LENGTHS[1][-1]
    return WeightRange(longest, int(kv_bytes // LLM.kv_bytes_per_token), LLM.kv_bytes_per_token)


def holds(start: Callable, check: Callable, weight: int) -> bool:
    """Return whether a server with this batch weight passes its corner cases."""
    try:
        with start(weight) as running:
            check(running, weight)
    except ServerError as error:
        if not error.is_out_of_memory:
            raise
        return False
    return True


def search(memory_limit_gib: float) -> None:
    """Tune as the benchmark stage does."""
    with tempfile.TemporaryDirectory() as name:
        record = ProbeRecord(Path(name) / "tuning.partial.jsonl", None)
        tools = tuning_tools(Path(name), LENGTHS, memory_limit_gib)
        began, found = time.monotonic(), limits(memory_limit_gib)
        weight = tune_and_load(found, record, *tools, lambda running: None)
        for probe in record.probes:
            print(json.dumps(probe.as_dict() | {"detail": probe.detail[:80]}))
        gain = possible_gain(record.probes, found)
        print(f"range {found.lowest_tokens} to {found.highest_tokens} tokens")
        print(f"search: {weight} tokens, {len(record.probes)} starts, ", end="")
        print(f"{time.monotonic() - began:.0f} s, at most {gain:.1%} more possible")


def bisection(memory_limit_gib: float) -> None:
    """Halve the range until the bracket is within the tolerance."""
    with tempfile.TemporaryDirectory() as name:
        tools, found = tuning_tools(Path(name), LENGTHS, memory_limit_gib), limits(memory_limit_gib)
        low, high, starts = found.lowest_tokens - 1, found.highest_tokens + 1, 0
        began = time.monotonic()
        while high - low > max(1, SETTINGS.block_size_tokens if EXACT else TOLERANCE * high):
            middle, starts = (low + high) // 2, starts + 1
            is_held = holds(*tools, middle)
            low, high = (middle, high) if is_held else (low, middle)
            print(f"{middle} {'ok' if is_held else 'out of memory'}", flush=True)
        print(f"bisection: {low} tokens, {starts} starts, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    EXACT = "--exact" in sys.argv
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    {"search": search, "bisection": bisection}[words[0]](float(words[1]))
