"""Parts of long streams: which windows are kept, and what is said of the whole."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sextant.base.errors import InputError
from sextant.workload import requests
from sextant.workload.part import choose_windows
from sextant.workload.requests import Prefixes, RequestStream, Turns


def day(rate_by_hour, **more) -> RequestStream:
    """Return requests at a steady rate within each hour, one every so many seconds."""
    hours = [np.arange(0, 3600, 1 / rate) + 3600 * hour for hour, rate in enumerate(rate_by_hour)]
    arrival_s = np.concatenate(hours)
    tokens = np.full(len(arrival_s), 100)
    end_s = 3600.0 * len(rate_by_hour)
    return RequestStream("day", arrival_s, tokens, tokens, end_s, **more)


def test_the_busiest_windows_come_with_those_before_them() -> None:
    load = np.array([[1, 0, 0], [2, 0, 0], [9, 0, 0], [1, 0, 0], [1, 0, 70], [0, 0, 0]], float)
    few = choose_windows(load, 1, 1)  # one is always chosen
    assert few.is_chosen.nonzero()[0].tolist() == [2] and few.is_kept.sum() == 2
    # The fifth has the most output tokens. With it 2 + 9 + 1 + 1 requests are kept.
    more = choose_windows(load, 13, 1)
    assert more.is_chosen.nonzero()[0].tolist() == [2, 4]
    assert more.is_kept.nonzero()[0].tolist() == [1, 2, 3, 4]
    every = choose_windows(load, 99, 1)
    assert every.is_chosen.tolist() == [True] * 5 + [False]


def test_each_hour_of_the_day_has_its_busiest_window_before_any_has_a_second(monkeypatch) -> None:
    rates = [0.2] * 8 + [1.0] * 8 + [0.5] * 8
    stream = day(rates)
    monkeypatch.setattr(requests, "MOST_SIMULATED", int(0.3 * stream.n))
    part = stream.busiest_part(300.0)
    assert part.n <= requests.MOST_SIMULATED
    assert part.part.has_slots(24, 3600.0).all()
    # Each chosen window is whole, and so are the 5 minutes before it.
    for window in part.part.windows:
        start_s = max(300.0 * window - 300.0, 0.0)
        end_s = 300.0 * (window + 1)
        assert part.between(start_s, end_s).n == stream.between(start_s, end_s).n
    assert part.measures() == stream.measures()[:5] + part.measures()[5:]
    assert (part.measures().rates.rate_rps == stream.measures().rates.rate_rps).all()


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([1.0, 7.0, 60.0, 300.0, 3600.0, 5000.0, 86_400.0]), st.integers(0, 99))
def test_windows_of_any_length_are_kept_whole(window_s, seed) -> None:
    rng = np.random.default_rng(seed)
    arrival_s = np.sort(rng.uniform(0, 40_000, 3000))
    tokens = rng.integers(1, 50, 3000)
    stream = RequestStream("any", arrival_s, tokens, tokens, 40_000.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests, "MOST_SIMULATED", 1000)
        part = stream.busiest_part(window_s)
    assert part.part.n_windows == stream.n_windows(window_s)
    last = part.part.n_windows - 1
    for window in part.part.windows.tolist():
        start_s = window * window_s
        end_s = 40_001.0 if window == last and window_s >= 5000 else start_s + window_s
        assert part.between(start_s, end_s).n == stream.between(start_s, end_s).n
        before_s = max(start_s - 300.0, 0.0)
        assert part.between(before_s, start_s).n == stream.between(before_s, start_s).n


def test_what_requests_share_or_wait_for_is_there_before_the_windows(monkeypatch) -> None:
    arrival_s = np.sort([*np.arange(0.0, 20_000.0, 20.0), *np.arange(9001.0, 9300.0, 5.0)])
    n = len(arrival_s)
    tokens = np.full(n, 100)
    plain = RequestStream("shared", arrival_s, tokens, tokens, 20_000.0)
    monkeypatch.setattr(requests, "MANY_REQUESTS", 100)
    monkeypatch.setattr(requests, "PEAK_REQUESTS", 30)
    assert plain.peak(300.0).arrival_s[0] == 8700.0
    shared = replace(plain, prefixes=Prefixes(np.zeros(n, int), np.full(n, 50)))
    assert shared.peak(300.0).arrival_s[0] == 7200.0
    # A session is cut in its middle: the first turn that is kept waits for no answer.
    parent = np.arange(n) - 1
    turns = Turns(np.zeros(n, int), parent, np.full(n, 2.0))
    cut = replace(plain, turns=turns).peak(300.0)
    assert cut.arrival_s[0] == 7200.0 and cut.n < n
    assert cut.turns.parent.tolist() == list(range(-1, cut.n - 1))
    cut.check()


def test_a_part_times_a_factor_has_the_same_windows(monkeypatch) -> None:
    from sextant.ask.traffic import multiplied_demand

    stream = day([1.0] * 4)
    monkeypatch.setattr(requests, "MOST_SIMULATED", 5000)
    part = stream.busiest_part(300.0)
    more = multiplied_demand(part, 1.5, 300.0)
    assert more.part.windows.tolist() == part.part.windows.tolist()
    assert more.rate_rps == pytest.approx(1.5 * stream.rate_rps)


def test_a_factor_that_leaves_no_request_is_an_error() -> None:
    """`capacity --traffic 1e-6` ended with an IndexError."""
    from sextant.ask.traffic import multiplied_demand

    with pytest.raises(InputError, match=r"'--traffic': 1e-09 times .* requests leave none"):
        multiplied_demand(day([1.0] * 4), 1e-9)
