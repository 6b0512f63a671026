"""What the laws know of a point before it is measured: one row per point.

Everything that the law of `sextant.predict.roofline.law` computes with is a column here, so
points of any workload, engine, precision and generation of GPUs can be fitted together.
"""

import numpy as np
import pandas as pd

from sextant.facts.gpu import GIB, GPU, GPUProfile
from sextant.facts.llm import DTYPE_BYTES, LLM
from sextant.facts.llm.load import precision_of, served
from sextant.points.features import PAGED, Facts, execution_classes
from sextant.points.frame import IDENTIFIERS, LENGTHS, SERVING

# A decoder layer of an encoder-decoder has a third block, cross-attention.
_LAYER_BLOCKS = {True: 3, False: 2}


def fact_rows(keys: pd.DataFrame, facts: Facts) -> pd.DataFrame:
    """Return `llm_id, gpu_profile_id, users` of `keys` with their facts, indexed as `keys`.

    Args:
        keys: identifiers, users and the mean `input_tokens, output_tokens`, one row a point.
        facts: facts of the LLMs and GPU profiles that `keys` names.
    """
    execution = execution_classes(facts.llms, facts.published)
    of_llm = {
        name: _llm_facts(facts.llms[name], execution[name]) for name in keys["llm_id"].unique()
    }
    of_profile = {
        name: _profile_facts(facts.profiles[name]) for name in keys["gpu_profile_id"].unique()
    }
    parts = [
        keys[[*IDENTIFIERS, "users"]],
        pd.DataFrame.from_dict(of_llm, "index").loc[keys["llm_id"]].set_axis(keys.index),
        pd.DataFrame.from_dict(of_profile, "index")
        .loc[keys["gpu_profile_id"]]
        .set_axis(keys.index),
        keys[LENGTHS],
    ]
    return pd.concat(parts, axis=1)


def _llm_facts(llm: LLM, execution: str) -> dict[str, float | str]:
    bytes_per_parameter = llm.weight_bytes / llm.n_parameters
    active_experts = 0.0
    if llm.n_experts:
        active_experts = llm.n_expert_parameters * llm.n_experts_per_token / llm.n_experts
    encoder = llm.n_encoder_flop_parameters if llm.is_encoder_decoder else 0
    return {
        "execution": execution,
        "is_paged": float(execution == PAGED),
        "n_blocks": _LAYER_BLOCKS[llm.is_encoder_decoder] * llm.n_layers,
        "n_encoder_blocks": _LAYER_BLOCKS[False] * llm.n_encoder_layers,
        "weight_bytes": float(llm.weight_bytes),
        # Read in every step: the decoder's matrices, of which all tokens share the dense ones.
        "dense_bytes": (llm.n_flop_parameters - active_experts) * bytes_per_parameter,
        "expert_bytes": llm.n_expert_parameters * bytes_per_parameter,
        "expert_share": llm.n_experts_per_token / llm.n_experts if llm.n_experts else 0.0,
        "flop_per_input_token": 2.0 * (encoder or llm.n_flop_parameters),
        "kv_bytes_per_token": float(llm.kv_bytes_per_token),
        "activation_bytes_per_token": _activation_bytes(llm),
        # Tensor parallelism adds up the hidden state after every block.
        "reduced_bytes_per_token": float(
            _LAYER_BLOCKS[llm.is_encoder_decoder]
            * llm.n_layers
            * llm.hidden_size
            * DTYPE_BYTES[llm.dtype]
        ),
    }


def _activation_bytes(llm: LLM) -> float:
    """Return what a token in prefill holds beside its KV cache: two blocks' states, and logits.

    Decoders compute the 32-bit logits of all input tokens; an encoder has none.
    """
    states = 2 * (llm.hidden_size + llm.ffn_size) * DTYPE_BYTES[llm.dtype]
    logits = 0 if llm.is_encoder_decoder else 4 * llm.vocab_size
    return float(states + logits)


def _profile_facts(profile: GPUProfile) -> dict[str, float | str]:
    gpu = profile.gpu
    return {
        "gpu_id": gpu.gpu_id,
        "n_gpus": profile.n_gpus,
        "memory_bytes": gpu.memory_gib * GIB,
        "bytes_per_ms": gpu.memory_bandwidth_gb_s * 1e6,
        "flop_per_ms": gpu.dense_16bit_tflops * 1e9,
        "link_bytes_per_ms": gpu.interconnect_gb_s * 1e6,
    }


def columns_of(X: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return the numbers of a fact frame by name, for the law to compute with."""
    return {name: X[name].to_numpy(float) for name in X.select_dtypes("number")}


_TEXTS = ["engine", "engine_version", "precision", "kv_precision"]
# The norms, gates and activations that cross the interconnect stay 16-bit numbers.
_STATE_BYTES = 2
UNKNOWN_TOKENS = 500.0
"""Taken for a length that a source does not state: chats have a few hundred tokens."""


def chunked_rows(keys: pd.DataFrame, facts: Facts) -> pd.DataFrame:
    """Return `llm_id, gpu_profile_id, users` of `keys` with the law's facts, indexed as `keys`.

    Bytes and FLOPs are those of the LLM as each row serves it, and of one device.

    Args:
        keys: identifiers, users, mean `input_tokens, output_tokens` and whatever `SERVING` has,
            one row a point; `prefix_hit_rate` is the share of the input that is cached, 0 without.
        facts: facts of the LLMs and GPU profiles that `keys` names.
    """
    keys = keys.reindex(columns=[*dict.fromkeys([*keys, *SERVING, "prefix_hit_rate"])])
    texts = keys[_TEXTS].astype(object).where(keys[_TEXTS].notna(), "")
    served_as = pd.concat([keys[IDENTIFIERS], texts[["precision", "kv_precision"]]], axis=1)
    each = list(served_as.itertuples(index=False, name=None))
    of_pair = {row: _pair_facts(facts, *row) for row in dict.fromkeys(each)}
    known = pd.DataFrame([of_pair[row] for row in each], index=keys.index)
    layout = keys[SERVING[-3:]].astype(float)
    n_gpus = known["n_gpus"]
    data_parallel = layout["data_parallel"].fillna(1.0).clip(1, n_gpus)
    expert_parallel = layout["expert_parallel"].fillna(1.0).clip(1, n_gpus)
    return pd.concat(
        [
            keys[[*IDENTIFIERS]],
            keys["users"].astype(float),
            texts[["engine", "engine_version"]],
            (texts["kv_precision"] == "").astype(float).rename("is_kv_unstated"),
            known,
            keys[LENGTHS].astype(float).fillna(UNKNOWN_TOKENS),
            pd.DataFrame(
                {
                    "prefill_share": 1 - keys["prefix_hit_rate"].astype(float).fillna(0.0),
                    "data_parallel": data_parallel,
                    # Attention that is replicated leaves each device whole experts.
                    "expert_parallel": expert_parallel.where(data_parallel == 1, n_gpus),
                }
            ),
        ],
        axis=1,
    )


def _pair_facts(
    facts: Facts, llm_id: str, profile_id: str, precision: str, kv_precision: str
) -> dict[str, float | str]:
    llm = served(facts.llms[llm_id], precision or None, kv_precision or None)
    profile = facts.profiles[profile_id]
    return _chunked_llm_facts(llm, profile.gpu) | {
        "gpu_id": profile.gpu.gpu_id,
        "architecture": profile.gpu.architecture,
        "n_gpus": float(profile.n_gpus),
        "memory_bytes": profile.gpu.memory_gib * GIB,
        "bytes_per_ms": profile.gpu.memory_bandwidth_gb_s * 1e6,
        "link_bytes_per_ms": profile.gpu.interconnect_gb_s * 1e6,
    }


def _chunked_llm_facts(llm: LLM, gpu: GPU) -> dict[str, float | str]:
    dense_flops = max(llm.n_flop_parameters - llm.n_active_expert_parameters, 1)
    attention_share = min(llm.n_attention_parameters / dense_flops, 1.0)
    sliding = llm.n_sliding_layers / llm.n_layers
    dense_ms, expert_ms = _product_ms(llm, gpu)
    n_queries = (llm.n_attention_layers or llm.n_layers) * llm.n_heads * llm.head_dim
    return {
        "served_precision": precision_of(llm),
        "n_layers": float(llm.n_layers),
        "is_latent": float(llm.kv_latent_size > 0),
        "is_moe": float(llm.n_experts > 0),
        # MLA's latent vector belongs to all heads, so no device holds less than the whole.
        "kv_parts": 1.0 if llm.kv_latent_size else float(llm.n_kv_heads),
        "kv_bytes_per_token": float(llm.kv_bytes_per_token),
        "state_bytes": float(llm.state_bytes_per_request),
        "attention_bytes": attention_share * llm.step_weight_bytes,
        "dense_bytes": (1 - attention_share) * llm.step_weight_bytes,
        "unread_bytes": float(llm.dense_weight_bytes - llm.step_weight_bytes),
        "expert_bytes": float(llm.expert_weight_bytes),
        "n_experts": float(llm.n_experts),
        "experts_per_token": float(llm.n_experts_per_token),
        "attention_ms": attention_share * dense_ms,
        "dense_ms": (1 - attention_share) * dense_ms,
        "expert_ms": expert_ms,
        # Scores and values of one token and one before it, over all layers with attention.
        "pair_ms": 4.0 * n_queries / (gpu.dense_16bit_tflops * 1e9),
        "reduced_bytes": 2.0 * llm.n_layers * llm.hidden_size * _STATE_BYTES,
        "sliding_share": sliding,
        "window_tokens": float(llm.sliding_window_tokens) if sliding else np.inf,
    }


def _product_ms(llm: LLM, gpu: GPU) -> tuple[float, float]:
    """Return the time of a token's products at the device's peak: dense ones, routed experts'."""
    experts = float(llm.n_active_expert_parameters)
    dense_ms, expert_ms, rest = 0.0, 0.0, experts
    packed = llm.expert_format or llm.weight_format
    for precision, n_parameters in llm.flop_parameters.items():
        flop_per_ms = gpu.dense_tflops(precision) * 1e9
        # Experts are what is quantized, if anything is.
        of_experts = min(rest, n_parameters) if precision == packed or not packed else 0.0
        rest -= of_experts
        expert_ms += 2 * of_experts / flop_per_ms
        dense_ms += 2 * (n_parameters - of_experts) / flop_per_ms
    if rest:  # weight-only experts are multiplied as 16-bit numbers
        expert_ms += 2 * rest / (gpu.dense_16bit_tflops * 1e9)
        dense_ms -= 2 * rest / (gpu.dense_16bit_tflops * 1e9)
    return dense_ms, expert_ms
