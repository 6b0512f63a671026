"""Traffic and failures over time, per LLM and service, straight from a trace's Parquet.

DuckDB counts requests and tokens in buckets of time without holding the trace; everything else
is computed from the buckets. Where the trace's provenance has a `start_time` (ISO 8601),
buckets are aligned to its clock's midnight, else to the trace's start.
"""

from collections.abc import Sequence
from datetime import datetime, time
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.base.files import MAKE_TRACE_AGAIN, read_provenance, reading
from sextant.trace.trace_format import parquet_rows

GROUP = ("llm", "service")
MIN_REQUESTS = 10
"""Fewest requests of a bucket whose failures are judged: one failure is then at most 10%."""
MAX_BUCKETS = 10_000_000
DAY_S = 86_400.0
HOUR_S = 3600.0
_MEASURES = {
    "n_requests": "count(*)",
    "n_failed": "count(*) FILTER (status = 'failed')",
    "input_tokens": "coalesce(sum(input_tokens), 0)",
    "output_tokens": "coalesce(sum(output_tokens), 0)",
}
_QUARTILES = {"q1": 0.25, "median": 0.5, "q3": 0.75}


def start_time(trace: str | Path) -> datetime | None:
    """Return when a trace began by its own clock, without time zone; None: not known.

    Raises InputError: the provenance's `start_time` is not an ISO date and time.
    """
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
    """Count requests and tokens per bucket of time (BurstGPT, III-B.1, Fig. 1-4).

    Failed requests count like all others. The values of the columns `by` (null is one) have a
    series each.

    Returns:
        One row per group and bucket from the trace's start to its end, empty buckets too, in
        that order: the `by` columns, `start_s` (from the trace's start; below 0 for a first
        bucket that began earlier), `moment` (its date and time, NaT where unknown),
        `is_whole` (False: the trace covers only a part of it), `n_requests`, `n_failed`,
        `input_tokens`, `output_tokens` (int64).

    Raises InputError: no duration, no request, or more buckets than make sense.
    """
    if not bucket_s > 0:
        raise InputError(f"buckets of {bucket_s} s", field="bucket_s", fix="give more than 0 s")
    began = start_time(trace)
    midnight, offset_s = None, 0.0
    if began is not None:
        midnight = datetime.combine(began.date(), time())
        offset_s = (began - midnight).total_seconds()
    keys = "".join(f"{name}, " for name in by)
    measures = ", ".join(f"CAST({sql} AS BIGINT) AS {name}" for name, sql in _MEASURES.items())
    # Bucket 0 begins `offset_s` before the trace.
    bucket = f"floor((arrival_s + {offset_s!r}) / {float(bucket_s)!r})"
    query = f"""SELECT {keys} CAST({bucket} AS BIGINT)
        AS bucket, {measures}, max(arrival_s) AS last_s
        FROM {parquet_rows(trace)} GROUP BY ALL"""
    with reading(trace, duckdb.Error, fix=MAKE_TRACE_AGAIN), duckdb.connect() as database:
        database.execute("SET enable_progress_bar = false")
        counted = database.execute(query).df()
    if counted.empty:
        raise InputError("the trace has no request", file=trace, fix="give a trace with rows")
    series = _with_empty(counted, list(by), int(offset_s // bucket_s), trace)
    since_midnight_s = series["bucket"] * bucket_s
    since_midnight_us = (since_midnight_s * 1e6).to_numpy().astype("timedelta64[us]")
    start_s, end_s = since_midnight_s - offset_s, counted["last_s"].max()
    series["start_s"] = start_s
    # None becomes "not a time", and so does all that is counted from it.
    series["moment"] = np.datetime64(midnight, "us") + since_midnight_us
    series["is_whole"] = (start_s >= 0) & (start_s + bucket_s <= end_s)
    return series[[*by, "start_s", "moment", "is_whole", *_MEASURES]]


def _with_empty(
    counted: pd.DataFrame, by: list[str], first: int, trace: str | Path
) -> pd.DataFrame:
    """Return a row for every group and bucket from `first` on, zeros where nothing arrived."""
    number = counted.groupby(by, dropna=False).ngroup() if by else counted["bucket"] * 0
    groups = counted[by].assign(number=number).drop_duplicates("number").sort_values("number")
    n_buckets = int(counted["bucket"].max()) - first + 1
    if n_buckets * len(groups) > MAX_BUCKETS:
        problem = f"{n_buckets} buckets for each of {len(groups)} groups"
        raise InputError(problem, file=trace, field="bucket_s", fix="give longer buckets")
    row = (number * n_buckets + counted["bucket"] - first).to_numpy()
    frame = groups.loc[groups.index.repeat(n_buckets), by].reset_index(drop=True)
    frame["bucket"] = np.tile(np.arange(first, first + n_buckets), len(groups))
    for name in _MEASURES:
        values = np.zeros(len(frame), np.int64)
        values[row] = counted[name]
        frame[name] = values
    return frame


def traffic_profile(trace: str | Path) -> pd.DataFrame:
    """Describe the traffic of each hour of the day (BurstGPT, III-D, Fig. 10-13).

    Only hours that the trace covers whole are observed; a trace that covers none gives no row.

    Returns:
        Rows ordered by `llm`, `service`, `weekday` (0 is Monday; null, the last: all days
        together) and `hour` (0 to 23): `is_clock_known` (False: the trace has no start time,
        hours count from its start and there are no weekdays), `n_hours` observed, and the
        `_mean`, `_q1`, `_median` and `_q3` of `requests`, `input_tokens` and `output_tokens`
        per hour.

    Raises InputError: see `traffic_series`.
    """
    hours = traffic_series(trace, HOUR_S)
    is_known = bool(hours["moment"].notna().any())
    hours = hours[hours["is_whole"]].rename(columns={"n_requests": "requests"})
    hours["hour"] = (
        hours["moment"].dt.hour if is_known else (hours["start_s"] // HOUR_S % 24).astype(int)
    )
    parts, keys = [hours.assign(weekday=pd.NA)], [*GROUP, "weekday", "hour"]
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

    An outlier is as in a box plot: more than 1.5 interquartile ranges from the quartiles of the
    same LLM and service. Buckets of fewer than `MIN_REQUESTS` are not judged.

    Returns:
        `llm`, `service`, `start_s`, `moment` (see `traffic_series`), `n_requests`,
        `n_failed`, `failure_fraction` (NaN: not judged) and `is_outlier` (False there).

    Raises InputError: see `traffic_series`.
    """
    series = traffic_series(trace, bucket_s)
    share = series["n_failed"] / series["n_requests"].clip(lower=1)
    series["failure_fraction"] = share.where(series["n_requests"] >= MIN_REQUESTS)
    groups = series.groupby(list(GROUP), dropna=False)["failure_fraction"]
    low, high = (groups.transform("quantile", share) for share in (0.25, 0.75))
    reach = 1.5 * (high - low)
    share = series["failure_fraction"]
    series["is_outlier"] = (share < low - reach) | (share > high + reach)
    counts = ["n_requests", "n_failed", "failure_fraction", "is_outlier"]
    return series[[*GROUP, "start_s", "moment", *counts]]


def summarize_failures(series: pd.DataFrame) -> pd.DataFrame:
    """Return the figures of `failure_series`: one row per LLM and service.

    They are `llm`, `service`, `n_requests`, `n_failed` and `failure_fraction` of all buckets
    together; `n_buckets` judged and `n_too_few` (not judged, the empty ones among them); of the
    judged ones' shares `mean`, `q1`, `median` and `q3`, and `n_outliers`.
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

    Windows follow one another from midnight where the trace's start time is known, else from its
    start; a window that the trace covers only in part takes no part. A window doubles if the one
    before has a request, and it has at least twice as many. From zero there is
    no doubling: such rises are counted separately. At few requests chance alone doubles many
    windows.

    Returns:
        One row per LLM and service: `llm`, `service`, `n_doublings`, `n_from_zero`, and `per_day`
        and `per_workday` (Monday to Friday, holidays too): doublings over the days that were
        observed, a day observed in part as that part (NaN below one whole day; `per_workday` also
        where the trace has no start time).

    Raises InputError: see `traffic_series`.
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
