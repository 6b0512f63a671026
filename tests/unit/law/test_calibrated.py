"""Step laws from what was measured of a server."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sextant.base.errors import InputError
from sextant.law.means import BatchLimits, MeanLoad, closed_loop, open_loop
from sextant.law.measured_server import calibrate, closed_loop_requests, requests_of_points
from sextant.law.measured_steps import law_of_steps, measured_steps
from sextant.simulate.server import Scheduler, StepLaw
from sextant.simulate.simulation import simulate, simulate_closed
from sextant.workload.requests import RequestStream

TRUTH = StepLaw(4, 3, 0.6, 4e-4, 0.12, 0, 2, request_ms=6)
SCHEDULER = Scheduler(200_000, 64, 2048, has_prefix_caching=False)
LIMITS = BatchLimits(64, 2048, 200_000)
LOAD = MeanLoad(300, 40)


def lengths(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.integers(20, 600, n), generator.integers(5, 80, n)


@pytest.fixture(scope="module")
def measured() -> pd.DataFrame:
    """Return what a server that follows `TRUTH` would have measured."""
    frames = []
    for users in (1, 2, 4, 8, 16):
        requests = RequestStream.of(np.zeros(4000), *lengths(4000))
        made = simulate_closed(users, requests, SCHEDULER, TRUTH, duration_s=20)
        frame = pd.DataFrame({"input_tokens": made.input_tokens, "users": users})
        times = {"ttft_ms": 1e3 * made.ttft_s, "e2e_ms": 1e3 * made.e2e_s}
        sent = {"output_tokens": made.output_tokens, "sent_s": made.arrival_s}
        frames.append(frame.assign(**sent, **times))
    return pd.concat(frames)


def test_a_closed_loop_predicts_the_open_one(measured: pd.DataFrame) -> None:
    found = calibrate(measured, SCHEDULER, 100, 1)
    assert np.abs(found.errors).max() < 0.05
    arrivals_s = np.random.default_rng(3).gamma(0.5, 1 / (0.5 * 10), 1500).cumsum()
    requests = RequestStream.of(arrivals_s, *lengths(1500, 5))
    real, made = (simulate(requests, SCHEDULER, law) for law in (TRUTH, found.law))
    for share in (0.5, 0.9, 0.99):
        values = [np.quantile(each.ttft_s, share) for each in (real, made)]
        assert values[1] == pytest.approx(values[0], rel=0.08), share
    assert made.e2e_s.mean() == pytest.approx(real.e2e_s.mean(), rel=0.05)


def test_draws_surround_the_law_and_hold_the_truth_and_else_the_prior(measured) -> None:
    noisy = measured.assign(e2e_ms=measured["e2e_ms"] * np.where(measured["users"] > 2, 0.3, 1))
    found = calibrate(noisy, SCHEDULER, 400, 1)
    assert np.abs(found.errors).max() > 0.1
    known = found.draws[:, found.law.array() > 0]
    # Broad, but what no measurement tells is not broader than before: e^5 is 5 of its deviations.
    assert np.ptp(np.log(known), axis=0).max() < 10
    found = calibrate(measured, SCHEDULER, 400, 1)
    users = np.array([[4.0]])
    drawn = closed_loop(StepLaw(*found.draws.T[:, :, None]), LIMITS, LOAD, users)
    low, high = np.quantile(drawn.e2e_ms, (0.01, 0.99))
    for law in (TRUTH, found.law):
        assert low < float(closed_loop(law, LIMITS, LOAD, 4).e2e_ms) < high
    assert (found.draws >= 0).all()


def test_points_without_requests_are_enough(measured: pd.DataFrame) -> None:
    gaps_ms = (measured["e2e_ms"] - measured["ttft_ms"]) / (measured["output_tokens"] - 1)
    points = measured.assign(mean_itl_ms=gaps_ms).rename(columns={"ttft_ms": "mean_ttft_ms"})
    points = points.groupby("users", as_index=False).mean()
    found = calibrate(requests_of_points(points), SCHEDULER, 2, 1)
    rates = np.array([3.0, 6.0])
    made, truth = (open_loop(law, LIMITS, LOAD, rates) for law in (found.law, TRUTH))
    assert made.e2e_ms == pytest.approx(truth.e2e_ms, rel=0.1)
    with pytest.raises(InputError, match="no point has users"):
        requests_of_points(points.assign(mean_ttft_ms=np.nan))


def test_a_cell_is_read_without_its_failures(tmp_path: Path) -> None:
    rows = {"level": [2.0, 2.0], "input_tokens": [10, 20], "output_tokens": [5, 5]}
    rows |= {"token_offsets_ms": [[500.0, 1000], [100.0, 1000]]}
    rows |= {"scheduled_s": [1.0, 2.0], "first_token_s": [1.5, 2.1], "last_token_s": [2.0, 3.0]}
    frame = pd.DataFrame(rows | {"status": ["ok", "timeout"]})
    frame.to_parquet(tmp_path / "requests.parquet")
    (found,) = closed_loop_requests(tmp_path).to_dict("records")
    assert (found["ttft_ms"], found["e2e_ms"], found["users"]) == pytest.approx((500, 1000, 2))


def test_single_tokens_tell_no_time_between_tokens(measured: pd.DataFrame) -> None:
    with pytest.raises(InputError, match="time between tokens"):
        calibrate(measured.assign(output_tokens=1), SCHEDULER, 2, 1)


def served(users: int, n: int) -> pd.DataFrame:
    """Return a closed loop of a server that prefills at once, each token at the end of its step."""
    waiting = [list(pair) for pair in zip(*lengths(n, users), strict=True)]
    active, done, now_ms = [], [], 0.0
    while waiting or active:
        new = [[*waiting.pop(0), now_ms, []] for _ in range(min(users - len(active), len(waiting)))]
        prompts = sum(each[0] for each in new)
        context = sum(each[0] + len(each[3]) for each in active)
        now_ms += float(TRUTH.step_ms(prompts, len(active), context, 0))
        active += new
        for each in active:
            each[3].append(now_ms - each[2])
        done += [each for each in active if len(each[3]) >= each[1]]
        active = [each for each in active if len(each[3]) < each[1]]
    columns = ["input_tokens", "output_tokens", "sent_s", "token_offsets_ms"]
    rows = pd.DataFrame(done, columns=columns)
    ttft_ms, e2e_ms = (rows["token_offsets_ms"].str[place] for place in (0, -1))
    rows["sent_s"] /= 1e3
    return rows.assign(users=users, ttft_ms=ttft_ms, e2e_ms=e2e_ms)


def test_steps_tell_terms_that_means_cannot() -> None:
    requests = pd.concat([served(users, 40 * users) for users in (1, 2, 8)])
    law = law_of_steps(pd.concat([measured_steps(rows) for _, rows in requests.groupby("users")]))
    for name in ("sequence_ms", "kv_token_ms", "prefill_token_ms", "prompt_step_ms"):
        assert getattr(law, name) == pytest.approx(getattr(TRUTH, name), rel=0.02), name
    assert law.floor_ms + law.dense_ms == pytest.approx(7, rel=0.02)
    found = calibrate(requests, SCHEDULER, 2, 1).law
    made, truth = (each.step_ms(0, 40, 40_000, 0) for each in (found, TRUTH))
    assert made == pytest.approx(truth, rel=0.1)
    assert law_of_steps(measured_steps(requests[requests["users"] == 1]).head(10)) is None


def test_a_step_in_which_an_answer_is_resumed_is_left_out() -> None:
    times = [[10.0, 20, 30, 40, 50, 60], [10.0, 20, 50, 60]]
    rows = pd.DataFrame({"input_tokens": 9, "sent_s": 0.0, "token_offsets_ms": times})
    steps = measured_steps(rows.assign(output_tokens=[6, 4]))
    assert steps["duration_ms"].tolist() == [10, 10, 10, 10]
    assert steps["sequences"].tolist() == [2, 1, 1, 2]
    assert measured_steps(rows.assign(output_tokens=[6, 8])).empty  # events of two tokens
