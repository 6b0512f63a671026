"""Attention DP and expert parallelism: options of a question, and ways beside the others."""

import math
from dataclasses import replace

import pytest

from answers import recommended
from command import sextant
from sextant.ask.case import read_case
from sextant.ask.forecast import fit_medians
from sextant.ask.laws import candidate_laws
from sextant.ask.question import Question
from sextant.ask.scheduling import Settings
from sextant.base.errors import InputError
from sextant.facts.gpu import profile_of_id
from sextant.facts.llm import load_llm
from sextant.facts.slo import SLO
from sextant.recommend.ways import can_run, ways_of
from sextant.workload.lengths import Length, RequestLengths
from support import ROOT

LLMS = ROOT / "resources" / "llms"
MIXTURE, DENSE = LLMS / "deepseek-ai__DeepSeek-V3.1.json", LLMS / "Qwen__Qwen3-8B.json"
CHATS = SLO("chats", ttft_ms=8000.0, tpot_ms=60.0, percentile=95, users=400)
LENGTHS = RequestLengths(Length(4000, 4000), Length(1000, 1000))
WIDE, NARROW = "8xB200-180GB", "4xB300-288GB"
ASKED = Question(CHATS, hf_config=MIXTURE, requests=LENGTHS, gpu_profile_ids=(WIDE, NARROW))


def subject(**layout: float):
    case = read_case(replace(ASKED, **layout), need_prices=False)
    assert case.excluded is not None  # an error else
    return case


def test_mixtures_have_layouts_that_a_question_leaves_open():
    found = [way for way in ways_of(ASKED, load_llm(MIXTURE)) if "{n}" in way.name]
    assert len(found) == 2 and not any(
        "{n}" in each.name for each in ways_of(ASKED, load_llm(DENSE))
    )
    pinned = ways_of(replace(ASKED, data_parallel=1.0), load_llm(MIXTURE))
    assert not any("{n}" in each.name for each in pinned)
    assert can_run(profile_of_id("2xH200-141GB"), found[0])
    assert not can_run(profile_of_id("1xH200-141GB"), found[0])


def test_two_ways_go_together_if_they_change_other_things():
    ways = {way.name.split()[0]: way for way in ways_of(ASKED, load_llm(MIXTURE))}
    assert not ways["EP"].goes_with(ways["attention"])
    both = ways["INT4"].beside(next(w for w in ways.values() if "kv_dtype" in w.changes))
    assert both.changes == {"dtype": "int4", "kv_dtype": "fp8"}
    # An A100 multiplies 4-bit weights as 16-bit numbers, but has no 8-bit floating point.
    assert can_run(profile_of_id("1xA100-80GB"), ways["INT4"])
    assert not can_run(profile_of_id("1xA100-80GB"), both)


def test_memory_law_and_scheduler_follow_the_copies_of_attention():
    plain, copied = subject(), subject(data_parallel=math.inf)
    own, more = (each.memory(WIDE) for each in (plain, copied))
    # Each GPU has all of attention, and the latents of its own requests; shared out, each has all
    # of MLA's down-projections.
    copied_bytes = 7 * plain.llm.attention_weight_bytes
    added_bytes = more.weight_bytes - own.weight_bytes
    assert 0.85 * copied_bytes < added_bytes <= copied_bytes
    assert more.token_bytes == own.token_bytes / 8
    model = fit_medians(plain)
    (law, scheduler), (law_dp, scheduler_dp), (law_ep, _) = (
        (replica.law(0), replica.scheduler)
        for of in (plain, copied, subject(expert_parallel=math.inf))
        for replica in [candidate_laws(of, Settings(), 0, model).servers[WIDE]]
    )
    assert scheduler_dp.max_num_seqs == 8 * scheduler.max_num_seqs
    assert scheduler_dp.kv_tokens > 4 * scheduler.kv_tokens
    assert law_dp.kv_token_ms < law.kv_token_ms / 4
    assert law_dp.dense_ms > law.dense_ms and law_ep.expert_ms < law.expert_ms


def test_layouts_that_make_no_sense_are_refused():
    for options, problem in (
        ({"data_parallel": 4.0, "expert_parallel": 1.0}, "share experts out"),
        ({"data_parallel": 2.0, "hf_config": DENSE}, "no experts"),
        ({"data_parallel": 3.0}, "cannot be shared out in 3 parts"),
    ):
        with pytest.raises(InputError, match=problem):
            subject(**options)
    assert NARROW in subject(data_parallel=8.0).excluded
    for text in ("2,4", "al", "0", "2.5"):
        with pytest.raises(InputError, match="is not a number of GPUs"):
            of = ("--hf-config", MIXTURE, "--gpu-profile", WIDE, "--users-per-replica", 8)
            sextant("explain", *of, "--data-parallel", text)


def test_attention_dp_is_offered_where_it_is_cheaper_and_holds_when_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = replace(ASKED, sources=("archive:inferencex",))
    found = recommended(asked)
    row = next(row for row in found["ways"] if "--data-parallel all" in row["way"])
    n_gpus = row["gpu_profile_id"][0]
    assert f"attention DP {n_gpus}, EP {n_gpus} (" in row["way"]
    assert row["way"].startswith("NVFP4 weights (--dtype nvfp4), ")
    again = recommended(replace(asked, data_parallel=math.inf, dtype="nvfp4"))
    assert again["usd_per_hour"] == row["usd_per_hour"] < found["usd_per_hour"]
    assert again["serving"]["data_parallel"] == "all"
    assert "copies of attention on every GPU" in again["text"]


def test_an_answer_says_that_images_are_not_counted():
    name = "Qwen__Qwen3.5-397B-A17B"
    notes = read_case(replace(ASKED, hf_config=LLMS / f"{name}.json"), need_prices=False).notes
    assert any("Not counted: images" in each for each in notes)
    assert not any("Not counted" in each for each in read_case(ASKED, need_prices=False).notes)
