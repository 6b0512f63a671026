"""What a deployment was observed to do: requests, lengths and latencies by slot of time.

It is stored inside a trace that was made of metrics. A trace of a log has at most the time to the
last token, from which the same follows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import duckdb
import numpy as np

from sextant.base.errors import InputError
from sextant.base.files import MAKE_TRACE_AGAIN, read_parquet, read_provenance, reading
from sextant.pages.words import HOUR_S
from sextant.trace.choice import ALL_REQUESTS, TraceChoice, chosen_requests
from sextant.trace.histogram import Histogram, merged
from sextant.trace.model_metrics import ModelMetrics
from sextant.trace.trace_format import parquet_rows

OBSERVED_KEY = "observed"
"""Key of the provenance under which a trace has the observations of each LLM."""
LATENCIES = {"ttft": "ttft_s", "itl": "itl_s", "tpot": "tpot_s", "e2e": "e2e_s"}
"""Histogram of each latency."""
_SLOTS_S = (60.0, 300.0, 600.0, 1800.0, HOUR_S)
_FEW_SLOTS = 24
_LOG_STEP = 1.02
"""Ratio of the edges of the histogram that is made of a log's latencies."""
_LEAST_MS = 0.1
_MOST_MS = 1e8


@dataclass(frozen=True, eq=False)
class ObservedSlot:
    """A time, up to an hour, of what was observed."""

    start_s: float  #: From the trace's start.
    duration_s: float
    n_answered: int
    n_failed: int
    running: float | None
    """Requests in batches on average; None: not read."""
    waiting: float | None
    """Requests in queues on average; None: not read."""
    input_tokens: float | None  #: Mean of a request; None: not known.
    output_tokens: float | None  #: Mean of a request; None: not known.
    n_readings: int
    """Readings of the requests in flight; 0: they follow from the answers."""
    latencies_ms: Mapping[str, Histogram]
    """By metric: `ttft`, `itl`, `tpot`, `e2e`."""

    @property
    def rate_rps(self) -> float:
        """Answered requests a second."""
        return self.n_answered / self.duration_s

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON."""
        histograms = {name: it.to_plain() for name, it in self.latencies_ms.items()}
        return {**vars(self), "latencies_ms": histograms}

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Return what `to_plain` gave."""
        histograms = {name: Histogram.of_plain(it) for name, it in plain["latencies_ms"].items()}
        return cls(**{**plain, "latencies_ms": histograms})


@dataclass(frozen=True, eq=False)
class Observed:
    """What was observed of the servers of one LLM."""

    llm: str | None
    engine: str | None
    n_engines: int | None
    """Engines that were read; None: not known."""
    cached_share: float | None
    """Share of the input that the prefix cache had; None: not known."""
    slots: Sequence[ObservedSlot]
    notes: Sequence[str] = field(default=())

    def whole(self) -> ObservedSlot:
        """Return all slots as one."""
        return joined_slots(self.slots)

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON."""
        slots = [slot.to_plain() for slot in self.slots]
        return {**vars(self), "slots": slots, "notes": [*self.notes]}

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Return what `to_plain` gave."""
        return cls(**{**plain, "slots": [ObservedSlot.of_plain(it) for it in plain["slots"]]})


def observed_of(metrics: ModelMetrics, start_s: float) -> Observed:
    """Return what metrics show, in slots of up to an hour.

    Args:
        metrics: of one LLM.
        start_s: the trace's start, on the clock of the readings.
    """
    edges_s = metrics.edges_s
    slot_s = _slot_length(float(edges_s[-1] - edges_s[0]))
    middle_s = (edges_s[1:] + edges_s[:-1]) / 2
    numbers = np.floor(middle_s / slot_s).astype(int)  # hours of the clock, where times are dates
    slots = [
        _slot(metrics, np.flatnonzero(numbers == number), start_s)
        for number in np.unique(numbers).tolist()
    ]
    return Observed(
        llm=metrics.llm,
        engine=metrics.engine,
        n_engines=metrics.n_engines,
        cached_share=metrics.cached_share,
        slots=[slot for slot in slots if slot.duration_s > 0],
        notes=metrics.notes,
    )


def _slot_length(duration_s: float) -> float:
    return next((it for it in _SLOTS_S if duration_s <= _FEW_SLOTS * it), HOUR_S)


def _slot(metrics: ModelMetrics, windows: np.ndarray, start_s: float) -> ObservedSlot:
    """Return some consecutive windows as one slot."""
    begin_s = float(metrics.edges_s[windows[0]])
    n_answered = int(metrics.n_answered[windows].sum())
    latencies_ms = {}
    for metric, name in LATENCIES.items():
        if name in metrics.histograms:
            histogram = metrics.histograms[name].within(windows)
            if histogram.n:
                latencies_ms[metric] = histogram.scaled(1e3)
    widths_s = np.diff(metrics.edges_s)[windows]
    means = {}
    n_readings = 0
    for name in ("running", "waiting"):
        values = metrics.gauges.get(name, np.full(metrics.n_windows, math.nan))[windows]
        is_read = ~np.isnan(values)
        n_readings = max(n_readings, int(is_read.sum()))
        means[name] = (
            float(np.average(values[is_read], weights=widths_s[is_read])) if is_read.any() else None
        )
    return ObservedSlot(
        start_s=begin_s - start_s,
        duration_s=float(widths_s.sum()),
        n_answered=n_answered,
        n_failed=int(metrics.n_failed[windows].sum()),
        running=means["running"],
        waiting=means["waiting"],
        input_tokens=_mean_length(metrics, windows, "input_tokens", "input_total"),
        output_tokens=_mean_length(metrics, windows, "output_tokens", "output_total"),
        n_readings=n_readings,
        latencies_ms=latencies_ms,
    )


def _mean_length(
    metrics: ModelMetrics, windows: np.ndarray | slice, histogram: str, counter: str
) -> float | None:
    """Return the mean tokens of a request: by the histogram, else by the counter of tokens."""
    if histogram in metrics.histograms:
        mean = metrics.histograms[histogram].within(windows).mean
        if math.isfinite(mean):
            return mean
    n_answered = float(metrics.n_answered[windows].sum())
    if counter in metrics.totals and n_answered:
        return float(metrics.totals[counter][windows].sum()) / n_answered
    return None


def joined_slots(slots: Sequence[ObservedSlot]) -> ObservedSlot:
    """Return slots as one."""
    duration_s = sum(slot.duration_s for slot in slots)
    n_answered = sum(slot.n_answered for slot in slots)

    def mean(name: str, weight: str) -> float | None:
        pairs = [
            (getattr(slot, name), getattr(slot, weight))
            for slot in slots
            if getattr(slot, name) is not None and getattr(slot, weight)
        ]
        total = sum(share for _, share in pairs)
        return sum(value * share for value, share in pairs) / total if total else None

    latencies_ms = {}
    for metric in LATENCIES:
        histogram = merged([it.latencies_ms[metric] for it in slots if metric in it.latencies_ms])
        if histogram is not None:
            latencies_ms[metric] = histogram
    return ObservedSlot(
        start_s=slots[0].start_s,
        duration_s=duration_s,
        n_answered=n_answered,
        n_failed=sum(slot.n_failed for slot in slots),
        running=mean("running", "duration_s"),
        waiting=mean("waiting", "duration_s"),
        input_tokens=mean("input_tokens", "n_answered"),
        output_tokens=mean("output_tokens", "n_answered"),
        n_readings=sum(slot.n_readings for slot in slots),
        latencies_ms=latencies_ms,
    )


def read_observed(trace: Path, choice: TraceChoice = ALL_REQUESTS) -> Observed:
    """Return what a trace shows of the deployment that served it.

    Args:
        trace: a normalised trace.
        choice: which of its requests are meant.

    Raises:
        InputError: metrics of several LLMs, of which none is chosen.
    """
    stored = read_provenance(trace).get(OBSERVED_KEY)
    if stored is None:
        with chosen_requests(trace, choice) as part:
            return _of_log(part, choice.llm)

    llm = choice.llm
    all_observed = [Observed.of_plain(plain) for plain in stored]
    names = [str(observed.llm) for observed in all_observed]
    chosen = [it for it in all_observed if llm is None or it.llm == llm]
    if len(chosen) == 1:
        return chosen[0]
    fix = f"choose one of {', '.join(names)}"
    problem = f"metrics of {len(names)} LLMs" if llm is None else f"no metrics of {llm!r}"
    raise InputError(problem, file=trace, field="--llm-in-trace", fix=fix)


def window_rates(trace: Path, window_s: float, choice: TraceChoice = ALL_REQUESTS) -> np.ndarray:
    """Return the requests a second in each window of a trace, those that failed left out."""
    where = " AND ".join(["status = 'ok'", *(f"{name} = ?" for name in choice.values)])
    query = f"""SELECT floor(arrival_s / {window_s!r})::BIGINT AS number, count(*) AS n
        FROM {parquet_rows(trace)} WHERE {where} GROUP BY number"""
    with duckdb.connect() as database, reading(trace, duckdb.Error, fix=MAKE_TRACE_AGAIN):
        read = database.execute(query, [*choice.values.values()]).fetchnumpy()
    counts = np.zeros(int(read["number"].max(initial=0)) + 1)
    counts[read["number"]] = read["n"]
    return counts / window_s


def _of_log(trace: Path, llm: str | None) -> Observed:
    """Return what a log shows: requests, their lengths, and how long answers took."""
    columns = ["arrival_s", "input_tokens", "output_tokens", "e2e_ms", "status"]
    table = read_parquet(trace, columns, fix=MAKE_TRACE_AGAIN).to_pandas()
    is_ok = table["status"].to_numpy() == "ok"
    arrival_s = table["arrival_s"].to_numpy(float)
    e2e_ms = table["e2e_ms"].to_numpy(float)
    is_measured = is_ok & (e2e_ms > 0)
    edges = _fine_edges(e2e_ms[is_measured]) if is_measured.any() else np.array([math.inf])
    end_s = float(arrival_s.max(initial=0.0))
    slot_s = _slot_length(end_s)
    numbers = np.floor(arrival_s / slot_s).astype(int)
    slots = []
    for number in np.unique(numbers).tolist():
        rows = numbers == number
        latencies_ms = {}
        measured_ms = e2e_ms[rows & is_measured]
        if len(measured_ms):
            counts = np.bincount(np.searchsorted(edges, measured_ms), minlength=len(edges))
            total_ms = float(measured_ms.sum())
            latencies_ms["e2e"] = Histogram(edges, counts.astype(float), total_ms)
        answered = table[rows & is_ok]
        duration_s = min(slot_s, max(end_s - number * slot_s, 1.0))
        in_flight = float(measured_ms.sum()) / 1e3 / duration_s if len(measured_ms) else None
        slots.append(
            ObservedSlot(
                start_s=number * slot_s,
                duration_s=duration_s,
                n_answered=len(answered),
                n_failed=int((rows & ~is_ok).sum()),
                running=in_flight,
                waiting=None,
                input_tokens=float(answered["input_tokens"].mean()) if len(answered) else None,
                output_tokens=float(answered["output_tokens"].mean()) if len(answered) else None,
                n_readings=0,
                latencies_ms=latencies_ms,
            )
        )
    return Observed(llm, None, None, None, slots)


def _fine_edges(values_ms: np.ndarray) -> np.ndarray:
    """Return edges in small steps from the least of the values to the largest, then infinity."""
    least_ms = max(float(values_ms.min(initial=math.inf)), _LEAST_MS)
    most_ms = min(float(values_ms.max(initial=0.0)), _MOST_MS)
    n_steps = max(math.ceil(math.log(most_ms / least_ms) / math.log(_LOG_STEP)), 1)
    return np.append(least_ms * _LOG_STEP ** np.arange(n_steps + 1), math.inf)
