"""Burstiness over time: Gamma fits of a trace's windows, per LLM and service (BurstGPT, IV-A.1)."""

from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.base.files import MAKE_TRACE_AGAIN, read_parquet, reading
from sextant.trace.trace_format import parquet_rows
from sextant.workload.arrivals import ALL_AT_ONCE, ALL_EQUAL, clock_step, hidden
from sextant.workload.gamma import FAR, count_steps, fit_gamma, fit_steps, ks_distance

WINDOW_S = 1200.0
"""BurstGPT's window: 20 minutes (III-B, IV-A.1)."""
MIN_GAPS = 30
"""Fewest gaps that are fitted. With 30 the 95% interval of alpha covers as often as it says
(with 10 in 93%, with 5 in 91% of draws); it is then about 0.6 to 1.5 times the estimate."""
TOO_FEW = f"fewer than {MIN_GAPS} gaps"
MAX_CELLS = 10_000_000
"""Most windows of all groups together: a trace with more has a wrong time in it."""
MAX_GROUPS = 1000
"""Most pairs of LLM and service, null among them: each is read by itself."""
_FITTED = (
    *("alpha", "alpha_lo", "alpha_hi", "beta_s", "beta_lo_s", "beta_hi_s"),
    *("cv", "ks"),
)


def read_arrivals(trace: str | Path) -> np.ndarray:
    """Return the arrivals (s) of all requests of a trace, failed ones too."""
    return read_parquet(trace, ["arrival_s"], fix=MAKE_TRACE_AGAIN)["arrival_s"].to_numpy()


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

    Raises InputError: no duration, no request, arrivals out of order, or too many windows.
    """
    if not window_s > 0:
        raise InputError(f"windows of {window_s} s", field="window_s", fix="give more than 0 s")
    parts = []
    for llm, service, arrival_s, end_s, n_groups in _groups(trace):
        n_windows = int(np.floor(end_s / window_s)) + 1
        if n_windows * n_groups > MAX_CELLS:
            problem = f"{n_windows} windows for each of {n_groups} LLMs and services"
            raise InputError(problem, file=trace, field="window_s", fix="give longer windows")
        start_s = np.arange(n_windows) * window_s
        gaps = np.diff(arrival_s)
        has_steps = bool(np.any(gaps == 0) and np.any(gaps > 0))
        step_s = clock_step(gaps, end_s) if has_steps else np.nan
        group = {
            "llm": np.full(n_windows, llm, object),
            "service": np.full(n_windows, service, object),
            "start_s": start_s,
            "duration_s": np.minimum(window_s, end_s - start_s),
            "clock_step_s": np.full(n_windows, step_s),
        }
        window = np.floor(arrival_s / window_s).astype(np.int64)
        parts.append(pd.DataFrame(group | _fit(arrival_s, window, step_s, n_windows)))
    return pd.concat(parts, ignore_index=True)


def _groups(trace: str | Path) -> Iterator[tuple[str | None, str | None, np.ndarray, float, int]]:
    """Yield each LLM and service in order, their arrivals (s), the trace's end, and how many."""
    rows = parquet_rows(trace)
    with reading(trace, duckdb.Error, fix=MAKE_TRACE_AGAIN), duckdb.connect() as database:
        database.execute("SET enable_progress_bar = false")
        groups = database.execute(
            f"SELECT llm, service, max(arrival_s) FROM {rows} GROUP BY ALL ORDER BY ALL NULLS LAST"
        ).fetchall()
        if not groups:
            raise InputError("the trace has no request", file=trace, fix="give a trace with rows")
        if len(groups) > MAX_GROUPS:
            fix = "name the LLM and the service there, not the request"
            problem = f"{len(groups)} pairs of LLM and service"
            raise InputError(problem, file=trace, field="llm", fix=fix)
        end_s = max(last_s for *_, last_s in groups)
        for llm, service, _ in groups:
            own = f"""SELECT arrival_s FROM {rows}
                WHERE llm IS NOT DISTINCT FROM ? AND service IS NOT DISTINCT FROM ?"""
            arrival_s = database.execute(own, [llm, service]).fetchnumpy()["arrival_s"]
            # NaN is not in order either.
            if not (arrival_s[0] >= 0 and np.all(np.diff(arrival_s) >= 0)):
                problem = "arrivals are not in ascending order from 0"
                raise InputError(problem, file=trace, field="arrival_s", fix=MAKE_TRACE_AGAIN)
            yield llm, service, arrival_s, end_s, len(groups)


def _fit(
    arrival_s: np.ndarray, window: np.ndarray, step_s: float, n_windows: int
) -> dict[str, np.ndarray]:
    """Fit the windows of one LLM and service, (n_windows,) of each column; `window` numbers the
    window of each arrival. NaN as `step_s`: gaps are exact.
    """
    cells = {name: np.zeros(n_windows, np.int64) for name in ("n_requests", "n_zero_gaps")}
    cells |= {name: np.full(n_windows, np.nan) for name in _FITTED}
    cells["reason"] = np.full(n_windows, TOO_FEW, object)
    is_first = np.diff(window, prepend=-1) != 0
    first = np.flatnonzero(is_first)
    cell = window[first]
    gaps = np.diff(arrival_s, prepend=np.nan)
    n_gaps = np.diff(np.append(first, len(window))) - 1
    n_zero = np.add.reduceat(((gaps == 0) & ~is_first).astype(np.int64), first)
    cells["n_requests"][cell], cells["n_zero_gaps"][cell] = n_gaps + 1, n_zero
    is_enough, is_at_once = n_gaps >= MIN_GAPS, n_zero == n_gaps
    cells["reason"][cell[is_enough & is_at_once]] = ALL_AT_ONCE
    is_used = is_enough & ~is_at_once
    if is_used.any():
        own = gaps[np.repeat(is_used, n_gaps + 1) & ~is_first]
        for name, values in _fit_gaps(own, n_gaps[is_used], step_s).items():
            cells[name][cell[is_used]] = values
    return cells


def _fit_gaps(gaps: np.ndarray, n: np.ndarray, step_s: float) -> dict[str, np.ndarray]:
    """Fit runs of `n` gaps each, exact ones (NaN) or counted in steps of a clock of `step_s`."""
    first = np.cumsum(n) - n
    totals = np.add.reduceat(gaps, first)
    if np.isnan(step_s):
        unit_s, reason = np.ones(len(n)), np.full(len(n), ALL_EQUAL, object)
        fits = fit_gamma(n, totals, np.add.reduceat(np.log(gaps), first))
        is_tested = np.isfinite(fits.alpha)
    else:
        steps = np.rint(gaps / step_s)
        counts = count_steps(steps, n)
        fits = fit_steps(counts)
        # The mean is the window's own, whatever the clock's jitter.
        unit_s = totals / np.maximum(np.add.reduceat(steps, first), 1)
        reason = np.full(len(n), hidden(step_s, "the shape of gaps"), object)
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
