"""The law of engines that mix chunks of prompts into decode steps: vLLM V1, SGLang, TensorRT-LLM.

docs/predictor.md derives it. Parameters are logarithms. Times are in milliseconds; bytes, FLOPs
and tokens are those of the whole LLM, divided here among the devices of a replica.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from sextant.facts.gpu import GPU, GPUProfile
from sextant.facts.llm import LLM, STOPPING_ENGINE, Memory, memory_of, precision_of, served
from sextant.points.frame import IDENTIFIERS, LENGTHS, SERVING, Facts
from sextant.predict.roofline.posterior import Columns, Effect, Law, Parameter, levels

PARAMETERS = {
    "launch": Parameter("floor of a layer in a step, CUDA graphs on, ms", 0.06, 0.15),
    "routing": Parameter("floor of a layer that routes each token to 8 experts, ms", 0.04, 0.3),
    "bandwidth": Parameter("share of the bandwidth that dense weights reach", 0.75, 0.1),
    "expert_bandwidth": Parameter("share that experts' weights reach", 0.75, 0.15),
    "expert_visit": Parameter("time that an expert in use adds to a layer, ms", 0.0005, 0.5),
    "touch": Parameter("exponent of the tokens that choose experts of their own", 1.0, 0.1),
    "kv_bandwidth": Parameter("share of the bandwidth that the KV cache reaches", 0.7, 0.2),
    "flops": Parameter("share of the peak that dense products reach", 0.5, 0.2),
    "expert_flops": Parameter("share of the peak that experts' products reach", 0.25, 0.3),
    "attention_flops": Parameter("share of the peak that attention in prefill reaches", 0.4, 0.3),
    "sync": Parameter("latency of an all-reduce, ms", 0.005, 0.5),
    "link": Parameter("share of the link's bandwidth; above 1: sums in the switch", 1.2, 0.3),
    "sequence": Parameter("host and sampling time of a sequence in a step, ms", 0.02, 0.7),
    "prompt": Parameter("time of a prompt before and after its step, ms", 5.0, 0.5),
    "prompt_launch": Parameter("floor of a layer in a step with a prompt, ms", 0.4, 0.4),
    "prompt_weights": Parameter("times that a prompt reads the weights", 1.0, 0.3),
    "mixed": Parameter("share of other prompts' time that a decoding request sees", 1.0, 0.15),
    "mixed_weights": Parameter("share of their reads of further experts", 0.3, 0.5),
    "wait": Parameter("steps until a prompt joins the batch", 1.5, 0.3),
    "behind": Parameter("share of all other users' prompts that a prompt waits for", 0.06, 0.3),
    "behind_growth": Parameter("exponent of the other users in that", 1.0, 0.05),
    "memory": Parameter("requests in the KV cache over those of mean length that fit", 0.9, 0.2),
    "queue": Parameter("time in the queue over that of a full batch in turn", 0.5, 0.7),
    "ttft_offset": Parameter("statistic of TTFT over this law", 1.0, 0.2),
    "itl_offset": Parameter("statistic of ITL over this law", 1.0, 0.05),
}
NAMES = tuple(PARAMETERS)
INDEX = {name: position for position, name in enumerate(NAMES)}
ITL_TERMS = ("launch_ms", "weights_ms", "kv_ms", "sequences_ms", "other_prompts_ms")
"""Those of `terms` that add up to the mean ITL."""
_EXPERTS_AT_REFERENCE = 8.0


def terms(phi: np.ndarray, facts: Columns) -> dict[str, np.ndarray]:
    """Return what the latencies are made of (`Law.terms`), in ms unless named else.

    `itl_batch` and `capacity_requests` count requests: those that share a step, and those that the
    memory holds.

    Args:
        phi: logarithms of the parameters, shape (rows, parameters), in `NAMES`' order.
        facts: columns of `chunked_rows`, shape (rows,).
    """
    value = dict(zip(NAMES, np.exp(phi).T, strict=True))
    users = facts["users"]
    capacity = value["memory"] * facts["requests_that_fit"]
    # Users beyond the memory wait, but they preempt too: more memory is never slower.
    others = np.maximum(users - 1, 0.0)
    decode = _decode(users, value, facts)
    step = sum(decode.values())
    prompt, all_weights = _prompt(value, facts)
    further = np.maximum(all_weights - _weights(users, value, facts), 0)
    mixed = others * (value["mixed"] * prompt + value["mixed_weights"] * further)
    itl = step + mixed / facts["output_tokens"]
    # A prompt takes its products or the reading of the weights, whichever is longer.
    turn = np.hypot(prompt, value["prompt_weights"] * all_weights)
    behind = value["behind"] * others ** value["behind_growth"] * turn
    crowd = np.logaddexp(0, 8 * (users / capacity - 1)) / 8 * (1 - 1 / users)
    return decode | {
        "other_prompts_ms": mixed / facts["output_tokens"],
        "prefill_ms": turn + facts["n_layers"] * value["prompt_launch"] + value["prompt"],
        "batching_ms": value["wait"] * itl * others / users,
        "queueing_ms": behind + value["queue"] * crowd * facts["output_tokens"] * itl,
        "itl_batch": users,
        "capacity_requests": capacity,
    }


def step_parts(phi: np.ndarray, facts: Columns) -> dict[str, np.ndarray]:
    """Return the terms of `simulate.StepLaw` that this law has, each (rows,).

    `sequence_ms` and `kv_token_ms` are those at the rows' mean lengths; `request_ms` is that of a
    prompt alone beyond its products and weights. `mixed` is a prompt's time among decodes over that
    alone.
    """
    value = dict(zip(NAMES, np.exp(phi).T, strict=True))
    one, every = np.ones(len(phi)), np.full(len(phi), np.inf)
    decode = _decode(one, value, facts)
    share = facts["experts_per_token"] / np.maximum(facts["n_experts"], 1)
    all_weights = _weights(every, value, facts)
    # One token touches its own experts alone.
    expert_ms = (all_weights - decode["weights_ms"]) / (1 - share)
    length = np.maximum(facts["input_tokens"], 2)
    each = _prompt(value, {**facts, "prefill_share": one, "input_tokens": length})[0] / length
    first = _prompt(value, {**facts, "prefill_share": one, "input_tokens": one})[0]
    pair_ms = (each - first) / ((length - 1) / 2)
    return {
        "floor_ms": decode["launch_ms"],
        "dense_ms": all_weights - expert_ms,
        "expert_ms": expert_ms,
        "expert_share": share,
        "touch": value["touch"],
        "sequence_ms": decode["sequences_ms"],
        "kv_token_ms": decode["kv_ms"] / (facts["input_tokens"] + facts["output_tokens"] / 2),
        "prefill_token_ms": first - pair_ms / 2,
        "prefill_pair_ms": pair_ms,
        "request_ms": facts["n_layers"] * value["prompt_launch"] + value["prompt"],
        "mixed": value["mixed"],
    }


def _kept_tokens(tokens: np.ndarray, facts: Columns) -> np.ndarray:
    """Return the tokens that attention looks back on, a mean over the layers."""
    sliding = facts["sliding_share"]
    return (1 - sliding) * tokens + sliding * np.minimum(tokens, facts["window_tokens"])


def _decode(batch: np.ndarray, value: Columns, facts: Columns) -> dict[str, np.ndarray]:
    """Return the parts of a decode step of this batch."""
    n_gpus, layers = facts["n_gpus"], facts["n_layers"]
    routing = facts["experts_per_token"] / _EXPERTS_AT_REFERENCE * value["routing"]
    syncs = np.where(n_gpus > 1, 2 * layers * value["sync"], 0.0)
    context = _kept_tokens(facts["input_tokens"] + facts["output_tokens"] / 2, facts)
    speed = facts["bytes_per_ms"] * value["kv_bandwidth"]
    # The cache is split by heads, which are never divided.
    kv_bytes = facts["kv_bytes_per_token"] / np.minimum(
        n_gpus, facts["kv_parts"] * facts["data_parallel"]
    )
    # Each of the replicas of attention multiplies its own requests: no less in all.
    products = facts["attention_ms"] * facts["data_parallel"] + facts["dense_ms"]
    products = products / value["flops"] + facts["expert_ms"] / value["expert_flops"]
    each = value["sequence"] + reduction_ms(facts) / value["link"] + products / n_gpus
    return {
        "launch_ms": layers * (value["launch"] + routing) + syncs,
        "weights_ms": _weights(batch, value, facts),
        # The state of layers without attention is read and written in every step.
        "kv_ms": batch * (context * kv_bytes + 2 * facts["state_bytes"] / n_gpus) / speed,
        "sequences_ms": batch * each,
    }


def _weights(tokens: np.ndarray, value: Columns, facts: Columns) -> np.ndarray:
    """Return the time to read the weights that so many tokens touch."""
    n_gpus, n_experts = facts["n_gpus"], facts["n_experts"]
    share = facts["experts_per_token"] / np.maximum(n_experts, 1)
    touched = 1 - (1 - share) ** (np.maximum(tokens, 1) ** value["touch"])
    dense = (facts["attention_bytes"] * facts["data_parallel"] + facts["dense_bytes"]) / n_gpus
    experts = facts["expert_bytes"] * touched / n_gpus
    visits = facts["n_layers"] * n_experts * touched / facts["expert_parallel"]
    reading = dense / value["bandwidth"] + experts / value["expert_bandwidth"]
    return reading / facts["bytes_per_ms"] + value["expert_visit"] * visits


def _prompt(value: Columns, facts: Columns) -> tuple[np.ndarray, np.ndarray]:
    """Return the time of a prompt's products and sums, and that to read all weights it touches."""
    n_gpus, tokens = facts["n_gpus"], facts["input_tokens"] * facts["prefill_share"]
    linear = (facts["attention_ms"] + facts["dense_ms"]) / value["flops"]
    linear = (linear + facts["expert_ms"] / value["expert_flops"]) / n_gpus
    # A token looks back on half of the prompt, on average.
    seen = _kept_tokens(facts["input_tokens"], facts) / 2
    attention = facts["pair_ms"] * seen / n_gpus / value["attention_flops"]
    each = linear + attention + reduction_ms(facts) / value["link"]
    return tokens * each, _weights(tokens, value, facts)


def reduction_ms(facts: Columns) -> np.ndarray:
    """Return the time to add up one token's hidden states over the devices (ring all-reduce)."""
    n_gpus = facts["n_gpus"]
    return 2 * (n_gpus - 1) / n_gpus * facts["reduced_bytes"] / facts["link_bytes_per_ms"]


# Standard deviations of effects, by parameter.
_MOE = {"sequence": 0.3, "expert_flops": 0.2}
_LATENT = {"launch": 0.2, "kv_bandwidth": 0.3}
# Who does not state the precision of the KV cache may well have halved it.
_KV_UNSTATED = {"memory": 0.5, "kv_bandwidth": 0.3}
_SHARES = dict.fromkeys(("launch", "bandwidth", "expert_bandwidth"), 0.1)
_ARCHITECTURE = _SHARES | {"flops": 0.2, "expert_flops": 0.2}
_PRECISION = _SHARES | {"flops": 0.15, "expert_flops": 0.15}
_ENGINE = {"ttft_offset": 0.2, "itl_offset": 0.15, "behind": 0.7}
# Who measured, with which client, and whether all users start at once.
_SOURCE = {"ttft_offset": 0.2, "behind": 0.7}
_VERSION = {"ttft_offset": 0.1, "itl_offset": 0.05}
_SUPPORT = {"ttft_offset": 0.15, "itl_offset": 0.1}
_DEPLOYMENT = {"ttft_offset": 0.1, "itl_offset": 0.04}


def effects(X: pd.DataFrame) -> Iterator[Effect]:
    """Yield the effects on the rows of a fact frame."""
    kinds = {"kv unstated": _KV_UNSTATED, "moe": _MOE, "latent": _LATENT}
    for name, spread in kinds.items():
        rows = X[f"is_{name.replace(' ', '_')}"].to_numpy(float)
        yield from (Effect(parameter, name, rows, sd) for parameter, sd in spread.items())
    yield Effect("sync", "replicated", (X["data_parallel"] > 1).to_numpy(float), 0.2)
    for parameter in ("sync", "sequence"):
        yield Effect(parameter, "doubling", np.log2(X["n_gpus"].to_numpy(float)), 0.1)
    yield from levels(X["architecture"], "architecture", _ARCHITECTURE, {})
    yield from levels(X["served_precision"], "precision", _PRECISION, {})
    yield from levels(X["engine"], "engine", _ENGINE, {})
    yield from levels(X["source"], "source", _SOURCE, {})
    version = X["engine"] + " " + X["engine_version"]
    yield from levels(version, "version", _VERSION, dict.fromkeys(version, "version"))
    # How well a version of an engine supports an LLM: its kernels and defaults for it.
    support = X["llm_id"] + "|" + version
    yield from levels(support, "support", _SUPPORT, dict.fromkeys(support, "support"))
    deployment = deployments(X)
    yield from levels(deployment, "pair", _DEPLOYMENT, dict.fromkeys(deployment, "pair"))


def deployments(X: pd.DataFrame) -> pd.Series:
    """Return a name of the servers of each row: alike but for the load and the requests."""
    layout = X["data_parallel"].map("{:g}".format) + "," + X["expert_parallel"].map("{:g}".format)
    names = ["llm_id", "engine", "engine_version", "served_precision"]
    named = X[names].agg(" ".join, axis=1) + " " + layout
    return named + "|" + X["gpu_profile_id"]


_TEXTS = ["engine", "engine_version", "precision", "kv_precision"]
# The norms, gates and activations that cross the interconnect stay 16-bit numbers.
_STATE_BYTES = 2
_LEAST_FREE = 0.02
"""Share of the memory that a law leaves for KV cache at least."""
UNKNOWN_TOKENS = 500.0
"""Taken for a length that a source does not state: chats have a few hundred tokens."""


def chunked_rows(keys: pd.DataFrame, facts: Facts) -> pd.DataFrame:
    """Return `llm_id, gpu_profile_id, users` of `keys` with the law's facts, indexed as `keys`.

    Bytes and FLOPs are those of the LLM as each row serves it, and of one device.

    Args:
        keys: identifiers, users, mean `input_tokens, output_tokens` and whatever `SERVING` has,
            one row per point; `prefix_hit_rate` is the share of the input that is cached, 0
            without; `source` is who measured, no effect without.
        facts: facts of the LLMs and GPU profiles that `keys` names.
    """
    keys = keys.reindex(columns=[*dict.fromkeys([*keys, *SERVING, "prefix_hit_rate", "source"])])
    texts = keys[_TEXTS].astype(object).where(keys[_TEXTS].notna(), "")
    pairs = pd.concat([keys[IDENTIFIERS], texts[["precision", "kv_precision"]]], axis=1)
    pairs = [*pairs.itertuples(index=False, name=None)]
    of_pair, llms = {}, {}
    for llm_id, profile_id, precision, kv_precision in dict.fromkeys(pairs):
        pair, profile = (llm_id, profile_id, precision, kv_precision), facts.profiles[profile_id]
        llms[pair] = served(facts.llms[llm_id], precision or None, kv_precision or None)
        of_pair[pair] = _llm_facts(llms[pair], profile.gpu) | device_facts(profile)
    known = pd.DataFrame([of_pair[pair] for pair in pairs], index=keys.index)
    n_gpus = known["n_gpus"]
    data_parallel, expert_parallel = (
        keys[name].astype(float).fillna(1.0).clip(1, n_gpus)
        for name in ("data_parallel", "expert_parallel")
    )
    lengths = keys[LENGTHS].astype(float).fillna(UNKNOWN_TOKENS)
    held = lengths["input_tokens"] + lengths["output_tokens"] / 2
    servers = [*zip(pairs, data_parallel, strict=True)]
    memory = {
        (pair, replicas): memory_of(
            llms[pair], facts.profiles[pair[1]].devices, engine="vllm", data_parallel=replicas
        )
        for pair, replicas in dict.fromkeys(servers)
    }
    return known.assign(
        **keys[IDENTIFIERS],
        users=keys["users"].astype(float),
        **texts[["engine", "engine_version"]],
        source=keys["source"].astype(object),
        is_kv_unstated=(texts["kv_precision"] == "").astype(float),
        **lengths,
        requests_that_fit=[
            free_bytes(memory[key]) / memory[key].request_bytes(tokens)
            for key, tokens in zip(servers, held, strict=True)
        ],
        prefill_share=1 - keys["prefix_hit_rate"].astype(float).fillna(0.0),
        data_parallel=data_parallel,
        # Attention that is replicated leaves each device whole experts.
        expert_parallel=expert_parallel.where(data_parallel == 1, n_gpus),
    )


def free_bytes(memory: Memory) -> float:
    """Return what a law takes for the memory of the KV cache: above 0, as sources may differ."""
    return max(memory.kv_bytes, _LEAST_FREE * memory.device_bytes)


def device_facts(profile: GPUProfile) -> dict[str, float | str]:
    """Return what the laws take of a GPU profile's devices."""
    gpu = profile.gpu
    return {
        "gpu_id": gpu.gpu_id,
        "architecture": gpu.architecture,
        "n_gpus": float(profile.n_gpus),
        "bytes_per_ms": gpu.memory_bandwidth_gb_s * 1e6,
        "flop_per_ms": gpu.dense_16bit_tflops * 1e9,
        "link_bytes_per_ms": gpu.interconnect_gb_s * 1e6,
    }


def _llm_facts(llm: LLM, gpu: GPU) -> dict[str, float | str]:
    attention_share = llm.attention_weight_bytes / llm.step_weight_bytes
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
        "attention_bytes": llm.attention_weight_bytes,
        "dense_bytes": (1 - attention_share) * llm.step_weight_bytes,
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


_KINDS = {
    "is_16bit": ("bf16", "fp16"),
    "is_fp8": ("fp8",),
    "is_fp4": ("nvfp4", "mxfp4"),
    "is_integer": ("int4", "int8"),
}


def _tree_columns(X: pd.DataFrame, predicted: np.ndarray) -> dict[str, np.ndarray | pd.Series]:
    return {
        "users": np.log2(X["users"]),
        "log_nttft": predicted[:, 0],
        "log_itl": predicted[:, 1],
        "log_gpus": np.log2(X["n_gpus"]),
        "is_replicated": (X["data_parallel"] > 1).astype(float),
        "log_bandwidth": np.log2(X["bytes_per_ms"]),
        "log_input": np.log2(X["input_tokens"]),
        "log_output": np.log2(X["output_tokens"]),
        "is_moe": X["is_moe"],
        **{name: X["served_precision"].isin(of).astype(float) for name, of in _KINDS.items()},
    }


CHUNKED = Law(chunked_rows, PARAMETERS, terms, ITL_TERMS, effects, _tree_columns, freedom=2.0)
"""Engines that mix chunks of prompts into decode steps, on GPUs."""


def is_chunked(keys: pd.DataFrame, facts: Facts) -> np.ndarray:
    """Tell which points the law of chunked prefill describes.

    Those whose engine is named, unless it is TGIS, which stops to prefill; and on GPUs only: on
    CPU cores a step has no floor of CUDA graphs.
    """
    named = keys["engine"] if "engine" in keys else pd.Series(None, keys.index, dtype=object)
    on_gpus = [facts.profiles[name].gpu.kind != "cpu" for name in keys["gpu_profile_id"]]
    return (named.notna() & (named != "") & (named != STOPPING_ENGINE)).to_numpy() & on_gpus
