"""The law of engines that batch requests: vLLM, SGLang, TensorRT-LLM, TGIS.

It says what a step takes (`step_law`). The closed form (`law.means`) says what the users of a load
test see of it under the engine's scheduler. docs/predictor.md derives it. Parameters are
logarithms. Times are in milliseconds; bytes, FLOPs and tokens are those of the whole LLM, divided
here among the devices of a replica.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from sextant.law.effects import effects
from sextant.law.means import (
    ALIKE_SHARPNESS,
    BatchLimits,
    MeanLoad,
    Values,
    closed_loop,
    lesser,
)
from sextant.law.own import OWN_SD
from sextant.law.posterior import Columns, Law, Parameter
from sextant.simulate.server import StepLaw, overlapped

PARAMETERS = {
    "launch": Parameter("floor of a step over the least time of its kernels", 1.0, 0.15),
    # A token of few sequences over the layers: 0.65 ms (27B on RTX 5090, local-inference-lab/vllm
    # #314), 0.71 (Qwen3-30B-A3B, TP4, vllm-project/vllm #45709), 0.79 (7B on A800, vllm-omni
    # #7960). 0.32 gives requests in flight of run_a (8B on H100, benchmarks/autoscaling.py).
    "host": Parameter("time to launch a layer's kernels one by one, ms", 0.32, 0.5),
    "bandwidth": Parameter("bandwidth of dense weights over that of kernels", 1.0, 0.04),
    "expert_bandwidth": Parameter("the same of experts' weights", 1.0, 0.2),
    "expert_visit": Parameter("time that an expert in use adds to a layer, ms", 0.00015, 0.5),
    "touch": Parameter("exponent of the tokens that choose experts of their own", 1.0, 0.1),
    "kv_bandwidth": Parameter("bandwidth of the KV cache over that of kernels", 1.0, 0.08),
    "flops": Parameter("FLOP/s of dense products over those of kernels", 1.0, 0.1),
    "expert_flops": Parameter("the same of experts' products and states", 1.0, 0.3),
    "attention_flops": Parameter("the same of attention in prefill, and of its states", 1.0, 0.2),
    "sync": Parameter("latency of an all-reduce over that of its kernel", 1.0, 0.5),
    "link": Parameter("bandwidth of an all-reduce over that of its kernel", 1.0, 0.3),
    "sequence": Parameter("host and sampling time of a sequence in a step, ms", 0.02, 0.7),
    "prompt": Parameter("time of a prompt before and after its step, ms", 5.0, 0.5),
    "prompt_launch": Parameter("the same for each layer, ms", 0.4, 0.4),
    "wait": Parameter("wait for the steps under way over that at random arrivals", 1.0, 0.3),
    "wave": Parameter("odds that a prompt is waited for, not seen while decoding", 0.064, 0.3),
    "memory": Parameter("requests in the KV cache over those of mean length that fit", 1.0, 0.0),
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
"""Keys of `terms` that add up to the ITL."""
_DRAFT_MS = 0.3
"""Time of a draft's pass beyond its layers: launches and choices of tokens outside CUDA graphs."""
_BOUND_SHARPNESS = 8.0
"""How sharply parameters are bound by what cannot be more."""
_VARIED_SHARPNESS = 6.0
"""Sharpness of the memory's bound where requests are of all lengths, as those of servers without
CUDA graphs were."""


def parameters_by_name(phi: np.ndarray) -> dict[str, np.ndarray]:
    """Return the parameters themselves by name, of logarithms of shape (rows, ..., parameters)."""
    return dict(zip(NAMES, np.moveaxis(np.exp(phi), -1, 0), strict=True))


def terms(phi: np.ndarray, facts: Columns) -> dict[str, np.ndarray]:
    """Return what the latencies are made of (`Law.terms`), in ms.

    `itl_batch` and `capacity_requests` are counts, not times: requests that share a step, and
    requests that the memory holds. `phi` are logarithms of `PARAMETERS`, (rows, parameters);
    `facts` are columns of `fact_rows`. With a further axis, `phi` of (rows, 1, parameters) and
    facts of (rows, 1), `users` may be an array of many loads.
    """
    law = step_law(phi, facts)
    limits = batch_limits(phi, facts)
    load = mean_load(facts)
    means = closed_loop(law, limits, load, facts["users"])
    step = {
        "launch_ms": law.floor_ms + np.zeros_like(means.batch),
        "weights_ms": law.weights_ms(means.batch),
        "kv_ms": law.kv_token_ms * load.context_tokens * means.batch,
        "sequences_ms": law.sequence_ms * means.batch,
    }

    device_ms = sum(step.values())
    step["launch_ms"] = step["launch_ms"] + (overlapped(law.host_ms, device_ms) - device_ms)

    # The median gap has no prompt in it until a step computes several; TPOT is a mean.
    prompts = (means.batch - 1) / load.later_tokens
    share_in_median = prompts / (prompts + np.exp(phi[..., NAMES.index("median")]))
    share = np.where(facts["is_eager"], share_in_median, 1.0)
    return step | {
        "other_prompts_ms": share * (means.itl_ms - sum(step.values())),
        "prefill_ms": means.prompt_ms,
        "batching_ms": means.waiting_ms,
        "queueing_ms": means.ttft_ms - means.prompt_ms - means.waiting_ms,
        "itl_batch": means.batch,
        "capacity_requests": limits.most_decoding(load),
    }


def mean_load(facts: Columns) -> MeanLoad:
    """Return the requests of each row."""
    input_tokens = facts["input_tokens"]
    cached_tokens = input_tokens * (1 - facts["prefill_share"])
    return MeanLoad(input_tokens, np.maximum(facts["output_tokens"], 2.0), cached_tokens)


def batch_limits(phi: np.ndarray, facts: Columns) -> BatchLimits:
    """Return what the server of each row admits, and how its load test sends requests."""
    parameters = parameters_by_name(phi)
    return BatchLimits(
        max_num_seqs=facts["max_num_seqs"],
        max_num_batched_tokens=facts["batched_tokens"],
        kv_tokens=parameters["memory"] * facts["kv_tokens"],
        is_asynchronous=facts["is_asynchronous"],
        reserved_share=facts["reserved_share"],
        prompts_first=facts["prompts_first"],
        wave=parameters["wave"] / (1 + parameters["wave"]),
        wait=parameters["wait"],
        sharpness=np.where(facts["is_eager"], _VARIED_SHARPNESS, ALIKE_SHARPNESS),
        queue=parameters["queue"],
        wait_steps=facts["wait_steps"],
        gathering=facts["is_eager"] * parameters["gathering"],
    )


class _StepTerms(NamedTuple):
    """Terms of a `StepLaw`, each of shape (rows,); of a draft that does not run, all are 0."""

    floor_ms: np.ndarray
    dense_ms: np.ndarray
    sequence_ms: np.ndarray
    kv_token_ms: np.ndarray
    prefill_token_ms: np.ndarray
    prefill_pair_ms: np.ndarray
    expert_ms: np.ndarray
    expert_share: np.ndarray
    touch: np.ndarray
    request_ms: np.ndarray
    host_ms: np.ndarray


def step_law(phi: np.ndarray, facts: Columns) -> StepLaw:
    """Return the step law of each row, its terms of shape (rows,).

    Terms that grow with a request's length are taken at the mean length. With speculation a step of
    decode stands for one output token: its time divided by the tokens that it emits.
    """
    parameters = parameters_by_name(phi)
    if "draft_tokens" not in facts:
        return StepLaw(**_step_terms(parameters, facts, 1.0)._asdict())

    drafted = facts["draft_tokens"]
    law = _step_terms(parameters, facts, 1.0 + drafted)
    draft_facts = {name: facts.get(f"draft_{name}", column) for name, column in facts.items()}
    # The host handles a sequence once in a step, with the LLM's own pass.
    draft = _step_terms(
        {**parameters, "sequence": np.zeros_like(parameters["sequence"])}, draft_facts, 1.0
    )
    runs = draft_facts["n_layers"] > 0
    draft_floor_ms = draft.floor_ms + _DRAFT_MS * parameters["draft"] * runs

    accepted = (facts["accepted_length"] - 1) * parameters["acceptance"]
    emitted = 1 + np.minimum(accepted, drafted)
    # A step with prompts takes a whole floor, not that of a token.
    whole_ms = law.floor_ms + law.dense_ms + law.expert_ms

    def per_token(target_ms: np.ndarray, draft_ms: np.ndarray) -> np.ndarray:
        return (target_ms + drafted * draft_ms) / emitted

    of_token = law._replace(
        floor_ms=per_token(law.floor_ms, draft_floor_ms),
        dense_ms=per_token(law.dense_ms, draft.dense_ms),
        sequence_ms=per_token(law.sequence_ms, draft.sequence_ms),
        kv_token_ms=per_token(law.kv_token_ms, draft.kv_token_ms),
        expert_ms=per_token(law.expert_ms, draft.expert_ms),
        host_ms=per_token(law.host_ms, draft.host_ms),
        prefill_token_ms=law.prefill_token_ms + draft.prefill_token_ms,
        prefill_pair_ms=law.prefill_pair_ms + draft.prefill_pair_ms,
        expert_share=1 - (1 - law.expert_share) ** ((1 + drafted) ** law.touch),
        request_ms=law.request_ms + (1 - 1 / emitted) * whole_ms,
    )
    return StepLaw(**of_token._asdict())


def _step_terms(
    parameters: Mapping[str, np.ndarray], facts: Columns, verified_tokens: Values
) -> _StepTerms:
    """Return the terms of steps that verify this many tokens for each decoding sequence."""
    n_gpus = facts["n_gpus"]
    layers = facts["n_layers"]
    # The network's part is 0 within a node.
    all_reduce_ms = facts["sync_ms"] * parameters["sync"] + facts["network_sync_ms"]
    sync_ms = np.where(n_gpus > 1, 2 * layers * all_reduce_ms, 0.0)
    floor_ms = facts["launch_ms"] * parameters["launch"] + sync_ms

    dense_bytes = facts["attention_bytes"] * facts["data_parallel"] + facts["dense_bytes"]
    weights_ms = dense_bytes / n_gpus / parameters["bandwidth"] / facts["dense_bytes_per_ms"]
    # Without CUDA graphs a kernel is launched while earlier kernels run.
    overlapped_ms = overlapped(floor_ms, weights_ms) - floor_ms
    # Of tiny weights the difference is rounding, which may be below 0.
    weights_ms = np.where(facts["is_eager"], np.maximum(overlapped_ms, 0.0), weights_ms)

    # Replicas of attention have a host, products and sums of their own for their share of requests.
    copies = facts["data_parallel"]
    # One token's hidden states are added up over the devices (ring all-reduce).
    passes = 2 * (n_gpus - 1) / n_gpus
    reduction_ms = passes * facts["reduced_bytes"] / facts["link_bytes_per_ms"] / parameters["link"]
    products_ms = (facts["attention_ms"] + facts["dense_ms"]) / parameters["flops"]
    # However experts are divided, a device moves the states of all tokens to experts and back;
    # copies of attention do so for their own requests.
    expert_products_ms = facts["expert_ms"] / parameters["expert_flops"]
    states_ms = facts["states_ms"] / parameters["expert_flops"] / copies
    token_ms = (products_ms + expert_products_ms) / n_gpus + states_ms

    # The cache is split by heads, which are never divided.
    kv_bytes = facts["kv_bytes_per_token"] / np.minimum(n_gpus, facts["kv_parts"] * copies)
    kv_bytes_per_ms = facts["kv_bytes_per_ms"] * parameters["kv_bandwidth"]
    context = facts["input_tokens"] + facts["output_tokens"] / 2
    # The state of layers without attention is read and written in every step.
    state_ms = 2 * facts["state_bytes"] / n_gpus / kv_bytes_per_ms

    # A token looks back on half of the prompt on average, of layers with a window on less.
    prompt = np.maximum(facts["input_tokens"], 1.0)
    seen_share = _kept_tokens(prompt, facts) / prompt
    heads_ms = facts["heads_ms"] / n_gpus / parameters["attention_flops"]

    visit_ms = layers * facts["n_experts"] / facts["expert_parallel"] * parameters["expert_visit"]
    # Tables of kernels are not exact: no memory is faster than its data sheet says.
    reached_bytes_per_ms = facts["expert_bytes_per_ms"] * parameters["expert_bandwidth"]
    expert_bytes_per_ms = lesser(reached_bytes_per_ms, facts["bytes_per_ms"], _BOUND_SHARPNESS)
    experts_ms = facts["expert_bytes"] / n_gpus / expert_bytes_per_ms + visit_ms
    prompt_launch_ms = layers * parameters["prompt_launch"] + parameters["prompt"]
    verify_ms = verified_tokens * (reduction_ms / copies + token_ms + state_ms)
    return _StepTerms(
        floor_ms=floor_ms,
        dense_ms=weights_ms,
        sequence_ms=parameters["sequence"] / copies + verify_ms,
        kv_token_ms=_kept_tokens(context, facts) * kv_bytes / kv_bytes_per_ms / context,
        prefill_token_ms=facts["prompt_products"] * (token_ms + reduction_ms) + heads_ms,
        prefill_pair_ms=facts["pair_ms"] * seen_share / n_gpus / parameters["attention_flops"],
        expert_ms=experts_ms,
        expert_share=facts["experts_per_token"] / np.maximum(facts["n_experts"], 1),
        # Tokens that choose apart of each other use the most experts.
        touch=lesser(parameters["touch"], 1.0, _BOUND_SHARPNESS),
        request_ms=prompt_launch_ms + facts["encoder_share"] * (floor_ms + weights_ms),
        host_ms=facts["is_uncaptured"] * layers * parameters["host"],
    )


def _kept_tokens(tokens: np.ndarray, facts: Columns) -> np.ndarray:
    """Return the tokens that attention looks back on, a mean over the layers."""
    sliding = facts["sliding_share"]
    return (1 - sliding) * tokens + sliding * np.minimum(tokens, facts["window_tokens"])


LAW = Law(
    parameters=PARAMETERS,
    terms=terms,
    itl_terms=ITL_TERMS,
    effects=effects,
    # Most effects of these groups are small, a few are large.
    freedom=dict.fromkeys(("support", "version", "pair"), 2.0),
    own=OWN_SD,
)
