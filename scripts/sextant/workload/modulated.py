"""Arrival processes whose rate changes: by windows, by a fine profile, by chance, by clients.

All but `Markov` have a span, that of the trace they were fitted to. Without an end they last as
long; what is asked of them beyond begins the span again, with other draws.
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
from sextant.workload.seeds import Seed, child_seed

_BLOCK = 1 << 14
_EXTRA_S = 1.0
_ROUNDING = 1e-4


@dataclass(frozen=True)
class Spanned(Arrivals):
    """Arrivals over a span that may follow itself."""

    ends_itself = True

    @property
    @abstractmethod
    def span_s(self) -> float:
        """Return how long the span lasts."""

    @abstractmethod
    def once(self, rng: np.random.Generator, end_s: float) -> np.ndarray:
        """Draw the arrivals of one span that lie before `end_s`, or all."""

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
        times, n_drawn, begin_s = [np.zeros(0)], 0, 0.0
        while n_drawn < most and begin_s < end_s:
            drawn = self.once(rng, min(end_s - begin_s, self.span_s))
            times.append(begin_s + drawn)
            n_drawn, begin_s = n_drawn + len(drawn), begin_s + self.span_s
            check_size(n_drawn)
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

    def once(self, rng: np.random.Generator, end_s: float) -> np.ndarray:
        """Draw the arrivals of one span that lie before `end_s`, or all."""
        times, kinds = [np.zeros(0)], self.is_weibull or (False,) * len(self.alpha)
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
            times.append(begin_s + points[:n_inside] * (own_s / units if units else 0.0))
        return np.concatenate(times)


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

    def once(self, rng: np.random.Generator, end_s: float) -> np.ndarray:
        """Draw the arrivals of one span that lie before `end_s`, or all."""
        edges = np.minimum(np.arange(len(self.counts) + 1) * self.bin_s, self.end_s)
        expected = np.concatenate([[0.0], np.cumsum(self.counts, dtype=float)])
        points = _unit_arrivals(rng, self.alpha, float(np.interp(end_s, edges, expected)))
        return np.interp(points, expected, edges)


def _unit_arrivals(rng: np.random.Generator, alpha: float, end: float) -> np.ndarray:
    """Draw arrivals at the rate 1 before `end`, of a process that has long been running."""
    points = [np.array([rest_of_gap(rng, alpha)])]
    while points[-1][-1] < end:
        points.append(points[-1][-1] + np.cumsum(rng.gamma(alpha, 1 / alpha, _BLOCK)))
    drawn = np.concatenate(points)
    return drawn[: np.searchsorted(drawn, end)]


@dataclass(frozen=True)
class Markov(Arrivals):
    """Gamma gaps whose rate is switched by independent two-state Markov chains.

    Every chain adds its swing to the rate while it is on; K chains make a process of 2^K states
    (a superposition of Markov-modulated processes: Andersen and Nielsen, IEEE JSAC 16, 1998).
    """

    kind = "markov"
    rate_rps: float
    """Mean rate."""
    alpha: float
    """Shape of the gaps in operational time."""
    time_s: Sequence[float]
    """Of each chain, the time in which what it is now is forgotten (to 1 / e)."""
    swing: Sequence[float]
    """Of each chain, what it adds when it is on, as a share of the mean rate."""
    on_fraction: float
    """Share of the time for which a chain is on."""

    def __post_init__(self) -> None:
        check_positive(rate_rps=self.rate_rps, alpha=self.alpha, on_fraction=self.on_fraction)
        if len(self.time_s) != len(self.swing) or self.lowest < -_ROUNDING or self.on_fraction >= 1:
            fix = "give a swing a chain, and a rate that is never below 0"
            raise InputError("the chains are not possible", field="swing", fix=fix)

    @property
    def lowest(self) -> float:
        """Return the rate while all chains are off, as a share of the mean rate."""
        return 1 - self.on_fraction * math.fsum(self.swing)

    @property
    def mean_rate_rps(self) -> float:
        """Return requests per second on average."""
        return self.rate_rps

    def _draw(self, most: int, end_s: float, seed: Seed) -> np.ndarray:
        horizon_s = min(end_s, most / self.rate_rps + _EXTRA_S)
        while True:
            times = self._until(horizon_s, seed)
            if len(times) >= most or horizon_s >= end_s:
                return times
            horizon_s = min(end_s, 2 * horizon_s)

    def _until(self, end_s: float, seed: Seed) -> np.ndarray:
        """Draw all arrivals before `end_s`; a later end begins with the same ones."""
        chains = [
            (swing, *self._switches(time_s, end_s, child_seed(seed, number)))
            for number, (time_s, swing) in enumerate(zip(self.time_s, self.swing, strict=True))
        ]
        switches = [own[own < end_s] for _, _, own in chains]
        edges = np.concatenate([[0.0], *switches, [end_s]])
        edges.sort()
        pace = np.full(len(edges) - 1, max(self.lowest, 0.0))
        for swing, is_on, own in chains:
            pace += swing * ((np.searchsorted(own, edges[:-1], side="right") + is_on) % 2)
        pace *= self.rate_rps
        expected = np.concatenate([[0.0], np.cumsum(pace * np.diff(edges))])
        rng = np.random.default_rng(child_seed(seed, len(chains)))
        points = _unit_arrivals(rng, self.alpha, expected[-1])
        # Not by interpolation, which has other last digits where the end is another.
        place = np.searchsorted(expected, points, side="right") - 1
        return edges[place] + (points - expected[place]) / pace[place]

    def _switches(self, time_s: float, end_s: float, seed: Seed) -> tuple[bool, np.ndarray]:
        """Return whether a chain is on at 0, and when it changes until past `end_s`."""
        rng = np.random.default_rng(seed)
        is_on = bool(rng.random() < self.on_fraction)
        lasting_s = np.array([time_s / self.on_fraction, time_s / (1 - self.on_fraction)])
        turns = lasting_s[(np.arange(_BLOCK) + is_on) % 2]  # a block is even: each begins alike
        switches = [np.zeros(1)]
        while switches[-1][-1] < end_s:
            switches.append(switches[-1][-1] + np.cumsum(turns * rng.standard_exponential(_BLOCK)))
        return is_on, np.concatenate(switches)[1:]


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

    def once(self, rng: np.random.Generator, end_s: float) -> np.ndarray:
        """Draw the arrivals of one span that lie before `end_s`, or all."""
        streams = rng.spawn(len(self.clients))
        drawn: Iterator[np.ndarray] = (
            client.once(own, end_s) for client, own in zip(self.clients, streams, strict=True)
        )
        return np.sort(np.concatenate(list(drawn)))


def _check_counts(counts: Sequence[float]) -> None:
    if not (all(0 <= count < math.inf for count in counts) and sum(counts) > 0):
        fix = "give finite numbers from 0 on, one of them above 0"
        raise InputError("no request is expected", field="n_requests", fix=fix)
