"""What runs, right-sized: servers of known law, of which only metrics are read."""

import csv
import json

import numpy as np
import pytest

import sextant
from html_page import figure_texts
from served_metrics import Server, matrix, simulated, slower_law
from sextant.base.errors import InputError
from sextant.rightsize.question import Deployed
from support import ROOT

LLM = ROOT / "resources" / "llms" / "meta-llama__Llama-3.1-8B-Instruct.json"
OTHER = ROOT / "resources" / "llms" / "meta-llama__Llama-3.1-70B-Instruct.json"
PROFILE = "1xH100-80GB"
REPLICAS = 3
RATES = (6.0, 18.0, 30.0)
"""Requests a second, for `PHASE_S` each."""
PHASE_S = 300.0
SLOWER = 1.4
ASKED = {
    "hf_config": LLM,
    "ttft_ms": "p95:500",
    "itl_ms": 13,
    "gpu_profiles": f"{PROFILE},1xH200-141GB",
}


@pytest.fixture(scope="module")
def law():
    """The scheduler and the true law of a replica: the likeliest one, but slower."""
    return slower_law(LLM, PROFILE, SLOWER)


@pytest.fixture(scope="module")
def metrics(law, tmp_path_factory):
    """A range query of the three servers, read each 15 s."""
    served = []
    for phase, rate_rps in enumerate(RATES):
        rows = simulated(rate_rps, PHASE_S, REPLICAS, *law, seed=phase)
        served += [(end_s + phase * PHASE_S, *row) for end_s, *row in rows]
    texts = []
    for at_s in np.arange(0, len(RATES) * PHASE_S + 1, 15.0):
        text = ""
        for number in range(REPLICAS):
            server = Server("vllm", "llama-8b", extra={"instance": f"pod-{number}:8000"})
            for index, (end_s, inputs, outputs, ttft_s, e2e_s) in enumerate(served):
                if index % REPLICAS != number:
                    continue
                if end_s <= at_s:
                    server.serve(inputs, outputs, ttft_s, e2e_s)
                elif end_s - e2e_s <= at_s:
                    server.running += 1
            text += server.text()
        texts.append((at_s, text))
    path = tmp_path_factory.mktemp("metrics") / "range.json"
    path.write_text(json.dumps(matrix(texts)))
    return path


@pytest.fixture(scope="module")
def trace(metrics):
    out = metrics.parent / "trace.parquet"
    sextant.ingest([metrics], format="prometheus", out=out)
    return out


@pytest.fixture(scope="module")
def answer(trace):
    return sextant.rightsize(
        trace=trace,
        deployed=f"{REPLICAS}x{PROFILE}",
        probe_out=trace.parent / "probe.csv",
        **ASKED,
    )


def test_calibrated_the_law_gives_what_was_observed(answer) -> None:
    loads = answer.result.present.loads
    assert len(loads) == len(RATES)
    for load, rate_rps in zip(loads, RATES, strict=True):
        assert load.rate_rps == pytest.approx(rate_rps, rel=0.15)
        means = {it.metric: it for it in load.comparisons if it.percentile is None}
        assert set(means) == {"ttft", "itl", "e2e"}
        itl = means["itl"]
        assert itl.calibrated.median_ms == pytest.approx(itl.observed_ms, rel=0.1)
        off = abs(np.log(itl.observed_ms / itl.uncalibrated.median_ms))
        assert abs(np.log(itl.observed_ms / itl.calibrated.median_ms)) < off
        spread = [it.high_ms / it.low_ms for it in (itl.calibrated, itl.uncalibrated)]
        assert spread[0] < spread[1]


def test_percentiles_of_the_limits_stand_beside_their_buckets(answer) -> None:
    busiest = answer.result.present.loads[-1]
    (ttft,) = (it for it in busiest.comparisons if it.metric == "ttft" and it.percentile == 95)
    assert ttft.observed_low_ms <= ttft.observed_ms <= ttft.observed_high_ms
    assert ttft.limit_ms == 500
    assert ttft.calibrated.median_ms < np.inf


def test_requests_in_flight_as_read_agree_with_littles_law(answer) -> None:
    for load in answer.result.present.loads:
        assert load.running == pytest.approx(load.in_flight, rel=0.25)
    assert not any("Little" in doubt for doubt in answer.result.doubts)


def test_the_replicas_are_those_of_recommend_and_capacity(answer, trace) -> None:
    facts = answer.to_dict()
    same = {**ASKED, "trace": trace}
    for name, probe in (("calibrated", trace.parent / "probe.csv"), ("uncalibrated", None)):
        recommended = sextant.recommend(probe=probe, **same)
        by_profile = {it["gpu_profile_id"]: it for it in recommended.to_dict()["alternatives"]}
        for outcome in facts["alternatives"]:
            alternative = by_profile[outcome["gpu_profile_id"]]
            for key in ("replicas", "usd_per_hour", "probability_met"):
                assert outcome[name][key] == alternative[key]
        if probe is not None:
            assert facts["replicas"] == recommended.to_dict()["replicas"]
            assert facts["gpu_profile_id"] == recommended.to_dict()["gpu_profile_id"]


def test_the_saving_is_the_difference_of_the_prices_for_a_month(answer) -> None:
    facts = answer.to_dict()
    replica_usd = next(
        it["calibrated"]["usd_per_hour"] / it["calibrated"]["replicas"]
        for it in facts["alternatives"]
        if it["gpu_profile_id"] == PROFILE
    )
    now = REPLICAS * replica_usd
    assert facts["present"]["usd_per_hour"] == pytest.approx(now)
    assert facts["usd_per_month_saved"] == pytest.approx(730 * (now - facts["usd_per_hour"]))


def test_the_calibrated_replicas_are_enough_by_the_true_law(answer, law) -> None:
    """Simulate the replicas of the answer, and one fewer, by the law that nobody was told."""
    needed = answer.result.same_profile.calibrated.replicas
    assert needed is not None

    def mean_gap_ms(replicas: int) -> float:
        rows = simulated(RATES[-1], 600.0, replicas, *law, seed=9)
        return 1e3 * float(np.median([(e2e - ttft) / (n - 1) for _, _, n, ttft, e2e in rows]))

    assert mean_gap_ms(needed) <= ASKED["itl_ms"] * 1.02
    if needed > 1:
        assert mean_gap_ms(needed - 1) > ASKED["itl_ms"] * 0.9


@pytest.mark.slow
def test_hours_beyond_what_the_deployment_bears_are_named(trace) -> None:
    # Calibrated, one server has a median gap of 6 ms at the first rate and of 12 ms at the last.
    asked = ASKED | {"gpu_profiles": PROFILE, "itl_ms": 8.5}
    answer = sextant.rightsize(trace=trace, deployed=f"1x{PROFILE}", **asked)
    present = answer.result.present
    too_small = {hour.start_s for hour in present.hours_too_small}
    assert max(hour.start_s for hour in present.hours) in too_small
    assert 0.0 not in too_small
    # Three servers were read, one is said to be deployed.
    assert any("Metrics of 3 engines" in doubt for doubt in answer.result.doubts)


@pytest.mark.slow
def test_metrics_of_another_llm_are_doubted(trace) -> None:
    answer = sextant.rightsize(
        trace=trace,
        deployed=f"{REPLICAS}x4xH100-80GB",
        **ASKED | {"hf_config": OTHER, "gpu_profiles": "4xH100-80GB", "itl_ms": 50},
    )
    (doubt, *_) = answer.result.doubts
    assert "far outside" in doubt
    assert "Are these the metrics of meta-llama__Llama-3.1-70B-Instruct" in doubt
    assert "The servers call it llama-8b" in doubt
    assert str(answer).splitlines()[1] == doubt


def test_the_text_has_everything_and_the_page_is_whole(answer) -> None:
    text = str(answer)
    for part in (
        f"{REPLICAS} × {PROFILE} = ",
        "Calibrated: it keeps the SLO",
        "Uncalibrated it would be",
        "Observed beside predicted at",
        "mean ITL",
        "What would do:",
        "by Little's law",
        "too small",
    ):
        assert part in text
    page = answer.to_html()
    assert "All hours" in page
    drawn = {*figure_texts(page)}
    assert {
        "Requests/s",
        "limit",
        "Probability",
        "calibrated",
    } <= drawn and " observed at p" in page
    json.dumps(answer.to_dict(), allow_nan=False)


def test_the_probe_has_a_row_per_load_with_the_rate_of_a_replica(answer, trace) -> None:
    with (trace.parent / "probe.csv").open() as file:
        rows = [*csv.DictReader(file)]
    assert len(rows) == len(RATES)
    for row, rate_rps in zip(rows, RATES, strict=True):
        assert row["gpu_profile_id"] == PROFILE
        assert float(row["request_rate_rps"]) == pytest.approx(rate_rps / REPLICAS, rel=0.15)


@pytest.mark.parametrize("text", ["H100", "0x1xH100-80GB", "8", "8xH100-80GB x", "-1x1xH100-80GB"])
def test_a_deployment_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="8x1xH100-80GB"):
        Deployed.parse(text)


def test_a_limit_that_a_request_alone_breaks_is_kept_with_no_chance(trace) -> None:
    asked = ASKED | {"ttft_ms": "p95:0.01"}
    facts = sextant.rightsize(trace=trace, deployed=f"2x{PROFILE}", **asked).to_dict()
    assert facts["present"]["probability_met"] < 0.01
    assert "probability unknown" not in facts["text"]


def test_an_unknown_gpu_and_one_that_is_too_small_are_said(trace) -> None:
    large = ASKED | {"hf_config": OTHER, "gpu_profiles": "4xH100-80GB"}
    for profile, said in (("1xFOO-80GB", "unknown GPU profile"), (PROFILE, "cannot serve")):
        with pytest.raises(InputError, match=said) as caught:
            sextant.rightsize(trace=trace, deployed=f"2x{profile}", **large)
        assert caught.value.field == "deployed"


def test_a_deployment_is_replicas_of_a_gpu_profile() -> None:
    assert Deployed.parse("8x2xH100-80GB") == (8, "2xH100-80GB")
    assert Deployed.parse("12 × 4xL4-24GB") == (12, "4xL4-24GB")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "one observation is needed"),
        ({"trace": "t.parquet", "metrics": ["m.txt"]}, "one observation is needed"),
        ({"trace": "no.parquet"}, "no such file"),
        ({"trace": "no.parquet", "last": "1h"}, "no metrics are read"),
        ({"trace": "no.parquet", "probe": "p.csv"}, "no such keyword.*use probe_out"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, said) -> None:
    with pytest.raises(InputError, match=said):
        sextant.rightsize(deployed=f"1x{PROFILE}", **ASKED, **options)


def test_servers_that_are_behind_calibrate_nothing_and_all_that_came_counts(tmp_path) -> None:
    """One server, of which 20 requests a second are answered while 50 come."""
    texts = []
    server = Server("vllm", "llama-8b")
    for minute in range(6):
        texts.append((60.0 * minute, server.text()))
        for number in range(1200):
            server.serve(500 + number % 100, 150 + number % 50, 30.0 * minute, 40.0 * minute)
        server.running, server.waiting = 200, 1800 * (minute + 1) - 200
    path = tmp_path / "behind.json"
    path.write_text(json.dumps(matrix(texts)))
    answer = sextant.rightsize(
        metrics=[path],
        deployed=f"1x{PROFILE}",
        **ASKED | {"gpu_profiles": PROFILE},
    )
    assert answer.result.requests.rate_rps == pytest.approx(50, rel=0.05)
    assert answer.result.present.loads == []
    assert "the servers were behind" in answer.result.doubts[0]
    assert "Predicted: it keeps the SLO" in str(answer)
    assert answer.result.same_profile.calibrated == answer.result.same_profile.uncalibrated
    assert answer.result.same_profile.calibrated.replicas > 1
