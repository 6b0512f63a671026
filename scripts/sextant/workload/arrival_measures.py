"""What tells how bursty arrivals are, of times at hand or streamed, in memory of their duration."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from sextant.base.errors import InputError

SCALES_S = (1, 10, 60, 300, 1200, 3600)
"""Seconds of the bins whose counts are looked at, each a multiple of the one before."""
BUSIEST_S = (1, 10, 60)
MAX_SPAN_S = 1e8
"""A trace of more than three years has a wrong time in it."""
BUSIEST = "busiest_60s"
JUDGED = (*(f"dispersion_{scale}s" for scale in SCALES_S), BUSIEST)
"""Measures by which a model of the arrivals is accepted or rejected."""
_MIN_BINS = 2
MIN_JUDGED_BINS = 20
"""Bins from which on a model's dispersion is compared with the trace's. A variance of n counts has
a relative standard deviation of √(2 / (n - 1)): 141% for 2 bins, 32% for 20."""
_ROUNDING, _CHUNK = 1e-12, 1 << 17

Measures = dict[str, float | None]
"""By name: `gap_cv`, coefficient of variation of the gaps; of the counts in bins of each scale that
the arrivals have two whole ones of, `dispersion_<scale>s`, variance over mean (1: Poisson), and
`autocorrelation_<scale>s`, of one count with the next (None: constant, or fewer than 3 bins); and
`busiest_<scale>s`, requests of the fullest bin."""


Times = np.ndarray | Iterable[np.ndarray]
"""Ascending times (s), in one array, or in batches that can be read again and again."""


def batches_of(times: Times) -> Iterable[np.ndarray]:
    """Return times as batches."""
    return [times] if isinstance(times, np.ndarray) else times


def gaps_of(times: Times) -> Iterator[np.ndarray]:
    """Yield the gaps (s) of ascending times, batch after batch."""
    before = np.empty(0)
    for batch in batches_of(times):
        yield np.diff(batch, prepend=before)
        before = batch[-1:] if len(batch) else before


class ArrivalTally:
    """Counts arrivals that come in ascending order, batch after batch."""

    def __init__(self) -> None:
        self._counts = np.zeros(1024, np.int32)
        self._last_s = math.nan
        self._n_gaps, self._gap_sum, self._gap_squares = 0, 0.0, 0.0

    @property
    def last_s(self) -> float:
        """Return the last arrival; NaN before the first."""
        return self._last_s

    @property
    def n(self) -> int:
        """Return the number of arrivals."""
        return 0 if math.isnan(self._last_s) else self._n_gaps + 1

    @property
    def per_second(self) -> np.ndarray:
        """Return the arrivals of each second up to the last arrival."""
        return self._counts[: int(self._last_s) + 1]

    def add(self, arrival_s: np.ndarray) -> None:
        """Count more arrivals, seconds from 0. Raises InputError for times out of order."""
        if not len(arrival_s):
            return
        gaps = np.diff(arrival_s, prepend=self._last_s)
        gaps = gaps[1:] if math.isnan(self._last_s) else gaps
        first_s, last_s = float(arrival_s[0]), float(arrival_s[-1])
        if not (first_s >= 0 and last_s < MAX_SPAN_S and np.all(gaps >= 0)):
            fix = "correct the time stamps in the source, and ingest it again"
            problem = f"times do not ascend from 0 to at most {MAX_SPAN_S:g} s"
            raise InputError(problem, field="arrival_s", fix=fix)
        first, last = int(first_s), int(last_s)
        if last >= len(self._counts):
            self._counts = np.concatenate([self._counts, np.zeros(last + 1, np.int32)])
        seconds = arrival_s.astype(np.int64) - first
        self._counts[first : last + 1] += np.bincount(seconds, minlength=last - first + 1)
        self._last_s, self._n_gaps = last_s, self._n_gaps + len(gaps)
        self._gap_sum += float(gaps.sum())
        self._gap_squares += float(gaps @ gaps)

    def measures(self, duration_s: float | None = None) -> Measures:
        """Return the measures of all that was counted, whose bins end at `duration_s`.

        By default that is the last arrival. Raises InputError if nothing arrived.
        """
        if math.isnan(self._last_s):
            fix = "give arrivals with at least one request"
            raise InputError("no request arrives", field="arrival_s", fix=fix)
        end_s = self._last_s if duration_s is None else duration_s
        return {"gap_cv": self._gap_cv()} | count_measures(self.per_second, 1, end_s)

    def _gap_cv(self) -> float | None:
        """Return the sample's standard deviation over its mean, as pandas does."""
        if self._n_gaps < 2 or self._gap_sum == 0:
            return None
        mean = self._gap_sum / self._n_gaps
        squares = max(self._gap_squares - self._n_gaps * mean**2, 0.0)
        return math.sqrt(squares / (self._n_gaps - 1)) / mean


def count_measures(binned: np.ndarray, binned_s: int, duration_s: float) -> Measures:
    """Return the measures of counts in bins of `binned_s`, from that one of `SCALES_S` on."""
    found: Measures = {}
    for scale_s in SCALES_S[SCALES_S.index(binned_s) :]:
        if scale_s > binned_s:
            binned = np.add.reduceat(binned, np.arange(0, len(binned), scale_s // binned_s))
        binned_s = scale_s
        found |= _of_counts(binned, scale_s, duration_s)
    return found


def n_bins(name: str, duration_s: float) -> int:
    """Return the whole bins of a measure that names its scale."""
    return int(duration_s // int(name.rpartition("_")[2][:-1]))


def is_judged(name: str, duration_s: float) -> bool:
    """Return whether a measure of `JUDGED` tells enough: a dispersion of too few bins does not."""
    return name == BUSIEST or n_bins(name, duration_s) >= MIN_JUDGED_BINS


def _of_counts(binned: np.ndarray, scale_s: int, duration_s: float) -> Measures:
    """Return the measures of the counts in bins of one scale."""
    found: Measures = {}
    if scale_s in BUSIEST_S:
        found[f"busiest_{scale_s}s"] = float(binned.max())
    n_whole = int(duration_s // scale_s)
    if n_whole < _MIN_BINS:
        return found
    counts = np.pad(binned[:n_whole], (0, max(n_whole - len(binned), 0)))
    mean, square, neighbours = float(counts.sum()) / n_whole, 0.0, 0.0
    for begin in range(0, n_whole, _CHUNK):
        off = counts[begin : begin + _CHUNK + 1] - mean
        square += float(off[:_CHUNK] @ off[:_CHUNK])
        neighbours += float(off[:-1] @ off[1:])
    found[f"dispersion_{scale_s}s"] = square / (n_whole - 1) / mean if mean else None
    # The two halves of all pairs lack the last and the first; their sums are those without.
    n_pairs, first, last = n_whole - 1, counts[0] - mean, counts[-1] - mean
    shared = neighbours - last * first / n_pairs
    spread = (square - last**2 - last**2 / n_pairs) * (square - first**2 - first**2 / n_pairs)
    is_known = n_whole > _MIN_BINS and spread > _ROUNDING * square**2
    related = shared / math.sqrt(spread) if is_known else None
    return found | {f"autocorrelation_{scale_s}s": related}


def tally_arrivals(times: Times) -> ArrivalTally:
    """Count ascending times."""
    tally = ArrivalTally()
    for batch in batches_of(times):
        tally.add(batch)
    return tally


def measure_arrivals(times: Times, duration_s: float | None = None) -> Measures:
    """Return the measures of ascending times (see `Measures`)."""
    return tally_arrivals(times).measures(duration_s)


def median_measures(samples: Sequence[Measures]) -> Measures:
    """Return the median of each measure; None where fewer than half of the samples have it."""
    found: Measures = {}
    for name in dict.fromkeys(name for sample in samples for name in sample):
        known = [value for sample in samples if (value := sample.get(name)) is not None]
        found[name] = float(np.median(known)) if 2 * len(known) >= len(samples) else None
    return found


def relative_errors(truth: Mapping[str, float | None], model: Measures) -> Measures:
    """Return model / truth - 1 of each measure that both have; of autocorrelations the difference.

    None where there is nothing to compare.
    """
    errors: Measures = {}
    for name, value in truth.items():
        other = model.get(name)
        if value is None or other is None:
            errors[name] = None
        elif name.startswith("autocorrelation"):
            errors[name] = other - value
        else:
            errors[name] = other / value - 1 if value else (0.0 if other == value else None)
    return errors
