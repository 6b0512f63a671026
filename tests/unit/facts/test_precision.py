"""LLMs of today as they are served: bytes and products by precision, on the rates of a GPU."""

from dataclasses import replace

import pytest

import llm_configs as published
from sextant.base.errors import InputError
from sextant.facts.gpu import load_gpu
from sextant.facts.llm import PRECISIONS, load_llm, precision_of, served
from support import ROOT


def llm(name):
    return load_llm(ROOT / "resources/llms" / f"{name}.json")


def gpu(name):
    return load_gpu(ROOT / "resources/gpus", name)


@pytest.mark.parametrize("name", published.SHIPPED)
def test_totals_and_active_parameters_are_the_published_ones(name):
    published.check_counts(llm(name), *published.SHIPPED[name])


@pytest.mark.parametrize(
    ("name", "precision", "gigabytes"),
    [
        # The files as published, in GB of 10^9 bytes.
        ("moonshotai__Kimi-K2.5", None, 594),
        ("openai__gpt-oss-120b", None, 65.2),
        # Meta's FP8 keeps attention and the first and last layer's MLP.
        ("meta-llama__Llama-3.1-405B-Instruct-FP8", None, 487),
        ("MiniMaxAI__MiniMax-M2.5", None, 230),
        ("Qwen__Qwen3-235B-A22B-FP8", None, 236.4),
        ("nvidia__Llama-3.1-8B-Instruct-FP8", None, 9.08),
        ("moonshotai__Kimi-K2.5", "nvfp4", 591),
        ("meta-llama__Llama-3.1-70B", "fp8", 72.7),
        ("meta-llama__Llama-3.1-70B", "nvfp4", 42.7),
    ],
)
def test_weights_have_the_bytes_of_the_published_files(name, precision, gigabytes):
    facts = served(llm(name), precision)
    assert facts.weight_bytes / 1e9 == pytest.approx(gigabytes, rel=0.01)


def test_experts_have_bits_of_their_own():
    kimi = llm("moonshotai__Kimi-K2.5")
    # INT4 in groups of 32 for the routed experts alone: attention, the dense layer and the
    # shared experts have 16 bits.
    assert kimi.expert_weight_bytes == kimi.n_expert_parameters * 4.5 / 8
    assert kimi.dense_weight_bytes == 2 * (kimi.n_parameters - kimi.n_expert_parameters)
    assert kimi.weight_bytes == kimi.expert_weight_bytes + kimi.dense_weight_bytes
    # Every step reads all but the routed experts and the input embedding (and vectors).
    embedding = 2 * kimi.vocab_size * kimi.hidden_size
    assert kimi.step_weight_bytes == pytest.approx(kimi.dense_weight_bytes - embedding, rel=1e-3)
    oss = llm("openai__gpt-oss-120b")
    assert oss.expert_weight_bytes == oss.n_expert_parameters * 4.25 / 8
    fp8 = llm("MiniMaxAI__MiniMax-M2.5")
    others = 2 * (fp8.vocab_size + 62 * 256) * fp8.hidden_size
    read_bytes = fp8.n_attention_parameters * 8.002 / 8 + others
    assert fp8.step_weight_bytes == pytest.approx(read_bytes, rel=1e-4)


def test_an_llm_is_served_in_every_precision():
    qwen = llm("Qwen__Qwen3-32B")
    layers = qwen.n_attention_parameters + qwen.n_mlp_parameters
    bits = {"fp32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8}
    bits |= {"nvfp4": 4.5, "mxfp4": 4.25, "int4": 4.125}
    assert set(bits) == set(PRECISIONS)
    for precision, n_bits in bits.items():
        facts = served(qwen, precision)
        assert precision_of(facts) == precision
        rest = (qwen.n_parameters - layers) * (4 if precision == "fp32" else 2)
        assert facts.weight_bytes == pytest.approx(layers * n_bits / 8 + rest)
        assert served(facts, "bf16") == served(qwen, "bf16")
    assert served(qwen) == qwen
    fp8 = llm("Qwen__Qwen3-235B-A22B-FP8")
    assert served(fp8, "fp8") == fp8  # its own scales
    # The KV cache has a precision of its own.
    assert served(fp8, "bf16", "fp8").kv_dtype == "fp8"
    assert served(qwen, None, "fp8").kv_bytes_per_token * 2 == qwen.kv_bytes_per_token
    assert served(qwen, None, "bf16").kv_bytes_per_token == qwen.kv_bytes_per_token


def test_a_mixture_keeps_attention_out_of_4_bit_floats():
    oss = replace(llm("openai__gpt-oss-120b"), kv_dtype="bfloat16")
    bf16 = served(oss, "bf16")
    assert bf16.weight_bytes == 2 * oss.n_parameters
    assert served(bf16, "mxfp4") == oss
    nvfp4 = served(llm("MiniMaxAI__MiniMax-M2.5"), "nvfp4")
    assert nvfp4.n_quantized_parameters == nvfp4.n_expert_parameters


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("fp6",), "'precision'.*'fp6'.*nvfp4"), ((None, "mxfp4"), "'kv_precision'.*'mxfp4'.*fp8")],
)
def test_an_unknown_precision_is_named(arguments, message):
    with pytest.raises(InputError, match=message):
        served(llm("Qwen__Qwen3-32B"), *arguments)


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        # bf16, fp8, int8, nvfp4, mxfp4, int4: 16 bits where units are missing or slow.
        ("A100-80GB", (312, 312, 624, 312, 312, 312)),
        ("L4-24GB", (121, 242, 242, 121, 121, 121)),
        ("H200-141GB", (989.4, 1978.9, 1978.9, 989.4, 989.4, 989.4)),
        ("B200-180GB", (2250, 4500, 4500, 9000, 4500, 2250)),
        ("B300-288GB", (2250, 4500, 2250, 13500, 4500, 2250)),
        ("GB300-288GB", (2500, 5000, 2500, 15000, 5000, 2500)),
        ("V100-16GB", (112,) * 6),
    ],
)
def test_products_have_the_rate_of_their_precision(name, rates):
    names = ("bf16", "fp8", "int8", "nvfp4", "mxfp4", "int4")
    assert tuple(gpu(name).dense_tflops(each) for each in names) == rates
    assert gpu(name).dense_tflops("fp32") == rates[0] / 2
