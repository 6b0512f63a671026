"""Configs of published LLMs, with the fields that matter to their size and cost."""

from typing import Any

import pytest

from sextant.facts.llm import LLM


def _hf(family: str, sizes: tuple[int, ...], vocab: int, **other: Any) -> dict[str, Any]:
    hidden, ffn, layers, heads, kv_heads = sizes
    return {
        "model_type": family,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 4096,
        "vocab_size": vocab,
        "torch_dtype": "bfloat16",
        **other,
    }


def _gpt2(family: str, hidden: int, layers: int, heads: int, vocab: int, **other: Any) -> dict:
    return {
        "model_type": family,
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "n_positions": 1024,
        "vocab_size": vocab,
        "torch_dtype": "float16",
        **other,
    }


def _bloom(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "bloom",
        "n_embed": hidden,
        "n_layer": layers,
        "num_attention_heads": heads,
        "n_inner": None,
        "seq_length": 2048,
        "vocab_size": 250880,
        "torch_dtype": "bfloat16",
    }


def _falcon(hidden: int, layers: int, heads: int, vocab: int = 65024, **other: Any) -> dict:
    return {
        "model_type": "falcon",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocab,
        "bias": False,
        "multi_query": True,
        "new_decoder_architecture": False,
        "parallel_attn": True,
        "torch_dtype": "bfloat16",
        **other,
    }


def _deepseek(family: str, sizes: tuple[int, ...], vocab: int, **other: Any) -> dict[str, Any]:
    return _hf(
        family,
        sizes,
        vocab,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        moe_layer_freq=1,
        attention_bias=False,
        tie_word_embeddings=False,
        **other,
    )


def _window(tokens: int, **other: Any) -> dict[str, Any]:
    return {"sliding_window": tokens, **other}


QWEN_OFF = {"sliding_window": 32768, "use_sliding_window": False, "max_window_layers": 28}
GEMMA = {"head_dim": 256, "attention_bias": False}
MISTRAL_7B = _hf("mistral", (4096, 14336, 32, 32, 8), 32000, **_window(4096))
MIXTRAL_8X7B = _hf(
    "mixtral",
    (4096, 14336, 32, 32, 8),
    32000,
    num_local_experts=8,
    num_experts_per_tok=2,
    sliding_window=None,
)
QWEN3_30B_A3B = _hf(
    "qwen3_moe",
    (2048, 6144, 48, 32, 4),
    151936,
    head_dim=128,
    attention_bias=False,
    decoder_sparse_step=1,
    mlp_only_layers=[],
    moe_intermediate_size=768,
    num_experts=128,
    num_experts_per_tok=8,
    sliding_window=None,
    use_sliding_window=False,
    max_window_layers=48,
    tie_word_embeddings=False,
)
DEEPSEEK_V2_LITE = _deepseek(
    "deepseek_v2",
    (2048, 10944, 27, 16, 16),
    102400,
    q_lora_rank=None,
    first_k_dense_replace=1,
    moe_intermediate_size=1408,
    n_routed_experts=64,
    n_shared_experts=2,
    num_experts_per_tok=6,
)
DEEPSEEK_V3 = _deepseek(
    "deepseek_v3",
    (7168, 18432, 61, 128, 128),
    129280,
    q_lora_rank=1536,
    first_k_dense_replace=3,
    moe_intermediate_size=2048,
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=8,
    num_nextn_predict_layers=1,
)
GEMMA2_9B = _hf("gemma2", (3584, 14336, 42, 16, 8), 256000, **GEMMA, **_window(4096))
# The published file: what it leaves out is the class's.
GEMMA3_4B = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "mm_tokens_per_image": 256,
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27, "vocab_size": 1},
}
MISTRAL_SMALL_24B = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "model_type": "mistral3",
    "text_config": _hf(
        "mistral",
        (5120, 32768, 40, 32, 8),
        131072,
        head_dim=128,
        sliding_window=None,
        torch_dtype=None,
    ),
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1024, "num_hidden_layers": 24},
}
GPT_OSS_20B = _hf(
    "gpt_oss",
    (2880, 2880, 24, 64, 8),
    201088,
    head_dim=64,
    attention_bias=True,
    num_local_experts=32,
    num_experts_per_tok=4,
    experts_per_token=4,
    sliding_window=128,
    layer_types=["sliding_attention", "full_attention"] * 12,
    tie_word_embeddings=False,
)
LLAMA4_SCOUT = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "model_type": "llama4",
    "text_config": _hf(
        "llama4_text",
        (5120, 8192, 48, 40, 8),
        202048,
        head_dim=128,
        attention_bias=False,
        intermediate_size_mlp=16384,
        interleave_moe_layer_step=1,
        attention_chunk_size=8192,
        num_local_experts=16,
        num_experts_per_tok=1,
        use_qk_norm=True,
        tie_word_embeddings=False,
    ),
    "torch_dtype": "bfloat16",
}
FALCON_7B = _falcon(4544, 32, 71, num_kv_heads=71)
FALCON_40B = _falcon(8192, 60, 128, new_decoder_architecture=True, num_kv_heads=8)
STARCODER2_3B = _hf("starcoder2", (3072, 12288, 30, 24, 2), 49152, use_bias=True, **_window(4096))

PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "Llama-3-70B": (_hf("llama", (8192, 28672, 80, 64, 8), 128256), 70_553_706_496),
    "Llama-3.2-1B": (
        _hf("llama", (2048, 8192, 16, 32, 8), 128256, head_dim=64, tie_word_embeddings=True),
        1_235_814_400,
    ),
    "Mistral-7B": (MISTRAL_7B, 7_241_732_096),
    "Mistral-Small-24B": (MISTRAL_SMALL_24B, 23_572_403_200),
    "Mixtral-8x7B": (MIXTRAL_8X7B, 46_702_792_704),
    "Mixtral-8x22B": (
        MIXTRAL_8X7B
        | {"hidden_size": 6144, "intermediate_size": 16384, "num_hidden_layers": 56}
        | {"num_attention_heads": 48, "vocab_size": 32768},
        140_630_071_296,
    ),
    "Qwen2.5-72B": (_hf("qwen2", (8192, 29568, 80, 64, 8), 152064, **QWEN_OFF), 72_706_203_648),
    "Qwen1.5-MoE-A2.7B": (
        _hf(
            "qwen2_moe",
            (2048, 5632, 24, 16, 16),
            151936,
            decoder_sparse_step=1,
            moe_intermediate_size=1408,
            shared_expert_intermediate_size=5632,
            num_experts=60,
            num_experts_per_tok=4,
            **QWEN_OFF,
        ),
        14_315_784_192,
    ),
    "Qwen3-8B": (
        _hf("qwen3", (4096, 12288, 36, 32, 8), 151936, head_dim=128, **QWEN_OFF),
        8_190_735_360,
    ),
    "Qwen3-30B-A3B": (QWEN3_30B_A3B, 30_532_122_624),
    "Gemma-7B": (_hf("gemma", (3072, 24576, 28, 16, 16), 256000, **GEMMA), 8_537_680_896),
    "Gemma-2B": (_hf("gemma", (2048, 16384, 18, 8, 1), 256000, **GEMMA), 2_506_172_416),
    "Gemma-2-9B": (GEMMA2_9B, 9_241_705_984),
    "Gemma-3-4B": (GEMMA3_4B, 3_880_263_168),
    "Phi-3-mini": (_hf("phi3", (3072, 8192, 32, 32, 32), 32064, **_window(2047)), 3_821_079_552),
    "Phi-2": (
        _hf("phi", (2560, 10240, 32, 32, None), 51200, tie_word_embeddings=False),
        2_779_683_840,
    ),
    "Granite-3.0-8B": (
        _hf("granite", (4096, 12800, 40, 32, 8), 49155, tie_word_embeddings=True),
        8_170_848_256,
    ),
    "OLMo-2-7B": (_hf("olmo2", (4096, 11008, 32, 32, 32), 100352), 7_298_617_344),
    "StarCoder2-3B": (STARCODER2_3B, 3_030_371_328),
    "GPT-2": (_gpt2("gpt2", 768, 12, 12, 50257, n_ctx=1024), 124_439_808),
    "GPT-2-XL": (_gpt2("gpt2", 1600, 48, 25, 50257), 1_557_611_200),
    "GPT-J-6B": (
        _gpt2("gptj", 4096, 28, 16, 50400, rotary_dim=64, tie_word_embeddings=False),
        6_050_882_784,
    ),
    "BLOOM-560M": (_bloom(1024, 24, 16), 559_214_592),
    "BLOOM-7B1": (_bloom(4096, 30, 32), 7_069_016_064),
    "BLOOM-176B": (_bloom(14336, 70, 112), 176_247_271_424),
    "Falcon-7B": (FALCON_7B, 6_921_720_704),
    "Falcon-40B": (FALCON_40B, 41_303_293_952),
    "Falcon-RW-1B": (
        _falcon(2048, 24, 32, 50304, bias=True, multi_query=False, parallel_attn=False),
        1_311_625_216,
    ),
    "DeepSeek-V2-Lite": (DEEPSEEK_V2_LITE, 15_706_484_224),
    "DeepSeek-V3": (DEEPSEEK_V3, 671_026_419_200),
    "GPT-OSS-20B": (GPT_OSS_20B, 20_914_757_184),
    "Llama-4-Scout": (LLAMA4_SCOUT, 107_769_861_120),
}

SHIPPED: dict[str, tuple[float, float]] = {
    "MiniMaxAI__MiniMax-M2.5": (228.7, 10),
    "Qwen__Qwen3-14B": (14.8, 14.8),
    "Qwen__Qwen3-235B-A22B-FP8": (235, 22),
    "Qwen__Qwen3-235B-A22B-Instruct-2507": (235, 22),
    "Qwen__Qwen3-235B-A22B-Instruct-2507-FP8": (235, 22),
    "Qwen__Qwen3-30B-A3B-Instruct-2507": (30.5, 3.3),
    "Qwen__Qwen3-32B": (32.8, 32.8),
    "Qwen__Qwen3-8B": (8.2, 8.2),
    "Qwen__Qwen3-Coder-30B-A3B-Instruct": (30.5, 3.3),
    "Qwen__Qwen3-Coder-480B-A35B-Instruct": (480, 35),
    "Qwen__Qwen3-Coder-480B-A35B-Instruct-FP8": (480, 35),
    "deepseek-ai__DeepSeek-V3.1": (671, 37),
    # Without the vision tower of 0.4B.
    "google__gemma-3-12b-it": (11.8, 11.8),
    "google__gemma-3-27b-it": (27.0, 27.0),
    "meta-llama__Llama-3.1-405B-Instruct": (405.9, 405.9),
    "meta-llama__Llama-3.1-405B-Instruct-FP8": (405.9, 405.9),
    "meta-llama__Llama-3.1-70B": (70.6, 70.6),
    "meta-llama__Llama-3.1-70B-Instruct": (70.6, 70.6),
    "meta-llama__Llama-3.1-8B-Instruct": (8.03, 8.03),
    "meta-llama__Llama-3.3-70B-Instruct": (70.6, 70.6),
    "meta-llama__Llama-4-Maverick-17B-128E-Instruct-FP8": (400, 17),
    "meta-llama__Llama-4-Scout-17B-16E-Instruct": (107.8, 17),
    "moonshotai__Kimi-K2.5": (1026, 32),
    "nvidia__Llama-3.1-8B-Instruct-FP8": (8.03, 8.03),
    "nvidia__NVIDIA-Nemotron-Nano-12B-v2": (12.31, 12.31),
    "nvidia__NVIDIA-Nemotron-Nano-9B-v2": (8.89, 8.89),
    "openai__gpt-oss-120b": (116.8, 5.1),
}
"""By `resources/llms`: billions of parameters as published, of all and of those a token uses."""


def _moe(n: int, per_token: int, ffn: int, name: str = "num_experts", **other: Any) -> dict:
    return {name: n, "num_experts_per_tok": per_token, "moe_intermediate_size": ffn, **other}


def _deepseek(family: str, sizes: tuple[int, ...], vocab: int, **other: Any) -> dict[str, Any]:
    hidden, ffn, layers, heads = sizes
    return {
        **_hf(family, (hidden, ffn, layers, heads, heads), vocab, attention_bias=False),
        **_moe(256, 8, 2048, "n_routed_experts", n_shared_experts=1, moe_layer_freq=1),
        "first_k_dense_replace": 3,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "index_head_dim": 128,
        **other,
    }


def _qwen_next(family: str, sizes: tuple[int, ...], vocab: int, v: int, **other: Any) -> dict:
    return {
        **_hf(family, sizes, vocab, head_dim=256, attention_bias=False),
        "attn_output_gate": True,
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": v,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        **other,
    }


def _nemotron_h(pattern: str, sizes: tuple[int, ...], mamba_heads: int, **other: Any) -> dict:
    return {
        **_hf("nemotron_h", sizes, 131072, head_dim=128, hybrid_override_pattern=pattern),
        **dict.fromkeys(("attention_bias", "mlp_bias", "use_bias", "mamba_proj_bias"), False),
        "use_conv_bias": True,
        "mamba_num_heads": mamba_heads,
        "mamba_head_dim": 64,
        "ssm_state_size": 128,
        "n_groups": 8,
        "conv_kernel": 4,
        "n_shared_experts": 1,
        **other,
    }


def _nas(heads_in_group: int | None, mult: float, n: int) -> list[dict[str, Any]]:
    attention = {"n_heads_in_group": heads_in_group, "no_op": heads_in_group is None}
    ffn = {"ffn_mult": mult, "no_op": False, "replace_with_linear": False}
    return n * [{"attention": attention | {"replace_with_linear": False}, "ffn": ffn}]


_KIMI_K2 = {"model_type": "kimi_k2", "vocab_size": 163840, "num_attention_heads": 64} | {
    "n_routed_experts": 384,
    "first_k_dense_replace": 1,
}
STEP_3_7 = _hf(
    "step3p7",
    (4096, 11264, 45, 64, 8),
    128896,
    head_dim=128,
    layer_types=(["full_attention"] + ["sliding_attention"] * 3) * 11 + ["full_attention"],
    sliding_window=512,
    first_k_dense_replace=3,
    share_expert_dim=1280,
    n_shared_experts=1,
    use_moe_router_bias=True,
    **_moe(288, 8, 1280),
)
DEEPSEEK_V4_FLASH = {
    **_hf("deepseek_v4", (4096, 0, 43, 64, 1), 129280, head_dim=512, attention_bias=False),
    **_moe(256, 6, 2048, "n_routed_experts", n_shared_experts=1),
    "q_lora_rank": 1024,
    "o_lora_rank": 1024,
    "o_groups": 8,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "sliding_window": 128,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
    "expert_dtype": "fp4",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
GEMMA4_26B = _hf(
    "gemma4_text",
    (2816, 2112, 30, 16, 8),
    262144,
    head_dim=256,
    global_head_dim=512,
    num_global_key_value_heads=2,
    attention_k_eq_v=True,
    layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 5,
    sliding_window=1024,
    enable_moe_block=True,
    num_experts=128,
    top_k_experts=8,
    moe_intermediate_size=704,
    num_kv_shared_layers=0,
    hidden_size_per_layer_input=0,
)
MIMO_V2_FLASH = _hf(
    "mimo_v2_flash",
    (4096, 16384, 48, 64, 4),
    152576,
    head_dim=192,
    v_head_dim=128,
    swa_num_attention_heads=64,
    swa_num_key_value_heads=8,
    swa_head_dim=192,
    swa_v_head_dim=128,
    sliding_window=128,
    hybrid_layer_pattern=[0, 1, 1, 1, 1, *[0, 1, 1, 1, 1, 1] * 7, 0],
    moe_layer_freq=[0] + [1] * 47,
    **_moe(256, 8, 2048, "n_routed_experts"),
)
MINIMAX_M3 = _hf(
    "minimax_m3",
    (6144, 3072, 60, 64, 4),
    200064,
    head_dim=128,
    dense_intermediate_size=12288,
    shared_intermediate_size=3072,
    n_shared_experts=1,
    moe_layer_freq=[0] * 3 + [1] * 57,
    use_qk_norm=True,
    qk_norm_type="per_head",
    use_routing_bias=True,
    sparse_attention_config={
        "sparse_attention_freq": [0] * 3 + [1] * 57,
        "sparse_num_index_heads": 4,
        "sparse_index_dim": 128,
    },
    **_moe(128, 4, 3072, "num_local_experts"),
)
QWEN3_5_27B = _qwen_next("qwen3_5_text", (5120, 17408, 64, 24, 4), 248320, 48)
NEMOTRON_3_NANO = _nemotron_h(
    "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    (2688, 1856, 52, 32, 2),
    64,
    mamba_ssm_cache_dtype="float32",
    moe_shared_expert_intermediate_size=3712,
    **_moe(128, 6, 1856, "n_routed_experts"),
)
MODERN: dict[str, tuple[dict[str, Any], float, float]] = {
    "Qwen3-VL-8B": (_hf("qwen3_vl_text", (4096, 12288, 36, 32, 8), 151936, head_dim=128), 8.2, 8.2),
    "Qwen3-VL-30B-A3B": (QWEN3_30B_A3B | {"model_type": "qwen3_vl_moe_text"}, 30.5, 3.3),
    "MiMo-7B": (
        # 7.83 with the layer that predicts a further token.
        _hf("mimo", (4096, 11008, 36, 32, 8), 151680, head_dim=128, attention_bias=True),
        7.62,
        7.62,
    ),
    "Step-3.7-Flash": (STEP_3_7, 196, 11),
    "DeepSeek-V3.2": (
        _deepseek(
            "deepseek_v32",
            (7168, 18432, 61, 128),
            129280,
            q_lora_rank=1536,
            qk_nope_head_dim=128,
            v_head_dim=128,
            index_n_heads=64,
        ),
        671,
        37,
    ),
    "GLM-5": (
        _deepseek(
            "glm_moe_dsa",
            (6144, 12288, 78, 64),
            154880,
            q_lora_rank=2048,
            qk_nope_head_dim=192,
            v_head_dim=256,
            index_n_heads=32,
        ),
        744,
        40,
    ),
    "Kimi-K2": (DEEPSEEK_V3 | _KIMI_K2, 1026, 32),
    "DeepSeek-V4-Flash": (DEEPSEEK_V4_FLASH, 284, 13),
    "DeepSeek-V4-Flash in SGLang": (DEEPSEEK_V4_FLASH | {"model_type": "deepseek_ref"}, 284, 13),
    "Qwen3-Next-80B-A3B": (
        _qwen_next("qwen3_next", (2048, 0, 48, 16, 2), 151936, 32)
        | _moe(512, 10, 512, shared_expert_intermediate_size=512, decoder_sparse_step=1),
        79.7,
        3.5,
    ),
    "Qwen3.5-27B": (QWEN3_5_27B, 26.9, 26.9),
    "Qwen3.5-397B-A17B": (
        _qwen_next("qwen3_5_moe_text", (4096, 0, 60, 32, 2), 248320, 64)
        | _moe(512, 10, 1024, shared_expert_intermediate_size=1024),
        397,
        17,
    ),
    "Gemma-4-26B-A4B": (GEMMA4_26B, 25.2, 3.8),
    "Gemma-4-31B": (
        GEMMA4_26B
        | {"hidden_size": 5376, "intermediate_size": 21504, "num_attention_heads": 32}
        | {"num_hidden_layers": 60, "num_key_value_heads": 16, "num_global_key_value_heads": 4}
        | {"layer_types": GEMMA4_26B["layer_types"] * 2, "enable_moe_block": False}
        | {"num_experts": None, "top_k_experts": None, "moe_intermediate_size": None},
        30.7,
        30.7,
    ),
    "MiMo-V2-Flash": (MIMO_V2_FLASH, 309, 15),
    "MiniMax-M3": (MINIMAX_M3, 428, 23),
    "Nemotron-Super-49B": (
        _hf("nemotron-nas", (8192, 0, 80, 64, None), 128256)
        | {
            "block_configs": _nas(8, 5.25, 48)
            + _nas(None, 1.3125, 10)
            + _nas(None, 1.0, 8)
            + _nas(None, 0.5, 6)
            + _nas(None, 2.625, 5)
            + _nas(8, 2.625, 1)
            + _nas(None, 3.28125, 1)
            + _nas(None, 5.25, 1)
        },
        49.9,
        49.9,
    ),
    "Nemotron-H-56B": (
        _nemotron_h("M-M-M-M*-" + "M-M-M-M-M*-" * 9 + "M-M-M-M-M-", (8192, 32768, 118, 64, 8), 256)
        | {"ssm_state_size": 256, "n_shared_experts": None},
        56.3,
        56.3,
    ),
    "Nemotron-3-Nano-30B-A3B": (NEMOTRON_3_NANO, 31.6, 3.2),
    "Nemotron-3-Super-120B-A12B": (
        _nemotron_h(
            "MEMEMEM*E" + "MEMEMEM*E" * 2 + "MEMEMEMEM*E" * 4 + "MEMEMEM*EMEMEMEME",
            (4096, 2688, 88, 32, 2),
            128,
            moe_latent_size=1024,
            moe_shared_expert_intermediate_size=5376,
            **_moe(512, 22, 2688, "n_routed_experts"),
        ),
        120.6,
        12,
    ),
}
"""Configs, and billions of parameters as published: of all, and of those a token uses."""


def check_counts(llm: LLM, total: float, active: float, rel: float = 0.01) -> None:
    """Compare with what the makers say, who round, and may count no head or the embedding too."""
    assert llm.n_parameters / 1e9 == pytest.approx(total, rel=rel)
    head = llm.vocab_size * llm.hidden_size
    low, high = llm.n_flop_parameters - head, llm.n_flop_parameters + head
    assert low / 1e9 * 0.97 <= active <= high / 1e9 * 1.06
