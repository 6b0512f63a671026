"""Arrival generators: rates, burstiness, bytes that depend on the seed alone, what is refused."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sextant.base.errors import InputError
from sextant.trace.trace_format import TRACE_COLUMNS
from sextant.workload.generators import AtOnce, Constant, Gamma, Varying, poisson
from sextant.workload.trace_arrivals import Replay, mirrored


def _replay(folder: Path, arrival_s, **given) -> Replay:
    """Return the replay of a trace with these times."""
    n = len(arrival_s)
    columns = {name: pa.nulls(n, kind) for name, kind in TRACE_COLUMNS.items()}
    table = pa.table(columns | {"arrival_s": pa.array(np.asarray(arrival_s, float))})
    pq.write_table(table, folder / "t.parquet")
    return Replay(folder / "t.parquet", **given)


ONE_OF_EACH = {
    "constant": Constant(2.0).times,
    "poisson": poisson(2.0).times,
    "gamma": Gamma(2.0, 0.5).times,
    "varying": Varying((0.5, 0.001, 0.0), (1.0, 0.0)).times,
    "inf": AtOnce().times,
}


def _windows(n_requests, alpha, duration_s=1200.0) -> pd.DataFrame:
    start_s = np.arange(len(n_requests)) * duration_s
    return pd.DataFrame(
        {"start_s": start_s, "duration_s": duration_s, "n_requests": n_requests, "alpha": alpha}
    )


@pytest.mark.parametrize("alpha", [0.25, 1.0, 4.0])
def test_mean_rate_and_variation_are_those_asked_for(alpha):
    times = Gamma(5.0, alpha).times(n=200_001, seed=1)
    gaps = np.diff(times)
    assert len(times) == 200_001 and times.dtype == np.float64
    assert gaps.mean() == pytest.approx(0.2, rel=0.015)
    assert gaps.std() / gaps.mean() == pytest.approx(alpha**-0.5, rel=0.02)


def test_constant_arrivals_have_one_gap():
    assert Constant(4.0).times(n=5) == pytest.approx([0, 0.25, 0.5, 0.75, 1.0])
    # The end itself is no part of a duration.
    assert Constant(4.0).times(duration_s=1.0) == pytest.approx([0, 0.25, 0.5, 0.75])
    assert len(Constant(4.0).times(n=2, duration_s=1.0)) == 2


@pytest.mark.parametrize("kind", sorted(ONE_OF_EACH))
def test_arrivals_ascend_and_follow_the_seed_and_the_ends(kind):
    times = ONE_OF_EACH[kind](n=100, seed=7)
    assert len(times) == 100 and times.dtype == np.float64
    assert times[0] >= 0 and np.all(np.diff(times) >= 0)
    again = ONE_OF_EACH[kind](n=100, seed=7)
    assert times.tobytes() == again.tobytes()
    other = ONE_OF_EACH[kind](n=100, seed=8)
    is_drawn = kind in ("poisson", "gamma", "varying")
    assert np.array_equal(times, other) != is_drawn
    if kind != "inf":
        short = ONE_OF_EACH[kind](duration_s=10.0, seed=7)
        assert short[-1] < 10.0 and np.array_equal(short, times[times < 10.0][: len(short)])
    with pytest.raises(InputError, match=r"field 'n': (0|2.5) is"):
        ONE_OF_EACH[kind](n=0, seed=7)


def test_windows_keep_rates_shapes_and_silence():
    n_requests, alpha = [600, 50, 0, 4000, 40], [0.25, np.nan, np.nan, 4.0, np.nan]
    counts, cv = np.zeros(5), []
    for seed in range(200):
        times = mirrored(_windows(n_requests, alpha), seed=seed)
        counts += np.bincount((times // 1200).astype(int), minlength=5)
        gaps = np.diff(times[(times > 3600) & (times < 4800)])
        cv.append(gaps.std() / gaps.mean())
    assert counts / 200 == pytest.approx(n_requests, rel=0.03)
    assert counts[2] == 0
    assert np.mean(cv) == pytest.approx(0.5, rel=0.02)


def test_variation_over_steps_changes_after_so_many_requests():
    times = Varying((0.25, 0.75, 0.0), (2.0, -1.0), "steps", 50_000).times(n=100_000, seed=4)
    first, second = np.diff(times)[:49_999], np.diff(times)[50_000:]
    # Shape 0.25 and scale 2 s, then 1 and 1 s.
    assert first.mean() == pytest.approx(0.5, rel=0.03)
    assert first.std() / first.mean() == pytest.approx(2.0, rel=0.03)
    assert second.mean() == pytest.approx(1.0, rel=0.02)
    assert second.std() / second.mean() == pytest.approx(1.0, rel=0.02)


def test_variation_over_time_is_quadratic_in_shape_and_linear_in_scale():
    # Shape 1 + (t/100)², scale 0.001 (1 + t/100): at 0 s and at 100 s gaps of 1 and 4 ms.
    times = Varying((1.0, 0.0, 1e-4), (1e-3, 1e-5)).times(duration_s=101.0, seed=5)
    for begin_s, mean_s, cv in ((0, 0.001, 1.0), (100, 0.004, 0.5**0.5)):
        gaps = np.diff(times[(times >= begin_s) & (times < begin_s + 1)])
        assert gaps.mean() == pytest.approx(mean_s, rel=0.15)
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.15)


def test_variation_that_leaves_the_possible_says_where():
    falling = Varying((1.0, -0.2, 0.0), (1.0, 0.0), over="steps")
    with pytest.raises(InputError, match=r"field 'alpha': it is 0 at step 5\. Fix: end"):
        falling.times(n=10)
    assert len(falling.times(n=5)) == 5
    with pytest.raises(InputError, match="field 'beta_s': 3 coefficients, not 2"):
        Varying((1.0, 0.0, 0.0), (1.0, 0.0, 0.0))
    with pytest.raises(InputError, match="field 'over': 'days' is unknown"):
        Varying((1.0, 0.0, 0.0), (1.0, 0.0), over="days")


def test_replay_is_exact_and_scales_time(tmp_path):
    arrival_s = [2.0, 2.5, 2.5, 10.0]
    assert _replay(tmp_path, arrival_s).times().tolist() == [0.0, 0.5, 0.5, 8.0]
    assert _replay(tmp_path, arrival_s).times(n=2, seed=8).tolist() == [0.0, 0.5]
    halved = _replay(tmp_path, arrival_s, time_factor=0.5)
    assert halved.times().tolist() == [0.0, 0.25, 0.25, 4.0]
    assert halved.times(duration_s=4.0).tolist() == [0.0, 0.25, 0.25]
    with pytest.raises(InputError, match="field 'arrival_s': the times do not ascend"):
        _replay(tmp_path, [1.0, 0.5]).times()


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: Gamma(1.0, 0.0), "field 'alpha': 0.0 is out of range"),
        (lambda: poisson(np.inf), "field 'rate_rps': inf is out of range"),
        (lambda: poisson(1.0).times(), "field 'n': the arrivals have no end"),
        (lambda: poisson(1e6).times(duration_s=1e6), "1e.12 requests are too many"),
        (lambda: AtOnce().times(duration_s=1.0), "requests are too many"),
        (lambda: Replay("t", time_factor=-1.0), "field 'time_factor': -1.0"),
    ],
)
def test_bad_parameters_are_named(draw, message):
    with pytest.raises(InputError, match=message):
        draw()


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_a_duration_has_rate_times_duration_requests_on_average(alpha):
    counts = [len(Gamma(2.0, alpha).times(duration_s=50.0, seed=seed)) for seed in range(1_000)]
    # From an arrival on, alpha = 0.1 would give 105.5.
    assert np.mean(counts) == pytest.approx(100, abs=4 * np.std(counts) / 1_000**0.5)
    assert abs(np.mean(counts) - 100) < 3


def test_the_end_of_a_trace_in_a_window_of_no_duration_is_kept():
    windows = _windows([100, 1], [1.0, np.nan]).assign(duration_s=[1200.0, 0.0])
    times = [mirrored(windows, seed=seed) for seed in range(200)]
    assert max(map(max, times)) <= 1200.0
    assert np.mean([len(own) for own in times]) == pytest.approx(101, rel=0.03)
