"""Burstiness over time: Gamma fits of a trace's windows, per LLM and service (BurstGPT, IV-A.1).

The trace is read in batches in the order of arrival: once for its groups, once for coarse clocks,
once for the fits.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from sextant.base.errors import InputError
from sextant.base.files import MAKE_TRACE_AGAIN, reading
from sextant.workload.arrivals import ALL_AT_ONCE, ALL_EQUAL, common_steps, hidden
from sextant.workload.gamma import (
    FAR,
    MAX_STEPS,
    count_steps,
    fit_gamma,
    fit_steps,
    ks_distance,
)

WINDOW_S = 1200.0
"""BurstGPT's window: 20 minutes (III-B, IV-A.1)."""
MIN_GAPS = 30
"""Fewest gaps that are fitted. With 30 the 95% interval of alpha covers as often as it says
(with 10 in 93%, with 5 in 91% of draws); it is then about 0.6 to 1.5 times the estimate."""
TOO_FEW = f"fewer than {MIN_GAPS} gaps"
MAX_CELLS = 10_000_000
"""Most windows of all groups together: a trace with more has a wrong time in it."""
N_WORKERS = 2
MAX_GROUPS = 2**15 - 1
"""Most pairs of LLM and service, null among them: few enough for the quickest of sorts."""
BATCH_ROWS = 1 << 18
_FITTED = (
    *("alpha", "alpha_lo", "alpha_hi", "beta_s", "beta_lo_s", "beta_hi_s"),
    *("cv", "ks"),
)

Group = tuple[str | None, str | None]


class _Survey(NamedTuple):
    """What a trace holds: groups in order, the end, and each group's smallest positive gap (0: no
    stamps are equal, so the clock is fine)."""

    groups: dict[Group, int]
    step_s: np.ndarray
    end_s: float


class _Batch(NamedTuple):
    """Requests in the order of arrival, each with the number of its group."""

    arrival_s: np.ndarray
    group: np.ndarray


class TraceTimes:
    """The arrivals (s) of a trace, batch after batch, as often as they are asked for."""

    def __init__(self, trace: str | Path) -> None:
        self._trace = trace

    def __iter__(self) -> Iterator[np.ndarray]:
        for batch in read_batches(self._trace, ["arrival_s"]):
            yield batch.column(0).to_numpy(zero_copy_only=False)


def read_batches(trace: str | Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield columns of a trace, those of few texts as dictionaries."""
    with reading(trace, fix=MAKE_TRACE_AGAIN):
        # What is read ahead would be kept until the end: the whole of the columns.
        options = {"pre_buffer": False, "page_checksum_verification": True}
        with pq.ParquetFile(trace, read_dictionary=["llm", "service"], **options) as file:
            # Threads cost more than few columns take, and the caller has work for other cores.
            yield from file.iter_batches(BATCH_ROWS, columns=columns, use_threads=False)


def fit_windows(trace: str | Path, window_s: float = WINDOW_S) -> pd.DataFrame:
    """Fit a Gamma distribution to the gaps of every window, per LLM and service.

    A window's gaps are those between two of its own requests, so that a silent night belongs to no
    window. Where a group has equal stamps anywhere, all its gaps are counted in steps of its clock
    (see `arrivals.fit_arrivals`). Failed requests take part: they arrived. The first window begins
    at the trace's start.

    Returns:
        One row per group and window, empty windows too, in the order of group and time: `llm` and
        `service` (null is a group of its own), `start_s`, `duration_s` (the last window ends
        with the trace), `clock_step_s` (NaN: the group has no equal stamps), `n_requests`,
        `n_zero_gaps`, `alpha` with its 95% interval `alpha_lo` to `alpha_hi`, `beta_s` with
        `beta_lo_s` to `beta_hi_s`, `cv` and the Kolmogorov-Smirnov distance `ks` (NaN on
        a coarse clock), all NaN where nothing is fitted, and
        `reason`, which then says why (else null).

    Raises:
        InputError: no duration, no request, arrivals out of order, or too many windows.
    """
    if not window_s > 0:
        raise InputError(f"windows of {window_s} s", field="window_s", fix="give more than 0 s")
    survey = _survey_trace(trace)
    n_windows = int(_window_of(survey.end_s, window_s)) + 1
    n_groups = len(survey.groups)
    n_cells = n_windows * n_groups
    if n_cells > MAX_CELLS:
        problem = f"{n_windows} windows for each of {n_groups} LLMs and services"
        raise InputError(problem, file=trace, field="window_s", fix="give longer windows")
    step_s = _clock_steps(trace, survey)
    cells = {name: np.zeros(n_cells, np.int64) for name in ("n_requests", "n_zero_gaps")}
    cells |= {name: np.full(n_cells, np.nan) for name in _FITTED}
    cells["reason"] = np.full(n_cells, TOO_FEW, object)
    pending: deque[Future] = deque()
    # NumPy and SciPy let go of the interpreter's lock: a batch is fitted while others are read.
    with ThreadPoolExecutor(N_WORKERS) as pool:
        for rows in _whole_windows(_read_arrivals(trace, survey.groups), window_s):
            pending.append(pool.submit(_fit, rows, step_s, window_s, n_windows, cells))
            if len(pending) > N_WORKERS:
                pending.popleft().result()
        for job in pending:
            job.result()
    start_s = np.arange(n_windows) * window_s
    llms, services = (np.array(names, object) for names in zip(*survey.groups, strict=True))
    return pd.DataFrame(
        {
            "llm": np.repeat(llms, n_windows),
            "service": np.repeat(services, n_windows),
            "start_s": np.tile(start_s, n_groups),
            "duration_s": np.tile(np.minimum(window_s, survey.end_s - start_s), n_groups),
            "clock_step_s": np.repeat(step_s, n_windows),
            **cells,
        }
    )


def _window_of(arrival_s: np.ndarray | float, window_s: float) -> np.ndarray:
    """Return the number of the window that an arrival falls into."""
    return np.floor(np.asarray(arrival_s) / window_s).astype(np.int64)


def _survey_trace(trace: str | Path) -> _Survey:
    """Read the trace once for its groups, their smallest positive gaps, and its end."""
    groups: dict[Group, int] = {}
    last_s, step_s = np.full(MAX_GROUPS, np.nan), np.full(MAX_GROUPS, np.inf)
    has_zero, end_s = np.zeros(MAX_GROUPS, bool), 0.0
    for rows in _read_arrivals(trace, groups):
        # NaN is not in order either.
        if not (rows.arrival_s[0] >= end_s and np.all(np.diff(rows.arrival_s) >= 0)):
            problem, fix = "arrivals are not in ascending order from 0", "ingest the trace again"
            raise InputError(problem, file=trace, field="arrival_s", fix=fix)
        end_s = float(rows.arrival_s[-1])
        arrival_s, group = _by_group(rows)
        first = np.flatnonzero(np.diff(group, prepend=-1))
        present = group[first]
        before = np.concatenate([[np.nan], arrival_s[:-1]])
        before[first] = last_s[present]
        gaps = arrival_s - before
        positive = np.where(gaps > 0, gaps, np.inf)
        step_s[present] = np.minimum(step_s[present], np.minimum.reduceat(positive, first))
        has_zero[present] |= np.logical_or.reduceat(gaps == 0, first)
        last_s[present] = arrival_s[np.append(first[1:], len(group)) - 1]
    if not groups:
        raise InputError("the trace has no request", file=trace, fix="give a trace with rows")
    step_s = np.where(has_zero & np.isfinite(step_s), step_s, 0.0)
    in_order = sorted(groups, key=lambda group: [(name is None, name or "") for name in group])
    step_s = step_s[[groups[group] for group in in_order]]
    return _Survey({group: number for number, group in enumerate(in_order)}, step_s, end_s)


def _read_arrivals(trace: str | Path, groups: dict[Group, int]) -> Iterator[_Batch]:
    """Yield the trace in batches; a group that is not in `groups` gets the next number."""
    known: tuple[dict, dict] = ({}, {})
    for batch in read_batches(trace, ["arrival_s", "llm", "service"]):
        if not batch.num_rows:
            continue
        llm, service = (
            _codes(batch.column(name), codes)
            for name, codes in zip(("llm", "service"), known, strict=True)
        )
        if len(known[0]) * len(known[1]) > MAX_GROUPS:
            problem = f"{len(known[0])} LLMs and {len(known[1])} services"
            fix = "name the LLM and the service there, not the request"
            raise InputError(problem, file=trace, field="llm", fix=fix)
        pairs = [(one, other) for one in known[0] for other in known[1]]
        number = np.zeros(len(pairs), np.int16)
        place = llm * len(known[1]) + service
        for code in np.flatnonzero(np.bincount(place)):
            number[code] = groups.setdefault(pairs[code], len(groups))
        yield _Batch(batch.column("arrival_s").to_numpy(zero_copy_only=False), number[place])


def _codes(column: pa.Array, known: dict[str | None, int]) -> np.ndarray:
    """Return a column's values as numbers, which `known` keeps from one batch to the next."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    values = [*encoded.dictionary.to_pylist(), None]
    numbers = np.array([known.setdefault(value, len(known)) for value in values])
    return numbers[encoded.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)]


def _by_group(rows: _Batch) -> _Batch:
    """Order requests by group; within one they stay in the order of arrival."""
    if np.all(rows.group == rows.group[0]):
        return rows
    order = np.argsort(rows.group, kind="stable")
    return _Batch(rows.arrival_s[order], rows.group[order])


def _whole_windows(batches: Iterator[_Batch], window_s: float) -> Iterator[_Batch]:
    """Cut the stream between windows instead of within them."""
    held: list[_Batch] = []
    for rows in batches:
        held.append(rows)
        ends = _window_of(np.array([held[0].arrival_s[0], rows.arrival_s[-1]]), window_s)
        if ends[0] == ends[1]:
            continue
        rows = _Batch(*map(np.concatenate, zip(*held, strict=True)))
        cut = int(np.searchsorted(_window_of(rows.arrival_s, window_s), ends[1]))
        yield _Batch(*(values[:cut] for values in rows))
        held = [_Batch(*(values[cut:] for values in rows))]
    if held:
        yield _Batch(*map(np.concatenate, zip(*held, strict=True)))


def _clock_steps(trace: str | Path, survey: _Survey) -> np.ndarray:
    """Return the step of each group's clock, NaN where no stamps are equal."""
    least = np.maximum(survey.step_s, survey.end_s / MAX_STEPS)
    step_s = np.where(survey.step_s > 0, least, np.nan)
    if np.isnan(step_s).all():
        return step_s
    for rows in _read_arrivals(trace, survey.groups):
        arrival_s, group = _by_group(rows)
        gaps = np.diff(arrival_s)
        is_gap = (gaps > 0) & (np.diff(group) == 0)
        step_s = common_steps(gaps[is_gap], group[1:][is_gap], step_s, survey.end_s)
    return np.where((survey.step_s > 0) & np.isnan(step_s), least, step_s)


def _fit(
    rows: _Batch,
    step_s: np.ndarray,
    window_s: float,
    n_windows: int,
    cells: dict[str, np.ndarray],
) -> None:
    """Fit the windows of `rows` and enter them into `cells`, one cell per group and window."""
    arrival_s, group = _by_group(rows)
    cell = group * np.int64(n_windows) + _window_of(arrival_s, window_s)
    is_first = np.diff(cell, prepend=-1) != 0
    gaps = np.diff(arrival_s, prepend=np.nan)
    first = np.flatnonzero(is_first)
    cell = cell[first]
    n_gaps = np.diff(np.append(first, len(group))) - 1
    n_zero = np.add.reduceat(((gaps == 0) & ~is_first).astype(np.int64), first)
    cells["n_requests"][cell], cells["n_zero_gaps"][cell] = n_gaps + 1, n_zero
    is_enough, is_at_once = n_gaps >= MIN_GAPS, n_zero == n_gaps
    cells["reason"][cell[is_enough & is_at_once]] = ALL_AT_ONCE
    window_step_s = step_s[group[first]]
    for is_stepped in (False, True):
        is_used = is_enough & ~is_at_once & (np.isfinite(window_step_s) == is_stepped)
        if is_used.any():
            own = gaps[np.repeat(is_used, n_gaps + 1) & ~is_first]
            found = _fit_gaps(own, n_gaps[is_used], window_step_s[is_used] if is_stepped else None)
            for name, values in found.items():
                cells[name][cell[is_used]] = values


def _fit_gaps(gaps: np.ndarray, n: np.ndarray, step_s: np.ndarray | None) -> dict[str, np.ndarray]:
    """Fit runs of `n` gaps each, exact ones, or counted in steps of their clocks (`step_s`)."""
    first = np.cumsum(n) - n
    totals = np.add.reduceat(gaps, first)
    if step_s is None:
        unit_s, reason = np.ones(len(n)), np.full(len(n), ALL_EQUAL, object)
        fits = fit_gamma(n, totals, np.add.reduceat(np.log(gaps), first))
        is_tested = np.isfinite(fits.alpha)
    else:
        steps = np.rint(gaps / np.repeat(step_s, n))
        counts = count_steps(steps, n)
        fits = fit_steps(counts)
        # The mean is the window's own, whatever the clock's jitter.
        unit_s = totals / np.maximum(np.add.reduceat(steps, first), 1)
        reason = np.array([hidden(step, "the shape of gaps") for step in step_s], object)
        reason[counts.n_distinct == 1] = ALL_EQUAL
        is_tested = np.isfinite(fits.alpha) & (FAR * step_s <= totals / n)
    reason[np.isfinite(fits.alpha)] = None
    ks = np.full(len(n), np.nan)
    if is_tested.any():
        alpha, beta_s, n_own = fits.alpha[is_tested], (fits.beta * unit_s)[is_tested], n[is_tested]
        ks[is_tested] = ks_distance(gaps[np.repeat(is_tested, n)], n_own, alpha, beta_s)
    alphas = {name: getattr(fits, name) for name in ("alpha", "alpha_lo", "alpha_hi", "cv")}
    betas = {f"{name}_s": getattr(fits, name) * unit_s for name in ("beta", "beta_lo", "beta_hi")}
    return {**alphas, **betas, "ks": ks, "reason": reason}
