"""Effects: what moves the law's parameters from the average LLM on the average GPU.

Each table has the standard deviations of one kind of effect, of the logarithm of each parameter.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from sextant.facts.engine import DEFAULT_ENGINE
from sextant.law.posterior import Effect, levels
from sextant.points import frame

Spread = Mapping[str, float]

_USUAL_MAKERS = ("NVIDIA", "CPU")
"""Makers of the GPUs that most sources measured, and cores, whose effects are those of engines."""

_MOE: Spread = {"sequence": 0.3, "launch": 0.05, "link": 0.4, "sync": 0.3}
_LATENT: Spread = {"launch": 0.2, "kv_bandwidth": 0.3}
# Where the precision of the KV cache is not stated, it may be half of what is assumed. Else vLLM
# holds what its memory says, within 1.4% in the mean of its logs.
_KV_UNSTATED: Spread = {"memory": 0.5, "kv_bandwidth": 0.4}
_SHARES = {"launch": 0.1, "bandwidth": 0.03, "expert_bandwidth": 0.1}
_ARCHITECTURE: Spread = _SHARES | {
    "flops": 0.08,
    "expert_flops": 0.1,
    # Kernels of new architectures are young, and hosts are faster.
    "launch": 0.14,
    "sequence": 0.2,
    "prompt_launch": 0.2,
}
_OTHER_MAKER: Spread = {"ttft_offset": 0.4, "itl_offset": 0.3}
"""Of GPUs of another maker than most: other kernels, other compilers, a port of the engine."""
_PRECISION: Spread = _SHARES | {"flops": 0.05, "expert_flops": 0.15}
_ENGINE: Spread = {"ttft_offset": 0.2, "itl_offset": 0.05, "wave": 0.7}
# Beside vLLM: hosts and kernels of other engines. A front end takes as long for any LLM.
_OTHER_ENGINE: Spread = {
    "prompt": 0.7,
    "prompt_launch": 0.2,
    "flops": 0.15,
    "expert_flops": 0.2,
    **_SHARES,
    "launch": 0.3,
    "memory": 0.2,
}
# Who measured, with which client and on which hosts, and whether all users start at once.
_SOURCE: Spread = {
    "ttft_offset": 0.2,
    "wave": 0.7,
    "wait": 0.3,
    "queue": 0.3,
    "prompt": 0.7,
    "prompt_launch": 0.1,
    "flops": 0.15,
}
# Where no input lengths are stated, what a step reads and multiplies beside weights is a guess.
_LENGTHS_UNSTATED: Spread = {
    "itl_offset": 0.2,
    "launch": 0.2,
    "sequence": 0.5,
    "kv_bandwidth": 0.3,
    "bandwidth": 0.1,
    "expert_bandwidth": 0.15,
    "touch": 0.1,
    "flops": 0.3,
    "expert_flops": 0.3,
}
_VERSION: Spread = {"ttft_offset": 0.1, "itl_offset": 0.05}
_SUPPORT: Spread = {"ttft_offset": 0.15, "itl_offset": 0.1}
# Some LLMs' routers prefer a few of the experts.
_ROUTER: Spread = {"touch": 0.15}
_DRAFT_SD = 0.5
_DEPLOYMENT: Spread = {"ttft_offset": 0.1, "itl_offset": 0.04}

# Without CUDA graphs: hosts and kernels differ by far more, each by its engine.
_EAGER: Spread = {
    "launch": 1.0,
    "sequence": 1.0,
    "wait": 1.0,
    "wave": 1.5,
    "memory": 1.5,
    "prompt": 0.7,
    "prompt_launch": 0.7,
    "kv_bandwidth": 1.0,
    "queue": 0.7,
    "flops": 0.5,
    "gathering": 1.0,
    "median": 0.5,
}
# How an LLM is executed there: padded or not, with an encoder or without.
_EXECUTION: Spread = {
    "launch": 0.2,
    "sequence": 0.7,
    "wait": 0.1,
    "wave": 0.2,
    "memory": 0.6,
    "prompt": 0.15,
    "prompt_launch": 0.15,
    "kv_bandwidth": 0.5,
    "queue": 0.15,
    "gathering": 0.1,
}
_DOUBLING: Spread = {"launch": 0.1, "sequence": 0.2, "kv_bandwidth": 0.2}
_GPU: Spread = {
    "launch": 0.3,
    "sequence": 0.4,
    "bandwidth": 0.15,
    "flops": 0.3,
    "kv_bandwidth": 0.3,
    "wait": 0.1,
    "prompt_launch": 0.15,
}
_LLM: Spread = {
    "launch": 0.12,
    "sequence": 0.2,
    "memory": 0.3,
    "kv_bandwidth": 0.2,
    "wait": 0.08,
    "prompt_launch": 0.15,
    "bandwidth": 0.05,
    "flops": 0.1,
}


def effects(X: pd.DataFrame) -> Iterator[Effect]:
    """Yield the effects on the rows of a fact frame."""
    yield from _eager_effects(X)

    kinds = {
        "kv unstated": _KV_UNSTATED,
        "lengths unstated": _LENGTHS_UNSTATED,
        "moe": _MOE,
        "latent": _LATENT,
    }
    for name, spread in kinds.items():
        column = X[f"is_{name.replace(' ', '_')}"].to_numpy(float)
        for parameter, sd in spread.items():
            yield Effect(parameter, name, column, sd)
    if "accepted_sd" in X:  # some LLMs speculate
        yield Effect("acceptance", "drafts", X["accepted_sd"].to_numpy(float), 1.0)
        yield Effect("draft", "drafts", (X["draft_tokens"] > 0).to_numpy(float), _DRAFT_SD)

    n_doublings = np.log2(X["n_gpus"].to_numpy(float))
    yield Effect("sync", "replicated", (X["data_parallel"] > 1).to_numpy(float), 0.2)
    for parameter in ("sync", "sequence"):
        yield Effect(parameter, "doubling", n_doublings, 0.1)
    yield from levels(X["architecture"], "architecture", _ARCHITECTURE)
    maker = X["maker"]
    yield from levels(maker.mask(maker.isin(_USUAL_MAKERS)), "maker", _OTHER_MAKER)
    yield from levels(X["served_precision"], "precision", _PRECISION)

    engine = X["engine"]
    yield from levels(engine, "engine", _ENGINE)
    yield from levels(engine.mask(engine.isin(["", DEFAULT_ENGINE])), "other engine", _OTHER_ENGINE)
    yield from levels(X["source"], "source", _SOURCE)

    version = engine + " " + X["engine_version"]
    yield from levels(version, "version", _VERSION, dict.fromkeys(version, "version"))
    # How well a version of an engine supports an LLM: its kernels and defaults for it.
    # Without CUDA graphs LLMs have effects of their own instead.
    support = (X["llm_id"] + "|" + version).where(X["is_eager"] == 0)
    yield from levels(support, "support", _SUPPORT, dict.fromkeys(support, "support"))
    yield from levels(X["llm_id"].where(X["is_moe"] > 0), "router", _ROUTER)
    deployment = deployments(X)
    yield from levels(deployment, "pair", _DEPLOYMENT, dict.fromkeys(deployment, "pair"))


def _eager_effects(X: pd.DataFrame) -> Iterator[Effect]:
    """Yield the effects on servers without CUDA graphs."""
    is_eager = X["is_eager"] > 0
    if not is_eager.any():
        return
    engine = X["engine"].where(X["is_cpu"] == 0, "cpu").where(is_eager)
    yield from levels(engine, "eager", _EAGER)

    execution = X["execution"].where(is_eager)
    classes = {
        frame.PAGED: execution == frame.PAGED,
        # An encoder-decoder is padded too.
        frame.PADDED: execution.isin([frame.PADDED, frame.ENCODER_DECODER]),
        frame.ENCODER_DECODER: execution == frame.ENCODER_DECODER,
    }
    for name, rows in classes.items():
        column = rows.to_numpy(float)
        for parameter, sd in _EXECUTION.items():
            yield Effect(parameter, name, column, sd)

    n_doublings = np.log2(X["n_gpus"].to_numpy(float))
    for parameter, sd in _DOUBLING.items():
        yield Effect(parameter, "eager doubling", is_eager * n_doublings, sd)
    gpus = X["gpu_id"].where(is_eager)
    yield from levels(gpus, "gpu", _GPU)
    # Every block waits for an all-reduce.
    yield from levels(gpus.where(n_doublings > 0), "parallel gpu", {"launch": 0.15})

    # LLMs of one class differ among themselves by as much as that class's software lets them.
    llms = X["llm_id"].where(is_eager)
    yield from levels(llms, "llm", _LLM, dict(zip(llms, "llm " + X["execution"], strict=True)))


def deployments(X: pd.DataFrame) -> pd.Series:
    """Return the name of each row's deployment: an LLM, how it is served, and the GPU profile."""
    layout = X["data_parallel"].map("{:g}".format) + "," + X["expert_parallel"].map("{:g}".format)
    names = ["llm_id", "engine", "engine_version", "served_precision"]
    served = X[names].agg(" ".join, axis=1) + " " + layout
    return served + "|" + X["gpu_profile_id"]
