"""A histogram as Prometheus has it: counts by upper edge, and the sum of all values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

_LEAST_PLACE = 0.02
"""Mean place of the values within their buckets, at least: a sum that is rounded may say less."""
_FLAT = 1e-6
_HALVINGS = 60
_STEEPEST = 60.0


class Quantile(NamedTuple):
    """A percentile of a histogram: the value lies between the ends of its bucket."""

    value: float
    """By a straight line within the bucket; its lower end where it has no upper one."""
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts of values by bucket.

    Raises ValueError where the edges do not ascend.
    """

    edges: np.ndarray
    """Upper end of each bucket, (buckets,), the last one infinite; the first begins at 0."""
    counts: np.ndarray
    """Values in each bucket, (buckets,)."""
    total: float
    """Sum of all values."""

    def __post_init__(self) -> None:
        if len(self.edges) != len(self.counts) or not (np.diff(self.edges) > 0).all():
            raise ValueError("edges of a histogram have to ascend, one per count")

    @property
    def n(self) -> float:
        """Number of values."""
        return float(self.counts.sum())

    @property
    def mean(self) -> float:
        """Mean of the values, exact; NaN without any."""
        return self.total / self.n if self.n else math.nan

    def quantile(self, share: float) -> Quantile:
        """Return the value that this share of the values does not exceed; NaN without any."""
        if not self.n:
            return Quantile(math.nan, math.nan, math.nan)
        reached = np.cumsum(self.counts)
        bucket = int(np.searchsorted(reached, share * self.n - 1e-9))
        bucket = min(bucket, len(self.counts) - 1)
        low = float(self.edges[bucket - 1]) if bucket else 0.0
        high = float(self.edges[bucket])
        if not math.isfinite(high):
            return Quantile(low, low, high)
        before = float(reached[bucket - 1]) if bucket else 0.0
        place = (share * self.n - before) / max(float(self.counts[bucket]), 1e-12)
        return Quantile(low + min(max(place, 0.0), 1.0) * (high - low), low, high)

    def scaled(self, factor: float) -> Self:
        """Return the histogram of the values times a factor."""
        return type(self)(self.edges * factor, self.counts, self.total * factor)

    def ranges(self) -> tuple[np.ndarray, np.ndarray]:
        """Return both ends of each bucket, (buckets,) each, the last one made finite.

        The last bucket is taken to reach to twice its beginning, or as far as the sum needs.
        """
        low = np.append(0.0, self.edges[:-1])
        high = self.edges.copy()
        above = float(self.counts[-1])
        high[-1] = max(2 * low[-1], 1.0)
        if above and math.isfinite(self.total):
            left = self.total - float((self.counts[:-1] * (low[:-1] + high[:-1]) / 2).sum())
            high[-1] = max(high[-1], 2 * left / above - low[-1])
        return low, high

    def place(self) -> float:
        """Return where values lie within their buckets on average, from 0 to 1, by their sum."""
        low, high = self.ranges()
        width = float((self.counts * (high - low)).sum())
        if not width or not math.isfinite(self.total):
            return 0.5
        place = (self.total - float((self.counts * low).sum())) / width
        return min(max(place, _LEAST_PLACE), 1 - _LEAST_PLACE)

    def to_plain(self) -> list[Any]:
        """Return it as JSON: finite edges, counts and sum."""
        total = self.total if math.isfinite(self.total) else None
        return [self.edges[:-1].tolist(), self.counts.tolist(), total]

    @classmethod
    def of_plain(cls, plain: Sequence[Any]) -> Self:
        """Return what `to_plain` gave."""
        edges, counts, total = plain
        return cls(
            np.array([*edges, math.inf]),
            np.array(counts, float),
            math.nan if total is None else float(total),
        )


def merged(histograms: Sequence[Histogram]) -> Histogram | None:
    """Return histograms as one, by the edges that all of them have; None without any."""
    filled = [histogram for histogram in histograms if histogram.n]
    if not filled:
        return None
    shared = filled[0].edges
    for histogram in filled[1:]:
        shared = np.intersect1d(shared, histogram.edges)
    counts = np.zeros(len(shared))
    for histogram in filled:
        reached = np.cumsum(histogram.counts)[np.searchsorted(histogram.edges, shared)]
        counts += np.diff(reached, prepend=0.0)
    return Histogram(shared, counts, sum(histogram.total for histogram in filled))


def draw_values(
    low: np.ndarray, high: np.ndarray, place: float, random: np.random.Generator
) -> np.ndarray:
    """Return a value in each range, (n,), whose mean place in the ranges is `place`.

    Within a range the density is an exponential, which leaves the rest open. Values of the same
    range are spread over it in equal shares, so that their sum is near the histogram's.
    """
    _, which, n_alike = np.unique(low, return_inverse=True, return_counts=True)
    order = np.lexsort((random.random(len(low)), which))
    begins = np.cumsum(n_alike) - n_alike
    share = np.empty(len(low))
    share[order] = np.arange(len(low)) - begins[which[order]]
    uniform = (share + random.random(len(low))) / n_alike[which]
    steepness = _steepness(place)
    if abs(steepness) < _FLAT:
        places = uniform
    else:
        places = np.log1p(uniform * np.expm1(steepness)) / steepness
    return low + places * (high - low)


def _steepness(place: float) -> float:
    """Return the exponent of a density on 0 to 1 that has this mean."""
    low = -_STEEPEST
    high = _STEEPEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        mean = 0.5 if abs(middle) < _FLAT else 1 / -math.expm1(-middle) - 1 / middle
        low, high = (middle, high) if mean < place else (low, middle)
    return (low + high) / 2
