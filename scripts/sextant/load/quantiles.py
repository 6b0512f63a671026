"""Exact quantiles of more values than memory holds: they are seen piece by piece, several times.

Each pass finds some of the 64 bits of the values that are looked for, from the left: of numbers
that are not negative the order of their bits is that of the numbers.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np

_SHIFTS = (52, 39, 26, 13, 0)
"""The lowest bit that each pass finds."""
_N_DIGITS = 1 << 13
"""Values that the 13 bits of a pass can have; in the first pass fewer, as 12 are left."""

Pieces = Iterable[Mapping[str, np.ndarray]]
"""Some of the values at a time, by name; NaN is none."""


def exact_statistics(
    pieces: Callable[[], Pieces], names: Collection[str], fractions: Mapping[str, float]
) -> dict[str, dict[str, float | None]]:
    """Return by name the mean of its values and their quantiles as of `np.quantile`, None without.

    `pieces()` gives the same values each time, none of them negative. Memory is that of a piece and
    of some counts, whatever the number of values.
    """
    searches = {name: _Search(fractions) for name in names}
    for shift in _SHIFTS:
        for piece in pieces():
            for name, search in searches.items():
                search.count(piece[name][~np.isnan(piece[name])], shift)
        for search in searches.values():
            search.narrow()
    return {name: search.statistics() for name, search in searches.items()}


class _Sought(NamedTuple):
    """A value that is looked for."""

    bits: int  #: Those that were found, from the left.
    rank: int  #: Among the values that begin with these bits, from 0.


class _Search:
    """The search for the quantiles of one name's values."""

    def __init__(self, fractions: Mapping[str, float]) -> None:
        self._fractions = fractions
        self._n = 0
        self._total = 0.0
        # By the bits that were found: how many values go on with each digit.
        self._counts = {0: np.zeros(_N_DIGITS, np.int64)}
        self._sought = list[_Sought]()

    def count(self, values: np.ndarray, shift: int) -> None:
        """Count some values by their bits from `shift` on."""
        if shift == _SHIFTS[0]:
            self._n += len(values)
            self._total += float(np.sum(values))
        prefixes, digits = np.divmod(values.view(np.int64) >> shift, _N_DIGITS)
        for bits, counts in self._counts.items():
            counts += np.bincount(digits[prefixes == bits], minlength=_N_DIGITS)

    def narrow(self) -> None:
        """Find further bits, after all values were counted."""
        sought = list[_Sought]()
        for bits, rank in self._sought or [_Sought(0, rank) for rank in self._ranks()]:
            n_up_to = np.cumsum(self._counts[bits])
            digit = int(np.searchsorted(n_up_to, rank, side="right"))
            n_before = int(n_up_to[digit] - self._counts[bits][digit]) if self._n else 0
            sought.append(_Sought(bits * _N_DIGITS + digit, rank - n_before))
        self._sought = sought
        self._counts = {value.bits: np.zeros(_N_DIGITS, np.int64) for value in sought}

    def _ranks(self) -> list[int]:
        """Return the ranks of the two values between which each quantile lies."""
        exact = [(self._n - 1) * fraction for fraction in self._fractions.values()]
        return [int(rank) for at in exact for rank in (np.floor(at), np.ceil(at))]

    def statistics(self) -> dict[str, float | None]:
        """Return mean and quantiles, after all bits were found."""
        if not self._n:
            return dict.fromkeys(("mean", *self._fractions))
        values = np.array([value.bits for value in self._sought], np.int64).view(float)
        pairs = zip(self._fractions.items(), values.reshape(-1, 2), strict=True)
        quantiles = {
            name: float(np.quantile(pair, (self._n - 1) * fraction % 1))
            for (name, fraction), pair in pairs
        }
        return {"mean": self._total / self._n, **quantiles}
