"""Arrival processes whose rate changes: by windows, by a fine profile, by clients.

They have a span, that of the trace they were fitted to. Without an end they last as long; what is
asked of them beyond begins the span again, with other draws.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sextant.base.errors import InputError
from sextant.workload.generators import (
    MAX_REQUESTS,
    Arrivals,
    check_positive,
    check_size,
    cut,
    rest_of_gap,
)
from sextant.workload.seeds import Seed

_BLOCK = 1 << 14
_MERGED = 1 << 16
"""Requests of all clients that are put in order at a time."""


@dataclass(frozen=True)
class Spanned(Arrivals):
    """Arrivals over a span that may follow itself."""

    ends_itself = True

    @property
    @abstractmethod
    def span_s(self) -> float:
        """Return how long the span lasts."""

    @abstractmethod
    def once(self, rng: np.random.Generator, end_s: float) -> Iterator[np.ndarray]:
        """Draw the arrivals of one span that lie before `end_s`, or all, part after part."""

    def batches(self, duration_s: float, seed: Seed) -> Iterator[np.ndarray]:
        """Yield what `times` returns for a duration, part after part."""
        for drawn in self._parts(duration_s, np.random.default_rng(seed)):
            yield cut(drawn, len(drawn), duration_s)

    def _parts(self, end_s: float, rng: np.random.Generator) -> Iterator[np.ndarray]:
        begin_s = 0.0
        while begin_s < end_s:
            for drawn in self.once(rng, min(end_s - begin_s, self.span_s)):
                yield begin_s + drawn
            begin_s += self.span_s

    def _draw(self, most: int, end_s: float, seed: Seed) -> np.ndarray:
        if math.isinf(end_s) and most > MAX_REQUESTS:
            end_s = self.span_s
        # Of a long span no more is drawn than a number of requests is likely to need.
        likely_s = 2 * most / self.mean_rate_rps if self.mean_rate_rps else math.inf
        while True:
            horizon_s = min(end_s, likely_s)
            times = self._until(most, horizon_s, np.random.default_rng(seed))
            if len(times) >= most or horizon_s >= end_s:
                return times
            likely_s *= 2

    def _until(self, most: int, end_s: float, rng: np.random.Generator) -> np.ndarray:
        times, n_drawn = [np.zeros(0)], 0
        for drawn in self._parts(end_s, rng):
            times.append(drawn)
            n_drawn += len(drawn)
            check_size(n_drawn)
            if n_drawn >= most:
                break
        return cut(np.concatenate(times), most, end_s)


@dataclass(frozen=True)
class Mirrored(Spanned):
    """Gamma gaps with a rate and a shape for each window of a trace (BurstGPT, IV-A.1).

    A gap that is under way at the end of a window goes on in the next one at that one's pace, so
    that no window begins with an arrival. A window without a request stays silent.
    """

    kind = "mirrored"
    start_s: Sequence[float]
    """From 0, ascending."""
    duration_s: Sequence[float]
    n_requests: Sequence[float]
    """Expected in each window."""
    alpha: Sequence[float]
    """Shape of the gaps in each; where `is_weibull`, of Weibull's distribution."""
    is_weibull: Sequence[bool] = ()
    """By default none is."""

    def __post_init__(self) -> None:
        columns = (self.duration_s, self.n_requests, self.alpha, self.is_weibull or self.alpha)
        if not self.start_s or any(len(column) != len(self.start_s) for column in columns):
            fix = "give as many of start_s, duration_s, n_requests and alpha"
            raise InputError("the windows do not match", field="start_s", fix=fix)
        _check_counts(self.n_requests)

    @property
    def span_s(self) -> float:
        """Return when the last window ends."""
        return self.start_s[-1] + self.duration_s[-1]

    @property
    def mean_rate_rps(self) -> float:
        """Return requests per second on average."""
        return math.fsum(self.n_requests) / self.span_s

    def once(self, rng: np.random.Generator, end_s: float) -> Iterator[np.ndarray]:
        """Draw the arrivals of one span that lie before `end_s`, or all, a window at a time."""
        kinds = self.is_weibull or (False,) * len(self.alpha)
        windows = zip(
            self.start_s, self.duration_s, self.n_requests, self.alpha, kinds, strict=True
        )
        # In units of the mean gap, where all windows have the pace 1.
        wait = _rest(rng, self.alpha[0], kinds[0])
        for begin_s, own_s, units, shape, is_weibull in windows:
            if begin_s >= end_s:
                break
            points = np.array([wait])
            while points[-1] < units:
                n_drawn = int(units - points[-1]) + 16
                drawn = points[-1] + np.cumsum(_unit_gaps(rng, shape, is_weibull, n_drawn))
                points = np.concatenate([points, drawn])
            n_inside = int(np.searchsorted(points, units))
            wait = points[n_inside] - units
            yield begin_s + points[:n_inside] * (own_s / units if units else 0.0)


def _unit_gaps(rng: np.random.Generator, shape: float, is_weibull: bool, n: int) -> np.ndarray:
    """Draw gaps of mean 1."""
    if is_weibull:
        return rng.weibull(shape, n) / math.gamma(1 + 1 / shape)
    return rng.gamma(shape, 1 / shape, n)


def _rest(rng: np.random.Generator, shape: float, is_weibull: bool) -> float:
    """Draw how long a gap of mean 1 still lasts, seen at any moment (see `rest_of_gap`)."""
    if not is_weibull:
        return rest_of_gap(rng, shape)
    # Weighted by length, a Weibull gap's power of its shape is Gamma-distributed.
    whole = rng.gamma(1 + 1 / shape) ** (1 / shape)
    return rng.random() * whole / math.gamma(1 + 1 / shape)


@dataclass(frozen=True)
class Rescaled(Spanned):
    """Gamma gaps in operational time, which runs as fast as a trace's requests came.

    Operational time is the number of requests expected so far: counts of the trace in bins, and
    a steady pace within each bin (Cinlar's time change of a point process).
    """

    kind = "rescaled"
    bin_s: float
    counts: Sequence[int]
    """Requests of the trace in each bin."""
    end_s: float
    """End of the trace, within the last bin."""
    alpha: float
    """Shape of the gaps in operational time."""

    def __post_init__(self) -> None:
        check_positive(bin_s=self.bin_s, end_s=self.end_s, alpha=self.alpha)
        _check_counts(self.counts)

    @property
    def span_s(self) -> float:
        """Return the end of the trace."""
        return self.end_s

    @property
    def mean_rate_rps(self) -> float:
        """Return requests per second on average."""
        return sum(self.counts) / self.end_s

    def once(self, rng: np.random.Generator, end_s: float) -> Iterator[np.ndarray]:
        """Draw the arrivals of one span that lie before `end_s`, or all, part after part."""
        edges = np.minimum(np.arange(len(self.counts) + 1) * self.bin_s, self.end_s)
        expected = np.concatenate([[0.0], np.cumsum(self.counts, dtype=float)])
        for points in unit_arrivals(rng, self.alpha, float(np.interp(end_s, edges, expected))):
            yield np.interp(points, expected, edges)


def unit_arrivals(rng: np.random.Generator, alpha: float, end: float) -> Iterator[np.ndarray]:
    """Draw arrivals at the rate 1 before `end`, of a process that has long been running."""
    points = np.array([rest_of_gap(rng, alpha)])
    while points[-1] < end:
        yield points
        points = points[-1] + np.cumsum(rng.gamma(alpha, 1 / alpha, _BLOCK))
    yield points[: np.searchsorted(points, end)]


@dataclass(frozen=True)
class Clients(Spanned):
    """Clients that each send by windows of their own, put together (ServeGen, Alibaba 2025)."""

    kind = "clients"
    clients: Sequence[Mirrored]

    def __post_init__(self) -> None:
        if not self.clients:
            raise InputError("there is no client", field="clients", fix="give at least one")

    @property
    def span_s(self) -> float:
        """Return when the last client ends."""
        return max(client.span_s for client in self.clients)

    @property
    def mean_rate_rps(self) -> float:
        """Return requests per second on average."""
        return math.fsum(sum(client.n_requests) for client in self.clients) / self.span_s

    def once(self, rng: np.random.Generator, end_s: float) -> Iterator[np.ndarray]:
        """Draw the arrivals of one span that lie before `end_s`, or all, part after part."""
        streams = rng.spawn(len(self.clients))
        drawn = [own.once(stream, end_s) for own, stream in zip(self.clients, streams, strict=True)]
        held, step_s = [np.zeros(0)] * len(drawn), _MERGED / self.mean_rate_rps
        horizon_s, is_open = step_s, [True] * len(drawn)
        while any(is_open) or any(map(len, held)):
            merged = []
            for number, parts in enumerate(drawn):
                while is_open[number] and not (held[number] >= horizon_s).any():
                    part = next(parts, None)
                    is_open[number] = part is not None
                    held[number] = held[number] if part is None else np.append(held[number], part)
                n_before = int(np.searchsorted(held[number], horizon_s))
                merged.append(held[number][:n_before])
                held[number] = held[number][n_before:]
            yield np.sort(np.concatenate(merged))
            horizon_s += step_s


def _check_counts(counts: Sequence[float]) -> None:
    if not (all(0 <= count < math.inf for count in counts) and sum(counts) > 0):
        fix = "give finite numbers from 0 on, one of them above 0"
        raise InputError("no request is expected", field="n_requests", fix=fix)
