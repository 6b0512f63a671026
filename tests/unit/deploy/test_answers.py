"""Answers and what starts them: in JSON, in Python, and on the command line."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import sextant
from command import sextant as command
from deployments import LLAMA
from sextant.answer.option import Option
from sextant.answer.pools import PoolSize, PoolsOption
from sextant.base.errors import InputError
from support import ROOT

LENGTHS = ("--input-tokens", 1500, "--output-tokens", 250)
PROFILE = ("--gpu-profiles", "1xH100-80GB")
ASKED = ("recommend", "--hf-config", LLAMA, "--users", 8, *LENGTHS, *PROFILE)


@pytest.fixture(scope="module")
def answer():
    return sextant.recommend(
        hf_config=LLAMA,
        users=8,
        input_tokens=1500,
        output_tokens=250,
        ttft_ms=2000,
        gpu_profiles="1xH100-80GB",
    )


def test_the_json_of_an_answer_has_what_its_files_have(answer) -> None:
    serving = answer.to_dict()["serving"]
    (deployment, _) = yaml.safe_load_all(answer.deployment("kubernetes")["kubernetes.yaml"])
    spec = deployment["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert [*container["command"], *container["args"]] == serving["command"]
    assert container["image"] == serving["image"]
    assert container["ports"][0]["containerPort"] == serving["ports"][0]
    assert spec["replicas"] == serving["replicas"] == answer.to_dict()["replicas"]
    assert serving["engine"] == "vllm"  # beside what was asked about


def test_prefill_and_decode_apart_are_refused_where_they_are_better(answer) -> None:
    result = answer.result
    pool = PoolSize("1xH100-80GB", 1)
    pools = PoolsOption(pool, pool, 0.5 * (result.chosen.usd_per_hour or 0.0), 0.99, 100.0)
    better = replace(result, findings=replace(result.findings, pools=pools))
    with pytest.raises(InputError, match="apart are the better answer"):
        better.deployments()
    assert better.to_dict()["serving"]["command"] is None


def test_nothing_is_deployed_where_nothing_is_recommended(answer) -> None:
    assert replace(answer.result, chosen=Option()).deployments() == []


def test_files_lie_in_a_folder_with_the_answer(tmp_path: Path) -> None:
    out = tmp_path / "new" / "llama"
    printed = command(*ASKED, "--ttft-ms", 2000, "--deploy", "compose", "--out", out)
    assert "compose.yaml" in printed
    names = {path.name for path in out.iterdir()}
    assert names == {"compose.yaml", "README.md", "answer.html", "answer.json"}
    facts = json.loads((out / "answer.json").read_text())
    assert facts["serving"]["command"][0] == "vllm"
    assert printed.splitlines()[0].endswith(facts["text"].splitlines()[0])


def test_an_answer_without_a_solution_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "none"
    options = ("--ttft-ms", 0.01, "--deploy", "kubernetes", "--out", out)
    printed = command(*ASKED, *options, exit_code=3)
    assert "no option is likely" in printed and not out.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--deploy", "kubernetes"), "give --out FOLDER"),
        (("--deploy", "kubernetes", "--out", LLAMA), "is a file"),
        (("--deploy", "kubernetes", "--out", "x", "--format", "json"), "leave it out"),
        (("--out", ROOT), "is a folder"),
    ],
)
def test_wrong_options_are_said_before_anything_is_computed(options, words: str) -> None:
    with pytest.raises(InputError, match=words):
        command(*ASKED, "--ttft-ms", 2000, *options)


def test_limits_of_a_step_count_in_memory_and_command() -> None:
    given = {"hf_config": LLAMA, "request_rate": 2, "input_tokens": 1500, "output_tokens": 250}
    given |= {"ttft_ms": 2000, "gpu_profiles": "1xH100-80GB", "duration": "1min", "draws": 0}
    facts = [
        sextant.capacity(**given, **more).to_dict()
        for more in ({}, {"max_num_batched_tokens": 65_536, "startup": "20min"})
    ]
    plain, wide = (answer["serving"] for answer in facts)
    assert wide["command"][wide["command"].index("--max-num-batched-tokens") + 1] == "65536"
    memory = [answer["memory"]["activations_gib"] for answer in facts]
    assert memory[1] > memory[0]
    assert wide["start_s"] > 2 * 20 * 60 > plain["start_s"]


def test_a_fleet_has_a_folder_for_each_team_and_demand(tmp_path: Path) -> None:
    header = "demand_id\tteam\thf_config\tttft_ms\titl_ms\tpercentile\tusers\tinput_tokens"
    rows = [f"chat\tweb team\t{LLAMA}\t2000\t50\t50\t8\t1000"]
    rows.append(f"big\tops\t{LLAMA}\t0.01\t50\t50\t8\t1000")
    demands = tmp_path / "demands.tsv"
    text = "\n".join([header + "\toutput_tokens", *(f"{row}\t250" for row in rows), ""])
    demands.write_text(text)
    supply = tmp_path / "supply.tsv"
    columns = "pool_id\tgpu_id\tnodes\tdevices_per_node\tkind\tusd_per_hour"
    supply.write_text(f"{columns}\nh100\tH100-80GB\t1\t8\towned\t2.5\n")
    out = tmp_path / "fleet"
    files = ("--deploy", "kubernetes", "--out", out)
    command("fleet", "--demands", demands, "--supply", supply, *files, exit_code=3)
    folder = out / "web~20team" / "chat"
    (deployment, _) = yaml.safe_load_all((folder / "kubernetes.yaml").read_text())
    facts = json.loads((out / "answer.json").read_text())
    (served,) = facts["plan"]["served"]
    assert deployment["metadata"]["name"] == "chat"
    assert deployment["spec"]["replicas"] == served["replicas"]
    assert facts["serving"]["chat"]["replicas"] == served["replicas"]
    assert not (out / "ops").exists()
