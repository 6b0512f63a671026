"""The simulation of servers."""

import numpy as np
import pytest

from sextant.simulate.requests import Requests
from sextant.simulate.run import simulate
from sextant.simulate.scheduler import Scheduler
from sextant.simulate.step_law import StepLaw
from sextant.simulate.summary import summarise

LAW = StepLaw(
    floor_ms=2, dense_ms=8, sequence_ms=0.1, kv_token_ms=1e-3, prefill_token_ms=0.05, request_ms=5
)


@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_a_request_alone_takes_its_steps(is_asynchronous: bool) -> None:
    requests = Requests.of(np.array([1.0]), np.array([100]), np.array([3]))
    scheduler = Scheduler(kv_tokens=1600, is_asynchronous=is_asynchronous)
    result = simulate(requests, scheduler, LAW)
    assert result.ttft_s[0] * 1e3 == pytest.approx(5 + 10 + 100 * 0.05)
    decodes_ms = [10.1 + 0.101, 10.1 + 0.102]
    assert result.e2e_s[0] * 1e3 == pytest.approx(20 + sum(decodes_ms))
    found = summarise(result)
    assert found["itl_ms"]["mean"] == pytest.approx(np.mean(decodes_ms))
    assert found["itl_ms"]["p50"] == pytest.approx(decodes_ms[0], rel=5e-3)
    assert found["throughput_tok_s"] == pytest.approx(3 / result.end_s)
