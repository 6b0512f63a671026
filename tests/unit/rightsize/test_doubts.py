"""What the answer doubts: observations that contradict the law, each other, or the question."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from sextant.rightsize.answer import Comparison, LoadComparison, Predicted
from sextant.rightsize.doubts import find_doubts
from sextant.rightsize.observations import observed_points
from sextant.rightsize.question import Deployed
from sextant.trace.histogram import Histogram
from sextant.trace.observed import Observed, ObservedSlot


def comparison(observed_ms: float, uncalibrated, calibrated, **more) -> Comparison:
    facts = {"metric": "ttft", "percentile": None, "limit_ms": None} | more
    ends = {"observed_low_ms": observed_ms, "observed_high_ms": observed_ms} | {
        name: value for name, value in more.items() if name.startswith("observed")
    }
    return Comparison(
        **facts | ends | {"observed_ms": observed_ms},
        uncalibrated=Predicted(*uncalibrated),
        calibrated=Predicted(*calibrated),
    )


def load(*comparisons: Comparison, **more) -> LoadComparison:
    facts = {"running": 10.0, "n_readings": 100, "in_flight": 10.0} | more
    return LoadComparison(
        **facts,
        n_answered=1000,
        duration_s=100.0,
        rate_rps=10.0,
        replica_rps=5.0,
        input_tokens=500.0,
        output_tokens=100.0,
        comparisons=comparisons,
    )


def slot(rate_rps: float = 10.0, mean_ms: float = 100.0, **more) -> ObservedSlot:
    n = int(rate_rps * 60)
    histogram = Histogram(np.array([1e3, math.inf]), np.array([float(n), 0.0]), n * mean_ms)
    facts = {"running": 10.0, "waiting": 0.0, "start_s": 0.0, "n_failed": 0} | more
    return ObservedSlot(
        **facts,
        duration_s=60.0,
        n_answered=n,
        input_tokens=500.0,
        output_tokens=100.0,
        n_readings=60,
        latencies_ms={"ttft": histogram, "itl": histogram, "e2e": histogram},
    )


def asked(*slots: ObservedSlot, replicas: int = 2, n_engines: int | None = 2) -> SimpleNamespace:
    observed = Observed("served", "vllm", n_engines, None, slots or (slot(),))
    question = SimpleNamespace(llm_name="my-llm")
    deployed = Deployed(replicas, "1xH100-80GB")
    return SimpleNamespace(observed=observed, deployed=deployed, question=question)


NEAR = ((100, 80, 130), (100, 95, 105))


def test_observations_that_fit_are_not_doubted() -> None:
    assert find_doubts(asked(), [load(comparison(110, *NEAR))]) == []


@pytest.mark.parametrize(
    ("observed_ms", "words"),
    [
        (150, ["150 ms", "100 ms (90% interval 80 to 130)", "follows the observation"]),
        (400, ["far outside", "my-llm on 2 × 1xH100-80GB?", "The servers call it served"]),
        (30, ["far outside"]),
    ],
)
def test_a_mean_outside_of_the_prediction_is_said(observed_ms, words) -> None:
    calibrated = (observed_ms, 0.9 * observed_ms, 1.1 * observed_ms)
    (doubt,) = find_doubts(asked(), [load(comparison(observed_ms, NEAR[0], calibrated))])
    assert all(word in doubt for word in words), doubt


def test_what_calibration_does_not_explain_is_said() -> None:
    doubts = find_doubts(asked(), [load(comparison(120, NEAR[0], (80, 75, 85)))])
    assert any("Calibration does not explain the mean TTFT" in doubt for doubt in doubts)
    bucket = {"observed_low_ms": 100.0, "observed_high_ms": 250.0, "percentile": 95}
    inside = comparison(150, NEAR[0], (110, 99, 120), **bucket)
    beyond = comparison(150, NEAR[0], (500, 400, 600), **bucket)
    assert find_doubts(asked(), [load(inside)]) == []
    (doubt,) = find_doubts(asked(), [load(beyond)])
    assert "the p95 of TTFT" in doubt


def test_littles_law_is_judged_by_how_often_the_gauge_was_read() -> None:
    apart = {"running": 20.0, "in_flight": 10.0}
    (doubt,) = find_doubts(asked(), [load(**apart, n_readings=100)])
    assert "Little's law" in doubt
    assert find_doubts(asked(), [load(**apart, n_readings=1)]) == []  # may be chance
    assert find_doubts(asked(), [load(running=None, in_flight=10.0)]) == []


def test_engines_that_are_missing_are_said() -> None:
    (doubt,) = find_doubts(asked(replicas=8, n_engines=2), [])
    assert "Metrics of 2 engines were read, but 8 replicas are deployed" in doubt
    assert find_doubts(asked(replicas=8, n_engines=None), []) == []  # a log does not know them


def test_servers_that_are_behind_are_said_and_are_no_load() -> None:
    behind = slot(waiting=90.0)
    case = asked(slot(), behind)
    (doubt,) = find_doubts(case, [])
    assert "In 1 of 2 slots the servers were behind: at worst 90 requests waited" in doubt
    (point,) = observed_points(case.observed, case.deployed)
    assert point.slot.n_answered == slot().n_answered


def test_loads_that_are_near_each_other_are_one() -> None:
    rates = (2.0, 2.1, 6.0, 6.3, 20.0, 19.0)
    points = observed_points(asked(*(slot(rate) for rate in rates)).observed, Deployed(2, "x"))
    assert [round(point.replica_rps, 2) for point in points] == [1.02, 3.08, 9.75]
    (point,) = observed_points(asked(slot(9.0), slot(10.0)).observed, Deployed(1, "x"))
    assert point.mean_ms("ttft") == pytest.approx(100)
    assert point.in_flight == pytest.approx(0.95)
