"""Tuning the batch weight of the real vLLM server (CPU build) that runs out of memory for real."""

import json
from pathlib import Path

import pytest

from real_vllm import NEEDS_VLLM, SMALL, tuning_tools
from sextant.bench.tuning import ProbeRecord, WeightRange, possible_gain, tune_and_load
from sextant.engine.protocol import ServerError
from sextant.facts.gpu import GIB
from sextant.points.verdict import Probe
from sextant.workload.prompts import RandomTokens

pytestmark = [pytest.mark.slow, *NEEDS_VLLM]
LENGTHS = (16, 96, 256), (4, 8, 16)
LIMIT_GIB = 1.25
# Memory facts do not know what the interpreter and its libraries take: more than half of it.
HIGHEST = int((LIMIT_GIB * GIB * 0.9 - SMALL.weight_bytes) // SMALL.kv_bytes_per_token)
LIMITS = WeightRange(272, HIGHEST, SMALL.kv_bytes_per_token)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tuned")


@pytest.fixture(scope="module")
def probes(folder: Path) -> list[Probe]:
    record = ProbeRecord(folder / "tuning.partial.jsonl", "a test")
    tools = tuning_tools(folder, LENGTHS, LIMIT_GIB)
    weight = tune_and_load(LIMITS, record, *tools, lambda servers: None)
    assert weight == record.probes[-1].batch_weight_tokens
    return record.probes


def test_the_search_ends_within_five_starts_with_one_that_passed(probes: list[Probe]) -> None:
    assert probes[0].outcome == "out_of_memory"
    assert "DefaultCPUAllocator: can't allocate memory" in probes[0].detail
    # On a busy machine a weight that passed may fail when it is started again.
    passed = {p.batch_weight_tokens for p in probes if p.outcome == "ok"}
    n_again = sum(p.outcome != "ok" and p.batch_weight_tokens in passed for p in probes)
    assert probes[-1].outcome == "ok" and len(probes) <= 5 + n_again
    # A start on a busy machine can take 20 MB more than the one before, a fifth of what is left
    # here: the search may then end before it is close, and has to say so.
    assert possible_gain(probes, LIMITS) <= 0.35


def test_a_weight_above_what_the_search_leaves_open_runs_out_of_memory(
    probes: list[Probe], folder: Path
) -> None:
    # The edge itself moves by about half a percent from start to start.
    gain = possible_gain(probes, LIMITS)
    weight = round((1 + gain + 0.05) * probes[-1].batch_weight_tokens)
    start, check = tuning_tools(folder, LENGTHS, LIMIT_GIB)
    with pytest.raises(ServerError) as caught, start(weight) as servers:
        check(servers, weight)
    assert caught.value.is_out_of_memory


def test_prompts_are_not_in_the_servers_log(probes: list[Probe], folder: Path) -> None:
    log = (folder / f"server-{probes[-1].batch_weight_tokens}.log").read_text()
    first = RandomTokens(SMALL.vocab_size).prompts([16], 1)[0].tolist()
    assert json.dumps(first)[1:-1] not in log and "prompt_token_ids" not in log
