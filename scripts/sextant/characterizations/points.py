"""The points of a characterization as frames: their keys, targets and latencies at a percentile."""

import numpy as np
import pandas as pd

from sextant.experiment.slo import PERCENTILE_PREFIX

IDENTIFIERS = ["llm_id", "gpu_profile_id"]
TARGETS = ["nttft_ms", "itl_ms"]
LENGTHS = ["input_tokens", "output_tokens"]
"""Mean lengths of a point's requests."""

Pair = tuple[str, str]
"""(`llm_id`, `gpu_profile_id`)"""


def at_percentile(points: pd.DataFrame, percentile: int) -> pd.DataFrame:
    """Return the points' keys, `input_tokens, output_tokens` and numbers, sorted by the keys.

    Keys are `llm_id, gpu_profile_id, users`; the numbers `nttft_ms, itl_ms`, at one percentile,
    and `throughput_tok_s`. Mean lengths are missing where they were not published.
    """
    prefix = PERCENTILE_PREFIX[percentile]
    columns = {f"{prefix}_{target}": target for target in TARGETS}
    columns |= {f"mean_{length}": length for length in LENGTHS}
    numbers = [*LENGTHS, *TARGETS, "throughput_tok_s"]
    frame = points.rename(columns=columns)
    unknown = {length: np.nan for length in LENGTHS if length not in frame}
    frame = frame.assign(**unknown)[[*IDENTIFIERS, "users", *numbers]]
    ordered = frame.sort_values([*IDENTIFIERS, "users"], ignore_index=True)
    return ordered.astype(dict.fromkeys(numbers, float))


def has_latency(latencies: pd.DataFrame) -> pd.Series:
    """Tell which rows have both `nttft_ms` and `itl_ms`: finite and above 0."""
    values = latencies[TARGETS]
    return ((values > 0) & np.isfinite(values)).all(axis=1)
