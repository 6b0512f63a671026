"""Step laws that give what was measured of a server at a few loads."""

from dataclasses import replace

import numpy as np
import pytest

from sextant.law.means import BatchLimits, MeanLoad, broadcast_laws, open_loop, saturation_rps
from sextant.law.measured_server import simulated_means_ms
from sextant.law.probed_server import ProbeResult, fit_laws_to_probe
from sextant.simulate.server import NAMES, Scheduler, StepLaw
from sextant.simulate.simulation import simulate_closed
from sextant.workload.requests import RequestStream

LAW = StepLaw(2, 8, 0.05, 2e-5, 0.02, 1e-7, 3, request_ms=5)
SCHEDULER = Scheduler(1_000_000, 256, 2048)
INPUT_TOKENS, OUTPUT_TOKENS = 500, 200
LOAD = MeanLoad(INPUT_TOKENS, OUTPUT_TOKENS)


def scaled(factor: float, *names: str) -> StepLaw:
    """Return the law with some of its terms scaled; without names, all of them."""
    terms = LAW.array()
    terms[[NAMES.index(name) for name in names or NAMES if name.endswith("_ms")]] *= factor
    return StepLaw.of(terms)


SERVERS = {
    "faster": scaled(0.5),
    "slower": scaled(2.0),
    "slow front end": scaled(20.0, "request_ms"),
    "slow prompts": scaled(2.0, "prefill_token_ms", "prompt_step_ms"),
    "slow sequences": scaled(4.0, "sequence_ms", "kv_token_ms"),
}
"""Other servers than the likeliest one, of known laws."""


def simulated_ms(law: StepLaw, users: int) -> np.ndarray:
    """Return mean TTFT and mean ITL of users, as `sextant simulate` has them."""
    n = 1000 * users
    inputs, outputs = np.full(n, INPUT_TOKENS), np.full(n, OUTPUT_TOKENS)
    stream = RequestStream.of_users(users, inputs, outputs, 42)
    return simulated_means_ms(simulate_closed(users, stream, SCHEDULER, law, duration_s=200))


def fitted_law(server: StepLaw, users: list[int]) -> StepLaw:
    """Return the likeliest law that gives what some numbers of users see of a server."""
    ttft_ms, itl_ms = np.transpose([simulated_ms(server, each) for each in users])
    load = MeanLoad(np.full(len(users), INPUT_TOKENS), np.full(len(users), OUTPUT_TOKENS))
    probe = ProbeResult(load, ttft_ms, itl_ms, np.array(users, float))
    return StepLaw.of(fit_laws_to_probe(LAW.array()[None], SCHEDULER, probe, 42).values[0])


@pytest.mark.parametrize("users", [1, 16, 128])
@pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)
def test_a_simulation_gives_back_one_measured_load(server: StepLaw, users: int) -> None:
    found_ms = simulated_ms(fitted_law(server, [users]), users)
    assert found_ms == pytest.approx(simulated_ms(server, users), rel=0.1)


@pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)
def test_a_simulation_gives_back_several_measured_loads(server: StepLaw) -> None:
    measured = [1, 16, 64]
    law = fitted_law(server, measured)
    for users in measured:
        assert simulated_ms(law, users) == pytest.approx(simulated_ms(server, users), rel=0.1)


def test_a_probe_tells_what_the_deployment_adds() -> None:
    slow = replace(LAW, request_ms=40.0)
    scheduler = replace(SCHEDULER, is_asynchronous=False)
    load = open_loop(slow, BatchLimits.of(scheduler), LOAD, 2.0)
    probe = ProbeResult(LOAD, load.ttft_ms, load.itl_ms, request_rate_rps=2.0)
    laws = np.tile(LAW.array(), (50, 1))
    fitted_laws = fit_laws_to_probe(laws, scheduler, probe).values
    assert fitted_laws[0, NAMES.index("request_ms")] == pytest.approx(40, rel=0.05)
    assert fitted_laws[0, 0] == pytest.approx(LAW.floor_ms, rel=0.02)
    # A measurement has an error, and so the draws differ.
    assert 0.005 < np.log(fitted_laws[1:, 0]).std() < 0.05


def test_a_rate_that_saturates_the_likeliest_law_tells_that_the_server_is_faster() -> None:
    server = scaled(0.4)
    limits = BatchLimits.of(SCHEDULER)
    rate_rps = 1.2 * float(saturation_rps(LAW, limits, LOAD))
    measured = open_loop(server, limits, LOAD, rate_rps)
    probe = ProbeResult(LOAD, measured.ttft_ms, measured.itl_ms, request_rate_rps=rate_rps)
    laws = fit_laws_to_probe(np.tile(LAW.array(), (20, 1)), SCHEDULER, probe).values
    found = open_loop(broadcast_laws(laws), limits, LOAD, rate_rps)
    assert found.ttft_ms.ravel() == pytest.approx(float(measured.ttft_ms), rel=0.1)
    assert found.itl_ms.ravel() == pytest.approx(float(measured.itl_ms), rel=0.1)


def test_what_the_cache_holds_is_not_simulated() -> None:
    cached = LOAD._replace(cached_tokens=400.0)
    probe = ProbeResult(cached, ttft_ms=np.array([60.0]), itl_ms=np.array([12.0]), users=4.0)
    law = StepLaw.of(fit_laws_to_probe(LAW.array()[None], SCHEDULER, probe).values[0])
    means = probe.means(law, BatchLimits.of(SCHEDULER))
    assert (means.ttft_ms[0], means.itl_ms[0]) == pytest.approx((60, 12), rel=0.03)


def test_what_no_law_gives_is_told_with_its_size() -> None:
    users = np.array([1.0, 16.0, 64.0])
    load = MeanLoad(np.full(3, INPUT_TOKENS), np.full(3, OUTPUT_TOKENS))
    probe = ProbeResult(load, np.array([60.0, 80.0, 90.0]), np.array([12.0, 60.0, 14.0]), users)
    fitted = fit_laws_to_probe(np.tile(LAW.array(), (31, 1)), SCHEDULER, probe, 42)
    given_ms = simulated_ms(StepLaw.of(fitted.values[0]), 16)
    # It is not known better than by so much.
    means = probe.means(broadcast_laws(fitted.values[1:]), BatchLimits.of(SCHEDULER))
    assert np.log(means.itl_ms[:, 1]).std() > 0.1
    assert given_ms[1] < 40  # no law has 60 ms between loads of 12 and 14
    assert fitted.missed[1] == pytest.approx(np.log(given_ms / [80, 60]), abs=0.05)


def test_a_rate_that_a_law_gives_back_is_not_missed() -> None:
    limits = BatchLimits.of(SCHEDULER)
    rate_rps = 0.5 * float(saturation_rps(LAW, limits, LOAD))
    measured = open_loop(scaled(1.1), limits, LOAD, rate_rps)
    probe = ProbeResult(LOAD, measured.ttft_ms, measured.itl_ms, request_rate_rps=rate_rps)
    fitted = fit_laws_to_probe(LAW.array()[None], SCHEDULER, probe)
    assert fitted.missed == pytest.approx(np.zeros((1, 2)), abs=0.08)


def test_without_a_ttft_what_a_request_takes_beside_the_engine_stays() -> None:
    users = np.array([1.0, 64.0, 256.0])
    load = MeanLoad(np.full(3, INPUT_TOKENS), np.full(3, OUTPUT_TOKENS))
    # A longer wait before the engine would leave fewer requests to decode at 256 users.
    probe = ProbeResult(load, np.full(3, np.nan), np.array([20.0, 21.0, 22.0]), users)
    fitted = fit_laws_to_probe(np.tile(LAW.array(), (3, 1)), SCHEDULER, probe, 42)
    assert fitted.values[:, NAMES.index("request_ms")] == pytest.approx(LAW.request_ms, rel=0.1)


def test_without_an_itl_the_time_of_steps_stays() -> None:
    ttft_ms, itl_ms = simulated_ms(scaled(20.0, "request_ms"), 64)
    probe = ProbeResult(LOAD, np.array([ttft_ms]), np.array([np.nan]), np.array([64.0]))
    law = StepLaw.of(fit_laws_to_probe(LAW.array()[None], SCHEDULER, probe).values[0])
    found_ttft_ms, found_itl_ms = simulated_ms(law, 64)
    assert found_ttft_ms == pytest.approx(ttft_ms, rel=0.15)
    # The TTFT alone was once given back by steps that take three times as long.
    assert found_itl_ms == pytest.approx(itl_ms, rel=0.2)


def test_draws_lie_around_the_likeliest_law_where_the_closed_form_is_off() -> None:
    server = SERVERS["slow sequences"]
    users = [1, 16, 64]
    ttft_ms, itl_ms = np.transpose([simulated_ms(server, each) for each in users])
    load = MeanLoad(np.full(3, INPUT_TOKENS), np.full(3, OUTPUT_TOKENS))
    probe = ProbeResult(load, ttft_ms, itl_ms, np.array(users, float))
    drawn = np.random.default_rng(3).lognormal(0, 0.15, (20, len(NAMES))) * LAW.array()
    values = fit_laws_to_probe(np.vstack([LAW.array(), drawn]), SCHEDULER, probe, 42).values
    for load_users in users:
        itl_by_law = [simulated_ms(StepLaw.of(law), load_users)[1] for law in values]
        low, high = np.quantile(itl_by_law[1:], [0.05, 0.95])
        assert low < itl_by_law[0] < high


def test_users_and_rates_of_several_lengths_are_given_back_together() -> None:
    server = scaled(1.5)
    limits = BatchLimits.of(SCHEDULER)
    load = MeanLoad(np.array([500.0, 500.0, 1000.0]), np.full(3, OUTPUT_TOKENS))
    users, rates_rps = np.array([16.0, 20.0, 16.0]), np.array([np.nan, 5.0, np.nan])
    known = ProbeResult(load, np.ones(3), np.ones(3), users, rates_rps).means(server, limits)
    probe = ProbeResult(load, known.ttft_ms, known.itl_ms, users, rates_rps)
    assert known.request_rate_rps[1] == pytest.approx(5)
    fitted = fit_laws_to_probe(LAW.array()[None], SCHEDULER, probe, 42)
    assert np.abs(fitted.missed).max() < 0.15
    law = StepLaw.of(fitted.values[0])
    assert law.dense_ms == pytest.approx(server.dense_ms, rel=0.1)


@pytest.mark.parametrize("told", ["ttft_ms", "itl_ms"])
def test_one_latency_at_a_rate_is_given_back_also_where_it_saturates_the_law(told: str) -> None:
    server = scaled(0.4)
    limits = BatchLimits.of(SCHEDULER)
    rate_rps = 1.2 * float(saturation_rps(LAW, limits, LOAD))
    means = open_loop(server, limits, LOAD, rate_rps)
    latencies = {"ttft_ms": np.nan, "itl_ms": np.nan, told: getattr(means, told)}
    probe = ProbeResult(LOAD, **latencies, users=means.decoding, request_rate_rps=rate_rps)
    laws = fit_laws_to_probe(np.tile(LAW.array(), (5, 1)), SCHEDULER, probe).values
    found = open_loop(broadcast_laws(laws), limits, LOAD, rate_rps)
    assert getattr(found, told).ravel() == pytest.approx(float(getattr(means, told)), rel=0.1)
