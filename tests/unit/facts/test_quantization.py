"""Bits of quantized weights, and which weights are quantized."""

import json
from dataclasses import replace

import pytest

import llm_configs as published
from sextant.base.errors import InputError
from sextant.facts.llm import load_llm
from sextant.facts.llm_modules import read_module
from sextant.facts.llm_reading import read_llm

LLAMA_7B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 32000,
    "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 4096,
    "torch_dtype": "float16",
}  # fmt: skip
# Of 6,738,415,616 parameters all but two 32000 x 4096 and 65 norms of 4096.
LAYERS_7B = 6_738_415_616 - 2 * 32000 * 4096 - 65 * 4096


def tensors(**weights) -> dict:
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "symmetric": True, **weights}}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


@pytest.fixture
def load(tmp_path):
    def save_and_load(quantization, config=LLAMA_7B):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config | {"quantization_config": quantization}))
        return load_llm(path)

    return save_and_load


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        # A group of 128 has a scale of 16 bits and a zero point of 4.
        (GPTQ, 4.15625),
        (GPTQ | {"bits": 8, "group_size": -1}, 8),
        (AWQ, 4.15625),
        (AWQ | {"zero_point": False}, 4.125),
        # QLoRA: 0.5 bits for the maxima of blocks of 64, 0.127 with double quantization.
        (NF4, 4.5),
        (NF4 | {"bnb_4bit_use_double_quant": True}, pytest.approx(4.127, abs=5e-4)),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
        (FP8, 8 + 32 / 128**2),
        ({"quant_method": "fp8", "activation_scheme": "static"}, 8),
        (tensors(strategy="group", group_size=128), 4.125),
        (tensors(strategy="channel", num_bits=8), 8),
        (tensors(strategy="tensor_group", group_size=16), 4.5),  # NVFP4
        (tensors(strategy="block", num_bits=8, block_structure=[128, 128]), 8 + 32 / 128**2),
    ],
)
def test_bits_of_a_weight_include_its_share_of_the_scales(load, quantization, bits):
    llm = load(quantization)
    assert (llm.weight_bits, llm.n_quantized_parameters) == (bits, LAYERS_7B)
    unquantized = 2 * (2 * 32000 * 4096 + 65 * 4096)
    assert llm.weight_bytes == pytest.approx(LAYERS_7B * llm.weight_bits / 8 + unquantized, abs=1)


def test_experts_are_quantized_and_routers_are_not(load):
    llm = load(AWQ | {"modules_to_not_convert": ["gate"]}, published.MIXTRAL_8X7B)
    attention = 32 * 2 * 4096 * (4096 + 1024)
    assert llm.n_quantized_parameters == llm.n_expert_parameters + attention
    # DeepSeek V3 as published: 671 billion parameters in 8 bits, but embeddings and head in 16.
    llm = load(FP8, published.DEEPSEEK_V3)
    assert llm.weight_bytes / 1e9 == pytest.approx(671.0 + 2 * 0.93 + 0.1, abs=0.2)


def test_single_layers_may_be_left_out(load):
    mlps = [f"model.layers.{i}.mlp.{name}_proj" for i in (0, 31) for name in ("gate", "up", "down")]
    attention = [f"model.layers.{i}.self_attn.{name}_proj" for i in range(32) for name in "qkvo"]
    llm = load({"quant_method": "fbgemm_fp8", "modules_to_not_convert": mlps + attention})
    assert llm.n_quantized_parameters == 30 * 3 * 4096 * 11008
    llm = load(MODELOPT | {"ignore": ["re:.*mlp.gate_proj", "re:.*layers.0.mlp.gate_proj"]})
    assert llm.n_quantized_parameters == LAYERS_7B - 32 * 4096 * 11008
    # Parts of the layers that predict further tokens, and whole dense layers.
    llm = load(MODELOPT | {"ignore": ["model.layers.32*", "model.layers.0*", "model.layers.1.*"]})
    assert llm.n_quantized_parameters == pytest.approx(LAYERS_7B * 30 / 32)


@pytest.mark.parametrize(("algorithm", "bits"), [("NVFP4", 4.5), ("FP8", 8.0)])
def test_modelopt_names_an_algorithm_and_may_scale_the_kv_cache(load, algorithm, bits):
    llm = load(MODELOPT | {"quant_algo": algorithm})
    assert (llm.weight_format, llm.weight_bits, llm.kv_dtype) == (algorithm.lower(), bits, "")
    scheme = {"num_bits": 8, "type": "float", "dynamic": False}
    older = {"producer": {"name": "modelopt"}, "quant_algo": algorithm, "kv_cache_scheme": scheme}
    assert load(older) == replace(llm, kv_dtype="fp8")


def test_modelopt_may_write_a_file_of_its_own(load, tmp_path):
    said = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    file = tmp_path / "hf_quant_config.json"
    file.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": said}))
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_7B))
    llm = load_llm(tmp_path / "config.json")
    assert (llm.weight_format, llm.n_quantized_parameters) == ("fp8", LAYERS_7B)
    assert llm.kv_dtype == "fp8"
    assert load(FP8).weight_bits == 8 + 32 / 128**2  # what the config says comes first
    file.write_text("[]")
    with pytest.raises(InputError, match=r"hf_quant_config\.json: not a JSON object"):
        load_llm(tmp_path / "config.json")


def test_shared_experts_and_the_dense_layers_may_be_left_out(load):
    kept = ["lm_head", "model.layers.*.self_attn*", "model.layers.0.*"]
    llm = load(MODELOPT | {"ignore": kept}, published.DEEPSEEK_V3)
    dense = 3 * 7168 * 18432
    shared = 58 * 3 * 7168 * 2048
    assert llm.n_quantized_parameters == llm.n_expert_parameters + shared + 2 * dense
    llm = load(MODELOPT | {"ignore": [*kept, "re:.*shared_experts.*"]}, published.DEEPSEEK_V3)
    assert llm.n_quantized_parameters == llm.n_expert_parameters + 2 * dense
    # What a tool says of the experts alone leaves the other weights as the method has them.
    mixed = FP8 | {"moe_quant_algo": "NVFP4", "ignore": ["*.self_attn.*"]}
    llm = load(mixed, published.DEEPSEEK_V3)
    assert (llm.weight_format, llm.expert_format, llm.expert_bits) == ("fp8", "nvfp4", 4.5)
    assert llm.expert_weight_bytes == llm.n_expert_parameters * 4.5 / 8


@pytest.mark.parametrize(
    ("weights", "name", "bits"),
    [
        ({"strategy": "channel", "num_bits": 8, "type": "float"}, "fp8", 8),
        ({"strategy": "tensor_group", "group_size": 16, "type": "float"}, "nvfp4", 4.5),
        ({"strategy": "group", "group_size": 32, "type": "float"}, "mxfp4", 4.25),
        ({"strategy": "group", "group_size": 32, "type": "int"}, "int4", 4.5),
        ({"strategy": "channel", "num_bits": 8, "type": "int"}, "int8", 8),
    ],
)
def test_tensors_are_named_by_their_type_and_group(load, weights, name, bits):
    only = load(tensors(**weights))
    assert (only.weight_format, only.weight_bits, only.is_weight_only) == (name, bits, True)
    both = tensors(**weights)
    both["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8}
    assert load(both) == replace(only, is_weight_only=False)


ODD_GROUPS = tensors(strategy="group", group_size=64, type="float")
BAD = {
    "no method": ({"bits": 4}, r"'quantization_config\.quant_method'.*missing"),
    "no bits": ({"quant_method": "gptq", "group_size": 128}, r"config\.bits'.*missing"),
    "no group": ({"quant_method": "gptq", "bits": 4}, r"config\.group_size'.*missing"),
    "rules that are no object": (GPTQ | {"dynamic": ["-:.*mlp.*"]}, r"config\.dynamic'"),
    "4 and 8 bits": (NF4 | {"load_in_8bit": True}, r"config\.load_in_4bit'"),
    "unknown algorithm": (MODELOPT | {"quant_algo": "Q5_K"}, "quant_algo'.*NVFP4"),
    "unknown KV cache": (MODELOPT | {"kv_cache_scheme": {"num_bits": 4}}, "cache_scheme'.*8-bit"),
    "two groups": (tensors() | {"config_groups": {"a": {}, "b": {}}}, r"config\.config_groups'"),
    "sparse weights": (tensors() | {"sparsity_config": {"format": "sparse"}}, "sparsity_config'"),
    "an empty block": (FP8 | {"weight_block_size": [0, 128]}, "weight_block_size'.*0, 128"),
    "more bits than weights have": (GPTQ | {"bits": 17}, r"config\.bits'.*17.*at most 16"),
    "floats in odd groups": (ODD_GROUPS, r"config\.config_groups'.*MXFP4"),
    "unknown strategy": (tensors(strategy="token"), r"config\.config_groups'.*'token'"),
}


def test_layers_of_different_sizes_may_be_left_out(load):
    delta = [f"model.layers.{i}.linear_attn*" for i in range(64) if i % 4 != 3]
    attention = [f"model.layers.{i}.self_attn*" for i in range(3, 64, 4)]
    llm = load(MODELOPT | {"ignore": delta + attention}, published.QWEN3_5_27B)
    assert llm.n_quantized_parameters == llm.n_mlp_parameters
    # Q with its gate, K, V and output of 24 and 4 heads of 256, in 16 layers.
    llm = load(MODELOPT | {"ignore": delta}, published.QWEN3_5_27B)
    in_attention = 16 * 5120 * (3 * 24 + 2 * 4) * 256
    assert llm.n_quantized_parameters == llm.n_mlp_parameters + in_attention


def test_parts_of_attention_may_be_left_out(load):
    one = 4096 * 4096
    llm = load(GPTQ | {"modules_to_not_convert": ["model.layers.0.self_attn.q_proj"]})
    assert llm.n_quantized_parameters == LAYERS_7B - one
    names = [rf"re:.*\.self_attn\.{piece}_proj$" for piece in ("q", "k", "v", "o", "g")]
    llm = load(tensors(strategy="channel", num_bits=8) | {"ignore": ["lm_head", *names]})
    assert llm.n_quantized_parameters == LAYERS_7B - 32 * 4 * one


@pytest.fixture
def reading(tmp_path):
    def save_and_read(quantization, config=LLAMA_7B):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config | {"quantization_config": quantization}))
        return read_llm(path)

    return save_and_read


def test_a_module_that_the_llm_lacks_is_said(reading):
    skipped = ["lm_head", "multi_modal_projector", "model.layers.1.mlp", "model.layers.0.adapter"]
    llm, assumed = reading(NF4 | {"llm_int8_skip_modules": skipped})
    assert llm.n_quantized_parameters == LAYERS_7B - 3 * 4096 * 11008
    assert assumed == ("Left unquantized, but not a part of this LLM: model.layers.0.adapter.",)


def test_an_unknown_method_is_said(reading):
    llm, assumed = reading({"quant_method": "hqq", "quant_config": {"nbits": 4}})
    assert not llm.weight_format and llm.dtype == "float16"
    assert assumed[0].startswith("The quantization 'hqq' is not known: weights are counted in 16")


def test_gptq_has_rules_by_module(load):
    rules = {r"-:model\.layers\.0\..*": {}, r"+:.*\.down_proj.*": {"bits": 8, "group_size": 64}}
    llm = load(GPTQ | {"dynamic": rules})
    in_layer = LAYERS_7B // 32
    down = 31 * 4096 * 11008
    assert llm.n_quantized_parameters == LAYERS_7B - in_layer
    bits = (llm.n_quantized_parameters - down) * 4.15625 + down * (8 + 24 / 64)
    assert llm.weight_bits == pytest.approx(bits / llm.n_quantized_parameters)


def mixed(**modules) -> dict:
    layers = {name: {"quant_algo": algorithm} for name, algorithm in modules.items()}
    return MODELOPT | {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}


def test_modelopt_may_list_precisions_by_module(reading):
    config = published.QWEN3_30B_A3B
    modules = {}
    for i in range(48):
        modules[f"model.layers.{i}.self_attn.q_proj"] = "FP8"
        modules[f"model.layers.{i}.mlp.experts"] = "W4A16_NVFP4"
    llm, assumed = reading(mixed(**modules), config)
    queries = 48 * 2048 * 32 * 128
    assert (llm.weight_format, llm.weight_bits) == ("fp8", 8)
    assert (llm.expert_format, llm.expert_bits) == ("nvfp4", 4.5)
    assert llm.n_quantized_parameters == queries + llm.n_expert_parameters
    assert llm.is_weight_only and not assumed
    llm, assumed = reading(mixed(), config)
    assert not llm.weight_format and "mixed precisions" in assumed[0]


def test_groups_of_modules_have_schemes_of_their_own(load):
    fp8 = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
    nvfp4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    groups = {
        "group_0": {"targets": ["re:.*self_attn.(q|k|v|o)_proj$"], "weights": fp8},
        "group_1": {"targets": ["re:.*mlp.*(gate|up|down)_proj$"], "weights": nvfp4},
    }
    packed = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]}
    llm = load(packed)
    attention, mlp = 32 * 4 * 4096**2, 32 * 3 * 4096 * 11008
    assert llm.weight_format == "nvfp4"
    bits = (attention * (8 + 32 / 128**2) + mlp * 4.5) / (attention + mlp)
    assert llm.weight_bits == pytest.approx(bits)
    # Experts are a part of the MLP.
    llm = load(packed, published.MIXTRAL_8X7B)
    assert (llm.weight_format, llm.expert_format) == ("fp8", "nvfp4")
    assert llm.n_quantized_expert_parameters == llm.n_expert_parameters


@pytest.mark.parametrize("case", BAD)
def test_quantization_that_cannot_be_sized_is_refused(load, case):
    quantization, message = BAD[case]
    with pytest.raises(InputError, match=message):
        load(quantization)


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("model.layers.3.mlp", {3}),
        ("model.layers.3*", {3}),
        (r"-:model\.layers\.(?:1[0-2]|3)\..*", {3, 10, 11, 12}),
        (r"re:.*layers\.(0|31)\.self_attn.*", {0, 31}),
        (r"re:model\.layers\.\d+\.mlp\..*", None),
        ("model.layers.*.self_attn*", None),
        ("model.decoder.block.7.layer", {7}),
        ("re:.*self_attn.*", None),
        (r"re:model\.layers\.\d+\..*", None),
    ],
)
def test_names_of_modules_have_layers(name, layers):
    assert read_module(name.removeprefix("-:")).layers == (layers and frozenset(layers))


def test_all_of_a_layer_may_be_meant():
    whole = ["model.layers.3", "model.layers.3.*", r"re:model\.layers\.\d+\..*", "model.layers"]
    assert all(read_module(name).is_all for name in whole)
    assert not any(
        read_module(name).is_all for name in ("model.layers.3.adapter", "visual", "lm_head")
    )
