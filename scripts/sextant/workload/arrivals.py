"""Arrivals of a trace: the Gamma fit of its gaps, how bursty its counts are, and which model a
workload has: the simplest that is as bursty as the trace."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import scipy  # its parts load at first use

from sextant.base.errors import InputError
from sextant.trace.trace_format import MAX_SPAN_S
from sextant.workload import gamma
from sextant.workload.generators import ArrivalModel, Arrivals, Gamma, Rescaled, Seed, child_seed

MIN_GAPS = 2
OFF_GRID = 0.05  # steps that a gap may be off a whole number of them
COARSE_S = 0.01  # least step of a clock whose stamps are spread: engines' steps are about as long
MIN_EQUAL = 10  # least gaps of zero that show a coarse clock: fewer may have come together
_SHORT = 10  # gaps of up to 10 steps: a step's length is averaged over them
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
"""By name: `gap_cv`, coefficient of variation of the gaps; of the counts in bins of each scale with
two whole ones `dispersion_<scale>s`, variance over mean (1: Poisson); `busiest_<scale>s`,
requests of the fullest bin."""
MODELS = {
    "gamma": "one Gamma process",
    "rescaled": "a rate profile with Gamma gaps",
    "replay": "a replay of the trace",
}
"""In the order in which they are tried; in words."""
REACH = 0.1  # largest relative error of a judged measure
_MAX_BINS = 20_000  # of a profile: `arrivals.json` stays small
MIN_PER_BIN = 10.0  # fewest requests of a profile's mean bin: with fewer it would be a replay
_BINS_S = (600, 300, 120, 60, 30, 20, 10, 5, 2, 1)
_ALPHAS = (0.02, 100.0)
_MOST_SAMPLES = 21
_FEWEST_SAMPLES = 3
# To draw for a model's samples: of long traces chance is small and samples are few.
_SAMPLED_REQUESTS = 2_000_000
# What chance reaches in 99% of steady traffic: standard deviations, share of either tail.
_Z_99 = 2.58
_TAIL = 0.005
_MANY = 30  # bins from which on a dispersion varies little from sample to sample
_FAR = 0.3  # |ln ratio| to the trace's measure from which on a model is far off


def fit_arrivals(arrival_s: np.ndarray) -> ArrivalModel:
    """Fit a Gamma distribution to the gaps between ascending arrivals, by maximum likelihood.

    Equal stamps show that the trace's clock is coarse. Then all gaps are counted in its steps
    (`clock_step`), and the fit is tested only if the mean gap has `gamma.FAR` steps or more.
    """
    gaps = np.diff(arrival_s)
    n_gaps = len(gaps)
    n_zero = int(np.count_nonzero(gaps == 0))
    duration = float(gaps.sum())
    rate = n_gaps / duration if duration > 0 else None
    step = clock_step(gaps, float(arrival_s[-1])) if n_zero and duration > 0 else None
    undetermined = ArrivalModel(None, None, rate, None, n_gaps, n_zero, step)
    if n_gaps < MIN_GAPS:
        reason = f"{n_gaps + 1} arrivals are too few: a shape needs {MIN_GAPS + 1}"
        return replace(undetermined, reason=reason)
    if duration == 0:
        return replace(undetermined, reason=ALL_AT_ONCE)

    tested = gaps[:: -(-n_gaps // _MOST_TESTED)].copy()  # the others' logarithms take their place
    if step is None:
        fits = gamma.fit_gamma(*np.array([[n_gaps], [duration], [np.log(gaps, out=gaps).sum()]]))
    else:
        counted = []
        for part in np.array_split(gaps, -(-n_gaps // _MOST_TESTED)):  # to need less memory
            steps = np.rint(part / step)
            # Gaps of `FAR` steps or more count as exact. Rounded to 12 bits, fewer differ.
            mantissa, exponent = np.frexp(steps)
            rounded = np.ldexp(np.rint(np.ldexp(mantissa, 12)), exponent - 12)
            steps = np.where(steps < gamma.FAR, steps, rounded)
            counted.append(np.unique(steps, return_counts=True))
        values, numbers = map(np.concatenate, zip(*counted, strict=True))
        steps, index = np.unique(values, return_inverse=True)
        counts = np.bincount(index, numbers)
        fits = gamma.fit_steps(gamma.StepCounts(steps, counts, np.array([len(steps)])))
    if np.isnan(fits.alpha[0]):
        what = f"the shape of {n_gaps} gaps of {duration / n_gaps:.3g} s"
        return replace(undetermined, reason=ALL_EQUAL if step is None else hidden(step, what))

    ks = None
    if step is None or gamma.FAR * step <= duration / n_gaps:
        unit_s = 1.0 if step is None else step
        n = np.array([len(tested)])
        ks = float(gamma.ks_distances(tested, n, fits.alpha, fits.beta * unit_s)[0])

    names = "alpha", "alpha_lo", "alpha_hi", "cv"
    fitted: dict[str, Any] = {name: float(getattr(fits, name)[0]) for name in names}

    # The mean is the trace's own, to the last digit.
    return replace(undetermined, **fitted, beta_s=duration / n_gaps / fitted["alpha"], ks=ks)


def hidden(step_s: float, what: str) -> str:
    """Return why nothing is fitted where a coarse clock leaves the shape open."""
    return f"the clock's step of {step_s:.3g} s hides {what}"


def on_fine_clock(times: np.ndarray, seed: Seed = 0) -> tuple[np.ndarray, float | None]:
    """Return ascending times without the steps of a coarse clock, and the clock's step (s).

    Requests with the same stamp would make a queue that never was. So they are spread at random
    over the step, in order, before the next stamp. The times stay as they are, and the step is
    None, if fewer than `MIN_EQUAL` gaps are 0 or the step is below `COARSE_S`.
    """
    gaps = np.diff(times)
    is_fine = np.count_nonzero(gaps == 0) < MIN_EQUAL or not gaps.any()
    if is_fine or (step_s := clock_step(gaps, float(times[-1]))) < COARSE_S:
        return times, None

    del gaps
    rng = np.random.default_rng(seed)
    spread = times.copy()
    cuts = np.searchsorted(times, times[_MOST_TESTED::_MOST_TESTED]).tolist()  # at new stamps
    for begin, end in zip([0, *cuts], [*cuts, len(times)], strict=True):
        different, index = np.unique(times[begin:end], return_inverse=True)
        next_s = [*times[end : end + 1], math.inf][0]
        drawn = rng.random(end - begin)
        room_s = np.minimum(step_s, np.diff(different, append=next_s))
        spread[begin:end] += room_s[index] * drawn[np.lexsort((drawn, index))]

    return spread, step_s


def clock_step(gaps: np.ndarray, end_s: float) -> float:
    """Return the greatest step (s) that divides all gaps; the least gap above 0 if none does.

    `gaps` (s) are not all 0. `end_s` has at most `gamma.MAX_STEPS` steps.

    Euclid's algorithm: the remainder replaces the step until there is none. Clocks jitter and
    decimal fractions are rounded, so 5% of a step are ignored, short gaps are averaged, and the
    step is the roundest number within the rounding error.
    """
    least = float(gaps.min(where=gaps > 0, initial=math.inf))
    step_s = least = max(least, end_s / gamma.MAX_STEPS)
    rounding = 8 * np.finfo(float).eps * end_s
    parts = np.array_split(gaps, -(-len(gaps) // _MOST_TESTED))  # a long trace's need little memory
    while True:
        total = 0.0
        n_whole = 0.0
        for part in parts:
            steps = part / step_s
            whole = np.rint(steps)
            is_short = (whole <= _SHORT) & (whole > 0) & (np.abs(steps - whole) <= OFF_GRID)
            total += part[is_short].sum()
            n_whole += whole[is_short].sum()
        averaged = step_s = float(total / n_whole) if n_whole else step_s
        for decimals in reversed(range(15)):
            rounded = float(np.round(averaged, decimals))
            step_s = rounded if abs(rounded - averaged) <= rounding else step_s
        if averaged < end_s / gamma.MAX_STEPS:
            return least
        least_off = math.inf
        for part in parts:
            off = np.abs((steps := part / step_s) - np.rint(steps))
            least_off = min(least_off, off[off > OFF_GRID].min(initial=math.inf))
        if least_off == math.inf:
            return step_s
        # The step so far stands for the gaps it was derived from.
        parts.append(np.array([step_s]))
        step_s = float(least_off * step_s)


def measure_arrivals(times: np.ndarray, duration_s: float | None = None) -> Measures:
    """Return measures of times up to `duration_s` (the last); InputError: none, or no order."""
    is_sound = times.min(initial=0.0) >= 0 and times.max(initial=0.0) < MAX_SPAN_S
    if not (is_sound and np.all(times[1:] >= times[:-1])):  # NaN is neither
        fix = "correct the time stamps in the source, and ingest it again"
        problem = f"times do not ascend from 0 to at most {MAX_SPAN_S:g} s"
        raise InputError(problem, field="arrival_s", fix=fix)
    if not len(times):
        fix = "give arrivals with at least one request"
        raise InputError("no request arrives", field="arrival_s", fix=fix)

    end_s = float(times[-1]) if duration_s is None else duration_s
    measures: Measures = {"gap_cv": None}
    if (n_gaps := len(times) - 1) >= 2 and times[-1] > times[0]:
        mean_s = _sum_gaps(times) / n_gaps
        measures["gap_cv"] = math.sqrt(_sum_gaps(times, mean_s, 2) / (n_gaps - 1)) / mean_s

    binned = _per_second(times)
    binned_s = 1
    for scale_s in SCALES_S:
        if scale_s > binned_s:
            binned = np.add.reduceat(binned, np.arange(0, len(binned), scale_s // binned_s))
        binned_s = scale_s
        n_whole = int(end_s // scale_s)
        if scale_s in BUSIEST_S:
            measures[f"busiest_{scale_s}s"] = float(binned.max())
        if n_whole >= 2:
            counts = np.pad(binned[:n_whole], (0, max(n_whole - len(binned), 0)))
            mean = float(counts.mean())
            dispersion = float(counts.var(ddof=1)) / mean if mean else None
            measures[f"dispersion_{scale_s}s"] = dispersion

    return measures


def _per_second(times: np.ndarray) -> np.ndarray:
    """Return how many of these ascending times lie in each second, from 0 to the last one's."""
    return np.diff(np.searchsorted(times, np.arange(int(times[-1]) + 2.0)))


def _sum_gaps(times: np.ndarray, mean_s: float = 0.0, power: int = 1) -> float:
    """Sum a power of the gaps less a mean; half by half, as numpy sums, to need less memory."""
    if len(times) <= _MOST_TESTED:
        return float(((np.diff(times) - mean_s) ** power).sum())
    half = (len(times) - 1) // 16 * 8
    return _sum_gaps(times[: half + 1], mean_s, power) + _sum_gaps(times[half:], mean_s, power)


class ArrivalFit(NamedTuple):
    """A model of a trace's arrivals, and how its samples compare."""

    process: Arrivals | None
    reason: str | None = None  # why there is none, or why it is rejected; None: it passes
    measures: Measures | None = None  # medians over samples as long as the trace
    errors: Measures | None = None  # see `relative_errors`


class ArrivalChoice(NamedTuple):
    """The models that were tried, and the one that passed; the trace itself is the last."""

    model: str  # one of `MODELS`
    why: str
    trace: Measures | None
    fits: Mapping[str, ArrivalFit] = {}
    left_out: Sequence[str] = ()  # dispersions not judged: fewer than `MIN_JUDGED_BINS`

    def figures(self) -> dict[str, Any]:
        """Return how the models compare, as `validation.json` has it."""
        return {
            "model": self.model,
            "why": self.why,
            "not_judged": list(self.left_out),
            "trace": self.trace,
            "models": {
                name: {"reason": fit.reason, "measures": fit.measures, "errors": fit.errors}
                for name, fit in self.fits.items()
            },
        }


def choose_arrivals(times: np.ndarray, gamma: ArrivalModel, *, seed: Seed = 0) -> ArrivalChoice:
    """Return the simplest model whose samples are as bursty as the trace; a replay if none is.

    A model passes if the median of each judged measure (`JUDGED`) is within 10% of the trace's. It
    also passes in a measure if chance alone could give both values to a steady Gamma process. The
    rate profile is always fitted, since a scenario may ask for it.

    `times` ascend from 0; `gamma` is the fit to all their gaps. Raises InputError as
    `measure_arrivals`.
    """
    trace = measure_arrivals(times)
    n = len(times)
    if n < 3 or gamma.rate_rps is None:
        few = f"{n} requests are too few for any model"
        return ArrivalChoice("replay", ALL_AT_ONCE if n >= 3 else few, trace)

    judge = _Judge(trace, n, float(times[-1]), seed)
    fits = {"gamma": ArrivalFit(None, gamma.reason)}
    one = Gamma(n / float(times[-1]), 1.0)
    if gamma.alpha is not None and gamma.beta_s is not None:
        one = Gamma(1 / (gamma.alpha * gamma.beta_s), gamma.alpha)

    steady = judge.learn_chance(one)
    if gamma.alpha is not None:
        fits["gamma"] = judge.fit(one, steady)

    for profile in fit_profiles(times, trace):
        fits["rescaled"] = judge.fit(profile)
        if fits["rescaled"].reason is None:
            break
    else:
        few = f"the trace is too short, or has fewer than {MIN_PER_BIN:g} requests a bin"
        fits.setdefault("rescaled", ArrivalFit(None, few))

    passed = next((name for name, fit in fits.items() if fit.process and not fit.reason), "replay")
    rejected = [f"{MODELS[name]}: {fit.reason}" for name, fit in fits.items() if fit.reason]
    why = "it is the simplest" if passed == "gamma" else "; ".join(rejected)

    return ArrivalChoice(passed, why, trace, fits, judge.left_out)


class _Judge:
    """Compares samples of processes with a trace."""

    def __init__(self, trace: Measures, n: int, duration_s: float, seed: Seed) -> None:
        self._trace = trace
        self._duration_s = duration_s
        self._seed = seed
        self._n = min(_MOST_SAMPLES, max(_FEWEST_SAMPLES, _SAMPLED_REQUESTS // n))
        self._steady: dict[str, tuple[float, float]] = {}
        self._judged = [
            name
            for name in JUDGED
            if trace.get(name) is not None
            and (name == BUSIEST or self._n_bins(name) >= MIN_JUDGED_BINS)
        ]
        self.left_out = [name for name in JUDGED if name in trace and name not in self._judged]

    def _n_bins(self, name: str) -> int:
        return int(self._duration_s // int(name.rpartition("_")[2][:-1]))

    def _sample(self, process: Arrivals, n: int, first: int = 0) -> list[Measures]:
        seeds = (child_seed(self._seed, number) for number in range(first, n))
        samples = ([process.times(duration_s=self._duration_s, seed=seed)] for seed in seeds)
        # Taken out of its list, a sample is freed before the next one is drawn: they may be long.
        return [measure_arrivals(one.pop(), self._duration_s) for one in samples if len(one[0])]

    def learn_chance(self, steady: Gamma) -> list[Measures]:
        """Learn the range of each measure in steady traffic; return the samples' measures."""
        samples = self._sample(steady, self._n)
        for name in JUDGED:
            values = [value for sample in samples if (value := sample.get(name)) is not None]
            if len(values) < 2:
                continue
            mean = float(np.mean(values))
            if name == BUSIEST:
                reach = _Z_99 * float(np.std(values, ddof=1))
                self._steady[name] = (mean - reach, mean + reach)
            else:
                n_free = self._n_bins(name) - 1
                # Quantiles of χ² over its degrees of freedom.
                low, high = 2 * scipy.special.gammaincinv(n_free / 2, (_TAIL, 1 - _TAIL)) / n_free
                # A few counts may be nearly equal by chance.
                self._steady[name] = (mean * low if n_free >= _MANY else 0.0, mean * high)

        return samples

    def fit(self, process: Arrivals, samples: list[Measures] | None = None) -> ArrivalFit:
        """Return how a process compares with the trace.

        If the first samples of a process are all far off, no more are drawn.
        """
        if samples is None:
            n_first = -(-self._n // 7)
            samples = self._sample(process, n_first)
            # Far off the trace in each sample, by a measure that varies little.
            is_far_off = any(
                all(_log_ratio(sample.get(name), self._trace[name]) > _FAR for sample in samples)
                and not self._is_steady(name, self._trace)
                for name in self._judged
                if name == BUSIEST or self._n_bins(name) > _MANY
            )
            samples += [] if is_far_off else self._sample(process, self._n, n_first)

        medians = median_measures(samples)
        errors = relative_errors(self._trace, medians)
        failed = {
            name: _log_ratio(medians.get(name), self._trace[name])
            for name in self._judged
            if not ((error := errors[name]) is not None and abs(error) <= REACH)
            and not (self._is_steady(name, medians) and self._is_steady(name, self._trace))
        }
        reason = None
        if failed:
            worst = max(failed, key=failed.__getitem__)
            model, truth = (
                "not known" if value is None else f"{value:.3g}"
                for value in (medians.get(worst), self._trace.get(worst))
            )
            reason = f"{measure_words(worst)} is {model}, the trace's is {truth}"

        return ArrivalFit(process, reason, medians, errors)

    def _is_steady(self, name: str, measures: Measures) -> bool:
        """Return whether chance may give a measure of that size to steady traffic."""
        value = measures.get(name)
        low, high = self._steady.get(name, (math.inf, -math.inf))
        return value is not None and low <= value <= high


def _log_ratio(value: float | None, truth: float | None) -> float:
    return abs(math.log(value / truth)) if value and truth else math.inf


def measure_words(name: str) -> str:
    """Return a measure as a reader knows it."""
    if name == "gap_cv":
        return "the coefficient of variation of the gaps"
    what, _, scale = name.rpartition("_")
    over = scale[:-1] + " s"
    over = {"60 s": "1 min", "300 s": "5 min", "1200 s": "20 min", "3600 s": "1 h"}.get(over, over)
    if what == "busiest":
        return f"the number of requests in the busiest {over}"
    return f"the {what} of counts over {over}"


def fit_profiles(times: np.ndarray, trace: Measures) -> list[Rescaled]:
    """Return the rate profiles whose dispersion is near the trace's, the coarsest first.

    The dispersion of a profile is computed by a formula. Its gaps get the shape that brings the
    dispersion nearest to the trace's over all scales. If no profile is near, the nearest one is
    returned; none for a trace that is too short.
    """
    end_s = float(times[-1])
    judged = []
    per_second = _per_second(times)
    scales = {of: value for of in SCALES_S if (value := trace.get(f"dispersion_{of}s"))}
    for bin_s in _BINS_S:
        n_counts = int(np.ceil(end_s / bin_s))
        if not (2 <= n_counts <= _MAX_BINS and len(times) / n_counts >= MIN_PER_BIN and scales):
            continue
        counts = np.add.reduceat(per_second, np.arange(0, len(per_second), bin_s))
        counts = np.append(counts[: n_counts - 1], counts[n_counts - 1 :].sum())
        alpha, error = _best_shape(counts, bin_s, end_s, scales)
        judged.append((error, Rescaled(float(bin_s), tuple(counts.tolist()), end_s, alpha)))

    near = [process for error, process in judged if error < np.log(1.1)]

    return near or [process for _, process in sorted(judged, key=itemgetter(0))[:1]]


def _best_shape(
    counts: np.ndarray, bin_s: float, end_s: float, scales: dict[int, float]
) -> tuple[float, float]:
    """Return the shape of the gaps, and how far the worst dispersion is off (|ln ratio|)."""
    edges = np.minimum(np.arange(len(counts) + 1) * bin_s, end_s)
    expected = np.concatenate([[0.0], np.cumsum(counts, dtype=float)])
    parts = []
    for scale_s, dispersion in scales.items():
        whole = np.diff(np.interp(np.arange(int(end_s // scale_s) + 1) * scale_s, edges, expected))
        parts.append((whole.mean(), whole.var(ddof=1) / whole.mean(), dispersion))

    mean, profile, truth = np.array(parts).T

    def error(log_alpha: float) -> float:
        # The dispersion of counts of this mean in a Gamma renewal process: 1 for the shortest
        # bins, for long ones 1/α + (1 - 1/α²) / (6 mean) (Cox, Renewal theory, 1962, 4.5); between
        # the two a fraction that has both limits.
        alpha = np.exp(log_alpha)
        short = 1 / (1 + 6 * mean / (1 + 1 / alpha))
        model = profile + 1 / alpha + (1 - 1 / alpha) * short
        return float(np.abs(np.log(model / truth)).max())

    best = scipy.optimize.minimize_scalar(error, bounds=np.log(_ALPHAS), method="bounded")

    # Without the digits in which machines differ.
    return float(f"{np.exp(best.x):.6g}"), float(best.fun)


def median_measures(samples: Sequence[Measures]) -> Measures:
    """Return the median of each measure; None where fewer than half of the samples have it."""
    medians: Measures = {}
    for name in dict.fromkeys(name for sample in samples for name in sample):
        values = [value for sample in samples if (value := sample.get(name)) is not None]
        medians[name] = float(np.median(values)) if 2 * len(values) >= len(samples) else None
    return medians


def relative_errors(truth: Mapping[str, float | None], model: Measures) -> Measures:
    """Return model / truth - 1 of each measure; None where there is nothing to compare."""
    errors: Measures = {}
    for name, value in truth.items():
        other = None if value is None else model.get(name)
        error = other / value - 1 if value and other is not None else None
        errors[name] = 0.0 if value == other == 0 else error
    return errors
