"""Servers that decode fewer requests at once than users send: answers, simulations and probes."""

import pytest

from answers import recommended
from sextant import simulate
from sextant.ask.question import Question
from sextant.facts.slo import SLO
from sextant.workload.lengths import Length, RequestLengths
from support import ROOT

LLM = ROOT / "resources" / "llms" / "meta-llama__Llama-3.1-8B-Instruct.json"
PROFILE = "1xH100-80GB"
LENGTHS = RequestLengths(Length(500, 500), Length(66, 66))
USERS = 64


def asked(**changes) -> dict:
    """Return the answer for users whose limits one replica keeps."""
    slo = SLO("loose", ttft_ms=1e5, tpot_ms=1e3, percentile=50, users=changes.pop("users", USERS))
    question = {"hf_config": LLM, "requests": LENGTHS, "gpu_profile_ids": (PROFILE,)}
    return recommended(Question(slo, **question, **changes))["latency"]


@pytest.mark.parametrize("slots", [1, 16])
def test_users_beyond_the_slots_wait_as_they_do_in_a_simulation(slots) -> None:
    answer = asked(max_num_seqs=slots)
    made = simulate(
        hf_config=LLM,
        gpu_profile=PROFILE,
        users=USERS,
        input_tokens=500,
        output_tokens=66,
        max_num_seqs=slots,
        draws=0,
    ).to_dict()
    assert answer["ttft_ms"] == pytest.approx(made["ttft_ms"]["p50"], rel=0.25)
    assert answer["tpot_ms"] == pytest.approx(made["tpot_ms"]["p50"], rel=0.25)
    assert answer["ttft_ms"] > 10 * asked()["ttft_ms"]


def test_a_probe_of_a_server_with_few_slots_says_nothing_of_longer_prompts(tmp_path) -> None:
    unmeasured = asked(users=8)
    queued = asked(max_num_seqs=16)
    probe = tmp_path / "probe.csv"
    probe.write_text(
        "gpu_profile_id,users,input_tokens,output_tokens,ttft_ms,tpot_ms\n"
        f"{PROFILE},{USERS},500,66,{queued['ttft_ms']},{queued['tpot_ms']}\n"
    )
    measured = asked(users=8, max_num_seqs=16, probe=probe)
    # All eight decode at once: what was measured is a queue of 64.
    for latency in ("ttft_ms", "tpot_ms"):
        assert measured[latency] == pytest.approx(unmeasured[latency], rel=0.3)


def test_users_wait_where_the_server_may_use_half_of_the_memory() -> None:
    plain, half = (asked(users=600, gpu_memory_utilization=share) for share in (None, 0.4))
    assert half["ttft_ms"] > 5 * plain["ttft_ms"]
