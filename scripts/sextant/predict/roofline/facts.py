"""What the mechanistic model knows of a point before it is measured: a frame, one row a point.

Everything that the law of `sextant.predict.roofline.law` computes with is a column here, so
points of any workload, engine, precision and generation of GPUs can be fitted together.
"""

import numpy as np
import pandas as pd

from sextant.facts.gpu import GIB, GPUProfile
from sextant.facts.llm import DTYPE_BYTES, LLM
from sextant.points.characterizations.execution import PAGED, execution_classes
from sextant.points.characterizations.features import Facts
from sextant.points.characterizations.points import IDENTIFIERS, LENGTHS

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
