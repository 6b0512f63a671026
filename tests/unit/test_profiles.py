"""Traffic and failures over time, counted by hand."""

import numpy as np
import pandas as pd
import pytest

from sextant.base.errors import InputError
from sextant.workload.profiles import (
    failure_series,
    start_time,
    summarize_failures,
    traffic_profile,
    traffic_series,
)
from support import write_trace

HOUR_S = 3600.0
DAY_S = 86_400.0


def test_series_counts_requests_failures_and_tokens_in_each_bucket(tmp_path):
    trace = pd.DataFrame(
        {
            "arrival_s": [0.0, 59.9, 60.0, 200.0, 240.0],
            "llm": ["b", None, "b", "b", None],
            "service": ["API", None, "API", "API", None],
            "status": ["ok", "ok", "failed", "ok", "ok"],
            "input_tokens": [1, 2, 4, 8, 16],
            "output_tokens": [10, 20, 0, 80, 160],
        }
    )
    series = traffic_series(write_trace(tmp_path, trace), 60.0)
    assert series["llm"].fillna("none").tolist() == ["b"] * 5 + ["none"] * 5
    assert series["start_s"].tolist() == [0.0, 60.0, 120.0, 180.0, 240.0] * 2
    assert series["n_requests"].tolist() == [1, 1, 0, 1, 0, 1, 0, 0, 0, 1]
    assert series["n_failed"].tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 0, 0]
    assert series["input_tokens"].tolist() == [1, 4, 0, 8, 0, 2, 0, 0, 0, 16]
    assert series["output_tokens"].tolist() == [10, 0, 0, 80, 0, 20, 0, 0, 0, 160]
    # The trace ends where the last bucket begins.
    assert series["is_whole"].tolist() == [True, True, True, True, False] * 2
    assert series["moment"].isna().all()


def test_buckets_follow_the_clock_where_it_is_known(tmp_path):
    arrival_s = [0.0, 599.0, 600.0, 4200.0, 4201.0]
    path = write_trace(
        tmp_path, pd.DataFrame({"arrival_s": arrival_s}), "2023-11-03T23:50:00+08:00"
    )
    assert str(start_time(path)) == "2023-11-03 23:50:00"
    series = traffic_series(path, HOUR_S)
    assert series["moment"].astype(str).tolist() == [
        "2023-11-03 23:00:00",
        "2023-11-04 00:00:00",
        "2023-11-04 01:00:00",
    ]
    assert series["start_s"].tolist() == [-3000.0, 600.0, 4200.0]
    assert series["n_requests"].tolist() == [2, 1, 2]
    assert series["is_whole"].tolist() == [False, True, False]


def test_profile_describes_hours_of_the_day_and_of_the_week(tmp_path):
    # Two weeks from a Monday's midnight: at hour h of day d there are h + d requests of 5
    # input and 2 output tokens, none on Sundays; one more request ends the trace.
    starts, counts = [], []
    for day in range(14):
        for hour in range(24):
            starts.append(day * DAY_S + hour * HOUR_S)
            counts.append(0 if day % 7 == 6 else hour + day)
    arrival_s = np.append(np.repeat(starts, counts), 14 * DAY_S)
    trace = pd.DataFrame({"arrival_s": arrival_s, "input_tokens": 5, "output_tokens": 2})
    profile = traffic_profile(write_trace(tmp_path, trace, "2023-11-06T00:00:00"))
    assert profile["is_clock_known"].all() and len(profile) == 7 * 24 + 24
    tuesday = profile[(profile["weekday"] == 1) & (profile["hour"] == 10)].iloc[0]
    # Days 1 and 8: 11 and 18 requests.
    assert tuesday["n_hours"] == 2
    assert tuesday["requests_mean"] == tuesday["requests_median"] == 14.5
    assert tuesday["input_tokens_q1"] == 5 * (11 + 7 / 4)
    assert tuesday["output_tokens_q3"] == 2 * (18 - 7 / 4)
    sunday = profile[profile["weekday"] == 6]
    assert (sunday["requests_mean"] == 0).all() and (sunday["n_hours"] == 2).all()
    every = profile[profile["weekday"].isna()].set_index("hour")
    assert every.index.tolist() == list(range(24)) and (every["n_hours"] == 14).all()
    # At midnight: 0..5, 7..12 and twice none.
    assert every.loc[0, "requests_mean"] == pytest.approx((15 + 57) / 14)
    assert every.loc[0, "requests_median"] == 4.5


def test_profile_without_a_clock_counts_hours_from_the_start_and_says_so(tmp_path):
    arrival_s = np.append(np.repeat(np.arange(25) * HOUR_S, 3), 25.5 * HOUR_S)
    profile = traffic_profile(write_trace(tmp_path, pd.DataFrame({"arrival_s": arrival_s})))
    assert not profile["is_clock_known"].any() and profile["weekday"].isna().all()
    assert profile["hour"].tolist() == list(range(24))
    # Hour 24 is the first again; hour 25 is not whole.
    assert profile["n_hours"].tolist() == [2] + [1] * 23
    assert (profile["requests_mean"] == 3).all()


def _with_failures(n_failed: list[int], n_requests: int = 100) -> pd.DataFrame:
    """A trace with so many failures of `n_requests` in each hour."""
    status = np.concatenate(
        [np.repeat(["failed", "ok"], [number, n_requests - number]) for number in n_failed]
    )
    starts = np.repeat(np.arange(len(n_failed)) * HOUR_S, n_requests)
    return pd.DataFrame({"arrival_s": starts, "status": status})


def test_failures_beyond_the_whiskers_are_outliers(tmp_path):
    # Quartiles 3 and 5%: whiskers reach to 0 and 8%.
    trace = _with_failures([3, 3, 3, 4, 4, 5, 5, 8, 9, 0])
    series = failure_series(write_trace(tmp_path, trace))
    shares = np.array([3, 3, 3, 4, 4, 5, 5, 8, 9, 0]) / 100
    assert series["failure_fraction"].to_numpy() == pytest.approx(shares)
    assert series["is_outlier"].tolist() == [False] * 8 + [True, False]
    summary = summarize_failures(series).iloc[0]
    assert (summary["q1"], summary["median"], summary["q3"]) == pytest.approx((0.03, 0.04, 0.05))
    assert summary["n_outliers"] == 1 and summary["n_buckets"] == 10
    assert (summary["failure_fraction"], summary["mean"]) == pytest.approx((0.044, 0.044))


def test_hours_with_too_few_requests_are_not_judged_but_counted(tmp_path):
    quiet = pd.DataFrame({"arrival_s": np.full(9, 3 * HOUR_S), "status": "failed"})
    end = pd.DataFrame({"arrival_s": [5.5 * HOUR_S], "status": "ok"})
    trace = pd.concat([_with_failures([1, 2, 3]), quiet, end])
    path = write_trace(tmp_path, trace)
    series = failure_series(path)
    assert series["failure_fraction"].notna().tolist() == [True] * 3 + [False] * 3
    assert not series["is_outlier"].any()
    summary = summarize_failures(series).iloc[0]
    assert (summary["n_buckets"], summary["n_too_few"]) == (3, 3)
    assert (summary["n_requests"], summary["n_failed"]) == (310, 15)
    assert summary["mean"] == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("arrival_s", "start", "bucket_s", "message"),
    [
        ([0.0], None, 0.0, "field 'bucket_s': buckets of 0.0 s"),
        ([], None, 60.0, "the trace has no request"),
        ([0.0, 1e9], None, 1.0, "field 'bucket_s': 1000000001 buckets for each of 1"),
        ([0.0], "yesterday", 60.0, "field 'start_time': 'yesterday' is not an ISO date and time"),
    ],
)
def test_bad_traces_and_buckets_are_refused(tmp_path, arrival_s, start, bucket_s, message):
    path = write_trace(tmp_path, pd.DataFrame({"arrival_s": np.array(arrival_s, float)}), start)
    with pytest.raises(InputError, match=message):
        traffic_series(path, bucket_s)


@pytest.mark.parametrize(
    "name", ["a*.parquet", "a?.parquet", "a[b].parquet", 'it\'s *"[a]".parquet']
)
def test_a_name_that_is_a_pattern_is_one_file(tmp_path, name):
    # Each pattern matches this one too.
    write_trace(tmp_path, pd.DataFrame({"arrival_s": [0.0] * 9})).rename(tmp_path / "ab.parquet")
    trace = write_trace(tmp_path, pd.DataFrame({"arrival_s": [0.0, 1.0]}))
    trace = trace.rename(tmp_path / name)
    assert traffic_series(trace, 60.0)["n_requests"].tolist() == [2]
