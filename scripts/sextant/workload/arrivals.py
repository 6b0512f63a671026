"""Arrivals of a trace in figures: the Gamma fit of its gaps, and how bursty its counts are.

Times come in one array or streamed in batches; memory grows with their duration alone.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sextant.base.errors import InputError
from sextant.trace.trace_format import MAX_SPAN_S
from sextant.workload.gamma import (
    FAR,
    MAX_STEPS,
    StepCounts,
    fit_gamma,
    fit_steps,
    ks_distance,
)
from sextant.workload.generators import ArrivalModel, Seed, Times, batches_of, gaps_of

MIN_GAPS = 2
OFF_GRID = 0.05
"""Steps that a gap may be off a whole number of them."""
COARSE_S = 0.01
"""Least step of a clock whose stamps are spread: steps of engines take about as long."""
MIN_EQUAL = 10
"""Least gaps of zero that show a coarse clock: fewer may be requests that came together."""
_SHORT = 10
"""Most steps of gaps of which a step's length is averaged."""
_MOST_TESTED = 1 << 20
ALL_AT_ONCE = "all requests arrive at the same time"
ALL_EQUAL = "all gaps are equal: the likelihood grows with alpha without end"

SCALES_S = (1, 10, 60, 300, 1200, 3600)
"""Seconds of the bins in which requests are counted, each a multiple of the one before."""
BUSIEST_S = (1, 10, 60)
BUSIEST = "busiest_60s"
JUDGED = (*(f"dispersion_{scale}s" for scale in SCALES_S), BUSIEST)
"""Measures by which a model of the arrivals is accepted or rejected."""
MIN_JUDGED_BINS = 20
"""Bins from which on a model's dispersion is compared with the trace's. A variance of n counts has
a relative standard deviation of √(2 / (n - 1)): 141% for 2 bins, 32% for 20."""
_CHUNK = 1 << 17

Measures = dict[str, float | None]
"""By name: `gap_cv`, coefficient of variation of the gaps; of the counts in bins of each scale that
the arrivals have two whole ones of, `dispersion_<scale>s`, variance over mean (1: Poisson); and
`busiest_<scale>s`, requests of the fullest bin."""


def fit_arrivals(arrival_s: Times) -> ArrivalModel:
    """Fit a Gamma distribution to the gaps between arrivals, by maximum likelihood.

    Equal stamps say that the trace's clock is coarse. Then all gaps are counted in its steps
    (`common_steps`) and fitted by the likelihood of those counts (`gamma.fit_steps`); else they are
    exact (`gamma.fit_gamma`). The fit is tested where a mean gap has `FAR` steps or more, on at
    most some million gaps, every k-th of a longer trace: so many give the distance to 0.001.
    `arrival_s` ascends.
    """
    n_gaps, n_zero, duration, log_total, least = 0, 0, 0.0, 0.0, math.inf
    for gaps in gaps_of(arrival_s):
        positive = gaps[gaps > 0]
        n_gaps, n_zero = n_gaps + len(gaps), n_zero + len(gaps) - len(positive)
        duration += float(gaps.sum())
        log_total += float(np.log(positive).sum())
        least = min(least, float(positive.min(initial=math.inf)))
    rate = n_gaps / duration if duration > 0 else None
    step = _clock_step(arrival_s, least) if n_zero and duration > 0 else None
    undetermined = ArrivalModel(None, None, rate, None, n_gaps, n_zero, step)
    if n_gaps < MIN_GAPS:
        reason = f"{n_gaps + 1} arrivals are too few: a shape needs {MIN_GAPS + 1}"
        return replace(undetermined, reason=reason)
    if duration == 0:
        return replace(undetermined, reason=ALL_AT_ONCE)
    if step is None:
        fits = fit_gamma(*np.array([[n_gaps], [duration], [log_total]]))
    else:
        fits = fit_steps(_count_all(arrival_s, step))
    if np.isnan(fits.alpha[0]):
        what = f"the shape of {n_gaps} gaps of {duration / n_gaps:.3g} s"
        return replace(undetermined, reason=ALL_EQUAL if step is None else hidden(step, what))
    ks = None
    if step is None or FAR * step <= duration / n_gaps:
        every, kept, n_before = -(-n_gaps // _MOST_TESTED), [], 0
        for gaps in gaps_of(arrival_s):
            kept.append(gaps[-n_before % every :: every])
            n_before += len(gaps)
        tested = np.concatenate(kept)
        n = np.array([len(tested)])
        distance = ks_distance(tested, n, fits.alpha, fits.beta * (1.0 if step is None else step))
        ks = float(distance[0])
    return replace(
        undetermined,
        alpha=float(fits.alpha[0]),
        # The mean is the trace's own, to the last digit.
        beta_s=float(duration / n_gaps / fits.alpha[0]),
        cv=float(fits.cv[0]),
        alpha_lo=float(fits.alpha_lo[0]),
        alpha_hi=float(fits.alpha_hi[0]),
        ks=ks,
    )


def _count_all(arrival_s: Times, step_s: float) -> StepCounts:
    """Count all gaps in steps of a clock; far ones (exact) are rounded to 12 bits."""
    parts = []
    for gaps in gaps_of(arrival_s):
        steps = np.rint(gaps / step_s)
        mantissa, exponent = np.frexp(steps)
        rounded = np.ldexp(np.rint(np.ldexp(mantissa, 12)), exponent - 12)
        parts.append(np.unique(np.where(steps < FAR, steps, rounded), return_counts=True))
    steps, counts = (np.concatenate(own) for own in zip(*parts, strict=True))
    distinct, place = np.unique(steps, return_inverse=True)
    return StepCounts(distinct, np.bincount(place, counts), np.array([len(distinct)]))


def hidden(step_s: float, what: str) -> str:
    """Return the reason why nothing is fitted where a coarse clock leaves the shape open."""
    return f"the clock's step of {step_s:.3g} s hides {what}"


def _clock_step(arrival_s: Times, least_s: float) -> float:
    """Return the step of the clock of times whose smallest positive gap is known."""
    end_s = 0.0
    for batch in batches_of(arrival_s):
        end_s = float(batch[-1]) if len(batch) else end_s
    least = np.array([max(least_s, end_s / MAX_STEPS)])
    step = least
    for gaps in gaps_of(arrival_s):
        positive = gaps[gaps > 0]
        step = common_steps(positive, np.zeros(len(positive), np.intp), step, end_s)
    return float(np.where(np.isnan(step), least, step)[0])


@dataclass(frozen=True)
class SpreadTimes:
    """Times of a coarse clock, those of each of its steps spread over the step at random.

    A clock of `step_s` cuts times down to its stamps. Requests of one stamp that were sent together
    would find a queue that never was. They keep their order, and none comes after the next stamp.
    """

    times: Times
    """Ascending."""
    step_s: float
    seed: Seed = 0

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield the times in batches; the same whatever batches they were read in."""
        rng, held = np.random.default_rng(self.seed), np.empty(0)
        for batch in batches_of(self.times):
            stamps = np.concatenate([held, batch])
            cut = int(np.searchsorted(stamps, stamps[-1:])[0]) if len(stamps) else 0
            held = stamps[cut:]
            if cut:
                yield self._spread(stamps[:cut], held[0], rng)
        if len(held):
            yield self._spread(held, math.inf, rng)

    def _spread(self, stamps: np.ndarray, next_s: float, rng: np.random.Generator) -> np.ndarray:
        different, place = np.unique(stamps, return_inverse=True)
        room_s = np.minimum(self.step_s, np.diff(different, append=next_s))
        drawn = rng.random(len(stamps))
        return stamps + room_s[place] * drawn[np.lexsort((drawn, place))]


def on_fine_clock(times: Times, seed: Seed = 0) -> tuple[Times, float | None]:
    """Return ascending times without a coarse clock's steps, and the step (s) of such a clock.

    None, and the times as they are: fewer than `MIN_EQUAL` gaps are 0, or the step is below
    `COARSE_S`. See `SpreadTimes`.
    """
    least, n_zero = math.inf, 0
    for gaps in gaps_of(times):
        least = min(least, float(gaps.min(where=gaps > 0, initial=math.inf)))
        n_zero += int(np.count_nonzero(gaps == 0))
    if n_zero < MIN_EQUAL or least == math.inf:
        return times, None
    step_s = _clock_step(times, least)
    return (SpreadTimes(times, step_s, seed), step_s) if step_s >= COARSE_S else (times, None)


def common_steps(
    gaps: np.ndarray, group: np.ndarray, step_s: np.ndarray, end_s: float
) -> np.ndarray:
    """Return the greatest step, per group, of which gaps and the step given are whole numbers.

    Euclid's algorithm: the remainder takes the place of the step until there is none. Clocks
    jitter and decimal fractions are rounded, so 5% of a step are ignored, short gaps are averaged,
    and a step is taken to be the roundest number that it may be.

    Args:
        gaps: positive gaps of all groups, seconds.
        group: number of the group of each.
        step_s: the step of each group as known so far; NaN: it has none.
        end_s: latest time of all, which limits the precision of the times.

    Returns:
        Steps in seconds, NaN where a step would be finer than `end_s` / `MAX_STEPS`.
    """
    while True:
        step_s = _averaged(gaps, group, step_s, end_s)
        steps = gaps / step_s[group]
        off = np.abs(steps - np.rint(steps))
        is_off = off > OFF_GRID
        if not is_off.any():
            return step_s
        left = np.full(len(step_s), np.inf)
        np.minimum.at(left, group[is_off], (off * step_s[group])[is_off])
        # The step so far stands for the gaps it was derived from.
        finer = np.flatnonzero(np.isfinite(left))
        gaps, group = np.append(gaps, step_s[finer]), np.append(group, finer)
        step_s = np.where(np.isfinite(left), left, step_s)


def _averaged(gaps: np.ndarray, group: np.ndarray, step_s: np.ndarray, end_s: float) -> np.ndarray:
    """Return steps averaged over short gaps and rounded; NaN where they are too fine."""
    steps = gaps / step_s[group]
    whole = np.rint(steps)
    is_short = (whole <= _SHORT) & (whole > 0) & (np.abs(steps - whole) <= OFF_GRID)
    total, count = (
        np.bincount(group[is_short], values[is_short], len(step_s)) for values in (gaps, whole)
    )
    step_s = np.where(count > 0, total / np.maximum(count, 1), step_s)
    rounding, result = 8 * np.finfo(float).eps * end_s, step_s
    for decimals in reversed(range(15)):
        rounded = np.round(step_s, decimals)
        result = np.where(np.abs(rounded - step_s) <= rounding, rounded, result)
    return np.where(step_s < end_s / MAX_STEPS, np.nan, result)


class ArrivalTally:
    """Counts arrivals that come in ascending order, batch after batch."""

    def __init__(self, times: Times = ()) -> None:
        self._counts = np.zeros(1024, np.int32)
        self.last_s = math.nan
        """The last arrival; NaN before the first."""
        self._n_gaps, self._gap_sum, self._gap_squares = 0, 0.0, 0.0
        for batch in batches_of(times):
            self.add(batch)

    @property
    def n(self) -> int:
        """Return the number of arrivals."""
        return 0 if math.isnan(self.last_s) else self._n_gaps + 1

    @property
    def per_second(self) -> np.ndarray:
        """Return the arrivals of each second up to the last arrival."""
        return self._counts[: int(self.last_s) + 1]

    def add(self, arrival_s: np.ndarray) -> None:
        """Count more arrivals, seconds from 0. Raises InputError for times out of order."""
        if not len(arrival_s):
            return
        gaps = np.diff(arrival_s, prepend=self.last_s)
        gaps = gaps[1:] if math.isnan(self.last_s) else gaps
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
        self.last_s, self._n_gaps = last_s, self._n_gaps + len(gaps)
        self._gap_sum += float(gaps.sum())
        self._gap_squares += float(gaps @ gaps)

    def measures(self, duration_s: float | None = None) -> Measures:
        """Return the measures of all that was counted, whose bins end at `duration_s`.

        By default that is the last arrival. Raises InputError if nothing arrived.
        """
        if math.isnan(self.last_s):
            fix = "give arrivals with at least one request"
            raise InputError("no request arrives", field="arrival_s", fix=fix)
        end_s = self.last_s if duration_s is None else duration_s
        gap_cv = None
        if self._n_gaps >= 2 and self._gap_sum:
            # The sample's standard deviation over its mean, as in pandas.
            mean = self._gap_sum / self._n_gaps
            squares = max(self._gap_squares - self._n_gaps * mean**2, 0.0)
            gap_cv = math.sqrt(squares / (self._n_gaps - 1)) / mean
        measures: Measures = {"gap_cv": gap_cv}
        binned, binned_s = self.per_second, 1
        for scale_s in SCALES_S:
            if scale_s > binned_s:
                binned = np.add.reduceat(binned, np.arange(0, len(binned), scale_s // binned_s))
            binned_s = scale_s
            measures |= dict(_measures_of_counts(binned, scale_s, end_s))
        return measures


def _measures_of_counts(
    binned: np.ndarray, scale_s: int, duration_s: float
) -> Iterator[tuple[str, float | None]]:
    """Yield the measures of the counts in bins of one scale."""
    if scale_s in BUSIEST_S:
        yield f"busiest_{scale_s}s", float(binned.max())
    n_whole = int(duration_s // scale_s)
    if n_whole < 2:
        return
    counts = np.pad(binned[:n_whole], (0, max(n_whole - len(binned), 0)))
    mean, square = float(counts.sum()) / n_whole, 0.0
    for begin in range(0, n_whole, _CHUNK):
        off = counts[begin : begin + _CHUNK] - mean
        square += float(off @ off)
    yield f"dispersion_{scale_s}s", square / (n_whole - 1) / mean if mean else None


def measure_arrivals(times: Times, duration_s: float | None = None) -> Measures:
    """Return the measures of ascending times (see `Measures`)."""
    return ArrivalTally(times).measures(duration_s)


def n_bins(name: str, duration_s: float) -> int:
    """Return the whole bins of a measure that names its scale."""
    return int(duration_s // int(name.rpartition("_")[2][:-1]))


def median_measures(samples: Sequence[Measures]) -> Measures:
    """Return the median of each measure; None where fewer than half of the samples have it."""
    medians: Measures = {}
    for name in dict.fromkeys(name for sample in samples for name in sample):
        known = [value for sample in samples if (value := sample.get(name)) is not None]
        medians[name] = float(np.median(known)) if 2 * len(known) >= len(samples) else None
    return medians


def relative_errors(truth: Mapping[str, float | None], model: Measures) -> Measures:
    """Return model / truth - 1 of each measure; None where there is nothing to compare."""
    errors: Measures = {}
    for name, value in truth.items():
        other = model.get(name)
        if value is None or other is None:
            errors[name] = None
        else:
            errors[name] = other / value - 1 if value else (0.0 if other == value else None)
    return errors
