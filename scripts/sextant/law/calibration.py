"""Calibration: draws of a law, moved by what was measured of the LLM itself."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.facts.slo import SLO
from sextant.points.frame import TARGETS, is_refused, limited
from sextant.predict.draws import INTERVAL

_REACH = np.log(4.0)
"""A measurement counts for 1/e as much at a fourth, or at four times, of its users."""
MEASUREMENT_NOISE = 0.05
"""Standard deviation of the logarithm of a measurement."""
_NUGGET = 1e-3
"""Added to the diagonal of the kriging matrix, so that repeated loads leave it invertible."""
BROKEN_MS = 1e12
"""Latency of a load that breaks every limit."""
_FAR = np.log(1.2)


class Calibration(NamedTuple):
    """Points of the LLM, and the law's draws at them."""

    points: pd.DataFrame
    """`gpu_profile_id, users, nttft_ms, itl_ms`, at the asked lengths; NaN: not measured. With what
    `points.frame.judged` adds."""
    samples_ms: np.ndarray  #: Shape (draws, points, 2).
    seed: int

    def corrected(self, X: pd.DataFrame, samples_ms: np.ndarray) -> np.ndarray:
        """Return draws that go through what was measured on the same GPU profile.

        Each draw of the law, (draws, rows of `X`, 2), is moved by what it misses there (kriging
        over the logarithm of the users). Away from measurements it moves by an unknown share of
        what they differ from the law: what contradicts the law makes the interval wider.
        """
        samples_ms, random = samples_ms.copy(), np.random.default_rng(self.seed)
        missed = np.log(self.points[TARGETS].to_numpy(float)) - np.log(self.samples_ms)
        missed += random.normal(0, MEASUREMENT_NOISE, missed.shape)
        share = random.uniform(0, 1, (len(missed), 1))
        users = np.log(X["users"].to_numpy(float))

        def nearness(users: np.ndarray, others: np.ndarray) -> np.ndarray:
            return np.exp(-np.abs(users[:, None] - others[None, :]) / _REACH)

        for side, target in enumerate(TARGETS):
            known = self.points[self.points[target].notna()]
            for profile_id, part in known.groupby("gpu_profile_id"):
                rows = np.flatnonzero(X["gpu_profile_id"] == profile_id)
                at = np.log(part["users"].to_numpy(float))
                among = nearness(at, at) + _NUGGET * np.eye(len(at))
                near = np.linalg.solve(among, nearness(users[rows], at).T)
                unknown = np.clip(1 - near.sum(axis=0), 0, 1)
                own = missed[:, part.index, side]
                moved = own @ near + unknown * share * np.median(own)
                samples_ms[:, rows, side] *= np.exp(moved)
        return samples_ms

    def capped(self, X: pd.DataFrame, samples_ms: np.ndarray, slo: SLO) -> np.ndarray:
        """Return draws in which no load is met at or above one measured to break the SLO."""
        of_limits = limited(self.points, slo)
        over = [values > slo.limits[name].limit_ms for name, values in of_limits.items()]
        is_broken = np.logical_or.reduce([is_refused(self.points, slo), *over])
        broken = self.points[is_broken].groupby("gpu_profile_id")["users"].min()
        above = (X["users"] >= X["gpu_profile_id"].map(broken).fillna(np.inf)).to_numpy()
        return np.where(above[:, None], BROKEN_MS, samples_ms)

    def contradictions(self) -> list[dict[str, Any]]:
        """Return the measurements outside of the law's 90% interval, by more than a fifth from its
        median, the farthest first.

        Each has `gpu_profile_id, users, latency, measured_ms, predicted_ms, low_ms, high_ms`.
        """
        bounds, found = np.quantile(self.samples_ms, [0.5, *INTERVAL], axis=0), []
        for place, row in enumerate(self.points.to_dict("records")):
            for side, target in enumerate(TARGETS):
                middle, low, high = map(float, bounds[:, place, side])
                measured = float(row[target])
                far = abs(np.log(measured / middle))
                if not low <= measured <= high and far > _FAR:  # NaN, not measured, is neither
                    about = {"gpu_profile_id": row["gpu_profile_id"], "users": int(row["users"])}
                    about |= {"latency": target.removesuffix("_ms"), "measured_ms": measured}
                    about |= {"predicted_ms": middle, "low_ms": low, "high_ms": high}
                    found.append((far, about))
        return [about for _, about in sorted(found, key=lambda each: -each[0])]
