"""Engines started without their CUDA graphs: `--enforce-eager`."""

import json
from dataclasses import replace

import pytest

from command import sextant
from sextant.ask.case import read_case
from sextant.ask.forecast import _of_alike_servers, fit_medians
from sextant.ask.laws import candidate_laws
from sextant.ask.question import Question, check_question
from sextant.ask.scheduling import Settings
from sextant.base.errors import InputError
from sextant.facts.slo import SLO
from sextant.workload.lengths import Length, RequestLengths
from support import ROOT

LLM = ROOT / "resources" / "llms" / "Qwen__Qwen3-8B.json"
PROFILE = "1xH100-80GB"
LENGTHS = RequestLengths(Length(1024, 1024), Length(1024, 1024))
CHATS = SLO("chats", ttft_ms=1000.0, tpot_ms=50.0, percentile=50, users=100)
ASKED = Question(CHATS, hf_config=LLM, requests=LENGTHS, gpu_profile_ids=(PROFILE,))


def test_a_step_of_few_requests_waits_for_the_host_and_one_of_many_does_not() -> None:
    plain = read_case(ASKED, need_prices=False)
    told = read_case(replace(ASKED, enforce_eager=True), need_prices=False)
    model = fit_medians(plain)
    with_graphs, without = (
        candidate_laws(case, Settings(), 0, model).servers[PROFILE].law(0) for case in (plain, told)
    )
    assert with_graphs.host_ms == 0 < without.host_ms
    assert replace(without, host_ms=0.0) == with_graphs
    assert without.step_ms(0, 1, 1000, 0) > with_graphs.step_ms(0, 1, 1000, 0)
    long_ms = with_graphs.step_ms(8192, 0, 0, 0)
    assert without.step_ms(8192, 0, 0, 0) == pytest.approx(long_ms, rel=0.001)


def test_an_answer_says_that_graphs_are_left_out_and_that_nobody_measured_that() -> None:
    asked = ("--hf-config", LLM, "--gpu-profile", PROFILE, "--input-tokens", 1024)
    asked = (*asked, "--output-tokens", 1024, "--users-per-replica", 1)
    eager = json.loads(sextant("explain", *asked, "--enforce-eager", "--format", "json"))
    assert eager["serving"]["enforce_eager"]
    assert "without its CUDA graphs, where all were measured with them" in str(eager["warnings"])
    plain = json.loads(sextant("explain", *asked, "--format", "json"))
    assert eager["itl_ms"] > plain["itl_ms"]


def test_an_engine_without_graphs_has_none_to_leave_out() -> None:
    with pytest.raises(InputError, match="tgis has no CUDA graphs"):
        check_question(replace(ASKED, engine="tgis", enforce_eager=True))


def test_points_with_graphs_do_not_stand_for_an_engine_without() -> None:
    case = read_case(replace(ASKED, enforce_eager=True), need_prices=False)
    measured = case.source.characterization
    eager_points = measured.points.assign(cuda_graphs=False)
    n_alike = [
        len(_of_alike_servers(points, case, measured.profiles))
        for points in (measured.points, eager_points)
    ]
    assert n_alike[0] == 0 < n_alike[1]
