"""What a replica bears, read from a surface: tables of loads, and rates between anchors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from made_up_laws import made_up_laws, made_up_server, made_up_traffic, surface_of, target_of
from sextant.decide.asked_limits import asked_of, unit_limits
from sextant.decide.drawn_latencies import latencies_at
from sextant.decide.latency_surface import (
    RATE_STEPS,
    BorneRates,
    LoadTable,
    ReplicaLaws,
    SteadyLoad,
    in_steps,
    load_table,
)

LAWS = made_up_laws(3, 50, 0.3)
SURFACE = surface_of({"a": made_up_server("a", 1.0, LAWS)})
TARGET = target_of(ttft=900.0, tpot=35.0)
N_LEVELS = 7


def borne_within(table: LoadTable, limits_ms: np.ndarray) -> np.ndarray:
    """Return the rates within all of these limits, one of each that is asked."""
    return np.minimum.reduce(table.borne_rates(limits_ms[:, None]))


LEVELS = arrays(float, (4, N_LEVELS, 2), elements=st.floats(-3.0, 8.0))
LIMITS_MS = arrays(float, 2, elements=st.floats(0.1, 3000.0))


@given(LEVELS, LIMITS_MS, arrays(float, 2, elements=st.floats(1.0, 5.0)))
@settings(max_examples=100, deadline=None)
def test_looser_limits_never_bear_less_however_latencies_go(log_ratios, limits_ms, looser) -> None:
    log_rates = np.tile(np.log(np.geomspace(0.1, 20.0, N_LEVELS)), (4, 1))
    table = LoadTable(log_rates, log_ratios)
    borne_rps = borne_within(table, limits_ms)
    assert (borne_within(table, looser * limits_ms) >= borne_rps * (1 - 1e-12)).all()
    is_met = (log_ratios <= np.log(limits_ms)).all(axis=2)
    # Nothing where a request alone breaks a limit, the highest rate where no load does.
    assert ((borne_rps == 0) == ~is_met[:, 0]).all()
    assert borne_rps[is_met.all(axis=1)] == pytest.approx(20.0)
    assert (borne_rps <= 20.0 * (1 + 1e-12)).all()
    # Every level below what is borne meets the limits.
    assert is_met[np.exp(log_rates) < borne_rps[:, None] * (1 - 1e-9)].all()


def test_between_levels_the_rate_is_where_the_latency_reaches_its_limit() -> None:
    log_rates = np.log([[1.0, 2.0, 4.0]])
    log_ratios = np.log([[[100.0], [200.0], [800.0]]])
    table = LoadTable(log_rates, log_ratios)
    limits_ms = [150.0, 200.0, 400.0, 800.0, 99.0, 1e9]
    borne_rps = [float(rates[0]) for rates in table.borne_rates([limits_ms])]
    # On logarithmic axes: from 100 to 200 ms the rate doubles, from 200 to 800 ms too.
    assert borne_rps == pytest.approx([1.5, 2.0, 2.0**1.5, 4.0, 0.0, 4.0])


def test_rates_between_anchors_are_interpolated_and_at_anchors_exact() -> None:
    borne = BorneRates(SURFACE, LAWS, TARGET, 1.0)
    units, limits_ms = unit_limits(asked_of(TARGET))
    for anchor in (-1, 0, 2):
        rate_rps = 4.0**anchor
        load = SteadyLoad(rate_rps, 1.0, SURFACE.request)
        surface = SURFACE.fit_for(units)
        read = borne_within(load_table(surface, LAWS, units, load), limits_ms)
        steps = borne.steps(anchor)
        assert (steps == in_steps(read)).all()
        exact = borne.at(rate_rps)
        assert exact == pytest.approx(np.exp2(steps / RATE_STEPS))
        # A step is rounded down, so a replica is never said to bear more than was read.
        assert (exact <= read * (1 + 1e-9)).all() and (
            exact > read * 2 ** (-1.01 / RATE_STEPS)
        ).all()
        between = borne.at(2 * rate_rps)
        assert between == pytest.approx(np.sqrt(exact * borne.at(4 * rate_rps)))
    tighter = borne.within(target_of(ttft=500.0, tpot=25.0))
    assert tighter.tables is borne.tables
    assert (tighter.at(3.0) <= borne.at(3.0)).all()


def test_a_replica_of_many_bears_more_of_their_more_regular_gaps() -> None:
    borne = BorneRates(SURFACE, LAWS, target_of(ttft=400.0), 1.0)
    alone, of_many = borne.at(1.0), borne.at(4.0**4)
    assert np.median(of_many / alone) > 1.02 and (of_many >= 0.98 * alone).all()
    regular = BorneRates(SURFACE, LAWS, target_of(ttft=400.0), 4.0)
    assert np.median(regular.at(1.0) / alone) > 1.02


def test_slower_terms_never_bear_more() -> None:
    borne_rps = BorneRates(SURFACE, LAWS, TARGET, 1.0).at(10.0)
    for factor in (1.05, 1.4, 3.0):
        slower = ReplicaLaws(LAWS.scheduler, factor * LAWS.terms)
        assert (BorneRates(SURFACE, slower, TARGET, 1.0).at(10.0) <= borne_rps).all()


def test_latencies_at_what_is_borne_are_the_limits() -> None:
    target = target_of(ttft=900.0)
    borne = BorneRates(SURFACE, LAWS, target, 1.0)
    for draw in (0, 5, 20):
        one = BorneRates(SURFACE, LAWS.of_draws(np.array([draw])), target, 1.0)
        replica_rps = float(one.at(40.0)[0])
        told = latencies_at(one, 40.0, 1)
        assert replica_rps == pytest.approx(borne.at(40.0)[draw])
        below, above = (
            latencies_at(one, factor * replica_rps * 8, 8).limited_ms["ttft"][0]
            for factor in (0.9, 1.1)
        )
        assert below < 900.0 < above
        assert told.limited_ms["ttft"][0] > 900.0 and told.in_flight[0] > 0


@pytest.mark.parametrize("limits_ms", [{"ttft": 900.0}, {"e2e": 4000.0}, {"tpot": 30.0}])
def test_latencies_are_those_of_simulations_of_laws_that_it_was_not_fitted_to(limits_ms) -> None:
    """Where replicas are neither idle nor full: there a percentile says little."""
    target = target_of(**limits_ms)
    (metric,) = limits_ms
    laws = made_up_laws(99, 12, 0.3)
    server = made_up_server("b", 1.0, laws)
    borne = BorneRates(SURFACE, laws, target, 1.0)
    rate_rps = 12.0
    errors = []
    for replicas in (1, 2, 4):
        told_ms = latencies_at(borne, rate_rps, replicas).limited_ms[metric]
        for draw in range(1, 13):
            traffic = made_up_traffic(rate_rps)
            judged = server.judge(traffic.drawn(draw), replicas, target, draw)
            simulated_ms = judged.latencies_ms[metric][0]
            if told_ms[draw] < 5 * limits_ms[metric]:
                errors.append(np.log(told_ms[draw] / simulated_ms))
    assert len(errors) > 20 and np.median(np.abs(errors)) < 0.08
    assert abs(np.median(errors)) < 0.05
