"""Models of arrivals: each draws what it says, and the fit takes the simplest that will do."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sextant.base.errors import InputError
from sextant.workload.arrivals import JUDGED, MODELS, choose_arrivals, fit_arrivals, on_fine_clock
from sextant.workload.generators import Gamma, Mirrored, Rescaled, multiplied
from sextant.workload.trace_arrivals import arrivals_from_plain, arrivals_to_plain

PROFILE = Rescaled(10.0, (100, 0, 300, 50), 35.0, 0.5)
WINDOWS = Mirrored((0.0, 20.0), (20.0, 10.0), (100, 400), (0.5, 1.5), (False, True))
ALL = [PROFILE, WINDOWS, PROFILE.scaled(0.5)]


def _choose(times):
    return choose_arrivals(times, fit_arrivals(times), seed=0)


@pytest.mark.parametrize("process", ALL, ids=lambda process: process.kind)
def test_draws_ascend_follow_the_seed_and_begin_alike(process):
    times = process.times(duration_s=100, seed=3)
    assert np.all(np.diff(times) >= 0) and times[0] >= 0 and times[-1] < 100
    assert times.tolist() == process.times(duration_s=100, seed=3).tolist()
    assert times.tolist() != process.times(duration_s=100, seed=4).tolist()
    assert process.times(n=300, seed=3).tolist() == process.times(n=400, seed=3)[:300].tolist()
    assert arrivals_from_plain(arrivals_to_plain(process)) == process
    if process is not WINDOWS:  # which do not go on after their end
        longer = process.times(duration_s=250, seed=3)
        assert longer[: len(times)].tolist() == times.tolist() and len(longer) > len(times)


@pytest.mark.parametrize("process", [PROFILE, ALL[-1]])
def test_the_mean_rate_is_what_the_process_says(process):
    n = np.mean([len(process.times(duration_s=700, seed=seed)) for seed in range(40)])
    assert n / 700 == pytest.approx(process.mean_rate_rps, rel=0.05)


def test_a_profile_is_as_busy_in_each_bin_as_the_trace_and_ends_with_it():
    counts = [np.histogram(PROFILE.times(seed=seed), [0, 10, 20, 30, 35])[0] for seed in range(300)]
    assert np.mean(counts, axis=0) == pytest.approx([100, 0, 300, 50], rel=0.03)
    assert np.array(counts)[:, 1].max() == 0


def test_weibull_gaps_have_their_spread():
    process = Mirrored((0.0,), (1e4,), (20_000,), (0.6,), (True,))
    ratio = math.gamma(1 + 2 / 0.6) / math.gamma(1 + 1 / 0.6) ** 2
    gaps = np.diff(process.times(seed=0))
    assert gaps.std() / gaps.mean() == pytest.approx(math.sqrt(ratio - 1), rel=0.03)


def test_a_process_is_scaled_on_its_clock():
    twice = [PROFILE.scaled(2.0).times(seed=seed) for seed in range(100)]
    counts = np.mean([np.histogram(times, [0, 10, 20, 30, 35])[0] for times in twice], axis=0)
    assert counts == pytest.approx([200, 0, 600, 100], rel=0.06)
    assert Gamma(2.0, 0.5).scaled(3.0) == Gamma(6.0, 0.5)
    with pytest.raises(InputError, match="rate_rps"):
        Gamma(2.0, 0.5).scaled(math.nan)


STAMPS = st.lists(st.integers(0, 500), min_size=2, max_size=200).map(
    lambda stamps: 3.0 * np.sort(np.array(stamps, float))
)


@given(STAMPS, st.floats(0.05, 6), st.integers(0, 9))
@settings(max_examples=100, deadline=None)
def test_a_multiplied_trace_keeps_its_clock(times, factor, seed):
    found, place, copy = multiplied(times, factor, seed=seed)
    assert np.all(np.diff(found) >= 0) and found.min(initial=0) >= 0
    assert found.max(initial=0) <= times[-1]
    own, most = np.bincount((times // 300).astype(int), minlength=6), math.ceil(factor)
    counts = np.bincount((found // 300).astype(int), minlength=6)
    # Whole copies have each request; of the last one, some.
    assert np.all(counts <= most * own) and np.all(counts >= math.floor(factor) * own)
    kept = set(zip(place, copy, strict=True))
    assert set(found[copy == 0]) <= set(times) and len(kept) == len(place)
    _, *more = multiplied(times, factor + 0.3, seed=seed)
    assert kept <= set(zip(*more, strict=True))


@given(STAMPS, st.integers(0, 9))
@settings(max_examples=100, deadline=None)
def test_times_of_a_coarse_clock_are_spread_within_its_steps(stamps, seed):
    found, step_s = on_fine_clock(stamps, seed)
    assert (step_s is None) == (found is stamps)
    assert len(found) == len(stamps) and np.all(np.diff(found) >= 0)
    if len(set(stamps)) <= len(stamps) - 10 and len(set(stamps)) > 1:
        assert step_s % 3 == 0 and np.all((found >= stamps) & (found <= stamps + step_s))
        # Those of a stamp stay before the next one.
        assert np.all(found[:-1][np.diff(stamps) > 0] <= stamps[1:][np.diff(stamps) > 0])


def test_impossible_processes_are_refused():
    for counts in ((0, 0), (1, -1)):
        with pytest.raises(InputError):
            Rescaled(10.0, counts, 20.0, 1.0)


@pytest.mark.parametrize("alpha", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(2))
def test_a_steady_process_is_one_gamma(alpha, seed):
    choice = _choose(Gamma(5.0, alpha).times(duration_s=3600, seed=seed))
    assert choice.model == "gamma" and choice.fits["gamma"].reason is None


def test_a_day_of_slow_and_fast_changes_is_a_profile():
    seconds = np.arange(0, 14_400, 30.0)
    rate = 8 + 6 * np.sin(seconds / 900) + 10 * (np.random.default_rng(0).random(480) < 0.1)
    times = Rescaled(30.0, tuple((rate * 30).astype(int).tolist()), 14_400.0, 0.8).times(seed=1)
    choice = _choose(times)
    assert choice.model == "rescaled"
    assert choice.fits["rescaled"].process.bin_s <= 60
    assert all(abs(choice.fits["rescaled"].errors[name]) <= 0.1 for name in JUDGED)


def test_bursts_within_a_second_are_replayed():
    rng = np.random.default_rng(0)
    bursts = np.repeat(np.sort(rng.random(60) * 3600), 40) + rng.random(2400) * 0.4
    choice = _choose(np.sort(bursts))
    assert choice.model == "replay"
    assert all(f"{MODELS[name]}: " in choice.why for name in ("gamma", "rescaled"))


@pytest.mark.parametrize(
    ("times", "why"),
    [([0.0], "too few"), ([0.0, 1.0], "too few"), ([2.0] * 50, "at the same time")],
)
def test_what_has_no_gaps_is_replayed_and_says_why(times, why):
    choice = _choose(np.array(times))
    assert choice.model == "replay" and why in choice.why and choice.fits == {}


def test_scales_of_few_bins_are_measured_but_not_judged():
    # A slow rise over an hour: three counts of 20 minutes and twelve of 5 would reject all models.
    steady, rising = (
        Rescaled(60.0, tuple(counts), 3600.0, 1.0).times(seed=1)
        for counts in ([300] * 60, [297 + number // 10 for number in range(60)])
    )
    for times in (steady, rising):
        choice = _choose(times)
        assert choice.left_out == ["dispersion_300s", "dispersion_1200s"]
        assert set(choice.left_out) <= set(choice.trace) & set(choice.fits["gamma"].errors)
        assert choice.model == "gamma"
    assert _choose(Gamma(5.0, 1.0).times(duration_s=6400, seed=0)).left_out == ["dispersion_1200s"]
