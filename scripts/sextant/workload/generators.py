"""Arrival processes: when requests come, drawn from a seed. No gap is rescaled or cut.

A frozen dataclass for each process; its fields are checked when it is made. `trace_arrivals` has
those that repeat a trace.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from sextant.base.errors import InputError
from sextant.workload.generator_limits import (
    check_positive,
    check_reached,
    check_size,
    check_windows,
    cut,
    extent,
)

if TYPE_CHECKING:
    import pandas as pd

    from sextant.workload.sampling import Seed

_BLOCK = 1 << 14


@dataclass(frozen=True)
class Arrivals(ABC):
    """An arrival process."""

    kind: ClassVar[str]
    ends_itself: ClassVar[bool] = False
    """Whether it has an end without `n` and `duration_s`."""

    def times(
        self, *, n: int | None = None, duration_s: float | None = None, seed: Seed = 0
    ) -> np.ndarray:
        """Return when requests arrive: float64 seconds from 0, ascending.

        Args:
            n: most requests.
            duration_s: end of the arrivals; the first of the two ends them.
            seed: of the draws.

        Raises:
            InputError: no end, or more requests than anybody means to draw.
        """
        end_s = np.inf if duration_s is None and self.ends_itself else duration_s
        most, end_s = extent(n, end_s, self._rate_rps)
        return cut(self._draw(most, end_s, seed), most, end_s)

    @property
    def _rate_rps(self) -> float:
        """Requests per second, by which a size is checked; 0 if it is not known."""
        return 0.0

    @abstractmethod
    def _draw(self, most: int, end_s: float, seed: Seed) -> np.ndarray:
        """Return the first `most` arrivals, or all before `end_s`, or more."""


@dataclass(frozen=True)
class _AtRate(Arrivals):
    """Arrivals at a mean rate."""

    rate_rps: float

    def __post_init__(self) -> None:
        check_positive(rate_rps=self.rate_rps)

    @property
    def _rate_rps(self) -> float:
        return self.rate_rps


@dataclass(frozen=True)
class Constant(_AtRate):
    """Arrivals at 0 and then every 1 / `rate_rps` seconds."""

    kind = "constant"

    def _draw(self, most: int, end_s: float, seed: Seed) -> np.ndarray:
        n_drawn = min(most, math.ceil(min(end_s * self.rate_rps, most)) + 1)
        return np.arange(n_drawn) / self.rate_rps


@dataclass(frozen=True)
class Gamma(_AtRate):
    """Independent Gamma gaps of mean 1 / `rate_rps` (BurstGPT, IV-A).

    Time 0 is any moment of a process that has long been running, not an arrival of it: the first
    arrival is the rest of a gap that is under way. The requests of a duration are therefore
    rate · duration on average, whatever the burstiness; from an arrival on they would be
    (1/alpha + 1) / 2 more. A longer run of the same seed begins with the same arrivals.
    """

    kind = "gamma"
    alpha: float
    """Shape. The same number as vLLM's `--burstiness` and AIPerf's `--arrival-smoothness`; Vidur's
    `cv` is 1 / √alpha. 1 is Poisson, less is burstier."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(alpha=self.alpha)

    def _draw(self, most: int, end_s: float, seed: Seed) -> np.ndarray:
        rng, beta_s = np.random.default_rng(seed), 1 / (self.alpha * self.rate_rps)
        times = [np.array([_rest_of_gap(rng, self.alpha) / self.rate_rps])]
        n_drawn = 1
        while n_drawn < most and times[-1][-1] < end_s:
            times.append(times[-1][-1] + np.cumsum(rng.gamma(self.alpha, beta_s, _BLOCK)))
            n_drawn += _BLOCK
        return np.concatenate(times)


def poisson(rate_rps: float) -> Gamma:
    """Return arrivals that are independent of each other."""
    return Gamma(rate_rps, 1.0)


@dataclass(frozen=True)
class Varying(Arrivals):
    """Gamma gaps whose shape and scale change as the user says (BurstGPT, IV-A.2).

    After every `every` requests the shape becomes a0 + a1·u + a2·u² and the scale b0 + b1·u,
    with u the seconds passed (`over="time"`) or the steps taken (`over="steps"`). The study's
    own change after each 200 requests (V) is over="steps", every=200. The first arrival is
    one gap after 0. A shape or scale that is not positive at some u that is reached is an error.
    """

    kind = "varying"
    alpha: Sequence[float]
    """a0, a1, a2."""
    beta_s: Sequence[float]
    """b0, b1, seconds."""
    over: str = "time"
    every: int = 1

    def __post_init__(self) -> None:
        for name, given, wanted in (("alpha", self.alpha, 3), ("beta_s", self.beta_s, 2)):
            if len(given) != wanted:
                fix = "alpha is quadratic (a0, a1, a2), beta_s is linear (b0, b1)"
                raise InputError(f"{len(given)} coefficients, not {wanted}", field=name, fix=fix)
        if self.over not in ("time", "steps"):
            raise InputError(f"{self.over!r} is unknown", field="over", fix="give time or steps")
        check_positive(every=self.every)

    def at(self, u: float) -> tuple[float, float]:
        """Return shape and scale (s) at `u`."""
        alpha, beta_s = self.alpha, self.beta_s
        return alpha[0] + u * (alpha[1] + u * alpha[2]), beta_s[0] + u * beta_s[1]

    def _draw(self, most: int, end_s: float, seed: Seed) -> np.ndarray:
        rng = np.random.default_rng(seed)
        times, now_s, step = [np.zeros(0)], 0.0, 0
        while step * self.every < most and now_s < end_s:
            u = now_s if self.over == "time" else float(step)
            shape, scale_s = self.at(u)
            check_reached(self.over, u, alpha=shape, beta_s=scale_s)
            times.append(now_s + np.cumsum(rng.gamma(shape, scale_s, self.every)))
            now_s, step = float(times[-1][-1]), step + 1
            check_size(step * self.every)
        return np.concatenate(times)


@dataclass(frozen=True)
class AtOnce(Arrivals):
    """All requests at 0, of which `n` says how many: a rate of `inf` in other tools."""

    kind = "inf"

    def _draw(self, most: int, end_s: float, seed: Seed) -> np.ndarray:
        check_size(most)
        return np.zeros(most)


def mirrored(windows: pd.DataFrame, *, beta_factor: float = 1.0, seed: Seed = 0) -> np.ndarray:
    """Mirror the windows of a trace, at its scale or another (BurstGPT, IV-A.1).

    Each window keeps its duration and shape and has its counted rate, divided by
    `beta_factor`: its scale is duration / (requests · alpha) · beta_factor. (The `beta_s` of
    the fit is not used: a window's inner gaps are shorter than its mean, the more so the
    fewer requests it has.) A window without a fit, alpha null, is Poisson at its counted
    rate; one without a request stays empty. A gap that is under way at the end of a window
    goes on in the next one at that one's pace, so that no window begins with an arrival.

    Args:
        windows: rows of `windows.fit_windows` of one LLM and service, from any one on, or the
            user's own: `start_s` (ascending), `duration_s`, `n_requests` and `alpha`. Times
            count from the first row's start.
        beta_factor: factor on every scale; 0.5 gives twice the rate.
        seed: seed of the draws.

    Raises:
        InputError: a column is missing, windows overlap, or a value is out of range.
    """
    check_positive(beta_factor=beta_factor)
    start_s, lasting_s, weight, alpha = check_windows(windows)
    expected = weight / beta_factor
    check_size(float(expected.sum()))
    rng = np.random.default_rng(seed)
    times = [np.zeros(0)]
    # In units of the mean gap, where all windows have the pace 1.
    wait = _rest_of_gap(rng, alpha[0])
    for begin_s, own_s, units, shape in zip(start_s, lasting_s, expected, alpha, strict=True):
        points = np.array([wait])
        while points[-1] < units:
            n_drawn = int(units - points[-1]) + 16
            drawn = rng.gamma(shape, 1 / shape, n_drawn)
            points = np.concatenate([points, points[-1] + np.cumsum(drawn)])
        n_inside = int(np.searchsorted(points, units))
        wait = points[n_inside] - units
        times.append(begin_s + points[:n_inside] * (own_s / units if units else 0.0))
    return np.concatenate(times)


def replayed(arrival_s: np.ndarray | Sequence[float], *, time_factor: float = 1.0) -> np.ndarray:
    """Return a trace's own arrivals from its first on, their gaps times `time_factor`.

    Raises:
        InputError: a factor that is not positive, or times that do not ascend.
    """
    check_positive(time_factor=time_factor)
    arrival_s = np.asarray(arrival_s, float)
    if not (np.all(np.isfinite(arrival_s)) and np.all(np.diff(arrival_s) >= 0)):
        fix = "give the arrivals of a normalised trace"
        raise InputError("the times do not ascend", field="arrival_s", fix=fix)
    return (arrival_s - arrival_s[:1]) * time_factor


def _rest_of_gap(rng: np.random.Generator, alpha: float) -> float:
    """Draw how long a gap of mean 1 still lasts, seen at any moment.

    A moment falls into a gap the more easily the longer it is; gaps weighted by length are
    Gamma-distributed with alpha + 1, and the moment lies anywhere in it.
    """
    return rng.random() * rng.gamma(alpha + 1, 1 / alpha)
