"""The law: how long a step, a first token and a queue take, from facts and a few parameters.

docs/predictor.md derives it. Parameters are logarithms, so none can change its sign and effects on
them multiply; but for two exponents, which stand for themselves. Times are in milliseconds.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class Parameter(NamedTuple):
    """A parameter of the law, for an average LLM on an average GPU."""

    meaning: str
    prior: float
    """Most likely value before any measurement."""
    sd: float
    """Standard deviation of its logarithm; of an exponent itself."""


PARAMETERS = {
    "launch": Parameter("launch overhead of a block of layers in a step, ms", 0.2, 1.0),
    "bandwidth": Parameter("share of the memory bandwidth that reading weights reaches", 0.7, 0.3),
    "flops": Parameter("share of the dense FLOP/s that prefill reaches", 0.4, 0.5),
    "sequence": Parameter("host time that a further sequence adds to a step, ms", 0.3, 1.0),
    "kv": Parameter("times that a step moves the KV cache of a sequence", 5.0, 1.5),
    "kv_growth": Parameter("exponent of the batch in that traffic (padding: above 1)", 1.0, 0.2),
    "capacity": Parameter("requests served at once where 400 of mean length fit", 100.0, 1.5),
    "capacity_growth": Parameter("exponent of the requests that fit", 1.0, 0.2),
    "activation": Parameter("share of the activations that a token in flight holds", 0.5, 1.0),
    "sharpness": Parameter("how sharply the batch saturates", 2.0, 0.4),
    "itl_capacity": Parameter("capacity that ITL sees, over that of TTFT", 1.0, 0.5),
    "itl_growth": Parameter("exponent of the requests that fit, in that ratio", 0.0, 0.2),
    "prefill": Parameter("launch overhead of a prefill, in steps", 2.0, 0.5),
    "waiting": Parameter("steps that a request waits for its batch, at most", 5.0, 1.0),
    "waiting_half": Parameter("further sequences at which it waits half of that", 5.0, 1.0),
    "waiting_growth": Parameter("exponent of the batch in that wait", 1.3, 0.2),
    "queue": Parameter("time in the queue over that of a full batch in turn", 1.5, 0.7),
    "ttft_offset": Parameter("percentile of nTTFT over mean TTFT by mean length", 1.35, 0.3),
    "itl_offset": Parameter("percentile of ITL over its mean", 1.0, 0.3),
}
NAMES = tuple(PARAMETERS)
INDEX = {name: position for position, name in enumerate(NAMES)}
_EXPONENTS = ("capacity_growth", "itl_growth")


def prior_mean(name: str) -> float:
    """Return a parameter's most likely value as the law takes it: its logarithm, or itself."""
    value = PARAMETERS[name].prior
    return value if name in _EXPONENTS else float(np.log(value))


_REFERENCE_REQUESTS = 400
_ROOF = 3.0
"""Exponent of the smooth maximum of launch overhead and memory traffic."""
_SHARPEST = 6.0
"""Above it the batch is a plain minimum; larger values only upset the arithmetic."""
_USABLE_MEMORY = 0.95


STEP_TERMS = ("launch_ms", "weights_ms", "kv_ms", "sequences_ms", "overlap_ms")
"""Terms of a decode step. `overlap_ms` is negative: launches and memory traffic hide each other."""


def predict_log(phi: np.ndarray, facts: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the logarithms of nTTFT and ITL in ms, shape (rows, 2).

    Args:
        phi: parameters as `prior_mean` states them, shape (rows, parameters), in `NAMES`' order.
        facts: columns of `sextant.predict.roofline.facts.fact_rows`, each of shape (rows,).
    """
    parts = terms(phi, facts)
    ttft_ms = parts["prefill_ms"] + parts["batching_ms"] + parts["queueing_ms"]
    itl_ms = sum(parts[name] for name in STEP_TERMS)
    offsets = phi[:, [INDEX["ttft_offset"], INDEX["itl_offset"]]]
    return offsets + np.log(np.stack([ttft_ms / facts["input_tokens"], itl_ms], axis=1))


def terms(phi: np.ndarray, facts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what the latencies are made of, each of shape (rows,), in ms unless named else.

    The sum of `STEP_TERMS` is a decode step, the mean ITL;
    `prefill_ms + batching_ms + queueing_ms` the mean TTFT; `itl_batch` and
    `capacity_requests` count requests, the first those that share a step.
    """
    value = dict(zip(NAMES, np.exp(phi).T, strict=True))
    value |= {name: phi[:, INDEX[name]] for name in _EXPONENTS}
    users = facts["users"]
    capacity, itl_capacity = _capacities(value, facts)
    sharpness = np.minimum(value["sharpness"], _SHARPEST)
    batch = _saturate(users, capacity, sharpness)
    itl_batch = _saturate(users, itl_capacity, sharpness)
    step = sum(_step(batch, value, facts))
    prefill = _prefill(value, facts)
    service = prefill + facts["output_tokens"] * step
    # One user alone never finds another one before it.
    turns = np.maximum(users - batch, 0) / batch * (1 - 1 / users)
    return dict(zip(STEP_TERMS, _step(itl_batch, value, facts), strict=True)) | {
        "prefill_ms": prefill,
        "batching_ms": _waiting_steps(batch, value) * step,
        "queueing_ms": value["queue"] * turns * service,
        "itl_batch": itl_batch,
        "capacity_requests": capacity,
    }


def requests_that_fit(activation: np.ndarray, facts: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return how many requests of mean length fit into the memory that the weights leave.

    A padded batch holds its activations on each device, a paged one once.
    """
    n_gpus = facts["n_gpus"]
    total = n_gpus * facts["memory_bytes"]
    free = np.maximum(_USABLE_MEMORY * total - facts["weight_bytes"], 0.02 * total)
    copies = np.where(facts["is_paged"] > 0, 1.0, n_gpus)
    held = activation * facts["activation_bytes_per_token"] * copies
    tokens = facts["input_tokens"] + facts["output_tokens"] / 2
    return free / (facts["kv_bytes_per_token"] + held) / tokens


def _capacities(
    value: Mapping[str, np.ndarray], facts: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    fits = requests_that_fit(value["activation"], facts) / _REFERENCE_REQUESTS
    capacity = value["capacity"] * fits ** value["capacity_growth"]
    ratio = value["itl_capacity"] * fits ** value["itl_growth"]
    return capacity, capacity * ratio


def _saturate(users: np.ndarray, capacity: np.ndarray, sharpness: np.ndarray) -> np.ndarray:
    """Return a smooth minimum of the users and what the server holds at once."""
    return (users**-sharpness + capacity**-sharpness) ** (-1 / sharpness)


def _step(
    batch: np.ndarray,
    value: Mapping[str, np.ndarray],
    facts: Mapping[str, np.ndarray],
    tokens_each: np.ndarray | float = 1.0,
) -> tuple[np.ndarray, ...]:
    """Return the parts of a step of this batch, in the order of `STEP_TERMS`.

    Of launch overhead and memory traffic the larger one dominates: they take their smooth maximum.
    Each request takes part with one token; in a prefill with more, which touch more experts.
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
    sequences = (value["sequence"] + _reduction_ms(facts)) * others
    return launch, weights, kv, sequences, overlap


def _reduction_ms(facts: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the time to add up one token's hidden states over the devices (ring all-reduce)."""
    n_gpus = facts["n_gpus"]
    passes = 2 * (n_gpus - 1) / n_gpus
    return passes * facts["reduced_bytes_per_token"] / facts["link_bytes_per_ms"]


def _prefill(value: Mapping[str, np.ndarray], facts: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the time of a prefill: kernels of encoder and decoder, products, all-reduces."""
    tokens = facts["input_tokens"]
    alone = sum(_step(np.ones_like(tokens), value, facts, tokens_each=tokens))
    blocks = 1 + facts["n_encoder_blocks"] / facts["n_blocks"]
    products = facts["flop_per_input_token"] / (facts["n_gpus"] * facts["flop_per_ms"])
    per_token = products / value["flops"] + _reduction_ms(facts)
    return value["prefill"] * alone * blocks + tokens * per_token


def _waiting_steps(batch: np.ndarray, value: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the steps that pass until a new request may join the running ones."""
    exponent = value["waiting_growth"]
    others = np.maximum(batch - 1, 1e-6) ** exponent
    return value["waiting"] * others / (others + value["waiting_half"] ** exponent)
