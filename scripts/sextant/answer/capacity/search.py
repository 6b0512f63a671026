"""The fewest replicas and the largest rate that keep a target, by simulation.

More replicas keep a target better in the mean. One simulation is noisy, so a count may meet it by
luck where a larger one misses it: what a search returns meets it, and the next larger count does.
"""

import math
from collections.abc import Callable
from functools import cache

MOST_REPLICAS = 4096
_RATE_STEP = 2.0
_RATE_PRECISION = 1.02
_MOST_DOUBLINGS = 24


def fewest(meets: Callable[[int], bool], start: int, most: int = MOST_REPLICAS) -> int | None:
    """Return the fewest replicas that meet a target, None if `most` do not.

    From `start` the steps double until the answer lies between a count that misses and one that
    meets; bisection finds it. A count that meets while the next larger one misses is not taken.
    """
    known = cache(meets)
    low, high = _bracket(known, min(max(start, 1), most), most)
    while high is not None:
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if known(middle) else (middle, high)
        if high == most or known(high + 1):
            return high
        low, high = _bracket(known, min(high + 2, most), most, least=high + 1)
    return None


def _bracket(
    meets: Callable[[int], bool], start: int, most: int, least: int = 0
) -> tuple[int, int | None]:
    """Return a count that misses, or `least`, and a larger one that meets; None if none does."""
    step = 1
    if meets(start):
        high = start
        while (low := max(high - step, least)) > least and meets(low):
            high, step = low, 2 * step
        return low, high
    low = start
    while low < most:
        high = min(low + step, most)
        if meets(high):
            return low, high
        low, step = high, 2 * step
    return low, None


def largest_rate(meets: Callable[[float], bool], start_rps: float) -> float | None:
    """Return the largest rate that meets a target, to 2%; None if no rate does, infinite if all do.

    Doubling or halving from `start_rps` finds two rates between which it lies; then their
    geometric mean is tried.
    """
    low, high = None, None
    rate = start_rps
    for _ in range(_MOST_DOUBLINGS):
        if meets(rate):
            low, rate = rate, rate * _RATE_STEP
        else:
            high, rate = rate, rate / _RATE_STEP
        if low is not None and high is not None:
            break
    if low is None:
        return None
    if high is None:
        return math.inf
    while high / low > _RATE_PRECISION:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low
