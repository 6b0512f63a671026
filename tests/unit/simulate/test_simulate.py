"""The simulation of servers, judged by a plain one that goes step by step."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plain_simulator import Job, Replica, run_plainly
from sextant.base.errors import InputError
from sextant.simulate.server import OK, REFUSED, STATUS, Scheduler, StepLaw
from sextant.simulate.simulation import Simulation, simulate, simulate_closed, summarise
from sextant.workload.requests import RequestStream

LAW = StepLaw(
    floor_ms=2, dense_ms=8, sequence_ms=0.1, kv_token_ms=1e-3, prefill_token_ms=0.05, request_ms=5
)
ROUTERS = ["round_robin", "least_requests", "prefix"]
SEEDS = st.integers(0, 2**32 - 1)


def some_requests(rng: np.random.Generator) -> RequestStream:
    n = int(rng.integers(1, 80))
    inputs, outputs = rng.integers(1, 150, n), rng.integers(1, 60, n)
    arrivals = np.sort(rng.uniform(0, rng.choice([0.1, 1, 5]), n))
    kind = rng.choice(["alone", "prefixes", "whole prompts"])
    if kind == "alone":
        return RequestStream.of(arrivals, inputs, outputs)
    ids = rng.integers(-1, 4, n)
    lengths = np.where(ids >= 0, rng.integers(1, 140, 5)[ids], 0)
    inputs = np.maximum(inputs, lengths + 1)
    if kind == "whole prompts":
        inputs = np.where(ids >= 0, lengths, inputs)
    return RequestStream.of(arrivals, inputs, outputs, ids, lengths)


def some_scheduler(rng: np.random.Generator, kv_tokens: list[int]) -> Scheduler:
    kind = rng.integers(3)
    return Scheduler(
        kv_tokens=int(rng.choice(kv_tokens)),
        max_num_seqs=int(rng.choice([2, 8, 64])),
        max_num_batched_tokens=int(rng.choice([64, 128, 2048])),
        block_tokens=int(rng.choice([4, 16])),
        has_prefix_caching=bool(rng.integers(2)),
        is_asynchronous=bool(rng.integers(2)),
        timeout_s=float(rng.choice([np.inf, 1.0, 0.3])),
        reserved_share=float(rng.choice([0, 0, 0.7, 1])),
        prompts_first=bool(kind == 1),
        receives_cache=bool(kind == 2),
    )


def some_law(rng: np.random.Generator) -> StepLaw:
    request_ms, host_ms = rng.choice([0, 7]), rng.choice([0, 9])
    return StepLaw(1, 4, 0.1, 1e-3, 0.02, 1e-5, 0.5, 3, 0.1, 0.9, request_ms, host_ms)


def both(seed: int, kv_tokens: list[int]) -> tuple[Simulation, list[Job], list[Replica], Scheduler]:
    rng = np.random.default_rng(seed)
    requests, scheduler = some_requests(rng), some_scheduler(rng, kv_tokens)
    law, n_replicas, router = some_law(rng), int(rng.integers(1, 4)), str(rng.choice(ROUTERS))
    plain = run_plainly(requests, scheduler, law, n_replicas, router)
    result = simulate(requests, scheduler, law, n_replicas=n_replicas, router=router)
    return result, *plain, scheduler


def after_s(jobs: list[Job], token: int) -> np.ndarray:
    """Return when each was given this token, from its arrival on; NaN unless it was answered."""
    return np.array([j.token_s[token] - j.arrival_s if j.status == "ok" else np.nan for j in jobs])


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_it_is_the_plain_simulation_where_nothing_is_preempted(seed: int) -> None:
    result, jobs, replicas, scheduler = both(seed, [600, 2000, 10_000])
    if any(job.preemptions for job in jobs):
        return
    assert [STATUS[status] for status in result.status] == [job.status for job in jobs]
    np.testing.assert_allclose(result.ttft_s, after_s(jobs, 0), rtol=1e-9)
    np.testing.assert_allclose(result.e2e_s, after_s(jobs, -1), rtol=1e-9)
    assert result.cached_tokens.tolist() == [job.cached for job in jobs]
    assert result.use.n_steps == sum(len(replica.steps) for replica in replicas)
    assert result.use.busy_s == pytest.approx(sum(each.busy_s for each in replicas), rel=1e-9)
    gaps = np.concatenate([replica.gaps for replica in replicas])
    assert result.gaps.counts.sum() == len(gaps)
    # Of decodes that wait for prompts only the sum is known: an estimate once one gives up.
    is_exact = not scheduler.prompts_first or np.isinf(scheduler.timeout_s)
    if len(gaps) and is_exact:
        assert result.gaps.mean_s == pytest.approx(gaps.mean(), rel=1e-9)
    if len(gaps) and not scheduler.prompts_first:
        exact = np.quantile(gaps, 0.9, method="inverted_cdf")
        assert result.gaps.quantile_s(0.9) == pytest.approx(exact, rel=5e-3)


def test_preemption_is_that_of_the_plain_simulation_within_3_percent() -> None:
    n_preempted = 0
    for seed in range(60):
        result, jobs, _, _ = both(seed, [300, 600])
        is_preempted = np.array([job.preemptions > 0 for job in jobs])
        n_preempted += is_preempted.any()
        for found, token in ((result.ttft_s, 0), (result.e2e_s, -1)):
            assert np.nansum(found) == pytest.approx(np.nansum(after_s(jobs, token)), rel=0.03)
        assert result.preemptions.sum() == pytest.approx(is_preempted.sum(), rel=1, abs=30)
    assert n_preempted > 10


@settings(max_examples=50, deadline=None)
@given(SEEDS)
def test_tokens_blocks_and_time_add_up(seed: int) -> None:
    result, jobs, _, scheduler = both(seed, [100, 300, 600, 10_000])
    is_ok = result.status == OK
    # Every request ends once: answered, given up, or refused as nothing could hold it.
    assert len(result.status) == len(jobs) and set(result.status.tolist()) <= STATUS.keys()
    assert result.arrival_s.tolist() == [job.arrival_s for job in jobs]
    tokens = result.input_tokens + result.output_tokens
    assert ((result.status == REFUSED) == (tokens > scheduler.longest)).all()
    assert (np.isfinite(result.e2e_s) == is_ok).all() and (
        np.isfinite(result.ttft_s) == is_ok
    ).all()
    assert result.use.most_blocks <= scheduler.n_blocks
    assert (result.ttft_s[is_ok] > 0).all()
    assert (result.e2e_s[is_ok] >= result.ttft_s[is_ok]).all()
    assert (result.e2e_s[is_ok] <= scheduler.timeout_s).all()
    if not np.isinf(scheduler.timeout_s):
        return
    # Every token once: as many gaps as tokens of all that were answered, one less for each.
    assert result.gaps.counts.sum() == (result.output_tokens[is_ok] - 1).sum()
    assert set(result.status.tolist()) <= {1, 3}
    assert result.use.busy_s <= result.end_s * result.use.n_replicas


@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_a_request_alone_takes_its_steps(is_asynchronous: bool) -> None:
    requests = RequestStream.of([1.0], [100], [3])
    result = simulate(requests, Scheduler(1600, is_asynchronous=is_asynchronous), LAW)
    assert result.ttft_s[0] * 1e3 == pytest.approx(5 + 10 + 100 * 0.05)
    decodes_ms = [10.1 + 0.101, 10.1 + 0.102]
    assert result.e2e_s[0] * 1e3 == pytest.approx(20 + sum(decodes_ms))
    found = summarise(result)
    assert found["itl_ms"]["mean"] == pytest.approx(np.mean(decodes_ms))
    assert found["throughput_tok_s"] == pytest.approx(3 / result.end_s)
    assert found["busy_share"] == pytest.approx((15 + sum(decodes_ms)) / 1e3 / result.end_s)


def test_users_send_the_next_request_when_the_last_is_answered() -> None:
    requests = RequestStream.of(np.zeros(500), np.full(500, 64), np.full(500, 20))
    result = simulate_closed(4, requests, Scheduler(100_000), LAW, duration_s=5.0, n_replicas=2)
    for start_s, end_s in zip(result.arrival_s, result.arrival_s + result.e2e_s, strict=True):
        inside = (result.arrival_s <= start_s) & (result.arrival_s + result.e2e_s > start_s)
        assert inside.sum() == 4 or end_s > 5
    with pytest.raises(InputError, match="4 users send more than 9 requests"):
        few = RequestStream.of(np.zeros(9), np.full(9, 64), np.full(9, 20))
        simulate_closed(4, few, Scheduler(100_000), LAW, duration_s=500)


def test_clients_give_up_and_requests_too_long_are_refused() -> None:
    requests = RequestStream.of([0.0, 0.0, 0.0], [16, 5000, 16], [900, 10, 10])
    result = simulate(requests, Scheduler(3200, timeout_s=1.0), LAW)
    assert [STATUS[status] for status in result.status] == ["timeout", "refused", "ok"]
    found = summarise(result)
    assert found["failed_fraction"] == pytest.approx(2 / 3)
    assert result.end_s == pytest.approx(1.0)


def test_what_comes_in_the_warm_up_is_simulated_and_not_counted() -> None:
    requests = RequestStream.of([0.0, 0.01, 10.0], [64, 64, 64], [20, 20, 2])
    result = simulate(requests, Scheduler(100_000), LAW, warmup_s=5.0, window_s=5.0)
    found = summarise(result, {"ttft_ms": 100.0})
    assert (found["n_requests"], result.gaps.counts.sum()) == (1, 1)
    assert found["goodput_rps"] == pytest.approx(1 / (result.end_s - 5))
    assert result.gaps.counts.sum(axis=1).tolist()[:3] == [0, 0, 1]
    with pytest.raises(InputError, match="warm-up"):
        summarise(simulate(requests, Scheduler(100_000), LAW, warmup_s=50.0))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_batched_tokens": 100}, "max_num_batched_tokens"),
        ({"kv_tokens": 20}, "kv_tokens"),
        ({"max_model_len": 100_000}, "max_model_len"),
        ({"timeout_s": 0.0}, "timeout_s"),
    ],
)
def test_a_scheduler_that_could_not_start_is_refused(change: dict, field: str) -> None:
    with pytest.raises(InputError, match=f"field '{field}'"):
        replace(Scheduler(1600), **change)
    for bad in (([], [], []), ([1.0, 0.5], [1, 1], [1, 1]), ([0.0], [1], [0])):
        with pytest.raises(InputError):
            RequestStream.of(*bad)


def test_a_law_of_absurd_times_stays_within_its_windows() -> None:
    # The last window counts a step of 10^17 s, and no other memory is written.
    slow = replace(LAW, kv_token_ms=4e17, prompt_step_ms=3e11)
    requests = RequestStream.of(np.arange(20.0), np.full(20, 50), np.full(20, 9))
    found = simulate(requests, Scheduler(kv_tokens=4096), slow, window_s=5.0)
    assert found.gaps.counts[:-1].sum() == 0 and found.gaps.counts[-1].sum() == 20 * 8


def test_a_prefix_that_all_have_holds_nobody_on_a_full_replica() -> None:
    n = 400
    requests = RequestStream.of(np.arange(n) / 200, [200] * n, [20] * n, [0] * n, [160] * n)
    scheduler = Scheduler(kv_tokens=4_000, max_num_seqs=64, max_num_batched_tokens=512)
    law = StepLaw(10, 0, 0, 1e-3, 0.05, 0)
    by_prefix, in_turn = (
        simulate(requests, scheduler, law, n_replicas=4, router=router)
        for router in ("prefix", "round_robin")
    )
    assert by_prefix.ttft_s.mean() < 1.2 * in_turn.ttft_s.mean()
    assert by_prefix.cached_tokens.sum() == pytest.approx(in_turn.cached_tokens.sum(), rel=0.05)


@pytest.mark.parametrize("duration_s", [1.0, 3.0, 20.0])
def test_the_rates_of_users_do_not_depend_on_the_duration(duration_s: float) -> None:
    n_users = 64
    n = 100 * n_users
    stream = RequestStream.of_users(n_users, np.full(n, 50), np.full(n, 20), 0)
    result = simulate_closed(n_users, stream, Scheduler(100_000), LAW, duration_s=duration_s)
    found = summarise(result, {"ttft_ms": 1e6})
    # By Little's law. Ramps at both ends would leave half of the rate at the shortest duration.
    assert found["request_rate_rps"] == pytest.approx(1e3 * n_users / found["e2e_ms"]["mean"])
    assert found["request_rate_rps"] == pytest.approx(112, rel=0.15)
    assert found["goodput_rps"] == found["request_rate_rps"]
    mean_tokens = result.output_tokens[result.is_counted].mean()
    assert mean_tokens == pytest.approx(20, rel=0.01)
    assert found["throughput_tok_s"] == pytest.approx(mean_tokens * found["request_rate_rps"])


@pytest.mark.parametrize("prompts_first", [False, True])
def test_a_short_simulation_of_users_has_the_ttft_of_a_long_one(prompts_first: bool) -> None:
    n = 50_000
    stream = RequestStream.of_users(128, np.full(n, 1000), np.full(n, 200), 0)
    scheduler = Scheduler(1_000_000, prompts_first=prompts_first)
    law = StepLaw(10, 0, 0.05, 1e-5, 0.05, 0)
    short_s, long_s = (
        np.nanmean(result.ttft_s[result.is_counted])
        for result in (
            simulate_closed(128, stream, scheduler, law, duration_s=duration_s)
            for duration_s in (10.0, 400.0)
        )
    )
    # All prompts at once would take 6.4 s.
    assert short_s == pytest.approx(long_s, rel=0.2)


def test_equal_requests_of_users_differ_by_a_ninth_and_none_is_longer() -> None:
    n = 10_000
    stream = RequestStream.of_users(1, np.full(n, 180), np.full(n, 90), 0)
    outputs = stream.output_tokens[1:]
    assert set(outputs) == set(range(80, 101))
    assert (stream.input_tokens[1:] + outputs == 270).all()
    assert outputs.mean() == pytest.approx(90, rel=0.01)
    others = RequestStream.of_users(1, np.arange(1, n + 1), np.full(n, 90), 0)
    assert (others.input_tokens == np.arange(1, n + 1)).all()


def test_answers_amid_which_users_are_met_are_not_counted() -> None:
    n = 400
    stream = RequestStream.of_users(4, np.full(n, 50), np.full(n, 20), 0)
    result = simulate_closed(4, stream, Scheduler(100_000), LAW, duration_s=2.0)
    assert not result.is_counted[:4].any() and result.is_counted[4:].all()
    assert summarise(result)["n_requests"] == len(result.is_counted) - 4
    short = simulate_closed(4, stream, Scheduler(100_000), LAW, duration_s=1e-3)
    with pytest.raises(InputError, match="no request is counted"):
        summarise(short)
