"""A percentile that was not measured is called estimated, and the answer says from what."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from points_folder import write_points_folder
from sextant.ask.case import read_case
from sextant.ask.forecast import fit_predictor, make_predictor
from sextant.ask.question import Question
from sextant.facts.slo import SLO
from sextant.law.calibration import Calibration
from sextant.pages.blocks import as_text
from sextant.points.folder import load_folder
from sextant.points.frame import judged
from sextant.recommend.document import recommendation_document
from sextant.recommend.explain import explain_llm, explanation_document
from sextant.recommend.options import far_measurements
from sextant.recommend.recommend import recommend_llm
from sextant.workload.lengths import Length, RequestLengths

LLM = "meta-llama__Llama-3.1-8B-Instruct"
SLO_P95 = SLO("asked", ttft_ms=4000, tpot_ms=100, percentile=95, users=16)


@pytest.fixture
def folder(tmp_path):
    """Write one point: TTFT and TPOT far above the law, as medians or at the 95th percentile."""

    def write(statistic: str):
        point = {"llm_id": LLM, "gpu_profile_id": "1xH100-80GB", "users": 16}
        point |= {"input_tokens": 1000, "output_tokens": 200}
        point |= {f"{statistic}_ttft_ms": 1310, f"{statistic}_tpot_ms": 52}
        return write_points_folder(
            tmp_path,
            [LLM],
            {"1xH100-80GB": 3.0},
            pd.DataFrame([point]),
            statistic="mean" if statistic == "mean" else "median",
            defaults={"engine": "vllm", "engine_version": "0.19.0", "precision": "bf16"},
        )

    return write


def asked(folder, **changes) -> Question:
    # Requests a little longer than the measured ones: the answer is predicted, through the point.
    requests = RequestLengths(Length(1050, 1050), Length(200, 200))
    sources = (str(folder), "archive:nvidia-perf")
    known = {"llm_id": LLM, "sources": sources, "gpu_profile_ids": ("1xH100-80GB",)}
    known |= {"engine": "vllm"}
    return replace(Question(SLO_P95, requests=requests, **known), **changes)


def calibrated(question: Question) -> Calibration:
    """Return the LLM's points at the asked percentiles, and draws of a law far from them."""
    case = read_case(question, need_prices=False)
    fitted = fit_predictor(make_predictor(question, case.gpu_profiles), case, SLO_P95)
    points = fitted.forecast(case, SLO_P95).calibration.points
    draws = np.random.default_rng(1).normal(0, 0.1, (200, len(points), 2))
    return Calibration(points, np.exp(draws), 0)


def told(question: Question) -> str:
    """Return what the answer says of measurements far from the law."""
    answer = replace(
        recommend_llm(question), contradictions=far_measurements(calibrated(question), SLO_P95)
    )
    return as_text(recommendation_document(answer))


def test_a_percentile_that_follows_from_a_median_is_called_estimated(folder) -> None:
    question = asked(folder("median"))
    far = {
        it.contradiction.latency: it.to_dict()
        for it in far_measurements(calibrated(question), SLO_P95)
    }
    assert far["nttft"]["basis"] == far["itl"]["basis"] == "median"
    assert far["nttft"]["basis_ms"] == 1310 and far["itl"]["basis_ms"] == 52
    assert far["nttft"]["measured_ms"] * 1000 > 1.2 * 1310
    text = told(question)
    assert "Estimated p95 TTFT of" in text and "from a measured median of 1,310 ms" in text
    assert "from a measured median of 52 ms" in text
    assert "Measured TTFT" not in text and "Measured TPOT" not in text


def test_a_percentile_that_was_measured_is_called_measured(folder) -> None:
    text = told(asked(folder("p95")))
    assert "Measured TPOT of 52 ms on 1xH100-80GB with 16 users" in text
    assert "Estimated p95" not in text


def test_a_probe_is_taken_as_measured_at_the_percentile_that_is_asked_for(folder, tmp_path) -> None:
    probe = tmp_path / "probe.csv"
    probe.write_text("gpu_profile_id,users,ttft_ms,tpot_ms\n1xH100-80GB,8,1310,52\n")
    far = far_measurements(calibrated(asked(folder("median"), probe=probe)), SLO_P95)
    assert {it.basis for it in far if it.contradiction.users == 8} == {None}
    assert {it.basis for it in far if it.contradiction.users == 16} == {"median"}


def test_what_follows_from_a_measured_e2e_is_not_called_measured(folder, tmp_path) -> None:
    probe = tmp_path / "probe.csv"
    probe.write_text("gpu_profile_id,users,e2e_ms\n1xH100-80GB,8,9000\n")
    far = far_measurements(calibrated(asked(folder("p95"), probe=probe)), SLO_P95)
    of_probe = {it.metric: it for it in far if it.contradiction.users == 8}
    assert {(it.basis, it.basis_ms) for it in of_probe.values()} == {("E2E", 9000.0)}
    assert of_probe and {it.basis for it in far if it.contradiction.users == 16} == {None}


def test_a_measured_tpot_is_called_so_beside_a_limit_on_itl(folder, tmp_path) -> None:
    probe = tmp_path / "probe.csv"
    probe.write_text("gpu_profile_id,users,tpot_ms\n1xH100-80GB,8,90\n")
    question = asked(folder("p95"), probe=probe)
    slo = replace(SLO_P95, itl_ms=40.0, itl_percentile=95, tpot_ms=None, tpot_percentile=None)
    far = far_measurements(calibrated(question), slo)
    assert {it.metric for it in far if it.contradiction.users == 8} == {"tpot"}


def test_an_explained_percentile_says_what_it_is_estimated_from(folder) -> None:
    found = explain_llm(asked(folder("median")), "1xH100-80GB", 16)
    for basis, told in (
        ("median", "(estimated from the measured median: 910 ms)"),
        (None, "(measured: 910 ms)"),
    ):
        itl = replace(found.itl, measured_ms=910.0, basis=basis)
        assert told in as_text(explanation_document(replace(found, itl=itl)))


def test_the_statistic_that_an_estimate_rests_on_is_named(folder) -> None:
    for statistic in ("mean", "median"):
        row = judged(load_folder(folder(statistic)).points, SLO_P95).iloc[0]
        assert row["ttft_basis"] == row["itl_basis"] == statistic
        assert (row["ttft_basis_ms"], row["itl_basis_ms"]) == (1310, 52)
    near = judged(load_folder(folder("p90")).points, SLO_P95).iloc[0]
    assert near["ttft_basis"] == "p90"
    exact = judged(load_folder(folder("p95")).points, SLO_P95).iloc[0]
    assert exact["ttft_basis"] == "" and np.isnan(exact["ttft_basis_ms"])
