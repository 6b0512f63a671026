"""Fits of a trace's windows, against fits of each window alone; doublings counted by hand."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from sextant.base.errors import InputError
from sextant.workload.arrivals import fit_arrivals
from sextant.workload.profiles import count_doublings, fit_windows
from support import write_trace


def _mixed(seed: int = 1, n: int = 20_000) -> pd.DataFrame:
    """A trace of three groups, one of them without a name, over about 40 windows of 100 s."""
    rng = np.random.default_rng(seed)
    group = rng.choice(3, n, p=[0.7, 0.25, 0.05])
    return pd.DataFrame(
        {
            "arrival_s": np.cumsum(rng.gamma(0.5, 0.4, n)),
            "llm": np.array(["b", "a", None], object)[group],
            "service": np.array(["API", "API", None], object)[group],
        }
    )


def test_each_window_is_fitted_as_if_alone(tmp_path):
    trace = _mixed()
    windows = fit_windows(write_trace(tmp_path, trace), window_s=100.0)
    assert windows["n_requests"].sum() == 20_000 and windows["n_zero_gaps"].sum() == 0
    assert windows[["llm", "service"]].drop_duplicates().fillna("").to_numpy().tolist() == [
        ["a", "API"],
        ["b", "API"],
        ["", ""],
    ]
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


def test_a_whole_trace_in_one_window_is_fitted_as_by_fit_arrivals(tmp_path):
    trace = _coarse_and_fine(0.6, 2.0)
    windows = fit_windows(write_trace(tmp_path, trace), window_s=1e6).set_index("llm")
    model = fit_arrivals(trace.loc[trace["llm"] == "coarse", "arrival_s"].to_numpy())
    found = windows.loc["coarse"]
    for name in ("alpha", "alpha_lo", "alpha_hi", "beta_s", "cv", "clock_step_s"):
        assert found[name] == pytest.approx(getattr(model, name), rel=1e-12)
    assert found["n_zero_gaps"] == model.n_zero_gaps


@pytest.mark.parametrize(
    ("arrival_s", "window_s", "message"),
    [
        ([0.0, 1.0], 0.0, "field 'window_s': windows of 0.0 s"),
        ([], 1200.0, "the trace has no request"),
        ([0.0, 2.0, 1.0], 1200.0, "field 'arrival_s': arrivals are not in ascending order"),
        ([0.0, np.nan], 1200.0, "field 'arrival_s': arrivals are not in ascending order"),
        ([0.0, 1e9], 1.0, "field 'window_s': 1000000001 windows for each of 1"),
    ],
)
def test_bad_traces_and_windows_are_refused(tmp_path, arrival_s, window_s, message):
    path = write_trace(tmp_path, pd.DataFrame({"arrival_s": np.array(arrival_s, float)}))
    with pytest.raises(InputError, match=message):
        fit_windows(path, window_s)


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
    trace = pd.DataFrame(
        {"arrival_s": np.concatenate([one, other]), "llm": [*["a"] * len(one), *["b"] * len(other)]}
    ).sort_values("arrival_s")
    found = count_doublings(write_trace(tmp_path, trace), 10)
    assert found["llm"].tolist() == ["a", "b"] and found["n_doublings"].tolist() == [2, 1]
