"""The law of engines that stop to prefill (TGIS), and of servers whose engine is not known.

docs/predictor.md derives it. Parameters are logarithms, so none can change its sign and effects on
them multiply; but for two exponents, which stand for themselves. Times are in milliseconds. All
that the law computes with is a column of `fact_rows`, so any points can be fitted together.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from sextant.facts.llm import DTYPE_BYTES, LLM, memory_of
from sextant.points import frame
from sextant.predict.roofline.chunked import device_facts, free_bytes, reduction_ms
from sextant.predict.roofline.posterior import Columns, Effect, Law, Parameter, columns_of, levels

PARAMETERS = {
    "launch": Parameter("launch overhead of a block of layers in a step, ms", 0.2, 1.0),
    "bandwidth": Parameter("share of the memory bandwidth that reading weights reaches", 0.7, 0.3),
    "flops": Parameter("share of the dense FLOP/s that prefill reaches", 0.4, 0.5),
    "sequence": Parameter("host time that a further sequence adds to a step, ms", 0.3, 1.0),
    "kv": Parameter("times that a step moves the KV cache of a sequence", 5.0, 1.5),
    "kv_growth": Parameter("exponent of the batch in that traffic (padding: above 1)", 1.0, 0.2),
    "capacity": Parameter("requests served at once where 400 of mean length fit", 100.0, 1.5),
    "capacity_growth": Parameter("exponent of the requests that fit", 1.0, 0.2, is_exponent=True),
    "activation": Parameter("share of the activations that a token in flight holds", 0.5, 1.0),
    "sharpness": Parameter("how sharply the batch saturates", 2.0, 0.4),
    "itl_capacity": Parameter("capacity that ITL sees, over that of TTFT", 1.0, 0.5),
    "itl_growth": Parameter("exponent in that ratio", 0.0, 0.2, is_exponent=True),
    "prefill": Parameter("launch overhead of a prefill, in steps", 2.0, 0.5),
    "waiting": Parameter("steps that a request waits for its batch, at most", 5.0, 1.0),
    "waiting_half": Parameter("further sequences at which it waits half of that", 5.0, 1.0),
    "waiting_growth": Parameter("exponent of the batch in that wait", 1.3, 0.2),
    "queue": Parameter("time in the queue over that of a full batch in turn", 1.5, 0.7),
    "ttft_offset": Parameter("percentile of nTTFT over mean TTFT by mean length", 1.35, 0.3),
    "itl_offset": Parameter("percentile of ITL over its mean", 1.0, 0.3),
}
NAMES = tuple(PARAMETERS)
_REFERENCE_REQUESTS = 400
_ROOF = 3.0
"""Exponent of the smooth maximum of launch overhead and memory traffic."""
_SHARPEST = 6.0
"""Above it the batch is a plain minimum; larger values only upset the arithmetic."""
_USABLE_MEMORY = 0.95


STEP_TERMS = ("launch_ms", "weights_ms", "kv_ms", "sequences_ms", "overlap_ms")
"""Terms of a decode step. `overlap_ms` is negative: launches and memory traffic hide each other."""


def terms(phi: np.ndarray, facts: Columns) -> dict[str, np.ndarray]:
    """Return what the latencies are made of (`Law.terms`), in ms unless named else.

    `itl_batch` and `capacity_requests` count requests, the first those that share a step. `phi` are
    parameters as `Parameter.mean` states them, `facts` columns of `fact_rows`.
    """
    is_exponent = np.array([each.is_exponent for each in PARAMETERS.values()])
    value = dict(zip(NAMES, np.where(is_exponent, phi, np.exp(phi)).T, strict=True))
    users = facts["users"]
    fits = requests_that_fit(value["activation"], facts) / _REFERENCE_REQUESTS
    capacity = value["capacity"] * fits ** value["capacity_growth"]
    itl_capacity = capacity * (value["itl_capacity"] * fits ** value["itl_growth"])
    sharpness = np.minimum(value["sharpness"], _SHARPEST)
    batch = _saturate(users, capacity, sharpness)
    itl_batch = _saturate(users, itl_capacity, sharpness)
    step = sum(_step(batch, value, facts))
    prefill = _prefill(value, facts)
    service = prefill + facts["output_tokens"] * step
    # Steps that pass until a new request may join the running ones.
    exponent = value["waiting_growth"]
    others = np.maximum(batch - 1, 1e-6) ** exponent
    waiting_steps = value["waiting"] * others / (others + value["waiting_half"] ** exponent)
    # One user alone never finds another one before it.
    turns = np.maximum(users - batch, 0) / batch * (1 - 1 / users)
    return dict(zip(STEP_TERMS, _step(itl_batch, value, facts), strict=True)) | {
        "prefill_ms": prefill,
        "batching_ms": waiting_steps * step,
        "queueing_ms": value["queue"] * turns * service,
        "itl_batch": itl_batch,
        "capacity_requests": capacity,
    }


def requests_that_fit(activation: np.ndarray, facts: Columns) -> np.ndarray:
    """Return how many requests of mean length fit into the memory that the weights leave."""
    # A padded batch holds its activations on each device, a paged one once.
    copies = np.where(facts["is_paged"] > 0, 1.0, facts["n_gpus"])
    held = activation * facts["activation_bytes_per_token"] * copies
    tokens = facts["input_tokens"] + facts["output_tokens"] / 2
    return facts["free_bytes"] / (facts["kv_bytes_per_token"] + held) / tokens


def _saturate(users: np.ndarray, capacity: np.ndarray, sharpness: np.ndarray) -> np.ndarray:
    """Return a smooth minimum of the users and what the server holds at once."""
    return (users**-sharpness + capacity**-sharpness) ** (-1 / sharpness)


def _step(
    batch: np.ndarray, value: Columns, facts: Columns, tokens_each: np.ndarray | float = 1.0
) -> tuple[np.ndarray, ...]:
    """Return the parts of a step of this batch, in the order of `STEP_TERMS`.

    Launch overhead and memory traffic take their smooth maximum. Each request has one token; in a
    prefill more, which touch more experts.
    """
    n_gpus, others = facts["n_gpus"], np.maximum(batch - 1, 1e-9)
    speed = n_gpus * facts["bytes_per_ms"]
    touched = 1 - (1 - facts["expert_share"]) ** (np.maximum(batch, 1) * tokens_each)
    read = facts["dense_bytes"] + facts["expert_bytes"] * touched
    launch = facts["n_blocks"] * value["launch"]
    weights = read / speed / value["bandwidth"]
    tokens = facts["input_tokens"] + facts["output_tokens"] / 2
    cache = facts["kv_bytes_per_token"] * tokens / speed
    kv = cache * value["kv"] * others ** value["kv_growth"]
    memory = weights + kv
    overlap = (launch**_ROOF + memory**_ROOF) ** (1 / _ROOF) - launch - memory
    sequences = (value["sequence"] + reduction_ms(facts)) * others
    return launch, weights, kv, sequences, overlap


def _prefill(value: Columns, facts: Columns) -> np.ndarray:
    """Return the time of a prefill: kernels of encoder and decoder, products, all-reduces."""
    tokens = facts["input_tokens"]
    alone = sum(_step(np.ones_like(tokens), value, facts, tokens_each=tokens))
    blocks = 1 + facts["n_encoder_blocks"] / facts["n_blocks"]
    products = facts["flop_per_input_token"] / (facts["n_gpus"] * facts["flop_per_ms"])
    per_token = products / value["flops"] + reduction_ms(facts)
    return value["prefill"] * alone * blocks + tokens * per_token


# Standard deviations of effects, by parameter.
_EXECUTION = {
    "launch": 0.2,
    "sequence": 0.35,
    "waiting": 0.1,
    "capacity": 0.35,
    "itl_capacity": 0.2,
    "prefill": 0.15,
    "kv": 1.0,
    "kv_growth": 0.2,
    "sharpness": 0.15,
    "waiting_half": 0.1,
    "activation": 0.7,
    "queue": 0.15,
}
# Of a padded or a paged batch only.
_BATCH = {"capacity_growth": 0.5, "itl_growth": 0.4}
_GPU = {
    "launch": 0.3,
    "sequence": 0.4,
    "bandwidth": 0.15,
    "flops": 0.3,
    "kv": 0.3,
    "waiting": 0.1,
    "prefill": 0.15,
}
_LLM = {
    "launch": 0.12,
    "sequence": 0.2,
    "capacity": 0.3,
    "kv": 0.2,
    "waiting": 0.08,
    "prefill": 0.15,
    "bandwidth": 0.05,
    "flops": 0.1,
    "itl_capacity": 0.15,
}
_PAIR = {"capacity": 0.3, "itl_capacity": 0.15}
_PARALLEL = {"launch": 0.1, "sequence": 0.2, "kv": 0.2}


def effects(X: pd.DataFrame) -> Iterator[Effect]:
    """Yield the effects on the rows of a fact frame."""
    parallel = (X["n_gpus"] > 1).to_numpy(float)
    paged, encoded = X["execution"] == frame.PAGED, X["execution"] == frame.ENCODER_DECODER
    contrasts = {"paged": paged, "padded": ~paged, "encoder": encoded, "decoder": ~encoded}
    for name, rows in contrasts.items():
        values = rows.to_numpy(float)
        spread = _EXECUTION | _BATCH if name in ("paged", "padded") else _EXECUTION
        yield from (Effect(parameter, name, values, sd) for parameter, sd in spread.items())
        if name != "decoder":
            # Every block waits for an all-reduce: about a fifth more, whatever the LLM.
            mean = 0.0 if name == "encoder" else 0.2
            yield Effect("launch", f"{name} parallel", values * parallel, 0.1, mean)
    for parameter, sd in _PARALLEL.items():
        yield Effect(parameter, "doubling", np.log2(X["n_gpus"].to_numpy(float)), sd)
    yield from levels(X["gpu_id"], "gpu", _GPU, {})
    for gpu_id in sorted(X["gpu_id"].unique()):
        here = (X["gpu_id"] == gpu_id).to_numpy(float)
        yield Effect("launch", f"gpu {gpu_id} parallel", here * parallel, 0.15)
        for name, rows in (("paged", X["is_paged"] > 0), ("padded", X["is_paged"] == 0)):
            yield Effect("launch", f"gpu {gpu_id} {name}", here * rows.to_numpy(float), 0.1)
    pairs = X["llm_id"] + "|" + X["gpu_profile_id"]
    # LLMs of one class differ among themselves by as much as that class's software lets them.
    llm_groups = dict(zip(X["llm_id"], "llm " + X["execution"], strict=True))
    yield from levels(X["llm_id"], "llm", _LLM, llm_groups)
    yield from levels(pairs, "pair", _PAIR, dict.fromkeys(pairs, "pair"))


# A decoder layer of an encoder-decoder has a third block, cross-attention.
_LAYER_BLOCKS = {True: 3, False: 2}


def fact_rows(keys: pd.DataFrame, facts: frame.Facts) -> pd.DataFrame:
    """Return `llm_id, gpu_profile_id, users` of `keys` with their facts, indexed as `keys`.

    These have identifiers, users and the mean `input_tokens, output_tokens`, one row a point.
    """
    execution = frame.execution_classes(facts.llms, facts.published)
    pairs = [*keys[frame.IDENTIFIERS].itertuples(index=False, name=None)]
    of_pair = {}
    for llm_id, profile_id in dict.fromkeys(pairs):
        llm, profile = facts.llms[llm_id], facts.profiles[profile_id]
        memory = memory_of(llm, profile.devices, _USABLE_MEMORY)
        of_llm = _llm_facts(llm, execution[llm_id]) | {"free_bytes": free_bytes(memory)}
        of_pair[llm_id, profile_id] = of_llm | device_facts(profile)
    known = pd.DataFrame([of_pair[pair] for pair in pairs], keys.index)
    return pd.concat([keys[[*frame.IDENTIFIERS, "users"]], known, keys[frame.LENGTHS]], axis=1)


def _llm_facts(llm: LLM, execution: str) -> dict[str, float | str]:
    n_blocks = _LAYER_BLOCKS[llm.is_encoder_decoder] * llm.n_layers
    bytes_per_parameter = llm.weight_bytes / llm.n_parameters
    active_experts = 0.0
    if llm.n_experts:
        active_experts = llm.n_expert_parameters * llm.n_experts_per_token / llm.n_experts
    encoder = llm.n_encoder_flop_parameters if llm.is_encoder_decoder else 0
    states = 2 * (llm.hidden_size + llm.ffn_size) * DTYPE_BYTES[llm.dtype]
    # Decoders compute the 32-bit logits of all input tokens; an encoder has none.
    logits = 0 if llm.is_encoder_decoder else 4 * llm.vocab_size
    return {
        "execution": execution,
        "is_paged": float(execution == frame.PAGED),
        "n_blocks": n_blocks,
        "n_encoder_blocks": _LAYER_BLOCKS[False] * llm.n_encoder_layers,
        # Read in every step: the decoder's matrices, of which all tokens share the dense ones.
        "dense_bytes": (llm.n_flop_parameters - active_experts) * bytes_per_parameter,
        "expert_bytes": llm.n_expert_parameters * bytes_per_parameter,
        "expert_share": llm.n_experts_per_token / llm.n_experts if llm.n_experts else 0.0,
        "flop_per_input_token": 2.0 * (encoder or llm.n_flop_parameters),
        "kv_bytes_per_token": float(llm.kv_bytes_per_token),
        # What a token in prefill holds beside its KV cache: two blocks' states, and logits.
        "activation_bytes_per_token": float(states + logits),
        # Tensor parallelism adds up the hidden state after every block.
        "reduced_bytes": float(n_blocks * llm.hidden_size * DTYPE_BYTES[llm.dtype]),
    }


def _tree_columns(X: pd.DataFrame, predicted: np.ndarray) -> dict[str, np.ndarray | pd.Series]:
    return {  # in this order: samples of columns are drawn by position
        "users": np.log2(X["users"]),
        "n_gpus": X["n_gpus"].astype(float),
        "log_fits": np.log(requests_that_fit(np.full(len(X), 0.5), columns_of(X))),
        "log_nttft": predicted[:, 0],
        "log_itl": predicted[:, 1],
        "is_paged": X["is_paged"],
        "is_encoder_decoder": (X["execution"] == frame.ENCODER_DECODER).astype(float),
    }


BATCHING = Law(fact_rows, PARAMETERS, terms, STEP_TERMS, effects, _tree_columns)
"""Engines that stop to prefill new requests (TGIS), and servers whose engine is not known."""
