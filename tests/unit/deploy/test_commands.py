"""What the command of a server states, for each engine; every option is one of the engine."""

import json
import math
from pathlib import Path

import pytest
import yaml

from deployments import EXPERTS, LLAMA, LLMS, deployed, settings_on
from sextant.base.errors import InputError
from sextant.deploy.command import ENGINES
from sextant.deploy.deployment import deployment_of
from sextant.facts.engine import engines_with_sheets
from support import ROOT


def written(config: dict, folder: Path, name: str) -> Path:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config))
    return path


def options_of(command: list[str]) -> dict[str, str | None]:
    """Return the options of a command with their values; None: an option alone."""
    options: dict[str, str | None] = {}
    for argument in command:
        if argument.startswith("--"):
            options[argument] = None
        elif options:
            options[[*options][-1]] = argument
    return options


def test_vllm_is_told_every_setting_that_the_answer_rests_on() -> None:
    facts = deployed()
    assert facts["command"][:3] == ["vllm", "serve", "meta-llama/Llama-3.1-8B-Instruct"]
    assert options_of(facts["command"]) == {
        "--host": "0.0.0.0",
        "--port": "8000",
        "--tensor-parallel-size": "1",
        "--dtype": "bfloat16",
        "--kv-cache-dtype": "auto",
        "--max-model-len": "131072",
        "--max-num-seqs": "1024",
        "--max-num-batched-tokens": "8192",
        "--gpu-memory-utilization": "0.9",
        "--enable-prefix-caching": None,
    }
    assert facts["image"] == "vllm/vllm-openai:v0.19.0"


def test_stated_settings_reach_the_command() -> None:
    given = {"dtype": "fp8", "kv_dtype": "fp8", "enforce_eager": True, "max_model_len": 4096}
    options = options_of(deployed(gpu_memory_utilization=0.8, **given)["command"])
    assert options["--quantization"] == "fp8"
    assert options["--kv-cache-dtype"] == "fp8"
    assert options["--max-model-len"] == "4096"
    assert options["--gpu-memory-utilization"] == "0.8"
    assert "--enforce-eager" in options


def test_the_length_is_one_that_the_cache_holds() -> None:
    settings = settings_on("1xL4-24GB")
    assert settings.start_up.max_model_len is not None
    options = options_of(deployment_of(settings, 1).command.arguments)
    assert options["--max-model-len"] == str(settings.start_up.max_model_len)


def test_the_gpus_of_a_replica_share_the_llm_or_copies_of_attention() -> None:
    shared = options_of(deployed("4xH100-80GB", EXPERTS)["command"])
    assert shared["--tensor-parallel-size"] == "4"
    assert "--enable-expert-parallel" not in shared
    copied = options_of(deployed("4xH100-80GB", EXPERTS, data_parallel=2.0)["command"])
    assert copied["--tensor-parallel-size"] == "2"
    assert copied["--data-parallel-size"] == "2"
    assert "--enable-expert-parallel" in copied
    given = {"engine": "sglang", "data_parallel": 2.0}
    sglang = options_of(deployed("4xH100-80GB", EXPERTS, **given)["command"])
    assert (sglang["--tp-size"], sglang["--dp-size"], sglang["--ep-size"]) == ("4", "2", "4")
    assert "--enable-dp-attention" in sglang


def test_vllm_shares_experts_over_all_gpus_or_none() -> None:
    with pytest.raises(InputError, match="over all 8 GPUs, not over 4"):
        deployed("8xH100-80GB", EXPERTS, expert_parallel=4.0)


def test_a_replica_on_several_nodes_is_refused() -> None:
    with pytest.raises(InputError, match="spans 2 nodes"):
        deployed("16xH100-80GB")


def test_speculation_is_stated_as_json() -> None:
    given = {"speculative": "eagle3", "draft_tokens": 3}
    facts = deployed(**given)
    config = json.loads(options_of(facts["command"])["--speculative-config"] or "")
    assert config == {
        "method": "eagle3",
        "model": "FILL-IN-THE-DRAFT-MODEL",
        "num_speculative_tokens": 3,
    }
    assert any("FILL-IN-THE-DRAFT-MODEL" in note for note in facts["notes"])
    sglang = options_of(deployed(engine="sglang", **given)["command"])
    assert sglang["--speculative-algorithm"] == "EAGLE3"
    assert sglang["--speculative-num-steps"] == "3"


def test_tensorrt_llm_reads_the_rest_from_a_file() -> None:
    facts = deployed(engine="trtllm", kv_dtype="fp8")
    assert facts["command"][:2] == ["trtllm-serve", "meta-llama/Llama-3.1-8B-Instruct"]
    path = options_of(facts["command"])["--extra_llm_api_options"]
    content = yaml.safe_load(facts["files"][path])
    assert content["kv_cache_config"]["dtype"] == "fp8"
    assert facts["image"].startswith("nvcr.io/nvidia/tensorrt-llm/release:")


def test_an_unknown_model_leaves_a_marked_place(tmp_path) -> None:
    config = json.loads(LLAMA.read_text())
    facts = deployed(config=written(config, tmp_path, "half-a-llama"))
    assert facts["command"][2] == "FILL-IN-THE-MODEL"
    assert "FILL-IN-THE-MODEL" in facts["notes"][0]
    named = deployed(config=written(config, tmp_path, "org__half-a-llama"))
    assert named["command"][2] == "org/half-a-llama"
    assert named["notes"] == []


def test_weights_that_no_engine_quantizes_need_another_checkpoint() -> None:
    (note,) = deployed(dtype="int4")["notes"]
    assert "int4" in note and "bf16" in note
    assert deployed(dtype="fp8")["notes"] == []
    (note,) = deployed(dtype="fp8", engine="trtllm")["notes"]
    assert "fp8" in note


def test_a_checkpoint_in_fp8_is_served_as_it_is() -> None:
    config = LLMS / "Qwen__Qwen3-235B-A22B-Instruct-2507-FP8.json"
    facts = deployed("8xH100-80GB", config)
    assert "--quantization" not in facts["command"] and facts["notes"] == []
    (note,) = deployed("8xH200-141GB", config, dtype="bf16")["notes"]
    assert "bf16" in note and "fp8" in note


def test_a_precision_of_the_cache_without_an_option_is_refused() -> None:
    with pytest.raises(InputError, match="no option of vllm is known for a KV cache in int8"):
        deployed(kv_dtype="int8")


def test_an_engine_without_a_command_is_refused() -> None:
    with pytest.raises(InputError, match="no command is known for the engine tgis"):
        deployed(engine="tgis", config=LLAMA)


def test_every_engine_is_known_or_gone() -> None:
    assert {*engines_with_sheets()} - {*ENGINES} == {"tgis"}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_option_is_one_of_the_engine(engine: str) -> None:
    listed = (ROOT / "tests" / "data" / f"{engine}_options.txt").read_text()
    known = {line for line in listed.splitlines() if line.startswith("--")}
    wide = {"data_parallel": math.inf, "enforce_eager": True, "dtype": "fp8", "kv_dtype": "fp8"}
    commands = [
        deployed(engine=engine)["command"],
        deployed(engine=engine, speculative="eagle3", draft_tokens=2)["command"],
        deployed(engine=engine, speculative="ngram", draft_tokens=2, acceptance=0.5)["command"],
        deployed("8xH100-80GB", EXPERTS, engine=engine, **wide)["command"],
    ]
    stated = {option for command in commands for option in options_of(command)}
    assert stated <= known, stated - known
