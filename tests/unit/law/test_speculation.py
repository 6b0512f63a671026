"""Speculative decoding: what a step that verifies drafts takes, holds, emits and is worth."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from answers import recommended
from sextant.ask.case import read_case
from sextant.ask.question import Question
from sextant.base.errors import InputError
from sextant.facts.engine import memory_of
from sextant.facts.gpu import GPUS, GPUProfile, load_gpu, profile_of_id
from sextant.facts.llm import load_llm, served
from sextant.facts.slo import SLO
from sextant.facts.speculation import (
    METHODS,
    accepted_interval,
    coding_tokens,
    expected_acceptance,
    speculating,
)
from sextant.law.fact_rows import fact_rows, fill_undrafted
from sextant.law.posterior import columns_of
from sextant.law.terms import LAW, step_law
from sextant.points.frame import IDENTIFIERS, LENGTHS, FactTables
from sextant.recommend.ways import Way, can_run, speculation_way, ways_of
from sextant.workload.lengths import Length, RequestLengths
from support import ROOT

CONFIGS = ROOT / "resources" / "llms"
DENSE, MOE = "meta-llama__Llama-3.1-8B-Instruct", "openai__gpt-oss-120b"
LLMS = {name: load_llm(CONFIGS / f"{name}.json", "bfloat16") for name in (DENSE, MOE)}
H200 = GPUProfile("1xH200-141GB", load_gpu(GPUS, "H200-141GB"), 1, 1.0)


def law_of(llm, n_gpus: int = 1):
    """Return the law of a step at its prior, and the fact row."""
    profile = replace(H200, n_gpus=n_gpus)
    key = pd.DataFrame([("x", "p", 1)], columns=[*IDENTIFIERS, "users"])
    key = key.assign(engine="vllm", engine_version="0.19.0", **dict.fromkeys(LENGTHS, 1000.0))
    X = fact_rows(key, FactTables({"x": llm}, {"p": profile}))
    design = LAW.design(X)
    return step_law(design.parameters(design.mean), columns_of(X)), X


def tpot_ms(llm, users: int) -> float:
    return float(np.ravel(law_of(llm)[0].step_ms(0, users, users * 1500, 0))[0])


@pytest.mark.parametrize("llm_id", LLMS)
@pytest.mark.parametrize("users", [1, 16, 128])
@pytest.mark.parametrize(("n", "length"), [(1, 1.7), (3, 2.4), (5, 4.0)])
def test_tokens_come_as_fast_as_verified_steps_emit_them(llm_id, users, n, length):
    """Replayed step by step: each verifies all drafts and emits 1 to n + 1 tokens a request."""
    llm = LLMS[llm_id]
    drafted = speculating(llm, llm_id, "ngram", n, length)
    plain = law_of(llm)[0]
    # A token more to verify is one more in the products and in the choice of experts, but the
    # cache is read once; what a sequence costs the host is not multiplied.
    X = law_of(llm)[1]
    token_ms = X[["attention_ms", "dense_ms", "expert_ms", "states_ms"]].sum(axis=1)
    read = plain.weights_ms(users * (n + 1)) - plain.weights_ms(users)
    step_ms = plain.step_ms(0, users, users * 1500, 0) + read + users * n * float(token_ms.iloc[0])
    rng = np.random.default_rng(1)
    emitted = 1 + rng.binomial(n, (length - 1) / n, size=(4000, users))
    replayed = float(np.ravel(step_ms)[0]) * len(emitted) / emitted.sum(axis=0).mean()
    assert tpot_ms(drafted, users) == pytest.approx(replayed, rel=0.02)


def test_a_draft_that_is_never_accepted_only_costs_and_passes_of_a_model_cost_more():
    for llm_id, llm in LLMS.items():
        useless = speculating(llm, llm_id, "ngram", 3, 1.0001)
        assert tpot_ms(useless, 8) > tpot_ms(llm, 8)
        by = {
            method: tpot_ms(speculating(llm, llm_id, method, 3, 2.5), 8)
            for method in ("ngram", "eagle3", "mtp")
        }
        model = speculating(llm, llm_id, "draft-model", 3, 2.5, draft=LLMS[DENSE])
        assert by["ngram"] < min(by["eagle3"], by["mtp"]) < tpot_ms(model, 8)


def test_a_long_draft_of_a_mixture_is_worth_least_where_it_wakes_most_experts():
    drafted = speculating(LLMS[MOE], MOE, "eagle3", 7, 2.5)
    gains = [tpot_ms(LLMS[MOE], n) / tpot_ms(drafted, n) - 1 for n in (1, 8)]
    assert gains[1] < min(gains[0], -0.1)


def test_what_drafts_takes_memory_beside_the_llm():
    llm, devices = LLMS[DENSE], H200.devices
    plain = memory_of(llm, devices, engine="vllm")
    for method in ("mtp", "eagle3"):
        drafted = speculating(llm, DENSE, method, 2)
        memory = memory_of(drafted, devices, engine="vllm")
        weights = drafted.draft.weight_bytes
        assert 0.005 < weights / llm.weight_bytes < 0.1
        assert memory.weight_bytes == plain.weight_bytes + weights
        assert memory.token_bytes == pytest.approx(plain.token_bytes * 33 / 32)
    assert memory_of(speculating(llm, DENSE, "ngram", 2, 1.5), devices, engine="vllm") == plain
    # Served in another precision it still speculates; the LLM alone is as it was.
    assert served(drafted, "fp8").draft_tokens == 2
    assert all(getattr(drafted, name) == value for name, value in vars(llm).items())


def test_prompts_that_nobody_counted_accept_fewer_drafts_than_coding_the_longer_the_fewer():
    qwen = "Qwen__Qwen3.5-397B-A17B"
    assert coding_tokens(qwen, "mtp", 3) == pytest.approx([0.925, 1.715, 2.36])
    own, other = (expected_acceptance(name, "mtp", 3) for name in (qwen, MOE))
    # Each token of a draft is accepted 0.85 times as often, after those before it.
    assert own.tokens == pytest.approx(0.925 * 0.85 + 0.79 * 0.85**2 + 0.645 * 0.85**3)
    assert other.sd > own.sd > 0.12
    drafts = [speculating(LLMS[MOE], MOE, "eagle3", n) for n in range(1, 9)]
    lengths = np.array([drafted.accepted_length for drafted in drafts])
    assert (np.diff(lengths) > 0).all() and (np.diff(lengths, 2) < 0.01).all()
    coding = np.array(coding_tokens(MOE, "eagle3", 8))
    assert (np.diff((lengths - 1) / coding) < 0).all()
    assert (np.diff([drafted.accepted_sd for drafted in drafts]) > -0.01).all()
    assert drafts[7].accepted_sd > 3 * drafts[0].accepted_sd
    # Coding prompts, and the random ones of `_OTHER_PROMPTS`, lie within the 90% interval.
    for n, random in ((1, 1.65), (7, 2.5)):
        low, high = accepted_interval(drafts[n - 1])
        assert low < random < drafts[n - 1].accepted_length < 1 + coding[n - 1] < high


def test_an_answer_asks_for_the_counter_and_says_whose_prompts_were_counted():
    drafted = replace(ASKED, speculative="eagle3", draft_tokens=7)
    (note,) = read_case(drafted).assumed_notes()
    coding = 1 + coding_tokens(MOE, "eagle3", 7)[-1]
    assert f"Coding prompts emit {coding:.2f} (resources/speculation.csv), others fewer" in note
    assert "(--acceptance)" in note and "vllm:spec_decode_num_accepted_tokens_total" in note
    assert read_case(replace(drafted, acceptance=2.4)).assumed_notes() == []
    assert read_case(ASKED).assumed_notes() == []


def test_accepted_lengths_are_the_users_or_refused():
    by_user = speculating(LLMS[MOE], MOE, "ngram", 4, 0.25)
    assert (by_user.accepted_length, by_user.accepted_sd, by_user.draft) == (2.0, 0.0, None)
    assert speculating(LLMS[MOE], MOE, "ngram", 4, 2.0).accepted_length == 2.0
    for method, n, acceptance, field in (
        ("medusa", 1, 0.5, "--speculative"),
        ("ngram", 1, None, "--acceptance"),
        ("mtp", 2, 3.5, "--acceptance"),
        ("mtp", 0, None, "--draft-tokens"),
        ("mtp", 9, None, "--draft-tokens"),
        ("draft-model", 1, 0.5, "--draft-config"),
    ):
        with pytest.raises(InputError, match="Fix") as error:
            speculating(LLMS[MOE], MOE, method, n, acceptance)
        assert error.value.field == field
    assert set(METHODS) >= {"mtp", "eagle3", "ngram"}


def test_rows_without_drafts_stand_beside_others():
    drafted = law_of(speculating(LLMS[DENSE], DENSE, "eagle3", 2))[1]
    plain = law_of(LLMS[DENSE])[1]
    both = fill_undrafted(pd.concat([plain, drafted], ignore_index=True))
    design = LAW.design(both)
    found = LAW.predict_log(design.parameters(design.mean), columns_of(both))
    for place, X in enumerate((plain, drafted)):
        alone = LAW.design(X)
        expected = LAW.predict_log(alone.parameters(alone.mean), columns_of(X))
        assert found[place] == pytest.approx(expected[0])


ASKED = Question(
    SLO("asked", ttft_ms=2000, tpot_ms=30, percentile=50, users=4),
    llm_id=MOE,
    requests=RequestLengths(Length(2000, 2000), Length(500, 500)),
    gpu_profile_ids=("1xH200-141GB",),
    sources=("archive:inferencex",),
)


def test_an_answer_says_whether_speculation_pays_and_with_how_many_tokens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = recommended(replace(ASKED, speculative="eagle3"))
    gains = {row["draft_tokens"]: row for row in found["drafting"]}
    assert found["serving"]["draft_tokens"] == max(gains, key=lambda n: gains[n]["gain"])
    assert all(row["gain_lo"] <= row["gain"] <= row["gain_hi"] for row in gains.values())
    assert "Speculation pays at this load" in found["text"]
    assert "--acceptance" in found["text"]
    # Where one draft token is not enough for an answer more are tried.
    tight = replace(ASKED, slo=replace(ASKED.slo, tpot_ms=3.0), speculative="eagle3")
    assert recommended(tight)["serving"]["draft_tokens"] > 1
    # Rejected drafts only cost: the answer says so, and is less likely to hold.
    useless = replace(ASKED, speculative="eagle3", draft_tokens=5, acceptance=1.05)
    harmed, plain = recommended(useless), recommended(ASKED)
    assert "Speculation does not pay" in harmed["text"]
    assert harmed["drafting"][0]["probability_gain"] < 0.1
    assert harmed["latency"]["tpot_ms"] > plain["latency"]["tpot_ms"]
    itl = replace(ASKED.slo, tpot_ms=None, itl_ms=30.0)
    assert "ITL is the time per token" in recommended(replace(useless, slo=itl))["text"]
    with pytest.raises(InputError, match="CUDA graphs"):
        recommended(
            replace(
                ASKED,
                speculative="mtp",
                sources=("archive:llm-pilot",),
                llm_id="llama-7b",
                gpu_profile_ids=(),
            )
        )


def test_ways_are_those_that_a_question_leaves_open_and_a_gpu_has():
    names = [tuple(way.changes.items()) for way in ways_of(ASKED, LLMS[DENSE])]
    assert (("dtype", "fp8"),) in names and (("kv_dtype", "fp8"),) in names
    pinned = replace(ASKED, dtype="bf16", kv_dtype="bf16")
    assert ways_of(pinned, LLMS[DENSE]) == []
    assert not [w for w in ways_of(ASKED, served(LLMS[DENSE], "int4")) if "dtype" in w.changes]
    nvfp4 = Way("", {"dtype": "nvfp4"}, "")
    assert can_run(profile_of_id("1xB200-180GB"), nvfp4)
    assert not can_run(H200, nvfp4)
    assert can_run(H200, speculation_way(2))


def test_another_way_to_serve_is_offered_where_it_is_cheaper(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = replace(
        ASKED,
        llm_id=None,
        hf_config=CONFIGS / "meta-llama__Llama-3.3-70B-Instruct.json",
        gpu_profile_ids=("1xH100-80GB", "2xH100-80GB", "4xH100-80GB"),
    )
    found = recommended(asked)
    ways = {row["way"]: row for row in found["ways"]}
    assert found["gpu_profile_id"] != "1xH100-80GB"  # 141 GB of weights
    eight_bits = next(row for name, row in ways.items() if "--dtype fp8" in name)
    for row in found["ways"]:
        own, usual = (each["usd_per_hour"] for each in (row, found))
        is_likelier = row["probability_met"] > found["probability_met"]
        assert own < usual or (own == usual and is_likelier)
    assert "not judged" in eight_bits["risk"] and eight_bits["risk"] in found["text"]
    again = recommended(replace(asked, dtype="fp8"))
    assert again["usd_per_hour"] == eight_bits["usd_per_hour"]
