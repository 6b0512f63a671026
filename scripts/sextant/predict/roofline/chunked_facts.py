"""What the law of chunked prefill knows of a point before it is measured: one row a point."""

import numpy as np
import pandas as pd

from sextant.facts.gpu import GIB, GPU
from sextant.facts.llm import LLM
from sextant.facts.llm.load import precision_of, served
from sextant.points.characterizations.features import Facts
from sextant.points.characterizations.points import IDENTIFIERS, LENGTHS, SERVING

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
    return _llm_facts(llm, profile.gpu) | {
        "gpu_id": profile.gpu.gpu_id,
        "architecture": profile.gpu.architecture,
        "n_gpus": float(profile.n_gpus),
        "memory_bytes": profile.gpu.memory_gib * GIB,
        "bytes_per_ms": profile.gpu.memory_bandwidth_gb_s * 1e6,
        "link_bytes_per_ms": profile.gpu.interconnect_gb_s * 1e6,
    }


def _llm_facts(llm: LLM, gpu: GPU) -> dict[str, float | str]:
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
