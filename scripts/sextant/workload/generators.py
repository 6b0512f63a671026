"""Arrival processes: when requests come, drawn from a seed. No gap is rescaled or cut.

A frozen dataclass for each process; its fields are checked when it is made. `trace_arrivals` has
those that repeat a trace.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sextant.base.errors import InputError
from sextant.workload.seeds import Seed, child_seed

MAX_REQUESTS = 100_000_000
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
        is_whole = duration_s is None and self.ends_itself
        rate_rps = 0.0 if is_whole else self.mean_rate_rps
        most, end_s = extent(n, np.inf if is_whole else duration_s, rate_rps)
        return cut(self._draw(most, end_s, seed), most, end_s)

    def batches(self, duration_s: float, seed: Seed) -> Iterator[np.ndarray]:
        """Yield what `times` returns for a duration, part after part where that saves memory."""
        yield self.times(duration_s=duration_s, seed=seed)

    def scaled(self, rate_factor: float, by: str = "time") -> Arrivals:
        """Return these arrivals at another rate (see `Scaled`)."""
        return self if rate_factor == 1 else Scaled(self, rate_factor, by)

    @property
    def mean_rate_rps(self) -> float:
        """Requests per second on average; 0 if that is not known."""
        return 0.0

    @abstractmethod
    def _draw(self, most: int, end_s: float, seed: Seed) -> np.ndarray:
        """Return the first `most` arrivals, or all before `end_s`, or more."""


@dataclass(frozen=True)
class _AtRate(Arrivals):
    rate_rps: float

    def __post_init__(self) -> None:
        check_positive(rate_rps=self.rate_rps)

    @property
    def mean_rate_rps(self) -> float:
        """Return requests per second on average."""
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

    Time 0 is any moment of a process that has long been running: the first arrival is the rest of a
    gap that is under way, and a duration has rate · duration requests on average. A longer run of
    the same seed begins with the same arrivals.
    """

    kind = "gamma"
    alpha: float
    """Shape. The same number as vLLM's `--burstiness` and AIPerf's `--arrival-smoothness`; Vidur's
    `cv` is 1 / √alpha. 1 is Poisson, less is burstier."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(alpha=self.alpha)

    def _draw(self, most: int, end_s: float, seed: Seed) -> np.ndarray:
        times, n_drawn = [], 0
        for drawn in self._parts(end_s, seed):
            times.append(drawn)
            n_drawn += len(drawn)
            if n_drawn >= most:
                break
        return np.concatenate(times)

    def batches(self, duration_s: float, seed: Seed) -> Iterator[np.ndarray]:
        """Yield what `times` returns for a duration, part after part."""
        for drawn in self._parts(duration_s, seed):
            yield cut(drawn, len(drawn), duration_s)

    def _parts(self, end_s: float, seed: Seed) -> Iterator[np.ndarray]:
        rng, beta_s = np.random.default_rng(seed), 1 / (self.alpha * self.rate_rps)
        drawn = np.array([rest_of_gap(rng, self.alpha) / self.rate_rps])
        yield drawn
        while drawn[-1] < end_s:
            drawn = drawn[-1] + np.cumsum(rng.gamma(self.alpha, beta_s, _BLOCK))
            yield drawn


def poisson(rate_rps: float) -> Gamma:
    """Return arrivals that are independent of each other."""
    return Gamma(rate_rps, 1.0)


@dataclass(frozen=True)
class Varying(Arrivals):
    """Gamma gaps whose shape and scale change as the user says (BurstGPT, IV-A.2).

    After every `every` requests the shape becomes a0 + a1·u + a2·u² and the scale b0 + b1·u,
    with u the seconds passed (`over="time"`) or the steps taken (`over="steps"`). The first arrival
    is one gap after 0. A shape or scale that is not positive at some u that is reached is an error.
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


SCALED_BY = ("time", "thinning")


@dataclass(frozen=True)
class Scaled(Arrivals):
    """Another process at `rate_factor` times its rate.

    By `time` all gaps are divided by the factor: bursts have as many requests as before, in less
    time. By `thinning` each request stays with the probability of the factor, whatever the others
    do: bursts last as long as before and have fewer requests. A factor above 1 is by time alone.
    """

    kind = "scaled"
    process: Arrivals
    rate_factor: float
    by: str = "time"

    def __post_init__(self) -> None:
        check_positive(rate_factor=self.rate_factor)
        if self.by not in SCALED_BY:
            raise InputError(f"{self.by!r} is unknown", field="by", fix="give time or thinning")
        if self.by == "thinning" and self.rate_factor > 1:
            problem = f"thinning cannot make {self.rate_factor:g} times as many requests"
            raise InputError(problem, field="rate_factor", fix="give 1 or less, or scale by time")
        object.__setattr__(self, "ends_itself", self.process.ends_itself)

    @property
    def mean_rate_rps(self) -> float:
        """Return requests per second on average."""
        return self.process.mean_rate_rps * self.rate_factor

    def _draw(self, most: int, end_s: float, seed: Seed) -> np.ndarray:
        if self.by == "time":
            return self.process._draw(most, end_s * self.rate_factor, seed) / self.rate_factor
        return self._thinned(most, end_s, seed)

    def _thinned(self, most: int, end_s: float, seed: Seed) -> np.ndarray:
        n_asked = most
        while True:
            # Most of what is left is asked for at once; a longer draw begins with a shorter one.
            n_asked = min(math.ceil(n_asked / self.rate_factor) + 64, MAX_REQUESTS + 1)
            drawn = cut(self.process._draw(n_asked, end_s, seed), n_asked, end_s)
            chance = np.random.default_rng(child_seed(seed, 0)).random(len(drawn))
            kept = drawn[chance < self.rate_factor]
            if len(kept) >= most or len(drawn) < n_asked or n_asked > MAX_REQUESTS:
                return kept


def rest_of_gap(rng: np.random.Generator, alpha: float) -> float:
    """Draw how long a gap of mean 1 still lasts, seen at any moment.

    A moment falls into a gap the more easily the longer it is; gaps weighted by length are
    Gamma-distributed with alpha + 1, and the moment lies anywhere in it.
    """
    return rng.random() * rng.gamma(alpha + 1, 1 / alpha)


def extent(n: int | None, duration_s: float | None, rate_rps: float) -> tuple[int, float]:
    """Return the most requests and the end, one of which may be missing."""
    if n is None and duration_s is None:
        fix = "give n, the number of requests, or duration_s"
        raise InputError("the arrivals have no end", field="n", fix=fix)
    ends = {"n": n, "duration_s": duration_s}
    check_positive(**{name: end for name, end in ends.items() if end is not None})
    if n is not None and n != int(n):
        raise InputError(f"{n} is not a whole number", field="n", fix="give the number of requests")
    most = MAX_REQUESTS + 1 if n is None else int(n)
    end_s = np.inf if duration_s is None else float(duration_s)
    # Without a rate nothing is known of how many a duration has.
    expected = ([] if n is None else [n]) + ([end_s * rate_rps] if rate_rps else [])
    check_size(min(expected, default=0.0))
    return most, end_s


def cut(times: np.ndarray, most: int, end_s: float) -> np.ndarray:
    """Return the first `most` of the times that lie before `end_s`."""
    return times[: min(most, int(np.searchsorted(times, end_s)))]


def check_positive(**numbers: float) -> None:
    """Refuse what is not above 0, or not finite; only a duration may be infinite."""
    for name, value in numbers.items():
        is_end = name == "duration_s"
        if not (value > 0 and (is_end or math.isfinite(value))):
            fix = "give a finite number above 0"
            raise InputError(f"{value} is out of range", field=name, fix=fix)


def check_reached(over: str, u: float, **numbers: float) -> None:
    """Refuse a shape or scale that a variation takes to 0 or below at `u`."""
    for name, value in numbers.items():
        if not value > 0:
            where = f"at {u:g} s" if over == "time" else f"at step {u:g}"
            fix = "end the arrivals before, or change the coefficients"
            raise InputError(f"it is {value:g} {where}", field=name, fix=fix)


def check_size(n: float) -> None:
    """Refuse more requests than anybody means to draw."""
    if n > MAX_REQUESTS:
        fix = "give a shorter duration or a lower rate"
        raise InputError(f"{n:.3g} requests are too many", field="duration_s", fix=fix)
