"""Questions in a person's units: load, lengths, limits; and what was measured of the LLM itself."""

import json
import re
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from answers import explained, recommended
from command import sextant
from points_folder import write_points_folder
from sextant.ask.candidates import find_candidates
from sextant.ask.case import Case
from sextant.ask.caveats import outside_of_measurements
from sextant.ask.question import Question
from sextant.ask.serving import find_llm
from sextant.ask.source import find_source, todays_sources
from sextant.base.errors import InputError
from sextant.decide.decision import loads, weigh
from sextant.facts.gpu import GPU, GPUProfile, profile_of_id
from sextant.facts.llm import served
from sextant.facts.slo import SLO
from sextant.law.calibration import Calibration
from sextant.predict.predictor import Draws
from sextant.recommend.options import nearest_measurements
from sextant.workload.length_options import parse_length, parse_lengths
from sextant.workload.lengths import Length, RequestLengths
from support import ROOT

MISTRAL = ROOT / "tests" / "hf_configs" / "mistral-7b" / "config.json"
LLAMA = ROOT / "resources" / "llms" / "meta-llama__Llama-3.1-8B-Instruct.json"
TODAY = RequestLengths(Length(1500, 1500), Length(250, 250))
LIMITS = SLO("asked", itl_ms=50.0, percentile=50, users=200)
# Qwen2.5-3B, by its published configuration.
QWEN = {"model_type": "qwen2", "hidden_size": 2048, "intermediate_size": 11008}
QWEN |= {"num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2}
QWEN |= {"vocab_size": 151936, "max_position_embeddings": 32768, "tie_word_embeddings": True}
QWEN |= {"torch_dtype": "bfloat16"}


@pytest.fixture(autouse=True)
def without_a_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_every_number_of_replicas_competes_at_the_load_that_each_gets() -> None:
    answer = recommended(Question(LIMITS, hf_config=MISTRAL, gpu_profile_ids=("1xA100-40GB",)))
    chances = {row["replicas"]: row["probability_met"] for row in answer["options"]}
    assert {4, 5, 6} <= set(chances)
    # 4 replicas get 50 users each, at which 44 ms are predicted; 7 were the answer before.
    assert chances[4] > 0.5 and answer["replicas"] < 7
    # A replica's users are judged as the next load of a fixed grid, never as fewer.
    assert 1 <= answer["latency"]["checked_at_users"] / -(-200 // answer["replicas"]) < 1.09


def test_the_loads_do_not_hang_on_what_is_asked() -> None:
    found = loads(replace(LIMITS, users=10), 2048)
    assert found == loads(replace(LIMITS, users=10**8), 2048)
    assert found[:8] == [1, 2, 3, 4, 5, 6, 7, 8] and found[-1] == 2048
    assert {2**power for power in range(12)} <= set(found)  # as they are measured
    assert max(high / low for low, high in pairwise(found) if low > 40) < 1.09
    rate = loads(replace(LIMITS, users=None, request_rate_rps=9), 100)
    assert rate[:4] == [1, 2, 3, 4] and rate[-1] == 100


def test_a_request_rate_needs_as_many_replicas_as_littles_law_says() -> None:
    # E2E is 2 s for 1 user, 4 s for 4: a replica carries 0.5 and 1 requests/s, 8 users break it.
    X = pd.DataFrame({"llm_id": "m", "gpu_profile_id": "p", "users": [1, 4, 8]})
    X = X.assign(input_tokens=100.0, output_tokens=101.0)
    samples_ms = np.array([[[10.0, 10.0], [10.0, 30.0], [10.0, 60.0]]])
    gpu = GPU("g", "gpu", "a", 16.0, 300.0, 60.0, 16.0, "invented")
    slo = SLO("s", itl_ms=50, percentile=50, request_rate_rps=2.5)
    (row,) = weigh(Draws(X, samples_ms), {"p": GPUProfile("p", gpu, 1, 2.0)}, slo).to_dict(
        "records"
    )
    assert (row["replicas"], row["usd_per_hour"], row["users_per_replica"]) == (3, 6.0, 4)
    assert (row["users_median"], row["load_median"]) == (4, 1.0)


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    path = tmp_path / "qwen2-3b.json"
    path.write_text(json.dumps(QWEN))
    return path


@pytest.mark.parametrize("rows", [{16: 55.0}, {8: 100.0, 16: 110.0}])
def test_a_load_measured_beyond_a_limit_is_never_called_met(qwen, tmp_path, rows) -> None:
    probe = tmp_path / "probe.csv"
    lines = [f"1xA10-24GB,{users},1.0,{itl_ms}" for users, itl_ms in rows.items()]
    probe.write_text("\n".join(["gpu_profile_id,users,nttft_ms,itl_ms", *lines]))
    asked = Question(LIMITS, hf_config=qwen, probe=probe, gpu_profile_ids=("1xA10-24GB",))
    answer = recommended(replace(asked, risk=0.1))
    assert answer["replicas"] is None or answer["users_per_replica"] < min(rows)
    for row in answer["options"]:
        assert row["users_per_replica"] < min(rows)
    named = {(row["users"], row["latency"]) for row in answer["contradictions"]}
    assert {(users, "itl") for users in rows} <= named
    assert "is far from what the law says" in answer["text"] and "nTTFT of" not in answer["text"]
    bad = recommended(replace(asked, slo=replace(LIMITS, itl_ms=150.0, users=max(rows))))
    assert bad["latency"]["itl_ms"] == pytest.approx(rows[max(rows)], rel=0.15)


def test_draws_go_through_what_was_measured_and_spread_away_from_it() -> None:
    random = np.random.default_rng(0)
    X = pd.DataFrame({"gpu_profile_id": list("aaab"), "users": [8, 16, 512, 16]})
    samples_ms = random.lognormal(3, 0.1, (1000, 4, 2))
    points = X.iloc[[1]].assign(nttft_ms=40.0, itl_ms=60.0)
    own = Calibration(points.reset_index(drop=True), samples_ms[:, [1]], 0)
    moved = own.corrected(X, samples_ms)
    low, middle, high = np.quantile(moved, [0.05, 0.5, 0.95], axis=0)
    # At its own load a measurement has its own noise, however far the law is.
    assert middle[1] == pytest.approx([40, 60], rel=0.01)
    assert (high / low)[1] == pytest.approx(np.exp(2 * 1.645 * 0.05), rel=0.02)
    # What lies beyond the law is not of one load.
    assert 50 < middle[0, 1] < 60
    # Nobody knows how much of what is beyond the law holds on another GPU profile.
    beyond = np.array([40, 60]) / np.quantile(samples_ms[:, 1], 0.95, axis=0)
    assert middle[3] == pytest.approx(20.1 * beyond**0.5, rel=0.05)
    own_width = np.divide(*np.quantile(samples_ms[:, 3], [0.95, 0.05], axis=0))
    assert ((high / low)[3] > 1.1 * own_width).all()
    # Far away nobody knows how much of it holds.
    assert (high / low)[2, 1] > 1.5 * np.divide(*np.quantile(samples_ms[:, 2, 1], [0.95, 0.05]))
    assert {row.latency for row in own.contradictions()} == {"nttft", "itl"}
    capped = own.capped(X, moved, SLO("s", itl_ms=50, percentile=50, users=1))
    near = X.iloc[[1]].assign(nttft_ms=21.0, itl_ms=19.0).reset_index(drop=True)
    within = Calibration(near, samples_ms[:, [1]], 0).corrected(X, samples_ms)
    assert np.array_equal(within[:, 3], samples_ms[:, 3])  # the law says as much
    assert (capped[:, [1, 2]] > 1e9).all() and np.array_equal(capped[:, [0, 3]], moved[:, [0, 3]])


def test_a_law_that_believes_a_measurement_leaves_other_gpu_profiles_in_doubt() -> None:
    random = np.random.default_rng(0)
    X = pd.DataFrame({"gpu_profile_id": list("ab"), "users": [16, 16]})
    untold_ms = random.lognormal(3, 0.1, (1000, 2, 2))
    # The fit that was told has moved both profiles by the whole of it.
    points = X.iloc[[0]].assign(nttft_ms=60.0, itl_ms=60.0)
    told_ms = untold_ms * 60 / 20.1
    own = Calibration(points, told_ms[:, [0]], 0, untold_ms[:, [0]])
    low, middle, high = np.quantile(own.corrected(X, told_ms), [0.05, 0.5, 0.95], axis=0)
    assert middle[0] == pytest.approx([60, 60], rel=0.01)
    # It may be the server, not the LLM: then the other profile is as it was, but for the interval.
    beyond = 60 / np.quantile(untold_ms[:, 0], 0.95, axis=0)
    assert middle[1] == pytest.approx(60 / beyond**0.5, rel=0.05)
    assert ((low[1] < 1.1 * 60 / beyond) & (high[1] > 0.9 * 60)).all()
    # What the asker hears is how far the law was, not how close it is now.
    assert {row.latency for row in own.contradictions()} == {"nttft", "itl"}


@pytest.mark.parametrize(
    ("header", "row"), [("tpot_ms", "60"), ("e2e_ms", "2000"), ("ttft_ms", "900")]
)
def test_one_measured_latency_is_enough(qwen, tmp_path, header, row) -> None:
    probe = tmp_path / "probe.csv"
    probe.write_text(f"gpu_profile_id,users,{header}\n1xA10-24GB,16,{row}\n")
    slo = SLO("s", tpot_ms=1e3, ttft_ms=1e4, e2e_ms=1e6, percentile=50, users=16)
    asked = Question(slo, hf_config=qwen, gpu_profile_ids=("1xA10-24GB",))
    asked = replace(asked, requests=RequestLengths(Length(121, 121), Length(19, 19)))
    asked = replace(asked, sources=("archive:llm-pilot",), risk=0.5)
    latency = recommended(replace(asked, probe=probe))["latency"]
    assert latency["users"] == 16
    assert latency[header] == pytest.approx(float(row), rel=0.15)


def test_points_of_an_own_folder_count_without_ttft(tmp_path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(QWEN))
    points = pd.DataFrame({"users": [8, 16, 32], "llm_id": "mine", "gpu_profile_id": "1xH100-80GB"})
    points = points.assign(input_tokens=1500, output_tokens=250, mean_tpot_ms=90)
    served = {"engine": "vllm", "engine_version": "0.19.0", "precision": "bf16"}
    about = {"source": "mine", "defaults": served}
    write_points_folder(tmp_path, {"mine": config}, {"1xH100-80GB": 3.0}, points, **about)
    slo = SLO("s", tpot_ms=80, percentile=50, users=32)
    what = {"llm_id": "mine", "gpu_profile_ids": ("1xH100-80GB",), "requests": TODAY}
    asked = Question(slo, **what, sources=(str(tmp_path), "archive:inferencex"))
    slow = recommended(asked)
    # 8 users were measured to break the limit.
    assert slow["replicas"] is None or slow["users_per_replica"] < 8
    met = recommended(replace(asked, slo=replace(slo, tpot_ms=100)))
    assert met["latency"]["tpot_ms"] == pytest.approx(90, rel=0.1)
    (own, *_) = met["evidence"]
    assert (own["llm_id"], own["users_per_replica"]) == ("mine", 32)


def test_percentiles_of_a_length_are_those_of_a_lognormal() -> None:
    assert parse_length("1500", "-") == Length(1500, 1500)
    mean, high = parse_length("p99:8000, p50:1000", "-")
    sigma = np.log(8) / 2.3263
    assert (mean, high) == pytest.approx((1000 * np.exp(sigma**2 / 2), 8000), rel=1e-3)


def test_a_workload_or_a_trace_says_its_lengths(tmp_path) -> None:
    made = parse_lengths(None, None, "question-answering")
    assert made is not None and made.outputs.mean == pytest.approx(174, rel=0.03)
    trace = pd.DataFrame({"arrival_s": [0.0, 1.0, 2.0], "input_tokens": [10, 30, 999]})
    trace = trace.assign(output_tokens=[1, 3, 9], status=["ok", "ok", "failed"])
    trace.to_parquet(tmp_path / "trace.parquet")
    made = parse_lengths(None, None, str(tmp_path / "trace.parquet"))
    assert made == RequestLengths(Length(20, 30), Length(2, 3))
    assert made.per_second(86400 * 44) == pytest.approx(2)


def test_outside_of_the_basis_is_a_warning_or_refused() -> None:
    requests = RequestLengths(Length(2000, 2000), Length(20, 20))
    asked = Question(LIMITS, hf_config=MISTRAL, sources=("archive:llm-pilot",))
    asked = replace(asked, requests=requests, engine="vllm", gpu_profile_ids=("1xA100-40GB",))
    source = find_source(asked)
    lengths = {"input_tokens": 2000.0, "output_tokens": 20.0}
    profiles = {name: source.characterization.profiles[name] for name in asked.gpu_profile_ids}
    llm = find_llm(asked, source.characterization)
    far, engine, *_ = outside_of_measurements(asked, source, llm, lengths, profiles)
    assert far.startswith("2,000 input tokens, where") and engine.startswith("the engine vllm")
    with pytest.raises(InputError, match=r"'--input-tokens'.*2,000 input tokens.*--strict"):
        recommended(replace(asked, is_strict=True))
    answer = recommended(asked)
    assert answer["warnings"][0].startswith("Outside of what archive:llm-pilot measured: 2,000")
    assert answer["text"].splitlines()[1:3].count(answer["warnings"][0]) == 1


def test_users_and_gpus_beyond_the_measured_ones_are_named_once() -> None:
    asked = Question(LIMITS, hf_config=LLAMA, requests=TODAY, sources=("archive:inferencex",))
    facts = explained(asked, "1xA100-80GB", 100_000)
    # 72 GB hold 16 GB of weights, and 131,072 bytes of each of 1,625 tokens of a request.
    assert 200 < facts["itl_batch"] == facts["capacity_requests"] < 56e9 / 131_072 / 1_625
    (told, *_) = facts["warnings"]
    assert "A100-80GB, where B200-180GB, " in told
    assert "100,000 users a replica, where up to" in told
    names = ("1xA100-80GB", "2xA100-80GB")
    source = find_source(asked)
    profiles = find_candidates(source.characterization.profiles, names, None, need_prices=False)
    llm = find_llm(asked, source.characterization)
    lengths = {"input_tokens": 1500.0, "output_tokens": 250.0}
    (clause,) = outside_of_measurements(asked, source, llm, lengths, profiles)
    assert clause.startswith("A100-80GB, where B200-180GB, B300-288GB, H100-80GB and H200-")
    profiles = {"16xH100-80GB": profile_of_id("16xH100-80GB")}
    (clause,) = outside_of_measurements(asked, source, llm, lengths, profiles)
    assert clause.startswith("16xH100-80GB on 2 nodes of 8 GPUs, tensor parallel over a network")


def test_a_question_of_today_is_answered_from_measurements_of_today() -> None:
    slo = SLO("asked", ttft_ms=1000, ttft_percentile=95, tpot_ms=40, percentile=50, users=16)
    asked = Question(slo, hf_config=LLAMA, requests=TODAY)
    rate = replace(slo, users=None, request_rate_rps=8.0)
    answer = recommended(replace(asked, slo=rate))
    assert answer["source"] == todays_sources().source and answer["replicas"] <= 4
    assert any(each.startswith("Requests arrive at random (Pois") for each in answer["warnings"])
    assert answer["latency"]["ttft_ms"] < 1000 and answer["cost"]["requests_per_s"] == 8
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    # What is sold of GPUs that nobody measured stands below, and does not move the answer.
    assert answer["unmeasured"] and answer["price_source"] == "runpod on demand, all regions"
    names = ({row["gpu_profile_id"] for row in answer[n]} for n in ("unmeasured", "alternatives"))
    assert not set.intersection(*names)
    (line,) = [each for each in answer["warnings"] if each.startswith("Cheaper on a GPU that nob")]
    assert "--measured-only" in line and "\nOn GPUs that nobody measured:\n" in answer["text"]
    known = recommended(replace(asked, slo=rate, measured_only=True))
    assert known["unmeasured"] == [] and line not in known["warnings"]
    other = dict.fromkeys(("unmeasured", "warnings", "text"))
    assert known | other == answer | other
    # Named, it may be the answer, which says so.
    named = replace(asked, slo=rate, gpu_profile_ids=("1xH100-PCIe-80GB",))
    answer = recommended(named)
    assert "measured: H100-PCIe-80GB, where B200-180GB, " in answer["warnings"][0]
    assert re.search(r"H100-PCIe-80GB = .*\(GPU never measured\);", answer["text"].splitlines()[0])
    told = explained(asked, "1xH100-80GB", 16)
    assert told["itl_ms"] == pytest.approx(sum(t["ms"] for t in told["itl"]) * told["itl_factor"])


def test_points_without_lengths_are_not_near_what_is_asked() -> None:
    sources = ("archive:inferencex", "archive:mlenergy")
    asked = Question(LIMITS, llm_id="Qwen__Qwen3-8B", requests=TODAY, sources=sources)
    answer = recommended(replace(asked, gpu_profile_ids=("1xH100-80GB",)))
    assert answer["evidence"] and all(each["input_tokens"] > 0 for each in answer["evidence"])
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer


def test_evidence_names_the_precision_that_was_served() -> None:
    asked = Question(LIMITS, hf_config=LLAMA, requests=TODAY, sources=("archive:inferencex",))
    source = find_source(asked)
    llm = find_llm(asked, source.characterization)
    case = Case(asked, asked, source, llm, source.characterization.profiles)
    points = source.characterization.points
    row = asdict(nearest_measurements(case, "1xH100-80GB", LIMITS)[0])
    own = points[(points["llm_id"] == row["llm_id"]) & (points["gpu_profile_id"] == "1xH100-80GB")]
    (configured,) = {case.measured_llms[row["llm_id"]].dtype}
    assert configured == "bfloat16" and set(own["precision"]) == {row["precision"]} == {"fp8"}
    fp8 = served(case.measured_llms[row["llm_id"]], "fp8")
    assert row["weights_gib"] == pytest.approx(fp8.weight_bytes / 2**30)


@pytest.mark.parametrize(
    ("config", "dtype", "told"),
    [
        ("google__flan-t5-xl", "bf16", "'--hf-config': an LLM with an encoder, where"),
        ("meta-llama__Llama-3.1-8B-Instruct", "int8", "'--dtype': weights in int8, where .*nvfp4"),
    ],
)
def test_strict_refuses_what_no_measured_llm_is_like(config, dtype, told) -> None:
    config = ROOT / "resources" / "llms" / f"{config}.json"
    asked = Question(LIMITS, hf_config=config, requests=TODAY, dtype=dtype, is_strict=True)
    with pytest.raises(InputError, match=told):
        recommended(asked)


@pytest.mark.parametrize(("precision", "is_new"), [("nvfp4", False), ("int8", True)])
def test_the_precision_outside_is_that_which_was_served_not_that_of_configs(
    precision, is_new
) -> None:
    asked = Question(LIMITS, hf_config=LLAMA, requests=TODAY, dtype=precision)
    outside = " ".join(recommended(replace(asked, gpu_profile_ids=("1xH100-80GB",)))["outside"])
    assert ("weights in int8, where bf16, fp8, " in outside) == is_new, outside


def test_a_context_that_is_too_short_asks_for_shorter_requests() -> None:
    requests = RequestLengths(Length(200_000, 200_000), Length(250, 250))
    with pytest.raises(InputError, match=r"below the longest request's 200250. Fix: ask about sh"):
        recommended(Question(LIMITS, hf_config=MISTRAL, requests=requests))


ASKED = ["recommend", "--hf-config", str(MISTRAL)]
LOAD, LIMIT = ["--users", "8"], ["--itl-ms", "50"]
REQUESTS = ["--input-tokens", "900", "--output-tokens", "200"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (LIMIT, ["--users, --request-rate, --tokens-per-day", "one load"]),
        ([*LOAD, "--request-rate", "2", *LIMIT], ["--request-rate", "exactly one"]),
        (["--request-rate", "-2", *LIMIT], ["--request-rate", "requests a second"]),
        (["--request-rate", "nan", *LIMIT], ["--request-rate", "finite"]),
        (["--tokens-per-day", "1e6", *LIMIT], ["--tokens-per-day", "--workload"]),
        (
            ["--tokens-per-day", "1", "--input-tokens", "99", "--output-tokens", "1", *LIMIT],
            [
                "'--tokens-per-day': 1 tokens a day are 1.16e-07 requests a second",
                "Fix: give 8.64 to 8.64e+12",
            ],
        ),
        (LOAD, ["--ttft-ms, --nttft-ms", "no limit"]),
        ([*LOAD, "--ttft-ms", "soon"], ["--ttft-ms", "'soon'", "p95:1000"]),
        ([*LOAD, "--ttft-ms", "-1"], ["--ttft-ms", "above 0"]),
        ([*LOAD, "--e2e-ms", "nan"], ["--e2e-ms", "milliseconds"]),
        ([*LOAD, "--tpot-ms", "p75:40"], ["--tpot-ms", "75", "50, 90, 95"]),
        ([*LOAD, *LIMIT, "--percentile", "42"], ["--percentile", "42"]),
        ([*LOAD, *LIMIT, "--input-tokens", "9"], ["--output-tokens", "give both"]),
        ([*LOAD, *LIMIT, "--input-tokens", "0", "--output-tokens", "9"], ["--input-tokens", "'0'"]),
        ([*LOAD, *LIMIT, *REQUESTS, "--input-tokens", "p50:9,p99:3"], ["--input-t", "do not rise"]),
        ([*LOAD, *LIMIT, "--workload", "nothing"], ["nothing", "question-answering"]),
        ([*LOAD, *LIMIT, "--prefix-hit-rate", "1.5"], ["--prefix-hit-rate", "1.5", "0 to below 1"]),
        ([*LOAD, *LIMIT, "--max-model-len", "0"], ["--max-model-len", "longest request"]),
        ([*REQUESTS, "--max-model-len", "1000", *LOAD, *LIMIT], ["--max-model-len", "1100"]),
        ([*LOAD, *LIMIT, "--dtype", "int3"], ["--dtype", "nvfp4"]),
        ([*LOAD, *LIMIT, "--engine", "vllm", "--predictor", "rf"], ["--predictor", "roofline"]),
    ],
)
def test_a_mistake_is_one_error_that_names_the_option(options, words) -> None:
    with pytest.raises(InputError) as caught:
        sextant(*ASKED, *options)
    assert all(word in str(caught.value) for word in words)
