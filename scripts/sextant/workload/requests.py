"""A stream of requests: when they arrive, their lengths, what they share, what they wait for.

`RequestStream` is what every simulation takes and every source of traffic returns. `Traffic` draws
one for each seed; `SteadyTraffic` does so for requests at a steady rate, where the simulation of
one replica is enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np

from sextant.base.errors import InputError
from sextant.workload.lengths import Length, RequestLengths

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("arrival_s", "input_tokens", "output_tokens")
NONE = -1  # the index of no request, and the id of no prefix

MANY_REQUESTS = 20_000
"""A stream with more requests than this is cut to its busiest windows by `RequestStream.peak`."""
PEAK_REQUESTS = 5_000  # requests of these windows together

N_STEADY_REQUESTS = 1500
"""Requests of one replica in a simulation: enough for a 95th percentile, in milliseconds."""

_BURSTS_S = (1, 10, 60)
_MOST_SUMMED = 64  # gaps that are drawn one by one


class Gaps(NamedTuple):
    """Random gaps of requests at a steady rate, drawn for one of several replicas."""

    alpha: float  # shape of Gamma gaps; 1: Poisson
    seed: int
    draw: int


class Prefixes(NamedTuple):
    """Which requests begin with the same tokens; arrays of shape (n,)."""

    ids: np.ndarray
    """Requests of the same id have the same tokens as far as `tokens` goes; -1: no prefix."""
    tokens: np.ndarray
    """Leading tokens, of input and then output, that belong to the prefix; 0 without one."""


class Turns(NamedTuple):
    """Requests that wait for the answer of an earlier one; arrays of shape (n,)."""

    session: np.ndarray  # a number for each session, -1: none
    parent: np.ndarray
    """Index of the request whose answer a request waits for, whatever its `arrival_s`; -1: none."""
    think_s: np.ndarray  # from the end of that answer to the arrival


@dataclass(frozen=True)
class TraceOrigin:
    """What is known of the trace that a stream was read from; the defaults for drawn requests."""

    start_time: datetime | None = None
    """Date and time of `arrival_s` = 0; None: the trace has none."""
    n_requests: int | None = None
    """Requests of the whole trace; None: the stream has all of them."""
    mean_lengths: tuple[float, float] | None = None
    """Mean input and output tokens of the whole trace."""
    n_failed: int = 0
    """Requests that failed in the trace. The stream lacks them: their lengths are not known."""
    clock_step_s: float | None = None
    """Step of the trace's clock, over which equal stamps were spread; None: it was fine."""
    factor: float = 1.0  # times the trace's requests
    speed: float = 1.0  # times as fast as in the trace


@dataclass(frozen=True, eq=False)
class RequestStream:
    """Requests in the order of their arrival; each array has the shape (n,)."""

    name: str
    arrival_s: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    duration_s: float
    prefixes: Prefixes | None = None
    turns: Turns | None = None
    gaps: Gaps | None = None
    """Replaces `arrival_s` where the stream is that of one replica (`for_one_replica`)."""
    origin: TraceOrigin = TraceOrigin()

    @classmethod
    def of(
        cls,
        arrival_s: np.ndarray,
        input_tokens: np.ndarray,
        output_tokens: np.ndarray,
        prefix_id: np.ndarray | None = None,
        prefix_tokens: np.ndarray | None = None,
        parent: np.ndarray | None = None,
        think_s: np.ndarray | None = None,
    ) -> Self:
        """Return a checked stream of any numeric arrays, without prefixes and turns by default."""
        arrival_s = np.asarray(arrival_s, np.float64)
        inputs = _whole(input_tokens)
        outputs = _whole(output_tokens)
        prefixes = turns = None
        if prefix_id is not None and prefix_tokens is not None:
            prefixes = Prefixes(_whole(prefix_id), _whole(prefix_tokens))
        if parent is not None and think_s is not None:
            session = np.full(len(arrival_s), NONE)
            turns = Turns(session, _whole(parent), np.asarray(think_s, np.float64))

        duration_s = float(arrival_s[-1]) if len(arrival_s) else 0.0
        stream = cls("requests", arrival_s, inputs, outputs, duration_s, prefixes, turns)
        stream.check()
        return stream

    def check(self) -> None:
        """Raise InputError unless a simulation can follow these requests."""
        arrivals = self.arrival_s
        if not len(arrivals):
            raise InputError("there are no requests", fix="give one or more")
        columns = (self.input_tokens, self.output_tokens, *(self.prefixes or ()))
        if any(values.shape != arrivals.shape for values in (*columns, *(self.turns or ()))):
            raise InputError("arrays of different lengths", fix="give one value a request")
        if not np.isfinite(arrivals).all() or arrivals[0] < 0 or (np.diff(arrivals) < 0).any():
            fix = "give finite seconds from 0, ascending"
            raise InputError("arrivals are not in order", field="arrival_s", fix=fix)

        _check_tokens(self.input_tokens, 1, "input_tokens")
        _check_tokens(self.output_tokens, 1, "output_tokens")
        if self.prefixes is not None:
            _check_tokens(self.prefixes.tokens, 0, "prefix_tokens")

        if self.turns is None:
            return
        _, parent, think_s = self.turns
        if (parent >= np.arange(self.n)).any() or not (think_s >= 0).all():
            fix = "give an earlier request, and seconds from 0"
            raise InputError("a request waits for a later one", field="parent", fix=fix)

    @property
    def n(self) -> int:
        """Number of requests."""
        return len(self.arrival_s)

    @property
    def rate_rps(self) -> float:
        """Mean rate of the whole trace, also where only a part is kept."""
        return (self.origin.n_requests or self.n) / self.duration_s

    @property
    def mean_lengths(self) -> tuple[float, float]:
        """Mean input and output tokens, of the whole trace where only a part is kept."""
        kept = float(self.input_tokens.mean()), float(self.output_tokens.mean())
        return self.origin.mean_lengths or kept

    @property
    def repeated_share(self) -> float:
        """Share of the input tokens that repeat the beginning of an earlier request."""
        if self.prefixes is None:
            return 0.0
        import pandas as pd  # most streams need no data frame

        tokens = pd.Series(self.prefixes.tokens)
        of_prefix = tokens.groupby(self.prefixes.ids)
        longest_before = of_prefix.transform(lambda lengths: lengths.cummax().shift())
        repeated = np.minimum(longest_before.fillna(0), tokens).sum()
        return float(repeated / self.input_tokens.sum())

    def n_windows(self, window_s: float | None) -> int:
        """Return how many windows the time has; less than half a window joins the last one."""
        return max(math.floor(self.duration_s / window_s + 0.5), 1) if window_s else 1

    def at_speed(self, speed: float) -> RequestStream:
        """Return the same requests `speed` times as fast: all gaps are divided by it."""
        return replace(
            self,
            arrival_s=self.arrival_s / speed,
            duration_s=self.duration_s / speed,
            origin=replace(self.origin, speed=speed * self.origin.speed),
        )

    def for_one_replica(self, n_replicas: int) -> RequestStream:
        """Return what one of the replicas gets, for a stream with `gaps`. Replicas take turns.

        A gap of one replica is the sum of `n_replicas` gaps of all requests, so each gap is longer
        with more replicas. Draw 0, the likeliest, has exactly the mean gap of the rate.
        """
        assert self.gaps is not None
        alpha, seed, draw = self.gaps
        rng = np.random.default_rng([seed, draw, 1])  # lengths have another random stream
        n_summed = min(n_replicas, _MOST_SUMMED)
        gaps = rng.standard_gamma(alpha, (n_summed, self.n)).sum(axis=0)
        if n_replicas > n_summed:
            gaps += rng.standard_gamma(alpha * (n_replicas - n_summed), self.n)
        if draw == 0:
            gaps *= alpha * n_replicas / gaps.mean()
        return replace(self, arrival_s=gaps.cumsum() / (alpha * self.rate_rps), gaps=None)

    def at(self, index: np.ndarray | slice) -> RequestStream:
        """Return the requests at these indices."""
        chosen = replace(
            self,
            **{name: getattr(self, name)[index] for name in COLUMNS},
            prefixes=self.prefixes and Prefixes(*(column[index] for column in self.prefixes)),
            turns=self.turns and Turns(*(column[index] for column in self.turns)),
            origin=replace(self.origin, n_requests=None, mean_lengths=None),
        )
        if self.turns is None:
            return chosen
        indices = np.arange(self.n)[index]
        return chosen.as_copies_of(self, indices, np.zeros(len(indices), int))

    def as_copies_of(
        self, whole: RequestStream, index: np.ndarray, copies: np.ndarray
    ) -> RequestStream:
        """Return these requests as copies of the requests `index` of `whole`.

        Each copy, numbered in `copies`, shares no prefix with other copies, and its turns wait for
        answers of the same copy. Turns whose parent is missing do not wait.
        """
        stream = self
        if whole.prefixes is not None and self.prefixes is not None:
            ids = whole.prefixes.ids[index]
            ids_of_copy = ids + copies * (int(whole.prefixes.ids.max()) + 1)
            prefixes = self.prefixes._replace(ids=np.where(ids < 0, ids, ids_of_copy))
            stream = replace(stream, prefixes=prefixes)
        if whole.turns is None or self.turns is None or not len(index):
            return stream

        index_here = np.full((int(copies.max()) + 1, whole.n + 1), NONE)
        index_here[copies, index] = np.arange(len(index))
        # A parent of -1 reads the last column, which is NONE.
        parent = index_here[copies, whole.turns.parent[index]]
        # A turn that was moved before its parent does not wait.
        parent = np.where(parent < np.arange(len(index)), parent, NONE)
        return replace(stream, turns=self.turns._replace(parent=parent))

    def with_common_prefix(self, share: float) -> RequestStream:
        """Return the stream with this share of each input common to all; itself for a share of 0.

        The common prefix replaces the prefixes of the stream.
        """
        if not share:
            return self
        tokens = _whole(np.round(share * self.input_tokens))
        return replace(self, prefixes=Prefixes(np.zeros(self.n, np.int64), tokens))

    def repeating(self, n_prompts: int, seed: int = 0) -> RequestStream:
        """Return the same requests, without turns, each with one of `n_prompts` prompts at random.

        A prompt has the input length of the first request that got it, and is shared as a whole.
        """
        if n_prompts < 1:
            raise InputError(f"{n_prompts} prompts", field="unique_prompts", fix="give 1 or more")
        ids = np.random.default_rng(seed).integers(n_prompts, size=self.n)
        prompts, first = np.unique(ids, return_index=True)
        inputs = self.input_tokens[first[np.searchsorted(prompts, ids)]]
        return replace(self, input_tokens=inputs, prefixes=Prefixes(ids, inputs), turns=None)

    def between(self, start_s: float, end_s: float) -> RequestStream:
        """Return what arrives from `start_s` to before `end_s`; times count from `start_s`."""
        part = self.at(slice(*np.searchsorted(self.arrival_s, [start_s, end_s])))
        arrival_s = part.arrival_s - start_s
        return replace(part, arrival_s=arrival_s, duration_s=end_s - start_s)

    def peak(self, window_s: float | None) -> RequestStream:
        """Return the requests of the busiest windows alone where there are many, else all."""
        if window_s is None or self.n <= MANY_REQUESTS:
            return self
        import pandas as pd

        window = np.floor(self.arrival_s / window_s).astype(int)
        load = pd.DataFrame(
            {
                "requests": np.bincount(window, np.ones(self.n)),
                "input_tokens": np.bincount(window, self.input_tokens),
                "output_tokens": np.bincount(window, self.output_tokens),
            }
        )
        windows = busiest_windows(load, PEAK_REQUESTS)
        return self if windows is None else self.at(np.isin(window, windows))

    def busiest(self, span_s: float) -> tuple[float, int]:
        """Return the start and the requests of the fullest bin, as `arrival_measures` has them."""
        counts = np.bincount((self.arrival_s // span_s).astype(int))
        fullest = int(counts.argmax())
        return fullest * span_s, int(counts[fullest])

    @property
    def gap_cv(self) -> float | None:
        """Coefficient of variation of the gaps between arrivals; None: all come at once."""
        gaps = np.diff(self.arrival_s)
        return float(gaps.std() / gaps.mean()) if gaps.sum() > 0 else None

    def facts(self) -> dict[str, Any]:
        """Return its figures, for an answer."""
        origin = self.origin
        return {
            "name": self.name,
            "n_requests": origin.n_requests or self.n,
            "n_simulated": self.n,
            "n_failed": origin.n_failed,
            "duration_s": self.duration_s,
            "start_time": origin.start_time.isoformat() if origin.start_time else None,
            "rate_rps": self.rate_rps,
            "gap_cv": self.gap_cv,
            "mean_input_tokens": self.mean_lengths[0],
            "mean_output_tokens": self.mean_lengths[1],
            "longest_request_tokens": int((self.input_tokens + self.output_tokens).max()),
            "busiest": {f"{span_s}s": self.busiest(span_s)[1] for span_s in _BURSTS_S},
        }


def _whole(values: Any) -> np.ndarray:
    return np.asarray(values).astype(np.int64)


def _check_tokens(tokens: np.ndarray, least: int, field: str) -> None:
    if (tokens < least).any():
        row = int(np.argmax(tokens < least))
        problem = f"request {row} has {tokens[row]} tokens"
        raise InputError(problem, field=field, fix=f"give at least {least}")


def busiest_windows(load: pd.DataFrame, most: float) -> tuple[int, ...] | None:
    """Return the windows of the most requests or tokens, each with the one before it, in which
    queues build up. They have `most` requests together, or are two; None stands for all windows.

    Args:
        load: one row per window, its number as the index; columns: requests, then input and output
            tokens.
        most: requests to keep.
    """
    n_requests = load.iloc[:, 0]
    if n_requests.sum() <= most:
        return None
    ranked = (load / load.max()).max(axis=1).sort_values(ascending=False, kind="stable")
    kept = set[int]()
    total = 0
    for window in ranked.index:
        more = {window - 1, window} - kept
        total += sum(n_requests.get(number, 0) for number in more)
        if kept and total > most:
            break
        kept |= more
    return tuple(int(number) for number in sorted(kept))


def mean_lengths_of(stream: RequestStream) -> RequestLengths:
    """Return the mean lengths of the requests, as a question has them. The longest need not fit: a
    simulated server refuses them one by one."""
    means = (float(stream.input_tokens.mean()), float(stream.output_tokens.mean()))
    return RequestLengths(*(Length(mean, mean) for mean in means))


class Traffic(Protocol):
    """Draws streams of requests: each seed is another day of the same traffic."""

    def drawn(self, seed: int) -> RequestStream:
        """Return the requests of a seed; for a trace 0 is the trace itself."""


@dataclass(frozen=True)
class SteadyTraffic:
    """Requests that arrive at random at a steady rate, drawn for one replica.

    All replicas see alike requests, so the simulation of one of them is enough.
    """

    name: str
    requests: Callable[..., pd.DataFrame]  # draws as `RequestModel.sample` does
    rate_rps: float
    alpha: float  # shape of Gamma gaps; 1: Poisson
    seed: int
    _streams: dict[int, RequestStream] = field(default_factory=dict, repr=False, compare=False)
    """What was drawn already: every GPU profile sees the same draws."""

    def drawn(self, seed: int) -> RequestStream:
        """Return the requests of a draw. `RequestStream.for_one_replica` draws their arrivals."""
        if seed not in self._streams:
            n = N_STEADY_REQUESTS
            frame = self.requests(n, seed=np.random.SeedSequence([self.seed, seed]))
            self._streams[seed] = RequestStream(
                self.name,
                np.arange(n) / self.rate_rps,
                frame["input_tokens"].to_numpy(),
                np.maximum(frame["output_tokens"].to_numpy(), 1),
                n / self.rate_rps,
                gaps=Gaps(self.alpha, self.seed, seed),
            )
        return self._streams[seed]
