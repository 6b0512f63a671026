"""What was measured of a replica at rates of requests: none is offered a rate that broke a limit.

A law that goes through the measurements may still bear such a rate in some draws.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

_BELOW = 1 - 1e-9
"""A replica is offered less than the rate that broke a limit."""


@dataclass(frozen=True, eq=False)
class RateMeasurements:
    """Latencies of requests that came to a replica at some rates; arrays have a value per rate."""

    rates_rps: np.ndarray = field(default_factory=lambda: np.empty(0))
    latencies_ms: Mapping[str, np.ndarray] = field(default_factory=dict)
    """By metric, as limits are; NaN: not measured."""

    def most_rps(self, metric: str, limit_ms: float) -> float:
        """Return the rate below the lowest one that broke a limit; infinite: none did."""
        if not len(self.rates_rps):
            return np.inf
        is_broken = self.latencies_ms[metric] > limit_ms
        return float(np.min(self.rates_rps, initial=np.inf, where=is_broken) * _BELOW)

    def most_rps_of(
        self, metrics: Sequence[str], limits_ms: Sequence[Sequence[float]] | np.ndarray
    ) -> list[float]:
        """Return `most_rps` of several limits, which stand by metric.

        Rows of limits beyond those of the metrics ask for several limits at once: no measurement
        is of these.
        """
        of_metrics = zip(metrics, limits_ms, strict=False)
        most_rps = [self.most_rps(name, limit_ms) for name, row in of_metrics for limit_ms in row]
        n_more = sum(map(len, limits_ms[len(metrics) :]))
        return most_rps + [np.inf] * n_more


UNMEASURED = RateMeasurements()
