"""How a server starts: its memory, and the longest request to start it with."""

from dataclasses import replace

import pytest

from sextant.ask.start_up import start_up_of
from sextant.facts.engine import memory_of
from sextant.facts.gpu import profile_of_id
from sextant.facts.llm import load_llm
from sextant.facts.llm_families import UNBOUNDED_TOKENS
from support import ROOT

LARGE = load_llm(ROOT / "resources/llms/meta-llama__Llama-3.1-70B-Instruct.json")


def start_up(llm=LARGE, profile_id="2xH100-80GB", engine="vllm", needed=2000):
    profile = profile_of_id(profile_id)
    memory = memory_of(llm, profile.devices, engine=engine)
    return memory, start_up_of(llm, profile, memory, engine, 1, needed, 2000.0)


def test_a_context_that_the_cache_does_not_hold_is_lowered():
    memory, starting = start_up()
    assert memory.longest_tokens() < LARGE.context_tokens == 131_072
    assert starting.max_model_len is not None
    assert 0.9 * memory.longest_tokens() < starting.max_model_len < memory.longest_tokens()
    (note,) = starting.notes()
    assert f"--max-model-len {starting.max_model_len}" in note
    assert starting.facts()["memory"].keys() == {
        "weights_gib",
        "kv_cache_gib",
        "activations_gib",
        "buffers_gib",
        "graphs_gib",
    }


def test_what_is_asked_about_stays_below_the_limit():
    memory, starting = start_up(needed=memory_tokens() - 1)
    assert starting.max_model_len == memory.longest_tokens() - 1


def memory_tokens() -> int:
    return memory_of(LARGE, profile_of_id("2xH100-80GB").devices, engine="vllm").longest_tokens()


@pytest.mark.parametrize(
    ("llm", "profile_id", "engine"),
    [
        (LARGE, "4xH100-80GB", "vllm"),
        (LARGE, "2xH100-80GB", "sglang"),
        (replace(LARGE, context_tokens=UNBOUNDED_TOKENS), "2xH100-80GB", "vllm"),
    ],
)
def test_nothing_is_said_where_the_engine_starts(llm, profile_id, engine):
    _, starting = start_up(llm, profile_id, engine)
    assert starting.max_model_len is None
    assert starting.notes() == []


def test_the_longest_request_of_layers_with_a_window():
    windowed = replace(LARGE, n_sliding_layers=40, sliding_window_tokens=1024)
    memory, _ = start_up(windowed)
    longest = memory.longest_tokens()
    assert memory.request_bytes(longest) <= memory.kv_bytes < memory.request_bytes(longest + 1)
    two = memory.longest_tokens(copies=2)
    assert memory.request_bytes(two) <= memory.kv_bytes / 2 < memory.request_bytes(two + 1)


def test_text_and_facts_have_the_layout_and_the_tokens_of_the_cache():
    memory, starting = start_up(profile_id="4xH100-80GB")
    facts = starting.facts()
    assert facts["tensor_parallel"] == 4 and facts["kv_tokens"] == memory.kv_tokens(2000.0)
    assert starting.line().startswith(
        f"A replica on 4xH100-80GB: tensor parallel 4, KV cache for {facts['kv_tokens']:,} tokens. "
        f"Memory of a GPU: weights {facts['memory']['weights_gib']:.1f}, KV cache "
        f"{facts['memory']['kv_cache_gib']:.1f}, "
    )


def test_cores_are_not_split_over():
    _, starting = start_up(profile_id="8xcpu-core")
    assert starting.facts()["tensor_parallel"] is None
    assert "tensor parallel" not in starting.line() and "Memory of the cores" in starting.line()
