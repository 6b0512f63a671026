"""Sample weights that make a predictor accurate where the decision is made (LLM-Pilot, eq. 4)."""

import numpy as np
import pandas as pd

from sextant.points.characterizations.points import IDENTIFIERS, TARGETS


def closeness(latency_ms: pd.Series, limit_ms: float, groups: list[pd.Series]) -> pd.Series:
    """Return how close each latency is to the limit: 1 on it, 0 for its group's farthest point.

    Eq. 4 of LLM-Pilot (arXiv 2410.02425), 1 - |l - L| / max |l - L|, the maximum over all user
    counts of one LLM on one GPU profile. Where all points of a group are equally far, be it
    a single point or points exactly on the limit (0/0), none is farther than another and all
    get 1: a weight of 0 would throw away the only measurement of a pair.

    Args:
        latency_ms: finite latencies.
        limit_ms: the limit of this latency.
        groups: series that name each point's group, aligned with `latency_ms`.
    """
    distance = (latency_ms - limit_ms).abs()
    by_group = distance.groupby(groups)
    farthest, nearest = by_group.transform("max"), by_group.transform("min")
    ranked = farthest > nearest
    return (1 - distance / farthest.where(ranked, 1)).where(ranked, 1.0)


def sample_weights(
    X: pd.DataFrame,
    y: pd.DataFrame,
    nttft_limit_ms: float | None,
    itl_limit_ms: float | None,
) -> np.ndarray:
    """Return one weight per row: the mean over both targets of the closeness to their limits.

    The closeness is divided by its sum over the user counts of an LLM on a GPU profile, as
    LLM-Pilot's code does beyond eq. 4: the weights of each such group add up to 1. A target
    without a limit does not count; with no limit at all the rows of a group weigh the same.

    Args:
        X: rows with `llm_id` and `gpu_profile_id`.
        y: finite `nttft_ms` and `itl_ms`, aligned with `X`.
        nttft_limit_ms: limit of the normalised TTFT.
        itl_limit_ms: limit of the ITL.
    """
    groups = [X[name] for name in IDENTIFIERS]
    limits = dict(zip(TARGETS, (nttft_limit_ms, itl_limit_ms), strict=True))
    near = [
        closeness(y[target], limit, groups) for target, limit in limits.items() if limit is not None
    ] or [pd.Series(1.0, X.index)]
    return np.mean([part / part.groupby(groups).transform("sum") for part in near], axis=0)
