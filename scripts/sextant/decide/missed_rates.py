"""What was measured of a replica, where its law says something else.

None is offered a rate that broke a limit, though a law that goes through the measurements may still
bear it in some draws. Loads that no law gives back are kept, for the answer to say so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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


class MissedLatency(NamedTuple):
    """A mean latency that was measured, and what the likeliest law gives."""

    metric: str  #: As limits are named, e.g. `ttft`.
    measured_ms: float
    given_ms: float

    @property
    def error(self) -> float:
        """What is given over what was measured, less 1."""
        return self.given_ms / self.measured_ms - 1


@dataclass(frozen=True)
class MissedLoad:
    """A measured load of a replica that its likeliest law does not give back."""

    users: int | None  #: None: requests came at a rate.
    request_rate_rps: float | None  #: None: users waited for their answers.
    decoding: float  #: Requests that decoded at once, by Little's law; NaN: unknown.
    latencies: tuple[MissedLatency, ...]  #: Those that are missed.

    @property
    def factor(self) -> float:
        """The largest factor between what was measured and what is given."""
        ratios = [1 + latency.error for latency in self.latencies]
        return max(max(ratio, 1 / ratio) for ratio in ratios)
