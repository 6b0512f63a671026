"""Weights beside a config count before any formula; encoders of images count as weights."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

import llm_configs
from sextant.base.errors import InputError
from sextant.facts.llm import load_llm, served
from sextant.facts.llm_reading import read_whole_llm

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 256,
    "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 512,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
BYTES = {"BF16": 2, "F32": 4, "U8": 1}


def write_shard(path: Path, tensors: dict[str, tuple[str, list[int]]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (dtype, shape) in tensors.items():
        n_bytes = BYTES[dtype]
        for length in shape:
            n_bytes *= length
        entry = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + n_bytes]}
        header[name] = entry
        position += n_bytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def test_headers_count_before_the_formula(config: Path) -> None:
    by_formula = load_llm(config)
    write_shard(
        config.with_name("model-00001-of-00002.safetensors"),
        {
            "model.embed_tokens.weight": ("BF16", [256, 64]),
            "model.layers.0.mlp.odd.weight": ("BF16", [1000, 64]),
            "model.layers.2.mlp.up_proj.weight": ("BF16", [9999, 64]),  # predicts a further token
        },
    )
    write_shard(
        config.with_name("model-00002-of-00002.safetensors"),
        {"vision_tower.patch.weight": ("BF16", [300, 64]), "lm_head.weight": ("BF16", [256, 64])},
    )
    reading = read_whole_llm(config)
    assert reading.llm.n_parameters == (256 + 1000 + 256) * 64 != by_formula.n_parameters
    assert reading.llm.weight_bytes == 2 * (256 + 1000 + 256 + 300) * 64
    (note,) = reading.assumed
    assert "2 files *.safetensors beside the config" in note
    # In another precision the formula holds again, beside what is no text.
    assert served(reading.llm, "fp8").weight_bytes < reading.llm.weight_bytes
    assert load_llm(config) == by_formula


def test_the_index_counts_where_the_shards_are_not_there(config: Path) -> None:
    index = config.with_name("model.safetensors.index.json")
    index.write_text(json.dumps({"metadata": {"total_size": 123_456}, "weight_map": {}}))
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n"
    config.with_name("model-00001-of-00001.safetensors").write_text(pointer)
    reading = read_whole_llm(config)
    assert reading.llm.weight_bytes == 123_456
    assert reading.llm.n_parameters == load_llm(config).n_parameters
    assert index.name in reading.assumed[0]
    index.write_text(json.dumps({"metadata": {"total_size": "much"}}))
    with pytest.raises(InputError, match=r"index\.json, field 'metadata.total_size': 'much'"):
        read_whole_llm(config)


def test_a_config_of_another_name_has_no_weights_beside_it(config: Path) -> None:
    write_shard(config.with_name("model.safetensors"), {"lm_head.weight": ("BF16", [256, 64])})
    other = config.rename(config.with_name("some-llm.json"))
    assert read_whole_llm(other).llm == load_llm(other)


@pytest.mark.parametrize("content", [b"", b"12345678", struct.pack("<Q", 4) + b"null"])
def test_a_damaged_file_of_weights_is_named(config: Path, content: bytes) -> None:
    config.with_name("model.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=r"model\.safetensors: .*(header|damaged)"):
        read_whole_llm(config)


def test_packed_weights_keep_the_parameters_of_the_config(config: Path) -> None:
    config.write_text(json.dumps(CONFIG | {"quantization_config": {"quant_method": "fp8"}}))
    write_shard(config.with_name("model.safetensors"), {"packed": ("U8", [50_000])})
    llm = read_whole_llm(config).llm
    assert (llm.n_parameters, llm.weight_bytes) == (load_llm(config).n_parameters, 50_000)


def test_a_checkpoint_of_32_bits_is_served_in_16(config: Path) -> None:
    config.write_text(json.dumps(CONFIG | {"torch_dtype": "float32"}))
    reading = read_whole_llm(config)
    assert reading.llm.weight_bytes == 2 * reading.llm.n_parameters
    assert "served in 16, as vLLM does" in reading.assumed[0]
    assert read_whole_llm(config, "float32").llm.weight_bytes == 4 * reading.llm.n_parameters


@pytest.mark.parametrize(
    ("name", "billions"),
    [("LLaVA-1.5-7B", 0.324), ("Qwen2.5-VL-72B", 0.70), ("GLM-4.1V-9B", 0.89)],
)
def test_the_encoder_of_images_counts(tmp_path: Path, name: str, billions: float) -> None:
    config, _ = llm_configs.FURTHER[name]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    llm = read_whole_llm(path).llm
    assert llm.beside_weight_bytes / 2e9 == pytest.approx(billions, rel=0.2)
    text = load_llm(path)
    assert llm.n_parameters == text.n_parameters
    assert llm.weight_bytes == text.weight_bytes + llm.beside_weight_bytes
    assert llm.step_weight_bytes == text.step_weight_bytes
