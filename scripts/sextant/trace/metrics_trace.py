"""A trace made of metrics: requests as counted, with lengths drawn from histograms.

Each LLM's requests arrive at random within the time between two readings, as many as were counted.
Their lengths are drawn from the histograms of that time. Metrics do not say which input belongs to
which output, so both are drawn apart. The observations themselves are stored inside the trace.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sextant.base.errors import InputError
from sextant.base.files import PROVENANCE_KEY, provenance, write_json
from sextant.base.whole_files import atomic_files
from sextant.pages.words import duration_words, number, percent, plural
from sextant.trace.histogram import Histogram, draw_values
from sextant.trace.metric_samples import MetricText, Readings, parse_readings
from sextant.trace.model_metrics import BinnedCounts, ModelMetrics, metrics_by_model
from sextant.trace.observed import OBSERVED_KEY, observed_of
from sextant.trace.rules import REJECTED
from sextant.trace.trace_format import MAX_INT32, SCHEMA

PROMETHEUS = "prometheus"
"""The format of metrics, beside those of logs."""
MOST_REQUESTS = 30_000_000
"""Requests of a trace that is made of metrics."""
_SIDES = (("input_tokens", "input_total"), ("output_tokens", "output_total"))


@dataclass(frozen=True, eq=False)
class TraceOfMetrics:
    """The requests of all LLMs, and how they were made."""

    table: pa.Table
    n_failed: int
    duration_s: float
    notes: list[str]
    facts: Mapping[str, Any]
    """Of the provenance."""


def ingest_metrics(
    texts: Sequence[MetricText],
    outputs: Sequence[Path],
    *,
    interval_s: float | None = None,
    seed: int = 0,
    inputs: Mapping[str, str | Path] | None = None,
) -> dict[str, Any]:
    """Make a trace of metrics; write it with an empty file of rejected rows and a report.

    Args:
        texts: snapshots of `/metrics`, or answers of Prometheus.
        outputs: the trace, the rejected rows, the report.
        interval_s: time between snapshots that do not say when they were taken.
        seed: of arrivals and lengths.
        inputs: files of which the provenance has the SHA-256.

    Returns:
        The report: counts as those of `job.ingest_trace`, and `notes`.

    Raises:
        InputError: the texts are no metrics, no request was counted, or there are too many.
    """
    readings = parse_readings(texts, interval_s)
    trace = draw_trace(readings, seed)
    origin = provenance(inputs, trace_format=PROMETHEUS, seed=seed, **trace.facts)
    n_accepted = trace.table.num_rows
    report = {
        "n_read": n_accepted,
        "n_rejected": 0,
        "n_rejected_by_reason": {},
        "n_blank_lines": 0,
        "n_accepted": n_accepted,
        "n_failed": trace.n_failed,
        "n_moved": 0,
        "most_late_s": 0.0,
        "duration_s": trace.duration_s,
        "ignored_columns": [],
        "start_time": origin["start_time"],
        "first_tick_s": origin["first_tick_s"],
        "notes": trace.notes,
        "provenance": origin,
    }
    with atomic_files(outputs) as (trace_out, rejected_out, report_out):
        _write(trace_out, trace.table, origin)
        _write(rejected_out, REJECTED.empty_table(), origin)
        write_json(report_out, report)
    return report


def draw_trace(readings: Readings, seed: int) -> TraceOfMetrics:
    """Return the trace of some readings. Raises InputError as `ingest_metrics` does."""
    models = metrics_by_model(readings)
    n_requests = int(sum(model.n_arrived.sum() + model.n_failed.sum() for model in models))
    if n_requests > MOST_REQUESTS:
        problem = f"{n_requests:,} requests were counted; a trace takes {MOST_REQUESTS:,}"
        raise InputError(problem, fix="read a shorter time (--last), or one LLM (--match)")

    start_s = min(float(model.edges_s[0]) for model in models)
    end_s = max(float(model.edges_s[-1]) for model in models)
    notes = [*readings.notes]
    columns = []
    for model_number, model in enumerate(models):
        random = np.random.default_rng([seed, model_number])
        columns.append(_draw_model(model, start_s, random))
        notes += _notes_of(model, is_one_of_many=len(models) > 1)
    if len(models) > 1:
        names = ", ".join(str(model.llm) for model in models)
        notes.append(
            f"Metrics of {len(models)} LLMs: {names}. Choose one where the trace is read "
            "(--llm-in-trace), else their requests count together."
        )

    moment = datetime.fromtimestamp(start_s, UTC).isoformat() if readings.is_dated else None
    facts = {
        "start_time": moment,
        "first_tick_s": start_s if readings.is_dated else 0.0,
        "drawn": ["arrival_s within each interval", *(name for name, _ in _SIDES)],
        OBSERVED_KEY: [observed_of(model, start_s).to_plain() for model in models],
    }
    return TraceOfMetrics(
        table=_table(columns, [model.llm for model in models]),
        n_failed=int(sum(model.n_failed.sum() for model in models)),
        duration_s=end_s - start_s,
        notes=notes,
        facts=facts,
    )


def _draw_model(
    model: ModelMetrics, start_s: float, random: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return the requests of one LLM in order: arrival, lengths, and whether they failed."""
    n_by_window = (model.n_arrived + model.n_failed).astype(int)
    window = np.repeat(np.arange(model.n_windows), n_by_window)
    begin_s = model.edges_s[:-1][window] - start_s
    arrival_s = begin_s + random.random(len(window)) * np.diff(model.edges_s)[window]
    has_failed = np.zeros(len(window), bool)
    ends = np.cumsum(n_by_window)
    for number_of, end in enumerate(ends.tolist()):
        n_failed = int(model.n_failed[number_of])
        has_failed[end - n_failed : end] = n_failed > 0
    columns = {"arrival_s": arrival_s, "has_failed": has_failed}
    arrived = model.n_arrived.astype(int)
    for name, counter in _SIDES:
        lengths = np.zeros(len(window), np.int64)
        lengths[~has_failed] = _draw_lengths(model, name, counter, arrived, random)
        columns[name] = lengths
    order = np.argsort(arrival_s, kind="stable")
    return {name: values[order] for name, values in columns.items()}


def _draw_lengths(
    model: ModelMetrics,
    histogram: str,
    counter: str,
    n_by_window: np.ndarray,
    random: np.random.Generator,
) -> np.ndarray:
    """Return lengths of requests that did not fail, window by window, (requests,)."""
    n_requests = int(n_by_window.sum())
    n_answered = float(model.n_answered.sum())
    binned = model.histograms.get(histogram)
    if binned is None or len(binned.edges) < 2:
        whole = binned.within(slice(None)).mean if binned is not None else math.nan
        if math.isnan(whole) and counter in model.totals and n_answered:
            whole = float(model.totals[counter].sum()) / n_answered
        if math.isnan(whole):
            names = f"{histogram}, {counter}"
            fix = "read the histograms of tokens too (SGLang: --collect-tokens-histogram)"
            raise InputError("nothing says how long requests are", field=names, fix=fix)
        return np.full(n_requests, max(round(whole), 1))

    total = binned.within(slice(None))
    if not total.n:
        problem = "requests were counted, but no length"
        fix = "read a longer time"
        raise InputError(problem, field=histogram, fix=fix)
    low, high = total.ranges()
    buckets = np.concatenate(
        [
            _draw_buckets(binned, total, window, n, random)
            for window, n in enumerate(n_by_window.tolist())
            if n
        ]
        or [np.empty(0, int)]
    )
    values = draw_values(low[buckets], high[buckets], total.place(), random)
    return np.clip(np.ceil(values), 1, MAX_INT32).astype(np.int64)


def _draw_buckets(
    binned: BinnedCounts, total: Histogram, window: int, n: int, random: np.random.Generator
) -> np.ndarray:
    """Return the buckets of a window's requests in any order: those counted, as far as they go.

    Requests beyond these, which are still in flight, are drawn from the same counts.
    """
    counts = np.round(binned.counts[window]).astype(int)
    counted = random.permutation(np.repeat(np.arange(len(counts)), counts))
    if n <= len(counted):
        return counted[:n]
    source = binned.counts[window] if len(counted) else total.counts
    more = random.choice(len(source), size=n - len(counted), p=source / source.sum())
    return random.permutation(np.concatenate([counted, more]))


def _table(columns: Sequence[Mapping[str, np.ndarray]], llms: Sequence[str | None]) -> pa.Table:
    """Return the requests of all LLMs in the order of their arrival."""
    joined = {
        name: np.concatenate([part[name] for part in columns])
        for name in ("arrival_s", "has_failed", "input_tokens", "output_tokens")
    }
    llm_of = np.repeat(np.arange(len(llms)), [len(part["arrival_s"]) for part in columns])
    order = np.argsort(joined["arrival_s"], kind="stable")
    n = len(order)
    known = [llm for llm in llms if llm is not None]
    indices = pa.array(
        [known.index(llm) if llm is not None else None for llm in llms], pa.int32()
    ).take(pa.array(llm_of[order]))
    status = joined["has_failed"][order].astype(np.int32)
    arrays = {
        "request_id": pa.array(np.arange(1, n + 1)).cast(pa.string()),
        "arrival_s": pa.array(joined["arrival_s"][order]),
        "input_tokens": pa.array(joined["input_tokens"][order], pa.int32()),
        "output_tokens": pa.array(joined["output_tokens"][order], pa.int32()),
        "llm": pa.DictionaryArray.from_arrays(indices, pa.array(known, pa.string())),
        "status": pa.DictionaryArray.from_arrays(status, ["ok", "failed"]),
    }
    empty = {field.name: pa.nulls(n, field.type) for field in SCHEMA}
    return pa.table({**empty, **arrays}, schema=SCHEMA)


def _write(path: Path, table: pa.Table, origin: Mapping[str, Any]) -> None:
    settings: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True}
    with pq.ParquetWriter(path, table.schema, store_schema=False, **settings) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({PROVENANCE_KEY: json.dumps(origin).encode()})


def _notes_of(model: ModelMetrics, *, is_one_of_many: bool) -> list[str]:
    """Return what was read of an LLM, and what was drawn."""
    of_model = f" of {model.llm}" if is_one_of_many else ""
    duration_s = float(model.edges_s[-1] - model.edges_s[0])
    step_s = duration_s / model.n_windows
    engines = plural(model.n_engines, "engine")
    notes = [
        f"{model.engine}{of_model}: {engines}, {plural(model.n_windows + 1, 'reading')} over "
        f"{duration_words(duration_s)}. Requests are as counted: those answered, and the growth of "
        f"those in flight. Arrivals are drawn evenly within {duration_words(step_s)}, lengths from "
        "the histograms, input and output apart."
    ]
    for name, _ in _SIDES:
        side = name.replace("_", " ")
        binned = model.histograms.get(name)
        if binned is None or len(binned.edges) < 2:
            notes.append(f"There is no histogram of {side}{of_model}: all requests have the mean.")
            continue
        above = binned.within(slice(None)).counts[-1]
        if above:
            edge = number(float(binned.edges[-2]))
            notes.append(
                f"{plural(int(above), 'request')} have more than {edge} {side}: how many "
                "more follows from the sum alone."
            )
    share = model.cached_share
    if share is not None:
        notes.append(f"The prefix cache had {percent(share)} of the input{of_model}.")
    return [*notes, *model.notes]
