"""What kernels reach: the table that ships, the formula behind it, and GPUs that it lacks."""

from dataclasses import replace

import pandas as pd
import pytest

from sextant.base.resources import resource
from sextant.facts.gpu import GPUS, load_gpu
from sextant.facts.kernels import KERNELS, Reached, kernel_ms, reached
from sextant.facts.llm import load_llm
from sextant.facts.llm_launches import Launches, launches_of
from sextant.facts.llm_modules import Matrix

H100, H200, L40S = (load_gpu(GPUS, name) for name in ("H100-80GB", "H200-141GB", "L40S-48GB"))
LLMS = GPUS.parent / "llms"


def test_a_kernel_takes_the_longer_of_traffic_and_products_and_its_least_time():
    constants = Reached(
        fixed_ms=0.01, expert_ms=0.001, bandwidth_share=0.5, flops_share=0.25, states_share=0.2
    )

    def time_ms(moved_ms, product_ms, experts=0, states_ms=0.0) -> float:
        return float(kernel_ms(constants, moved_ms, product_ms, experts, states_ms))

    assert time_ms(1.0, 0.0, experts=10) == pytest.approx(0.01 + 0.01 + 2.0)
    assert time_ms(0.0, 1.0) == pytest.approx(0.01 + 4.0)
    assert 2.01 < time_ms(1.0, 0.5) < 4.01, "they overlap"
    assert time_ms(0.0, 1.0, states_ms=1.0) == pytest.approx(0.01 + 4.0 + 5.0), "states do not"


def test_products_reach_the_published_shares():
    # 16 bits, at their best shape: 80% on H100 and 86% on A100 (github.com/stas00/ml-engineering).
    h100 = reached(H100, "vllm", "dense", "bf16")
    assert 0.74 < h100.flops_share < 0.83 and 0.8 < h100.bandwidth_share < 0.95
    assert 0.7 < reached(load_gpu(GPUS, "A100-80GB"), "vllm", "dense", "bf16").flops_share < 0.87
    # FP8 on vLLM reaches less of its peak, and experts less than dense products.
    assert reached(H100, "vllm", "dense", "fp8").flops_share < 0.65
    assert reached(H100, "vllm", "experts", "bf16").flops_share < 0.8 * h100.flops_share


def test_an_all_reduce_takes_microseconds_on_nvlink_and_tens_without():
    assert 0.003 < reached(H100, "vllm", "all_reduce", "bf16", 8).fixed_ms < 0.008
    assert reached(L40S, "vllm", "all_reduce", "bf16", 8).fixed_ms > 0.02


def test_a_gpu_without_tables_reaches_what_its_architecture_does():
    card = load_gpu(GPUS, "RTX-4090-24GB")
    own, relative = (reached(gpu, "vllm", "decode_attention", "bf16") for gpu in (card, L40S))
    assert own == relative
    # Of its products a measurement is published.
    assert reached(card, "vllm", "dense", "bf16").flops_share > 0.9
    unknown = replace(card, gpu_id="new", architecture="unheard of")
    assert 0.5 < reached(unknown, "vllm", "dense", "bf16").bandwidth_share < 1


def test_kernels_of_a_maker_without_tables_are_behind_in_everything():
    amd = load_gpu(GPUS, "MI300X-192GB")
    table = pd.read_csv(resource(KERNELS))
    usual = table[table["rows"] > 0].groupby(["kind", "precision"])["bandwidth_share"].median()
    for kind, precision in (("dense", "fp8"), ("decode_attention", "bf16"), ("experts", "mxfp4")):
        share = reached(amd, "vllm", kind, precision).bandwidth_share
        assert share == pytest.approx(0.77 * usual[kind, precision], rel=0.05)


def test_no_gpu_takes_the_least_times_of_a_card_that_reads_from_its_cache():
    # RTX PRO 6000 reads small matrices from its cache: its kernels seem to start in no time.
    blackwell = load_gpu(GPUS, "GB200-186GB")
    for engine in ("vllm", "sglang", "trtllm"):
        assert 0.003 < reached(blackwell, engine, "dense", "bf16").fixed_ms < 0.005
        assert reached(blackwell, engine, "prefill_mla", "bf16").flops_share > 0.4


def test_latent_attention_of_a_prompt_is_multiplied_head_by_head():
    # With the latent vectors it takes 3.4 times the products: servers do so behind a prefix only.
    assert reached(H200, "sglang", "prefill_mla", "bf16").flops_share > 0.5


def test_an_engines_own_kernels_of_the_same_peak_come_before_those_of_another():
    # TensorRT-LLM has a table of FP8 experts on H100, not of FP8 in blocks, which others have.
    own = reached(H100, "trtllm", "experts", "fp8")
    assert reached(H100, "trtllm", "experts", "fp8_block") == own
    assert reached(H100, "vllm", "experts", "fp8_block") != own
    # Its kernels of MXFP4 multiply at the rate of FP8, half of FP4's: they say nothing of FP4.
    b200 = load_gpu(GPUS, "B200-180GB")
    of_vllm = reached(b200, "vllm", "experts", "nvfp4")
    assert reached(b200, "trtllm", "experts", "nvfp4") == of_vllm


def test_attention_of_a_prompt_moves_states_and_products_are_free_of_quantization():
    table = pd.read_csv(resource(KERNELS))
    prefill = table[(table["kind"] == "prefill_attention") & (table["rows"] > 0)]
    assert prefill["states_share"].notna().all() and prefill["bandwidth_share"].isna().all()
    # What quantizes states is apart: FP8 of wide and of narrow matrices then reaches 60 to 80%.
    for engine in ("vllm", "trtllm"):
        assert 0.6 < reached(H200, engine, "dense", "fp8").flops_share < 0.8


def test_a_better_gpu_reaches_no_less_than_its_lesser_relatives():
    for kind in ("dense", "experts", "decode_attention", "prefill_attention"):
        for precision in ("bf16", "fp8"):
            more, less = (reached(gpu, "vllm", kind, precision) for gpu in (H200, H100))
            assert more.bandwidth_share * 4800 >= less.bandwidth_share * 3350
            assert more.flops_share >= less.flops_share
            assert more.fixed_ms <= less.fixed_ms


def test_a_layer_launches_what_its_blocks_need():
    dense = [Matrix(0, "attention", name, 9) for name in ("q", "k", "v", "o")]
    dense += [Matrix(0, "mlp", name, 9) for name in ("gate", "up", "down")]
    assert launches_of(dense) == Launches(products=4, small=5)
    routed = [*dense[:4], Matrix(0, "router", "", 9), Matrix(0, "experts", "up", 9)]
    assert launches_of(routed).small > launches_of(dense).small
    indexed = [*dense, Matrix(0, "attention", "indexer", 9)]
    assert launches_of(indexed) == Launches(products=6, small=9)
    assert launches_of([Matrix(-1, "head", "", 9)]) == Launches(0, 0)


def test_llms_with_many_blocks_a_layer_launch_more():
    llama = load_llm(LLMS / "meta-llama__Llama-3.1-8B-Instruct.json")
    latent = load_llm(LLMS / "deepseek-ai__DeepSeek-V3.1.json")
    assert llama.n_products == 4 * llama.n_layers
    assert latent.n_products / latent.n_layers > 2 * llama.n_products / llama.n_layers
