"""The largest load that replicas bear, on made-up loads."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sextant.decide.budget import largest_factor, rounded_down

BORNE_RPS = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0])
"""What a replica bears in each draw."""


def loads_at(factor: float) -> np.ndarray:
    return factor / BORNE_RPS


@pytest.mark.parametrize(("probability", "borne_rps"), [(0.9, 2.0), (0.5, 6.0), (1.0, 1.0)])
def test_replicas_bear_what_the_deciding_draw_bears(probability: float, borne_rps: float) -> None:
    for replicas in (1, 7, 300):
        factor, loads = largest_factor(loads_at, replicas, probability)
        assert 0.99 * replicas * borne_rps < factor <= replicas * borne_rps
        assert (loads == loads_at(factor)).all()
        assert (loads <= replicas).mean() >= probability


def test_where_many_replicas_bear_more_each_that_counts() -> None:
    def pooled(factor: float) -> np.ndarray:
        return factor**0.9 / BORNE_RPS

    factor, _ = largest_factor(pooled, 20, 0.9)
    assert factor == pytest.approx(40 ** (1 / 0.9), rel=0.01)
    assert (pooled(factor) <= 20).mean() >= 0.9


def test_what_too_many_draws_never_bear_is_not_served() -> None:
    def hopeless(factor: float) -> np.ndarray:
        return np.where(BORNE_RPS > 2, loads_at(factor), np.inf)

    assert largest_factor(hopeless, 5, 0.9).factor == 0
    assert largest_factor(hopeless, 5, 0.8).factor > 0


@pytest.mark.parametrize("light", [0.05, 0.9])
def test_a_light_load_that_says_little_does_not_end_the_search(light: float) -> None:
    """One replica at a light load: its load in replicas hardly rises until it is too much."""

    def of_one(factor: float) -> np.ndarray:
        return np.where(factor <= 5.0, light, np.inf) * np.ones(10)

    factor, loads = largest_factor(of_one, 1, 0.9)
    assert 4.9 < factor <= 5.0 and (loads <= 1).all()


@given(st.floats(1e-6, 1e6))
def test_what_is_shown_is_not_above_what_is_borne(value: float) -> None:
    shown = rounded_down(value)
    assert 0.99 * value < shown <= value * (1 + 1e-9)
    assert float(f"{shown:.3g}") == shown
