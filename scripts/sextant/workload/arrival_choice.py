"""Which model of the arrivals a workload has: the simplest that is as bursty as the trace."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import scipy  # its parts load at first use

from sextant.workload.arrivals import (
    ALL_AT_ONCE,
    BUSIEST,
    JUDGED,
    MIN_JUDGED_BINS,
    SCALES_S,
    Measures,
    count_seconds,
    measure_arrivals,
    median_measures,
    n_bins,
    relative_errors,
)
from sextant.workload.generators import (
    ArrivalModel,
    Arrivals,
    Gamma,
    Rescaled,
    Seed,
    child_seed,
)

MODELS = {
    "gamma": "one Gamma process",
    "rescaled": "a rate profile with Gamma gaps",
    "replay": "a replay of the trace",
}
"""In the order in which they are tried; in words."""
REACH = 0.1
"""Largest relative error of a judged measure."""
MAX_BINS = 20_000
"""Most bins of a profile: `arrivals.json` stays small."""
MIN_PER_BIN = 10.0
"""Fewest requests of a profile's mean bin: with fewer the profile would be a replay."""
_BINS_S = (600, 300, 120, 60, 30, 20, 10, 5, 2, 1)
_ALPHAS = (0.02, 100.0)
MOST_SAMPLES, FEWEST_SAMPLES = 21, 3
_SAMPLED_REQUESTS = 2_000_000
"""Requests to draw for a model's samples: of long traces chance is small and samples are few."""
_Z_99, _TAIL = 2.58, 0.005
"""What chance reaches in 99% of steady traffic."""
_MANY, _FAR = 30, 0.3


@dataclass(frozen=True)
class Fit:
    """A model of a trace's arrivals, and how its samples compare."""

    process: Arrivals | None
    reason: str | None = None
    """Why there is none, or why it is rejected; None: it passes."""
    measures: Measures | None = None
    """Medians over samples as long as the trace."""
    errors: Measures | None = None
    """See `relative_errors`."""


@dataclass(frozen=True)
class ArrivalChoice:
    """The models that were tried, and the one that passed; the trace itself is the last."""

    model: str
    """One of `MODELS`."""
    why: str
    trace: Measures | None
    fits: dict[str, Fit] = field(default_factory=dict)
    left_out: Sequence[str] = ()
    """Dispersions of the trace that are not judged: fewer than `MIN_JUDGED_BINS` bins."""


def choose_arrivals(times: np.ndarray, gamma: ArrivalModel, *, seed: Seed = 0) -> ArrivalChoice:
    """Return the simplest model whose samples are as bursty as the trace, else a replay.

    A model passes if the medians over its samples are within 10% of the trace in the dispersion at
    every scale of `MIN_JUDGED_BINS` bins or more, and in the busiest minute. Where a trace is so
    short or steady that a measure lies within what chance gives a steady Gamma process, the
    model's has to lie there too, and no more is asked. The profile is fitted also where the Gamma
    process passes, so that a scenario may ask for it. `times` ascend from 0, `gamma` is the fit to
    all their gaps, `seed` of all samples. Raises InputError as `measure_arrivals`.
    """
    trace, n = measure_arrivals(times), len(times)
    if n < 3 or gamma.rate_rps is None:
        few = f"{n} requests are too few for any model"
        return ArrivalChoice("replay", ALL_AT_ONCE if n >= 3 else few, trace)
    judge = _Judge(trace, n, float(times[-1]), seed)
    fits = {"gamma": Fit(None, gamma.reason)}
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
        fits.setdefault("rescaled", Fit(None, few))
    passed = next((name for name, fit in fits.items() if fit.process and not fit.reason), "replay")
    rejected = [f"{MODELS[name]}: {fit.reason}" for name, fit in fits.items() if fit.reason]
    why = "it is the simplest" if passed == "gamma" else "; ".join(rejected)
    return ArrivalChoice(passed, why, trace, fits, judge.left_out())


class _Judge:
    """Compares samples of processes with a trace."""

    def __init__(self, trace: Measures, n: int, duration_s: float, seed: Seed) -> None:
        self.trace, self._duration_s, self._seed = trace, duration_s, seed
        self._n = min(MOST_SAMPLES, max(FEWEST_SAMPLES, _SAMPLED_REQUESTS // n))
        self._steady: dict[str, tuple[float, float]] = {}

    def _sample(self, process: Arrivals, n: int, first: int = 0) -> list[Measures]:
        """Return the measures of seeded samples as long as the trace."""
        samples = []
        for number in range(first, n):
            seed = child_seed(self._seed, number)
            drawn = process.times(duration_s=self._duration_s, seed=seed)
            if len(drawn):
                samples.append(measure_arrivals(drawn, self._duration_s))
        return samples

    def learn_chance(self, steady: Gamma) -> list[Measures]:
        """Learn which measures chance alone gives steady traffic; return those of the samples."""
        samples = self._sample(steady, self._n)
        for name in JUDGED:
            known = [value for sample in samples if (value := sample.get(name)) is not None]
            if len(known) < 2:
                continue
            mean = float(np.mean(known))
            if name == BUSIEST:
                reach = _Z_99 * float(np.std(known, ddof=1))
                self._steady[name] = (mean - reach, mean + reach)
            else:
                n_free = n_bins(name, self._duration_s) - 1
                # Quantiles of χ² over its degrees of freedom.
                low, high = 2 * scipy.special.gammaincinv(n_free / 2, (_TAIL, 1 - _TAIL)) / n_free
                # A few counts may be nearly equal by chance.
                self._steady[name] = (mean * low if n_free >= _MANY else 0.0, mean * high)
        return samples

    def fit(self, process: Arrivals, samples: list[Measures] | None = None) -> Fit:
        """Return how a process compares; one that is far off is judged by its first samples."""
        if samples is None:
            n_first = -(-self._n // 7)
            samples = self._sample(process, n_first)
            if not self._is_far_off(samples):
                samples += self._sample(process, self._n, n_first)
        medians = median_measures(samples)
        errors = relative_errors(self.trace, medians)
        failed = dict(self._failures(medians, errors))
        if not failed:
            return Fit(process, None, medians, errors)
        worst = max(failed, key=failed.__getitem__)
        model, truth = (
            "not known" if value is None else f"{value:.3g}"
            for value in (medians.get(worst), self.trace.get(worst))
        )
        reason = f"{measure_words(worst)} is {model}, the trace's is {truth}"
        return Fit(process, reason, medians, errors)

    def _is_far_off(self, samples: list[Measures]) -> bool:
        """Return whether each sample is far off the trace in a measure that varies little."""
        return any(
            all(_log_ratio(sample.get(name), self.trace[name]) > _FAR for sample in samples)
            and not self._is_steady(name, self.trace)
            for name in self._judged()
            if name == BUSIEST or n_bins(name, self._duration_s) > _MANY
        )

    def _judged(self) -> list[str]:
        """Return the measures of the trace that models are judged by."""
        return [
            name
            for name in JUDGED
            if self.trace.get(name) is not None
            and (name == BUSIEST or n_bins(name, self._duration_s) >= MIN_JUDGED_BINS)
        ]

    def left_out(self) -> list[str]:
        """Return the dispersions of the trace that have too few bins to judge by."""
        return [name for name in JUDGED if name in self.trace and name not in self._judged()]

    def _failures(self, medians: Measures, errors: Measures) -> Iterator[tuple[str, float]]:
        for name in self._judged():
            error = errors[name]
            if error is not None and abs(error) <= REACH:
                continue
            if not (self._is_steady(name, medians) and self._is_steady(name, self.trace)):
                yield name, _log_ratio(medians.get(name), self.trace[name])

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
    seconds = int(scale[:-1])
    over = f"{seconds} s" if seconds < 60 else f"{seconds // 60} min"
    over = "1 h" if seconds == 3600 else over
    if what == "busiest":
        return f"the number of requests in the busiest {over}"
    return f"the {what} of counts over {over}"


def fit_profiles(times: np.ndarray, trace: Measures) -> list[Rescaled]:
    """Return profiles, the coarsest first, whose dispersion is near the trace's by its formula.

    If no profile is near, the nearest one; none of a trace that is too short. The gaps' shape is
    the one that brings the dispersion of the counts nearest to the trace's over all scales.
    """
    end_s, per_second, judged = float(times[-1]), count_seconds(times), []
    named = {scale: trace.get(f"dispersion_{scale}s") for scale in SCALES_S}
    scales = {scale: value for scale, value in named.items() if value}
    for bin_s in _BINS_S:
        n_counts = int(np.ceil(end_s / bin_s))
        if not (2 <= n_counts <= MAX_BINS and len(times) / n_counts >= MIN_PER_BIN and scales):
            continue
        counts = np.add.reduceat(per_second, np.arange(0, len(per_second), bin_s))
        counts = np.append(counts[: n_counts - 1], counts[n_counts - 1 :].sum())
        alpha, error = _best_shape(counts, bin_s, end_s, scales)
        judged.append((error, Rescaled(float(bin_s), tuple(counts.tolist()), end_s, alpha)))
    near = [process for error, process in judged if error < np.log(1.1)]
    return near or [process for _, process in sorted(judged, key=lambda each: each[0])[:1]]


def _best_shape(
    counts: np.ndarray, bin_s: float, end_s: float, scales: dict[int, float]
) -> tuple[float, float]:
    """Return the shape of the gaps, and how far the worst dispersion is then off (|ln ratio|).

    `scales` has the trace's dispersion by scale (s).
    """
    edges = np.minimum(np.arange(len(counts) + 1) * bin_s, end_s)
    expected = np.concatenate([[0.0], np.cumsum(counts, dtype=float)])
    parts: list[tuple[float, float, float]] = []
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
