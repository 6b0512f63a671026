"""A part of a long stream of requests: its busiest windows, each with the time before it.

`choose_windows` ranks the windows of a stream, `TrafficMeasures` has what is measured on the whole
stream before a part is taken, and `StreamPart` says which windows a part has.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

LEAD_IN_S = 300.0
"""Time before a window that is simulated with it: in it queues build up."""
REUSE_LEAD_IN_S = 1800.0
"""The same where requests share prefixes or wait for answers: caches fill, and sessions begin."""

_BURSTS_S = (1, 10, 60)
_N_BUCKETS = 240
"""Buckets of a rate curve, at most."""
_BUCKETS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 86400)


class RateCurve(NamedTuple):
    """The rate of requests over time."""

    bucket_s: int
    rate_rps: np.ndarray
    """Mean of each bucket, shape (buckets,)."""


class TrafficMeasures(NamedTuple):
    """What is measured on all requests of a stream."""

    n_requests: int
    mean_lengths: tuple[float, float]
    """Input and output tokens."""
    longest_tokens: int
    """Input and output of the longest request."""
    gap_cv: float | None
    """Coefficient of variation of the gaps between arrivals; None: all come at once."""
    busiest: Mapping[str, int]
    """Requests in the fullest second, 10 seconds and minute, as `arrival_measures` has them."""
    rates: RateCurve

    @classmethod
    def of(
        cls,
        arrival_s: np.ndarray,
        input_tokens: np.ndarray,
        output_tokens: np.ndarray,
        duration_s: float,
    ) -> "TrafficMeasures":
        """Measure requests in the order of their arrival; each array has the shape (n,)."""
        gaps_s = np.diff(arrival_s)
        gap_cv = float(gaps_s.std() / gaps_s.mean()) if gaps_s.sum() > 0 else None
        del gaps_s
        fitting = [bucket_s for bucket_s in _BUCKETS_S if bucket_s * _N_BUCKETS >= duration_s]
        bucket_s = fitting[0] if fitting else _BUCKETS_S[-1]
        counts = np.bincount(
            (arrival_s // bucket_s).astype(int), minlength=int(duration_s // bucket_s) + 1
        )
        return cls(
            len(arrival_s),
            (float(input_tokens.mean()), float(output_tokens.mean())),
            int((input_tokens + output_tokens).max()),
            gap_cv,
            {f"{span_s}s": fullest_bin(arrival_s, span_s)[1] for span_s in _BURSTS_S},
            RateCurve(bucket_s, counts / bucket_s),
        )


class StreamPart(NamedTuple):
    """Which windows of a stream a part has, and what was measured on the whole."""

    window_s: float
    windows: np.ndarray
    """Numbers of the chosen windows, ascending. The time before each is there, but not chosen."""
    n_windows: int
    """Windows of the whole time."""
    whole: TrafficMeasures
    repeated_share: float
    """Share of all input tokens that repeat the beginning of an earlier request."""

    def times(self, factor: float) -> "StreamPart":
        """Return the same windows of a stream with `factor` times as many requests."""
        n_requests = round(factor * self.whole.n_requests)
        return self._replace(whole=self.whole._replace(n_requests=n_requests))

    def has_slots(self, n_slots: int, slot_s: float) -> np.ndarray:
        """Return which slots of time have a chosen window, shape (slots,)."""
        slots = (self.windows * self.window_s // slot_s).astype(int)
        return np.bincount(np.minimum(slots, n_slots - 1), minlength=n_slots) > 0


class ChosenWindows(NamedTuple):
    """The windows that a part has; arrays of shape (windows,)."""

    is_chosen: np.ndarray
    is_kept: np.ndarray
    """The chosen ones and those before them."""


def fullest_bin(arrival_s: np.ndarray, span_s: float) -> tuple[float, int]:
    """Return the start and the requests of the fullest bin of this length."""
    counts = np.bincount((arrival_s // span_s).astype(int))
    fullest = int(counts.argmax())
    return fullest * span_s, int(counts[fullest])


def lead_in_windows(window_s: float, *, has_reuse: bool) -> int:
    """Return how many windows before a window are simulated with it, one or more.

    `has_reuse` says whether requests share prefixes or wait for the answers of others.
    """
    return math.ceil((REUSE_LEAD_IN_S if has_reuse else LEAD_IN_S) / window_s)


def choose_windows(
    load: np.ndarray, most: float, n_before: int, group: np.ndarray | None = None
) -> ChosenWindows:
    """Return the windows of the most requests or tokens, each with the windows before it.

    All have `most` requests together, or are one with those before it. Windows without a request
    are never chosen.

    Args:
        load: of each window: requests, input tokens, output tokens; shape (windows, 3).
        most: requests to keep.
        n_before: windows to keep before a chosen one.
        group: of each window, e.g. its hour of the day, shape (windows,): the busiest window of
            each group comes first, then the second of each. None: all are one group.
    """
    n_requests = load[:, 0]
    busyness = (load / np.maximum(load.max(axis=0), 1)).max(axis=1)
    order = np.argsort(-busyness, kind="stable")
    order = order[n_requests[order] > 0]
    if group is not None:
        rank = np.zeros(len(order), int)
        for number in np.unique(group[order]):
            is_in = group[order] == number
            rank[is_in] = np.arange(is_in.sum())
        order = order[np.argsort(rank, kind="stable")]

    is_chosen, is_kept = np.zeros((2, len(load)), bool)
    total = 0
    for window in order.tolist():
        span = slice(max(window - n_before, 0), window + 1)
        total += n_requests[span][~is_kept[span]].sum()
        if is_chosen.any() and total > most:
            break
        is_chosen[window] = True
        is_kept[span] = True
    return ChosenWindows(is_chosen, is_kept)
