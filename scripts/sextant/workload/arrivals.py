"""Arrivals of a trace in figures: the Gamma fit of its gaps, and how bursty its counts are."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

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
from sextant.workload.generators import ArrivalModel, Seed

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

Measures = dict[str, float | None]
"""By name: `gap_cv`, coefficient of variation of the gaps; of the counts in bins of each scale that
the arrivals have two whole ones of, `dispersion_<scale>s`, variance over mean (1: Poisson); and
`busiest_<scale>s`, requests of the fullest bin."""


def fit_arrivals(arrival_s: np.ndarray) -> ArrivalModel:
    """Fit a Gamma distribution to the gaps between arrivals, by maximum likelihood.

    Equal stamps say that the trace's clock is coarse. Then all gaps are counted in its steps
    (`clock_step`) and fitted by the likelihood of those counts (`gamma.fit_steps`); else they are
    exact (`gamma.fit_gamma`). The fit is tested where a mean gap has `FAR` steps or more, on at
    most some million gaps, every k-th of a longer trace: so many give the distance to 0.001.
    `arrival_s` ascends.
    """
    gaps = np.diff(arrival_s)
    positive = gaps[gaps > 0]
    n_gaps, n_zero, duration = len(gaps), len(gaps) - len(positive), float(gaps.sum())
    rate = n_gaps / duration if duration > 0 else None
    step = clock_step(gaps, float(arrival_s[-1])) if n_zero and duration > 0 else None
    undetermined = ArrivalModel(None, None, rate, None, n_gaps, n_zero, step)
    if n_gaps < MIN_GAPS:
        reason = f"{n_gaps + 1} arrivals are too few: a shape needs {MIN_GAPS + 1}"
        return replace(undetermined, reason=reason)
    if duration == 0:
        return replace(undetermined, reason=ALL_AT_ONCE)
    if step is None:
        fits = fit_gamma(*np.array([[n_gaps], [duration], [np.log(positive).sum()]]))
    else:
        steps = np.rint(gaps / step)
        # Far gaps, which count as exact, are rounded to 12 bits.
        mantissa, exponent = np.frexp(steps)
        rounded = np.ldexp(np.rint(np.ldexp(mantissa, 12)), exponent - 12)
        steps, counts = np.unique(np.where(steps < FAR, steps, rounded), return_counts=True)
        fits = fit_steps(StepCounts(steps, counts.astype(float), np.array([len(steps)])))
    if np.isnan(fits.alpha[0]):
        what = f"the shape of {n_gaps} gaps of {duration / n_gaps:.3g} s"
        return replace(undetermined, reason=ALL_EQUAL if step is None else hidden(step, what))
    ks = None
    if step is None or FAR * step <= duration / n_gaps:
        tested = gaps[:: -(-n_gaps // _MOST_TESTED)]
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


def hidden(step_s: float, what: str) -> str:
    """Return the reason why nothing is fitted where a coarse clock leaves the shape open."""
    return f"the clock's step of {step_s:.3g} s hides {what}"


def on_fine_clock(times: np.ndarray, seed: Seed = 0) -> tuple[np.ndarray, float | None]:
    """Return ascending times without a coarse clock's steps, and the step (s) of such a clock.

    A clock cuts times down to its stamps. Requests of one stamp that were sent together would find
    a queue that never was: they are spread over the step at random, keep their order, and none
    comes after the next stamp. None, and the times as they are: fewer than `MIN_EQUAL` gaps are 0,
    or the step is below `COARSE_S`.
    """
    gaps = np.diff(times)
    if np.count_nonzero(gaps == 0) < MIN_EQUAL or not gaps.any():
        return times, None
    step_s = clock_step(gaps, float(times[-1]))
    if step_s < COARSE_S:
        return times, None
    different, place = np.unique(times, return_inverse=True)
    room_s = np.minimum(step_s, np.diff(different, append=math.inf))
    drawn = np.random.default_rng(seed).random(len(times))
    return times + room_s[place] * drawn[np.lexsort((drawn, place))], step_s


def clock_step(gaps: np.ndarray, end_s: float) -> float:
    """Return the greatest step (s) of which all gaps are whole numbers, the least positive one at
    most; that one where there is none.

    Euclid's algorithm: the remainder takes the place of the step until there is none. Clocks
    jitter and decimal fractions are rounded, so 5% of a step are ignored, short gaps are averaged,
    and a step is taken to be the roundest number that it may be.

    Args:
        gaps: of a clock (s), some above 0.
        end_s: latest time, which limits the precision of the times: a step is `end_s` /
            `MAX_STEPS` or more.
    """
    gaps = gaps[gaps > 0]
    step_s = least = max(float(gaps.min()), end_s / MAX_STEPS)
    rounding = 8 * np.finfo(float).eps * end_s
    while True:
        steps = gaps / step_s
        whole = np.rint(steps)
        is_short = (whole <= _SHORT) & (whole > 0) & (np.abs(steps - whole) <= OFF_GRID)
        if is_short.any():
            step_s = float(gaps[is_short].sum() / whole[is_short].sum())
        averaged = step_s
        for decimals in reversed(range(15)):
            rounded = float(np.round(averaged, decimals))
            step_s = rounded if abs(rounded - averaged) <= rounding else step_s
        if averaged < end_s / MAX_STEPS:
            return least
        steps = gaps / step_s
        off = np.abs(steps - np.rint(steps))
        is_off = off > OFF_GRID
        if not is_off.any():
            return step_s
        # The step so far stands for the gaps it was derived from.
        gaps, step_s = np.append(gaps, step_s), float(off[is_off].min() * step_s)


def measure_arrivals(times: np.ndarray, duration_s: float | None = None) -> Measures:
    """Return the measures of ascending times, in bins that end at `duration_s`.

    By default that is the last arrival. Raises InputError: nothing arrives, or times out of order.
    """
    gaps = np.diff(times)
    is_sound = times.min(initial=0.0) >= 0 and times.max(initial=0.0) < MAX_SPAN_S
    if not (is_sound and np.all(gaps >= 0)):  # NaN is neither
        fix = "correct the time stamps in the source, and ingest it again"
        problem = f"times do not ascend from 0 to at most {MAX_SPAN_S:g} s"
        raise InputError(problem, field="arrival_s", fix=fix)
    if not len(times):
        fix = "give arrivals with at least one request"
        raise InputError("no request arrives", field="arrival_s", fix=fix)
    end_s = float(times[-1]) if duration_s is None else duration_s
    has_cv = len(gaps) >= 2 and gaps.any()
    measures: Measures = {"gap_cv": float(gaps.std(ddof=1) / gaps.mean()) if has_cv else None}
    binned, binned_s = count_seconds(times), 1
    for scale_s in SCALES_S:
        if scale_s > binned_s:
            binned = np.add.reduceat(binned, np.arange(0, len(binned), scale_s // binned_s))
        binned_s, n_whole = scale_s, int(end_s // scale_s)
        if scale_s in BUSIEST_S:
            measures[f"busiest_{scale_s}s"] = float(binned.max())
        if n_whole >= 2:
            counts = np.pad(binned[:n_whole], (0, max(n_whole - len(binned), 0)))
            mean = float(counts.mean())
            dispersion = float(counts.var(ddof=1)) / mean if mean else None
            measures[f"dispersion_{scale_s}s"] = dispersion
    return measures


def count_seconds(times: np.ndarray) -> np.ndarray:
    """Return the arrivals of each second up to the last one."""
    return np.bincount(times.astype(np.int64))


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
