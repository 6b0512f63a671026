"""Facts: what the law takes of an LLM, a GPU profile, a server and its requests, row by row."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from sextant.facts.engine import (
    EngineScheduler,
    Memory,
    ServerOptions,
    has_cuda_graphs,
    memory_of,
    scheduler_sheet,
)
from sextant.facts.gpu import GPU, GPUProfile
from sextant.facts.kernels import Reached, reached
from sextant.facts.llm import (
    DTYPE_PRECISION,
    EXPERT_MATRICES,
    LLM,
    QUANTIZED,
    Speculating,
    precision_of,
    served,
)
from sextant.facts.llm_config import DTYPE_BYTES
from sextant.facts.nodes import link_gb_s, network_sync_ms
from sextant.points import frame
from sextant.points.frame import (
    GRAPHS,
    IDENTIFIERS,
    LENGTHS,
    MEMORY_SHARE,
    SERVING,
    SETTINGS,
    SLOTS,
    STEP_TOKENS,
    WAIT,
    FactTables,
)

_TEXTS = ["engine", "engine_version", "precision", "kv_precision"]
_SMALL_KERNEL_MS = 0.0025
"""A norm or an activation of few tokens: the least time of kernels, and the gap after it."""
_PRODUCTS_OF_LAYER = 4
_SMALL_OF_LAYER = 5
_STATE_BYTES = 2
"""Bytes of a number that crosses the interconnect: norms, gates and activations keep 16 bits."""
_LEAST_FREE = 0.02
"""Least share of the memory that the law leaves for the KV cache."""
_UNLIMITED = 1e6
"""Requests that decode at once, where nobody says how many may."""
UNKNOWN_TOKENS = 500.0
"""Length of requests where a source states none for any point: chats have a few hundred tokens."""


class _Configuration(NamedTuple):
    """An LLM as a GPU profile serves it."""

    llm_id: str
    gpu_profile_id: str
    precision: str  #: "": as published.
    kv_precision: str  #: "": not stated.
    engine: str


def fact_rows(keys: pd.DataFrame, facts: FactTables) -> pd.DataFrame:
    """Return `llm_id, gpu_profile_id, users` of `keys` with the law's facts, indexed as `keys`.

    Bytes and FLOPs are those of the LLM as each row serves it, and of one device.

    Args:
        keys: identifiers, users and mean `input_tokens, output_tokens`, one row per point. Further
            columns are optional: those of `SERVING`; those of `SETTINGS` (default: the engine's);
            `prefix_hit_rate`, the cached share of the input (default 0); `source`, who measured
            (default: no effect).
        facts: of the LLMs and GPU profiles.
    """
    optional = [*SERVING, *SETTINGS, "prefix_hit_rate", "source"]
    keys = keys.reindex(columns=[*dict.fromkeys([*keys, *optional])])
    texts = keys[_TEXTS].astype(object).where(keys[_TEXTS].notna(), "")

    names = pd.concat([keys[IDENTIFIERS], texts[["precision", "kv_precision", "engine"]]], axis=1)
    configurations = [*map(_Configuration._make, names.itertuples(index=False, name=None))]
    llms = {
        key: served(facts.llms[key.llm_id], key.precision or None, key.kv_precision or None)
        for key in dict.fromkeys(configurations)
    }
    by_configuration = {
        key: _hardware_facts(llm, facts.profiles[key.gpu_profile_id], key.engine)
        for key, llm in llms.items()
    }
    rows = pd.DataFrame([by_configuration[key] for key in configurations], index=keys.index)

    data_parallel = _split(keys["data_parallel"], rows["n_gpus"])
    expert_parallel = _split(keys["expert_parallel"], rows["n_gpus"])
    is_eager = ~texts["engine"].map(has_cuda_graphs).astype(bool) | (rows["is_cpu"] > 0)
    is_told = ~keys[GRAPHS].astype("boolean").fillna(True).astype(bool)
    execution = keys["llm_id"].map(frame.execution_classes(facts.llms, facts.published))

    lengths = _mean_lengths(keys)
    held_tokens = lengths["input_tokens"] + lengths["output_tokens"] / 2
    # A padded batch holds its activations on each device, a paged one once.
    copies = rows["n_gpus"].where(execution != frame.PAGED, 1.0)
    activation_bytes = is_eager * copies * rows["activation_bytes"] * held_tokens

    @cache
    def memory(
        key: _Configuration, data_parallel: float, version: str, share: float | None
    ) -> Memory:
        server = (key.engine, data_parallel, ServerOptions(version))
        return memory_of(llms[key], facts.profiles[key.gpu_profile_id].devices, share, *server)

    shares = keys[MEMORY_SHARE].astype(object).where(keys[MEMORY_SHARE].notna(), None)
    memories = map(memory, configurations, data_parallel, texts["engine_version"], shares)
    devices = [facts.profiles[key.gpu_profile_id].devices for key in configurations]
    schedulers = [*map(scheduler_sheet, texts["engine"], texts["engine_version"], devices)]
    rows = rows.assign(**_schedule_facts(keys, schedulers, data_parallel))
    return rows.assign(
        **keys[IDENTIFIERS],
        users=keys["users"].astype(float),
        **texts[["engine", "engine_version"]],
        source=keys["source"].astype(object),
        is_kv_unstated=(texts["kv_precision"] == "").astype(float),
        **lengths,
        kv_tokens=[
            free_bytes(memory) / (memory.request_bytes(tokens) + activation) * tokens
            for memory, tokens, activation in zip(
                memories, held_tokens, activation_bytes, strict=True
            )
        ],
        is_eager=is_eager.astype(float),
        # Started without the CUDA graphs that the engine has; `is_eager`: it has none.
        is_uncaptured=(is_told & ~is_eager).astype(float),
        execution=execution,
        prefill_share=1 - keys["prefix_hit_rate"].astype(float).fillna(0.0),
        data_parallel=data_parallel,
        # Attention that is replicated leaves each device whole experts.
        expert_parallel=expert_parallel.where(data_parallel == 1, rows["n_gpus"]),
    )


def _schedule_facts(
    keys: pd.DataFrame, schedulers: Sequence[EngineScheduler], data_parallel: pd.Series
) -> dict[str, pd.Series]:
    """Return the facts of how each row's server plans its steps, by its settings or its engine."""
    sheets = pd.DataFrame(schedulers, keys.index).astype(float)
    stated = keys[SETTINGS].astype(float)
    return {
        "max_num_seqs": stated[SLOTS].fillna(_UNLIMITED) * data_parallel,
        "batched_tokens": stated[STEP_TOKENS].fillna(sheets[STEP_TOKENS]),
        # A prompt comes halfway through the gathering on average.
        "wait_steps": stated[WAIT].fillna(sheets["max_waiting_steps"] / 2),
        "is_asynchronous": sheets["is_asynchronous"],
        "reserved_share": sheets["reserved_share"],
        "prompts_first": sheets["prompts_first"],
    }


def _split(stated: pd.Series, n_gpus: pd.Series) -> pd.Series:
    """Return over how many devices something is split: 1 unless stated, at most all devices."""
    return stated.astype("Float64").fillna(1.0).astype(float).clip(1, n_gpus)


def _mean_lengths(keys: pd.DataFrame) -> pd.DataFrame:
    """Return mean input and output tokens, and whether they are not stated.

    A point without them has its source's median.
    """
    lengths = keys[LENGTHS].astype(float)
    medians = lengths.groupby(keys["source"].astype(object), dropna=False).transform("median")
    is_unstated = lengths.isna().any(axis=1).astype(float)
    return lengths.fillna(medians).fillna(UNKNOWN_TOKENS).assign(is_lengths_unstated=is_unstated)


def free_bytes(memory: Memory) -> float:
    """Return the memory that the law gives the KV cache.

    It is above 0, as a source may have served what does not fit by our facts.
    """
    return max(memory.kv_bytes, _LEAST_FREE * memory.device_bytes)


def _hardware_facts(llm: LLM, profile: GPUProfile, engine: str) -> dict[str, float | str]:
    """Return the facts of an LLM on a GPU profile under an engine.

    An LLM that speculates also has its draft's facts, with `draft_` before their names.
    """
    gpu = profile.gpu
    link = reached(gpu, engine, "all_reduce", "bf16", profile.n_gpus)
    facts = _llm_facts(llm, gpu, engine) | {
        "gpu_id": gpu.gpu_id,
        "architecture": gpu.architecture,
        "maker": gpu.maker,
        "n_gpus": float(profile.n_gpus),
        "is_cpu": float(gpu.kind == "cpu"),
        "bytes_per_ms": gpu.memory_bandwidth_gb_s * 1e6,
        "flop_per_ms": gpu.dense_16bit_tflops * 1e9,
        "link_bytes_per_ms": link_gb_s(profile) * 1e6 * link.bandwidth_share,
        "sync_ms": link.fixed_ms,
        "network_sync_ms": network_sync_ms(profile),
    }
    if not isinstance(llm, Speculating):
        return facts

    draft_facts = _llm_facts(llm.draft or llm, gpu, engine)
    numbers: dict[str, float | str] = {
        f"draft_{name}": value for name, value in draft_facts.items() if isinstance(value, float)
    }
    if llm.draft is None:  # nothing runs
        numbers = {name: float(_is_divisor(name)) for name in numbers}
    names = ("draft_tokens", "accepted_length", "accepted_sd")
    return facts | numbers | {name: float(getattr(llm, name)) for name in names}


class _Kernels(NamedTuple):
    """What the kernels of an LLM reach on a GPU."""

    dense: Reached
    experts: Reached
    decode: Reached  #: Attention of one token, by the precision of the KV cache.
    prefill: Reached


def _kernels_of(llm: LLM, gpu: GPU, engine: str) -> _Kernels:
    n_dense = llm.n_quantized_parameters - llm.n_quantized_expert_parameters
    is_packed = 2 * n_dense > llm.n_parameters - llm.n_expert_parameters
    plain = DTYPE_PRECISION[llm.dtype]
    packed = _kernel_precision(llm.weight_format, llm.weight_bits, gpu) or plain
    of_experts = _kernel_precision(llm.expert_format, llm.expert_bits or llm.weight_bits, gpu)
    kv = llm.kv_dtype if llm.kv_dtype in QUANTIZED else plain
    kind = "mla" if llm.kv_latent_size else "attention"
    return _Kernels(
        dense=reached(gpu, engine, "dense", packed if is_packed else plain),
        experts=reached(gpu, engine, "experts", of_experts or packed),
        decode=reached(gpu, engine, f"decode_{kind}", kv),
        prefill=reached(gpu, engine, f"prefill_{kind}", "bf16"),
    )


def _kernel_precision(weight_format: str, bits: float, gpu: GPU) -> str:
    """Return the name of the kernels that multiply weights of a format."""
    if weight_format == "fp8" and bits > 8:  # scales of blocks
        return "fp8_block"
    if weight_format == "mxfp4" and gpu.dense_fp4_tflops:
        return "mxfp4_mxfp8"
    return weight_format


def _llm_facts(llm: LLM, gpu: GPU, engine: str) -> dict[str, float | str]:
    """Return the facts of an LLM; times and rates are those that one device's kernels reach."""
    attention_share = llm.attention_weight_bytes / llm.step_weight_bytes
    sliding_share = llm.n_sliding_layers / llm.n_layers
    n_encoder_parameters = llm.n_encoder_flop_parameters if llm.is_encoder_decoder else 0
    kernels = _kernels_of(llm, gpu, engine)
    dense_ms, expert_ms = _product_ms(llm, gpu, kernels)
    bytes_per_ms = gpu.memory_bandwidth_gb_s * 1e6

    states = 2 * (llm.hidden_size + llm.ffn_size) * DTYPE_BYTES[llm.dtype]
    # Decoders compute the 32-bit logits of all input tokens; an encoder has none.
    logits = 0 if llm.is_encoder_decoder else 4 * llm.vocab_size

    n_heads = (llm.n_attention_layers or llm.n_layers) * llm.n_heads
    pair_flop = 2.0 * n_heads * (llm.head_dim + llm.value_dim)
    pair_flop_per_ms = gpu.dense_16bit_tflops * 1e9 * kernels.prefill.flops_share
    return {
        "served_precision": precision_of(llm),
        "n_layers": float(llm.n_layers),
        "launch_ms": _launch_ms(llm, kernels),
        "is_latent": float(llm.kv_latent_size > 0),
        "is_moe": float(llm.n_experts > 0),
        # MLA's latent vector belongs to all heads, so no device holds less than the whole.
        "kv_parts": 1.0 if llm.kv_latent_size else float(llm.n_kv_heads),
        "kv_bytes_per_token": float(llm.kv_bytes_per_token),
        "kv_bytes_per_ms": bytes_per_ms * kernels.decode.bandwidth_share,
        "state_bytes": float(llm.state_bytes_per_request),
        "attention_bytes": llm.attention_weight_bytes,
        "dense_bytes": (1 - attention_share) * llm.step_weight_bytes,
        "dense_bytes_per_ms": bytes_per_ms * kernels.dense.bandwidth_share,
        "expert_bytes": float(llm.expert_weight_bytes),
        "expert_bytes_per_ms": bytes_per_ms * kernels.experts.bandwidth_share,
        "n_experts": float(llm.n_experts),
        "experts_per_token": float(llm.n_experts_per_token),
        "attention_ms": attention_share * dense_ms,
        "dense_ms": (1 - attention_share) * dense_ms,
        "expert_ms": expert_ms,
        "states_ms": _routed_state_bytes(llm) / bytes_per_ms / kernels.experts.states_share,
        # Scores and values of one token and one before it, over all layers with attention.
        "pair_ms": pair_flop / pair_flop_per_ms,
        "heads_ms": _head_state_bytes(llm) / bytes_per_ms / kernels.prefill.states_share,
        "reduced_bytes": 2.0 * llm.n_layers * llm.hidden_size * _STATE_BYTES,
        "activation_bytes": float(states + logits),
        "prompt_products": (
            n_encoder_parameters / llm.n_flop_parameters if n_encoder_parameters else 1.0
        ),
        "encoder_share": llm.n_encoder_layers / llm.n_layers if n_encoder_parameters else 0.0,
        "sliding_share": sliding_share,
        "window_tokens": float(llm.sliding_window_tokens) if sliding_share else np.inf,
    }


def fill_undrafted(X: pd.DataFrame) -> pd.DataFrame:
    """Return rows in which LLMs that do not speculate have the facts of no draft."""
    drafted = [name for name in X if name.startswith(("draft_", "accepted_"))]
    return X.fillna({name: float(_is_divisor(name)) for name in drafted})


def _is_divisor(name: str) -> bool:
    """Return whether something is divided by a fact of a draft: it is 1 where none runs."""
    return name.endswith("_per_ms") or name in ("draft_kv_parts", "accepted_length")


def _launch_ms(llm: LLM, kernels: _Kernels) -> float:
    """Return the least time of all kernels of a step."""
    products = llm.n_products
    small = llm.n_small_kernels
    if not products:  # not counted: those of an ordinary layer
        products = llm.n_layers * _PRODUCTS_OF_LAYER
        small = llm.n_layers * _SMALL_OF_LAYER
    attentions = llm.n_attention_layers or llm.n_layers
    attention_ms = attentions * kernels.decode.fixed_ms
    return products * kernels.dense.fixed_ms + attention_ms + small * _SMALL_KERNEL_MS


def _routed_state_bytes(llm: LLM) -> float:
    """Return the bytes of a token's states, once for each expert that it uses in each layer."""
    return _STATE_BYTES * llm.n_active_expert_parameters / (EXPERT_MATRICES * llm.ffn_size)


def _head_state_bytes(llm: LLM) -> float:
    """Return the bytes of a prompt token's queries, keys, values and outputs in all layers."""
    attentions = llm.n_attention_layers or llm.n_layers
    # In latent attention each head's keys and values are computed from the vector, unless heads are
    # as wide as it (DeepSeek-V4).
    n_kv_heads = llm.n_heads if llm.head_dim < llm.kv_latent_size else llm.n_kv_heads
    numbers = (llm.n_heads + n_kv_heads) * (llm.head_dim + llm.value_dim)
    return float(_STATE_BYTES * attentions * numbers)


def _product_ms(llm: LLM, gpu: GPU, kernels: _Kernels) -> tuple[float, float]:
    """Return the time of a token's products at the rates reached: dense ones, routed experts'."""
    dense_ms = 0.0
    expert_ms = 0.0
    expert_parameters = float(llm.n_active_expert_parameters)
    packed = llm.expert_format or llm.weight_format
    for precision, n_parameters in llm.flop_parameters.items():
        flop_per_ms = gpu.dense_tflops(precision) * 1e9
        # Experts are quantized first, if anything is. Weight-only experts are multiplied as 16-bit
        # numbers.
        is_of_experts = precision == packed or not packed or llm.is_weight_only
        n_of_experts = min(expert_parameters, n_parameters) if is_of_experts else 0.0
        expert_parameters -= n_of_experts
        expert_ms += 2 * n_of_experts / flop_per_ms / kernels.experts.flops_share
        dense_ms += 2 * (n_parameters - n_of_experts) / flop_per_ms / kernels.dense.flops_share
    return dense_ms, expert_ms
