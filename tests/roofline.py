"""LLMs on three GPU profiles whose latencies follow a known law, for tests of predictors."""

import numpy as np
import pandas as pd

from sextant.facts.gpu import GPU, GPUProfile
from sextant.facts.slo import SLO
from sextant.predict.predictor import TrainingRows

LIMITS = SLO("s", nttft_ms=4.0, itl_ms=25.0, percentile=50, users=100)
USERS = (1, 4, 16, 64)
SIZES = {"a": 1.0, "b": 1.5, "c": 2.2, "d": 3.0, "e": 4.5}
SPEEDS = {"1xweak": 1.0, "2xmiddle": 2.0, "4xstrong": 4.0}
PROFILES = {
    name: GPUProfile(
        name, GPU(name[2:], "gpu", name[2:], 16.0, 300 * speed, 60.0, 32.0, "invented"), n, speed
    )
    for (name, speed), n in zip(SPEEDS.items(), (1, 2, 4), strict=True)
}
WEAKEST, STRONGEST = "1xweak", "4xstrong"


def rows_of(sizes: dict[str, float], noise: float = 0.0) -> TrainingRows:
    """Return points of LLMs of these sizes: latency = size over speed, growing with users."""
    rows = [
        (llm_id, profile_id, users, size, f"type-{llm_id}", np.nan, speed, profile_id, True)
        for llm_id, size in sizes.items()
        for profile_id, speed in SPEEDS.items()
        for users in USERS
    ]
    columns = ["llm_id", "gpu_profile_id", "users", "size", "llm_type", "unknown", "speed"]
    X = pd.DataFrame(rows, columns=[*columns, "architecture", "is_decoder"])
    load = X["size"] / X["speed"]
    y = pd.DataFrame(
        {
            "nttft_ms": load * (1 + X["users"] / 8),
            "itl_ms": 10 * load * (1 + X["users"] / 32),
            "throughput_tok_s": 100 * X["users"] / load,
        }
    )
    return TrainingRows(X, y * np.random.default_rng(3).lognormal(0, noise, y.shape))


def references_of(rows: TrainingRows) -> TrainingRows:
    """Return the rows on the weakest and the strongest profile."""
    return rows.on([WEAKEST, STRONGEST])
