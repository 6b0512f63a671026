"""Draws: latencies that some rows may have, and what follows from them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from sextant.facts.slo import SLO
from sextant.points.frame import FLOOR_MS, LENGTHS, TARGETS

INTERVAL = (0.05, 0.95)
JOULES = ["energy_j_per_token", "energy_lo_j_per_token", "energy_hi_j_per_token"]
"""Median and 90% interval of the joules that an output token takes, of all devices."""


class Draws(NamedTuple):
    """Joint draws of the latencies of some rows."""

    X: pd.DataFrame  #: `llm_id, gpu_profile_id, users`, and the mean lengths of requests.
    samples_ms: np.ndarray  #: nTTFT and ITL, shape (draws, rows, 2).

    @property
    def lengths(self) -> np.ndarray:
        """Mean input and output tokens of a request, shape (rows, 2)."""
        return self.X.reindex(columns=LENGTHS).to_numpy(float)

    def of(self, rows: np.ndarray) -> "Draws":
        """Return the draws of some rows."""
        return Draws(self.X[rows], self.samples_ms[:, rows])

    def is_met(self, slo: SLO) -> np.ndarray:
        """Return whether each row meets all limits in each draw, shape (draws, rows)."""
        return slo.meets(self.samples_ms, self.lengths)

    def carried(self, slo: SLO) -> np.ndarray:
        """Return the load of each row, in the SLO's unit, shape (draws, rows) or (rows,)."""
        return slo.carried(self.X["users"].to_numpy(), self.samples_ms, self.lengths)

    def usual_load(self, slo: SLO) -> np.ndarray:
        """Return the load of each row at median latencies, shape (rows,)."""
        medians_ms = np.median(self.samples_ms, axis=0)
        return slo.carried(self.X["users"].to_numpy(), medians_ms, self.lengths)

    def summary(self) -> pd.DataFrame:
        """Return medians `nttft_ms, itl_ms` and 90% intervals, `nttft_lo_ms` and so on, by row."""
        low, high = np.quantile(self.samples_ms, INTERVAL, axis=0)
        frame = latency_frame(np.median(self.samples_ms, axis=0), self.X.index)
        for column, target in enumerate(("nttft", "itl")):
            frame[f"{target}_lo_ms"] = low[:, column]
            frame[f"{target}_hi_ms"] = high[:, column]
        return frame


def latency_frame(
    latencies_ms: np.ndarray | Sequence[Sequence[float]], index: pd.Index
) -> pd.DataFrame:
    """Return `nttft_ms, itl_ms`, not below `FLOOR_MS`, from values of shape (rows, 2)."""
    values = np.asarray(latencies_ms, dtype=float).reshape(len(index), len(TARGETS))
    return pd.DataFrame(np.maximum(values, FLOOR_MS), columns=TARGETS, index=index)
