"""Where throughput stops growing with the batch size, and which points no other beats."""

import math
from collections.abc import Sequence

import numpy as np

LEAST_GAIN = 0.1
"""A doubling of the batch size that gains less than this fraction of throughput is past the knee.

In a full batch, latency is batch size over request rate (Little's law), so a doubling that gains
g multiplies latency by 2 / (1 + g): below a gain of 10% it costs at least 82% more latency.
"""


def gains_per_doubling(sizes: Sequence[float], throughputs: Sequence[float]) -> list[float]:
    """Return the relative gain in throughput from each batch size to the next, per doubling.

    Args:
        sizes: batch sizes, ascending.
        throughputs: of each, above 0, in any unit.

    Returns:
        One value less than sizes; a step by a factor of four counts as two equal doublings.
    """
    steps = zip(sizes, sizes[1:], throughputs, throughputs[1:], strict=False)
    return [(after / before) ** (1 / math.log2(b / a)) - 1 for a, b, before, after in steps]


def knee(
    sizes: Sequence[float], throughputs: Sequence[float], least_gain: float = LEAST_GAIN
) -> int | None:
    """Return the place of the smallest size from which no further doubling gains `least_gain`.

    All later steps count, not only the next: one slow run is not a knee.

    Args:
        sizes: batch sizes, ascending.
        throughputs: of each, above 0.
        least_gain: as a fraction, see `LEAST_GAIN`.

    Returns:
        None if the last step still gains as much, or if there is no step.
    """
    gains = gains_per_doubling(sizes, throughputs)
    growing = [place for place, gain in enumerate(gains) if gain >= least_gain]
    place = growing[-1] + 1 if growing else 0
    return place if place < len(gains) else None


def pareto_optimal(throughputs: Sequence[float], latencies: Sequence[float]) -> list[bool]:
    """Tell of each point whether no other has at least its throughput at no more latency.

    Points that are equal in both do not beat each other.
    """
    rates, delays = np.asarray(throughputs, float), np.asarray(latencies, float)
    return [
        not np.any((rates >= rate) & (delays <= delay) & ((rates > rate) | (delays < delay)))
        for rate, delay in zip(rates, delays, strict=True)
    ]
