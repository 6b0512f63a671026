"""Models of arrivals: each draws what it says, and the fit takes the simplest that will do."""

import math
from dataclasses import replace

import numpy as np
import pytest

from sextant.base.errors import InputError
from sextant.workload import generators
from sextant.workload.arrival_choice import MODELS, choose_arrivals, fit_clients, measure_words
from sextant.workload.arrivals import JUDGED, fit_arrivals, measure_arrivals, median_measures
from sextant.workload.generators import Clients, Gamma, Mirrored, Rescaled, Scaled
from sextant.workload.markov import Markov, markov_counts
from sextant.workload.trace_arrivals import arrivals_from_plain, arrivals_to_plain
from sextant.workload.windows import ArrivalBatch

MARKOV = Markov(20.0, 1.0, (5.0, 60.0), (2.0, 1.0), 0.2)
PROFILE = Rescaled(10.0, (100, 0, 300, 50), 35.0, 0.5)
WINDOWS = Mirrored((0.0, 20.0), (20.0, 10.0), (100, 400), (0.5, 1.5), (False, True))
CLIENTS = Clients((WINDOWS, Mirrored((0.0,), (30.0,), (90,), (1.0,))))
ALL = [MARKOV, PROFILE, WINDOWS, CLIENTS, Scaled(MARKOV, 2.0), Scaled(PROFILE, 0.5, "thinning")]


def _choose(times, client=None):
    clients = None
    if client is not None:
        rows = ArrivalBatch(times, client.astype(np.int16), np.zeros(0))
        clients = fit_clients(iter([rows]), client.max() + 1, times[-1], None)
    return choose_arrivals(times, fit_arrivals(times, seed=0), clients=clients, seed=0)


@pytest.mark.parametrize("process", ALL, ids=lambda process: process.kind)
def test_draws_ascend_follow_the_seed_and_begin_alike(process):
    times = process.times(duration_s=100, seed=3)
    assert np.all(np.diff(times) >= 0) and times[0] >= 0 and times[-1] < 100
    assert times.tolist() == process.times(duration_s=100, seed=3).tolist()
    assert times.tolist() != process.times(duration_s=100, seed=4).tolist()
    longer = process.times(duration_s=250, seed=3)
    assert longer[: len(times)].tolist() == times.tolist() and len(longer) > len(times)
    assert process.times(n=700, seed=3).tolist() == process.times(n=2000, seed=3)[:700].tolist()


@pytest.mark.parametrize("process", [*ALL, Gamma(3.0, 0.5)], ids=lambda process: process.kind)
@pytest.mark.parametrize("duration_s", [17.5, 100.0])
def test_parts_are_the_whole(process, duration_s, monkeypatch):
    monkeypatch.setattr(generators, "_MERGED", 50)
    parts = list(process.batches(duration_s, 3))
    whole = process.times(duration_s=duration_s, seed=3)
    assert np.concatenate(parts).tolist() == whole.tolist()


def test_counts_of_chains_that_share_their_gaps_are_those_of_their_draws():
    others = [replace(MARKOV, on_fraction=0.1), replace(MARKOV, swing=(1.0, 0.5))]
    at_s = np.array([0.0, 1.0, 2.0, 30.0, 100.5])
    for process, counts in zip(
        [MARKOV, *others], markov_counts([MARKOV, *others], at_s, 7), strict=True
    ):
        times = process.times(duration_s=100.5, seed=7)
        assert counts.tolist() == np.searchsorted(times, at_s).tolist()


@pytest.mark.parametrize("process", ALL, ids=lambda process: process.kind)
def test_the_mean_rate_is_what_the_process_says(process):
    n = np.mean([len(process.times(duration_s=700, seed=seed)) for seed in range(40)])
    assert n / 700 == pytest.approx(process.mean_rate_rps, rel=0.05)


@pytest.mark.parametrize("process", ALL, ids=lambda process: process.kind)
def test_a_process_comes_back_from_json(process):
    assert arrivals_from_plain(arrivals_to_plain(process)) == process


def test_a_profile_is_as_busy_in_each_bin_as_the_trace_and_ends_with_it():
    counts = [np.histogram(PROFILE.times(seed=seed), [0, 10, 20, 30, 35])[0] for seed in range(300)]
    assert np.mean(counts, axis=0) == pytest.approx([100, 0, 300, 50], rel=0.03)
    assert np.array(counts)[:, 1].max() == 0


def test_weibull_gaps_have_their_spread():
    process = Mirrored((0.0,), (1e4,), (20_000,), (0.6,), (True,))
    ratio = math.gamma(1 + 2 / 0.6) / math.gamma(1 + 1 / 0.6) ** 2
    gaps = np.diff(process.times(seed=0))
    assert gaps.std() / gaps.mean() == pytest.approx(math.sqrt(ratio - 1), rel=0.03)


def test_a_chain_has_the_dispersion_of_its_formula():
    rate_rps, time_s, swing, on = 10.0, 5.0, 3.0, 0.25
    process = Markov(rate_rps, 1.0, (time_s,), (swing,), on)
    samples = [measure_arrivals(process.times(duration_s=20_000, seed=seed)) for seed in range(9)]
    weight = 2 * rate_rps * swing**2 * on * (1 - on) * time_s
    for scale_s in (1, 10, 60):
        x = scale_s / time_s
        expected = 1 + weight * (1 - (1 - math.exp(-x)) / x)
        found = median_measures(samples)[f"dispersion_{scale_s}s"]
        assert found == pytest.approx(expected, rel=0.05)


def test_time_keeps_bursts_and_thinning_their_pace():
    faster = MARKOV.scaled(2.0).times(duration_s=50, seed=1)
    assert (faster * 2).tolist() == MARKOV.times(duration_s=100, seed=1).tolist()
    whole = MARKOV.times(duration_s=1000, seed=1)
    thinned = MARKOV.scaled(0.3, "thinning").times(duration_s=1000, seed=1)
    assert set(thinned) < set(whole)
    assert len(thinned) / len(whole) == pytest.approx(0.3, abs=0.02)
    assert MARKOV.scaled(1.0, "thinning") is MARKOV
    for given in ((1.5, "thinning"), (0.5, "chance"), (0.0, "time"), (math.nan, "time")):
        with pytest.raises(InputError, match=r"rate_factor|by"):
            MARKOV.scaled(*given)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Markov(1.0, 1.0, (5.0,), (2.0,), 0.6),
        lambda: Markov(1.0, 1.0, (5.0,), (), 0.6),
        lambda: Markov(0.0, 1.0, (), (), 0.5),
        lambda: Rescaled(10.0, (0, 0), 20.0, 1.0),
        lambda: Rescaled(10.0, (1, -1), 20.0, 1.0),
        lambda: Mirrored((0.0,), (1.0, 2.0), (1,), (1.0,)),
        lambda: Mirrored((), (), (), ()),
        lambda: Clients(()),
    ],
)
def test_impossible_processes_are_refused(make):
    with pytest.raises(InputError):
        make()


@pytest.mark.parametrize("alpha", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_steady_process_is_one_gamma(alpha, seed):
    choice = _choose(Gamma(5.0, alpha).times(duration_s=3600, seed=seed))
    assert choice.model == "gamma" and choice.fits["gamma"].reason is None


def test_a_rate_that_steps_from_window_to_window_is_a_gamma_process_per_window():
    steps = tuple(float(number * 1200) for number in range(12))
    counts = tuple(3000 if number % 3 else 9000 for number in range(12))
    times = Mirrored(steps, (1200.0,) * 12, counts, (0.7,) * 12).times(seed=1)
    choice = _choose(times)
    assert choice.model == "windows"
    assert "one Gamma process: the dispersion" in choice.why
    drawn = measure_arrivals(choice.fits["windows"].process.times(seed=9), times[-1])
    assert choice.trace["dispersion_1200s"] > 1000
    for name in ("dispersion_10s", "dispersion_60s", "dispersion_1200s", "busiest_60s"):
        assert drawn[name] == pytest.approx(choice.trace[name], rel=0.2)


def test_short_bursts_at_random_are_markov_modulated():
    times = Markov(2.0, 1.0, (3.0,), (4.0,), 0.2).times(duration_s=100_000, seed=1)
    choice = _choose(times)
    assert choice.model == "markov"
    errors = choice.fits["markov"].errors
    assert all(abs(errors[name]) <= 0.1 for name in JUDGED)
    # A sample of another seed, too.
    drawn = measure_arrivals(choice.fits["markov"].process.times(duration_s=1e5, seed=77), 1e5)
    for name in JUDGED[:4]:
        assert drawn[name] == pytest.approx(choice.trace[name], rel=0.3)


def test_a_day_of_slow_and_fast_changes_is_a_profile():
    seconds = np.arange(0, 14_400, 30.0)
    rate = 8 + 6 * np.sin(seconds / 900) + 10 * (np.random.default_rng(0).random(480) < 0.1)
    times = Rescaled(30.0, tuple((rate * 30).astype(int).tolist()), 14_400.0, 0.8).times(seed=1)
    choice = _choose(times)
    assert choice.model == "rescaled"
    assert choice.fits["rescaled"].process.bin_s <= 60
    assert all(abs(choice.fits["rescaled"].errors[name]) <= 0.1 for name in JUDGED)


def test_clients_with_paces_of_their_own_are_composed():
    # Two hours of two clients, of which one sends a third of the time; their sum has no steady
    # rate in a window of 20 minutes, but each has one in its own 10.
    starts = tuple(600.0 * number for number in range(24))
    lasting = (600.0,) * 24
    first = Mirrored(starts, lasting, (3000, 300, 300) * 8, (0.6,) * 24).times(seed=1)
    second = Mirrored(starts, lasting, (1200,) * 24, (2.0,) * 24).times(seed=2)
    times = np.concatenate([first, second])
    client = np.repeat([0, 1], [len(first), len(second)])[np.argsort(times, kind="stable")]
    choice = _choose(np.sort(times), client)
    assert choice.model == "clients" and len(choice.fits["clients"].process.clients) == 2


def test_bursts_within_a_second_are_replayed():
    rng = np.random.default_rng(0)
    bursts = np.repeat(np.sort(rng.random(60) * 3600), 40) + rng.random(2400) * 0.4
    choice = _choose(np.sort(bursts))
    assert choice.model == "replay"
    assert all(f"{MODELS[name]}: " in choice.why for name in ("gamma", "windows", "markov"))


@pytest.mark.parametrize(
    ("times", "why"),
    [([0.0], "too few"), ([0.0, 1.0], "too few"), ([2.0] * 50, "at the same time")],
)
def test_what_has_no_gaps_is_replayed_and_says_why(times, why):
    choice = _choose(np.array(times))
    assert choice.model == "replay" and why in choice.why and choice.fits == {}


def test_equal_gaps_are_replayed():
    choice = _choose(np.arange(2000.0) / 2)
    assert choice.model == "replay" and "all gaps are equal" in choice.why


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


def test_the_same_seed_chooses_alike():
    times = MARKOV.times(duration_s=1500, seed=5)
    assert _choose(times) == _choose(times)


def test_measures_are_told_in_words():
    assert measure_words("dispersion_3600s") == "the dispersion of counts over 1 h"
    assert measure_words("busiest_60s") == "the number of requests in the busiest 1 min"
    assert measure_words("gap_cv") == "the coefficient of variation of the gaps"
