"""A load that was measured to break a limit is offered to no replica: users, and rates alike."""

from dataclasses import replace

import numpy as np
import pytest

from answers import recommended
from made_up_laws import (
    made_up_laws,
    made_up_server,
    sized_steadily,
    surface_of,
    target_of,
)
from sextant.ask.question import Question
from sextant.decide.latency_surface import BorneRates
from sextant.decide.missed_rates import RateMeasurements
from sextant.facts.slo import SLO
from sextant.workload.lengths import Length, RequestLengths
from support import ROOT

LLAMA = ROOT / "resources" / "llms" / "meta-llama__Llama-3.1-8B-Instruct.json"
REQUESTS = RequestLengths(Length(500, 500), Length(66, 66))
LIMITS = {"ttft_ms": 400.0, "tpot_ms": 40.0, "percentile": 50}
LAWS = made_up_laws(3, 50, 0.3)
TARGET = target_of(ttft=900.0, tpot=35.0)


@pytest.fixture(autouse=True)
def without_a_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "load", "words", "far"),
    [
        ("request_rate_rps", {"request_rate_rps": 24.0}, "6 requests/s", "at 6 requests/s"),
        ("users", {"users": 24}, "6 users", "with 6 users"),
    ],
)
def test_a_load_that_broke_a_limit_is_never_offered_and_said_so(
    tmp_path, column, load, words, far
) -> None:
    probe = tmp_path / "probe.csv"
    # By the law 6 a second are far from the limit: a jump that it does not know of.
    rows = "1xH100-80GB,4,90,14\n1xH100-80GB,6,500,15\n"
    probe.write_text(f"gpu_profile_id,{column},ttft_ms,tpot_ms\n{rows}")
    what = {"hf_config": LLAMA, "requests": REQUESTS, "gpu_profile_ids": ("1xH100-80GB",)}
    asked = Question(SLO("asked", **LIMITS, **load), **what, probe=probe, risk=0.1)
    answer = recommended(asked)
    assert answer["replicas"] > 4
    assert (
        f"Measured on 1xH100-80GB: {words} broke a limit (TTFT 500 ms), so no replica"
        in answer["text"]
    )
    assert f"Measured TTFT of 500 ms on 1xH100-80GB {far} is far from" in answer["text"]
    for row in answer["options"]:
        assert row["probability_met"] == 0 or 24 / row["replicas"] < 6
    looser = replace(asked, slo=replace(asked.slo, ttft_ms=600.0))
    assert "broke a limit" not in recommended(looser)["text"]


@pytest.mark.slow
def test_users_that_broke_a_limit_send_a_rate_that_is_offered_to_no_replica(tmp_path) -> None:
    probe = tmp_path / "probe.csv"
    rows = "1xH100-80GB,4,90,14\n1xH100-80GB,6,500,15\n"
    probe.write_text(f"gpu_profile_id,users,ttft_ms,tpot_ms\n{rows}")
    what = {"hf_config": LLAMA, "requests": REQUESTS, "gpu_profile_ids": ("1xH100-80GB",)}
    slo = SLO("asked", **LIMITS, request_rate_rps=24.0)
    asked = Question(slo, **what, probe=probe)
    answer = recommended(replace(asked, risk=0.4))
    # 6 users, each of whom gets an answer in 500 + 65 × 15 ms.
    broken_rps = 6 / (0.5 + 65 * 0.015)
    assert answer["replicas"] > 24 / broken_rps
    assert "6 users broke a limit (TTFT 500 ms)" in answer["text"]


def test_a_limit_that_the_median_keeps_is_said_to_be_kept_in_too_few_draws() -> None:
    what = {"hf_config": LLAMA, "requests": REQUESTS, "gpu_profile_ids": ("1xH100-80GB",)}
    slo = SLO("asked", **LIMITS | {"ttft_ms": 40.0}, request_rate_rps=24.0)
    unsure = recommended(Question(slo, **what, risk=0.02))
    assert unsure["replicas"] is None
    assert "TTFT keeps its limit in too few draws" in unsure["text"]


def test_of_each_limit_the_lowest_rate_that_broke_it_counts() -> None:
    rates_rps = np.array([2.0, 4.0, 8.0])
    latencies_ms = {"ttft": np.array([100, 950, 900.0]), "tpot": np.array([10, np.nan, 40.0])}
    measured = RateMeasurements(rates_rps, latencies_ms)
    most_rps = measured.most_rps_of(["ttft", "tpot"], [[90.0, 900.0, 1000.0], [35.0, 50.0], [1.0]])
    assert most_rps == pytest.approx([2.0, 4.0, np.inf, 8.0, np.inf, np.inf])
    assert most_rps[0] < 2 and most_rps[1] < 4 and most_rps[3] < 8


def test_no_draw_bears_a_rate_that_broke_a_limit() -> None:
    surface = surface_of({"a": made_up_server("a", 1.0, LAWS)})
    free = BorneRates(surface, LAWS, TARGET, 1.0).at(4.0)
    at_rps = float(np.median(free))
    latencies_ms = {"ttft": np.array([1000.0]), "tpot": np.array([np.nan])}
    laws = replace(LAWS, measured=RateMeasurements(np.array([at_rps]), latencies_ms))
    borne = BorneRates(surface, laws, TARGET, 1.0)
    assert (borne.at(4.0) < at_rps).all() and borne.at(4.0) == pytest.approx(
        np.minimum(free, at_rps), rel=0.01
    )
    # A looser limit was not broken.
    loose = target_of(ttft=1100.0, tpot=35.0)
    assert (borne.within(loose).at(4.0) > at_rps).any()
    rate_rps = 3 * at_rps
    (sizing,) = sized_steadily(
        {"a": made_up_server("a", 1.0, laws)}, rate_rps, TARGET, surface
    ).values()
    assert (rate_rps / sizing.needs < at_rps).all()


def test_traffic_that_is_simulated_is_not_offered_such_a_rate_either() -> None:
    # Percentiles of gaps above the median are simulated, draw by draw.
    target = target_of(itl=500.0)
    server = made_up_server("a", 1.0, LAWS)
    surface = surface_of({"a": server})
    measured = RateMeasurements(np.array([1.0]), {"itl": np.array([501.0])})
    capped = made_up_server("a", 1.0, replace(LAWS, measured=measured))
    free, kept = (
        sized_steadily({"a": each}, 2.0, target, surface)["a"].needs for each in (server, capped)
    )
    assert (free < 3).any() and (kept >= 3).all()
