"""What servers counted of each LLM over time: their series summed on one grid of times.

A counter that falls was reset by a restart: what it counts afterwards is added. Counters of several
processes are summed; of several names of a quantity the first counts.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sextant.base.errors import InputError
from sextant.trace.histogram import Histogram
from sextant.trace.metric_names import GAUGES, HISTOGRAMS, Meaning, meanings_of, metric_sheet
from sextant.trace.metric_samples import LARGEST, MetricSeries, Readings

Process = tuple[str, ...]
_COUNTED_BY = ("e2e_s", "output_tokens", "input_tokens", "ttft_s")
"""Histograms that count requests, where no counter does."""


class _Series(NamedTuple):
    """A series of one engine and LLM."""

    meaning: Meaning
    process: Process
    source: MetricSeries

    def label(self, names: Sequence[str]) -> Process:
        """Return the values of some labels."""
        return tuple(self.source.labels.get(name, "") for name in names)


@dataclass(frozen=True, eq=False)
class BinnedCounts:
    """A histogram over time."""

    edges: np.ndarray  #: As of `Histogram`.
    counts: np.ndarray  #: By window and bucket.
    totals: np.ndarray  #: Sum of the values, by window.

    def within(self, windows: slice | np.ndarray) -> Histogram:
        """Return the histogram of some windows."""
        counts = self.counts[windows].sum(axis=0)
        return Histogram(self.edges, counts, float(self.totals[windows].sum()))


@dataclass(frozen=True, eq=False)
class ModelMetrics:
    """What the servers of one LLM counted; arrays have one value per window."""

    engine: str
    llm: str | None
    """As the servers call it; None: they do not say it."""
    edges_s: np.ndarray
    """Times of the readings, (windows + 1,)."""
    n_arrived: np.ndarray
    """Requests that came and did not fail: those answered, and the growth of those in flight."""
    n_answered: np.ndarray
    n_failed: np.ndarray
    histograms: Mapping[str, BinnedCounts]
    """By quantity, of `HISTOGRAMS`."""
    totals: Mapping[str, np.ndarray]
    """Counters by quantity: tokens, and lookups of the prefix cache."""
    gauges: Mapping[str, np.ndarray]
    """Means of `GAUGES` over each window, NaN where nothing was read."""
    n_engines: int
    """Engines with a queue of their own that were read."""
    n_restarts: int
    notes: list[str] = field(default_factory=list)

    @property
    def n_windows(self) -> int:
        """Windows between readings."""
        return len(self.edges_s) - 1

    @property
    def cached_share(self) -> float | None:
        """Share of the looked-up tokens that the prefix cache had; None: not counted."""
        if "cached" not in self.totals:
            return None
        cached = float(self.totals["cached"].sum())
        looked_up = float(self.totals.get("looked_up", np.zeros(1)).sum())
        looked_up = looked_up or cached + float(self.totals.get("missed", np.zeros(1)).sum())
        return min(cached / looked_up, 1.0) if looked_up else None


def metrics_by_model(readings: Readings) -> list[ModelMetrics]:
    """Return what was counted of each engine and LLM, the busiest first.

    Raises:
        InputError: no request was counted.
    """
    groups: dict[tuple[str, str | None], list[_Series]] = defaultdict(list)
    sheet = metric_sheet()
    for series in readings.series:
        process = tuple(series.labels.get(name, "") for name in sheet.process_labels)
        llm = next((series.labels[it] for it in sheet.model_labels if it in series.labels), None)
        for meaning in meanings_of(series.name):
            groups[meaning.engine, llm].append(_Series(meaning, process, series))

    summed = []
    for (engine, llm), group in groups.items():
        metrics = _Summing(group).metrics(engine, llm)
        if metrics is not None:
            summed.append(metrics)
    counted = [metrics for metrics in summed if metrics.n_answered.sum() + metrics.n_failed.sum()]
    if not counted:
        problem = "no request was finished between the readings"
        fix = "give readings over a longer time, with request counters or histograms"
        raise InputError(problem, field="finished", fix=fix)
    return sorted(counted, key=lambda metrics: -float(metrics.n_answered.sum()))


class _Summing:
    """Sums the series of one engine and LLM."""

    def __init__(self, group: Sequence[_Series]) -> None:
        first: dict[tuple[str, str], int] = {}
        for series in group:
            key = (series.meaning.quantity, series.meaning.part)
            first[key] = min(first.get(key, series.meaning.rank), series.meaning.rank)
        self.group = [
            series
            for series in group
            if series.meaning.rank == first[series.meaning.quantity, series.meaning.part]
        ]
        self.grid = np.unique(np.concatenate([series.source.times_s for series in self.group]))
        self.begins: dict[Process, float] = {}
        self.resets: dict[Process, set[float]] = defaultdict(set)
        for series in self.group:
            times_s = series.source.times_s
            begin = min(self.begins.get(series.process, math.inf), float(times_s[0]))
            self.begins[series.process] = begin
            if series.meaning.quantity not in GAUGES:
                fallen = np.flatnonzero(np.diff(series.source.values) < 0) + 1
                self.resets[series.process] |= set(times_s[fallen].tolist())

    def metrics(self, engine: str, llm: str | None) -> ModelMetrics | None:
        """Return the sums; None where nothing is counted."""
        histograms = {name: self._histogram(name) for name in HISTOGRAMS}
        known = {name: binned for name, binned in histograms.items() if binned is not None}
        notes: list[str] = []
        counted = self._requests(known, notes)
        if counted is None:
            return None
        answered, failed = counted

        totals = {}
        for name in ("input_total", "output_total", "cached", "looked_up", "missed"):
            if chosen := self._of(name):
                totals[name] = np.diff(self._sum(chosen))
        at_readings = {name: self._gauge(name) for name in GAUGES}
        gauges = {
            name: (values[1:] + values[:-1]) / 2
            for name, values in at_readings.items()
            if values is not None
        }
        sheet = metric_sheet()
        names = (*sheet.process_labels, *sheet.engine_labels)
        queues = self._of("running") or self.group
        n_restarts = sum(map(len, self.resets.values()))
        if n_restarts:
            notes.append(
                f"Counters fell {n_restarts} times, as servers restarted: what was counted between "
                "the last reading and a restart is not known."
            )
        return ModelMetrics(
            engine=engine,
            llm=llm,
            edges_s=self.grid,
            n_arrived=_arrived(answered, at_readings),
            n_answered=answered,
            n_failed=failed,
            histograms=known,
            totals=totals,
            gauges=gauges,
            n_engines=len({series.label(names) for series in queues}),
            n_restarts=n_restarts,
            notes=notes,
        )

    def _of(self, quantity: str, part: str = "") -> list[_Series]:
        return [
            series
            for series in self.group
            if series.meaning.quantity == quantity and series.meaning.part == part
        ]

    def _requests(
        self, histograms: Mapping[str, BinnedCounts], notes: list[str]
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return answered and failed requests by window."""
        sheet = metric_sheet()
        answered: list[_Series] = []
        failed = self._of("failed")
        unknown = set()
        finished = self._of("finished")
        for series in finished:
            reason = series.source.labels.get("finished_reason", "stop")
            (failed if sheet.has_failed(reason) else answered).append(series)
            if not sheet.is_known(reason):
                unknown.add(reason)
        if unknown:
            words = ", ".join(sorted(unknown))
            notes.append(f"finished_reason {words} is not known: it counts as answered.")

        n_failed = np.diff(np.round(self._sum(failed)))
        if finished:
            return np.diff(np.round(self._sum(answered))), n_failed
        for name in _COUNTED_BY:
            if name in histograms:
                counts = histograms[name].counts.sum(axis=1)
                notes.append(f"No counter of requests was read: {name} counts them.")
                return np.diff(np.round(np.append(0.0, np.cumsum(counts)))), n_failed
        return None

    def _histogram(self, quantity: str) -> BinnedCounts | None:
        """Return a histogram by window; without buckets it has one, from 0 to infinity."""
        totals = self._sum(self._of(quantity, "sum"))
        n_values = self._sum(self._of(quantity, "count"))
        buckets: dict[float, list[_Series]] = defaultdict(list)
        edges_of: dict[Process, set[float]] = defaultdict(set)
        for series in self._of(quantity, "bucket"):
            edge = _edge_of(series.source)
            buckets[edge].append(series)
            edges_of[self._without_edge(series)].add(edge)
        shared = set.intersection(*edges_of.values()) if edges_of else set()
        if math.inf not in shared:
            if not n_values.any():
                return None
            edges = np.array([math.inf])
            return BinnedCounts(edges, np.diff(n_values)[:, None], np.diff(totals))
        edges = np.array(sorted(shared))
        reached = np.stack([self._sum(buckets[edge]) for edge in edges.tolist()], axis=1)
        counts = np.diff(np.diff(reached, axis=0), axis=1, prepend=0.0).clip(min=0.0)
        sums = np.diff(totals) if self._of(quantity, "sum") else np.full(len(counts), math.nan)
        return BinnedCounts(edges, counts, sums)

    @staticmethod
    def _without_edge(series: _Series) -> Process:
        labels = series.source.labels
        return tuple(f"{name}={labels[name]}" for name in sorted(labels) if name != "le")

    def _sum(self, chosen: Iterable[_Series]) -> np.ndarray:
        """Return what counters have counted since the first reading, at each reading."""
        total = np.zeros(len(self.grid))
        for series in chosen:
            total += self._growth(series)
        return total

    def _growth(self, series: _Series) -> np.ndarray:
        times_s = series.source.times_s
        values = series.source.values
        is_reset = np.isin(times_s[1:], [*self.resets[series.process]])
        steps = np.where(is_reset, values[1:], np.diff(values)).clip(min=0.0)
        grown = np.append(0.0, np.cumsum(steps))
        if times_s[0] > self.begins[series.process]:  # its first count made it appear
            before = self.grid[np.searchsorted(self.grid, times_s[0]) - 1]
            times_s = np.append(before, times_s)
            grown = np.append(0.0, values[0] + grown)
        return np.interp(self.grid, times_s, grown)

    def _gauge(self, quantity: str) -> np.ndarray | None:
        """Return a gauge at each reading, summed over engines; NaN where none was read."""
        ranks = metric_sheet().rank_labels
        by_engine: dict[Process, list[MetricSeries]] = defaultdict(list)
        for series in self._of(quantity):
            labels = series.source.labels
            key = tuple(f"{it}={labels[it]}" for it in sorted(labels) if it not in ranks)
            by_engine[key].append(series.source)
        if not by_engine:
            return None
        total = np.zeros(len(self.grid))
        is_read = np.zeros(len(self.grid), bool)
        for alike in by_engine.values():
            values = [
                np.interp(self.grid, it.times_s, it.values, left=math.nan, right=math.nan)
                for it in alike
            ]
            is_there = ~np.isnan(values).all(axis=0)
            filled = np.nan_to_num(values, nan=-math.inf)
            total += np.where(is_there, np.max(filled, axis=0), 0.0)
            is_read |= is_there
        return np.where(is_read, total, math.nan)


def _edge_of(series: MetricSeries) -> float:
    """Return the upper edge of a bucket. Raises InputError unless it is a number from 0 on."""
    text = series.labels.get("le", "")
    try:
        edge = float(text)
    except ValueError:
        edge = math.nan
    if not (0 <= edge <= LARGEST or edge == math.inf):
        problem = f"a bucket of {series.name} ends at {text!r}"
        raise InputError(problem, field="le", fix="give metrics as the server wrote them")
    return edge


def _arrived(n_answered: np.ndarray, gauges: Mapping[str, np.ndarray | None]) -> np.ndarray:
    """Return the requests that came in each window, by those answered and those in flight."""
    read = [values for values in gauges.values() if values is not None]
    if not read:
        return n_answered
    in_flight = np.sum(read, axis=0)
    growth = np.nan_to_num(np.diff(in_flight))
    total = np.maximum.accumulate(np.cumsum(n_answered + growth))
    return np.diff(np.round(total.clip(min=0.0)), prepend=0.0)
