"""LLM facts: parameter counts of published models, and configs that must not be guessed at."""

import json

import pytest

from sextant.errors import InputError
from sextant.llm import load_llm


def opt(hidden, layers, heads, **other):
    return {
        "model_type": "opt",
        "hidden_size": hidden,
        "ffn_dim": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "word_embed_proj_dim": hidden,
        "max_position_embeddings": 2048,
        "vocab_size": 50272,
        "do_layer_norm_before": True,
        "torch_dtype": "float16",
        **other,
    }


def llama(hidden, ffn, layers, heads, **other):
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": 4096,
        "vocab_size": 32000,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        **other,
    }


NEOX_20B = {
    "model_type": "gpt_neox",
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "max_position_embeddings": 2048,
    "vocab_size": 50432,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
}
STARCODER = {
    "model_type": "gpt_bigcode",
    "n_embd": 6144,
    "n_head": 48,
    "n_inner": 24576,
    "n_layer": 40,
    "n_positions": 8192,
    "multi_query": True,
    "vocab_size": 49152,
    "torch_dtype": "float32",
}
MPT_7B = {
    "model_type": "mpt",
    "d_model": 4096,
    "n_heads": 32,
    "n_layers": 32,
    "expansion_ratio": 4,
    "max_seq_len": 2048,
    "no_bias": True,
    "attn_config": {"alibi": True, "attn_type": "multihead_attention"},
    "vocab_size": 50432,
    "torch_dtype": "bfloat16",
}
LLAMA_70B = llama(8192, 28672, 80, 64, num_key_value_heads=8)
LLAMA_3_8B = llama(
    4096, 14336, 32, 32, num_key_value_heads=8, vocab_size=128256, torch_dtype="bfloat16"
)
QWEN_2_7B = llama(3584, 18944, 28, 28, model_type="qwen2", num_key_value_heads=4, vocab_size=152064)
QWEN_2_HALF_B = llama(
    896,
    4864,
    24,
    14,
    model_type="qwen2",
    num_key_value_heads=2,
    vocab_size=151936,
    tie_word_embeddings=True,
)

PUBLISHED = {
    "OPT-125M": (opt(768, 12, 12), 125_239_296),
    "OPT-350M": (
        opt(1024, 24, 16, word_embed_proj_dim=512, do_layer_norm_before=False),
        331_196_416,
    ),
    "OPT-1.3B": (opt(2048, 24, 32), 1_315_758_080),
    "OPT-6.7B": (opt(4096, 32, 32), 6_658_473_984),
    "OPT-13B": (opt(5120, 40, 40), 12_853_473_280),
    "Llama-2-7B": (llama(4096, 11008, 32, 32), 6_738_415_616),
    "Llama-2-13B": (llama(5120, 13824, 40, 40), 13_015_864_320),
    "Llama-2-70B": (LLAMA_70B, 68_976_648_192),
    "Llama-3-8B": (LLAMA_3_8B, 8_030_261_248),
    "Qwen2-7B": (QWEN_2_7B, 7_615_616_512),
    "Qwen2-0.5B": (QWEN_2_HALF_B, 494_032_768),
    "GPT-NeoX-20B": (NEOX_20B, 20_554_567_680),
    "StarCoder": (STARCODER, 15_517_456_384),
    "MPT-7B": (MPT_7B, 6_649_286_656),
}


@pytest.fixture
def load(tmp_path):
    def save_and_load(config):
        path = tmp_path / "config.json"
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        return load_llm(path)

    return save_and_load


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_are_the_published_ones(load, name):
    config, n_parameters = PUBLISHED[name]
    assert load(config).n_parameters == n_parameters


@pytest.mark.parametrize(
    ("config", "kv_bytes", "weight_bytes"),
    [
        # K and V of 40 layers, 40 heads of 128, 2 bytes each: 800 KiB a token.
        (PUBLISHED["OPT-13B"][0], 819_200, 25_706_946_560),
        # 8 of 64 heads keep K and V: 2 · 80 · 8 · 128 · 2.
        (LLAMA_70B, 327_680, 137_953_296_384),
        # One head of 128, and 4 bytes a number: 2 · 40 · 128 · 4.
        (STARCODER, 40_960, 62_069_825_536),
    ],
)
def test_bytes_of_kv_cache_and_weights(load, config, kv_bytes, weight_bytes):
    llm = load(config)
    assert (llm.kv_bytes_per_token, llm.weight_bytes) == (kv_bytes, weight_bytes)


def test_flop_parameters_are_the_matrices_of_one_token(load):
    # Llama-2-7B: 32 · (4 · 4096² + 3 · 4096 · 11008) and the output head 32000 · 4096;
    # the input embedding, a look-up table of the same size, multiplies nothing.
    assert load(PUBLISHED["Llama-2-7B"][0]).n_flop_parameters == 6_607_077_376
    # A tied matrix is a look-up and a product: it counts as a product.
    tied = load(QWEN_2_HALF_B)
    assert tied.n_flop_parameters > 0.99 * tied.n_parameters


def test_what_older_configs_leave_out_has_the_familys_meaning(load):
    plain = load(llama(4096, 11008, 32, 32))
    written = load(llama(4096, 11008, 32, 32, num_key_value_heads=32, head_dim=128))
    assert plain == written
    # Mistral-Nemo's heads are smaller than hidden_size / heads.
    assert load(llama(5120, 14336, 40, 32, head_dim=128)).head_dim == 128
    # `null` is how Hugging Face writes "not set".
    without = {name: value for name, value in STARCODER.items() if name != "n_inner"}
    assert load({**without, "n_inner": None}) == load(STARCODER)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_missing_size_is_named(load, name):
    config, _ = PUBLISHED[name]
    optional = {"n_inner", "num_key_value_heads", "tie_word_embeddings"}
    for field in set(config) - optional:
        left = {key: value for key, value in config.items() if key != field}
        named = "dtype" if field == "torch_dtype" else field
        with pytest.raises(InputError, match=rf"config\.json, field '{named}': .*missing"):
            load(left)


BAD = {
    "unknown family": ({**LLAMA_70B, "model_type": "bloom"}, "'model_type'.*'bloom'.*llama"),
    "unknown type": ({**LLAMA_70B, "torch_dtype": "int3"}, "'dtype'.*'int3'.*bfloat16"),
    "cut off": ('{"model_type": "opt",', "not JSON"),
    "empty": ("", "not JSON"),
    "a list": ("[]", "not a JSON object"),
    "a size in quotes": ({**LLAMA_70B, "hidden_size": "8192"}, "'hidden_size'.*'8192'"),
    "a negative size": ({**LLAMA_70B, "num_hidden_layers": -1}, "'num_hidden_layers'.*-1"),
    "a switch for a size": ({**LLAMA_70B, "vocab_size": True}, "'vocab_size'.*True"),
    "no KV heads": ({**LLAMA_70B, "num_key_value_heads": 0}, "'num_key_value_heads'.*0"),
    "KV heads in quotes": ({**LLAMA_70B, "num_key_value_heads": "8"}, "'num_key_value_heads'"),
    "half a head": ({**LLAMA_70B, "head_dim": 64.5}, "'head_dim'.*64.5"),
    "n_inner of zero": ({**STARCODER, "n_inner": 0}, "'n_inner'"),
    "heads beside the hidden size": (llama(4096, 11008, 32, 30), "30 heads do not divide.*4096"),
    "KV heads beside the heads": ({**LLAMA_70B, "num_key_value_heads": 7}, "64 heads.*7 KV"),
    "biased MPT": ({**MPT_7B, "no_bias": False}, "'no_bias'"),
    "multi-query MPT": ({**MPT_7B, "attn_config": {"attn_type": "multiquery"}}, "'attn_config'"),
    "MPT of no attention": ({**MPT_7B, "attn_config": "alibi"}, "'attn_config'"),
    "Llama with MLP biases": ({**LLAMA_70B, "mlp_bias": True}, "'mlp_bias'"),
    "OPT without biases": (opt(768, 12, 12, enable_bias=False), "'enable_bias'"),
    "OPT with two embeddings": (opt(768, 12, 12, tie_word_embeddings=False), "'tie_word_emb"),
    "NeoX without biases": ({**NEOX_20B, "attention_bias": False}, "'attention_bias'"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_config_that_would_be_sized_wrongly_is_refused(load, case):
    config, message = BAD[case]
    with pytest.raises(InputError, match=message):
        load(config)


def test_a_config_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"none\.json.*no such file"):
        load_llm(tmp_path / "none.json")
