"""Measured points are judged as measured: each latency by itself, rates as they are, failures."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command import sextant
from points_folder import write_points_folder
from sextant.answer.option import Option
from sextant.decide.decision import measured_draws, with_probabilities
from sextant.decide.headroom import measure_headroom
from sextant.decide.sizing import candidates
from sextant.facts.gpu import profile_of_id
from sextant.facts.slo import METRICS, SLO
from sextant.points.frame import LATENCIES, complete, judged
from sextant.recommend.what_if import of_points, what_if
from sextant.report.answers import miss_words
from sextant.report.stored import StoredRecommendation
from support import ROOT

PROFILE = "1xH100-80GB"
PROFILES = {PROFILE: replace(profile_of_id(PROFILE), usd_per_hour=2.0)}
POINT = {
    "llm_id": "m", "gpu_profile_id": PROFILE, "users": 8, "request_rate_rps": 16.16,
    "input_tokens": 100.0, "output_tokens": 21.0, "median_ttft_ms": 30.0, "median_itl_ms": 22.5,
    "median_tpot_ms": 24.75, "median_e2e_ms": 500.0, "n_ok": 100, "n_failed": 0,
}  # fmt: skip


def points(*rows: dict) -> pd.DataFrame:
    return complete(pd.DataFrame([POINT | row for row in rows or ({},)]))


def asked(load: dict | None = None, **limits: float) -> SLO:
    ms = {f"{name}_ms": value for name, value in limits.items()}
    return SLO("s", percentile=50, **(load or {"users": 8}), **ms)


def status(rows: pd.DataFrame, slo: SLO) -> str:
    (row,) = candidates(judged(rows, slo), ["m"], PROFILES, slo).to_dict("records")
    return str(row["status"])


@pytest.mark.parametrize(
    ("metric", "own"),
    [("ttft", 30.0), ("nttft", 0.3), ("itl", 22.5), ("tpot", 24.75), ("e2e", 500)],
)
def test_each_latency_is_judged_by_its_own_column(metric, own) -> None:
    assert status(points(), asked(**{metric: own})) == "meets"
    assert status(points(), asked(**{metric: own * 0.999})) == "too_slow"
    slo = asked(**{metric: own})
    (limit,) = measure_headroom(judged(points(), slo), slo, 1, 2.0).limits
    assert limit.latency_ms == pytest.approx(own)


@pytest.mark.parametrize(
    ("metric", "lacks", "formula"),
    [
        ("tpot", ["median_tpot_ms"], 22.5),
        ("itl", ["median_itl_ms"], 24.75),
        ("e2e", ["median_e2e_ms"], 30 + 20 * 24.75),
        ("e2e", ["median_e2e_ms", "median_tpot_ms"], 30 + 20 * 22.5),
        ("nttft", [], 0.3),
        ("e2e", ["median_e2e_ms", "median_itl_ms", "median_tpot_ms"], np.nan),
        ("ttft", ["median_ttft_ms"], np.nan),
    ],
)
def test_what_a_source_lacks_is_derived_and_marked_or_not_known(metric, lacks, formula) -> None:
    frame = judged(points(dict.fromkeys(lacks)), asked(**{metric: 1e9}))
    assert frame[f"own_{metric}_ms"].to_numpy() == pytest.approx([formula], nan_ok=True)
    assert frame[f"{metric}_is_derived"].tolist() == [bool(np.isfinite(formula))]
    slo = asked(**{metric: 1e9})
    expected = "meets" if np.isfinite(formula) else "too_slow"
    assert status(points(dict.fromkeys(lacks)), slo) == expected


SURE = {"median_tpot_lo_ms": 24.7, "median_tpot_hi_ms": 24.8}


@pytest.mark.parametrize(
    ("n_ok", "n_failed", "max_failed", "is_met"),
    [(99, 1, None, True), (98, 2, None, False), (98, 2, 0.02, True), (1, 99, None, False),
     (100, 0, 0.0, True), (0, 9, None, False), (None, None, None, True)],
)  # fmt: skip
def test_a_load_at_which_too_many_requests_failed_does_not_meet_the_slo(
    n_ok, n_failed, max_failed, is_met
) -> None:
    slo = asked({"users": 8, "max_failed": max_failed}, tpot=25.0)
    frame = judged(points({"n_ok": n_ok, "n_failed": n_failed} | SURE), slo)
    found = candidates(frame, ["m"], PROFILES, slo)
    assert found["status"].tolist() == ["meets" if is_met else "fails"]
    (row,) = with_probabilities(found, measured_draws(frame, slo, 1), slo).to_dict("records")
    assert row["probability_met"] == 1 if is_met else np.isnan(row["probability_met"])
    page = what_if(of_points(frame, {PROFILE: 2.0}, slo), None)
    assert page["medians_ms"]["tpot"] == [[24.75 if is_met else 0]]
    answer = StoredRecommendation(
        *("measured", "s", "m", "measured", Option(), []),
        nearest_miss=None,
        does_not_fit=[],
        not_measured=[],
        fails=[PROFILE],
    )
    assert is_met or miss_words(answer) == f"more requests failed than may on {PROFILE}"


latency = st.one_of(st.none(), st.floats(0, 1e4), st.just(float("nan")), st.just(float("inf")))
columns = st.fixed_dictionaries({f"median_{name}": latency for name in LATENCIES})


@settings(deadline=None, max_examples=50)
@given(st.lists(columns, min_size=1, max_size=4), st.sampled_from(sorted(METRICS)), st.randoms())
def test_no_unknown_latency_meets_a_limit_and_the_order_of_rows_is_nothing(
    rows, metric, random
) -> None:
    named = [row | {"users": 2**place} for place, row in enumerate(rows)]
    slo = asked(**{metric: 1e9})
    frame = judged(points(*named), slo)
    found = candidates(frame, ["m"], PROFILES, slo)
    first = frame.iloc[0][f"own_{metric}_ms"]
    assert (found["status"].item() == "meets") == bool(0 < first <= 1e9)
    random.shuffle(named)
    again = candidates(judged(points(*named), slo), ["m"], PROFILES, slo)
    pd.testing.assert_frame_equal(again, found)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    llms = {"m": ROOT / "resources" / "llms" / "Qwen__Qwen3-8B.json"}
    worse = POINT | {"users": 32, "n_ok": 96, "n_failed": 1067}
    about = {"source": "mine", "statistic": "median", "lengths": "varying", "defaults": {}}
    points = pd.DataFrame([POINT, worse])
    return write_points_folder(tmp_path, llms, {PROFILE: 2}, points, **about)


def test_a_prediction_never_calls_a_load_met_that_was_measured_to_fail(folder) -> None:
    command = ("recommend", "--source", folder, "--source", "archive:inferencex", "--llm", "m")
    asked = ("--users", 32, "--input-tokens", 100, "--output-tokens", 21, "--tpot-ms", 1000)
    found = sextant(*command, *asked, "--gpu-profiles", PROFILE, "--format", "json")
    assert json.loads(found)["users_per_replica"] < 32


def test_an_answer_says_what_is_derived_and_how_many_failed(folder) -> None:
    command = ("recommend", "--source", folder, "--llm", "m", "--users", 32)
    text = sextant(*command, "--tpot-ms", 25, "--nttft-ms", 1)
    assert "m: 4 replicas × 1xH100-80GB = 8.00 USD/h (measured)" in text
    assert f"{PROFILE} with 32 users: 1,067 of 1,163 requests failed, more than the 1 % al" in text
    assert "nTTFT was not measured: it is derived from TTFT / input tokens." in text
    assert "TPOT 24.8 ms" in text and "TPOT was not" not in text
    assert "no GPU profile meets" in sextant(*command, "--tpot-ms", 23, exit_code=3)
    lax = json.loads(sextant(*command, "--tpot-ms", 25, "--max-failed", 0.95, "--format", "json"))
    assert lax["replicas"] == 1


def test_a_prediction_goes_through_the_tpot_that_was_measured_not_the_itl(folder) -> None:
    command = ("recommend", "--source", folder, "--source", "archive:inferencex", "--llm", "m")
    asked = ("--users", 8, "--input-tokens", 100, "--output-tokens", 21, "--gpu-profiles", PROFILE)
    for limit, measured_ms in (("tpot", 24.75), ("itl", 22.5)):
        found = json.loads(sextant(*command, *asked, f"--{limit}-ms", 1000, "--format", "json"))
        assert found["latency"][f"{limit}_ms"] == pytest.approx(measured_ms, rel=0.02)
