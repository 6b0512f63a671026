"""Models of arrivals fitted to a trace's times; `arrival_choice` judges them.

Each `fit_…` returns a process, or the reason why there is none.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy

from sextant.base.errors import InputError
from sextant.workload.arrivals import (
    ALL_AT_ONCE,
    BUSIEST,
    JUDGED,
    SCALES_S,
    ArrivalTally,
    Measures,
    count_measures,
    fit_arrivals,
    is_judged,
    median_measures,
    n_bins,
    relative_errors,
    tally_arrivals,
)
from sextant.workload.gamma import fit_gamma
from sextant.workload.generators import (
    Arrivals,
    Clients,
    Gamma,
    Mirrored,
    Rescaled,
    Seed,
    Times,
    batches_of,
    child_seed,
    gaps_of,
)
from sextant.workload.markov import Markov, markov_counts
from sextant.workload.trace_arrivals import ArrivalModel
from sextant.workload.windows import (
    WINDOW_S,
    ArrivalBatch,
    TraceTimes,
    fit_shapes,
    read_arrivals,
    survey_trace,
)

CLIENT_WINDOW_S = 600.0
"""ServeGen's window for a client."""
MAX_CLIENTS, MAX_CLIENT_WINDOWS = 256, 200_000
MAX_BINS = 20_000
"""Most bins of a profile: `arrivals.json` stays small."""
MIN_PER_BIN = 10.0
"""Fewest requests of a profile's mean bin: with fewer the profile would be a replay."""
_BINS_S = (600, 300, 120, 60, 30, 20, 10, 5, 2, 1)
_ALPHAS = (0.02, 100.0)
_FEWEST = 3
_ROUNDS = 3
_CHANGES = 10
"""Relaxation times that a trace lasts at least: a slower chain would be a trend, and not chance."""
_FINER = 1.4
"""Factor between shares of the time on in the later rounds."""
_RUN = 32
"""Gaps of a run in which the rate is taken as constant."""
_MOST_IN_RUNS = 1 << 20
_LEAST_VARIANCE = 1e-6
_ON_FRACTIONS: tuple[float, ...] = (1.0, 0.5, 0.2, 0.05)
"""Shares of the time on that are tried, of the largest possible."""

MarkovJudge = Callable[[Sequence[Markov]], list[tuple[Measures, float]]]
"""Returns the median measures of samples of each process, and how far they are off."""


def fit_one_gamma(model: ArrivalModel) -> Gamma | str:
    """Return the Gamma process of a whole trace."""
    if model.alpha is None or model.beta_s is None:
        return str(model.reason)
    return Gamma(1 / (model.alpha * model.beta_s), model.alpha)


def fit_mirrored(times: Times, end_s: float, clock_step_s: float | None) -> Mirrored | str:
    """Return Gamma gaps per window; one without a fit is Poisson at its counted rate."""
    if not end_s > WINDOW_S:
        return f"the trace is no longer than a window of {WINDOW_S:g} s"
    nobody = np.zeros(0)
    batches = (
        ArrivalBatch(batch, np.zeros(len(batch), np.int16), nobody) for batch in batches_of(times)
    )
    return _mirrored(batches, 1, end_s, clock_step_s, WINDOW_S)[0]


def fit_clients(
    batches: Iterator[ArrivalBatch], n_clients: int, end_s: float, clock_step_s: float | None
) -> Clients | str:
    """Return clients with Gamma gaps per window each; a batch's groups number them from 0."""
    if n_clients > MAX_CLIENTS:
        return f"{n_clients} clients are more than {MAX_CLIENTS}"
    if n_clients * end_s > MAX_CLIENT_WINDOWS * CLIENT_WINDOW_S:
        return f"{n_clients} clients have more than {MAX_CLIENT_WINDOWS} windows"
    return Clients(_mirrored(batches, n_clients, end_s, clock_step_s, CLIENT_WINDOW_S))


def _mirrored(
    batches: Iterator[ArrivalBatch],
    n_groups: int,
    end_s: float,
    clock_step_s: float | None,
    window_s: float,
) -> tuple[Mirrored, ...]:
    step_s = np.nan if clock_step_s is None else clock_step_s
    found = fit_shapes(batches, n_groups, end_s, step_s, window_s)
    start_s, duration_s = (tuple(found[name].tolist()) for name in ("start_s", "duration_s"))
    own = zip(found["n_requests"].tolist(), found["alpha"].tolist(), strict=True)
    return tuple(Mirrored(start_s, duration_s, tuple(n), tuple(alpha)) for n, alpha in own)


def fit_rescaled(tally: ArrivalTally, trace: Measures) -> list[Rescaled] | str:
    """Return profiles, the coarsest first, whose dispersion is near the trace's by its formula.

    If there are none, the nearest one. The gaps' shape is the one that brings the dispersion of
    the counts nearest to the trace's over all scales.
    """
    end_s, found = tally.last_s, []
    scales = dispersed(trace)
    for bin_s in _BINS_S:
        n_bins = int(np.ceil(end_s / bin_s))
        if not (2 <= n_bins <= MAX_BINS and tally.n / n_bins >= MIN_PER_BIN):
            continue
        counts = np.add.reduceat(tally.per_second, np.arange(0, len(tally.per_second), bin_s))
        counts = np.append(counts[: n_bins - 1], counts[n_bins - 1 :].sum())
        alpha, error = _best_shape(counts, bin_s, end_s, scales)
        found.append((error, Rescaled(float(bin_s), tuple(counts.tolist()), end_s, alpha)))
    if not found or not scales:
        return f"the trace is too short, or has fewer than {MIN_PER_BIN:g} requests a bin"
    near = [process for error, process in found if error < np.log(1.1)]
    return near or [min(found, key=lambda each: each[0])[1]]


def dispersed(trace: Measures) -> dict[int, float]:
    """Return the dispersion of a trace by the scale (s) that it has one of."""
    named = {scale: trace.get(f"dispersion_{scale}s") for scale in SCALES_S}
    return {scale: value for scale, value in named.items() if value}


def _best_shape(
    counts: np.ndarray, bin_s: float, end_s: float, scales: Mapping[int, float]
) -> tuple[float, float]:
    """Return the shape of the gaps, and how far the worst dispersion is then off (|ln ratio|)."""
    edges = np.minimum(np.arange(len(counts) + 1) * bin_s, end_s)
    expected = np.concatenate([[0.0], np.cumsum(counts, dtype=float)])
    parts: list[tuple[float, float, float]] = []
    for scale_s, dispersion in scales.items():
        whole = np.diff(np.interp(np.arange(int(end_s // scale_s) + 1) * scale_s, edges, expected))
        parts.append((whole.mean(), whole.var(ddof=1) / whole.mean(), dispersion))
    mean, profile, truth = np.array(parts).T if parts else np.ones((3, 1))

    def error(log_alpha: float) -> float:
        model = profile + gamma_dispersion(np.exp(log_alpha), mean)
        return float(np.abs(np.log(model / truth)).max())

    best = scipy.optimize.minimize_scalar(error, bounds=np.log(_ALPHAS), method="bounded")
    return _rounded(np.exp(best.x)), float(best.fun)


def gamma_dispersion(alpha: float, mean: np.ndarray) -> np.ndarray:
    """Return the dispersion of counts of mean `mean` in a Gamma renewal process.

    1 for the shortest bins, and for long ones 1/α + (1 - 1/α²) / (6 mean) (Cox, Renewal theory,
    1962, 4.5); between the two a fraction that has both limits.
    """
    short = 1 / (1 + 6 * mean / (1 + 1 / alpha))
    return 1 / alpha + (1 - 1 / alpha) * short


def fit_markov(
    times: Times, rate_rps: float, duration_s: float, trace: Measures, judge: MarkovJudge
) -> Markov | str:
    """Return chains whose counts are dispersed like the trace's at every scale.

    By moments: what a chain of relaxation time τ adds to the dispersion over T is W · h(T / τ),
    h(x) = 1 - (1 - exp(-x)) / x, with W = 2 · rate · variance · τ of its share of the rate. The
    mean of a sample's dispersion of m bins lacks what varies slower than the sample; the same sum
    says how much (`_design`). Weights are non-negative least squares of relative errors. How much
    of the time a chain is on is tried out, for the busiest minute; where the medians of samples
    are off, the targets are moved and all is fitted again.
    """
    scales = dispersed(trace)
    if len(scales) < _FEWEST:
        return "the trace is too short for the counts of three scales"
    truth = np.array(list(scales.values()))
    time_s = np.geomspace(0.5, max(duration_s / _CHANGES, 1.0), 16)
    scale_s = np.array(list(scales), float)
    design, alpha = _design(scale_s, duration_s, time_s), _local_shape(times, rate_rps * duration_s)
    gaps = gamma_dispersion(alpha, rate_rps * scale_s)
    target, shares = truth, _ON_FRACTIONS
    best: tuple[float, Markov] | None = None
    for _ in range(_ROUNDS):
        more = np.maximum(target - gaps, 0) / target
        variance = scipy.optimize.nnls(design / target[:, None], more)[0] / (2 * rate_rps * time_s)
        tried = [_chains(variance, time_s, share, rate_rps, alpha) for share in shares]
        processes = [process for process in tried if process]
        if not processes:
            break
        judged = zip(judge(processes), shares, processes, strict=True)
        (medians, error), share, process = min(judged, key=lambda each: each[0][1])
        if best is None or error < best[0]:
            best = (error, process)
        shares = (share / _FINER, share, min(share * _FINER, 1.0))
        found = np.array([medians[f"dispersion_{scale}s"] or 1.0 for scale in scales])
        target = target * np.clip(truth / found, 0.5, 2.0)
    return best[1] if best else "the rate does not vary"


def _local_shape(times: Times, n: float) -> float:
    """Return the shape of gaps within runs so short that the rate hardly changes; 1: not known.

    Of a long trace every k-th run of a batch is fitted.
    """
    every, found = math.ceil(n / _MOST_IN_RUNS), []
    for gaps in gaps_of(times):
        runs = gaps[: len(gaps) // _RUN * _RUN].reshape(-1, _RUN)[::every]
        with np.errstate(divide="ignore"):
            logs = np.log(runs).sum(axis=1)
        found.append(fit_gamma(np.array([_RUN]), runs.sum(axis=1), logs).alpha)
    alpha = np.concatenate(found)
    if not np.isfinite(alpha).any():
        return 1.0
    # The estimate from n gaps is 3 / n too high on average.
    return _rounded(np.clip(np.nanmedian(alpha) * (1 - 3 / _RUN), *_ALPHAS))


def _design(scale_s: np.ndarray, duration_s: float, time_s: np.ndarray) -> np.ndarray:
    """Return what each chain adds to the mean dispersion of a sample: a row a scale.

    Of m whole bins, E[s²] = (m V(T) - V(mT) / m) / (m - 1), V being the variance of a count.
    """
    n_bins = np.floor(duration_s / scale_s)[:, None]

    def added(lasting_s: np.ndarray) -> np.ndarray:
        x = lasting_s / time_s
        return 1 + np.expm1(-x) / x

    own, whole = added(scale_s[:, None]), added(n_bins * scale_s[:, None])
    return (n_bins * own - whole) / (n_bins - 1)


def _chains(
    variance: np.ndarray, time_s: np.ndarray, share: float, rate_rps: float, alpha: float
) -> Markov | None:
    """Return chains with these variances, on for a share of the largest possible part of time."""
    is_chain = variance > _LEAST_VARIANCE
    if not is_chain.any():
        return None
    spread = np.sqrt(variance[is_chain])
    # The rate is never negative: the odds of being on are at most 1 / (sum of spreads)².
    on = _rounded(share * min(0.5, 1 / (1 + float(spread.sum()) ** 2)))
    swing = spread / np.sqrt(on * (1 - on))
    times, swings = (tuple(map(_rounded, own)) for own in (time_s[is_chain], swing))
    return Markov(rate_rps, alpha, times, swings, on)


def _rounded(value: float) -> float:
    """Return a parameter without the digits in which machines differ."""
    return float(f"{value:.6g}")


MODELS = {
    "gamma": "one Gamma process",
    "windows": "a Gamma process per window",
    "clients": "clients with windows of their own",
    "markov": "a Markov-modulated Gamma process",
    "rescaled": "a rate profile with Gamma gaps",
    "replay": "a replay of the trace",
}
"""In the order of simplicity, which is that of trying; in words."""
REACH = 0.1
"""Largest relative error of a judged measure."""
MOST_SAMPLES, FEWEST_SAMPLES = 21, 3
_SAMPLED_REQUESTS = 2_000_000
"""Requests to draw for a model's samples: of long traces chance is small and samples are few."""
_MOST_SECONDS = 1_000_000
"""Seconds that the search for chains counts singly."""
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
    """The models that were tried, up to the one that passed; the trace itself is the last."""

    model: str
    """One of `MODELS`."""
    why: str
    trace: Measures | None
    fits: dict[str, Fit]
    left_out: Sequence[str] = ()
    """Dispersions of the trace that are not judged: fewer than `MIN_JUDGED_BINS` bins."""


class Judge:
    """Compares samples of processes with a trace."""

    def __init__(self, tally: ArrivalTally, seed: Seed) -> None:
        self.trace, self.n_requests, self.duration_s = tally.measures(), tally.n, tally.last_s
        self._seed = seed
        self._n = min(MOST_SAMPLES, max(FEWEST_SAMPLES, _SAMPLED_REQUESTS // tally.n))
        self._steady: dict[str, tuple[float, float]] = {}

    def sample(self, process: Arrivals, n: int | None = None, first: int = 0) -> list[Measures]:
        """Return the measures of seeded samples as long as the trace."""
        found = []
        for number in range(first, n or self._n):
            seed = child_seed(self._seed, number)
            drawn = tally_arrivals(process.batches(self.duration_s, seed))
            if drawn.n:
                found.append(drawn.measures(self.duration_s))
        return found

    def learn_chance(self, steady: Gamma) -> list[Measures]:
        """Learn which measures chance alone gives steady traffic; return those of the samples."""
        samples = self.sample(steady)
        for name in JUDGED:
            known = [value for sample in samples if (value := sample.get(name)) is not None]
            if len(known) < 2:
                continue
            mean = float(np.mean(known))
            if name.startswith("busiest"):
                reach = _Z_99 * float(np.std(known, ddof=1))
                self._steady[name] = (mean - reach, mean + reach)
            else:
                n_free = n_bins(name, self.duration_s) - 1
                # Quantiles of χ² over its degrees of freedom.
                low, high = 2 * scipy.special.gammaincinv(n_free / 2, (_TAIL, 1 - _TAIL)) / n_free
                # A few counts may be as good as equal by chance, which says nothing.
                self._steady[name] = (mean * low if n_free >= _MANY else 0.0, mean * high)
        return samples

    def fit(self, process: Arrivals, samples: list[Measures] | None = None) -> Fit:
        """Return how a process compares; of a hopeless one few samples are drawn."""
        if samples is None:
            n_first = -(-self._n // 7)
            samples = self.sample(process, n_first)
            if not self._is_hopeless(samples):
                samples += self.sample(process, first=n_first)
        medians = median_measures(samples)
        errors = relative_errors(self.trace, medians)
        failed = {name: error for name, error in self._failures(medians, errors)}
        if not failed:
            return Fit(process, None, medians, errors)
        worst = max(failed, key=failed.__getitem__)
        reason = f"{measure_words(worst)} is {_short(medians.get(worst))}"
        reason += f", the trace's is {_short(self.trace.get(worst))}"
        return Fit(process, reason, medians, errors)

    def distances(self, processes: Sequence[Markov]) -> list[tuple[Measures, float]]:
        """Return medians of a few samples of each, and how far they are off: the busiest minute,
        and the mean of the dispersions (|ln ratio| each).
        """
        # Of a long trace the counts per second are those of its beginning: they cost the most.
        fine_s = min(math.ceil(self.duration_s / 10) * 10, _MOST_SECONDS)
        coarse_s = np.arange(fine_s, self.duration_s, 10)[1:]
        at_s = np.concatenate([np.arange(fine_s + 1.0), coarse_s, [self.duration_s]])
        at_s = np.unique(np.minimum(at_s, self.duration_s))
        samples: list[list[Measures]] = [[] for _ in processes]
        for number in range(max(self._n // 3, 1)):
            counts = markov_counts(processes, at_s, child_seed(self._seed, number))
            for found, so_far in zip(samples, counts, strict=True):
                found.append(self._of_counts(np.diff(so_far), fine_s))
        return [self._distance(median_measures(found)) for found in samples]

    def _of_counts(self, counts: np.ndarray, fine_s: int) -> Measures:
        """Return the measures of counts per second until `fine_s`, and per 10 s from there on."""
        fine = counts[:fine_s]
        by_ten = np.add.reduceat(fine, np.arange(0, len(fine), 10))
        found = count_measures(np.append(by_ten, counts[fine_s:]), 10, self.duration_s)
        return count_measures(fine, 1, min(fine_s, self.duration_s)) | found

    def _distance(self, medians: Measures) -> tuple[Measures, float]:
        known = [name for name in JUDGED if self.trace.get(name) is not None]
        off = {name: _log_ratio(medians.get(name), self.trace[name]) for name in known}
        dispersion = [value for name, value in off.items() if name.startswith("dispersion")]
        return medians, off[BUSIEST] + float(np.mean(dispersion))

    def _is_hopeless(self, samples: list[Measures]) -> bool:
        """Return whether each sample is far off the trace in a measure that varies little."""
        return any(
            all(_log_ratio(sample.get(name), self.trace[name]) > _FAR for sample in samples)
            and not self._is_steady(name, self.trace)
            for name in self.judged()
            if name.startswith("busiest") or n_bins(name, self.duration_s) > _MANY
        )

    def judged(self) -> list[str]:
        """Return the measures of the trace that models are judged by."""
        known = [name for name in JUDGED if self.trace.get(name) is not None]
        return [name for name in known if is_judged(name, self.duration_s)]

    def left_out(self) -> list[str]:
        """Return the dispersions of the trace that have too few bins to judge by."""
        return [name for name in JUDGED if name in self.trace and name not in self.judged()]

    def _failures(self, medians: Measures, errors: Measures) -> Iterator[tuple[str, float]]:
        for name in self.judged():
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


def _short(value: float | None) -> str:
    return "not known" if value is None else f"{value:.3g}"


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


def fit_trace_arrivals(trace: str | Path, seed: Seed) -> tuple[ArrivalModel, ArrivalChoice]:
    """Return a trace's one Gamma process, and the model of its arrivals that was chosen.

    The trace is read several times, in batches. Raises InputError: see `survey_trace`,
    `ArrivalTally.add`.
    """
    survey, times = survey_trace(trace), TraceTimes(trace)
    gamma = fit_arrivals(times, seed=seed)
    clients = None
    if len(survey.groups) > 1 and survey.end_s > 0:
        rows = read_arrivals(trace, survey.groups, None)
        clients = fit_clients(rows, len(survey.groups), survey.end_s, gamma.clock_step_s)
    try:
        return gamma, choose_arrivals(times, gamma, clients=clients, seed=seed)
    except InputError as error:
        raise error.at(file=trace) from None


def choose_arrivals(
    times: Times,
    gamma: ArrivalModel,
    *,
    clients: Clients | str | None = None,
    seed: Seed = 0,
) -> ArrivalChoice:
    """Return the simplest model whose samples are as bursty as the trace, else a replay.

    A model passes if the medians over its samples are within 10% of the trace in the dispersion at
    every scale of `MIN_JUDGED_BINS` bins or more, and in the busiest minute. Where a trace is so
    short or steady that a measure lies within what chance gives a steady Gamma process, the
    model's has to lie there too, and no more is asked. Models after the one that passes are fitted
    as well, so that a scenario may ask for them.

    Args:
        times: ascending, from 0.
        gamma: the whole trace's fit, which knows the clock.
        clients: of a trace that names several LLMs or services, what `fit_clients` returns.
        seed: of all samples.
    """
    tally = tally_arrivals(times)
    if tally.n < 3 or gamma.rate_rps is None:
        few = f"{tally.n} requests are too few for any model"
        why = ALL_AT_ONCE if tally.n >= 3 else few
        return ArrivalChoice("replay", why, tally.measures(), {})
    judge = Judge(tally, seed)
    fits = _fit_all(times, tally, judge, gamma, clients)
    passed = next((name for name, fit in fits.items() if fit.process and not fit.reason), "replay")
    names = list(MODELS)
    before = [name for name in names[: names.index(passed)] if name in fits]
    said = [f"{MODELS[name]}: {fits[name].reason}" for name in before]
    why = "; ".join(said) or "it is the simplest"
    return ArrivalChoice(passed, why, judge.trace, fits, judge.left_out())


def _fit_all(
    times: Times,
    tally: ArrivalTally,
    judge: Judge,
    gamma: ArrivalModel,
    clients: Clients | str | None,
) -> dict[str, Fit]:
    trace, duration_s, step_s = judge.trace, judge.duration_s, gamma.clock_step_s
    rate_rps = tally.n / duration_s
    one = fit_one_gamma(gamma)
    steady = judge.learn_chance(Gamma(rate_rps, 1.0) if isinstance(one, str) else one)
    fits = {"gamma": Fit(None, one) if isinstance(one, str) else judge.fit(one, steady)}
    found: dict[str, Arrivals | str] = {"windows": fit_mirrored(times, duration_s, step_s)}
    if clients is not None:
        found["clients"] = clients
    found["markov"] = fit_markov(times, rate_rps, duration_s, trace, judge.distances)
    for name, process in found.items():
        fits[name] = Fit(None, process) if isinstance(process, str) else judge.fit(process)
    profiles = fit_rescaled(tally, trace)
    if isinstance(profiles, str):
        return fits | {"rescaled": Fit(None, profiles)}
    for profile in profiles:
        fits["rescaled"] = judge.fit(profile)
        if fits["rescaled"].reason is None:
            break
    return fits
