"""Calibration: draws of a law, moved by what was measured of the LLM itself."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from sextant.facts.slo import SLO
from sextant.points.frame import TARGETS, is_refused, limited
from sextant.predict.predictor import INTERVAL

_REACH = np.log(4.0)
"""A measurement counts for 1/e as much at a fourth, or at four times, of its users."""
MEASUREMENT_NOISE = 0.05
"""Standard deviation of the logarithm of a measurement."""
_BEYOND_REACH = np.log(16.0)
"""The same of what lies beyond the law."""
_NUGGET = 1e-3
"""Added to the diagonal of the kriging matrix, so that repeated loads leave it invertible."""
BROKEN_MS = 1e12
"""Latency of a load that breaks every limit."""
_FAR = np.log(1.2)


class Contradiction(NamedTuple):
    """A measurement outside of the law's 90% interval."""

    gpu_profile_id: str
    users: int
    latency: str  #: `nttft` or `itl`.
    measured_ms: float
    predicted_ms: float  #: The law's median.
    low_ms: float
    high_ms: float


class Calibration(NamedTuple):
    """Points of the LLM, and the law's draws at them."""

    points: pd.DataFrame
    """`gpu_profile_id, users, nttft_ms, itl_ms`, at the asked lengths; NaN: not measured. With the
    columns that `points.frame.judged` adds."""
    samples_ms: np.ndarray  #: Shape (draws, points, 2).
    seed: int
    untold_ms: np.ndarray | None = None
    """The law's draws before the measurements joined its fit, (draws, points, 2); None: it saw them
    as all others, or not at all."""

    @property
    def before_ms(self) -> np.ndarray:
        """The law's draws that the measurements are compared with."""
        return self.samples_ms if self.untold_ms is None else self.untold_ms

    def corrected(self, X: pd.DataFrame, samples_ms: np.ndarray) -> np.ndarray:
        """Return draws that go through the measurements on the same GPU profile.

        Each draw of the law, (draws, rows of `X`, 2), is moved by its own errors there (kriging
        over the logarithm of the users). Away from measurements it moves by an unknown share of the
        median error: measurements that contradict the law make the interval wider. What lies beyond
        the law (`beyond_law`) moves loads farther away, as it is the server that the law does not
        know, not one load of it; and other GPU profiles by the unknown share (`moved_elsewhere`).
        """
        samples_ms = samples_ms.copy()
        random = np.random.default_rng(self.seed)
        missed = np.log(self.points[TARGETS].to_numpy(float)) - np.log(self.samples_ms)
        missed += random.normal(0, MEASUREMENT_NOISE, missed.shape)
        share = random.uniform(0, 1, (len(missed), 1))
        measured_ms = self.points[TARGETS].to_numpy(float)
        beyond = beyond_law(measured_ms, self.samples_ms)
        beyond_before = beyond_law(measured_ms, self.before_ms)
        log_users = np.log(X["users"].to_numpy(float))
        for side, target in enumerate(TARGETS):
            measured = self.points[self.points[target].notna()]
            if len(measured):
                is_other = ~X["gpu_profile_id"].isin(measured["gpu_profile_id"]).to_numpy()
                before = float(np.median(beyond_before[measured.index, side]))
                left = float(np.median(beyond[measured.index, side]))
                moved = moved_elsewhere(before, left, share)
                samples_ms[:, is_other, side] *= np.exp(moved)
            for profile_id, part in measured.groupby("gpu_profile_id"):
                rows = np.flatnonzero(X["gpu_profile_id"] == profile_id)
                at = np.log(part["users"].to_numpy(float))
                excess = beyond[part.index, side]
                errors = missed[:, part.index, side] - excess
                moved = _moved(log_users[rows], at, errors, share, _REACH)
                moved += _moved(log_users[rows], at, excess, share, _BEYOND_REACH)
                samples_ms[:, rows, side] *= np.exp(moved)
        return samples_ms

    def capped(self, X: pd.DataFrame, samples_ms: np.ndarray, slo: SLO) -> np.ndarray:
        """Return draws in which no load is met at or above one measured to break the SLO."""
        broken_users = self.broken(slo).groupby("gpu_profile_id")["users"].min()
        least_broken = X["gpu_profile_id"].map(broken_users).fillna(np.inf)
        is_above = (X["users"] >= least_broken).to_numpy()
        return np.where(is_above[:, None], BROKEN_MS, samples_ms)

    def broken(self, slo: SLO) -> pd.DataFrame:
        """Return the points that were measured to break the SLO."""
        of_limits = limited(self.points, slo)
        over = [values > slo.limits[name].limit_ms for name, values in of_limits.items()]
        return self.points[np.logical_or.reduce([is_refused(self.points, slo), *over])]

    def contradictions(self) -> list[Contradiction]:
        """Return the measurements outside of the law's 90% interval, the farthest first.

        Measurements within a fifth of the law's median are left out.
        """
        bounds = np.quantile(self.before_ms, [0.5, *INTERVAL], axis=0)
        ranked = []
        for number, row in enumerate(self.points.to_dict("records")):
            for side, target in enumerate(TARGETS):
                median, low, high = map(float, bounds[:, number, side])
                measured = float(row[target])
                distance = abs(np.log(measured / median))
                if low <= measured <= high or not distance > _FAR:  # NaN: not measured
                    continue
                contradiction = Contradiction(
                    gpu_profile_id=row["gpu_profile_id"],
                    users=int(row["users"]),
                    latency=target.removesuffix("_ms"),
                    measured_ms=measured,
                    predicted_ms=median,
                    low_ms=low,
                    high_ms=high,
                )
                ranked.append((distance, contradiction))
        return [it for _, it in sorted(ranked, key=lambda pair: -pair[0])]


def beyond_law(measured_ms: np.ndarray, samples_ms: np.ndarray) -> np.ndarray:
    """Return how far measurements are outside of a law's 90% interval, in logarithms.

    It is 0 inside, and where nothing was measured.

    Args:
        measured_ms: of any shape; NaN: not measured.
        samples_ms: the law's draws of them, (draws, ...).
    """
    low, high = np.log(np.quantile(samples_ms, INTERVAL, axis=0))
    logs = np.log(measured_ms)
    return np.nan_to_num(logs - np.clip(logs, low, high), posinf=0.0, neginf=0.0)


def moved_elsewhere(before: float, left: float, share: np.ndarray) -> np.ndarray:
    """Return by how much draws move on GPU profiles that were not measured, in logarithms.

    Whether the LLM or one server of it is off the law is not known: other profiles are by a share
    of what lies beyond the law. A fit that believes the measurements has moved them by all of it.

    Args:
        before: what lies beyond the law, before the measurements joined its fit.
        left: the same after they did.
        share: from 0, the server alone, to 1, the LLM.
    """
    return share * before - (before - left)


def _moved(
    log_users: np.ndarray, at: np.ndarray, errors: np.ndarray, share: np.ndarray, reach: float
) -> np.ndarray:
    """Return by how much loads are moved, in logarithms, (draws, loads).

    Args:
        log_users: of the loads.
        at: logarithms of the measured users, (points,).
        errors: at the measured users, (draws, points), or (points,) in all draws.
        share: of the median error far away, (draws, 1).
        reach: logarithm of the users at which an error counts for 1/e.
    """
    among = _nearness(at, at, reach) + _NUGGET * np.eye(len(at))
    near = np.linalg.solve(among, _nearness(log_users, at, reach).T)
    far = np.clip(1 - near.sum(axis=0), 0, 1)
    return np.asarray(errors @ near + far * share * np.median(errors))


def _nearness(log_users: np.ndarray, others: np.ndarray, reach: float) -> np.ndarray:
    """Return the correlation of errors at two loads, (loads, other loads)."""
    return np.exp(-np.abs(log_users[:, None] - others[None, :]) / reach)
