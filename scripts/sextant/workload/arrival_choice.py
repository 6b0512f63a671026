"""Which model of the arrivals a workload has: the simplest that is as bursty as the trace."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy  # its parts load at first use

from sextant.base.errors import InputError
from sextant.workload.arrival_fits import (
    fit_clients,
    fit_markov,
    fit_mirrored,
    fit_one_gamma,
    fit_rescaled,
)
from sextant.workload.arrival_measures import (
    BUSIEST,
    JUDGED,
    ArrivalTally,
    Measures,
    Times,
    count_measures,
    is_judged,
    median_measures,
    n_bins,
    relative_errors,
    tally_arrivals,
)
from sextant.workload.arrivals import ALL_AT_ONCE, ArrivalModel, fit_arrivals
from sextant.workload.generators import Arrivals, Gamma
from sextant.workload.markov import Markov, markov_counts
from sextant.workload.modulated import Clients
from sextant.workload.seeds import Seed, child_seed
from sextant.workload.trace_stream import TraceTimes, read_arrivals, survey_trace

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
