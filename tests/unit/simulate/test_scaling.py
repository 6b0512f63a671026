"""Replicas that come and go: the rule of an autoscaler, and what requests see meanwhile."""

import math
from unittest.mock import ANY

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plain_simulator import LAW, PLAN, sent
from sextant.facts.startup import Startup
from sextant.simulate.scaling import (
    Autoscaler,
    Direction,
    Reactive,
    ReplicaCounts,
    Step,
    Timeline,
    Trigger,
    simulate_scaled,
)
from sextant.simulate.server import OK, TIMEOUT
from sextant.simulate.simulation import simulate, summarise
from sextant.workload.requests import RequestStream

IN_FLIGHT = Trigger("requests_in_flight", 10.0)


def decide(policy: Reactive, values: list[float], ordered: int = 1) -> list[int]:
    """Return the replicas after each look, all of them ready at once."""
    controller, found = policy.controller(), []
    for place, value in enumerate(values):
        now_s = place * policy.period_s
        ordered = controller.decide(now_s, ordered, ordered, lambda trigger, v=value: v)
        found.append(ordered)
    return found


@pytest.mark.parametrize("router", ["round_robin", "least_requests", "prefix"])
@pytest.mark.parametrize("n", [1, 3])
def test_replicas_that_stay_are_those_of_a_plain_simulation(n, router):
    requests = sent(400, 4.0)
    stay = Autoscaler(Timeline(np.array([0.0]), np.array([n])))
    made, scaling = simulate_scaled(requests, PLAN, LAW, stay, duration_s=100.0, router=router)
    plain = simulate(requests, PLAN, LAW, n_replicas=n, router=router)
    assert made.e2e_s == pytest.approx(plain.e2e_s)
    assert (scaling.replica_s, scaling.n_starts) == (100.0 * n, 0)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(0, 60), st.integers(0, 1), st.floats(1, 30))
def test_every_request_is_answered_and_hours_are_of_what_was_ordered(seed, took_s, least, target):
    requests = sent(200, 4.0, seed)
    policy = Reactive((IN_FLIGHT._replace(target=target),), most=6, least=least)
    autoscaler = Autoscaler(policy, Startup(took_s, 0.0), seed=seed)
    made, scaling = simulate_scaled(requests, PLAN, LAW, autoscaler, duration_s=60.0)
    assert (made.status == OK).all()
    assert (made.ttft_s > 0).all()
    assert (scaling.ordered <= 6).all()
    assert (scaling.ready <= 6).all()
    # Paid are at least those that are ordered, and those that leave until their last answer.
    ordered_s = scaling.ordered.dot(np.diff(np.append(scaling.time_s, 60.0)))
    longest_s = ordered_s + made.e2e_s.max() * (scaling.n_starts + 1)
    assert ordered_s - 1e-6 <= scaling.replica_s <= longest_s


def test_a_replica_serves_after_its_start_and_not_after_it_is_removed():
    requests = sent(3000, 50.0)
    orders = Timeline(np.array([0.0, 10.0, 30.0]), np.array([1, 2, 1]))
    autoscaler = Autoscaler(orders, Startup(8.0, 0.0))
    made, scaling = simulate_scaled(requests, PLAN, LAW, autoscaler, duration_s=60.0)
    alone = simulate(requests, PLAN, LAW)
    before = requests.arrival_s < 18.0
    assert made.ttft_s[before][:200] == pytest.approx(alone.ttft_s[before][:200])
    assert made.ttft_s[-1] < 0.8 * alone.ttft_s[-1]
    assert scaling.at(17.0) == ReplicaCounts(ordered=2, ready=1)
    assert scaling.at(20.0) == ReplicaCounts(ordered=2, ready=2)
    assert 80.0 < scaling.replica_s < 110.0  # 60 and 20 s, and what it still answers


def test_who_is_removed_before_the_end_of_its_start_is_paid_for_until_then():
    orders = Timeline(np.array([0.0, 10.0, 30.0]), np.array([1, 3, 1]))
    autoscaler = Autoscaler(orders, Startup(25.0, 0.0))
    _, scaling = simulate_scaled(sent(20, 10.0), PLAN, LAW, autoscaler, duration_s=60.0)
    assert scaling.replica_s == pytest.approx(60 + 2 * 20)


def test_requests_that_find_no_replica_time_out():
    requests = sent(300, 10.0)
    gone = Timeline(np.array([0.0, 10.0]), np.array([1, 0]), is_ready=True)
    made, scaling = simulate_scaled(requests, PLAN, LAW, Autoscaler(gone), duration_s=40.0)
    is_late = requests.arrival_s >= 10.0
    assert (made.status[~is_late] == OK).all()
    assert (made.status[is_late] == TIMEOUT).all()
    assert made.end_s == 40.0
    assert 10.0 <= scaling.replica_s < 15.0
    never = Reactive((Trigger("requests_running", 1.0),), 2, least=0)  # nothing runs, so none comes
    made, scaling = simulate_scaled(
        requests, PLAN, LAW, Autoscaler(never, initial=0), duration_s=40.0
    )
    assert (made.status == TIMEOUT).all()
    assert summarise(made)["failed_fraction"] == 1.0


def test_ready_replicas_need_no_start():
    steps = (np.array([0.0, 10.0]), np.array([1, 3]))
    ready, at_once = Timeline(*steps, is_ready=True), Timeline(*steps)
    asked = sent(300, 10.0), PLAN, LAW
    made, _ = simulate_scaled(*asked, Autoscaler(ready, Startup(20.0, 0.0)), duration_s=30.0)
    other, _ = simulate_scaled(*asked, Autoscaler(at_once, Startup(0.0, 0.0)), duration_s=30.0)
    assert made.e2e_s == pytest.approx(other.e2e_s)


def test_from_zero_requests_wait_for_the_start():
    requests = RequestStream.of(np.array([40.0, 41.0]), np.array([100, 100]), np.array([10, 10]))
    policy = Reactive((IN_FLIGHT,), most=2, least=0, cooldown_s=30.0)
    autoscaler = Autoscaler(policy, Startup(50.0, 0.0), initial=0)
    made, scaling = simulate_scaled(requests, PLAN, LAW, autoscaler, duration_s=200.0)
    # The look at 45 s orders a replica, which serves at 95 s.
    assert made.ttft_s == pytest.approx([55.0, 54.0], abs=0.1)
    assert scaling.ordered[-1] == 0
    assert scaling.replica_s == pytest.approx(135.0 - 45.0, abs=15.0)


def test_a_place_that_is_taken_again_has_an_empty_cache():
    arrival_s = np.concatenate([np.arange(0, 10, 0.5), np.arange(100, 110, 0.5)])
    n = len(arrival_s)
    requests = RequestStream.of(
        arrival_s, np.full(n, 1000), np.full(n, 5), np.zeros(n), np.full(n, 900)
    )
    orders = Timeline(np.array([0.0, 50.0, 60.0]), np.array([1, 0, 1]))
    made, _ = simulate_scaled(requests, PLAN, LAW, Autoscaler(orders), duration_s=120.0)
    assert made.cached_tokens[[0, 20]].tolist() == [0, 0]
    assert made.cached_tokens[[5, 25]].min() > 800


# By hand, of kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale: replicas are
# ceil(value / target), unchanged within 10%.
@pytest.mark.parametrize(
    ("value", "ordered", "wanted"),
    [(25, 1, 3), (10.9, 1, 1), (11.1, 1, 2), (19, 2, 2), (17.9, 2, 2), (14, 2, 2), (0, 1, 1)],
)
def test_replicas_are_the_value_over_the_target_beyond_the_tolerance(value, ordered, wanted):
    policy = Reactive((IN_FLIGHT,), 10, down=Direction(0.0))
    assert decide(policy, [value], ordered) == [wanted]


RAY = {
    "tolerance": 0.0,
    "up": Direction(30.0),
    "down": Direction(600.0),
}


@pytest.mark.parametrize(
    ("how", "values", "ordered", "wanted"),
    [
        ({}, [5.0] * 21, 8, [8] * 20 + [1]),  # what there is at the start counts as wanted
        ({}, [math.nan], 3, [3]),  # without a metric nothing changes
        # Up at once, 4 more or twice as many; down 300 s after the last peak at 30 s.
        ({}, [90.0] * 3 + [5.0] * 22, 1, [5, *[9] * 21, ANY, 1, 1]),
        # A step counts what changed within its period.
        ({"up": Direction(0.0, (Step("Pods", 3, 30),))}, [200.0] * 5, 1, [4, 4, 7, 7, 10]),
        (RAY, [5.0, *[50.0] * 4], 1, [1, 1, 1, 5, 5]),  # delays need the whole time above
    ],
)
def test_what_is_wanted_look_by_look(how, values, ordered, wanted):
    assert decide(Reactive((IN_FLIGHT,), 20, **how), values, ordered) == wanted


def test_a_value_of_its_own_multiplies_the_ready_ones():
    policy = Reactive((Trigger("ttft_s", 0.5, is_average=False),), 10)
    assert decide(policy, [0.8], 4) == [7]  # ceil(4 x 1.6)
    assert policy.controller().decide(0.0, 4, 2, lambda trigger: 0.8) == 4  # two serve


def test_of_two_metrics_the_larger_number_counts():
    policy = Reactive((IN_FLIGHT, Trigger("requests_waiting", 1.0)), 10)
    read = {"requests_in_flight": 20.0, "requests_waiting": 5.0}
    assert policy.controller().decide(0.0, 2, 2, lambda trigger: read[trigger.metric]) == 5


@pytest.mark.parametrize(
    ("steps", "select", "wanted"),
    [
        ((Step("Pods", 2, 60),), "Max", 8),
        ((Step("Percent", 25, 60),), "Max", 7),  # 7.5, and the half goes
        ((Step("Pods", 2, 60), Step("Percent", 25, 60)), "Max", 7),
        ((Step("Pods", 2, 60), Step("Percent", 25, 60)), "Min", 8),
        ((Step("Pods", 2, 60),), "Disabled", 10),
        ((), "Max", 1),
    ],
)
def test_steps_bound_how_many_are_removed(steps, select, wanted):
    policy = Reactive((IN_FLIGHT,), 20, down=Direction(0.0, steps, select))
    assert decide(policy, [5.0], 10) == [wanted]


def test_metrics_are_those_of_the_servers():
    seen = []

    class Watching(Reactive):
        def controller(self):
            return self

        def decide(self, now_s, ordered, ready, read):
            seen.append([read(trigger) for trigger in self.triggers])
            return ordered

    requests = sent(2000, 10.0)
    names = ("requests_running", "requests_waiting", "requests_in_flight", "kv_used_fraction")
    triggers = [Trigger(name, 1.0) for name in names]
    names = ("request_rate_rps", "throughput_tok_s", "ttft_s")
    triggers += [Trigger(name, 1.0, window_s=60.0, share=0.5) for name in names]
    policy = Watching(tuple(triggers), 2, period_s=30.0)
    made, _ = simulate_scaled(requests, PLAN, LAW, Autoscaler(policy, initial=2), duration_s=200.0)
    now_s, place = 150.0, 5
    running, waiting, in_flight, kv, rate, tokens, ttft = seen[place]
    is_there = (made.arrival_s < now_s) & (made.arrival_s + made.e2e_s > now_s)
    assert in_flight == running + waiting == pytest.approx(is_there.sum(), abs=2)
    held = (made.input_tokens + made.output_tokens)[is_there].sum()
    assert 0.5 * held < kv * 40_000 < 1.2 * held
    recent = (made.arrival_s >= 90.0) & (made.arrival_s < now_s)
    assert rate == pytest.approx(recent.sum() / 60)
    first_s = made.arrival_s + made.ttft_s
    own = made.ttft_s[(first_s >= 90.0) & (first_s < now_s)]
    assert ttft == pytest.approx(np.median(own))
    assert tokens == pytest.approx(made.output_tokens[recent].sum() / 60, rel=0.1)


def test_the_same_seed_gives_the_same_starts():
    requests, policy = sent(600, 10.0), Reactive((IN_FLIGHT,), 6)

    def e2e_s(seed: int) -> np.ndarray:
        autoscaler = Autoscaler(policy, Startup(10.0, 0.3), seed=seed)
        return simulate_scaled(requests, PLAN, LAW, autoscaler, duration_s=60.0)[0].e2e_s

    first, again, other = e2e_s(1), e2e_s(1), e2e_s(2)
    assert (first == again).all() and (first != other).any()


def ways(how: str, steps: list[Step], select: str = "Max") -> dict[str, Direction]:
    return {how: Direction(0.0, tuple(steps), select)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("how", "values", "ordered", "wanted"),
    [
        # What was removed within the period counts for what is added: 1 replica, 3 before.
        (ways("up", [Step("Percent", 100, 120)]) | ways("down", []), [5.0, 300.0], 3, [1, 6]),
        # What was added within the period counts for what is removed.
        (ways("down", [Step("Pods", 1, 120)]) | ways("up", []), [90.0, 5.0], 4, [9, 3]),
        # The part of a replica that remains is removed: 10 x (1 - 0.9) is 0.99… in binary.
        (ways("down", [Step("Percent", 90, 15)]), [5.0], 10, [1]),
    ],
)
def test_an_own_behavior_is_kubernetes_(how, values, ordered, wanted):
    assert decide(Reactive((IN_FLIGHT,), 20, **how), values, ordered) == wanted


def test_a_limit_below_the_number_of_now_removes_nothing():
    up = Direction(0.0, (Step("Pods", 1, 15), Step("Percent", 50, 300)), "Min")
    controller = Reactive((IN_FLIGHT,), 20, up=up).controller()
    controller.changes.append((0.0, 3))  # 1 replica, then 4: half more of 1 are 2
    assert controller.decide(30.0, 4, 4, lambda trigger: 200.0) == 4


def test_a_peak_of_just_the_window_ago_does_not_count():
    down = Direction(60.0)
    assert decide(Reactive((IN_FLIGHT,), 20, down=down), [90.0] + [5.0] * 4, 9) == [9] * 4 + [1]


def test_looks_are_kept_by_time():
    """With looks every half a second, what is wanted has to last for 600 s, as it says."""
    policy = Reactive((IN_FLIGHT,), 4, period_s=0.5, down=Direction(600.0), tolerance=0.0)
    found = decide(policy, [20.0] + [5.0] * 1300, 2)
    assert found.index(1) == 1200


def test_a_first_replica_is_ordered_when_keda_polls():
    policy = Reactive((IN_FLIGHT,), 4, least=0, poll_s=60.0)
    assert decide(policy, [0.0, 0.0, 30.0, 30.0, 30.0], 0) == [0, 0, 0, 0, 1]
