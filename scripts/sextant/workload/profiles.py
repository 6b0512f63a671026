"""A trace over time, per LLM and service: traffic, failures, and how bursty it is.

Where the trace's provenance has a `start_time` (ISO 8601), buckets of time are aligned to its
clock's midnight, else to the trace's start. Burstiness is a Gamma fit of each window (BurstGPT,
IV-A.1).
"""

import itertools
from collections.abc import Iterator, Sequence
from datetime import datetime, time
from pathlib import Path
from typing import NamedTuple

import duckdb
import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.base.files import MAKE_TRACE_AGAIN, read_provenance, reading
from sextant.trace.trace_format import parquet_rows, require_trace
from sextant.workload import gamma
from sextant.workload.arrivals import ALL_AT_ONCE, ALL_EQUAL, clock_step, hidden

GROUP = ("llm", "service")
MIN_REQUESTS = 10  # fewest of a bucket whose failures are judged: one is then at most 10%
MAX_BUCKETS = 10_000_000  # of all groups together: a trace with more has a wrong time in it
DAY_S = 86_400.0
HOUR_S = 3600.0
_MEASURES = {
    "n_requests": "count(*)",
    "n_failed": "count(*) FILTER (status = 'failed')",
    "input_tokens": "coalesce(sum(input_tokens), 0)",
    "output_tokens": "coalesce(sum(output_tokens), 0)",
}
_QUARTILES = {"q1": 0.25, "median": 0.5, "q3": 0.75}
WINDOW_S = 1200.0  # BurstGPT's window (III-B, IV-A.1)
MIN_GAPS = 30
"""Fewest gaps that are fitted. With 30 the 95% interval of alpha covers as often as it says
(with 10 in 93%, with 5 in 91% of draws); it is then about 0.6 to 1.5 times the estimate."""
TOO_FEW = f"fewer than {MIN_GAPS} gaps"
MAX_GROUPS = 1000  # most pairs of LLM and service, null among them: each is read by itself
_AT_ONCE = 1 << 20  # requests whose windows are fitted at a time, or those of one window
_FITTED = ("alpha", "alpha_lo", "alpha_hi", "beta_s", "beta_lo_s", "beta_hi_s", "cv", "ks")


def start_time(trace: str | Path) -> datetime | None:
    """Return when a trace began by its own clock, without time zone; None: not known."""
    stored = read_provenance(trace).get("start_time")
    try:
        return None if stored is None else datetime.fromisoformat(stored).replace(tzinfo=None)
    except ValueError:
        fix = "ingest the trace again, with an ISO date and time or none"
        problem = f"{stored!r} is not an ISO date and time"
        raise InputError(problem, file=trace, field="start_time", fix=fix) from None


def traffic_series(
    trace: str | Path, bucket_s: float, *, by: Sequence[str] = GROUP
) -> pd.DataFrame:
    """Count requests and tokens per bucket of time (BurstGPT, III-B.1, Fig. 1-4), failed ones too.

    Returns one row per value of the columns `by` (null is one) and bucket, empty ones too: `by`,
    `start_s` (from the trace's start; below 0 for a first bucket that began earlier), `moment` (its
    date and time, NaT where unknown), `is_whole` (False: the trace covers a part of it) and the
    `_MEASURES`. Raises InputError: no duration, no request, or too many buckets.
    """
    if not bucket_s > 0:
        raise InputError(f"buckets of {bucket_s} s", field="bucket_s", fix="give more than 0 s")

    began = start_time(trace)
    midnight = None
    offset_s = 0.0
    if began is not None:
        midnight = datetime.combine(began.date(), time())
        offset_s = (began - midnight).total_seconds()

    measures = ", ".join(f"CAST({sql} AS BIGINT) AS {name}" for name, sql in _MEASURES.items())
    # Bucket 0 begins `offset_s` before the trace.
    bucket = f"floor((arrival_s + {offset_s!r}) / {float(bucket_s)!r})"
    query = f"""SELECT {", ".join([*by, ""])} CAST({bucket} AS BIGINT) AS bucket, {measures},
        max(arrival_s) AS last_s FROM {parquet_rows(trace)} GROUP BY ALL"""
    with reading(trace, duckdb.Error, fix=MAKE_TRACE_AGAIN), duckdb.connect() as database:
        database.execute("SET enable_progress_bar = false")
        counted = database.execute(query).df()

    if counted.empty:
        raise InputError("the trace has no request", file=trace, fix="give a trace with rows")

    first = int(offset_s // bucket_s)
    last = int(counted["bucket"].max())
    keys = ["all", *by]
    counted = counted.assign(all=0)
    groups = counted[keys].drop_duplicates().sort_values(keys)
    n_buckets = last - first + 1
    if n_buckets * len(groups) > MAX_BUCKETS:
        problem = f"{n_buckets} buckets for each of {len(groups)} groups"
        raise InputError(problem, file=trace, field="bucket_s", fix="give longer buckets")

    every = groups.merge(pd.DataFrame({"bucket": np.arange(first, last + 1)}), how="cross")
    series = every.merge(counted, "left", [*keys, "bucket"])
    series = series.fillna(dict.fromkeys(_MEASURES, 0)).astype(dict.fromkeys(_MEASURES, np.int64))
    since_midnight_s = series["bucket"] * bucket_s
    since_midnight_us = (since_midnight_s * 1e6).to_numpy().astype("timedelta64[us]")
    start_s = since_midnight_s - offset_s
    end_s = counted["last_s"].max()
    series["start_s"] = start_s
    # Without a midnight (None) every moment becomes "not a time".
    series["moment"] = np.datetime64(midnight, "us") + since_midnight_us
    series["is_whole"] = (start_s >= 0) & (start_s + bucket_s <= end_s)

    return series[[*by, "start_s", "moment", "is_whole", *_MEASURES]]


def traffic_profile(trace: str | Path) -> pd.DataFrame:
    """Describe the traffic of each hour of the day (BurstGPT, III-D, Fig. 10-13).

    Only hours that the trace covers whole count. Rows are ordered by `llm`, `service`, `weekday` (0
    is Monday; null, the last: all days), `hour`. They have `is_clock_known` (False: hours count
    from the trace's start, without weekdays), `n_hours` observed, and the `_mean`, `_q1`, `_median`
    and `_q3` of `requests`, `input_tokens` and `output_tokens` per hour. Raises InputError as
    `traffic_series`.
    """
    hours = traffic_series(trace, HOUR_S)
    is_known = bool(hours["moment"].notna().any())
    hours = hours[hours["is_whole"]].rename(columns={"n_requests": "requests"})
    hours["hour"] = (
        hours["moment"].dt.hour if is_known else (hours["start_s"] // HOUR_S % 24).astype(int)
    )
    parts = [hours.assign(weekday=pd.NA)]
    keys = [*GROUP, "weekday", "hour"]
    if is_known:
        parts.append(hours.assign(weekday=hours["moment"].dt.day_of_week))

    profiles = []
    for part in parts:
        groups = part.groupby(keys, dropna=False)
        columns = {"n_hours": groups.size()}
        for name in ("requests", "input_tokens", "output_tokens"):
            columns[f"{name}_mean"] = groups[name].mean()
            for short, share in _QUARTILES.items():
                columns[f"{name}_{short}"] = groups[name].quantile(share)
        profiles.append(pd.DataFrame(columns).reset_index())

    profile = pd.concat(profiles).astype({"weekday": "Int8"})
    profile = profile.sort_values(keys, ignore_index=True)
    profile.insert(len(keys), "is_clock_known", is_known)

    return profile


def failure_series(trace: str | Path, bucket_s: float = HOUR_S) -> pd.DataFrame:
    """Return the share of failed requests per bucket, outliers marked (BurstGPT, III-E, Fig. 14).

    Returns `llm`, `service`, `start_s`, `moment` (see `traffic_series`), `n_requests`, `n_failed`,
    `failure_fraction` (NaN: fewer than `MIN_REQUESTS`, not judged) and `is_outlier`: more than 1.5
    interquartile ranges from the quartiles of the same LLM and service.
    """
    series = traffic_series(trace, bucket_s)
    share = series["n_failed"] / series["n_requests"].clip(lower=1)
    series["failure_fraction"] = share.where(series["n_requests"] >= MIN_REQUESTS)
    groups = series.groupby(list(GROUP), dropna=False)["failure_fraction"]
    low, high = (groups.transform("quantile", share) for share in (0.25, 0.75))
    reach = 1.5 * (high - low)
    share = series["failure_fraction"]
    series["is_outlier"] = (share < low - reach) | (share > high + reach)

    return series.drop(columns=["is_whole", "input_tokens", "output_tokens"])


def summarize_failures(series: pd.DataFrame) -> pd.DataFrame:
    """Return the figures of `failure_series`: one row per LLM and service.

    They are `n_requests`, `n_failed` and `failure_fraction` of all buckets; `n_buckets` judged and
    `n_too_few`; and of the judged fractions `mean`, `q1`, `median`, `q3` and `n_outliers`.
    """
    groups = series.groupby(list(GROUP), dropna=False)
    share = groups["failure_fraction"]
    totals = groups[["n_requests", "n_failed"]].sum()
    summary = totals.assign(
        failure_fraction=totals["n_failed"] / totals["n_requests"],
        n_buckets=share.count(),
        n_too_few=groups.size() - share.count(),
        mean=share.mean(),
        **{name: share.quantile(level) for name, level in _QUARTILES.items()},
        n_outliers=groups["is_outlier"].sum(),
    )
    return summary.reset_index()


def count_doublings(trace: str | Path, minutes: float) -> pd.DataFrame:
    """Count how often requests at least double from one window to the next (BurstGPT, Fig. 5).

    Windows that the trace covers in part do not count; rises from zero are counted apart. Returns
    one row per LLM and service: `llm`, `service`, `n_doublings`, `n_from_zero`, and `per_day` and
    `per_workday` (Monday to Friday), doublings over the days observed (NaN below one day).
    """
    series = traffic_series(trace, 60.0 * minutes)
    whole = series["n_requests"].where(series["is_whole"])
    # The very first window has nothing before it.
    before = whole.shift().mask(series["start_s"] == series["start_s"].min())
    series["n_doublings"] = (before >= 1) & (whole >= 2 * before)
    series["n_from_zero"] = (before == 0) & (whole > 0)
    series["observed"] = (before.notna() & whole.notna()) * 60.0 * minutes / DAY_S
    is_workday = series["moment"].dt.day_of_week < 5
    for name in ("n_doublings", "observed"):
        series[f"work_{name}"] = series[name].where(is_workday, 0)

    names = ["n_doublings", "n_from_zero", "observed", "work_n_doublings", "work_observed"]
    totals = series.groupby(list(GROUP), dropna=False)[names].sum()
    for name, prefix in (("per_day", ""), ("per_workday", "work_")):
        observed = totals[f"{prefix}observed"].where(totals[f"{prefix}observed"] > 0.99)
        totals[name] = totals[f"{prefix}n_doublings"] / observed

    totals = totals.astype({"n_doublings": int, "n_from_zero": int})

    return totals[["n_doublings", "n_from_zero", "per_day", "per_workday"]].reset_index()


def read_arrivals(trace: str | Path) -> np.ndarray:
    """Return the arrivals (s) of all requests of a trace, failed ones too."""
    stored = require_trace(trace)
    end = 0
    times = np.empty(stored.metadata.num_rows)
    with reading(trace, fix=MAKE_TRACE_AGAIN):
        for number in range(stored.num_row_groups):  # a long trace is not there twice
            part = stored.read_row_group(number, ["arrival_s"])["arrival_s"].to_numpy()
            times[end : end + len(part)] = part
            end += len(part)
    return times


def fit_windows(trace: str | Path, window_s: float = WINDOW_S) -> pd.DataFrame:
    """Fit a Gamma distribution to the gaps of every window, per LLM and service.

    Gaps of a coarse clock are counted in its steps. Returns one row per group and window, empty
    ones too: `llm`, `service` (null is a group), `start_s`, `duration_s` (the last window ends with
    the trace), `clock_step_s` (NaN: no equal stamps), `n_requests`, `n_zero_gaps`, `alpha`,
    `beta_s`, their 95% intervals `_lo` to `_hi`, `cv`, the Kolmogorov-Smirnov distance `ks` (NaN on
    a coarse clock), and `reason` (null, or why nothing is fitted).

    Raises InputError: no request, arrivals out of order, or too many windows.
    """
    if not window_s > 0:
        raise InputError(f"windows of {window_s} s", field="window_s", fix="give more than 0 s")

    parts = []
    for group in _groups(trace):
        arrival_s = group.arrival_s
        n_windows = int(np.floor(group.end_s / window_s)) + 1
        if n_windows * group.n_groups > MAX_BUCKETS:
            problem = f"{n_windows} windows for each of {group.n_groups} LLMs and services"
            raise InputError(problem, file=trace, field="window_s", fix="give longer windows")
        start_s = np.arange(n_windows) * window_s
        gaps = np.diff(arrival_s)
        has_steps = bool(np.any(gaps == 0) and np.any(gaps > 0))
        step_s = clock_step(gaps, group.end_s) if has_steps else np.nan
        del gaps

        begins = np.searchsorted(arrival_s, np.append(start_s, np.inf))
        cuts = np.unique(np.searchsorted(begins, np.arange(0, begins[-1], _AT_ONCE), "right"))
        for first, last in itertools.pairwise([0, *cuts[cuts < n_windows].tolist(), n_windows]):
            n = last - first
            columns = {
                "llm": np.full(n, group.llm, object),
                "service": np.full(n, group.service, object),
                "start_s": start_s[first:last],
                "duration_s": np.minimum(window_s, group.end_s - start_s[first:last]),
                "clock_step_s": np.full(n, step_s),
            }
            of_windows = arrival_s[begins[first] : begins[last]]
            fitted = _fit(of_windows, np.diff(begins[first : last + 1]), step_s)
            parts.append(pd.DataFrame(columns | fitted))

    return pd.concat(parts, ignore_index=True)


class _Group(NamedTuple):
    """The requests of one LLM and service of a trace."""

    llm: str | None
    service: str | None
    arrival_s: np.ndarray
    end_s: float  # the trace's
    n_groups: int  # pairs of LLM and service in the trace


def _groups(trace: str | Path) -> Iterator[_Group]:
    """Yield each LLM and service of a trace, in their order."""
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
            query = f"""SELECT arrival_s FROM {rows}
                WHERE llm IS NOT DISTINCT FROM ? AND service IS NOT DISTINCT FROM ?"""
            arrival_s = database.execute(query, [llm, service]).fetchnumpy()["arrival_s"]
            # NaN is not in order either.
            if not (arrival_s[0] >= 0 and np.all(np.diff(arrival_s) >= 0)):
                problem = "arrivals are not in ascending order from 0"
                raise InputError(problem, file=trace, field="arrival_s", fix=MAKE_TRACE_AGAIN)
            yield _Group(llm, service, arrival_s, end_s, len(groups))


def _fit(arrival_s: np.ndarray, n_requests: np.ndarray, step_s: float) -> dict[str, np.ndarray]:
    """Return the columns of the fits of successive windows with these numbers of requests."""
    n_gaps = n_requests - 1
    window = np.repeat(np.arange(len(n_requests)), n_requests)
    gaps = np.diff(arrival_s, prepend=np.nan)
    gaps[np.diff(window, prepend=-1) > 0] = np.nan  # the first request of a window has no gap
    n_zero = np.bincount(window[gaps == 0], minlength=len(n_requests))
    cells = {"n_requests": n_requests, "n_zero_gaps": n_zero}
    cells |= {name: np.full(len(n_requests), np.nan) for name in _FITTED}
    is_enough = n_gaps >= MIN_GAPS
    is_at_once = n_zero == n_gaps
    cells["reason"] = np.full(len(n_requests), TOO_FEW, object)
    cells["reason"][is_enough & is_at_once] = ALL_AT_ONCE
    is_used = is_enough & ~is_at_once
    if is_used.any():
        used_gaps = gaps[is_used[window] & ~np.isnan(gaps)]
        for name, values in _fit_gaps(used_gaps, n_gaps[is_used], step_s).items():
            cells[name][is_used] = values

    return cells


def _fit_gaps(gaps: np.ndarray, n: np.ndarray, step_s: float) -> dict[str, np.ndarray]:
    """Fit runs of `n` gaps each: exact gaps if `step_s` is NaN, else gaps in a clock's steps."""
    first = np.cumsum(n) - n
    totals = np.add.reduceat(gaps, first)
    if np.isnan(step_s):
        unit_s = np.ones(len(n))
        reason = np.full(len(n), ALL_EQUAL, object)
        fits = gamma.fit_gamma(n, totals, np.add.reduceat(np.log(gaps), first))
        is_tested = np.isfinite(fits.alpha)
    else:
        steps = np.rint(gaps / step_s)
        counts = gamma.count_steps(steps, n)
        fits = gamma.fit_steps(counts)
        # The mean is the window's own, whatever the clock's jitter.
        unit_s = totals / np.maximum(np.add.reduceat(steps, first), 1)
        reason = np.full(len(n), hidden(step_s, "the shape of gaps"), object)
        reason[counts.n_distinct == 1] = ALL_EQUAL
        is_tested = np.isfinite(fits.alpha) & (gamma.FAR * step_s <= totals / n)

    reason[np.isfinite(fits.alpha)] = None
    ks = np.full(len(n), np.nan)
    if is_tested.any():
        alpha = fits.alpha[is_tested]
        beta_s = (fits.beta * unit_s)[is_tested]
        tested_gaps = gaps[np.repeat(is_tested, n)]
        ks[is_tested] = gamma.ks_distances(tested_gaps, n[is_tested], alpha, beta_s)

    alphas = {name: getattr(fits, name) for name in ("alpha", "alpha_lo", "alpha_hi", "cv")}
    betas = {f"{name}_s": getattr(fits, name) * unit_s for name in ("beta", "beta_lo", "beta_hi")}

    return {**alphas, **betas, "ks": ks, "reason": reason}
