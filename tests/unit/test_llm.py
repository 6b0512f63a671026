"""LLM facts: parameter counts of published models, and configs that must not be guessed at."""

import json

import pytest

from sextant.base.errors import InputError
from sextant.base.sheets import load_sheet
from sextant.experiment.sheets import LlmFeatureRow, LlmRow
from sextant.facts.llm import UNBOUNDED_TOKENS, load_llm
from support import ROOT


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


def t5(hidden, ffn, head_dim, heads, layers, **other):
    """Return a config of T5 1.1 and its kind: a gated MLP and a head of its own."""
    return {
        "model_type": "t5",
        "d_model": hidden,
        "d_ff": ffn,
        "d_kv": head_dim,
        "num_heads": heads,
        "num_layers": layers,
        "relative_attention_num_buckets": 32,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "vocab_size": 32128,
        "torch_dtype": "float32",
        **other,
    }


def codegen(hidden, layers, heads):
    return {
        "model_type": "codegen",
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "n_inner": None,
        "n_positions": 2048,
        "tie_word_embeddings": False,
        "vocab_size": 51200,
        "torch_dtype": "float32",
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

FLAN_T5_XL = t5(2048, 5120, 64, 32, 24)
CODEGEN_16B = codegen(6144, 34, 24)
# The first T5 configs say nothing of the MLP and of tied embeddings.
T5_FIRST = {"feed_forward_proj": None, "tie_word_embeddings": None}

PUBLISHED = {
    "OPT-125M": (opt(768, 12, 12), 125_239_296),
    "OPT-350M": (
        opt(1024, 24, 16, word_embed_proj_dim=512, do_layer_norm_before=False),
        331_196_416,
    ),
    "OPT-1.3B": (opt(2048, 24, 32), 1_315_758_080),
    "OPT-2.7B": (opt(2560, 32, 32), 2_651_596_800),
    "OPT-30B": (opt(7168, 48, 56), 29_974_540_288),
    "OPT-66B": (opt(9216, 64, 72), 65_719_701_504),
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
    "CodeGen-350M": (codegen(1024, 20, 16), 356_712_448),
    "CodeGen2-16B": (CODEGEN_16B, 16_032_155_648),
    "T5-small": (t5(512, 2048, 64, 8, 6, **T5_FIRST), 60_506_624),
    # 128 heads of 128 on a hidden size of 1024.
    "T5-11B": (t5(1024, 65536, 128, 128, 24, **T5_FIRST), 11_307_321_344),
    "mT5-small": (t5(512, 1024, 64, 6, 8, model_type="mt5", vocab_size=250112), 300_176_768),
}

# The files of LLM-Pilot's LLMs. The counts of Flan-T5 and mT0 are those of their checkpoints,
# whose heads are matrices of their own; that of Flan-UL2 is of one shared matrix.
SHIPPED = {
    "EleutherAI__gpt-neox-20b": 20_554_567_680,
    "Salesforce__codegen2-16B": 16_032_155_648,
    "bigcode__starcoder": 15_517_456_384,
    "bigscience__mt0-xxl": 12_921_057_280,
    "google__flan-t5-xl": 2_849_757_184,
    "google__flan-t5-xxl": 11_135_332_352,
    "google__flan-ul2": 19_459_613_696,
    "ibm__mpt-7b-instruct2": 6_649_286_656,
    "llama-13b": 13_015_864_320,
    "llama-7b": 6_738_415_616,
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


def test_llms_of_llm_pilot_are_the_published_ones():
    sheet = ROOT / "config/llm-pilot/llms.tsv"
    rows = load_sheet(sheet, LlmRow, "llm_id")
    llms = {row["llm_id"]: load_llm(ROOT / row["config"]) for row in rows}
    assert {llm_id: llm.n_parameters for llm_id, llm in llms.items()} == SHIPPED
    # What LLM-Pilot's own features say of them, where nothing is wrong with it.
    features = ROOT / "resources/llm-pilot/llm_features.tsv"
    for row in load_sheet(features, LlmFeatureRow, "llm_id"):
        llm = llms[row["llm_id"]]
        assert (llm.llm_type, llm.dtype) == (row["llm_type"], row["dtype"])
        assert llm.is_encoder_decoder == bool(row["is_encoder_decoder"])
        assert (llm.n_heads, llm.n_layers) == (row["n_heads"], row["n_layers"])
        assert llm.vocab_size == row["vocabulary_size"]
        assert llm.n_parameters / 1e9 == pytest.approx(row["n_parameters_billion"], rel=0.06)


@pytest.mark.parametrize(
    ("config", "kv_bytes", "weight_bytes"),
    [
        # K and V of 40 layers, 40 heads of 128, 2 bytes each: 800 KiB a token.
        (PUBLISHED["OPT-13B"][0], 819_200, 25_706_946_560),
        # 8 of 64 heads keep K and V: 2 · 80 · 8 · 128 · 2.
        (LLAMA_70B, 327_680, 137_953_296_384),
        # One head of 128, and 4 bytes a number: 2 · 40 · 128 · 4.
        (STARCODER, 40_960, 62_069_825_536),
        # The decoder's 24 layers of 32 heads of 64, whether its own or the input's tokens.
        (FLAN_T5_XL, 393_216, 11_399_028_736),
        # A hidden size of 1024, but 128 heads of 128: 2 · 24 · 128 · 128 · 4.
        (PUBLISHED["T5-11B"][0], 3_145_728, 45_229_285_376),
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


def test_flop_parameters_of_an_encoder_decoder_are_per_output_and_per_input_token(load):
    llm = load(FLAN_T5_XL)
    square, mlp = 2048 * 2048, 3 * 2048 * 5120
    # Self-attention, Q and O of cross-attention, and the head of 32128.
    assert llm.n_flop_parameters == 24 * (6 * square + mlp) + 2048 * 32128
    # The encoder, and K and V of cross-attention.
    assert llm.n_encoder_flop_parameters == 24 * (4 * square + mlp) + 24 * 2 * square
    # All but the input embedding, the norms and the two tables of positions.
    rest = 2048 * 32128 + (24 * 5 + 2) * 2048 + 2 * 32 * 32
    assert llm.n_parameters == llm.n_flop_parameters + llm.n_encoder_flop_parameters + rest


def test_only_an_encoder_decoder_has_an_encoder(load):
    llm = load({**FLAN_T5_XL, "num_decoder_layers": 6})
    assert (llm.is_encoder_decoder, llm.n_encoder_layers, llm.n_layers) == (True, 24, 6)
    assert load({**FLAN_T5_XL, "num_decoder_layers": None}) == load(FLAN_T5_XL)
    for config in (LLAMA_70B, CODEGEN_16B):
        llm = load(config)
        encoder = (llm.is_encoder_decoder, llm.n_encoder_layers, llm.n_encoder_flop_parameters)
        assert encoder == (False, 0, 0)


def test_relative_positions_set_no_limit(load):
    assert load({**FLAN_T5_XL, "n_positions": 512}).context_tokens == UNBOUNDED_TOKENS


def test_what_older_configs_leave_out_has_the_familys_meaning(load):
    plain = load(llama(4096, 11008, 32, 32))
    written = load(llama(4096, 11008, 32, 32, num_key_value_heads=32, head_dim=128))
    assert plain == written
    # Mistral-Nemo's heads are smaller than hidden_size / heads.
    assert load(llama(5120, 14336, 40, 32, head_dim=128)).head_dim == 128
    # `null` is how Hugging Face writes "not set".
    assert load({**STARCODER, "num_key_value_heads": 1}) == load(STARCODER)
    without = {name: value for name, value in STARCODER.items() if name != "n_inner"}
    assert load({**without, "n_inner": None}) == load(STARCODER)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_missing_size_is_named(load, name):
    config, _ = PUBLISHED[name]
    optional = {"n_inner", "num_key_value_heads", "tie_word_embeddings", "feed_forward_proj"}
    for field in set(config) - optional:
        left = {key: value for key, value in config.items() if key != field}
        named = "dtype" if field == "torch_dtype" else field
        with pytest.raises(InputError, match=rf"config\.json, field '{named}': .*missing"):
            load(left)


BAD = {
    "unknown family": ({**LLAMA_70B, "model_type": "mamba"}, "'model_type'.*'mamba'.*llama"),
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
    "KV heads beside multi-query": ({**STARCODER, "num_key_value_heads": 48}, "'num_key_value"),
    "n_inner of zero": ({**STARCODER, "n_inner": 0}, "'n_inner'"),
    "heads beside the hidden size": (llama(4096, 11008, 32, 30), "30 heads do not divide.*4096"),
    "KV heads beside the heads": ({**LLAMA_70B, "num_key_value_heads": 7}, "64 heads.*7 KV"),
    "biased MPT": ({**MPT_7B, "no_bias": False}, "'no_bias'"),
    "multi-query MPT": ({**MPT_7B, "attn_config": {"attn_type": "multiquery"}}, "'attn_config'"),
    "MPT of no attention": ({**MPT_7B, "attn_config": "alibi"}, "'attn_config'"),
    "Llama with MLP biases": ({**LLAMA_70B, "mlp_bias": True}, "'mlp_bias'"),
    "OPT without biases": (opt(768, 12, 12, enable_bias=False), "'enable_bias'"),
    "OPT with two embeddings": (opt(768, 12, 12, tie_word_embeddings=False), "'tie_word_emb"),
    "T5 of an unknown MLP": ({**FLAN_T5_XL, "feed_forward_proj": "gated"}, "'feed_forward_proj'"),
    "T5's encoder alone": ({**FLAN_T5_XL, "is_encoder_decoder": False}, "'is_encoder_decoder'"),
    "CodeGen with one embedding": ({**CODEGEN_16B, "tie_word_embeddings": True}, "'tie_word_emb"),
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
