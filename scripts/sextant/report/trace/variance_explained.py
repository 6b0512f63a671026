"""How much of what varies a grouping explains, and whether chance would do as much."""

from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy


class Explained(NamedTuple):
    """What groups explain of the variance of values, as in a one-way analysis of variance."""

    fraction: float
    """Share of the variance that lies between groups, less what chance would put there
    (adjusted R²); 0 if that is below 0."""
    p_value: float
    """Of the F test that all groups have one mean."""


def explained(values: np.ndarray, groups: np.ndarray) -> Explained | None:
    """Return what groups, a label of each value, explain of values, shape (n,); None where values
    are all equal, or no more than groups.
    """
    n, n_groups = len(values), len(np.unique(groups))
    total = float(((values - np.mean(values)) ** 2).sum()) if n else 0.0
    if n <= n_groups or total == 0:
        return None
    means = pd.Series(values).groupby(np.asarray(groups)).transform("mean").to_numpy()
    within = float(((values - means) ** 2).sum()) / (n - n_groups)
    fraction = max(1 - within / (total / (n - 1)), 0.0)
    if n_groups == 1:
        return Explained(fraction, 1.0)
    between = float(((means - np.mean(values)) ** 2).sum()) / (n_groups - 1)
    ratio = between / within if within > 0 else np.inf
    return Explained(fraction, float(scipy.special.fdtrc(n_groups - 1, n - n_groups, ratio)))
