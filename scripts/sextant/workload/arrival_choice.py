"""Which model of the arrivals a workload has: the simplest that is as bursty as the trace."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy  # its parts load at first use

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
    Measures,
    measure_arrivals,
    median_measures,
    relative_errors,
)
from sextant.workload.arrivals import ALL_AT_ONCE, ArrivalModel
from sextant.workload.generators import Arrivals, Gamma
from sextant.workload.seeds import Seed, child_seed

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


class Judge:
    """Compares samples of processes with a trace."""

    def __init__(self, trace: Measures, n: int, duration_s: float, seed: Seed) -> None:
        self.trace, self.n_requests, self.duration_s = trace, n, duration_s
        self._seed = seed
        self._n = min(MOST_SAMPLES, max(FEWEST_SAMPLES, _SAMPLED_REQUESTS // n))
        self._steady: dict[str, tuple[float, float]] = {}

    def sample(self, process: Arrivals, n: int | None = None, first: int = 0) -> list[Measures]:
        """Return the measures of seeded samples as long as the trace."""
        found = []
        for number in range(first, n or self._n):
            seed = child_seed(self._seed, number)
            times = process.times(duration_s=self.duration_s, seed=seed)
            if len(times):
                found.append(measure_arrivals(times, self.duration_s))
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
                n_free = self._n_free(name)
                low, high = scipy.stats.chi2.ppf((_TAIL, 1 - _TAIL), n_free) / n_free
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

    def distance(self, process: Arrivals) -> tuple[Measures, float]:
        """Return medians of a few samples, and how far they are off: the busiest minute, and the
        mean of the dispersions (|ln ratio| each).
        """
        medians = median_measures(self.sample(process, max(self._n // 3, 1)))
        off = {name: _log_ratio(medians.get(name), self.trace[name]) for name in self._judged()}
        dispersion = [value for name, value in off.items() if name.startswith("dispersion")]
        return medians, off[BUSIEST] + float(np.mean(dispersion))

    def _is_hopeless(self, samples: list[Measures]) -> bool:
        """Return whether each sample is far off the trace in a measure that varies little."""
        return any(
            all(_log_ratio(sample.get(name), self.trace[name]) > _FAR for sample in samples)
            and not self._is_steady(name, self.trace)
            for name in self._judged()
            if name.startswith("busiest") or self._n_free(name) >= _MANY
        )

    def _n_free(self, name: str) -> float:
        """Return the degrees of freedom of the variance of a scale's counts."""
        return self.duration_s // int(name.split("_")[1][:-1]) - 1

    def _judged(self) -> list[str]:
        return [name for name in JUDGED if self.trace.get(name) is not None]

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


def choose_arrivals(
    arrival_s: np.ndarray,
    gamma: ArrivalModel,
    *,
    client: np.ndarray | None = None,
    seed: Seed = 0,
) -> ArrivalChoice:
    """Return the simplest model whose samples are as bursty as the trace, else a replay.

    A model passes if the medians over its samples are within 10% of the trace in the dispersion at
    every scale and in the busiest minute. Where a trace is so short or so steady that a measure
    lies within what chance gives a steady Gamma process, the model's has to lie there too, and
    no more is asked. Models after the one that passes are fitted as well, so that a scenario may
    ask for them.

    Args:
        arrival_s: ascending, from 0.
        gamma: the whole trace's fit, which knows the clock.
        client: number of the client of each request, e.g. of its LLM and service.
        seed: of all samples.
    """
    if len(arrival_s) < 3 or not arrival_s[-1] > arrival_s[0]:
        measures = measure_arrivals(arrival_s) if len(arrival_s) else None
        few = f"{len(arrival_s)} requests are too few for any model"
        why = ALL_AT_ONCE if len(arrival_s) >= 3 else few
        return ArrivalChoice("replay", why, measures, {})
    trace = measure_arrivals(arrival_s)
    judge = Judge(trace, len(arrival_s), float(arrival_s[-1]), seed)
    fits = _fit_all(arrival_s, trace, judge, gamma, client)
    passed = next((name for name, fit in fits.items() if fit.process and not fit.reason), "replay")
    names = list(MODELS)
    before = [name for name in names[: names.index(passed)] if name in fits]
    said = [f"{MODELS[name]}: {fits[name].reason}" for name in before]
    return ArrivalChoice(passed, "; ".join(said) or "it is the simplest", trace, fits)


def _fit_all(
    arrival_s: np.ndarray,
    trace: Measures,
    judge: Judge,
    gamma: ArrivalModel,
    client: np.ndarray | None,
) -> dict[str, Fit]:
    duration_s, step_s = float(arrival_s[-1]), gamma.clock_step_s
    one = fit_one_gamma(gamma)
    poisson = Gamma(len(arrival_s) / duration_s, 1.0)
    steady = judge.learn_chance(poisson if isinstance(one, str) else one)
    fits = {"gamma": Fit(None, one) if isinstance(one, str) else judge.fit(one, steady)}
    found: dict[str, Arrivals | str] = {"windows": fit_mirrored(arrival_s, step_s)}
    if client is not None and len(np.unique(client)) > 1:
        found["clients"] = fit_clients(arrival_s, client, step_s)
    found["markov"] = fit_markov(arrival_s, trace, judge.distance)
    for name, process in found.items():
        fits[name] = Fit(None, process) if isinstance(process, str) else judge.fit(process)
    profiles = fit_rescaled(arrival_s, trace)
    if isinstance(profiles, str):
        return fits | {"rescaled": Fit(None, profiles)}
    for profile in profiles:
        fits["rescaled"] = judge.fit(profile)
        if fits["rescaled"].reason is None:
            break
    return fits
