"""LLM facts: published totals, experts, attention, caches, and configs that must be refused."""

import functools
import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import configuration_table
import llm_configs as published
from sextant.base.errors import InputError
from sextant.base.files import read_json
from sextant.base.sheets import load_sheet
from sextant.experiment.sheets import LlmFeatureRow, LlmRow
from sextant.facts.llm import load_llm, precision_in_name, served
from sextant.facts.llm_families import Family, families
from sextant.facts.llm_reading import read_llm
from support import ROOT

TEXT_OF = {name: config for name, (config, _) in published.PUBLISHED.items()}
LLAMA_7B, LLAMA_70B, OPT = (TEXT_OF[name] for name in ("Llama-2-7B", "Llama-2-70B", "OPT-125M"))
STARCODER, MPT_7B, FLAN_T5_XL = (TEXT_OF[name] for name in ("StarCoder", "MPT-7B", "Flan-T5-XL"))
CONFIGS = [*TEXT_OF.values(), *(config for config, *_ in published.MODERN.values())]
CODEGEN_16B, NEOX_20B = TEXT_OF["CodeGen2-16B"], TEXT_OF["GPT-NeoX-20B"]


@pytest.fixture
def save(tmp_path):
    def save_config(config):
        path = tmp_path / "config.json"
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        return path

    return save_config


@pytest.fixture
def load(save):
    return lambda config, dtype=None: load_llm(save(config), dtype)


@pytest.mark.parametrize("name", published.PUBLISHED)
def test_parameter_counts_are_the_published_ones(load, name):
    config, n_parameters = published.PUBLISHED[name]
    assert load(config).n_parameters == n_parameters


def test_every_unusual_family_has_a_published_count():
    configs = [*CONFIGS, *(config for config, _ in published.REFERENCE.values())]
    configs += [config for config, _ in published.FURTHER.values()]
    configs += [read_json(ROOT / f"resources/llms/{name}.json") for name in published.SHIPPED]
    counted = {config.get("model_type") for config in configs}
    counted |= {config.get("text_config", config).get("model_type") for config in configs}
    rows = families()
    for name, family in rows.items():
        if name in counted or family.refused:
            continue
        # A row that is another family's, or the usual one, needs no count of its own.
        assert family == Family() or any(family == rows[other] for other in counted & set(rows)), (
            name
        )


@pytest.mark.parametrize("name", published.FURTHER)
def test_llms_of_further_families_have_the_published_totals(load, name):
    config, billions = published.FURTHER[name]
    assert load(config).n_parameters / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize("name", published.MODERN)
def test_llms_of_today_have_the_published_totals(load, name):
    config, total, active = published.MODERN[name]
    published.check_counts(load(config), total, active)


MANY = [*CONFIGS, *(config for config, _ in published.FURTHER.values())]
MANY += [config for config, _ in published.REFERENCE.values()]
ODD = [10**400, -1, 0, 1.5, True, None, [], {}, "x", [[]], {"a": None}, 10**12, [10**400]]
ODD += [float("nan"), float("inf"), [None], "\ud800"]


def places(value, path=()):
    """Yield the path of each value inside a config; of a list its first."""
    items = value.items() if isinstance(value, dict) else [*enumerate(value)][:1]
    for key, inner in items:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))


@given(data=st.data(), config=st.sampled_from(MANY), odd=st.sampled_from(ODD))
@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_odd_value_is_one_short_error_or_has_no_effect_on_sanity(load, data, config, odd):
    path = data.draw(st.sampled_from([*places(config)]))
    changed = json.loads(json.dumps(config))
    inner = functools.reduce(lambda part, key: part[key], path[:-1], changed)
    inner[path[-1]] = odd
    try:
        llm = load(changed)
    except InputError as error:
        assert len(str(error)) < 1500
        return
    assert 0 < llm.weight_bytes < 1e16 and 0 < llm.kv_bytes_per_token < 1e10
    assert sum(llm.flop_parameters.values()) > 0


def test_a_pattern_of_no_kinds_is_refused(load):
    griffin = next(config for config in MANY if config.get("block_types"))
    with pytest.raises(InputError, match=r"block_types.*give .*recurrent"):
        load({**griffin, "block_types": []})


def test_the_table_of_configurations_is_what_the_code_computes(mirror):
    lines = (ROOT / "resources" / "llms" / "README.md").read_text().splitlines()
    header, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"
    ]
    assert header == list(configuration_table.HEADER)
    table = {name: cells for name, *cells in rows}
    paths = {path.stem: path for path in (mirror / "hf_configs").glob("*.json")}
    assert set(table) == set(paths) and len(rows) == len(paths)
    for name, path in paths.items():
        *computed, total, active, files_gb, _ = table[name]
        llm = load_llm(path)
        assert computed == configuration_table.computed_cells(name, llm), name
        if not total:
            continue
        published.check_counts(llm, _number(total), _number(active or total), rel=0.02)
        if files_gb:
            weights = served(llm, precision_in_name(name, llm)).weight_bytes
            assert weights / 1e9 == pytest.approx(_number(files_gb), rel=0.01), name


def _number(cell):
    return float(cell.replace(",", ""))


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("nvidia--Llama-3.1-70B-Instruct-FP8", "fp8"),
        ("DeepSeek-V3.1-NVFP4-v2", "nvfp4"),
        ("Mistral-7B-Instruct-v0.2-AWQ", "int4"),
        ("mistral-gptq", "int4"),
        ("Mistral-7B", None),
        ("fp8ish", None),
    ],
)
def test_a_name_may_say_a_precision_that_the_config_does_not(load, name, precision):
    assert precision_in_name(name, load(MISTRAL)) == precision
    quantized = MISTRAL | {"quantization_config": {"quant_method": "fp8"}}
    assert precision_in_name(name, load(quantized)) is None


@pytest.mark.parametrize(
    ("name", "layers", "kv_bytes", "state_bytes"),
    [
        # 16 of 64 layers: 2 x 4 heads of 256. States of 48 heads of 128 x 128 in 16 bits, and
        # three inputs of the convolutions over 10,240 numbers.
        ("Qwen3.5-27B", 16, 16 * 2 * 4 * 256 * 2, 48 * 2 * (48 * 128 * 128 + 3 * 10240)),
        # 6 of 52 layers. 23 states of 64 heads of 64 x 128 in 32 bits, inputs of 6,144 numbers.
        ("Nemotron-3-Nano-30B-A3B", 6, 6 * 2 * 2 * 128 * 2, 23 * (64 * 64 * 128 * 4 + 36864)),
        ("Nemotron-Super-49B", 49, 49 * 2 * 8 * 128 * 2, 0),
    ],
)
def test_hybrids_keep_a_cache_and_a_state(load, name, layers, kv_bytes, state_bytes):
    llm = load(published.MODERN[name][0])
    assert (llm.n_attention_layers, llm.kv_bytes_per_token) == (layers, kv_bytes)
    assert llm.state_bytes_per_request == state_bytes


@pytest.mark.parametrize(
    ("name", "kv_bytes", "sliding_bytes"),
    [
        # Windows: 25 layers of 8 heads of 256; others: 5 of 2 heads of 512.
        ("Gemma-4-26B-A4B", 2 * (25 * 2 * 8 * 256 + 5 * 2 * 2 * 512), 2 * 25 * 2 * 8 * 256),
        # K of 192 and V of 128 numbers; 39 layers of 8 heads, 9 of 4.
        ("MiMo-V2-Flash", 2 * (39 * 8 + 9 * 4) * 320, 2 * 39 * 8 * 320),
        ("MiniMax-M3", 60 * 2 * 4 * 128 * 2 + 57 * 128 * 2, 0),
        ("Step-3.7-Flash", 45 * 2 * 8 * 128 * 2, 33 * 2 * 8 * 128 * 2),
        # Latent and rotary key, and the indexer's 128 numbers of 8 bits with a scale of 32.
        ("DeepSeek-V3.2", 61 * (2 * 576 + 132), 0),
        # A vector of 512 for the window in all 43 layers; of older tokens one for 4 of them (21
        # layers, with an index of 128) or for 128 (20 layers).
        ("DeepSeek-V4-Flash", 2 * (43 * 512 + 21 * 640 // 4 + 20 * 4), 2 * 43 * 512),
    ],
)
def test_layers_may_keep_caches_of_different_sizes(load, name, kv_bytes, sliding_bytes):
    llm = load(published.MODERN[name][0])
    assert llm.kv_bytes_per_token == kv_bytes
    assert llm.sliding_kv_bytes_per_token == sliding_bytes


def test_deepseek_v4_has_experts_of_4_bits_among_weights_of_8(load):
    llm = load(published.DEEPSEEK_V4_FLASH)
    assert (llm.weight_format, llm.expert_format) == ("fp8", "mxfp4")
    assert llm.expert_weight_bytes == llm.n_expert_parameters * 4.25 / 8
    assert set(llm.flop_parameters) == {"bf16", "fp8", "mxfp4"}


@pytest.mark.parametrize(
    ("name", "n_experts", "per_token", "billions_active"),
    [
        # The makers say 12.9, 3.3, 2.7, 37 and 17 billion; for GPT-OSS 3.6 and for V2-Lite 2.4,
        # which are these without the input embedding.
        ("Mixtral-8x7B", 8, 2, 12.88),
        ("Qwen3-30B-A3B", 128, 8, 3.35),
        ("Qwen1.5-MoE-A2.7B", 60, 4, 2.69),
        ("DeepSeek-V3", 256, 8, 37.55),
        ("Llama-4-Scout", 16, 1, 17.17),
        ("GPT-OSS-20B", 32, 4, 4.19),
        ("DeepSeek-V2-Lite", 64, 6, 2.66),
    ],
)
def test_a_token_meets_the_experts_it_uses(load, name, n_experts, per_token, billions_active):
    llm = load(TEXT_OF[name])
    assert (llm.n_experts, llm.n_experts_per_token) == (n_experts, per_token)
    unused = llm.n_expert_parameters * (1 - per_token / n_experts)
    assert (llm.n_parameters - unused) / 1e9 == pytest.approx(billions_active, abs=0.006)
    # What is no product: the input embedding, norms and biases.
    embedding = llm.vocab_size * llm.hidden_size
    rest = llm.n_parameters - unused - embedding - llm.n_flop_parameters
    assert 0 < rest < 2e-3 * llm.n_parameters


def test_layers_without_experts(load):
    config = published.QWEN3_30B_A3B | {"decoder_sparse_step": 2, "mlp_only_layers": [1, 2]}
    # Every second layer of 48, but not the second one: 23.
    assert load(config).n_expert_parameters == 23 * 128 * 3 * 2048 * 768
    # All 48 dense: it has no experts, whatever their number would be.
    dense = load(published.QWEN3_30B_A3B | {"mlp_only_layers": list(range(48))})
    facts = dense.n_experts, dense.n_experts_per_token, dense.n_expert_parameters
    assert (*facts, dense.ffn_size) == (0, 0, 0, published.QWEN3_30B_A3B["intermediate_size"])


@pytest.mark.parametrize(
    ("name", "tokens", "layers"),
    [
        ("Mistral-7B", 4096, 32),
        ("Mixtral-8x7B", 0, 0),  # null
        ("Qwen2.5-72B", 0, 0),  # switched off
        ("Gemma-2-9B", 4096, 21),
        ("Gemma-3-4B", 1024, 29),
        ("GPT-OSS-20B", 128, 12),
        ("Llama-4-Scout", 8192, 36),  # chunks
        ("Llama-3-70B", 0, 0),
    ],
)
def test_sliding_windows_are_recorded(load, name, tokens, layers):
    llm = load(TEXT_OF[name])
    assert (llm.sliding_window_tokens, llm.n_sliding_layers) == (tokens, layers)


def test_qwens_window_begins_at_a_layer(load):
    on = {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 70}
    assert load(TEXT_OF["Qwen2.5-72B"] | on).n_sliding_layers == 10


@pytest.mark.parametrize("name", ["Falcon-40B", "Mistral-7B", "GPT-J-6B"])
def test_a_field_may_go_by_any_of_its_names(load, name):
    config = TEXT_OF[name]
    others = {"num_hidden_layers": "n_layer", "n_layer": "num_hidden_layers"}
    others |= {"hidden_size": "n_embd", "torch_dtype": "dtype"}
    renamed = {others.get(name, name): value for name, value in config.items()}
    assert renamed.keys() != config.keys() and load(renamed) == load(config)


def test_the_text_part_of_a_vision_language_config_is_read(load):
    llm = load(published.GEMMA3_4B)
    assert (llm.llm_type, llm.dtype) == ("gemma3_text", "bfloat16")
    # What the published file leaves to the class.
    assert (llm.n_heads, llm.n_kv_heads, llm.head_dim) == (8, 4, 256)
    assert (llm.vocab_size, llm.context_tokens) == (262_208, 131_072)
    plain = {**published.MISTRAL_SMALL_24B["text_config"], "torch_dtype": "bfloat16"}
    assert load(plain) == load(published.MISTRAL_SMALL_24B)


def test_missing_sizes_of_experts_and_latent_attention_are_named(load):
    needed = {
        "Mixtral-8x7B": ("num_experts_per_tok", "num_key_value_heads"),
        "Qwen3-30B-A3B": ("num_experts_per_tok",),
        "DeepSeek-V3": ("v_head_dim", "qk_nope_head_dim", "num_experts_per_tok"),
        "Gemma-2-9B": ("sliding_window",),
        "Falcon-40B": ("new_decoder_architecture", "bias", "multi_query"),
        "Falcon-7B": ("parallel_attn",),
        "BLOOM-560M": ("vocab_size",),
    }
    for name, fields in needed.items():
        for field in fields:
            left = {key: value for key, value in TEXT_OF[name].items() if key != field}
            with pytest.raises(InputError, match=rf"field '{field}': .*missing"):
                load(left)


def test_the_served_data_type_stands_in_for_the_configs(load):
    config = {key: value for key, value in TEXT_OF["GPT-2"].items() if key != "torch_dtype"}
    llm = load(config, "float16")
    assert (llm.dtype, llm.weight_bytes) == ("float16", 2 * llm.n_parameters)
    assert load(published.MISTRAL_7B, "float32").dtype == "float32"  # its config: bfloat16


def test_llms_of_llm_pilot_are_the_published_ones():
    sheet = ROOT / "config/llm-pilot/llms.tsv"
    rows = load_sheet(sheet, LlmRow, "llm_id")
    llms = {row["llm_id"]: load_llm(ROOT / row["config"]) for row in rows}
    assert {llm_id: llm.n_parameters for llm_id, llm in llms.items()} == published.LLM_PILOT
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
        (TEXT_OF["OPT-13B"], 819_200, 25_706_946_560),
        # 8 of 64 heads keep K and V: 2 · 80 · 8 · 128 · 2.
        (LLAMA_70B, 327_680, 137_953_296_384),
        # One head of 128, and 4 bytes a number: 2 · 40 · 128 · 4.
        (STARCODER, 40_960, 62_069_825_536),
        # The decoder's 24 layers of 32 heads of 64, whether its own or the input's tokens.
        (FLAN_T5_XL, 393_216, 11_399_028_736),
        # A hidden size of 1024, but 128 heads of 128: 2 · 24 · 128 · 128 · 4.
        (TEXT_OF["T5-11B"], 3_145_728, 45_229_285_376),
    ],
)
def test_bytes_of_kv_cache_and_weights(load, config, kv_bytes, weight_bytes):
    llm = load(config)
    assert (llm.kv_bytes_per_token, llm.weight_bytes) == (kv_bytes, weight_bytes)


def test_flop_parameters_are_the_matrices_of_one_token(load):
    # Llama-2-7B: 32 · (4 · 4096² + 3 · 4096 · 11008) and the output head 32000 · 4096;
    # the input embedding, a look-up table of the same size, multiplies nothing.
    assert load(LLAMA_7B).n_flop_parameters == 6_607_077_376
    # A tied matrix is a look-up and a product: it counts as a product.
    tied = load(TEXT_OF["Qwen2-0.5B"])
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
    llm = load(FLAN_T5_XL | {"num_decoder_layers": 6})
    assert (llm.is_encoder_decoder, llm.n_encoder_layers, llm.n_layers) == (True, 24, 6)
    assert load(FLAN_T5_XL | {"num_decoder_layers": None}) == load(FLAN_T5_XL)
    for config in (LLAMA_70B, CODEGEN_16B):
        llm = load(config)
        encoder = (llm.is_encoder_decoder, llm.n_encoder_layers, llm.n_encoder_flop_parameters)
        assert encoder == (False, 0, 0)


def test_what_older_configs_leave_out_has_the_familys_meaning(load):
    plain = load(LLAMA_7B)
    written = load(LLAMA_7B | {"num_key_value_heads": 32, "head_dim": 128})
    assert plain == written
    # Mistral-Nemo's heads are smaller than hidden_size / heads.
    assert load(LLAMA_7B | {"hidden_size": 5120, "head_dim": 128}).head_dim == 128
    # `null` is how Hugging Face writes "not set".
    assert load(STARCODER | {"num_key_value_heads": 1}) == load(STARCODER)
    assert load(STARCODER | {"n_inner": None}) == load(STARCODER)


USUAL_NAME = {
    "ffn_dim": "intermediate_size",
    "n_inner": "intermediate_size",
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_heads": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_layers": "num_hidden_layers",
}


@pytest.mark.parametrize("name", published.OLDER)
def test_every_missing_size_is_named(load, name):
    config, _ = published.OLDER[name]
    optional = {"n_inner", "num_key_value_heads", "tie_word_embeddings", "feed_forward_proj"}
    optional |= {"torch_dtype", "max_position_embeddings", "max_seq_len", "n_positions"}
    for field in set(config) - optional - {"model_type", "multi_query", "attn_config"}:
        left = {key: value for key, value in config.items() if key != field}
        named = USUAL_NAME.get(field, field)
        with pytest.raises(InputError, match=rf"config\.json, field '{named}': .*missing"):
            load(left)


NANO, V4 = published.NEMOTRON_3_NANO, published.DEEPSEEK_V4_FLASH
NAS, GLM = (published.MODERN[name][0] for name in ("Nemotron-Super-49B", "GLM-5"))
BLOCKS = [
    each | {"ffn": each["ffn"] | {"replace_with_linear": True}} for each in NAS["block_configs"]
]
LINEAR = NAS | {"block_configs": BLOCKS}
MISTRAL, LLAMA = published.MISTRAL_7B, TEXT_OF["Llama-3-70B"]
MIXTRAL, QWEN, V3 = published.MIXTRAL_8X7B, TEXT_OF["Qwen3-8B"], published.DEEPSEEK_V3
SCOUT, DELTA, GEMMA4 = published.LLAMA4_SCOUT, published.QWEN3_5_27B, published.GEMMA4_26B
BAD = {
    "states alone": (LLAMA_70B | {"model_type": "mamba"}, "'model_type'.*Mamba has no attention"),
    "an encoder": (LLAMA | {"model_type": "bert"}, "'model_type'.*an encoder.*generates no text"),
    "an encoder-decoder": (
        LLAMA_70B | {"model_type": "bart", "is_encoder_decoder": True},
        "only t5",
    ),
    "unknown type": (LLAMA_70B | {"torch_dtype": "int3"}, "'dtype'.*'int3'.*bfloat16"),
    "cut off": ('{"model_type": "opt",', "not JSON"),
    "empty": ("", "not JSON"),
    "a list": ("[]", "not a JSON object"),
    "a negative size": (LLAMA_70B | {"num_hidden_layers": -1}, "'num_hidden_layers'.*-1"),
    "KV heads beside multi-query": (STARCODER | {"num_key_value_heads": 48}, "'num_key_value"),
    "biased MPT": (MPT_7B | {"no_bias": False}, "'no_bias'"),
    "multi-query MPT": (MPT_7B | {"attn_config": {"attn_type": "multiquery"}}, "g.attn_type'"),
    "OPT without biases": (OPT | {"enable_bias": False}, "'enable_bias'"),
    "OPT with two embeddings": (OPT | {"tie_word_embeddings": False}, "'tie_word_emb"),
    "T5 of an unknown MLP": (FLAN_T5_XL | {"feed_forward_proj": "gated"}, "'feed_forward_proj'"),
    "T5's encoder alone": (FLAN_T5_XL | {"is_encoder_decoder": False}, "'is_encoder_decoder'"),
    "CodeGen with one embedding": (CODEGEN_16B | {"tie_word_embeddings": True}, "'tie_word_emb"),
    "NeoX without biases": (NEOX_20B | {"attention_bias": False}, "'attention_bias'"),
    "experts of no number": (LLAMA | {"num_local_experts": 8}, "'num_experts_per_tok'.*missing"),
    "latent attention of no sizes": (LLAMA | {"kv_lora_rank": 512}, "'qk_nope_head_dim'.*missing"),
    "an indexer in Llama": (LLAMA | {"index_head_dim": 64}, "'index_head_dim': 64 changes att"),
    "states in Llama": (LLAMA | {"mamba_d_state": 64}, "'mamba_d_state': 64 changes attention"),
    "cross-attention": (TEXT_OF["GPT-2"] | {"add_cross_attention": True}, "'add_cross_attention'"),
    "linear attention": (QWEN | {"layer_types": ["linear_attention"] * 36}, "'layer_types'"),
    "a kind of layer": (QWEN | {"layer_types": ["magic"] * 36}, "'layer_types'.*magic.*full_att"),
    "too few types": (QWEN | {"layer_types": ["full_attention"] * 35}, "'layer_types'.*36 layers"),
    "two names that disagree": (MISTRAL | {"n_layer": 31}, "num_hidden_layers = 32, n_layer = 31"),
    "too many experts": (MIXTRAL | {"num_experts_per_tok": 9}, "'num_experts_per_tok'.*9 of 8 exp"),
    "too many dense layers": (V3 | {"first_k_dense_replace": 62}, "first_k_dense_replace'.*62 of"),
    "BLOOM of its own width": (TEXT_OF["BLOOM-560M"] | {"n_inner": 1024}, "'n_inner'.*4096"),
    "an embedding model": (SCOUT | {"architectures": ["CLIPModel"]}, "'architectures'.*CLIPModel"),
    "a size of too many digits": (LLAMA | {"vocab_size": 10**12}, "'vocab_size'.*1,000,000,000"),
    "heads that cannot share": (LLAMA | {"num_key_value_heads": 7}, "'num_key_value_heads'.*64.*7"),
    "heads beside the hidden size": (LLAMA | {"num_attention_heads": 33}, "33 heads do not divide"),
    "two data types": (SCOUT | {"torch_dtype": "float16"}, "'float16'.*'bfloat16' inside text_"),
    "an unknown kind of layer": (NANO | {"hybrid_override_pattern": "M-X"}, "pattern'.*X.*moe"),
    "no attention": (NANO | {"hybrid_override_pattern": "M-M-"}, "pattern'.*no layer has att"),
    "a state of an unknown type": (DELTA | {"mamba_ssm_dtype": "float8"}, "ssm_dtype'.*'float8'"),
    "few delta nets": (DELTA | {"layer_types": ["linear_attention"]}, "'layer_types'.*64 layers"),
    "an unknown compression": (V4 | {"compress_ratios": [8] * 43}, "'compress_ratios'.*43 layers"),
    "experts of another type": (V4 | {"expert_dtype": "fp6"}, "'expert_dtype'.*fp4"),
    "unknown indexers": (GLM | {"indexer_types": ["none"] * 78}, "'indexer_types'.*78 layers"),
    "few switches": (published.MIMO_V2_FLASH | {"moe_layer_freq": [1]}, "'moe_layer_freq'.*48 lay"),
    "too few layers of a search": (NAS | {"block_configs": []}, "'block_configs'.*80 layers"),
    "linear layers of a search": (LINEAR, "'block_configs.*replace_with_linear'.*unsupported"),
    "a nested family of no sizes": (SCOUT | {"text_config": {"model_type": "xy"}}, "num_hidden_l"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_config_that_would_be_sized_wrongly_is_refused(load, case):
    config, message = BAD[case]
    with pytest.raises(InputError, match=message):
        load(config)


@pytest.mark.parametrize("name", ["Mistral-7B", "Mixtral-8x7B", "StarCoder2-3B", "Phi-2"])
def test_fields_that_are_off_or_change_nothing_are_let_pass(load, name):
    config = TEXT_OF[name]
    harmless = {"moe_intermediate_size": 0, "attention_bias": False, "pruned_heads": {}}
    harmless |= {"add_cross_attention": False, "hidden_act": "quick_gelu", "pad_token_id": None}
    assert load(harmless | {**config}) == load(config)


USUAL = LLAMA | {"model_type": "xyz", "hidden_act": "silu", "tie_word_embeddings": False}


def test_an_llm_of_an_unknown_family_is_a_decoder_with_the_usual_fields(save):
    reading = read_llm(save(USUAL))
    assert replace(reading.llm, llm_type="llama") == load_llm(save(LLAMA))
    (sentence,) = reading.assumed
    assert sentence.startswith("'xyz' is not a known family: it is read as a usual decoder with")
    assert not read_llm(save(LLAMA)).assumed


def test_fields_of_experts_change_nothing_in_an_llm_without(load):
    stray = {"n_routed_experts": None, "moe_intermediate_size": 1408, "num_experts_per_tok": 8}
    assert load(USUAL | stray) == load(USUAL)
    with pytest.raises(InputError, match="'moe_intermediate_size': 1408 changes attention, state"):
        load(USUAL | {"moe_intermediate_size": 1408})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tie_word_embeddings": None}, "does not say whether input and output embedding are one"),
        ({"num_key_value_heads": None}, "Each of the 64 heads has its own K and V"),
        ({"hidden_act": "relu2"}, "plain MLPs of 2 matrices"),
        ({"torch_dtype": None}, "it is taken as bfloat16"),
        ({"max_position_embeddings": None}, "it is taken as unlimited"),
        ({"moe_hidden_act": 1, "ffn_extra": 2}, "may change the size: ffn_extra, moe_hidden_act"),
        ({"num_experts": 8, "num_experts_per_tok": 2}, "Experts are as wide as the MLP, 28,672"),
    ],
)
def test_what_is_assumed_is_said(save, change, sentence):
    assert any(sentence in line for line in read_llm(save(USUAL | change)).assumed)


def test_biases_windows_and_norms_need_no_family(load):
    plain = load(MISTRAL).n_parameters
    in_heads = (32 + 2 * 8) * 128
    assert load(MISTRAL | {"attention_bias": True}).n_parameters == plain + 32 * (in_heads + 4096)
    assert load(MISTRAL | {"qkv_bias": True}).n_parameters == plain + 32 * in_heads
    assert load(MISTRAL | {"use_qk_norm": True}).n_parameters == plain + 32 * 2 * 128
    types = ["sliding_attention", "full_attention"] * 40
    llm = load(USUAL | {"sliding_window": 4096, "layer_types": types})
    assert (llm.n_sliding_layers, llm.sliding_window_tokens) == (40, 4096)


def test_layers_with_experts_are_those_that_any_usual_field_says(load):
    small = USUAL | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 1024}
    one_layer = 8 * 3 * 8192 * 1024
    for fields, n_layers in (
        ({}, 80),
        ({"first_k_dense_replace": 3}, 77),
        ({"num_dense_layers": 2}, 78),
        ({"moe_layer_freq": 2}, 40),
        ({"moe_layer_freq": [0] * 5 + [1] * 75}, 75),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, 39),
        ({"mlp_layer_types": ["dense"] * 4 + ["sparse"] * 76}, 76),
        ({"moe_layer_start_index": 3, "moe_layer_end_index": 79}, 77),
        ({"expert_layer_period": 4, "expert_layer_offset": 1}, 20),
        ({"interleave_moe_layer_step": 2}, 40),
        ({"moe_layers_enum": "1,2,3"}, 3),
    ):
        assert load(small | fields).n_expert_parameters == n_layers * one_layer, fields


def test_layers_that_share_k_and_v_keep_them_once(load):
    config, _ = published.FURTHER["Hunyuan-Large"]
    shared, own = load(config), load(config | {"use_cla": False})
    assert shared.kv_bytes_per_token == own.kv_bytes_per_token / 2 == 32 * 2 * 8 * 128 * 2
    assert own.n_parameters - shared.n_parameters == 32 * (2 * 6400 * 8 * 128 + 128)


def test_a_text_part_without_a_model_type_is_of_the_family_it_lies_in(load):
    config, _ = published.FURTHER["LLaVA-without-type"]
    assert load(config).n_layers == 32  # as the class has it
    inner = {key: value for key, value in USUAL.items() if key != "model_type"}
    nested = {"model_type": "some_vl", "architectures": ["SomeVLModel"], "text_config": inner}
    assert load(nested).n_parameters == load(USUAL).n_parameters


OTHER_FILES = {
    "a list": ("[]", "not a JSON object, so it is not an LLM's config.json"),
    "a tokenizer's": ({"tokenizer_class": "LlamaTokenizer"}, "a tokenizer's configuration"),
    "a generation's": ({"eos_token_id": 2, "temperature": 1}, "a generation configuration"),
    "an adapter's": ({"peft_type": "LORA", "r": 8}, "an adapter's configuration"),
    "an index of weights": ({"weight_map": {}}, "an index of weights"),
    "a classifier's": (LLAMA | {"architectures": ["BertForMaskedLM"]}, "does not generate text"),
}


@pytest.mark.parametrize("case", OTHER_FILES)
def test_a_file_that_is_no_llms_config_is_named(load, case):
    content, message = OTHER_FILES[case]
    with pytest.raises(InputError, match=rf"config\.json.*{message}"):
        load(content)
