"""Predicted latencies: their frame, joint draws, calibration, and the base of all predictors."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from sextant.facts.gpu import GPUProfile
from sextant.facts.slo import SLO
from sextant.points.frame import FLOOR_MS, LENGTHS, TARGETS, Facts, is_refused, limited

if TYPE_CHECKING:
    from sextant.predict.tuning import Settings

INTERVAL = (0.05, 0.95)
JOULES = ["energy_j_per_token", "energy_lo_j_per_token", "energy_hi_j_per_token"]
"""Median and 90% interval of the joules that an output token takes, of all devices."""


class Draws(NamedTuple):
    """Joint draws of what the latencies of some rows may be."""

    X: pd.DataFrame
    """`llm_id, gpu_profile_id, users`, and the mean lengths of requests."""
    samples_ms: np.ndarray
    """nTTFT and ITL, shape (draws, rows, 2)."""

    @property
    def lengths(self) -> np.ndarray:
        """Mean input and output tokens of a request, shape (rows, 2)."""
        return self.X.reindex(columns=LENGTHS).to_numpy(float)

    def of(self, rows: np.ndarray) -> "Draws":
        """Return those of some rows."""
        return Draws(self.X[rows], self.samples_ms[:, rows])

    def is_met(self, slo: SLO) -> np.ndarray:
        """Return whether each row meets all limits in each draw, shape (draws, rows)."""
        return slo.meets(self.samples_ms, self.lengths)

    def carried(self, slo: SLO) -> np.ndarray:
        """Return the load of each row, in the SLO's unit, shape (draws, rows) or (rows,)."""
        return slo.carried(self.X["users"].to_numpy(), self.samples_ms, self.lengths)

    def usual_load(self, slo: SLO) -> np.ndarray:
        """Return the load of each row at median latencies, shape (rows,)."""
        medians_ms = np.median(self.samples_ms, axis=0)
        return slo.carried(self.X["users"].to_numpy(), medians_ms, self.lengths)

    def summary(self) -> pd.DataFrame:
        """Return medians `nttft_ms, itl_ms` and the bounds of their 90% intervals.

        The bounds are `nttft_lo_ms, nttft_hi_ms, itl_lo_ms, itl_hi_ms`; one row per row of `X`.
        """
        low, high = np.quantile(self.samples_ms, INTERVAL, axis=0)
        frame = latency_frame(np.median(self.samples_ms, axis=0), self.X.index)
        for column, target in enumerate(("nttft", "itl")):
            frame[f"{target}_lo_ms"] = low[:, column]
            frame[f"{target}_hi_ms"] = high[:, column]
        return frame


def latency_frame(
    latencies_ms: np.ndarray | Sequence[Sequence[float]], index: pd.Index
) -> pd.DataFrame:
    """Return `nttft_ms, itl_ms`, not below `FLOOR_MS`, from values of shape (rows, 2)."""
    values = np.asarray(latencies_ms, dtype=float).reshape(len(index), len(TARGETS))
    return pd.DataFrame(np.maximum(values, FLOOR_MS), columns=TARGETS, index=index)


class LatencyPredictor:
    """Base of the predictors; `sextant.predict.registry` says what each attribute means."""

    depends_on: tuple[str, ...] = ("percentiles", "first_token")
    min_training_llms = 2
    uses_references = False

    def __init__(
        self,
        slo: SLO,
        profiles: Mapping[str, GPUProfile],
        seed: int,
        settings: "Settings | None" = None,
    ) -> None:
        self.slo, self.profiles, self.seed, self.settings = slo, profiles, seed, settings

    def design(self, keys: pd.DataFrame, facts: Facts) -> pd.DataFrame:
        """Return the design matrix of features (`features.design_matrix`)."""
        from sextant.predict.features import design_matrix  # laws are given facts, not features

        return design_matrix(keys, facts.features)


_REACH = np.log(4.0)
"""A measurement counts for 1/e as much at a fourth, or at four times, of its users."""
MEASUREMENT_NOISE = 0.05
"""Standard deviation of the logarithm of a measurement."""
_NUGGET = 1e-3
"""Added to the diagonal of the kriging matrix, so that repeated loads leave it invertible."""
BROKEN_MS = 1e12
"""Latency of a load that breaks every limit."""
_FAR = 1.2


class Contradiction(NamedTuple):
    """A measurement outside of the 90% interval of the law."""

    gpu_profile_id: str
    users: int
    latency: str
    measured_ms: float
    predicted_ms: float
    low_ms: float
    high_ms: float

    @property
    def log_ratio(self) -> float:
        """How far it is from the median, as a logarithm."""
        return abs(float(np.log(self.measured_ms / self.predicted_ms)))


class Calibration(NamedTuple):
    """Points of the LLM, and the law's draws at them."""

    points: pd.DataFrame
    """`gpu_profile_id, users, nttft_ms, itl_ms`, at the asked lengths; NaN: not measured. With what
    `points.frame.judged` adds."""
    samples_ms: np.ndarray
    """Shape (draws, points, 2)."""
    seed: int

    def corrected(self, X: pd.DataFrame, samples_ms: np.ndarray) -> np.ndarray:
        """Return draws that go through what was measured on the same GPU profile.

        Each draw is moved by what it misses there (kriging over the logarithm of the users). Away
        from measurements it moves by an unknown share of what they differ from the law: what
        contradicts the law makes the interval wider.

        Args:
            X: `gpu_profile_id, users`, one row per load.
            samples_ms: draws of the law, shape (draws, rows, 2).
        """
        samples_ms, random = samples_ms.copy(), np.random.default_rng(self.seed)
        missed = np.log(self.points[TARGETS].to_numpy(float)) - np.log(self.samples_ms)
        missed += random.normal(0, MEASUREMENT_NOISE, missed.shape)
        share = random.uniform(0, 1, (len(missed), 1))
        users = np.log(X["users"].to_numpy(float))
        for side, target in enumerate(TARGETS):
            known = self.points[self.points[target].notna()]
            for profile_id, part in known.groupby("gpu_profile_id"):
                rows = np.flatnonzero(X["gpu_profile_id"] == profile_id)
                at = np.log(part["users"].to_numpy(float))
                among = _nearness(at, at) + _NUGGET * np.eye(len(at))
                near = np.linalg.solve(among, _nearness(users[rows], at).T)
                unknown = np.clip(1 - near.sum(axis=0), 0, 1)
                own = missed[:, part.index, side]
                moved = own @ near + unknown * share * np.median(own)
                samples_ms[:, rows, side] *= np.exp(moved)
        return samples_ms

    def capped(self, X: pd.DataFrame, samples_ms: np.ndarray, slo: SLO) -> np.ndarray:
        """Return draws in which no load is met that is at or above one measured to break a limit,
        or to have more failures than are allowed.

        Arguments as of `corrected`.
        """
        of_limits = limited(self.points, slo)
        over = [values > slo.limits[name].limit_ms for name, values in of_limits.items()]
        is_broken = np.logical_or.reduce([is_refused(self.points, slo), *over])
        broken = self.points[is_broken].groupby("gpu_profile_id")["users"].min()
        above = (X["users"] >= X["gpu_profile_id"].map(broken).fillna(np.inf)).to_numpy()
        return np.where(above[:, None], BROKEN_MS, samples_ms)

    def contradictions(self) -> list[Contradiction]:
        """Return the measurements far from the law, the farthest first.

        Those lie outside of its 90% interval, and by more than a fifth from its median.
        """
        low, middle, high = np.quantile(self.samples_ms, [0.05, 0.5, 0.95], axis=0)
        found = [
            Contradiction(
                row["gpu_profile_id"],
                int(row["users"]),
                target.removesuffix("_ms"),
                float(row[target]),
                *(float(bound[place, side]) for bound in (middle, low, high)),
            )
            for place, row in enumerate(self.points.to_dict("records"))
            for side, target in enumerate(TARGETS)
            if row[target] < low[place, side] or row[target] > high[place, side]
        ]
        far = [each for each in found if each.log_ratio > np.log(_FAR)]
        return sorted(far, key=lambda each: -each.log_ratio)


def _nearness(users: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return how much a measurement at other users counts, 0 to 1; both are logarithms."""
    return np.exp(-np.abs(users[:, None] - others[None, :]) / _REACH)
