"""The largest load that a number of replicas bears with a probability."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sextant.decide.sizing import reached_by

_MOST_TRIES = 20
_ENOUGH = 0.008
"""Part of the load between the largest that was borne and the least that was not, at the end."""
_CLOSE = 0.003
"""Part of the load that a try stays away from those two."""
_LESS_EACH = 4.0
_FAR_LESS = 30.0
"""Times less than the first load, below which none is tried."""
_LESS = 0.98
"""Times the load of a try that was borne, where a rounded load is not."""


class BorneLoad(NamedTuple):
    """The largest load that replicas bear."""

    factor: float  #: On the load; 0: none is borne.
    loads: np.ndarray  #: At this factor, in replicas that bear just so much, by draw.


def largest_factor(
    loads_at: Callable[[float], np.ndarray],
    replicas: int,
    probability: float,
    start: float = 1.0,
) -> BorneLoad:
    """Return the largest factor on a load that replicas bear with a probability.

    What replicas bear is nearly in proportion to their number, so a try is where the one before
    says that they are just enough. At a light load that may say little, so tries go on until a
    load that was borne and one that was not are close. The result is rounded down.

    Args:
        loads_at: returns, for a factor, the load in replicas that bear just so much, by draw;
            infinite where no number is enough.
        replicas: how many there are.
        probability: that they bear it.
        start: the first factor that is tried.
    """
    factor = start
    borne = 0.0
    missed = math.inf
    growth = 1 + _CLOSE
    for _ in range(_MOST_TRIES):
        load = reached_by(loads_at(factor), probability)
        if load <= replicas:
            borne = max(borne, factor)
        else:
            missed = min(missed, factor)
        if not borne and not math.isfinite(load):  # nothing is served in too many draws
            if factor < start / _FAR_LESS:
                break
            factor /= _LESS_EACH
            continue
        if missed <= borne * (1 + _ENOUGH):
            break

        estimate = factor * replicas / load
        if math.isinf(missed):
            if estimate <= borne * growth:  # it says little: go further each time
                estimate = borne * growth
                growth = growth**8
        elif not borne * (1 + _CLOSE) <= estimate <= missed / (1 + _CLOSE):
            estimate = math.sqrt(borne * missed) or estimate
        factor = estimate

    borne = rounded_down(borne)
    loads = loads_at(borne) if borne else np.empty(0)
    while borne and reached_by(loads, probability) > replicas:
        borne = rounded_down(borne * _LESS)
        loads = loads_at(borne)
    return BorneLoad(borne, loads)


def rounded_down(value: float) -> float:
    """Return a number of three digits that is not above a value: what is shown is borne, too."""
    if not value:
        return 0.0
    unit = 10.0 ** (np.floor(np.log10(value)) - 2)
    return float(f"{np.floor(value / unit + 1e-9) * unit:.3g}")
