"""What moves the parameters of the law of chunked prefill: architecture, precision, engine, LLM.

GPU types have no effects of their own, only their architectures: what a device can do better than
another of its architecture, the law's facts say, and so no device with more of everything is
predicted slower. An LLM and a deployment (LLM, devices, precision, layout, version) shift the two
latencies and nothing else: with a handful of LLMs, effects on the physical parameters would take
from them what transfers to a new one.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from sextant.predict.roofline.chunked import PARAMETERS
from sextant.predict.roofline.effects import Effect, levels

_OFFSETS = ("ttft_offset", "itl_offset")
_MOE = {"sequence": 0.3, "expert_flops": 0.2}
_LATENT = {"launch": 0.2, "kv_bandwidth": 0.3}
# Who does not state the precision of the KV cache may well have halved it.
_KV_UNSTATED = {"memory": 0.5, "kv_bandwidth": 0.3}
_ARCHITECTURE = {
    "launch": 0.1,
    "bandwidth": 0.1,
    "expert_bandwidth": 0.1,
    "flops": 0.2,
    "expert_flops": 0.2,
}
_PRECISION = {
    "launch": 0.1,
    "bandwidth": 0.1,
    "expert_bandwidth": 0.1,
    "flops": 0.15,
    "expert_flops": 0.15,
}
_ENGINE = dict(zip(_OFFSETS, (0.2, 0.15), strict=True))
_VERSION = dict(zip(_OFFSETS, (0.1, 0.05), strict=True))
_LLM = dict(zip(_OFFSETS, (0.1, 0.08), strict=True))
_DEPLOYMENT = dict(zip(_OFFSETS, (0.1, 0.04), strict=True))


def effects(X: pd.DataFrame) -> Iterator[Effect]:
    """Yield all effects on the rows of a fact frame."""
    for parameter, prior in PARAMETERS.items():
        mean = float(np.log(prior.prior))
        yield Effect(parameter, "all", np.ones(len(X)), prior.sd, mean)
    for parameter, sd in _KV_UNSTATED.items():
        yield Effect(parameter, "kv unstated", X["is_kv_unstated"].to_numpy(float), sd)
    kinds = {"moe": (X["is_moe"], _MOE), "latent": (X["is_latent"], _LATENT)}
    for name, (rows, spread) in kinds.items():
        for parameter, sd in spread.items():
            yield Effect(parameter, name, rows.to_numpy(float), sd)
    yield Effect("sync", "replicated", (X["data_parallel"] > 1).to_numpy(float), 0.2)
    for parameter in ("sync", "sequence"):
        yield Effect(parameter, "doubling", np.log2(X["n_gpus"].to_numpy(float)), 0.1)
    yield from levels(X["architecture"], "architecture", _ARCHITECTURE, {})
    yield from levels(X["served_precision"], "precision", _PRECISION, {})
    yield from levels(X["engine"], "engine", _ENGINE, {})
    version = X["engine"] + " " + X["engine_version"]
    yield from levels(version, "version", _VERSION, dict.fromkeys(version, "version"))
    yield from levels(X["llm_id"], "llm", _LLM, dict.fromkeys(X["llm_id"], "llm"))
    deployment = deployments(X)
    yield from levels(deployment, "pair", _DEPLOYMENT, dict.fromkeys(deployment, "pair"))


def deployments(X: pd.DataFrame) -> pd.Series:
    """Return a name of the servers of each row: alike but for the load and the requests."""
    layout = X["data_parallel"].map("{:g}".format) + "," + X["expert_parallel"].map("{:g}".format)
    names = ["llm_id", "engine", "engine_version", "served_precision"]
    named = X[names].agg(" ".join, axis=1) + " " + layout
    return named + "|" + X["gpu_profile_id"]
