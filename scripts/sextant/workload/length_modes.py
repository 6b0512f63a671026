"""How many modes the lengths of outputs have (BurstGPT, III-C): Silverman's test."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from sextant.base.errors import InputError
from sextant.workload.generators import Seed

SIGNIFICANCE = 0.05
MOST_MODES = 6
"""Numbers of modes that are tested; a distribution with more has this many or more."""
TEST_SIZE = 2000
"""Lengths that are tested, drawn from those given if there are more."""
_N_BOOTSTRAP = 200
_N_GRID = 2048
_N_HALVINGS = 20
_FLAT = 0.01
"""Density against its maximum, below which a maximum is not counted."""


@dataclass(frozen=True)
class Modality:
    """How many modes lengths have, and where."""

    n_modes: int
    """Fewest modes that the test does not reject at 5%; 6 means 6 or more."""
    modes_tokens: tuple[float, ...]
    """Where they are, ascending: at the largest bandwidth that shows so many."""
    p_value: float
    """Of the hypothesis that there is one mode only."""
    n_tested: int


def modality(tokens: Sequence[int] | np.ndarray, *, seed: Seed) -> Modality:
    """Count the modes of the density of ln(length), by Silverman's test.

    The smallest number whose p-value is above 5% is reported (Silverman, *Using kernel density
    estimates to investigate multimodality*, J. R. Statist. Soc. B 43, 1981). Maxima less than 1%
    as dense as the densest are not counted: one short length far from all others would be a
    mode otherwise. Each length is moved by a uniform draw within half a token, since ln(1), ln(2) …
    would be modes by themselves. At most 2,000 lengths, drawn at random, are tested: among millions
    any ripple would be significant.

    Raises:
        InputError: a length below 1 or missing, or fewer than 10 lengths.
    """
    lengths = np.asarray(tokens, float)
    if len(lengths) < 10 or not np.all(lengths >= 1):  # NaN is not >= 1
        fix = "give 10 or more lengths of 1 token or more; leave failed requests out"
        raise InputError("lengths that modes cannot be counted of", field="tokens", fix=fix)
    rng = np.random.default_rng(seed)
    if len(lengths) > TEST_SIZE:
        lengths = rng.choice(lengths, TEST_SIZE, replace=False, shuffle=False)
    logs = np.log(lengths + rng.uniform(-0.5, 0.5, len(lengths)))
    p_values = []
    for n_modes in range(1, MOST_MODES + 1):
        grid = _Grid(logs)
        bandwidth = grid.critical_bandwidth(n_modes)
        is_last = n_modes == MOST_MODES
        p_values.append(1.0 if is_last else _p_value(logs, grid, bandwidth, n_modes, rng))
        if p_values[-1] > SIGNIFICANCE:
            break
    places = grid.modes(bandwidth)
    return Modality(len(places), tuple(np.exp(places).tolist()), p_values[0], len(lengths))


class _Grid:
    """A sample binned on a grid, with room at both ends for the kernel's tails."""

    def __init__(self, sample: np.ndarray) -> None:
        spread = max(float(np.ptp(sample)), 1e-9)
        self._low, self._step = sample.min() - spread, 3 * spread / _N_GRID
        place = (sample - self._low) / self._step
        # Linear binning: a point between two grid points is shared by them, so that the
        # density does not depend on where the grid happens to lie.
        left = np.floor(place).astype(int)
        share = place - left
        counts = np.bincount(left, 1 - share, _N_GRID) + np.bincount(left + 1, share, _N_GRID)
        self._transform = scipy.fft.rfft(counts)
        self._frequencies = 2 * np.pi * scipy.fft.rfftfreq(_N_GRID)
        self.widest = spread

    def modes(self, bandwidth: float) -> np.ndarray:
        """Return where the density of this bandwidth has its maxima."""
        kernel = np.exp(-0.5 * (self._frequencies * bandwidth / self._step) ** 2)
        density = scipy.fft.irfft(self._transform * kernel, _N_GRID)
        inner = density[1:-1]
        is_top = (inner > density[:-2]) & (inner >= density[2:]) & (inner > _FLAT * density.max())
        return self._low + self._step * (np.flatnonzero(is_top) + 1)

    def critical_bandwidth(self, n_modes: int) -> float:
        """Return the smallest bandwidth whose density has at most so many modes."""
        low, high = self._step, self.widest
        for _ in range(_N_HALVINGS):
            middle = np.sqrt(low * high)
            low, high = (low, middle) if len(self.modes(middle)) <= n_modes else (middle, high)
        return float(high)


def _p_value(
    logs: np.ndarray, grid: _Grid, bandwidth: float, n_modes: int, rng: np.random.Generator
) -> float:
    """Return how often a sample of the critical density needs a larger bandwidth itself."""
    shrink = 1 / np.sqrt(1 + bandwidth**2 / max(float(logs.var()), 1e-18))
    n_wider = 0
    for _ in range(_N_BOOTSTRAP):
        drawn = rng.choice(logs, len(logs)) + bandwidth * rng.standard_normal(len(logs))
        sample = logs.mean() + shrink * (drawn - logs.mean())
        n_wider += len(_Grid(sample).modes(bandwidth)) > n_modes
    return n_wider / _N_BOOTSTRAP
