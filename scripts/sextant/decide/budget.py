"""The largest load that a number of replicas bears with a probability."""

from collections.abc import Callable

import numpy as np

from sextant.decide.sizing import reached_by

_MOST_TRIES = 12
_ENOUGH = 0.002
"""Part of the load by which a further try would change it, below which none is made."""
_BELOW = 1e-4
"""Part of the load that a try stays below the estimate, so that it is borne."""


def largest_factor(
    loads_at: Callable[[float], np.ndarray], replicas: int, probability: float
) -> float:
    """Return the largest factor on a load that replicas bear with a probability; 0: none is.

    What replicas bear is nearly in proportion to their number, so each try starts where the one
    before says that they are just enough. The largest try that was borne is returned, rounded down.

    Args:
        loads_at: returns, for a factor, the load in replicas that bear just so much, by draw;
            infinite where no number is enough.
        replicas: how many there are.
        probability: that they bear it.
    """
    factor = 1.0
    borne = 0.0
    for _ in range(_MOST_TRIES):
        load = reached_by(loads_at(factor), probability)
        if not np.isfinite(load):
            break
        if load <= replicas:
            borne = max(borne, factor)
        step = replicas / load
        if borne and abs(np.log(step)) < _ENOUGH:
            break
        factor *= step * (1 - _BELOW)
    return rounded_down(borne)


def rounded_down(value: float) -> float:
    """Return a number of three digits that is not above a value: what is shown is borne, too."""
    if not value:
        return 0.0
    unit = 10.0 ** (np.floor(np.log10(value)) - 2)
    return float(f"{np.floor(value / unit + 1e-9) * unit:.3g}")
