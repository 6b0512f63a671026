"""The points of a characterization as frames: their keys, targets and latencies at a percentile."""

import numpy as np
import pandas as pd

from sextant.experiment.slo import PERCENTILE_PREFIX

IDENTIFIERS = ["llm_id", "gpu_profile_id"]
TARGETS = ["nttft_ms", "itl_ms"]

Pair = tuple[str, str]
"""(`llm_id`, `gpu_profile_id`)"""


def at_percentile(points: pd.DataFrame, percentile: int) -> pd.DataFrame:
    """Return `llm_id, gpu_profile_id, users, nttft_ms, itl_ms, throughput_tok_s` of points.

    Latencies are those at one percentile; rows are sorted.
    """
    prefix = PERCENTILE_PREFIX[percentile]
    columns = {f"{prefix}_{target}": target for target in TARGETS}
    numbers = [*TARGETS, "throughput_tok_s"]
    frame = points.rename(columns=columns)[[*IDENTIFIERS, "users", *numbers]]
    ordered = frame.sort_values([*IDENTIFIERS, "users"], ignore_index=True)
    return ordered.astype(dict.fromkeys(numbers, float))


def has_latency(latencies: pd.DataFrame) -> pd.Series:
    """Tell which rows have both `nttft_ms` and `itl_ms`: finite and above 0."""
    values = latencies[TARGETS]
    return ((values > 0) & np.isfinite(values)).all(axis=1)
