"""The law of engines that batch requests: vLLM, SGLang, TensorRT-LLM, TGIS.

It says what a step takes (`step_law`); the closed form (`simulate.means`) says what the users of a
load test see of it under the engine's scheduler. docs/predictor.md derives it. Parameters are
logarithms. Times are in milliseconds; bytes, FLOPs and tokens are those of the whole LLM, divided
here among the devices of a replica.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from sextant.facts.engine import DEFAULT_ENGINE, has_cuda_graphs, scheduler_sheet
from sextant.facts.gpu import GPU, GPUProfile
from sextant.facts.llm import LLM, Memory, Speculating, memory_of, precision_of, served
from sextant.facts.llm_config import DTYPE_BYTES
from sextant.law.means import BatchLimits, MeanLoad, Values, closed_loop
from sextant.law.posterior import Columns, Effect, Law, Parameter, levels
from sextant.points import frame
from sextant.points.frame import IDENTIFIERS, LENGTHS, SERVING, WAIT, FactTables
from sextant.simulate.simulation import StepLaw

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
    "prompt_launch": Parameter("the same for each layer, ms", 0.4, 0.4),
    "wait": Parameter("wait for the steps under way over that at random arrivals", 1.0, 0.3),
    "wave": Parameter("odds that a prompt is waited for, not seen while decoding", 0.064, 0.3),
    "memory": Parameter("requests in the KV cache over those of mean length that fit", 0.9, 0.2),
    "queue": Parameter("wait of users beyond the memory over that of a load that lasts", 1.0, 0.3),
    "gathering": Parameter("others at which a prompt waits half of what it may", 5.0, 0.0),
    "median": Parameter("prompts in a step at which the median gap has half of them", 2.0, 0.0),
    "draft": Parameter("time of a draft's pass beyond its layers over that expected", 1.0, 0.0),
    "acceptance": Parameter("accepted draft tokens over those expected", 1.0, 0.0),
    "ttft_offset": Parameter("statistic of TTFT over this law", 1.0, 0.2),
    "itl_offset": Parameter("statistic of ITL over this law", 1.0, 0.05),
}
NAMES = tuple(PARAMETERS)
ITL_TERMS = ("launch_ms", "weights_ms", "kv_ms", "sequences_ms", "other_prompts_ms")
"""Those of `terms` that add up to the ITL."""
_EXPERTS_AT_REFERENCE = 8.0
_DRAFT_MS = 0.3
"""Of a draft's pass beyond its layers: launches and choices of tokens outside of CUDA graphs."""
_ROOF = 3.0
"""Exponent of the smooth maximum of launches and memory traffic that overlap."""
_UNLIMITED = 1e6
"""Sequences: no source says how many a server was allowed."""


def terms(phi: np.ndarray, facts: Columns) -> dict[str, np.ndarray]:
    """Return what the latencies are made of (`Law.terms`), in ms unless named else.

    `itl_batch` and `capacity_requests` count requests: those that share a step, and those that the
    memory holds. `phi` are logarithms, `facts` columns of `fact_rows`.
    """
    law, limits, load = step_law(phi, facts), batch_limits(phi, facts), mean_load(facts)
    found = closed_loop(law, limits, load, facts["users"])
    step = {
        "launch_ms": law.floor_ms + np.zeros(len(phi)),
        "weights_ms": law.weights_ms(found.seen),
        "kv_ms": law.kv_token_ms * load.context_tokens * found.seen,
        "sequences_ms": law.sequence_ms * found.seen,
    }
    # The median gap has no prompt in it until a step computes several; TPOT is a mean.
    prompts = (found.seen - 1) / load.later_tokens
    of_median = prompts / (prompts + np.exp(phi[:, NAMES.index("median")]))
    share = np.where(facts["is_eager"], of_median, 1.0)
    return step | {
        "other_prompts_ms": share * (found.itl_ms - sum(step.values())),
        "prefill_ms": found.own_ms,
        "batching_ms": found.waiting_ms,
        "queueing_ms": found.ttft_ms - found.own_ms - found.waiting_ms,
        "itl_batch": found.seen,
        "capacity_requests": limits.most_decoding(load),
    }


def mean_load(facts: Columns) -> MeanLoad:
    """Return the requests of each row."""
    tokens, cached = facts["input_tokens"], 1 - facts["prefill_share"]
    return MeanLoad(tokens, np.maximum(facts["output_tokens"], 2.0), tokens * cached)


def batch_limits(phi: np.ndarray, facts: Columns) -> BatchLimits:
    """Return what the server of each row admits, and how its load test sends requests."""
    value = dict(zip(NAMES, np.exp(phi).T, strict=True))
    wave = value["wave"] / (1 + value["wave"])
    return BatchLimits(
        _UNLIMITED,
        facts["batched_tokens"],
        value["memory"] * facts["kv_tokens"],
        facts["is_asynchronous"],
        facts["reserved_share"],
        facts["prompts_first"],
        wave,
        value["wait"],
        value["queue"],
        facts["wait_steps"],
        facts["is_eager"] * value["gathering"],
    )


def step_law(phi: np.ndarray, facts: Columns) -> StepLaw:
    """Return the laws of a step of rows, each term (rows,).

    Terms that grow with a request's length are those at its mean length. With speculation a step of
    decode is that of one output token: its time over the tokens that it emits.
    """
    value = dict(zip(NAMES, np.exp(phi).T, strict=True))
    if "draft_tokens" not in facts:
        return StepLaw(**_step_terms(value, facts, 1.0))
    drafted = facts["draft_tokens"]
    law = _step_terms(value, facts, 1.0 + drafted)
    of_draft = {name: facts.get(f"draft_{name}", values) for name, values in facts.items()}
    # The host sees to a sequence once in a step.
    draft = _step_terms({**value, "sequence": 0.0}, of_draft, 1.0)
    draft["floor_ms"] = draft["floor_ms"] + _DRAFT_MS * value["draft"] * (of_draft["n_layers"] > 0)
    accepted = (facts["accepted_length"] - 1) * value["acceptance"]
    emitted = 1 + np.minimum(accepted, drafted)
    each = ("floor_ms", "dense_ms", "sequence_ms", "kv_token_ms", "expert_ms")
    # A step with prompts takes a whole floor, not that of a token.
    whole = law["floor_ms"] + law["dense_ms"] + law["expert_ms"]
    of_token = {
        **{name: (law[name] + drafted * draft[name]) / emitted for name in each},
        **{n: law[n] + draft[n] for n in ("prefill_token_ms", "prefill_pair_ms")},
        "expert_share": 1 - (1 - law["expert_share"]) ** ((1 + drafted) ** law["touch"]),
        "request_ms": law["request_ms"] + (1 - 1 / emitted) * whole,
    }
    return StepLaw(**{**law, **of_token})


def _step_terms(value: Mapping[str, Any], facts: Columns, verified: Values) -> dict[str, Any]:
    """Return the terms of steps in which a sequence that decodes has so many tokens verified."""
    n_gpus, layers = facts["n_gpus"], facts["n_layers"]
    routing = facts["experts_per_token"] / _EXPERTS_AT_REFERENCE * value["routing"]
    syncs = np.where(n_gpus > 1, 2 * layers * value["sync"], 0.0)
    floor = layers * (value["launch"] + routing) + syncs
    # The cache is split by heads, which are never divided.
    kv_bytes = facts["kv_bytes_per_token"] / np.minimum(
        n_gpus, facts["kv_parts"] * facts["data_parallel"]
    )
    context = facts["input_tokens"] + facts["output_tokens"] / 2
    kv_speed = facts["bytes_per_ms"] * value["kv_bandwidth"]
    # Replicas of attention have a host, products and sums of their own for their share of requests.
    copies, reduction = facts["data_parallel"], reduction_ms(facts) / value["link"]
    products = (facts["attention_ms"] + facts["dense_ms"]) / value["flops"]
    token = (products + facts["expert_ms"] / value["expert_flops"]) / n_gpus
    # The state of layers without attention is read and written in every step.
    state = 2 * facts["state_bytes"] / n_gpus / kv_speed
    dense = (facts["attention_bytes"] * copies + facts["dense_bytes"]) / n_gpus
    speed = facts["bytes_per_ms"]
    visits = layers * facts["n_experts"] / facts["expert_parallel"] * value["expert_visit"]
    share: Any = facts["experts_per_token"] / np.maximum(facts["n_experts"], 1)
    weights = dense / value["bandwidth"] / speed
    # Without CUDA graphs kernels are launched while those before them run.
    overlapped = (floor**_ROOF + weights**_ROOF) ** (1 / _ROOF) - floor
    weights = np.where(facts["is_eager"], overlapped, weights)
    # A token looks back on half of the prompt on average, of layers with a window on less.
    tokens = np.maximum(facts["input_tokens"], 1.0)
    seen = _kept_tokens(tokens, facts) / tokens
    return dict(
        floor_ms=floor,
        dense_ms=weights,
        sequence_ms=value["sequence"] / copies + verified * (reduction / copies + token + state),
        kv_token_ms=_kept_tokens(context, facts) * kv_bytes / kv_speed / context,
        prefill_token_ms=facts["prompt_products"] * (token + reduction),
        prefill_pair_ms=facts["pair_ms"] * seen / n_gpus / value["attention_flops"],
        expert_ms=facts["expert_bytes"] / n_gpus / value["expert_bandwidth"] / speed + visits,
        expert_share=share,
        touch=value["touch"],
        request_ms=layers * value["prompt_launch"]
        + value["prompt"]
        + facts["encoder_share"] * (floor + weights),
    )


def _kept_tokens(tokens: np.ndarray, facts: Columns) -> np.ndarray:
    """Return the tokens that attention looks back on, a mean over the layers."""
    sliding = facts["sliding_share"]
    return (1 - sliding) * tokens + sliding * np.minimum(tokens, facts["window_tokens"])


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
_ARCHITECTURE = _SHARES | {
    "flops": 0.2,
    "expert_flops": 0.2,
    # Kernels of new architectures are young, and hosts are faster.
    "launch": 0.14,
    "sequence": 0.2,
    "prompt_launch": 0.2,
}
_PRECISION = _SHARES | {"flops": 0.15, "expert_flops": 0.15}
_ENGINE = {"ttft_offset": 0.2, "itl_offset": 0.15, "wave": 0.7, "memory": 0.2}
# Beside vLLM: hosts and kernels of other engines.
_OTHER_ENGINE = {"prompt": 0.5, "prompt_launch": 0.4, "flops": 0.15, "expert_flops": 0.2}
_OTHER_ENGINE |= _SHARES | {"touch": 0.1}
# Who measured, with which client, and whether all users start at once.
_SOURCE = {"ttft_offset": 0.2, "wave": 0.7, "wait": 0.3, "queue": 0.3}
_VERSION = {"ttft_offset": 0.1, "itl_offset": 0.05}
_SUPPORT = {"ttft_offset": 0.15, "itl_offset": 0.1}
_DRAFT_SD = 0.5
_DEPLOYMENT = {"ttft_offset": 0.1, "itl_offset": 0.04}


# Without CUDA graphs: hosts and kernels differ by far more, each by its engine.
_EAGER = {"launch": 1.0, "sequence": 1.0, "wait": 1.0, "wave": 1.5, "memory": 1.5, "prompt": 0.7}
_EAGER |= {"prompt_launch": 0.7, "kv_bandwidth": 1.0, "queue": 0.7, "flops": 0.5, "gathering": 1.0}
_EAGER |= {"median": 0.5}
# How an LLM is executed there: padded or not, with an encoder or without.
_EXECUTION = {"launch": 0.2, "sequence": 0.7, "wait": 0.1, "wave": 0.2, "memory": 0.6}
_EXECUTION |= {"prompt": 0.15, "prompt_launch": 0.15, "kv_bandwidth": 0.5, "queue": 0.15}
_EXECUTION |= {"gathering": 0.1}
_DOUBLING = {"launch": 0.1, "sequence": 0.2, "kv_bandwidth": 0.2}
_GPU = {"launch": 0.3, "sequence": 0.4, "bandwidth": 0.15, "flops": 0.3, "kv_bandwidth": 0.3}
_GPU |= {"wait": 0.1, "prompt_launch": 0.15}
_LLM = {"launch": 0.12, "sequence": 0.2, "memory": 0.3, "kv_bandwidth": 0.2, "wait": 0.08}
_LLM |= {"prompt_launch": 0.15, "bandwidth": 0.05, "flops": 0.1}


def _eager_effects(X: pd.DataFrame) -> Iterator[Effect]:
    """Yield the effects on servers without CUDA graphs."""
    is_eager = X["is_eager"] > 0
    if not is_eager.any():
        return
    gpus, llms = X["gpu_id"].where(is_eager), X["llm_id"].where(is_eager)
    execution, doublings = X["execution"].where(is_eager), np.log2(X["n_gpus"].to_numpy(float))
    kinds = X["engine"].where(X["is_cpu"] == 0, "cpu").where(is_eager)
    yield from levels(kinds, "eager", _EAGER, {})
    # An encoder-decoder is padded too.
    for name, rows in {
        frame.PAGED: execution == frame.PAGED,
        frame.PADDED: execution.isin([frame.PADDED, frame.ENCODER_DECODER]),
        frame.ENCODER_DECODER: execution == frame.ENCODER_DECODER,
    }.items():
        values = rows.to_numpy(float)
        yield from (Effect(parameter, name, values, sd) for parameter, sd in _EXECUTION.items())
    for parameter, sd in _DOUBLING.items():
        yield Effect(parameter, "eager doubling", is_eager * doublings, sd)
    yield from levels(gpus, "gpu", _GPU, {})
    # Every block waits for an all-reduce.
    yield from levels(gpus.where(doublings > 0), "parallel gpu", {"launch": 0.15}, {})
    # LLMs of one class differ among themselves by as much as that class's software lets them.
    yield from levels(llms, "llm", _LLM, dict(zip(llms, "llm " + X["execution"], strict=True)))


def effects(X: pd.DataFrame) -> Iterator[Effect]:
    """Yield the effects on the rows of a fact frame."""
    yield from _eager_effects(X)
    kinds = {"kv unstated": _KV_UNSTATED, "moe": _MOE, "latent": _LATENT}
    for name, spread in kinds.items():
        rows = X[f"is_{name.replace(' ', '_')}"].to_numpy(float)
        yield from (Effect(parameter, name, rows, sd) for parameter, sd in spread.items())
    if "accepted_sd" in X:
        yield Effect("acceptance", "drafts", X["accepted_sd"].to_numpy(float), 1.0)
        yield Effect("draft", "drafts", (X["draft_tokens"] > 0).to_numpy(float), _DRAFT_SD)
    yield Effect("sync", "replicated", (X["data_parallel"] > 1).to_numpy(float), 0.2)
    for parameter in ("sync", "sequence"):
        yield Effect(parameter, "doubling", np.log2(X["n_gpus"].to_numpy(float)), 0.1)
    yield from levels(X["architecture"], "architecture", _ARCHITECTURE, {})
    yield from levels(X["served_precision"], "precision", _PRECISION, {})
    yield from levels(X["engine"], "engine", _ENGINE, {})
    other = X["engine"].mask(X["engine"].isin(["", DEFAULT_ENGINE]))
    yield from levels(other, "other engine", _OTHER_ENGINE, {})
    yield from levels(X["source"], "source", _SOURCE, {})
    version = X["engine"] + " " + X["engine_version"]
    yield from levels(version, "version", _VERSION, dict.fromkeys(version, "version"))
    # How well a version of an engine supports an LLM: its kernels and defaults for it.
    # Without CUDA graphs LLMs have effects of their own instead.
    is_graphed = X["is_eager"] == 0
    support = (X["llm_id"] + "|" + version).where(is_graphed)
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
"""Taken for a length that a source states of no point: chats have a few hundred tokens."""


def fact_rows(keys: pd.DataFrame, facts: FactTables) -> pd.DataFrame:
    """Return `llm_id, gpu_profile_id, users` of `keys` with the law's facts, indexed as `keys`.

    Bytes and FLOPs are those of the LLM as each row serves it, and of one device. `keys` are
    identifiers, users, mean `input_tokens, output_tokens` and whatever `SERVING` has, one row per
    point; `prefix_hit_rate` is the share of the input that is cached, 0 without; `wait_steps` are
    those that a prompt waits by the server's settings, by default the engine's; `source` is who
    measured, no effect without.
    """
    more = [*SERVING, WAIT, "prefix_hit_rate", "source"]
    keys = keys.reindex(columns=[*dict.fromkeys([*keys, *more])])
    texts = keys[_TEXTS].astype(object).where(keys[_TEXTS].notna(), "")
    pairs = pd.concat([keys[IDENTIFIERS], texts[["precision", "kv_precision"]]], axis=1)
    pairs = [*pairs.itertuples(index=False, name=None)]
    execution = frame.execution_classes(facts.llms, facts.published)
    of_pair, llms = {}, {}
    for llm_id, profile_id, precision, kv_precision in dict.fromkeys(pairs):
        pair, profile = (llm_id, profile_id, precision, kv_precision), facts.profiles[profile_id]
        llms[pair] = served(facts.llms[llm_id], precision or None, kv_precision or None)
        of_pair[pair] = _llm_facts(llms[pair], profile.gpu) | device_facts(profile)
        if isinstance(llm := llms[pair], Speculating):
            of_pair[pair] |= _draft_facts(llm, profile.gpu)
    known = pd.DataFrame([of_pair[pair] for pair in pairs], index=keys.index)
    n_gpus = known["n_gpus"]
    data_parallel, expert_parallel = (
        keys[name].astype("Float64").fillna(1.0).astype(float).clip(1, n_gpus)
        for name in ("data_parallel", "expert_parallel")
    )
    is_eager = ~texts["engine"].map(has_cuda_graphs).astype(bool) | (known["is_cpu"] > 0)
    lengths = keys[LENGTHS].astype(float)
    # A point without lengths is of the workload of its source's others.
    alike = lengths.groupby(keys["source"].astype(object), dropna=False).transform("median")
    lengths = lengths.fillna(alike).fillna(UNKNOWN_TOKENS)
    held = lengths["input_tokens"] + lengths["output_tokens"] / 2
    servers = [*zip(pairs, texts["engine"], data_parallel, strict=True)]
    memory = {
        (pair, engine, replicas): memory_of(
            llms[pair], facts.profiles[pair[1]].devices, engine=engine, data_parallel=replicas
        )
        for pair, engine, replicas in dict.fromkeys(servers)
    }
    schedulers = [*map(scheduler_sheet, texts["engine"], texts["engine_version"])]
    gathered = pd.Series([float(each.max_waiting_steps) for each in schedulers], keys.index)
    classes = keys["llm_id"].map(execution)
    # A padded batch holds its activations on each device, a paged one once.
    copies = n_gpus.where(classes != frame.PAGED, 1.0)
    activations = is_eager * copies * known["activation_bytes"] * held
    return known.assign(
        **keys[IDENTIFIERS],
        users=keys["users"].astype(float),
        **texts[["engine", "engine_version"]],
        source=keys["source"].astype(object),
        is_kv_unstated=(texts["kv_precision"] == "").astype(float),
        **lengths,
        kv_tokens=[
            free_bytes(memory[key]) / (memory[key].request_bytes(tokens) + activation) * tokens
            for key, tokens, activation in zip(servers, held, activations, strict=True)
        ],
        batched_tokens=[float(each.max_num_batched_tokens) for each in schedulers],
        is_asynchronous=[float(each.is_asynchronous) for each in schedulers],
        reserved_share=[each.reserved_share for each in schedulers],
        prompts_first=[float(each.prompts_first) for each in schedulers],
        is_eager=is_eager.astype(float),
        execution=classes,
        # What is gathered waits half of the time on average.
        wait_steps=keys[WAIT].astype(float).fillna(gathered / 2),
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
        "is_cpu": float(gpu.kind == "cpu"),
        "bytes_per_ms": gpu.memory_bandwidth_gb_s * 1e6,
        "flop_per_ms": gpu.dense_16bit_tflops * 1e9,
        "link_bytes_per_ms": gpu.interconnect_gb_s * 1e6,
    }


def _llm_facts(llm: LLM, gpu: GPU) -> dict[str, float | str]:
    attention_share = llm.attention_weight_bytes / llm.step_weight_bytes
    sliding = llm.n_sliding_layers / llm.n_layers
    dense_ms, expert_ms = _product_ms(llm, gpu)
    encoder = llm.n_encoder_flop_parameters if llm.is_encoder_decoder else 0
    states = 2 * (llm.hidden_size + llm.ffn_size) * DTYPE_BYTES[llm.dtype]
    # Decoders compute the 32-bit logits of all input tokens; an encoder has none.
    logits = 0 if llm.is_encoder_decoder else 4 * llm.vocab_size
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
        "activation_bytes": float(states + logits),
        "prompt_products": encoder / llm.n_flop_parameters if encoder else 1.0,
        "encoder_share": llm.n_encoder_layers / llm.n_layers if encoder else 0.0,
        "sliding_share": sliding,
        "window_tokens": float(llm.sliding_window_tokens) if sliding else np.inf,
    }


def fill_undrafted(X: pd.DataFrame) -> pd.DataFrame:
    """Return rows of which only some speculate with the facts of no draft in the others."""
    drafted = [name for name in X if name.startswith(("draft_", "accepted_"))]
    ones = ("draft_kv_parts", "accepted_length")
    return X.fillna({name: float(name in ones) for name in drafted})


def _draft_facts(llm: Speculating, gpu: GPU) -> dict[str, float]:
    """Return how an LLM speculates, and what the law takes of what drafts for it."""
    own = _llm_facts(llm.draft or llm, gpu)
    numbers = {f"draft_{name}": value for name, value in own.items() if isinstance(value, float)}
    if llm.draft is None:  # nothing runs
        numbers = {name: float(name == "draft_kv_parts") for name in numbers}
    names = ("draft_tokens", "accepted_length", "accepted_sd")
    return numbers | {name: float(getattr(llm, name)) for name in names}


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


_HEAVY = ("support", "version", "pair")
LAW = Law(PARAMETERS, terms, ITL_TERMS, effects, _tree_columns, dict.fromkeys(_HEAVY, 2.0))
