"""`sextant fleet` from its two sheets to the answer, and what it says of wrong ones."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest

from command import sextant
from sextant.ask.question import Question
from sextant.base.errors import InputError
from sextant.facts.gpu import GPUS, load_gpu, mig_slice
from sextant.fleet.sheets import candidate_profiles, read_demands, read_supply
from support import ROOT, write_trace

MISTRAL = ROOT / "tests" / "hf_configs" / "mistral-7b"
LLAMA = ROOT / "resources" / "llms" / "meta-llama__Llama-3.1-8B-Instruct.json"
DEMAND = {"demand_id": "chat", "team": "web", "llm_id": "llama-13b", "itl_ms": 50, "percentile": 50}
POOL = {"pool_id": "a", "gpu_id": "A100-40GB", "nodes": 1, "devices_per_node": 8}
POOL |= {"kind": "owned", "usd_per_hour": 2}


def sheet(path, *rows):
    pd.DataFrame(rows, dtype=object).to_csv(path, sep="\t", index=False)
    return path


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(folder, demands, supply, *more, exit_code=0) -> str:
    demands, supply = sheet(folder / "demands.tsv", *demands), sheet(folder / "supply.tsv", *supply)
    return sextant("fleet", "--demands", demands, "--supply", supply, *more, exit_code=exit_code)


def test_sheets_become_a_plan_of_what_recommend_finds_for_each(here):
    limits = {"nttft_ms": 100, "itl_ms": 50, "percentile": 50, "users": 200}
    demands = [
        {"demand_id": "chat", "team": "web", "hf_config": MISTRAL, "least_replicas": 2, **limits},
        {"demand_id": "code", "team": "dev", "llm_id": "llama-13b", **limits, "users": 100},
    ]
    pools = [
        {**POOL, "nodes": 2},
        {**POOL, "pool_id": "slices", "mig_profile": "3g.20gb", "usd_per_hour": 0.8},
    ]
    answer = json.loads(asked(here, demands, pools, "--format", "json"))
    served = {each["demand"]["demand_id"]: each for each in answer["plan"]["served"]}
    # As `sextant recommend` answers at the same risk.
    assert (served["chat"]["gpu_profile_id"], served["chat"]["replicas"]) == ("1xA100-40GB", 4)
    assert all(each["probability_met"] >= 0.9 for each in served.values())
    assert 0 < answer["plan"]["joint_probability_met"] <= 1
    assert {each["demand_id"] for each in answer["looser_limits"]} == {"chat", "code"}
    replica = answer["memory"]["chat"]
    assert replica["memory"]["kv_cache_gib"] > 0 and replica["tensor_parallel"] >= 1
    assert f"KV cache for {replica['kv_tokens']:,} tokens. Memory of a GPU" in answer["text"]
    assert "2 of 2 demands served" in answer["text"]
    out = here / "fleet.html"
    text = asked(here, demands, pools, "--format", "html", "--out", out)
    assert "2 of 2 demands served" in text and "Who runs where" in out.read_text()
    with pytest.raises(InputError, match="'--risk'"):
        asked(here, demands, pools, "--risk", "1")


def test_options_of_serving_hold_for_all_demands(here):
    """A mixture of experts has the layout that is asked; an LLM without experts has none."""
    row = {**DEMAND, "llm_id": None, "users": None, "request_rate_rps": 1}
    row |= {"input_tokens": 500, "output_tokens": 100}
    demands = [
        {**row, "hf_config": LLAMA},
        {**row, "demand_id": "code", "hf_config": LLAMA.with_name("openai__gpt-oss-120b.json")},
    ]
    pool = {**POOL, "gpu_id": "H100-80GB", "nodes": 2}
    options = ["--engine", "sglang", "--gpu-memory-utilization", "0.7", "--enforce-eager"]
    options += ["--data-parallel", "all", "--format", "json"]
    answer = json.loads(asked(here, demands, [pool], *options))
    assert answer["plan"]["unserved"] == []
    memory = answer["memory"]["chat"]["memory"]
    assert memory["graphs_gib"] == 0
    used_gib = sum(memory.values()) - memory["activations_gib"]
    assert used_gib == pytest.approx(0.7 * 79.2)
    assert "sglang.launch_server" in answer["serving"]["chat"]["command"]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (("--gpu-memory-utilization", "1.5"), "'--gpu-memory-utilization': 1.5 is not a share"),
        (("--engine", "vlm"), "'--engine': unknown engine 'vlm'"),
        (("--speculative", "ngram"), "line 2, field '--acceptance'"),
        (("--max-model-len", "100"), "line 2, field '--max-model-len'"),
    ],
)
def test_an_option_that_cannot_be_served_with_is_named(here, options, field):
    demand = {**DEMAND, "llm_id": None, "hf_config": LLAMA, "request_rate_rps": 1}
    demand |= {"input_tokens": 500, "output_tokens": 100}
    with pytest.raises(InputError, match=field):
        asked(here, [demand], [{**POOL, "gpu_id": "H100-80GB"}], *options)


def test_demands_of_one_llm_are_met_or_missed_together(here):
    row = {**DEMAND, "llm_id": None, "hf_config": MISTRAL, "nttft_ms": 100, "users": 200}
    rows = [row, {**row, "demand_id": "same"}]
    said = asked(here, rows, [{**POOL, "nodes": 4}], "--format", "json", "--risk", "0.3")
    plan = json.loads(said)["plan"]
    chances = [each["probability_met"] for each in plan["served"]]
    assert chances[0] == chances[1] == plan["joint_probability_met"] < 1
    assert plan["product_probability_met"] == pytest.approx(chances[0] ** 2)


def test_what_fits_nowhere_is_named_with_why_and_the_status_is_3(here):
    rows = [{**DEMAND, "users": 10}, {**DEMAND, "demand_id": "huge", "users": 100_000_000}]
    said = asked(here, rows, [POOL], exit_code=3)
    assert "1 of 2 demands served" in said
    assert re.search(r"Not served:\n  Demand .*\n  huge +web +1  no room is left", said)
    tiny = {**POOL, "gpu_id": "T4-16GB", "devices_per_node": 1}
    said = asked(here, [{**DEMAND, "users": 10}], [tiny], exit_code=3)
    assert "no GPU profile can serve llama-13b" in said


def test_a_rate_without_a_law_of_a_step_is_a_steady_load_and_that_is_said_once(here):
    rows = [{**DEMAND, "request_rate_rps": 1}, {**DEMAND, "demand_id": "b", "request_rate_rps": 2}]
    warnings = json.loads(asked(here, rows, [POOL], "--format", "json"))["warnings"]
    steady = [warning for warning in warnings if "Little's law" in warning]
    assert len(steady) == 1 and steady[0].startswith("chat, b: The rate is taken as a steady load")


@pytest.mark.parametrize(
    ("demand", "pool", "problem"),
    [
        ({"llm_id": "unknown"}, {}, "archive:llm-pilot has no facts of LLM 'unknown'"),
        ({"hf_config": "x.json"}, {}, "one LLM is needed"),
        ({"users": None}, {}, "no load is given"),
        ({"request_rate_rps": 1}, {}, "two loads are given"),
        ({"itl_ms": None}, {}, "no limit is given"),
        ({"input_tokens": 10}, {}, "one length alone is given"),
        ({"trace_id": "none", "users": None}, {}, "none.parquet does not exist"),
        ({"priority": 0}, {}, "0 should be greater than or equal to 1"),
        ({}, {"gpu_id": "Z9-1GB"}, "no facts of GPU 'Z9-1GB'"),
        ({}, {"gpu_id": "L4-24GB", "mig_profile": "1g.5gb"}, "has no MIG profile"),
        ({}, {"nodes": 0}, "there is no node"),
        ({}, {"kind": "borrowed"}, "'borrowed' should be 'owned' or 'rentable'"),
    ],
)
def test_a_wrong_row_is_one_error_with_its_line(here, demand, pool, problem):
    with pytest.raises(InputError, match=r"(demands|supply).tsv, (line 2|field)") as caught:
        asked(here, [{**DEMAND, "users": 10, **demand}], [{**POOL, **pool}])
    assert problem in str(caught.value)
    assert caught.value.fix


def test_the_busiest_hour_of_a_trace_is_the_load_unless_one_is_given(tmp_path):
    by_hour = np.where(np.arange(72) % 24 < 12, 36, 72)
    by_hour[40] = 144
    arrival_s = np.concatenate([3600 * hour + np.arange(n) for hour, n in enumerate(by_hour)])
    frame = pd.DataFrame({"arrival_s": np.append(arrival_s, 72 * 3600.0)})
    frame = frame.assign(input_tokens=100, output_tokens=20)
    write_trace(tmp_path, frame, "2024-05-01 00:00:00")
    row = {**DEMAND, "trace_id": "trace"}
    rows = [row, {**row, "demand_id": "users", "users": 30}]
    found, given = read_demands(sheet(tmp_path / "demands.tsv", *rows), tmp_path)
    assert found.demand.slo.request_rate_rps == pytest.approx(144 / 3600)
    assert [each.mean for each in found.requests] == [100, 20]
    assert "bursts within it" in found.notes[0]
    assert (given.demand.slo.users, given.requests) == (30, found.requests)
    assert found.question(Question(found.demand.slo)).workload == str(tmp_path / "trace.parquet")


def test_a_short_trace_is_taken_with_its_mean_rate(tmp_path):
    write_trace(tmp_path, pd.DataFrame({"arrival_s": np.arange(0, 601.0, 2)}))
    (wanted,) = read_demands(sheet(tmp_path / "d.tsv", {**DEMAND, "trace_id": "trace"}), tmp_path)
    assert wanted.demand.slo.request_rate_rps == pytest.approx(0.5, rel=0.1)
    assert "less than 24 whole hours" in wanted.notes[0]


def test_slices_have_a_part_of_the_memory_and_serve_alone(tmp_path):
    whole = load_gpu(GPUS, "A100-40GB")
    part = mig_slice(whole, "3g.20gb")
    assert (part.memory_gib, part.memory_bandwidth_gb_s) == (20, 1555 / 2)
    assert part.dense_16bit_tflops == pytest.approx(312 * 3 / 7)
    assert mig_slice(load_gpu(GPUS, "H200-141GB"), "2g.35gb").memory_gib == 141 / 4
    with pytest.raises(InputError, match="is not a slice"):
        mig_slice(whole, "1g.80gb")
    rows = [POOL, {**POOL, "pool_id": "s", "mig_profile": "3g.20gb"}]
    # The facts are those of the folder that is named.
    folder = shutil.copytree(GPUS, tmp_path / "gpus")
    facts = (folder / "A100-40GB.yaml").read_text().replace("memory_gib: 40", "memory_gib: 39")
    (folder / "A100-40GB.yaml").write_text(facts)
    supply = sheet(tmp_path / "supply.tsv", *rows)
    assert read_supply(supply, folder)[1]["A100-40GB"].memory_gib == 39
    pools, gpus = read_supply(supply)
    names = [*candidate_profiles(pools, gpus)]
    assert names == ["1xA100-40GB", "2xA100-40GB", "4xA100-40GB", "8xA100-40GB", f"1x{part.gpu_id}"]
