"""An LLM that the sources measured: users, rates and simulations rest on its measurements."""

from dataclasses import replace

import numpy as np
import pytest

from answers import recommended
from sextant.ask.case import Case, read_case
from sextant.ask.forecast import (
    MEDIANS,
    fit_medians,
    fit_predictor,
    make_predictor,
    own_source_points,
)
from sextant.ask.laws import candidate_laws
from sextant.ask.question import Question
from sextant.ask.scheduling import Settings
from sextant.facts.slo import SLO
from sextant.law.means import BatchLimits, MeanLoad, broadcast_laws, closed_loop
from sextant.simulate.server import NAMES
from sextant.workload.lengths import Length, RequestLengths
from support import ROOT

PROFILE = "4xH100-80GB"
LENGTHS = RequestLengths(Length(1024, 1024), Length(1024, 1024))
CHATS = SLO("chats", ttft_ms=2000.0, tpot_ms=40.0, percentile=50, users=1000)
MEASURED = Question(
    CHATS,
    hf_config=ROOT / "resources" / "llms" / "meta-llama__Llama-3.1-70B.json",
    dtype="fp8",
    requests=LENGTHS,
    gpu_profile_ids=(PROFILE,),
)


def case_of(question: Question) -> Case:
    return read_case(question, need_prices=False)


def itl_ms(case: Case, n_draws: int, users: list[float]) -> np.ndarray:
    """Return the ITL of users by the laws of a step, (1 + draws, users)."""
    laws = candidate_laws(case, Settings(), n_draws, fit_medians(case)).servers[PROFILE]
    load = MeanLoad(*case.lengths[0])
    limits = BatchLimits.of(laws.scheduler)
    return closed_loop(broadcast_laws(laws.terms), limits, load, np.array(users)).itl_ms


def test_laws_of_a_step_give_what_the_sources_measured() -> None:
    case = case_of(MEASURED)
    points = own_source_points(case, MEDIANS, case.source.characterization.profiles)
    measured = points[points["gpu_profile_id"] == PROFILE].set_index("users")["itl_ms"]
    users = [8, 16, 64]
    likeliest, *draws = itl_ms(case, 300, users)
    np.testing.assert_allclose(likeliest, measured.loc[users], rtol=0.1)
    low, high = np.quantile(draws, (0.05, 0.95), axis=0)
    # By the law alone the interval is 1.7 times as high as low.
    assert (low < measured.loc[users]).all() and (high < 1.25 * low).all()


def test_the_likeliest_law_does_not_depend_on_how_many_are_drawn() -> None:
    case = case_of(MEASURED)
    few, many = (itl_ms(case, n_draws, [1, 32, 128])[0] for n_draws in (0, 300))
    np.testing.assert_array_equal(few, many)


def test_users_and_the_rate_that_they_send_need_alike_replicas() -> None:
    asked = replace(MEASURED, risk=0.1)
    of_users = recommended(asked)
    rate_rps = of_users["headroom"]["requests_per_s"]
    at_rate = replace(CHATS, users=None, request_rate_rps=rate_rps)
    of_rate = recommended(replace(asked, slo=at_rate))
    # The law alone asks for three replicas more.
    assert of_users["replicas"] <= of_rate["replicas"] <= of_users["replicas"] + 1


@pytest.mark.parametrize("factor", [0.3, 4.0])
def test_a_probe_moves_gpus_that_the_sources_measured_the_way_it_moves_the_law(
    tmp_path, factor
) -> None:
    itl_untold, *_ = itl_ms(case_of(MEASURED), 0, [64])
    probe = tmp_path / "probe.csv"
    probe.write_text(
        "gpu_profile_id,users,input_tokens,output_tokens,ttft_ms,tpot_ms\n"
        f"8xH200-141GB,64,1024,1024,{factor * 150:g},{factor * 15:g}\n"
    )
    itl_told, *_ = itl_ms(case_of(replace(MEASURED, probe=probe)), 0, [64])
    # The source's own points there say how much of it holds.
    assert (itl_told > itl_untold).all() == (factor > 1)
    assert np.abs(np.log(itl_told / itl_untold)).max() < np.log(1.5)


def test_drafts_gain_on_a_measured_llm_what_they_gain_by_the_law() -> None:
    drafting = {"speculative": "eagle3", "draft_tokens": 2}
    plain, drafted = (
        itl_ms(case_of(replace(MEASURED, **changes)), 0, [16])[0] for changes in ({}, drafting)
    )
    unmeasured = replace(MEASURED, requests=RequestLengths(Length(2048, 2048), Length(512, 512)))
    plain_law, drafted_law = (
        itl_ms(case_of(replace(unmeasured, **changes)), 0, [16])[0] for changes in ({}, drafting)
    )
    assert drafted / plain == pytest.approx(drafted_law / plain_law, rel=0.1)


def test_lengths_beyond_the_measured_ones_widen_laws_as_they_widen_latencies(monkeypatch) -> None:
    question = replace(MEASURED, requests=RequestLengths(Length(32e3, 32e3), Length(1024, 1024)))
    case = case_of(question)
    model = fit_medians(case)
    assert case.widening_sd > 0.1
    wide = candidate_laws(case, Settings(), 200, model).servers[PROFILE].terms
    monkeypatch.setattr(Case, "widening_sd", 0.0)
    plain = candidate_laws(case_of(question), Settings(), 200, model).servers[PROFILE].terms

    np.testing.assert_array_equal(wide[0], plain[0])
    request_ms = NAMES.index("request_ms")
    factors = np.log(wide[1:, request_ms] / plain[1:, request_ms])
    assert factors.std() == pytest.approx(0.1 * np.log(32e3 / 8192), rel=0.15)
    shares = NAMES.index("expert_share")
    np.testing.assert_array_equal(wide[:, shares], plain[:, shares])


def test_a_prefix_cache_counts_for_users_of_a_measured_llm() -> None:
    asked = replace(MEASURED, requests=RequestLengths(Length(8192, 8192), Length(1024, 1024)))
    asked = replace(asked, slo=replace(CHATS, users=16))
    uncached, cached = (
        recommended(replace(asked, prefix_hit_rate=share))["latency"] for share in (0.0, 0.8)
    )
    # The sources measured without a cache: their latency is not that of prompts in the cache.
    assert cached["ttft_ms"] < 0.6 * uncached["ttft_ms"]


def test_points_that_cannot_be_say_nothing_of_the_llm_itself() -> None:
    llm_id = "nvidia__Llama-3.1-8B-Instruct-FP8"
    llm = ROOT / "resources" / "llms" / f"{llm_id}.json"
    question = replace(MEASURED, hf_config=llm, dtype=None, gpu_profile_ids=("1xH200-141GB",))
    case = case_of(question)
    points = case.source.characterization.points
    assert (points["llm_id"] == llm_id).any()
    assert own_source_points(case, MEDIANS, case.source.characterization.profiles).empty
    model = make_predictor(question, case.source.characterization.profiles)
    assert fit_predictor(model, case, CHATS).forecast(case, CHATS).calibration is None


def test_steps_are_no_shorter_for_more_users_where_fewer_ran_than_are_stated() -> None:
    # Points of 512 users were of 4 to 64 at once: TPOT fell to 5.6 ms, from 14.8 at 64 users.
    llm = ROOT / "resources" / "llms" / "openai__gpt-oss-120b.json"
    profile = "2xH100-80GB"
    case = case_of(replace(MEASURED, hf_config=llm, dtype=None, gpu_profile_ids=(profile,)))
    model = make_predictor(case.question, case.gpu_profiles)
    forecast = fit_predictor(model, case, CHATS).forecast(case, CHATS)
    rows = case.rows_at(forecast.model, [64, 128, 256, 512])
    itl_by_users = np.median(forecast.draw(rows).samples_ms[..., 1], axis=0)
    assert (np.diff(itl_by_users) > 0).all()


def test_points_of_servers_that_hold_more_than_the_asked_one_do_not_count() -> None:
    # It was measured in 4 bits on one GPU, which has no memory for a request in 8 bits.
    llm = ROOT / "resources" / "llms" / "MiniMaxAI__MiniMax-M2.5.json"
    asked = replace(MEASURED, hf_config=llm, dtype=None, gpu_profile_ids=())
    case = case_of(asked)
    measured = case.source.characterization.points.query("llm_id == @case.llm_id")
    points = own_source_points(case, MEDIANS, case.source.characterization.profiles)
    assert "1xB200-180GB" in {*measured["gpu_profile_id"]} - {*points["gpu_profile_id"]}
    assert recommended(asked)["replicas"]
