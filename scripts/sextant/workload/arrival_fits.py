"""Models of arrivals fitted to a trace's times; `arrival_choice` judges them.

Each `fit_…` returns a process, or the reason why there is none.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import scipy  # its parts load at first use

from sextant.workload.arrival_measures import (
    SCALES_S,
    ArrivalTally,
    Measures,
    Times,
    batches_of,
    gaps_of,
)
from sextant.workload.arrivals import ArrivalModel
from sextant.workload.gamma import fit_gamma
from sextant.workload.generators import Gamma
from sextant.workload.markov import Markov
from sextant.workload.modulated import Clients, Mirrored, Rescaled
from sextant.workload.trace_stream import ArrivalBatch
from sextant.workload.windows import WINDOW_S, fit_shapes

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

Judge = Callable[[Sequence[Markov]], list[tuple[Measures, float]]]
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
    times: Times, rate_rps: float, duration_s: float, trace: Measures, judge: Judge
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
