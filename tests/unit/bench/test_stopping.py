"""When a sweep over users ends early."""

from sextant.bench.measurement import reason_to_stop
from sextant.experiment.scenarios import ClosedLoop
from sextant.points.run import LevelMedians

LIMITS = {"stop_nttft_ms": 100.0, "stop_itl_ms": 50.0, "stop_factor": 3.0}
SWEEP = ClosedLoop(levels=(1.0,), duration_s=9.0, **LIMITS)


def stop(*levels):
    return reason_to_stop(levels, SWEEP)


def test_both_limits_have_to_be_exceeded_by_the_factor():
    assert stop() is None
    assert stop(LevelMedians(1, 100, 1000.0, 140.0)) is None
    assert stop(LevelMedians(1, 100, 290.0, 400.0)) is None
    assert stop(LevelMedians(1, 100, 300.0, 150.0)) is None  # exactly three times is not more
    assert stop(LevelMedians(1, 100, 301.0, 151.0)) is not None


def test_few_requests_and_missing_medians_decide_nothing():
    assert stop(LevelMedians(4, 9, 999.0, 999.0)) is None
    assert stop(LevelMedians(4, 10, 999.0, 999.0)) is not None
    assert stop(LevelMedians(4, 0, None, None)) is None
    assert stop(LevelMedians(4, 10, 999.0, None)) is None
