"""What is asked of replicas: the requests that arrive, and what has to hold in every window."""

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from statistics import NormalDist
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.facts.slo import MAX_FAILED, Limit
from sextant.simulate.simulation import SimulatedRequests as SimulatedRequests
from sextant.workload.lengths import Length, RequestLengths

WINDOW_S = 300.0
COLUMNS = ("arrival_s", "input_tokens", "output_tokens")
_PREFIX = ("prefix_id", "prefix_tokens")
_TURN = ("parent", "think_s", "session")
_BURSTS_S = (1, 10, 60)
MANY, PEAK = 20_000, 5_000
"""Of more requests than `MANY` the busiest windows, of `PEAK` requests, are simulated first."""
_MOST_SUMMED = 64  # gaps that are drawn one by one


class Gaps(NamedTuple):
    """Requests arrive at random at a steady rate, so that one replica tells of all."""

    alpha: float  # shape of Gamma gaps; 1: Poisson
    seed: int
    draw: int


@dataclass(frozen=True)
class RequestStream:
    """Requests in the order of arrival."""

    name: str
    arrival_s: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    duration_s: float
    start_time: datetime | None = None  # date and time of `arrival_s` = 0, where the trace has one
    n_of_trace: int | None = None
    """Requests of the whole trace, where only its busiest windows are kept."""
    n_failed: int = 0  # Requests that failed in the trace and are left out: of unknown lengths.
    prefix_id: np.ndarray | None = None
    """With `prefix_tokens`, which requests begin alike, and how far, as in `simulate.Requests`."""
    prefix_tokens: np.ndarray | None = None
    parent: np.ndarray | None = None
    """With `think_s`, whose answers turns wait for, and how long then, as in `simulate.Requests`;
    `session` is a number for each session, -1: none."""
    think_s: np.ndarray | None = None
    session: np.ndarray | None = None
    clock_step_s: float | None = None
    """Step of the trace's clock, over which equal stamps were spread; None: it was fine."""
    factor: float = 1.0  # how many times the trace's requests these are
    speed: float = 1.0  # how many times as fast as in the trace they arrive
    lengths_of_trace: tuple[float, float] | None = None
    """Mean input and output tokens of the whole trace; None where requests are drawn."""
    gaps: Gaps | None = None  # in place of `arrival_s`: these are requests of one of the replicas

    @property
    def n(self) -> int:
        """Number of requests."""
        return len(self.arrival_s)

    @property
    def rate_rps(self) -> float:
        """Mean rate of the whole trace, also where only a part is kept."""
        return (self.n_of_trace or self.n) / self.duration_s

    @property
    def mean_lengths(self) -> tuple[float, float]:
        """Mean input and output tokens, of the whole trace where only a part is kept."""
        own = float(self.input_tokens.mean()), float(self.output_tokens.mean())
        return self.lengths_of_trace or own

    @property
    def repeated_share(self) -> float:
        """Share of the input tokens that repeat the beginning of an earlier request."""
        if self.prefix_id is None:
            return 0.0
        tokens = pd.Series(self.prefix_tokens)
        before = tokens.groupby(self.prefix_id).transform(lambda own: own.cummax().shift())
        repeated = np.minimum(before.fillna(0), tokens).sum()
        return float(repeated / self.input_tokens.sum())

    def n_windows(self, window_s: float | None) -> int:
        """Return how many windows the time has; less than half a window joins the last one."""
        return max(math.floor(self.duration_s / window_s + 0.5), 1) if window_s else 1

    def at_speed(self, speed: float) -> "RequestStream":
        """Return the same requests `speed` times as fast: all gaps are divided by it."""
        arrival_s, duration_s = self.arrival_s / speed, self.duration_s / speed
        speed *= self.speed
        return replace(self, arrival_s=arrival_s, duration_s=duration_s, speed=speed)

    def of_one(self, replicas: int) -> "RequestStream":
        """Return what one of so many replicas that take turns gets of requests with `gaps`. A gap
        is the sum of `replicas` gaps of all requests, so that with more replicas each one is
        longer. The likeliest draw has the mean gap that the rate says."""
        assert self.gaps is not None
        alpha, seed, draw = self.gaps
        rng = np.random.default_rng([seed, draw, 1])  # lengths have a stream of their own
        summed = min(replicas, _MOST_SUMMED)
        gaps = rng.standard_gamma(alpha, (summed, self.n)).sum(axis=0)
        if replicas > summed:
            gaps += rng.standard_gamma(alpha * (replicas - summed), self.n)
        if draw == 0:
            gaps *= alpha * replicas / gaps.mean()
        return replace(self, arrival_s=gaps.cumsum() / (alpha * self.rate_rps), gaps=None)

    def at(self, places: np.ndarray | slice) -> "RequestStream":
        """Return the requests at these places."""
        names = COLUMNS + (self.prefix_id is not None) * _PREFIX + (self.parent is not None) * _TURN
        columns = {name: getattr(self, name)[places] for name in names}
        found = replace(self, **columns, n_of_trace=None, lengths_of_trace=None)
        if self.parent is None:
            return found
        own = np.arange(self.n)[places]
        return found.copied(self, own, np.zeros(len(own), int))

    def copied(
        self, whole: "RequestStream", places: np.ndarray, copies: np.ndarray
    ) -> "RequestStream":
        """Return the same requests as copies of those of `whole` at these places. Copies share no
        prefix, and wait for answers of their own copy; those that are not there nobody waits for.
        """
        found = self
        if whole.prefix_id is not None:
            own = whole.prefix_id[places]
            apart = own + copies * (int(whole.prefix_id.max()) + 1)
            found = replace(found, prefix_id=np.where(own < 0, own, apart))
        if whole.parent is None or not len(places):
            return found
        at = np.full((int(copies.max()) + 1, whole.n + 1), -1)
        at[copies, places] = np.arange(len(places))
        parent = at[copies, whole.parent[places]]  # the last column is of those without one
        # Who is moved before the answer waits for nobody.
        parent = np.where(parent < np.arange(len(places)), parent, -1)
        return replace(found, parent=parent)

    def simulated(self, shared: float = 0.0) -> SimulatedRequests:
        """Return the requests for simulations; all may have a share of their inputs in common."""
        own = self.arrival_s, self.input_tokens, self.output_tokens
        prefix, turns = (self.prefix_id, self.prefix_tokens), (self.parent, self.think_s)
        if shared:
            prefix = np.zeros(self.n), np.round(shared * self.input_tokens)
        return SimulatedRequests.of(*own, *prefix, *turns)

    def between(self, start_s: float, end_s: float) -> "RequestStream":
        """Return what arrives from `start_s` to before `end_s`; times count from `start_s`."""
        part = self.at(slice(*np.searchsorted(self.arrival_s, [start_s, end_s])))
        arrival_s = part.arrival_s - start_s
        return replace(part, arrival_s=arrival_s, duration_s=end_s - start_s)

    def peak(self, window_s: float | None) -> "RequestStream":
        """Return the requests of the busiest windows alone where there are many, else all."""
        if window_s is None or self.n <= MANY:
            return self
        window = np.floor(self.arrival_s / window_s).astype(int)
        columns = np.ones(self.n), self.input_tokens, self.output_tokens
        sums = {name: np.bincount(window, each) for name, each in zip("nio", columns, strict=True)}
        windows = busiest_windows(pd.DataFrame(sums), PEAK)
        return self if windows is None else self.at(np.isin(window, windows))

    def busiest(self, span_s: float) -> tuple[float, int]:
        """Return the start and the requests of the fullest bin, as `arrival_measures` has them."""
        counts = np.bincount((self.arrival_s // span_s).astype(int))
        place = int(counts.argmax())
        return place * span_s, int(counts[place])

    def facts(self) -> dict[str, Any]:
        """Return its figures, for an answer."""
        gaps = np.diff(self.arrival_s)
        return {
            "name": self.name,
            "n_requests": self.n_of_trace or self.n,
            "n_simulated": self.n,
            "n_failed": self.n_failed,
            "duration_s": self.duration_s,
            "start_time": self.start_time.isoformat() if self.start_time else None,
            "rate_rps": self.rate_rps,
            "gap_cv": float(gaps.std() / gaps.mean()) if gaps.sum() > 0 else None,
            "mean_input_tokens": self.mean_lengths[0],
            "mean_output_tokens": self.mean_lengths[1],
            "longest_request_tokens": int((self.input_tokens + self.output_tokens).max()),
            "busiest": {f"{span_s}s": self.busiest(span_s)[1] for span_s in _BURSTS_S},
        }


def busiest_windows(load: pd.DataFrame, most: float) -> tuple[int, ...] | None:
    """Return the windows of the most requests or tokens, each with the one before it, in which
    queues build up: of `most` requests together, or one; None for all. `load` has a row per window,
    its number as the index: requests, then tokens of each side."""
    n = load.iloc[:, 0]
    if n.sum() <= most:
        return None
    ranked = (load / load.max()).max(axis=1).sort_values(ascending=False, kind="stable")
    kept, total = set[int](), 0
    for place in ranked.index:
        more = {place - 1, place} - kept
        total += sum(n.get(each, 0) for each in more)
        if kept and total > most:
            break
        kept |= more
    return tuple(int(each) for each in sorted(kept))


class Traffic(Protocol):
    """Draws a demand: each seed is another day of the same traffic."""

    def drawn(self, seed: int) -> RequestStream:
        """Return the demand of a seed; for a trace 0 is the trace itself."""


N_REQUESTS = 1500
"""Of one replica in a simulation: enough for a 95th percentile, in milliseconds of computing."""


@dataclass(frozen=True)
class SteadyTraffic:
    """Requests that arrive at random at a steady rate; those of one replica tell of all."""

    name: str
    requests: Callable[..., pd.DataFrame]  # draws as `RequestModel.sample` does
    rate_rps: float
    alpha: float  # shape of Gamma gaps; 1: Poisson
    seed: int
    _drawn: dict[int, RequestStream] = field(default_factory=dict, repr=False, compare=False)
    """What was drawn already: every GPU profile sees the same draws."""

    def drawn(self, seed: int) -> RequestStream:
        """Return the requests of a draw; `Demand.of_one` says when they arrive at a replica."""
        if seed not in self._drawn:
            frame = self.requests(N_REQUESTS, seed=np.random.SeedSequence([self.seed, seed]))
            inputs, outputs = (frame[name].to_numpy() for name in COLUMNS[1:])
            arrival_s = np.arange(N_REQUESTS) / self.rate_rps
            duration_s, gaps = N_REQUESTS / self.rate_rps, Gaps(self.alpha, self.seed, seed)
            lengths = inputs, np.maximum(outputs, 1)
            self._drawn[seed] = RequestStream(self.name, arrival_s, *lengths, duration_s, gaps=gaps)
        return self._drawn[seed]


@dataclass(frozen=True)
class Target:
    """What replicas have to meet. Raises InputError for a wrong share or window."""

    limits: Mapping[str, Limit]  # by metric, as `SLO.limits`
    goodput: float | None = None  # least share of the requests that are answered within all limits
    max_failed: float = MAX_FAILED  # largest share of requests that are refused or time out
    window_s: float | None = WINDOW_S
    """Each window of this length is judged by itself; None judges the whole time at once."""

    def __post_init__(self) -> None:
        for name, low in (("goodput", 0.0), ("max_failed", -1e-12)):
            value = getattr(self, name)
            if value is not None and not low < value <= 1:
                fix = "give a share of the requests, from 0 to 1, e.g. 0.99"
                raise InputError(f"{value:g} is not a share", field=name, fix=fix)
        if self.window_s is not None and not 1 <= self.window_s < np.inf:
            fix = "give seconds from 1 on, e.g. 5min, or whole"
            raise InputError(f"{self.window_s:g} s is not a window", field="window", fix=fix)

    def facts(self) -> dict[str, Any]:
        """Return everything but the limits, for an answer."""
        return {each.name: getattr(self, each.name) for each in fields(self)[1:]}


class ServingResults(NamedTuple):
    """Results of requests, in the order of their arrival."""

    arrival_s: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    ttft_s: np.ndarray
    e2e_s: np.ndarray
    is_ok: np.ndarray
    itl_edges_ms: np.ndarray  # ends of the bins of the gaps between tokens, shape (bins + 1,)
    itl_counts: np.ndarray  # gaps in each window of time, shape (windows or 1, bins)


class Judged(NamedTuple):
    """Results by window. One without requests is met; its values are NaN."""

    start_s: np.ndarray
    n_requests: np.ndarray
    n_failed: np.ndarray
    latencies_ms: dict[str, np.ndarray]  # Of each limit, at its percentile, of answered requests.
    is_met: np.ndarray

    @property
    def n_missed(self) -> int:
        """Windows in which the target was missed."""
        return int((~self.is_met).sum())

    def worst_ratio(self, target: Target) -> dict[str, float]:
        """Return the largest latency over its limit, by metric; 0 where nothing was answered."""
        return {
            name: float(np.nanmax(values, initial=0.0)) / target.limits[name].limit_ms
            for name, values in self.latencies_ms.items()
        }


def judge_windows(outcome: ServingResults, target: Target, n_windows: int) -> Judged:
    """Judge each window by the requests that arrive in it, and by the gaps that end in it."""
    window_s = target.window_s or np.inf
    starts = np.arange(n_windows) * (window_s if n_windows > 1 else 1.0)
    ends = np.searchsorted(outcome.arrival_s, np.append(starts[1:], np.inf))
    begins = np.append(0, ends[:-1])

    def count(flags: np.ndarray) -> Any:
        reached = np.append(0, np.cumsum(flags))
        return reached[ends] - reached[begins]

    n_requests = ends - begins
    n_failed = n_requests - count(outcome.is_ok)
    is_met = n_failed <= target.max_failed * n_requests
    latencies, each_ms = {}, _per_request(outcome, target.limits)
    for name, limit in target.limits.items():
        share, found = limit.percentile / 100, np.full(n_windows, np.nan)
        if name == "itl":
            has_any = outcome.itl_counts.any(axis=1)
            own = histogram_quantile(outcome.itl_edges_ms, outcome.itl_counts[has_any], share)
            found[np.broadcast_to(has_any, n_windows)] = own
        else:
            values = np.where(outcome.is_ok, each_ms[name], np.nan)
            for place, (begin, end) in enumerate(zip(begins, ends, strict=True)):
                own = values[begin:end]
                if (own := own[~np.isnan(own)]).size:
                    found[place] = np.quantile(own, share, method="inverted_cdf")
        latencies[name] = found
        is_met &= ~(found > limit.limit_ms)
    if target.goodput is not None:
        share_good = count(are_good(outcome, target)) / np.maximum(n_requests, 1)
        is_met &= (share_good >= target.goodput) | (n_requests == 0)
    return Judged(starts, n_requests, n_failed, latencies, is_met)


def are_good(outcome: ServingResults, target: Target) -> np.ndarray:
    """Return which requests were answered within all limits; ITL is the mean of their own gaps."""
    limits_ms = {name: limit.limit_ms for name, limit in target.limits.items()}
    if "itl" in limits_ms:
        limits_ms["tpot"] = min(limits_ms.pop("itl"), limits_ms.get("tpot", np.inf))
    is_good = outcome.is_ok.copy()
    for name, values in _per_request(outcome, limits_ms).items():
        is_good &= ~(values > limits_ms[name])
    return is_good


def _per_request(outcome: ServingResults, names: Container[str]) -> dict[str, np.ndarray]:
    """Return those of a request's latencies, in ms; an answer of one token has no TPOT (NaN)."""
    ttft, e2e = 1e3 * outcome.ttft_s, 1e3 * outcome.e2e_s
    later = np.where(outcome.output_tokens > 1, outcome.output_tokens - 1, np.nan)
    known = {
        "ttft": ttft,
        "nttft": ttft / outcome.input_tokens,
        "tpot": (e2e - ttft) / later,
        "e2e": e2e,
    }
    return {name: values for name, values in known.items() if name in names}


def histogram_quantile(edges: np.ndarray, counts: np.ndarray, share: float) -> np.ndarray:
    """Return a quantile of each row of counts, NaN for an empty one. Within its bin the quantile is
    interpolated on the logarithm: bins are narrow and positive."""
    reached = np.cumsum(counts, axis=1)
    total = reached[:, -1]
    wanted = share * total
    place = np.minimum((reached < wanted[:, None]).sum(axis=1), counts.shape[1] - 1)
    rows = np.arange(len(counts))
    inside = counts[rows, place]
    before = reached[rows, place] - inside
    part = np.divide(wanted - before, inside, out=np.zeros(len(counts)), where=inside > 0)
    low, high = np.log(edges[place]), np.log(edges[place + 1])
    return np.where(total > 0, np.exp(low + part * (high - low)), np.nan)


def mean_lengths_of(demand: RequestStream) -> RequestLengths:
    """Return the mean lengths of the requests, as a question has them. The longest need not fit: a
    simulated server refuses them one by one."""
    means = (float(demand.input_tokens.mean()), float(demand.output_tokens.mean()))
    return RequestLengths(*(Length(mean, mean) for mean in means))


def length_sampler(requests: RequestLengths) -> Callable[..., pd.DataFrame]:
    """Return a function that draws requests of these lengths: lognormal by mean and p99. With z the
    normal's 99th percentile, log(p99 / mean) = z sigma - sigma^2 / 2."""
    z = NormalDist().inv_cdf(0.99)

    def lengths(length: Length, n: int, rng: np.random.Generator) -> np.ndarray:
        sigma = z - max(z**2 - 2 * math.log(length.high / length.mean), 0.0) ** 0.5
        drawn = length.mean * np.exp(sigma * rng.standard_normal(n) - sigma**2 / 2)
        return np.asarray(np.maximum(drawn.round(), 1).astype(np.int64))

    def sample(n: int, *, seed: int | np.random.SeedSequence) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        drawn = [lengths(each, n, rng) for each in requests]
        return pd.DataFrame(dict(zip(COLUMNS[1:], drawn, strict=True)))

    return sample
