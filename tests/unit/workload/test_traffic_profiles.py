"""A trace over time: counts by hand, Gamma fits of windows, doublings, failures."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from sextant.base.errors import InputError
from sextant.workload.profiles import (
    count_doublings,
    failure_series,
    fit_windows,
    start_time,
    summarize_failures,
    traffic_profile,
    traffic_series,
)
from support import write_trace

HOUR_S = 3600.0
DAY_S = 86_400.0


def test_series_counts_requests_failures_and_tokens_in_each_bucket(tmp_path):
    trace = pd.DataFrame({"arrival_s": [0.0, 59.9, 60.0, 200.0, 240.0]})
    names = {"llm": ["b", None, "b", "b", None], "service": ["API", None, "API", "API", None]}
    tokens = {"input_tokens": [1, 2, 4, 8, 16], "output_tokens": [10, 20, 0, 80, 160]}
    trace = trace.assign(status=["ok", "ok", "failed", "ok", "ok"], **names, **tokens)
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
    trace = pd.DataFrame({"arrival_s": [0.0, 599.0, 600.0, 4200.0, 4201.0]})
    path = write_trace(tmp_path, trace, "2023-11-03T23:50:00+08:00")
    assert str(start_time(path)) == "2023-11-03 23:50:00"
    series = traffic_series(path, HOUR_S)
    moments = ["2023-11-03 23:00:00", "2023-11-04 00:00:00", "2023-11-04 01:00:00"]
    assert series["moment"].astype(str).tolist() == moments
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
    ("describe", "arrival_s", "span_s", "message"),
    [
        (traffic_series, [0.0], 0.0, "field 'bucket_s': buckets of 0.0 s"),
        (traffic_series, [], 60.0, "the trace has no request"),
        (traffic_series, [0.0, 1e9], 1.0, "field 'bucket_s': 1000000001 buckets for each of 1"),
        (fit_windows, [0.0, 1.0], 0.0, "field 'window_s': windows of 0.0 s"),
        (fit_windows, [], 1200.0, "the trace has no request"),
        (fit_windows, [0.0, 2.0, 1.0], 1200.0, "field 'arrival_s': arrivals are not in ascending"),
        (fit_windows, [0.0, np.nan], 1200.0, "field 'arrival_s': arrivals are not in ascending or"),
        (fit_windows, [0.0, 1e9], 1.0, "field 'window_s': 1000000001 windows for each of 1"),
    ],
)
def test_bad_traces_and_times_are_refused(tmp_path, describe, arrival_s, span_s, message):
    path = write_trace(tmp_path, pd.DataFrame({"arrival_s": np.array(arrival_s, float)}))
    with pytest.raises(InputError, match=message):
        describe(path, span_s)


def test_a_start_that_is_no_time_is_refused(tmp_path):
    path = write_trace(tmp_path, pd.DataFrame({"arrival_s": [0.0]}), "yesterday")
    with pytest.raises(InputError, match="field 'start_time': 'yesterday' is not an ISO date and"):
        traffic_series(path, 60.0)


@pytest.mark.parametrize(
    "name", ["a*.parquet", "a?.parquet", "a[b].parquet", 'it\'s *"[a]".parquet']
)
def test_a_name_that_is_a_pattern_is_one_file(tmp_path, name):
    # Each pattern matches this one too.
    write_trace(tmp_path, pd.DataFrame({"arrival_s": [0.0] * 9})).rename(tmp_path / "ab.parquet")
    trace = write_trace(tmp_path, pd.DataFrame({"arrival_s": [0.0, 1.0]}))
    trace = trace.rename(tmp_path / name)
    assert traffic_series(trace, 60.0)["n_requests"].tolist() == [2]


def _mixed(seed: int = 1, n: int = 20_000) -> pd.DataFrame:
    """A trace of three groups, one of them without a name, over about 40 windows of 100 s."""
    rng = np.random.default_rng(seed)
    group = rng.choice(3, n, p=[0.7, 0.25, 0.05])
    trace = pd.DataFrame({"arrival_s": np.cumsum(rng.gamma(0.5, 0.4, n))})
    trace["llm"] = np.array(["b", "a", None], object)[group]
    return trace.assign(service=np.array(["API", "API", None], object)[group])


def test_each_window_is_fitted_as_if_alone(tmp_path):
    trace = _mixed()
    windows = fit_windows(write_trace(tmp_path, trace), window_s=100.0)
    assert windows["n_requests"].sum() == 20_000 and windows["n_zero_gaps"].sum() == 0
    groups = windows[["llm", "service"]].drop_duplicates().fillna("").to_numpy().tolist()
    assert groups == [["a", "API"], ["b", "API"], ["", ""]]
    for row in windows.sample(30, random_state=0).itertuples():
        own = trace[trace["llm"].fillna("") == (row.llm if isinstance(row.llm, str) else "")]
        own = own["arrival_s"][lambda t, start_s=row.start_s: (t // 100.0) * 100.0 == start_s]
        assert row.n_requests == len(own)
        if len(own) <= 30:
            assert np.isnan(row.alpha) and row.reason == "fewer than 30 gaps"
            continue
        alpha, _, beta_s = stats.gamma.fit(np.diff(own), floc=0)
        assert (row.alpha, row.beta_s) == pytest.approx((alpha, beta_s), rel=1e-6)
        fitted = stats.gamma(alpha, scale=beta_s)
        assert row.ks == pytest.approx(stats.ks_1samp(np.diff(own), fitted.cdf).statistic)
        assert row.alpha_lo < alpha < row.alpha_hi and pd.isna(row.reason)
        assert row.beta_lo_s < beta_s < row.beta_hi_s
        assert row.cv == pytest.approx(alpha**-0.5)


def test_what_no_gamma_fits_is_said(tmp_path):
    at_once, equal, fitted = np.full(50, 10.0), 1200 + np.arange(50.0), 2400 + np.arange(50.0) ** 2
    trace = pd.DataFrame({"arrival_s": np.concatenate([at_once, equal, fitted])})
    trace["llm"] = np.repeat(["all at once", "equal", "neither"], 50)
    windows = fit_windows(write_trace(tmp_path, trace)).query("n_requests > 0").set_index("llm")
    assert windows.loc["all at once", "reason"] == "all requests arrive at the same time"
    assert windows.loc["equal", "reason"].startswith("all gaps are equal")
    # 34² and 48² are the last squares below 1200 and 2400.
    assert windows.loc["neither", "n_requests"].tolist() == [35, 14, 1]
    assert windows.loc["neither", "alpha"].notna().tolist() == [True, False, False]
    assert windows["ks"].notna().sum() == 1


def _coarse_and_fine(alpha: float, step_s: float, n: int = 6_000) -> pd.DataFrame:
    """Two groups of mean gap 3 s, one of them by a coarse clock."""
    rng = np.random.default_rng(3)
    coarse, exact = np.cumsum(rng.gamma(alpha, 3 / alpha, (2, n)), axis=1)
    coarse = np.floor(coarse / step_s) * step_s
    names = np.repeat(["coarse", "fine"], n)
    trace = pd.DataFrame({"arrival_s": np.concatenate([coarse, exact]), "llm": names})
    return trace.sort_values("arrival_s", kind="stable", ignore_index=True)


@pytest.mark.parametrize("alpha", [0.4, 1.0, 2.5])
def test_shapes_are_found_through_the_groups_own_clock(tmp_path, alpha):
    trace = _coarse_and_fine(alpha, 1.0)
    windows = fit_windows(write_trace(tmp_path, trace)).set_index("llm")
    assert (windows.loc["coarse", "clock_step_s"] == 1.0).all()
    assert windows.loc["fine", "clock_step_s"].isna().all()
    assert windows.loc["coarse", "n_zero_gaps"].sum() > 100
    assert windows.loc["coarse", "alpha"].median() == pytest.approx(alpha, rel=0.05)
    held = (windows["alpha_lo"] < alpha) & (windows["alpha_hi"] > alpha)
    assert held.mean() > 0.85
    held = (windows["beta_lo_s"] < 3 / alpha) & (windows["beta_hi_s"] > 3 / alpha)
    assert held.mean() > 0.85
    assert windows.loc["coarse", "ks"].isna().all()


def test_a_name_for_every_request_is_refused(tmp_path):
    names = [f"request {number}" for number in range(4_000)]
    trace = pd.DataFrame({"arrival_s": np.arange(4_000.0), "llm": names})
    with pytest.raises(InputError, match=r"field 'llm': 4000 pairs of LLM and service"):
        fit_windows(write_trace(tmp_path, trace))


def _in_minutes(counts: list[int], minutes: float) -> np.ndarray:
    """Arrivals with these counts in windows that follow one another, and one at the end."""
    starts = np.repeat(np.arange(len(counts)), counts) * 60.0 * minutes
    return np.append(starts, len(counts) * 60.0 * minutes)


def test_doublings_known_by_hand(tmp_path):
    # 2 to 4 and 5 to 10 double, 4 to 7 does not, 0 to 5 is a rise from zero.
    path = write_trace(tmp_path, pd.DataFrame({"arrival_s": _in_minutes([2, 4, 7, 0, 5, 10], 5)}))
    found = count_doublings(path, 5)
    assert found["n_doublings"].tolist() == [2] and found["n_from_zero"].tolist() == [1]
    # Of 6, 7 and 15 only the last doubles; half a day says nothing of a day.
    found = count_doublings(path, 10)
    assert found["n_doublings"].tolist() == [1]
    assert found[["per_day", "per_workday"]].isna().all(axis=None)


def test_doublings_per_day_are_those_of_the_hours_observed(tmp_path):
    # From Friday noon to Monday noon, doubling every second hour: 3, 6, 3, 6, ...
    times = _in_minutes([3, 6] * 36, 60)
    trace = pd.DataFrame({"arrival_s": times})
    (found,) = count_doublings(write_trace(tmp_path, trace, "2023-11-03T12:00:00"), 60).itertuples()
    # 36 doublings in 71 compared hours; of workdays there are 23 hours, not a whole day.
    assert found.n_doublings == 36
    assert found.per_day == pytest.approx(36 / 71 * 24)
    assert np.isnan(found.per_workday)
    (found,) = count_doublings(write_trace(tmp_path, trace, "2023-11-02T12:00:00"), 60).itertuples()
    # From Thursday noon there are 35 hours of workdays, the first of them without one before.
    assert found.per_workday == pytest.approx(18 / 35 * 24)


def test_doublings_are_counted_by_group(tmp_path):
    one, other = _in_minutes([4, 8, 4, 8], 10), _in_minutes([8, 4, 8, 4], 10)
    names = np.repeat(["a", "b"], [len(one), len(other)])
    trace = pd.DataFrame({"arrival_s": np.concatenate([one, other]), "llm": names})
    found = count_doublings(write_trace(tmp_path, trace.sort_values("arrival_s")), 10)
    assert found["llm"].tolist() == ["a", "b"] and found["n_doublings"].tolist() == [2, 1]
