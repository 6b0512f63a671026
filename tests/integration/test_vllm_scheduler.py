"""The simulator beside vLLM's own scheduler: the same steps, the same tokens at the same times."""

from dataclasses import replace

import numpy as np
import pytest

from real_vllm import NEEDS_VLLM, schedule_with_vllm
from sextant.simulate.server import Scheduler, StepLaw
from sextant.simulate.simulation import simulate
from sextant.workload.requests import RequestStream

pytestmark = [*NEEDS_VLLM, pytest.mark.slow]
LAW = StepLaw(3, 4, 0.21, 3e-4, 0.023, 1.1e-6, 1.3)


def test_it_plans_the_steps_that_vllm_plans() -> None:
    random, n = np.random.default_rng(1), 120
    arrival_s = random.gamma(0.5, 1 / (0.5 * 25), n).cumsum()
    inputs, outputs = random.integers(200, 500, n), random.integers(1, 80, n)
    prefix = random.integers(-1, 4, n)
    requests = RequestStream.of(arrival_s, inputs, outputs, prefix, np.where(prefix >= 0, 150, 0))
    small = Scheduler(4000, 16, 128, max_model_len=1024)
    settings = [
        replace(small, is_asynchronous=is_asynchronous, has_prefix_caching=is_caching)
        for is_asynchronous in (False, True)
        for is_caching in (False, True)
    ]
    real = schedule_with_vllm([(requests, each) for each in settings], LAW)
    assert all(each.requests["preemptions"].sum() for each in real)
    assert [each.requests["cached"].sum() > 0 for each in real] == [False, True] * 2
    for scheduler, (rows, steps) in zip(settings, real, strict=True):
        made = simulate(requests, scheduler, LAW)
        assert made.use.n_steps == len(steps)
        assert (made.preemptions == rows["preemptions"]).all()
        assert (made.cached_tokens == rows["cached"]).all()
        assert made.arrival_s + made.ttft_s == pytest.approx(rows["first_s"], rel=1e-9)
        assert made.arrival_s + made.e2e_s == pytest.approx(rows["last_s"], rel=1e-9)
