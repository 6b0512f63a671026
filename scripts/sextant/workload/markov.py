"""An arrival process whose rate changes by chance: switched by Markov chains."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sextant.base.errors import InputError
from sextant.workload.generators import Arrivals, Seed, check_positive, child_seed, unit_arrivals

_BLOCK = 1 << 14
_EXTRA_S = 1.0
_ROUNDING = 1e-4


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
        return np.concatenate([np.zeros(0), *self.batches(end_s, seed)])

    def batches(self, duration_s: float, seed: Seed) -> Iterator[np.ndarray]:
        """Yield what `times` returns for a duration, part after part."""
        edges, expected, pace = self.operational(duration_s, seed)
        for points in unit_arrivals(self.gaps(seed), self.alpha, expected[-1]):
            # Not by interpolation, which has other last digits where the end is another.
            place = np.searchsorted(expected, points, side="right") - 1
            yield edges[place] + (points - expected[place]) / pace[place]

    def gaps(self, seed: Seed) -> np.random.Generator:
        """Return what draws the gaps: the same of all processes of as many chains."""
        return np.random.default_rng(child_seed(seed, len(self.time_s)))

    def operational(self, end_s: float, seed: Seed) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return when a draw's rate changes, the requests expected until then, and the rates."""
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
        return edges, np.concatenate([[0.0], np.cumsum(pace * np.diff(edges))]), pace

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


def markov_counts(processes: Sequence[Markov], at_s: np.ndarray, seed: Seed) -> list[np.ndarray]:
    """Return of each process how many requests of its draw come before each of `at_s`.

    The processes have one shape and as many chains, so that they share one draw of gaps; `at_s`
    ascends. The counts are those of `times(duration_s=at_s[-1], seed=seed)`.
    """
    first, end_s = processes[0], float(at_s[-1])
    expected = []
    for process in processes:
        edges, so_far, _ = process.operational(end_s, seed)
        expected.append(np.interp(at_s, edges, so_far))
    found, done = [np.zeros(len(at_s), np.int64) for _ in processes], [0] * len(processes)
    n_before, end = 0, max(own[-1] for own in expected)
    for points in unit_arrivals(first.gaps(seed), first.alpha, end):
        for number, own in enumerate(expected):
            until = int(np.searchsorted(own, points[-1])) if len(points) else done[number]
            reached = slice(done[number], until)
            found[number][reached] = n_before + np.searchsorted(points, own[reached])
            done[number] = until
        n_before += len(points)
    for number, own in enumerate(found):
        own[done[number] :] = n_before
    return found
