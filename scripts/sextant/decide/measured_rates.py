"""What requests that came at measured rates say of the most that a replica bears.

A rate that was served within the limits, as all lower ones were, is borne. The lowest rate that
missed a limit, or at which too many requests failed, bounds it from above.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sextant.decide.sizing import curves
from sextant.facts.slo import ALIKE, METRICS, SLO
from sextant.pages.words import number, per_second, percent
from sextant.points.frame import IDENTIFIERS, LENGTHS, SERVING, is_refused, judged, limited


@dataclass(frozen=True)
class RateBounds:
    """How many requests a second a replica on a GPU profile bears within the limits."""

    gpu_profile_id: str
    served_rps: float | None
    """The highest measured rate that is borne; None: not even the lowest one."""
    missed_rps: float | None
    """The next measured rate, which is not; None: none was tried."""
    missed_by: str | None = None
    """What it missed, e.g. `TTFT 1,500 ms`, or how many requests failed."""

    @property
    def words(self) -> str:
        """What was measured, as a sentence."""
        if self.missed_rps is None:
            most = f"No more than {per_second(self.served_rps or 0.0)} were tried"
            return f"{most} on {self.gpu_profile_id}: a replica may bear more."
        missed = f"{per_second(self.missed_rps)} missed the limits ({self.missed_by})"
        if self.served_rps is None:
            return f"On {self.gpu_profile_id} {missed}: a replica bears less."
        between = f"between {number(self.served_rps)} and {per_second(self.missed_rps)}"
        return f"On {self.gpu_profile_id} {missed}: a replica bears {between}."


def rate_points(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points of requests that came at a rate, whatever was answered."""
    return points[points["users"].isna() & (points["request_rate_rps"] > 0)]


def measured_bounds(points: pd.DataFrame, slo: SLO) -> list[RateBounds]:
    """Return what measured rates of one LLM say of each GPU profile.

    A GPU profile whose points are of several servers, or of requests of several lengths, has none.
    """
    if slo.request_rate_rps is None:
        return []
    parts = [
        of_profile
        for _, of_profile in rate_points(points).groupby("gpu_profile_id")
        if is_one_setup(of_profile)
    ]
    return rate_bounds(rate_latencies(pd.concat(parts), slo), slo) if parts else []


def is_one_setup(points: pd.DataFrame) -> bool:
    """Return whether points are of one kind of server, and of requests of one length."""
    lengths = points[LENGTHS]
    is_alike = not (lengths.max() > ALIKE * lengths.min()).any()
    return is_alike and bool((points[SERVING].nunique(dropna=False) == 1).all())


def rate_latencies(points: pd.DataFrame, slo: SLO) -> pd.DataFrame:
    """Return the latencies (`judged`) of points at rates, by rising rate, the worst run first.

    `users` are those in flight, and do not fall with the rate.
    """
    ranked = worst_first(judged(points, slo), slo, "request_rate_rps")
    users = ranked.groupby(IDENTIFIERS)["users"].transform(lambda values: values.ffill().cummax())
    return ranked.assign(users=users.fillna(1).astype("int64"))


def worst_first(latencies: pd.DataFrame, slo: SLO, load: str) -> pd.DataFrame:
    """Return latencies (`judged`) by rising load, a column.

    Of a load that was measured several times the run that is nearest to missing the limits comes
    first, so that it decides.
    """
    with np.errstate(invalid="ignore"):
        ratios = [
            values / slo.limits[metric].limit_ms
            for metric, values in limited(latencies, slo).items()
        ]
    worst = np.max(ratios, axis=0)
    worst = np.where(np.isnan(worst) | is_refused(latencies, slo), np.inf, worst)
    ranked = latencies.assign(worst=-worst)
    order = [*IDENTIFIERS, load, "worst"]
    return ranked.sort_values(order, ignore_index=True).drop(columns="worst")


def rate_bounds(latencies: pd.DataFrame, slo: SLO) -> list[RateBounds]:
    """Return what each GPU profile bears, by `rate_latencies` of one LLM."""
    bounds = []
    for (_, profile_id), curve in curves(latencies, slo).items():
        n_met = int(np.logical_and.accumulate(curve.is_met).sum())
        served = float(curve.carried[:n_met].max(initial=0)) or None
        missed = missed_by = None
        if n_met < len(curve.carried):
            missed = float(curve.carried[n_met])
            missed_by = _missed_by(slo, curve.failed_share[n_met], curve.latencies_ms, n_met)
        bounds.append(RateBounds(profile_id, served, missed, missed_by))
    return bounds


def _missed_by(
    slo: SLO, failed_share: float, latencies_ms: Mapping[str, np.ndarray], row: int
) -> str:
    if failed_share > slo.allowed_failures:
        return f"{percent(failed_share)} of the requests failed"
    missed = []
    for metric, values in latencies_ms.items():
        value = float(values[row])
        if np.isnan(value):
            missed.append(f"{METRICS[metric]} is not known")
        elif value > slo.limits[metric].limit_ms:
            missed.append(f"{METRICS[metric]} {number(value)} ms")
    return ", ".join(missed)
