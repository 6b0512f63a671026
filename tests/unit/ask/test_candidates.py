"""Replicas that no node holds: all commands refuse them alike, and name the number that serves."""

import re

import pandas as pd
import pytest

from command import sextant
from sextant.ask.candidates import nearest_that_serves
from sextant.base.errors import InputError
from sextant.facts.gpu import profile_of_id
from support import ROOT

LLMS = ROOT / "resources" / "llms"
LENGTHS = ("--input-tokens", "1000", "--output-tokens", "100")
RATE = ("--request-rate", "1")
LIMIT = ("--tpot-ms", "60")
ASKED = {
    "recommend": ("--gpu-profiles", *RATE, *LIMIT),
    "capacity": ("--gpu-profiles", *RATE, *LIMIT),
    "simulate": ("--gpu-profile", *RATE, "--draws", "0", "--duration", "1min"),
    "explain": ("--gpu-profile", "--users-per-replica", "4"),
}
REFUSED = [
    (
        "meta-llama__Llama-3.1-70B-Instruct",
        "3xH100-80GB",
        "3xH100-80GB: 64 heads (8 KV heads) cannot be split over 3 GPUs",
        "ask about 4xH100-80GB, or quantize the LLM (--dtype)",
    ),
    (
        "deepseek-ai__DeepSeek-V3.1",
        "8xH100-80GB",
        "8xH100-80GB: the weights take",
        "ask about 16xH100-80GB (2 nodes), or quantize the LLM (--dtype)",
    ),
]


def asked(command: str, llm: str, profile_id: str, *more: str) -> str:
    named, *options = ASKED[command]
    config = ("--hf-config", LLMS / f"{llm}.json")
    return sextant(command, *config, named, profile_id, *LENGTHS, *options, *more)


@pytest.mark.parametrize("command", ASKED)
@pytest.mark.parametrize(("llm", "profile_id", "problem", "fix"), REFUSED)
def test_all_commands_refuse_alike(command, llm, profile_id, problem, fix):
    with pytest.raises(InputError) as caught:
        asked(command, llm, profile_id)
    assert problem in caught.value.problem
    assert caught.value.fix == fix


@pytest.mark.parametrize("command", ["simulate", "explain"])
def test_all_commands_say_that_a_network_was_not_measured(command):
    said = asked(command, "meta-llama__Llama-3.1-70B-Instruct", "16xH100-80GB")
    assert "16xH100-80GB on 2 nodes of 8 GPUs, tensor parallel over a network" in said


def test_replicas_on_more_gpus_than_were_measured_are_said():
    said = asked("explain", "meta-llama__Llama-3.1-70B-Instruct", "16xGB200-186GB")
    assert "16xGB200-186GB, where replicas on up to 8 GPUs were measured" in said


def test_a_fleet_keeps_each_replica_on_a_node(tmp_path):
    demand = {"demand_id": "chat", "team": "web", "request_rate_rps": 1, "tpot_ms": 60}
    demand |= {"input_tokens": 1000, "output_tokens": 100, "percentile": 50}
    demand |= {"hf_config": LLMS / "deepseek-ai__DeepSeek-V3.1.json"}
    pool = {"pool_id": "a", "gpu_id": "H100-80GB", "nodes": 4, "devices_per_node": 16}
    pool |= {"kind": "owned", "usd_per_hour": 2}
    sheets = []
    for name, row in (("demands", demand), ("supply", pool)):
        path = tmp_path / f"{name}.tsv"
        pd.DataFrame([row], dtype=object).to_csv(path, sep="\t", index=False)
        sheets += [f"--{name}", path]
    said = sextant("fleet", *sheets, exit_code=3)
    assert "8xH100-80GB: the weights take" in said
    assert "A fleet keeps a replica on one node." in said


def test_the_nearest_number_of_gpus_is_named():
    six = profile_of_id("6xH100-80GB")
    assert nearest_that_serves(six, lambda profile: True) == "8xH100-80GB"
    assert nearest_that_serves(six, lambda profile: profile.n_gpus > 20) == "32xH100-80GB (4 nodes)"
    assert nearest_that_serves(six, lambda profile: profile.n_gpus > 64) is None


def test_stated_sizes_are_split_over_any_number_of_gpus():
    sizes = ("--parameters", "100e9", "--layers", "80", "--kv-bytes-per-token", "200000")
    said = sextant(
        "explain", *sizes, *LENGTHS, "--gpu-profile", "8xH100-80GB", *ASKED["explain"][1:]
    )
    assert "on 8xH100-80GB" in said


@pytest.mark.parametrize("command", ASKED)
def test_a_context_that_does_not_fit_names_the_longest_that_does(command):
    with pytest.raises(InputError) as caught:
        asked(
            command,
            "meta-llama__Llama-3.1-8B-Instruct",
            "1xRTX-4090-24GB",
            *("--max-model-len", "131072"),
        )
    assert "the longest request needs 131072" in caught.value.problem
    assert re.search(r"start the server with --max-model-len 4\d\d\d\d,", caught.value.fix or "")
