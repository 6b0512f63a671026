"""A world that obeys the law of `roofline`: LLMs on GPU profiles, with points drawn from it."""

import numpy as np
import pandas as pd

from sextant.facts.gpu import GPU, GPUProfile
from sextant.facts.llm import LLM
from sextant.law.fact_rows import fact_rows
from sextant.law.posterior import columns_of
from sextant.law.terms import LAW, NAMES
from sextant.points.frame import IDENTIFIERS, FactTables
from sextant.predict.predictor import TrainingRows

USERS = (1, 2, 4, 8, 16, 32, 64, 128)
GPUS = {
    name: GPU(name, "gpu", name, memory, bandwidth, tflops, link, "invented")
    for name, memory, bandwidth, tflops, link in (
        ("small", 24.0, 600.0, 125.0, 32.0),
        ("middle", 40.0, 1555.0, 312.0, 300.0),
        ("large", 80.0, 3350.0, 989.0, 450.0),
    )
}
PROFILES = {
    f"{n}x{name}": GPUProfile(f"{n}x{name}", gpu, n, n * gpu.memory_bandwidth_gb_s / 400)
    for name, gpu in GPUS.items()
    for n in (1, 2)
}


def decoder(n_layers: int, hidden: int, n_kv_heads: int = 0) -> LLM:
    """Return a dense decoder of this size, with 128 numbers a head."""
    heads = hidden // 128
    parameters = n_layers * 12 * hidden**2 + 32000 * hidden
    sizes = {"n_layers": n_layers, "hidden_size": hidden, "ffn_size": 4 * hidden}
    sizes |= {"n_heads": heads, "n_kv_heads": n_kv_heads or heads, "head_dim": 128}
    sizes |= {"n_parameters": parameters, "n_flop_parameters": parameters, "vocab_size": 32000}
    return LLM(llm_type="llama", context_tokens=4096, dtype="float16", **sizes)


LLMS = {
    "tiny": decoder(16, 2048),
    "little": decoder(24, 2048),
    "third": decoder(28, 3072),
    "seven": decoder(32, 4096),
    "grouped": decoder(32, 4096, n_kv_heads=8),
    "nine": decoder(36, 4096),
    "unseen": decoder(30, 3584),
}


def facts(llms=LLMS, profiles=PROFILES, users=USERS, input_tokens=120.0, output_tokens=20.0):
    """Return the fact rows of all pairs at these users."""
    keys = pd.DataFrame(
        [(llm, profile, n) for llm in sorted(llms) for profile in sorted(profiles) for n in users],
        columns=[*IDENTIFIERS, "users"],
    )
    keys = keys.assign(input_tokens=input_tokens, output_tokens=output_tokens, engine="tgis")
    return fact_rows(keys, FactTables(llms, profiles))


def draw(
    X: pd.DataFrame, noise: float = 0.03, seed: int = 0, slower: dict | None = None
) -> TrainingRows:
    """Return points of the law at its prior, with LLMs that differ a little, and noise.

    By LLM, `slower` has the logarithm by which all its times exceed the law's.
    """
    rng, design = np.random.default_rng(seed), LAW.design(X)
    phi = design.parameters(design.mean)
    llm_ids = sorted(X["llm_id"].unique())
    for name in ("launch", "sequence", "prompt_launch", "memory"):
        effect = dict(zip(llm_ids, rng.normal(0, 0.05, len(llm_ids)), strict=True))
        phi[:, NAMES.index(name)] += X["llm_id"].map(effect)
    for name in ("launch", "sequence"):
        phi[:, NAMES.index(name)] += X["llm_id"].map(slower or {}).fillna(0)
    logs = LAW.predict_log(phi, columns_of(X)) + rng.normal(0, noise, (len(X), 2))
    y = pd.DataFrame(np.exp(logs), columns=["nttft_ms", "itl_ms"], index=X.index)
    return TrainingRows(X, y.assign(throughput_tok_s=np.nan))
