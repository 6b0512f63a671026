"""Joint draws of latencies, and the medians and intervals that follow from them."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from sextant.predict.latencies import latency_frame

INTERVAL = (0.05, 0.95)
JOULES = ["energy_j_per_token", "energy_lo_j_per_token", "energy_hi_j_per_token"]
"""Median and 90% interval of the joules that an output token takes, of all devices."""


class Draws(NamedTuple):
    """Joint draws of what the latencies of some rows may be."""

    X: pd.DataFrame
    """`llm_id, gpu_profile_id, users`, and the mean lengths of requests."""
    samples_ms: np.ndarray
    """nTTFT and ITL, shape (draws, rows, 2)."""

    def summary(self) -> pd.DataFrame:
        """Return medians `nttft_ms, itl_ms` and the bounds of their 90% intervals.

        The bounds are `nttft_lo_ms, nttft_hi_ms, itl_lo_ms, itl_hi_ms`; one row per row of `X`.
        """
        low, high = np.quantile(self.samples_ms, INTERVAL, axis=0)
        frame = latency_frame(np.median(self.samples_ms, axis=0), self.X.index)
        for column, target in enumerate(("nttft", "itl")):
            frame[f"{target}_lo_ms"] = low[:, column]
            frame[f"{target}_hi_ms"] = high[:, column]
        return frame
