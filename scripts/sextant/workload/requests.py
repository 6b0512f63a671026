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
from sextant.pages.words import HOUR_S
from sextant.workload.lengths import Length, RequestLengths
from sextant.workload.part import (
    ChosenWindows,
    StreamPart,
    TrafficMeasures,
    choose_windows,
    fullest_bin,
    lead_in_windows,
)

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("arrival_s", "input_tokens", "output_tokens")
NONE = -1  # the index of no request, and the id of no prefix

MANY_REQUESTS = 20_000
"""A stream with more requests than this is cut to its busiest windows by `RequestStream.peak`."""
PEAK_REQUESTS = 5_000  # requests of these windows together
MOST_SIMULATED = 400_000
"""Of a trace with more requests than this, `RequestStream.busiest_part` is simulated."""

N_STEADY_REQUESTS = 1500
"""Requests of one replica in a simulation: enough for a 95th percentile, in milliseconds."""

_MOST_SUMMED = 64  # gaps that are drawn one by one

LENGTH_SPREAD = 1 / 9
"""Share of its mean by which a length of a load test differs at most: InferenceX draws lengths from
0.8 to 1.0 of the largest. Users' equal requests differ as much, of the shorter of both lengths."""


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


class LongTurns(NamedTuple):
    """Turns of sessions that are left out, as the LLM cannot take them."""

    longest_tokens: int
    """Tokens, input and output, of the longest request that the LLM takes."""
    n_turns: int
    """Turns of all sessions."""
    n_too_long: int
    """Turns with more tokens."""
    n_following: int
    """Other turns that wait for the answers of these, directly or not."""


@dataclass(frozen=True)
class TraceOrigin:
    """What is known of the trace that a stream was read from; the defaults for drawn requests."""

    is_trace: bool = False
    start_time: datetime | None = None
    """Date and time of `arrival_s` = 0; None: the trace has none."""
    n_ok: int = 0
    """Requests that succeeded in the trace."""
    n_failed: int = 0
    """Requests that failed in the trace. The stream lacks them: their lengths are not known."""
    long_turns: LongTurns | None = None
    """Turns that the stream lacks, as they are too long; None: there are none."""
    clock_step_s: float | None = None
    """Step of the trace's clock, over which equal stamps were spread; None: it was fine."""
    factor: float = 1.0  # times the trace's requests
    speed: float = 1.0  # times as fast as in the trace
    mixture: tuple[str, ...] = ()
    """What the trace mixes, LLMs or services, in words; empty: it is alike."""


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
    part: StreamPart | None = None
    """Which windows of a long trace the stream has; None: it has all requests."""
    begins_amid: bool = False
    """Whether users are met amid their first answers, which are not counted (`of_users`)."""

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

    @classmethod
    def of_users(
        cls, users: int, input_tokens: np.ndarray, output_tokens: np.ndarray, seed: int
    ) -> Self:
        """Return requests that users send one after the other, all at time 0.

        Users are met amid their first answers, which are not counted: a simulation takes their
        prompts for computed, as prompts that come all at once delay all that follow. Equal requests
        differ a little: else users whose answers end together stay together for ever.
        """
        random = np.random.default_rng(seed)
        n = len(input_tokens)
        left = np.ones(n)
        left[:users] = random.random(min(users, n))
        input_tokens, output_tokens = _kept_apart(input_tokens, output_tokens, random)
        outputs = np.ceil(left * np.maximum(output_tokens, 1))
        return replace(cls.of(np.zeros(n), input_tokens, outputs), begins_amid=True)

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
    def n_whole(self) -> int:
        """Number of requests of the whole trace, also where only a part is kept."""
        return self.n if self.part is None else self.part.whole.n_requests

    @property
    def rate_rps(self) -> float:
        """Mean rate of the whole trace, also where only a part is kept."""
        return self.n_whole / self.duration_s

    @property
    def mean_lengths(self) -> tuple[float, float]:
        """Mean input and output tokens, of the whole trace where only a part is kept."""
        if self.part is not None:
            return self.part.whole.mean_lengths
        return float(self.input_tokens.mean()), float(self.output_tokens.mean())

    def measures(self) -> TrafficMeasures:
        """Return what is measured on all requests, of the whole trace where a part is kept."""
        if self.part is not None:
            return self.part.whole
        return TrafficMeasures.of(
            self.arrival_s, self.input_tokens, self.output_tokens, self.duration_s
        )

    @property
    def repeated_share(self) -> float:
        """Share of the input tokens that repeat the beginning of an earlier request."""
        if self.part is not None:
            return self.part.repeated_share
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

    def faster(self, factor: float) -> RequestStream:
        """Return the same requests in less time, each arrival `factor` times as early."""
        arrival_s = self.arrival_s / factor
        return replace(self, arrival_s=arrival_s, duration_s=self.duration_s / factor)

    def at(self, index: np.ndarray | slice) -> RequestStream:
        """Return the requests at these indices."""
        chosen = replace(
            self,
            **{name: getattr(self, name)[index] for name in COLUMNS},
            prefixes=self.prefixes and Prefixes(*(column[index] for column in self.prefixes)),
            turns=self.turns and Turns(*(column[index] for column in self.turns)),
            part=None,
        )
        if self.turns is None:
            return chosen
        indices = np.arange(self.n)[index]
        return chosen.as_copies_of(self, indices, np.zeros(len(indices), int))

    def as_copies_of(
        self, whole: RequestStream, index: np.ndarray, copies: np.ndarray
    ) -> RequestStream:
        """Return these requests as copies of the requests `index` of `whole`.

        Each copy, numbered in `copies`, shares no prefix with other copies, has its own sessions,
        and its turns wait for answers of the same copy. Turns whose parent is missing do not wait.
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
        session = self.turns.session
        n_sessions = int(whole.turns.session.max()) + 1
        session = np.where(session < 0, session, session + copies * n_sessions)
        return replace(stream, turns=self.turns._replace(session=session, parent=parent))

    def without_long_turns(self, longest_tokens: int) -> RequestStream:
        """Return the stream without turns that are too long, and without turns that wait for them.

        Requests of no session stay, however long.

        Raises:
            InputError: no request is left.
        """
        if self.turns is None:
            return self
        is_turn = self.turns.session >= 0
        is_long = is_turn & (self.input_tokens + self.output_tokens > longest_tokens)
        if not is_long.any():
            return self
        left_out = is_long.tolist()
        for index, parent in enumerate(self.turns.parent.tolist()):  # a parent comes before
            left_out[index] |= parent >= 0 and left_out[parent]
        kept = np.flatnonzero(~np.array(left_out))
        n_long = int(is_long.sum())
        if not len(kept):
            problem = f"every session begins with more than {longest_tokens:,} tokens"
            fix = "give an LLM with a longer context, or a higher --max-model-len"
            raise InputError(problem, field="--sessions", fix=fix)
        long_turns = LongTurns(
            longest_tokens, int(is_turn.sum()), n_long, self.n - len(kept) - n_long
        )
        return replace(self.at(kept), origin=replace(self.origin, long_turns=long_turns))

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
        """Return the requests of the busiest windows alone where there are many, else all.

        The times are those of the stream. The time before each window is there too.
        """
        if window_s is None or self.n <= MANY_REQUESTS:
            return self
        chosen = self._choose_windows(window_s, PEAK_REQUESTS)
        if chosen.is_kept.all():
            return self
        return self.at(chosen.is_kept[self._windows(window_s)])

    def busiest_part(self, window_s: float | None) -> RequestStream:
        """Return the busiest windows of each hour of the day where there are too many requests.

        Up to `MOST_SIMULATED` requests the stream itself is returned. Windows are kept whole, each
        with the time before it. The measures of the part are those of the whole stream.

        Raises:
            InputError: there are too many requests, and the whole time is one window.
        """
        if self.n <= MOST_SIMULATED:
            return self
        if window_s is None:
            problem = f"one window of {self.n:,} requests; a simulation takes {MOST_SIMULATED:,}"
            fix = "give the length of a window, e.g. 5min"
            raise InputError(problem, field="--window", fix=fix)
        chosen = self._choose_windows(window_s, MOST_SIMULATED, is_by_hour=True)
        part = self.at(chosen.is_kept[self._windows(window_s)])
        # The end of the time, less than half a window, belongs to the window before it.
        n_judged = self.n_windows(window_s)
        windows = np.unique(np.minimum(np.flatnonzero(chosen.is_chosen), n_judged - 1))
        kept = StreamPart(window_s, windows, n_judged, self.measures(), self.repeated_share)
        return replace(part, part=kept)

    def _windows(self, window_s: float) -> np.ndarray:
        """Return the number of each request's window, shape (n,)."""
        return np.floor(self.arrival_s / window_s).astype(int)

    def _choose_windows(
        self, window_s: float, most: int, *, is_by_hour: bool = False
    ) -> ChosenWindows:
        windows = self._windows(window_s)
        n_windows = int(max(self.duration_s / window_s, windows[-1])) + 1
        load = np.stack(
            [
                np.bincount(windows, weights, n_windows)
                for weights in (np.ones(self.n), self.input_tokens, self.output_tokens)
            ],
            axis=1,
        )
        has_reuse = self.prefixes is not None or self.turns is not None
        n_before = lead_in_windows(window_s, has_reuse=has_reuse)
        hours = (np.arange(n_windows) * window_s // HOUR_S).astype(int) % 24
        return choose_windows(load, most, n_before, hours if is_by_hour else None)

    def busiest(self, span_s: float) -> tuple[float, int]:
        """Return the start and the requests of the fullest bin, as `arrival_measures` has them."""
        return fullest_bin(self.arrival_s, span_s)

    def facts(self) -> dict[str, Any]:
        """Return its figures, for an answer."""
        origin = self.origin
        whole = self.measures()
        return {
            "name": self.name,
            "n_requests": whole.n_requests,
            "n_simulated": self.n,
            "n_failed": origin.n_failed,
            "duration_s": self.duration_s,
            "start_time": origin.start_time.isoformat() if origin.start_time else None,
            "rate_rps": self.rate_rps,
            "gap_cv": whole.gap_cv,
            "mean_input_tokens": whole.mean_lengths[0],
            "mean_output_tokens": whole.mean_lengths[1],
            "longest_request_tokens": whole.longest_tokens,
            "busiest": dict(whole.busiest),
        }


def _whole(values: Any) -> np.ndarray:
    return np.asarray(values).astype(np.int64)


def _kept_apart(
    input_tokens: Any, output_tokens: Any, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return lengths of requests, varied around those given if these are all equal.

    What an answer has more its prompt has less: no request is longer than what was asked about.
    """
    inputs, outputs = np.asarray(input_tokens), np.asarray(output_tokens)
    is_equal = len(inputs) > 0 and np.ptp(inputs) == 0 == np.ptp(outputs)
    if not is_equal:
        return inputs, outputs
    most = LENGTH_SPREAD * min(inputs[0], outputs[0])
    more = np.round(random.uniform(-most, most, len(inputs)))
    return inputs - more, outputs + more


def _check_tokens(tokens: np.ndarray, least: int, field: str) -> None:
    if (tokens < least).any():
        row = int(np.argmax(tokens < least))
        problem = f"request {row} has {tokens[row]} tokens"
        raise InputError(problem, field=field, fix=f"give at least {least}")


def mean_lengths_of(stream: RequestStream) -> RequestLengths:
    """Return the mean lengths of the requests, as a question has them. The longest need not fit: a
    simulated server refuses them one by one."""
    return RequestLengths(*(Length(mean, mean) for mean in stream.mean_lengths))


class Traffic(Protocol):
    """Draws streams of requests: each seed is another day of the same traffic."""

    def drawn(self, seed: int) -> RequestStream:
        """Return the requests of a seed; for a trace 0 is the trace itself."""


class ScalableTraffic(Traffic, Protocol):
    """Traffic of which there may be more."""

    def scaled(self, factor: float) -> ScalableTraffic:
        """Return the same traffic with `factor` times as many requests or sessions."""


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

    def scaled(self, factor: float) -> SteadyTraffic:
        """Return the same requests at `factor` times the rate."""
        return replace(self, rate_rps=factor * self.rate_rps, _streams={})


def steady_like(traffic: Traffic, seed: int) -> SteadyTraffic:
    """Return requests like those of some traffic, that arrive at a steady rate of 1/s (Poisson).

    Steady traffic is returned as it is. Of other traffic, input and output of the likeliest draw
    are drawn together.
    """
    if isinstance(traffic, SteadyTraffic):
        return traffic
    stream = traffic.drawn(0)

    def sample(n: int, *, seed: np.random.SeedSequence) -> pd.DataFrame:
        import pandas as pd

        rows = np.random.default_rng(seed).integers(stream.n, size=n)
        lengths = {name: getattr(stream, name)[rows] for name in COLUMNS[1:]}
        return pd.DataFrame(lengths)

    return SteadyTraffic(stream.name, sample, 1.0, 1.0, seed)
