"""Arrival processes: when requests come, drawn from a seed. No gap is rescaled or cut.

One frozen dataclass per process; `trace_arrivals` has those that repeat a trace. No data frames are
loaded here: the load client imports this module.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from sextant.base.errors import InputError

MAX_REQUESTS = 100_000_000
SHIFT_S = 10.0
BLOCK_S = 300.0
_BLOCK = 1 << 14
LEAST_SHAPE = 0.001
MOST_SHAPE = 1e6
"""Ends of the shapes of Gamma gaps: beyond them all requests come at once, or at equal gaps."""
_POSITIVE = ("rate_rps", "bin_s", "end_s", "alpha", "time_factor", "every")
"""Parameters of processes that are finite numbers above 0, where they are numbers."""

Seed = int | np.random.SeedSequence


def child_seed(seed: Seed, number: int) -> np.random.SeedSequence:
    """Return the `number`-th independent stream of `seed`, the same at every call."""
    root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    return np.random.SeedSequence(root.entropy, spawn_key=(*root.spawn_key, number))


@dataclass(frozen=True)
class Arrivals(ABC):
    """An arrival process."""

    kind: ClassVar[str]
    ends_itself: ClassVar[bool] = False  # whether it has an end without `n` and `duration_s`

    def __post_init__(self) -> None:
        values = {name: getattr(self, name, None) for name in _POSITIVE}
        numbers = {name: it for name, it in values.items() if isinstance(it, int | float)}
        check_positive(**numbers)

    def times(
        self, *, n: int | None = None, duration_s: float | None = None, seed: Seed = 0
    ) -> np.ndarray:
        """Return when requests arrive: float64 seconds from 0, ascending.

        There are at most `n`, all before `duration_s`. Raises InputError: no end, or more than
        `MAX_REQUESTS` requests.
        """
        ends = {"n": n, "duration_s": duration_s}
        limits = {name: end for name, end in ends.items() if end is not None}
        if not limits and not self.ends_itself:
            fix = "give n, the number of requests, or duration_s"
            raise InputError("the arrivals have no end", field="n", fix=fix)

        check_positive(**limits)
        most = MAX_REQUESTS + 1 if n is None else int(n)
        end_s = math.inf if duration_s is None else float(duration_s)
        # Without a rate the number of requests in a duration is not known.
        expected = [end_s * self.mean_rate_rps] if limits and self.mean_rate_rps else []
        _check_size(min(expected + ([] if n is None else [n]), default=0.0))
        parts = list[np.ndarray]()
        n_drawn = 0
        for part in self._parts(most, end_s, seed):
            parts.append(part)
            n_drawn += len(part)
            _check_size(n_drawn)
            if n_drawn >= most:
                break

        drawn = np.empty(n_drawn)
        while parts:  # from the last on, and freed at once: many are not there twice
            n_drawn -= len(part := parts.pop())
            drawn[n_drawn : n_drawn + len(part)] = part

        return drawn[: min(most, int(np.searchsorted(drawn, end_s)))]

    def scaled(self, rate_factor: float) -> Arrivals:
        """Return these arrivals at another mean rate: a model's, or a trace `multiplied`."""
        raise NotImplementedError(f"{self.kind} arrivals have no rate of their own")

    @property
    def mean_rate_rps(self) -> float:
        """Requests per second on average; 0 if that is not known."""
        return getattr(self, "rate_rps", 0.0)

    @abstractmethod
    def _parts(self, most: int, end_s: float, seed: Seed) -> Iterator[np.ndarray]:
        """Yield the arrivals part after part: at least all before `end_s`, or the first `most`.

        To draw up to the process's own end, `end_s` is infinite and `most` above `MAX_REQUESTS`.
        """


@dataclass(frozen=True)
class Constant(Arrivals):
    """Arrivals at 0 and then every 1 / `rate_rps` seconds."""

    kind = "constant"
    rate_rps: float

    def _parts(self, most: int, end_s: float, seed: Seed) -> Iterator[np.ndarray]:
        n_drawn = min(most, math.ceil(min(end_s * self.rate_rps, most)) + 1)
        yield np.arange(n_drawn) / self.rate_rps


@dataclass(frozen=True)
class Gamma(Arrivals):
    """Independent Gamma gaps of mean 1 / `rate_rps` (BurstGPT, IV-A).

    Time 0 is any moment of a process that has long been running: a gap is under way.
    """

    kind = "gamma"
    rate_rps: float
    alpha: float
    """Shape: vLLM's `--burstiness`, AIPerf's `--arrival-smoothness`; Vidur's `cv` is 1 / √alpha. 1
    is Poisson, less is burstier."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not LEAST_SHAPE <= self.alpha <= MOST_SHAPE:
            fix = f"give {LEAST_SHAPE:g} (bursts) to {MOST_SHAPE:,.0f} (equal gaps)"
            raise InputError(f"{self.alpha:g} is out of range", field="alpha", fix=fix)

    def scaled(self, rate_factor: float) -> Arrivals:
        """Return the process at another rate."""
        return replace(self, rate_rps=self.rate_rps * rate_factor)

    def _parts(self, most: int, end_s: float, seed: Seed) -> Iterator[np.ndarray]:
        rng = np.random.default_rng(seed)
        beta_s = 1 / (self.alpha * self.rate_rps)
        drawn = np.array([_rest_of_gap(rng, self.alpha) / self.rate_rps])
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

    After each `every` requests the shape becomes a0 + a1·u + a2·u² and the scale b0 + b1·u, where u
    is the seconds passed (`over="time"`) or the steps taken (`over="steps"`).
    """

    kind = "varying"
    alpha: Sequence[float]  # a0, a1, a2
    beta_s: Sequence[float]  # b0, b1, seconds
    over: str = "time"
    every: int = 1

    def __post_init__(self) -> None:
        for name, coefficients, wanted in (("alpha", self.alpha, 3), ("beta_s", self.beta_s, 2)):
            if len(coefficients) != wanted:
                fix = "alpha is quadratic (a0, a1, a2), beta_s is linear (b0, b1)"
                raise InputError(
                    f"{len(coefficients)} coefficients, not {wanted}", field=name, fix=fix
                )
        if self.over not in ("time", "steps"):
            raise InputError(f"{self.over!r} is unknown", field="over", fix="give time or steps")
        super().__post_init__()

    def at(self, u: float) -> tuple[float, float]:
        """Return shape and scale (s) at `u`."""
        alpha = self.alpha
        beta_s = self.beta_s
        return alpha[0] + u * (alpha[1] + u * alpha[2]), beta_s[0] + u * beta_s[1]

    def _parts(self, most: int, end_s: float, seed: Seed) -> Iterator[np.ndarray]:
        rng = np.random.default_rng(seed)
        now_s = 0.0
        step = 0
        while now_s < end_s:
            u = now_s if self.over == "time" else float(step)
            shape, scale_s = self.at(u)
            for name, value in (("alpha", shape), ("beta_s", scale_s)):
                if not value > 0:
                    where = f"at {u:g} s" if self.over == "time" else f"at step {u:g}"
                    fix = "end the arrivals before, or change the coefficients"
                    raise InputError(f"it is {value:g} {where}", field=name, fix=fix)
            drawn = now_s + np.cumsum(rng.gamma(shape, scale_s, self.every))
            yield drawn
            now_s = float(drawn[-1])
            step += 1


@dataclass(frozen=True)
class AtOnce(Arrivals):
    """`n` requests, all at 0: a rate of `inf` in other tools."""

    kind = "inf"

    def _parts(self, most: int, end_s: float, seed: Seed) -> Iterator[np.ndarray]:
        yield np.zeros(most)


@dataclass(frozen=True)
class Mirrored(Arrivals):
    """Gamma gaps with a rate and a shape for each window of a trace (BurstGPT, IV-A.1).

    A gap that is under way at the end of a window goes on in the next window at the next window's
    pace, so that no window begins with an arrival. A window without a request stays silent.
    """

    kind = "mirrored"
    ends_itself = True
    start_s: Sequence[float]  # from 0, ascending
    duration_s: Sequence[float]
    n_requests: Sequence[float]  # expected in each window
    alpha: Sequence[float]  # shape of the gaps in each window
    is_weibull: Sequence[bool] = ()  # whether a window's gaps are Weibull; by default none is

    def _parts(self, most: int, end_s: float, seed: Seed) -> Iterator[np.ndarray]:
        rng = np.random.default_rng(seed)
        kinds = self.is_weibull or (False,) * len(self.alpha)
        columns = (self.start_s, self.duration_s, self.n_requests, self.alpha, kinds)
        # In units of the mean gap, where all windows have the pace 1.
        wait = _rest_of_gap(rng, self.alpha[0], is_weibull=kinds[0])
        for begin_s, own_s, units, shape, is_weibull in zip(*columns, strict=True):
            if begin_s >= end_s:
                break
            points = np.array([wait])
            while points[-1] < units:
                n_drawn = int(units - points[-1]) + 16
                _check_size(n_drawn)
                if is_weibull:
                    gaps = rng.weibull(shape, n_drawn) / math.gamma(1 + 1 / shape)
                else:
                    gaps = rng.gamma(shape, 1 / shape, n_drawn)
                points = np.concatenate([points, points[-1] + np.cumsum(gaps)])
            n_inside = int(np.searchsorted(points, units))
            wait = points[n_inside] - units
            yield begin_s + points[:n_inside] * (own_s / units if units else 0.0)


@dataclass(frozen=True)
class Rescaled(Arrivals):
    """Gamma gaps in operational time: the number of requests expected so far.

    The expected requests are a trace's counts in bins, at a steady pace within each bin (Cinlar's
    time change of a point process).
    """

    kind = "rescaled"
    ends_itself = True
    bin_s: float
    counts: Sequence[float]  # requests expected in each bin: the trace's, or times a factor
    end_s: float  # end of the trace, within the last bin
    alpha: float  # shape of the gaps in operational time

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (all(0 <= count < math.inf for count in self.counts) and sum(self.counts) > 0):
            fix = "give finite numbers from 0 on, one of them above 0"
            raise InputError("no request is expected", field="counts", fix=fix)

    @property
    def mean_rate_rps(self) -> float:
        """Requests per second on average."""
        return sum(self.counts) / self.end_s

    def scaled(self, rate_factor: float) -> Arrivals:
        """Return the profile with other rates (see `Arrivals.scaled`)."""
        return replace(self, counts=tuple(rate_factor * n for n in self.counts))

    def _parts(self, most: int, end_s: float, seed: Seed) -> Iterator[np.ndarray]:
        begin_s = 0.0
        rng = np.random.default_rng(seed)
        edges = np.minimum(np.arange(len(self.counts) + 1) * self.bin_s, self.end_s)
        expected = np.concatenate([[0.0], np.cumsum(self.counts, dtype=float)])
        if math.isinf(end_s) and most > MAX_REQUESTS:
            end_s = self.end_s

        while begin_s < end_s:
            end = float(np.interp(min(end_s - begin_s, self.end_s), edges, expected))
            points = np.array([_rest_of_gap(rng, self.alpha)])
            while points[-1] < end:
                yield begin_s + np.interp(points, expected, edges)
                points = points[-1] + np.cumsum(rng.gamma(self.alpha, 1 / self.alpha, _BLOCK))
            inside = points[: np.searchsorted(points, end)]
            yield begin_s + np.interp(inside, expected, edges)
            begin_s += self.end_s


def _rest_of_gap(rng: np.random.Generator, shape: float, *, is_weibull: bool = False) -> float:
    """Draw how long a gap of mean 1 still lasts, seen at any moment."""
    # A moment falls into a gap the more easily the longer it is: gaps weighted by length are
    # Gamma-distributed with shape + 1 (of a Weibull gap its power of the shape is).
    if not is_weibull:
        return rng.random() * rng.gamma(shape + 1, 1 / shape)
    whole = rng.gamma(1 + 1 / shape) ** (1 / shape)
    return rng.random() * whole / math.gamma(1 + 1 / shape)


def multiplied(
    arrival_s: np.ndarray,
    factor: float,
    *,
    block_s: float = BLOCK_S,
    seed: Seed = 0,
    group: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return `factor` times as many requests as a trace has, on the same clock.

    Returns three arrays of shape (m,): ascending times, the index in `arrival_s` of the request
    that each one copies, and the number of the copy. The first copy is the trace itself. Each other
    copy is shifted by up to `SHIFT_S`, cyclically within each block of `block_s`, so that a block
    has its own requests times the factor. Of the last copy a random share is kept.

    `group` numbers the requests that are copied together, e.g. the turns of a session, shape (n,);
    -1: alone. A copy of a group is kept as a whole, and shifted to a later time as a whole, so its
    requests keep their order and their gaps.
    """
    check_positive(rate_factor=factor)
    n_copies = math.ceil(factor)
    _check_size(factor * len(arrival_s))
    begin_s = np.floor(arrival_s / block_s) * block_s
    lasting_s = np.minimum(block_s, arrival_s[-1:] - begin_s)
    first_of_group = np.arange(len(arrival_s))
    if group is not None:
        _, first, number = np.unique(group, return_index=True, return_inverse=True)
        first_of_group = np.where(group < 0, first_of_group, first[number])
    times = []
    copied = []
    for copy in range(n_copies):
        rng = np.random.default_rng(child_seed(seed, copy))
        shift_s = rng.uniform(-SHIFT_S, SHIFT_S)
        is_kept = rng.random(len(arrival_s)) < factor - copy
        if group is not None:
            is_kept = is_kept[first_of_group]
        kept = np.flatnonzero(is_kept)
        moved = arrival_s[kept]
        if copy and group is not None:
            moved = moved + abs(shift_s)
        elif copy:
            block_length_s = np.maximum(lasting_s[kept], np.spacing(1.0))
            moved = begin_s[kept] + (moved - begin_s[kept] + shift_s) % block_length_s
        times.append(moved)
        copied.append(kept)

    copies = np.repeat(np.arange(n_copies), [len(kept) for kept in copied])
    together = np.concatenate(times)
    order = np.argsort(together, kind="stable")

    return together[order], np.concatenate(copied)[order], copies[order]


def check_positive(**numbers: float) -> None:
    """Refuse a number that is not above 0 or not finite; only a duration may be infinite."""
    for name, value in numbers.items():
        if not value > 0 or (math.isinf(value) and name != "duration_s"):
            fix = "give a finite number above 0"
            raise InputError(f"{value} is out of range", field=name, fix=fix)


def _check_size(n: float) -> None:
    if n > MAX_REQUESTS:
        fix = "give a shorter duration or a lower rate"
        raise InputError(f"{n:.3g} requests are too many", field="duration_s", fix=fix)


@dataclass(frozen=True)
class ArrivalModel:
    """The Gamma distribution fitted to all gaps of a trace; None: the gaps do not determine it."""

    alpha: float | None  # shape
    beta_s: float | None  # scale; alpha · beta_s is the mean gap
    rate_rps: float | None  # requests per second: gaps of the trace over their total duration
    cv: float | None  # coefficient of variation, 1 / √alpha; above 1 is burstier than Poisson
    n_gaps: int
    n_zero_gaps: int
    clock_step_s: float | None  # of the clock in which gaps were counted; null: no equal stamps
    alpha_lo: float | None = None  # the 95% interval (`gamma.fit_gamma`, `gamma.fit_steps`)
    alpha_hi: float | None = None
    ks: float | None = None  # Kolmogorov-Smirnov distance to the gaps; null: coarse clock
    reason: str | None = None
