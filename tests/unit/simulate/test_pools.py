"""Prefill and decode on replicas of their own: what each request sees, and how many are needed."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from answers import recommended
from command import sextant
from plain_simulator import LAW, PLAN, run_plainly, sent
from sextant.answer.option import Option
from sextant.answer.pools import _cheapest_pair, pools_note
from sextant.ask.question import Question
from sextant.base.errors import InputError
from sextant.decide.latency_surface import ReplicaLaws
from sextant.decide.replica_sizing import Sizing
from sextant.decide.replicas import SimulatedReplica
from sextant.facts.gpu import profile_of_id
from sextant.facts.slo import SLO
from sextant.pages.words import shown_chance
from sextant.simulate.pools import (
    Handover,
    ReplicaPool,
    of_decode,
    simulate_apart,
    simulate_users_apart,
)
from sextant.simulate.server import OK
from sextant.workload.lengths import Length, RequestLengths
from sextant.workload.requests import RequestStream
from support import ROOT

HANDOVER = Handover(20.0, 0.001)


def pools(n_prefill: int, n_decode: int) -> tuple[ReplicaPool, ReplicaPool]:
    return ReplicaPool(PLAN, LAW, n_prefill), ReplicaPool(PLAN, LAW, n_decode)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 3))
def test_it_is_two_plain_simulations_one_after_the_other(seed, n_prefill, n_decode):
    requests = sent(60, 8.0, seed)
    made = simulate_apart(requests, *pools(n_prefill, n_decode), HANDOVER)
    alone = replace(requests, output_tokens=np.ones(60, int))
    first, _ = run_plainly(alone, PLAN, LAW, n_prefill)
    at_s = np.array([job.token_s[0] for job in first]) + HANDOVER.after_s(requests.input_tokens)
    order = np.argsort(at_s, kind="stable")
    lengths = requests.input_tokens[order], requests.output_tokens[order]
    second, _ = run_plainly(
        RequestStream.of(at_s[order], *lengths), *of_decode(PLAN, LAW), n_decode
    )
    ends = np.array([[job.token_s[0], job.token_s[-1]] for job in second]).T
    assert (made.status == OK).all()
    for found, end_s in zip((made.ttft_s, made.e2e_s), ends, strict=True):
        assert found[order] == pytest.approx(end_s - requests.arrival_s[order])


def test_prompts_do_not_delay_tokens_and_the_cache_has_to_travel():
    requests = sent(400, 6.0, 1)
    made = simulate_apart(requests, *pools(2, 2), HANDOVER)
    slow = simulate_apart(requests, *pools(2, 2), HANDOVER._replace(fixed_ms=520.0))
    assert np.median(slow.ttft_s - made.ttft_s) == pytest.approx(0.5, abs=0.02)
    # No gap between tokens has a prompt in it.
    most_ms = float(LAW.step_ms(0, 64, 64 * 1700, 0))
    assert made.gaps.quantile_s(1.0) * 1e3 < most_ms
    few = simulate_apart(requests, *pools(1, 2), HANDOVER)
    assert np.nanmean(few.ttft_s) > np.nanmean(made.ttft_s)
    # A client counts from its request on, whichever pool it waits for.
    hasty = ReplicaPool(replace(PLAN, timeout_s=0.3), LAW, 2)
    late = simulate_apart(requests, hasty, hasty, HANDOVER)
    assert 0 < (late.status == OK).sum() < requests.n
    assert np.nanmax(late.e2e_s) <= 0.3
    # What a replica refuses is refused, and nothing is lost.
    long = RequestStream.of(np.arange(3.0), [10, 50_000, 10], [5, 5, 5])
    kept = simulate_apart(long, *pools(1, 1), HANDOVER)
    assert (kept.status == OK).tolist() == [True, False, True]
    assert np.isnan(kept.e2e_s[1]) and len(kept.status) == 3


def test_users_send_when_they_are_answered():
    users, n = 5, 60
    requests = replace(sent(n, 1.0, 3), arrival_s=np.zeros(n))
    made = simulate_users_apart(users, requests, *pools(1, 1), HANDOVER)
    ends_s = np.sort(made.arrival_s + made.e2e_s)
    # All but the first arrivals are answers of before, and never more than the users wait.
    nearest_s = np.abs(made.arrival_s[users:, None] - ends_s[None]).min(axis=1)
    assert nearest_s.max() < 0.05
    waiting = [np.sum((made.arrival_s <= t) & (made.arrival_s + made.e2e_s > t)) for t in ends_s]
    assert max(waiting) <= users


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=20, max_size=20))
def test_the_cheapest_pair_is_that_of_all_pairs(needs):
    profile = profile_of_id("1xH100-80GB")
    laws = ReplicaLaws(PLAN, np.tile(LAW.array(), (21, 1)))
    servers = [
        SimulatedReplica(replace(profile, usd_per_hour=usd), laws, lambda *_: None)
        for usd in (3.0, 5.0)
    ]
    first, second = (
        Sizing(server, "meets", loads=np.array(side, float))
        for server, side in zip(servers, zip(*needs, strict=True), strict=True)
    )
    hopeless = Sizing(first.server, "too_slow")
    assert _cheapest_pair(hopeless, second, 0.8, 0.0) is None
    found = _cheapest_pair(first, second, 0.8, 0.0)
    possible = [
        3.0 * a + 5.0 * b
        for a in range(1, 7)
        for b in range(1, 7)
        if sum(x <= a and y <= b for x, y in needs) >= 0.8 * 20
    ]
    assert found is not None and found.usd_per_hour == pytest.approx(min(possible))
    counts = found.prefill.replicas, found.decode.replicas
    n_met = sum(x <= counts[0] and y <= counts[1] for x, y in needs)
    assert found.probability_met == pytest.approx(n_met / 20)


ASKED = Question(
    SLO("asked", ttft_ms=2000, tpot_ms=15, percentile=95, request_rate_rps=6),
    llm_id="openai__gpt-oss-120b",
    requests=RequestLengths(Length(5000, 5000), Length(250, 250)),
    gpu_profile_ids=("1xH200-141GB", "2xH200-141GB"),
    sources=("archive:inferencex",),
    is_disaggregated=True,
)


def test_an_answer_compares_both_ways_at_the_same_load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = recommended(ASKED)
    pools = found["disaggregated"]
    usd = {"1xH200-141GB": 4.59, "2xH200-141GB": 9.18}
    of = [pools[name] for name in ("prefill", "decode")]
    price = sum(each["replicas"] * usd[each["gpu_profile_id"]] for each in of)
    assert pools["usd_per_hour"] == pytest.approx(price)
    assert pools["probability_met"] >= 0.9 and pools["handover_ms"] > 100
    both = pools, found
    apart, usual = ((it["usd_per_hour"], -shown_chance(it["probability_met"])) for it in both)
    assert ("that pays" in found["text"]) == (apart < usual)
    for rented in of if apart < usual else [found]:
        where = f"A replica on {rented['gpu_profile_id']}: tensor parallel"
        assert f"{where} {rented['tensor_parallel']}, KV cache for" in found["text"]
    assert all(int(each["gpu_profile_id"][0]) == each["tensor_parallel"] for each in of)
    # Little traffic with loose limits needs one replica, not two.
    loose = SLO("asked", ttft_ms=5000, tpot_ms=100, percentile=95, request_rate_rps=0.5)
    assert "that does not pay" in recommended(replace(ASKED, slo=loose))["text"]
    assert "no numbers" in pools_note(None, Option())
    for slo, problem in (
        (replace(loose, tpot_ms=None, e2e_ms=9000.0), "a limit on the first token"),
        (SLO("users", ttft_ms=1000, tpot_ms=50, percentile=50, users=8), "requests that arrive"),
    ):
        with pytest.raises(InputError, match=problem):
            recommended(replace(ASKED, slo=slo))


DECODE = ("--decode-replicas", 1, "--decode-gpu-profile")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (("--decode-replicas", 1, "--router", "prefix"), "--router"),
        (("--decode-replicas", 1, "--unique-prompts", 5), "--unique-prompts"),
        (("--decode-replicas", 1, "--users", 4, "--warmup", "5s"), "--warmup"),
        (("--decode-replicas", 1, "--users", 4, "--duration", "5min"), "--duration"),
        (("--decode-gpu-profile", "1xH200-141GB"), "--decode-gpu-profile"),
        ((*DECODE, "1xL4-24GB"), "--gpu-profile, --decode-gpu-profile"),
        ((*DECODE, "1xB200-180GB"), "--decode-gpu-profile"),
    ],
)
def test_what_two_pools_do_not_do_is_refused(options, field):
    load = () if "--users" in options else ("--request-rate", 1, "--duration", "1min")
    lengths = ("--input-tokens", 500, "--output-tokens", 50)
    asked = ("--llm", "openai__gpt-oss-120b", "--gpu-profile", "1xH200-141GB")
    with pytest.raises(InputError) as error:
        sextant("simulate", *asked, *lengths, *load, *options)
    assert error.value.field == field


def test_a_deployment_of_two_pools_is_simulated_for_arrivals_and_users():
    asked = ("--llm", "openai__gpt-oss-120b", "--gpu-profile", "1xH200-141GB", "--draws", 0)
    lengths = ("--input-tokens", 2000, "--output-tokens", 200, "--decode-replicas", 1)
    rate = sextant("simulate", *asked, *lengths, "--request-rate", 2, "--duration", "1min")
    assert "1 × 1xH200-141GB for prefill and 1 × 1xH200-141GB for decode" in rate
    users = sextant("simulate", *asked, *lengths, "--users", 4, "--speculative", "mtp")
    assert "4 users" in users and "ITL is the time per token" in users


def test_capacity_sizes_pools_that_keep_the_limits_when_simulated(tmp_path):
    lengths = ("--input-tokens", 5000, "--output-tokens", 250)
    load = ("--llm", "openai__gpt-oss-120b", *lengths, "--request-rate", 6, "--duration", "5min")
    limits = ("--ttft-ms", "p95:2000", "--tpot-ms", "p95:15", "--gpu-profiles", "1xH200-141GB")
    asked = ("capacity", *load, *limits, "--draws", 0, "--disaggregated")
    answer = json.loads(sextant(*asked, "--format", "json"))
    pools = answer["disaggregated"]
    counts = [pools[name]["replicas"] for name in ("prefill", "decode")]
    assert pools["usd_per_hour"] == pytest.approx(4.59 * sum(counts))
    assert any("Prefill and decode apart" in text for text in answer["warnings"])
    of = ("--gpu-profile", "1xH200-141GB", "--replicas", counts[0], "--decode-replicas", counts[1])
    made = json.loads(sextant("simulate", *load, *of, "--draws", 0, "--format", "json"))
    assert made["ttft_ms"]["p95"] <= 2000 and made["tpot_ms"]["p95"] <= 15
    trace = tmp_path / "agents.parquet"
    sample = ROOT / "resources" / "traces" / "sessions-sample.jsonl"
    sextant("ingest", sample, "--format", "kv-cache-tester", "--out", trace)
    turns = ("--trace", trace, "--sessions", "trace", "--llm", "openai__gpt-oss-120b")
    with pytest.raises(InputError, match="turns that wait"):
        sextant("capacity", *turns, *limits, "--draws", 0, "--disaggregated")
