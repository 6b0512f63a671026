"""What holds of any sizing: of more load, stricter limits, better devices, and probabilities."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sextant.decide.profile_sizing import size_profiles
from sextant.decide.simulated_sizing import (
    SimulatedReplica,
    Sizing,
    SizingSettings,
    simulated_server,
)
from sextant.decide.windows import Target
from sextant.facts.gpu import GPU, GPUProfile
from sextant.facts.slo import Limit
from sextant.simulate.simulation import Scheduler, StepLaw, simulate
from sextant.workload.lengths import Length, RequestLengths, length_sampler
from sextant.workload.requests import RequestStream, SteadyTraffic

GPU_OF = GPU("g", "gpu", "a", 80.0, 3000.0, 900.0, 80.0, "invented")
SCHEDULER = Scheduler(200_000, max_num_seqs=64)
LENGTHS = RequestLengths(Length(900.0, 2500.0), Length(80.0, 240.0))


def law_at(factor: float) -> StepLaw:
    return StepLaw(
        floor_ms=3.0 * factor,
        dense_ms=5.0 * factor,
        sequence_ms=0.05 * factor,
        kv_token_ms=1e-4 * factor,
        prefill_token_ms=0.05 * factor,
        request_ms=4.0,
    )


def factors_of(seed: int, n: int, spread: float) -> np.ndarray:
    return np.append(1.0, np.random.default_rng(seed).lognormal(0.0, spread, n - 1))


def server(name: str, usd: float, seed: int, spread: float, might: float = 1.0) -> SimulatedReplica:
    gpu = replace(
        GPU_OF,
        **{
            field: might * getattr(GPU_OF, field)
            for field in ("memory_gib", "memory_bandwidth_gb_s", "dense_16bit_tflops")
        },
    )
    laws = [law_at(factor / might) for factor in factors_of(seed, 33, spread)]
    return simulated_server(GPUProfile(name, gpu, 1, usd), [SCHEDULER] * 33, laws)


def sized(
    servers: dict[str, SimulatedReplica],
    rate_rps: float,
    limits: dict[str, Limit],
    seed: int,
    harder: Mapping[str, Sizing] = MappingProxyType({}),
    easier: Mapping[str, Sizing] = MappingProxyType({}),
    **settings,
):
    traffic = SteadyTraffic("lengths", length_sampler(LENGTHS), rate_rps, 1.0, seed)
    target = Target(limits, window_s=None)
    settings = SizingSettings(has_rate=False, **settings)
    return size_profiles(servers, traffic, target, 0.9, settings, harder, easier)


def price_of(found: dict[str, Sizing]) -> float:
    return min((each.usd_per_hour or np.inf for each in found.values()), default=np.inf)


@given(
    rate_rps=st.floats(1.0, 30.0),
    more=st.floats(1.0, 4.0),
    ttft_ms=st.floats(150.0, 4000.0),
    stricter=st.floats(0.2, 1.0),
    spread=st.sampled_from([0.05, 0.3]),
    seed=st.integers(0, 99),
)
@settings(max_examples=5, deadline=None, derandomize=True)
def test_more_load_and_more_limits_are_never_cheaper_and_a_better_device_is_never_worse(
    rate_rps, more, ttft_ms, stricter, spread, seed
) -> None:
    servers = {
        "small": server("small", 2.0, seed, spread),
        "large": server("large", 3.1, seed, spread, might=1.7),
    }
    limits = {"ttft": Limit(ttft_ms, 95)}
    found = sized(servers, rate_rps, limits, seed)
    tighter = {"ttft": Limit(stricter * ttft_ms, 95)}
    besides = limits | {"tpot": Limit(30.0, 50)}
    for harder in (
        sized(servers, more * rate_rps, limits, seed),
        sized(servers, rate_rps, tighter, seed),
        sized(servers, rate_rps, besides, seed),
    ):
        assert price_of(harder) >= price_of(found)
    small, large = found["small"], found["large"]
    assert (large.replicas or np.inf) <= (small.replicas or np.inf)
    if small.replicas:
        assert large.probability(small.replicas) >= small.probability(small.replicas)


@pytest.mark.parametrize(("rate_rps", "seed"), [(20.0, 1), (40.0, 2)])
def test_the_probability_is_that_of_an_independent_monte_carlo(rate_rps, seed) -> None:
    limits, spread = {"ttft": Limit(700.0, 95), "tpot": Limit(45.0, 50)}, 0.35
    found = sized({"a": server("a", 2.0, seed, spread)}, rate_rps, limits, seed)["a"]
    assert found.status == "meets"
    rng, n_met, n = np.random.default_rng(1000 + seed), 0, 100
    per_replica, count = 600, found.count
    for draw in range(n):  # laws and traffic of its own; all requests at all replicas
        law = law_at(float(rng.lognormal(0.0, spread)))
        total = per_replica * count
        arrival_s = rng.exponential(1 / rate_rps, total).cumsum()
        frame = length_sampler(LENGTHS)(total, seed=10_000 * seed + draw)
        requests = RequestStream.of(arrival_s, frame["input_tokens"], frame["output_tokens"])
        made = simulate(requests, SCHEDULER, law, n_replicas=count)
        ttft_ms, tpot_ms = 1e3 * made.ttft_s, 1e3 * made.tpot_s[made.output_tokens > 1]
        n_met += np.quantile(ttft_ms, 0.95) <= 700.0 and np.quantile(tpot_ms, 0.5) <= 45.0
    # 17 or 33 draws of a probability near 0.9 have a standard error of up to 0.08, and half a draw
    # is left to doubt: three standard errors.
    assert n_met / n == pytest.approx(found.probability(count), abs=0.24)
    assert n_met / n > 0.66


@pytest.mark.parametrize("seed", range(4))
def test_the_best_of_few_simulations_is_that_of_all(seed: int) -> None:
    spread = (0.05, 0.3)[seed % 2]
    prices = {"a": (2.0, 1.0), "b": (3.1, 1.7), "c": (2.6, 1.1), "d": (5.9, 3.0)}
    servers = {
        name: server(name, usd, seed, spread, might)  # one draw of the law, as in answers
        for name, (usd, might) in prices.items()
    }
    limits = {"ttft": Limit(1500.0, 95), "tpot": Limit(40.0, 50)}
    plain = sized(servers, 12.0, limits, seed)
    for factor in (0.5, 1.0, 2.0):
        known = {"harder": plain} if factor < 1 else {"easier": plain} if factor > 1 else {}
        brief = {"brief_draws": 33, **known}
        found = [
            sized(servers, 12.0 * factor, limits, seed, is_best_enough=is_best, **brief)
            for is_best in (True, False)
        ]
        best = [min(each.items(), key=lambda it: it[1].usd_per_hour or np.inf) for each in found]
        (name, few), (other, every) = best
        drawn = few.probability(few.count), every.probability(every.count)
        assert (name, few.count, drawn[0]) == (other, every.count, drawn[1])
