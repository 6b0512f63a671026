"""Results of load tools that state more work than their GPU can do: counted and named on import."""

import json

import pytest

from command import sextant

N_REQUESTS, INPUT_TOKENS, OUTPUT_TOKENS, USERS = 256, 4096, 256, 64


def result(ttft_ms: float, tpot_ms: float) -> dict[str, object]:
    """What `vllm bench serve` writes of Llama-3.1-8B."""
    e2e_ms = ttft_ms + (OUTPUT_TOKENS - 1) * tpot_ms
    duration_s = N_REQUESTS / USERS * e2e_ms / 1000
    latencies = {"ttft": ttft_ms, "tpot": tpot_ms, "itl": tpot_ms, "e2el": e2e_ms}
    statistics = {
        f"{of}_{name}_ms": ms for name, ms in latencies.items() for of in ("mean", "median")
    }
    return statistics | {
        "model_id": "meta-llama/Llama-3.1-8B-Instruct",
        "date": "20261120-101010",
        "num_prompts": N_REQUESTS,
        "completed": N_REQUESTS,
        "request_rate": "inf",
        "max_concurrency": USERS,
        "total_input_tokens": N_REQUESTS * INPUT_TOKENS,
        "total_output_tokens": N_REQUESTS * OUTPUT_TOKENS,
        "request_throughput": N_REQUESTS / duration_s,
        "output_throughput": N_REQUESTS * OUTPUT_TOKENS / duration_s,
    }


@pytest.mark.parametrize(
    ("ttft_ms", "tpot_ms", "is_set_aside"),
    # 64 prompts of 4,096 tokens take 6 s of an H100, and 256 steps of decode 3 s.
    [(2000, 33, False), (120, 12, True)],
)
def test_a_run_with_a_prefix_cache_is_named(tmp_path, ttft_ms, tpot_ms, is_set_aside):
    file = tmp_path / "run.json"
    file.write_text(json.dumps(result(ttft_ms, tpot_ms)))
    measured = ("--gpu-profile", "1xH100-80GB", "--engine-version", "0.19.0")
    out = ("--out", tmp_path / "out")
    said = sextant("import-characterization", "vllm-bench", "--from", file, *out, *measured)
    assert "1 point" in said
    words = "Set aside: 1 point (1 of meta-llama__Llama-3.1-8B-Instruct) that cannot be"
    assert (words in said) == ("Set aside" in said) == is_set_aside
