"""What measured latencies may be in truth: draws within their intervals, as of a predictor."""

from zlib import crc32

import numpy as np
import pandas as pd

from sextant.decide.decision import sustained
from sextant.decide.recommend import load_served
from sextant.facts.slo import SLO
from sextant.points.characterizations.points import BOUNDS, IDENTIFIERS, LENGTHS, TARGETS
from sextant.predict.draws import Draws

N_DRAWS = 1000
_Z = 1.6448536269514722
"""Half the width of a normal distribution's 90% interval, in standard deviations."""


def measured_draws(latencies: pd.DataFrame, seed: int) -> Draws | None:
    """Return draws of what measured latencies may be; None if no interval is known.

    A latency's logarithm is normal below and above what was measured, each side as wide as the
    interval says. Where few requests leave the upper end open, a point is taken to be no slower
    than the next larger load on the same GPU profile; where there is none, it may be anything.
    Each point has its own random stream, seeded by its name.

    Args:
        latencies: points of `at_percentile`, NaN where nothing succeeded.
        seed: of the draws.
    """
    ends = {name: latencies[BOUNDS[name]].to_numpy(float).T for name in TARGETS}
    if all(np.isnan(each).all() for each in ends.values()):
        return None
    samples_ms = np.empty((N_DRAWS, len(latencies), len(TARGETS)))
    for side, target in enumerate(TARGETS):
        (low, high), values = ends[target], latencies[target].to_numpy(float)
        for row, key in enumerate(latencies[[*IDENTIFIERS, "users"]].itertuples(index=False)):
            name = " ".join(map(str, (*key, target))).encode()
            z = np.random.default_rng([seed, crc32(name)]).standard_normal(N_DRAWS) / _Z
            # Without a lower end what was measured is the best that it may be.
            below = np.log(values[row] / low[row]) if low[row] > 0 else 0.0
            above = np.log(high[row] / values[row]) if high[row] > 0 else np.inf
            samples_ms[:, row, side] = values[row] * np.exp(np.where(z < 0, z * below, z * above))
    _bound_by_larger_loads(samples_ms, latencies)
    return Draws(latencies[[*IDENTIFIERS, "users", *LENGTHS]], samples_ms)


def _bound_by_larger_loads(samples_ms: np.ndarray, latencies: pd.DataFrame) -> None:
    pairs = latencies.reset_index(drop=True).groupby(IDENTIFIERS).indices.values()
    measured_ms = latencies[TARGETS].to_numpy(float)
    for rows in pairs:  # in rising order of users
        for row, larger in zip(rows[-2::-1], rows[:0:-1], strict=True):
            bound = np.maximum(samples_ms[:, larger], measured_ms[row])
            samples_ms[:, row] = np.where(np.isinf(samples_ms[:, row]), bound, samples_ms[:, row])


def with_probabilities(candidates: pd.DataFrame, draws: Draws | None, slo: SLO) -> pd.DataFrame:
    """Return candidates with `probability_met`: that their replicas carry the load in truth.

    It is NaN of a candidate without replicas, and without draws.
    """
    found = pd.Series(np.nan, candidates.index, dtype=float)
    if draws is not None and candidates["replicas"].notna().any():
        served = sustained(draws, slo, load_served)
        for place, row in candidates[candidates["replicas"].notna()].iterrows():
            with np.errstate(divide="ignore"):
                needed = np.ceil(slo.load / served[row["llm_id"], row["gpu_profile_id"]])
            found[place] = (needed <= row["replicas"]).mean()
    return candidates.assign(probability_met=found)
