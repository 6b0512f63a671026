"""Burstiness over time: Gamma fits of a trace's windows, and how often its traffic doubles.

The trace is read in batches: once for its groups, once for coarse clocks, once for the fits.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.workload.arrivals import ALL_AT_ONCE, ALL_EQUAL, common_steps, hidden
from sextant.workload.gamma import GammaFits, fit_gamma, ks_distance, ks_p_value
from sextant.workload.profiles import DAY_S, GROUP, traffic_series
from sextant.workload.step_distance import judge_steps
from sextant.workload.steps import MAX_STEPS, count_steps, fit_steps
from sextant.workload.trace_stream import (
    ArrivalBatch,
    Survey,
    by_group,
    read_arrivals,
    survey_trace,
    whole_windows,
    window_of,
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
_COUNTED = ("n_requests", "n_zero_gaps")
_FITTED = (
    *("alpha", "alpha_lo", "alpha_hi", "beta_s", "beta_lo_s", "beta_hi_s"),
    *("cv", "ks", "p_value"),
)


def fit_windows(trace: str | Path, window_s: float = WINDOW_S, seed: int = 0) -> pd.DataFrame:
    """Fit a Gamma distribution to the gaps of every window, per LLM and service.

    A window's gaps are those between two of its own requests, so that a silent night belongs to no
    window. Where a group has equal stamps anywhere, all its gaps are counted in steps of its clock
    (see `arrivals.fit_arrivals`, also for `seed`). Failed requests take part: they arrived. The
    first window begins at the trace's start.

    Returns:
        A row a group and window, empty windows too, in the order of group and time: `llm` and
        `service` (null is a group of its own), `start_s`, `duration_s` (the last window ends
        with the trace), `clock_step_s` (NaN: the group has no equal stamps), `n_requests`,
        `n_zero_gaps`, `alpha` with its 95% interval `alpha_lo` to `alpha_hi`, `beta_s` with
        `beta_lo_s` to `beta_hi_s`, `cv`, the Kolmogorov-Smirnov distance `ks` and its
        `p_value` (see `gamma.ks_p_value`), all NaN where nothing is fitted, and `reason`, which
        then says why (else null).

    Raises:
        InputError: no duration, no request, arrivals out of order, or too many windows.
    """
    if not window_s > 0:
        raise InputError(f"windows of {window_s} s", field="window_s", fix="give more than 0 s")
    survey = survey_trace(trace)
    n_windows = int(window_of(survey.end_s, window_s)) + 1
    n_cells = n_windows * len(survey.groups)
    if n_cells > MAX_CELLS:
        problem = f"{n_windows} windows for each of {len(survey.groups)} LLMs and services"
        raise InputError(problem, file=trace, field="window_s", fix="give longer windows")
    step_s = _clock_steps(trace, survey)
    rows = read_arrivals(trace, survey.groups, np.random.default_rng(seed))
    cells = _fit_all(rows, step_s, window_s, n_windows)
    return pd.DataFrame({**_keys(survey, step_s, n_windows, window_s), **cells})


def _fit_all(
    batches: Iterator[ArrivalBatch], step_s: np.ndarray, window_s: float, n_windows: int
) -> dict[str, np.ndarray]:
    """Return the cells of all groups and windows; without draws no fit is tested."""
    cells = _not_fitted(n_windows * len(step_s))
    pending: deque[Future] = deque()
    # NumPy and SciPy let go of the interpreter's lock: a batch is fitted while others are read.
    with ThreadPoolExecutor(N_WORKERS) as pool:
        for rows in whole_windows(batches, window_s):
            pending.append(pool.submit(_fit, rows, step_s, window_s, n_windows, cells))
            if len(pending) > N_WORKERS:
                pending.popleft().result()
        for job in pending:
            job.result()
    return cells


def _not_fitted(n_cells: int) -> dict[str, np.ndarray]:
    cells = {name: np.zeros(n_cells, np.int64) for name in _COUNTED}
    cells |= {name: np.full(n_cells, np.nan) for name in _FITTED}
    return cells | {"reason": np.full(n_cells, TOO_FEW, object)}


def fit_shapes(
    batches: Iterator[ArrivalBatch], n_groups: int, end_s: float, step_s: float, window_s: float
) -> dict[str, np.ndarray]:
    """Fit the windows of each group, whose clock is known (NaN: exact), until `end_s`.

    Returns `start_s` and `duration_s` (n windows), and of each group and window `n_requests` and
    `alpha` (n groups, n windows), 1 where nothing is fitted: Poisson at its counted rate.
    """
    n_windows = int(window_of(end_s, window_s)) + 1
    cells = _fit_all(batches, np.full(n_groups, step_s), window_s, n_windows)
    start_s = np.arange(n_windows) * window_s
    alpha = np.where(np.isnan(cells["alpha"]), 1.0, cells["alpha"])
    shape = {"n_requests": cells["n_requests"], "alpha": alpha}
    return {
        "start_s": start_s,
        "duration_s": np.minimum(window_s, end_s - start_s),
        **{name: values.reshape(n_groups, n_windows) for name, values in shape.items()},
    }


def _clock_steps(trace: str | Path, survey: Survey) -> np.ndarray:
    """Return the step of each group's clock, NaN where no stamps are equal."""
    least = np.maximum(survey.step_s, survey.end_s / MAX_STEPS)
    step_s = np.where(survey.step_s > 0, least, np.nan)
    if np.isnan(step_s).all():
        return step_s
    for rows in read_arrivals(trace, survey.groups, None):
        arrival_s, group, _ = by_group(rows)
        gaps = np.diff(arrival_s)
        is_gap = (gaps > 0) & (np.diff(group) == 0)
        step_s = common_steps(gaps[is_gap], group[1:][is_gap], step_s, survey.end_s)
    return np.where((survey.step_s > 0) & np.isnan(step_s), least, step_s)


def _keys(
    survey: Survey, step_s: np.ndarray, n_windows: int, window_s: float
) -> dict[str, np.ndarray]:
    start_s = np.arange(n_windows) * window_s
    duration_s = np.minimum(window_s, survey.end_s - start_s)
    n_groups = len(survey.groups)
    llms, services = (np.array(names, object) for names in zip(*survey.groups, strict=True))
    return {
        "llm": np.repeat(llms, n_windows),
        "service": np.repeat(services, n_windows),
        "start_s": np.tile(start_s, n_groups),
        "duration_s": np.tile(duration_s, n_groups),
        "clock_step_s": np.repeat(step_s, n_windows),
    }


def _fit(
    rows: ArrivalBatch,
    step_s: np.ndarray,
    window_s: float,
    n_windows: int,
    cells: dict[str, np.ndarray],
) -> None:
    """Fit the windows of `rows` and enter them into `cells`, one cell a group and window."""
    arrival_s, group, offset = by_group(rows)
    cell = group * np.int64(n_windows) + window_of(arrival_s, window_s)
    is_first = np.diff(cell, prepend=-1) != 0
    is_zero = (np.diff(arrival_s, prepend=np.nan) == 0) & ~is_first
    first = np.flatnonzero(is_first)
    cell = cell[first]
    n_gaps = np.diff(np.append(first, len(group))) - 1
    n_zero = np.add.reduceat(is_zero.astype(np.int64), first)
    cells["n_requests"][cell], cells["n_zero_gaps"][cell] = n_gaps + 1, n_zero
    is_enough, is_at_once = n_gaps >= MIN_GAPS, n_zero == n_gaps
    cells["reason"][cell[is_enough & is_at_once]] = ALL_AT_ONCE
    gaps = np.diff(arrival_s, prepend=np.nan)
    window_step_s = step_s[group[first]]
    is_stepped = np.isfinite(window_step_s)
    for of_kind, fit_kind in ((~is_stepped, _fit_exact), (is_stepped, _fit_stepped)):
        is_used = is_enough & ~is_at_once & of_kind
        if is_used.any():
            own = np.repeat(is_used, n_gaps + 1) & ~is_first
            draws = offset[own] if len(offset) else None
            found = fit_kind(gaps[own], n_gaps[is_used], window_step_s[is_used], draws)
            for name, values in found.items():
                cells[name][cell[is_used]] = values


def _fit_exact(
    gaps: np.ndarray, n: np.ndarray, step_s: np.ndarray, offset: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Fit runs of `n` gaps each; the clock takes no part. Without draws no fit is tested."""
    first = np.cumsum(n) - n
    fits = fit_gamma(n, np.add.reduceat(gaps, first), np.add.reduceat(np.log(gaps), first))
    is_fitted = np.isfinite(fits.alpha)
    ks, p_value = np.full((2, len(n)), np.nan)
    if is_fitted.any() and offset is not None:
        alpha, n_fitted = fits.alpha[is_fitted], n[is_fitted]
        own = gaps[np.repeat(is_fitted, n)]
        ks[is_fitted] = ks_distance(own, n_fitted, alpha, fits.beta[is_fitted])
        p_value[is_fitted] = ks_p_value(ks[is_fitted], n_fitted, alpha)
    reason = np.full(len(n), None)
    reason[~is_fitted] = ALL_EQUAL
    return _columns(fits, np.ones(len(n))) | {"ks": ks, "p_value": p_value, "reason": reason}


def _fit_stepped(
    gaps: np.ndarray, n: np.ndarray, step_s: np.ndarray, offset: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Fit runs of `n` gaps each, counted in steps of their clocks."""
    steps, first = np.rint(gaps / np.repeat(step_s, n)), np.cumsum(n) - n
    counts = count_steps(steps, n)
    fits = fit_steps(counts)
    # The mean is the window's own, whatever the clock's jitter.
    unit_s = np.add.reduceat(gaps, first) / np.maximum(np.add.reduceat(steps, first), 1)
    ks, p_value = np.full((2, len(n)), np.nan)
    if offset is not None:
        ks, p_value = judge_steps(counts, fits, offset)
    reason = np.array([hidden(step, "the shape of gaps") for step in step_s], object)
    reason[counts.n_distinct == 1] = ALL_EQUAL
    reason[np.isfinite(fits.alpha)] = None
    return _columns(fits, unit_s) | {"ks": ks, "p_value": p_value, "reason": reason}


def _columns(fits: GammaFits, unit_s: np.ndarray) -> dict[str, np.ndarray]:
    alphas = {name: getattr(fits, name) for name in ("alpha", "alpha_lo", "alpha_hi")}
    betas = {f"{name}_s": getattr(fits, name) * unit_s for name in ("beta", "beta_lo", "beta_hi")}
    return alphas | betas | {"cv": fits.cv}


def count_doublings(
    trace: str | Path, minutes: float, *, by: Sequence[str] = GROUP, min_count: int = 1
) -> pd.DataFrame:
    """Count how often requests at least double from one window to the next (BurstGPT, Fig. 5).

    Windows follow one another from midnight where the trace's start time is known, else from its
    start; a window that the trace covers only in part takes no part. A window doubles if the one
    before has `min_count` requests or more, and it has at least twice as many. From zero there is
    no doubling: such rises are counted apart. At few requests chance alone doubles many windows.

    Returns:
        A row a group and day: the `by` columns (see `traffic_series`), `day` (from 0), `date` and
        `is_workday` (Monday to Friday, holidays too; both null without a start time), `n_windows`
        (compared with the one before), `n_doublings`, `n_from_zero`, and `windows_per_day`, of a
        whole day.

    Raises:
        InputError: see `traffic_series`, or `min_count` below 1.
    """
    if min_count < 1:
        raise InputError(f"{min_count} requests", field="min_count", fix="give 1 or more")
    by, window_s = list(by), 60.0 * minutes
    series = _with_days(traffic_series(trace, window_s, by=by))
    is_first = series["start_s"] == series["start_s"].min()
    whole = series["n_requests"].where(series["is_whole"])
    before = whole.shift().mask(is_first)
    counts = {
        "n_windows": before.notna() & whole.notna(),
        "n_doublings": (before >= min_count) & (whole >= 2 * before),
        "n_from_zero": (before == 0) & (whole > 0),
    }
    keys = [*by, "day", "date", "is_workday"]
    days = series.assign(**counts).groupby(keys, dropna=False)[list(counts)].sum()
    return days.reset_index().assign(windows_per_day=DAY_S / window_s)


def _with_days(series: pd.DataFrame) -> pd.DataFrame:
    """Add the day of each window, by the trace's clock where that is known."""
    date = series["moment"].dt.normalize()
    since_s = (date - date.min()).dt.total_seconds().fillna(series["start_s"])
    is_workday = (date.dt.day_of_week < 5).astype("boolean").mask(date.isna())
    return series.assign(day=(since_s // DAY_S).astype(int), date=date, is_workday=is_workday)


def summarize_doublings(days: pd.DataFrame) -> pd.DataFrame:
    """Return the totals of `count_doublings`, a row a group.

    They are the groups' columns, `n_doublings`, `n_from_zero`, and `per_day` and `per_workday`:
    doublings over the days that were observed, a day observed in part as that part (NaN below one
    whole day; `per_workday` also where days have no date).
    """
    by = list(days.columns[: days.columns.get_loc("day")])
    days = days.assign(observed=days["n_windows"] / days["windows_per_day"])
    work = days["is_workday"].fillna(False).astype(bool)
    for name in ("n_doublings", "observed"):
        days[f"work_{name}"] = days[name].where(work, 0)
    names = ["n_doublings", "n_from_zero", "observed", "work_n_doublings", "work_observed"]
    totals = days.groupby(by, dropna=False)[names].sum() if by else days[names].sum().to_frame().T
    for name, prefix in (("per_day", ""), ("per_workday", "work_")):
        # The very first window has nothing before it.
        observed = totals[f"{prefix}observed"].where(totals[f"{prefix}observed"] > 0.99)
        totals[name] = totals[f"{prefix}n_doublings"] / observed
    totals = totals.astype({"n_doublings": int, "n_from_zero": int})
    chosen = totals[["n_doublings", "n_from_zero", "per_day", "per_workday"]]
    return chosen.reset_index() if by else chosen.reset_index(drop=True)
