"""What holds of any sizing: of more load, stricter limits, better devices, and probabilities."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_up_laws import (
    LENGTHS,
    made_up_laws,
    made_up_server,
    made_up_traffic,
    sized_steadily,
    surface_of,
    target_of,
)
from sextant.decide.asked_limits import asked_of
from sextant.decide.latency_surface import LatencySurface
from sextant.decide.replica_sizing import Sizing, enough_replicas, size_profiles
from sextant.decide.replicas import SimulatedReplica
from sextant.decide.sizing import fewest_replicas
from sextant.decide.windows import Target
from sextant.facts.slo import Limit
from sextant.workload.lengths import length_sampler
from sextant.workload.requests import RequestStream, steady_like

SMALL_USD = 2.0
SPREADS = {"narrow": 0.1, "wide": 0.35}
SERVERS: dict[str, dict[str, SimulatedReplica]] = {
    kind: {
        "small": made_up_server("small", SMALL_USD, made_up_laws(7, 200, spread)),
        "large": made_up_server("large", 3.1, made_up_laws(7, 200, spread, slower=1 / 1.7)),
    }
    for kind, spread in SPREADS.items()
}
SURFACES = {kind: surface_of(servers) for kind, servers in SERVERS.items()}
"""Each is fitted once for all loads and limits."""


def least_usd(sizings: dict[str, Sizing]) -> float:
    return min(sizing.usd_per_hour or np.inf for sizing in sizings.values())


def needed(sizing: Sizing) -> float:
    return sizing.replicas or np.inf


@given(
    kind=st.sampled_from([*SPREADS]),
    rate_rps=st.floats(0.5, 200.0),
    more=st.floats(1.0, 4.0),
    ttft_ms=st.floats(150.0, 4000.0),
    tpot_ms=st.floats(8.0, 60.0),
    stricter=st.floats(0.2, 1.0),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_more_load_and_tighter_limits_never_need_fewer_and_a_better_device_never_needs_more(
    kind, rate_rps, more, ttft_ms, tpot_ms, stricter
) -> None:
    servers, surface = SERVERS[kind], SURFACES[kind]
    target = target_of(ttft=ttft_ms, tpot=tpot_ms)
    sizings = sized_steadily(servers, rate_rps, target, surface)
    tighter_ttft = target_of(ttft=stricter * ttft_ms, tpot=tpot_ms)
    tighter_tpot = target_of(ttft=ttft_ms, tpot=stricter * tpot_ms)
    for harder in (
        sized_steadily(servers, more * rate_rps, target, surface),
        sized_steadily(servers, rate_rps, tighter_ttft, surface),
        sized_steadily(servers, rate_rps, tighter_tpot, surface),
    ):
        assert least_usd(harder) >= least_usd(sizings)
        for name, sizing in harder.items():
            assert needed(sizing) >= needed(sizings[name])
            if len(sizing.needs) and len(sizings[name].needs):  # in each draw, too
                assert (sizing.needs >= sizings[name].needs).all()
    small, large = sizings["small"], sizings["large"]
    assert needed(large) <= needed(small)
    if small.replicas:
        assert large.probability(small.replicas) >= small.probability(small.replicas)


@given(
    kind=st.sampled_from([*SPREADS]),
    rate_rps=st.floats(0.5, 200.0),
    ttft_ms=st.floats(150.0, 4000.0),
    confidence=st.floats(0.01, 0.99),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_the_answer_is_the_fewest_with_the_probability_which_never_falls(
    kind, rate_rps, ttft_ms, confidence
) -> None:
    target = target_of(ttft=ttft_ms)
    sizings = sized_steadily(SERVERS[kind], rate_rps, target, SURFACES[kind], confidence)
    for sizing in sizings.values():
        if not len(sizing.needs):
            assert sizing.status in ("too_slow", "too_many") and sizing.replicas is None
            continue
        counts = range(1, 40)
        probabilities = [sizing.probability(count) for count in counts]
        assert probabilities == sorted(probabilities)
        if sizing.replicas is None:
            assert sizing.status == "unsure" and sizing.probability(4096) < confidence
            continue
        assert sizing.probability(sizing.count) >= confidence
        assert sizing.count == 1 or sizing.probability(sizing.count - 1) < confidence
        assert sizing.usd_per_hour == sizing.server.usd_per_hour(sizing.count)
        assert sizing.needs[sizing.draw - 1] <= sizing.count


def test_a_limit_beside_others_never_needs_fewer() -> None:
    servers, surface = SERVERS["wide"], SURFACES["wide"]
    for rate_rps in (2.0, 30.0):
        one = sized_steadily(servers, rate_rps, target_of(ttft=900.0), surface)
        two = sized_steadily(servers, rate_rps, target_of(ttft=900.0, tpot=30.0), surface)
        for name, sizing in two.items():
            assert (sizing.needs >= one[name].needs).all()


def test_the_same_seed_gives_the_same_bytes_whichever_candidates_are_asked_about() -> None:
    target = target_of(ttft=900.0, tpot=35.0)
    sizings = sized_steadily(SERVERS["wide"], 20.0, target, SURFACES["wide"])
    again = {
        name: made_up_server(name, 1.0, made_up_laws(7, 200, SPREADS["wide"], slower))
        for name, slower in (("small", 1.0), ("large", 1 / 1.7))
    }
    surface = surface_of(again)  # not fitted yet
    for name, server in again.items():
        (alone,) = sized_steadily({name: server}, 20.0, target, surface).values()
        assert alone.loads.tobytes() == sizings[name].loads.tobytes()
        assert (alone.status, alone.replicas) == (sizings[name].status, sizings[name].replicas)
    other_seed = LatencySurface(surface.replicas, made_up_traffic(1.0, seed=1))
    (other,) = sized_steadily({"small": again["small"]}, 20.0, target, other_seed).values()
    assert other.loads.tobytes() != sizings["small"].loads.tobytes()
    # Other requests and laws that are simulated tell nearly the same.
    assert other.loads == pytest.approx(sizings["small"].loads, rel=0.1)


@pytest.mark.parametrize(
    ("limits_ms", "rate_rps"),
    [({"ttft": 1500.0}, 20.0), ({"ttft": 900.0, "tpot": 35.0}, 20.0), ({"e2e": 5000.0}, 12.0)],
)
def test_the_probability_is_that_of_all_draws_simulated(limits_ms, rate_rps) -> None:
    server = made_up_server("small", SMALL_USD, made_up_laws(1, 40, 0.3))
    surface = surface_of({"small": server})
    target = target_of(**limits_ms)
    assert surface.is_close(asked_of(target))
    (sizing,) = sized_steadily({"small": server}, rate_rps, target, surface).values()
    traffic = made_up_traffic(rate_rps)
    for replicas in range(1, 5):
        judged = [
            server.judge(traffic.drawn(draw), replicas, target, draw) for draw in range(1, 41)
        ]
        simulated = np.mean([not results.n_missed for results in judged])
        assert sizing.probability(replicas) == pytest.approx(simulated, abs=0.0501)


def test_a_goodput_is_sized_by_the_requests_within_all_limits_at_once() -> None:
    server = made_up_server("small", SMALL_USD, made_up_laws(1, 40, 0.3))
    surface = surface_of({"small": server})
    limits = {"ttft": Limit(1200.0, 50), "tpot": Limit(32.0, 50)}
    plain = Target(limits, window_s=None)
    strict = replace(plain, goodput=0.95)
    by_target = [
        sized_steadily({"small": server}, 20.0, target, surface)["small"]
        for target in (plain, strict)
    ]
    assert (by_target[1].needs >= by_target[0].needs).all()
    traffic = made_up_traffic(20.0)
    for replicas in (2, 3, 4):
        met = [
            not server.judge(traffic.drawn(draw), replicas, strict, draw).n_missed
            for draw in range(1, 41)
        ]
        assert by_target[1].probability(replicas) == pytest.approx(np.mean(met), abs=0.0501)


@dataclass(frozen=True)
class SameDay:
    """Traffic whose every draw is the same trace."""

    stream: RequestStream

    @classmethod
    def of(cls, seed: int) -> "SameDay":
        rng = np.random.default_rng(seed)
        counts = [300 * rate for rate in (2, 6, 14, 25, 9, 3)]
        starts = np.repeat(300.0 * np.arange(len(counts)), counts)
        arrival_s = np.sort(starts + rng.uniform(0, 300, sum(counts)))
        lengths = length_sampler(LENGTHS)(len(arrival_s), seed=seed)
        tokens = (lengths[name].to_numpy() for name in ("input_tokens", "output_tokens"))
        return cls(RequestStream.of(arrival_s, *tokens))

    def drawn(self, seed: int) -> RequestStream:
        return self.stream


@pytest.mark.parametrize(("spread", "confidence"), [(0.15, 0.9), (0.4, 0.9), (0.4, 0.5)])
def test_of_a_trace_trials_tell_what_every_draw_needs(spread, confidence) -> None:
    n_draws = 40
    server = made_up_server("a", 2.0, made_up_laws(3, n_draws, spread))
    traffic = SameDay.of(0)
    target = replace(target_of(ttft=900.0, tpot=33.0), window_s=300.0)
    surface = LatencySurface({"a": server.laws}, steady_like(traffic, 0))
    sizing = size_profiles({"a": server}, traffic, target, confidence, surface)["a"]
    by_bisection = np.array(
        [
            fewest_replicas(
                lambda n, draw=draw: not server.judge(traffic.stream, n, target, draw).n_missed,
                int(min(need, 60)),
                60,
            )
            or np.inf
            for draw, need in enumerate(sizing.needs, start=1)
        ]
    )
    assert sizing.replicas == enough_replicas(by_bisection, confidence)
    # A few draws are simulated; the others lie between them, by a surface that is not exact.
    assert np.mean(sizing.needs != by_bisection) <= 0.15
    # What is said of the answer is simulated in a draw that was tried.
    assert sizing.example in sizing.trials
    assert by_bisection[sizing.draw - 1] == np.ceil(sizing.example.load)
    for replicas in range(1, 12):
        met = (by_bisection <= replicas).mean()
        assert sizing.probability(replicas) == pytest.approx(met, abs=0.0751)


def test_the_rate_of_one_replica_is_that_at_which_it_just_meets_the_target() -> None:
    server = made_up_server("a", 2.0, made_up_laws(3, 0, 0.0))
    traffic = SameDay.of(0)
    light = replace(traffic, stream=traffic.stream.faster(1 / 12))
    target = replace(target_of(ttft=900.0, tpot=33.0), window_s=300.0)
    surface = LatencySurface({"a": server.laws}, steady_like(light, 0))
    sizing = size_profiles({"a": server}, light, target, 0.9, surface)["a"]
    assert sizing.replicas == 1 and sizing.rate_rps is not None
    times = sizing.rate_rps / light.stream.rate_rps
    assert times > 1.5
    assert not server.judge(light.stream.faster(0.99 * times), 1, target).n_missed
    assert server.judge(light.stream.faster(1.1 * times), 1, target).n_missed


def test_without_draws_the_likeliest_law_is_bisected() -> None:
    server = made_up_server("a", 2.0, made_up_laws(3, 0, 0.0))
    traffic = SameDay.of(1)
    target = replace(target_of(ttft=900.0, tpot=33.0), window_s=300.0)
    surface = LatencySurface({"a": server.laws}, steady_like(traffic, 0))
    sizing = size_profiles({"a": server}, traffic, target, 0.9, surface)["a"]
    assert not server.judge(traffic.stream, sizing.count, target).n_missed
    assert server.judge(traffic.stream, sizing.count - 1, target).n_missed
    assert sizing.count - 1 < sizing.loads[0] <= sizing.count
    assert sizing.probability(sizing.count) is None
