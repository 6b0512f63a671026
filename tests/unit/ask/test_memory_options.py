"""The share of the memory is an option of a question, and wins over the source's."""

from dataclasses import replace
from pathlib import Path

import pytest

from answers import explained, recommended
from sextant.ask.case import read_case
from sextant.ask.forecast import MEDIANS
from sextant.ask.question import Question
from sextant.base.errors import InputError
from sextant.facts.slo import SLO
from sextant.workload.lengths import Length, RequestLengths

QUESTION = Question(
    MEDIANS,
    hf_config=Path("resources/llms/meta-llama__Llama-3.1-8B-Instruct.json"),
    engine="vllm",
    requests=RequestLengths(Length(1000, 1000), Length(200, 200)),
    gpu_profile_ids=("1xH100-80GB",),
)


def test_a_stated_share_of_the_memory_wins():
    case, smaller = (
        read_case(replace(QUESTION, gpu_memory_utilization=share), need_prices=False)
        for share in (None, 0.5)
    )
    profile = case.gpu_profiles["1xH100-80GB"]
    lost = case.memory_on(profile).kv_bytes - smaller.memory_on(profile).kv_bytes
    assert lost == pytest.approx(0.4 * profile.devices.seen_gib * 2**30)
    assert (
        smaller.start_up(profile).memory.kv_cache_gib < case.start_up(profile).memory.kv_cache_gib
    )
    # A share that leaves too little for one request rules the GPU profile out.
    with pytest.raises(InputError, match="no GPU profile can serve"):
        assert read_case(replace(QUESTION, gpu_memory_utilization=0.2), need_prices=False).excluded


@pytest.mark.parametrize("share", [0.0, 1.2, float("nan")])
def test_what_is_no_share_is_refused(share):
    with pytest.raises(InputError, match="--gpu-memory-utilization"):
        read_case(replace(QUESTION, gpu_memory_utilization=share), need_prices=False)


def test_stated_limits_of_a_step_take_less_memory():
    case = read_case(QUESTION, need_prices=False)
    small = replace(QUESTION, max_num_seqs=32, max_num_batched_tokens=2048)
    profile = case.gpu_profiles["1xH100-80GB"]
    of_small = read_case(small, need_prices=False).memory_on(profile)
    assert of_small.kv_bytes > case.memory_on(profile).kv_bytes


def test_other_engines_have_their_own_share():
    case = read_case(replace(QUESTION, engine="sglang"), need_prices=False)
    assert case.memory_utilization is None


def test_an_explanation_says_where_the_memory_goes_and_what_to_start_with():
    question = replace(
        QUESTION,
        hf_config=Path("resources/llms/meta-llama__Llama-3.1-70B-Instruct.json"),
        gpu_profile_ids=(),
    )
    answer = explained(question, "2xH100-80GB", 1)
    assert answer["memory"]["weights_gib"] == pytest.approx(65.74, abs=0.01)
    assert (
        f"Memory of a GPU: weights 65.7, KV cache {answer['memory']['kv_cache_gib']:.1f}"
        in (answer["text"])
    )
    assert 2000 < answer["max_model_len"] < 131_072
    assert f"--max-model-len {answer['max_model_len']}" in str(answer["warnings"])


def test_a_recommendation_has_the_memory_of_its_option():
    slo = SLO("few", users=1, percentile=50, nttft_ms=10, itl_ms=100)
    question = replace(QUESTION, slo=slo, gpu_memory_utilization=0.8)
    answer = recommended(question)
    memory = answer["memory"]
    used = sum(memory.values()) - memory["graphs_gib"]
    assert answer["gpu_profile_id"] == "1xH100-80GB"
    assert used == pytest.approx(0.8 * 79.2, abs=0.01)
    assert answer["max_model_len"] is None
