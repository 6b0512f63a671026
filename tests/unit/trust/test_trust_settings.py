"""What a configuration and its sheets may not ask for, told before anything runs."""

import logging
from pathlib import Path

import pytest

from sextant.base.errors import InputError
from sextant.engine.registry import check_settings
from sextant.engine.vllm_command import check_extra_arguments
from sextant.experiment.loading import load_experiment

SAMPLE = "azure-2023-conv-sample"


def change(path: str, old: str, new: str) -> None:
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["--host", "0.0.0.0"], "host"),
        (["--hos", "::"], "host"),  # vLLM takes any beginning that is unique
        (["--port", "80"], "port"),
        (["--api_key=mine"], "api-key"),
        (["--ssl-keyfile", "k.pem"], "ssl-keyfile"),
        (["--config", "more.yaml"], "config"),
        (["--load_form=auto"], "load-format"),
        (["--model", "other"], "model"),
        (["-tp8"], "tensor-parallel-size"),
        (["--max-num-batched-tokens", "512", "--dtype", "half"], "dtype"),
        (["--data-parallel-address", "10.0.0.1"], "data-parallel-address"),
        (["--enable_lora"], "enable-lora"),
        (["--cpu-offload-gb=4"], "cpu-offload-gb"),
        (["--pipeline_parallel_size", "2"], "pipeline-parallel-size"),
        (["--kv-transfer-config", "{}"], "kv-transfer-config"),
    ],
)
def test_what_the_pipeline_decides_is_no_argument(config, arguments, name: str) -> None:
    config["engine"]["extra_arguments"] = arguments
    with pytest.raises(InputError) as caught:
        load_experiment(config, check_engine=check_settings)
    for part in ("engine.extra_arguments", f" sets {name},", "Fix: "):
        assert part in str(caught.value)


def test_other_arguments_are_the_users_to_choose() -> None:
    chosen = ["--max-num-batched-tokens", "512", "--quantization", "fp8", "-O3"]
    chosen += ["--compilation-config.mode", "0", "--enforce-eager", "--kv-cache-dtype=fp8", "-1"]
    assert check_extra_arguments(chosen, "config") == []


@pytest.mark.parametrize(
    ("arguments", "is_told"),
    [
        (["--compilation-config", '{"mode": 1, "backend": "module.fn"}'], True),
        (['--compilation_config={"backend": "package.module.fn"}'], True),
        (['--compil={"inductor_passes": {"post_grad": "module.fn"}}'], True),
        (["-cc", '{"backend": "module.fn"}'], True),
        (["-cc.backend=module.fn"], True),
        (["--compilation-config.backend", "module.fn"], True),
        (["--structured-outputs-config", '{"reasoning_parser_plugin": "/plugins/mine.py"}'], True),
        (["--logits-processors", "module.Class"], True),
        (
            ["--compilation-config", '{"mode": 0, "backend": "inductor", "custom_ops": ["+x"]}'],
            False,
        ),
        (["--speculative-config", '{"model": "org/L-3.2-1B", "num_speculative_tokens": 3}'], False),
        (["-cc.backend=eager", "--quantization", "fp8"], False),
        (["--hf-overrides", '{"rope_theta": 1.5}'], False),
    ],
)
def test_an_option_that_names_code_is_told(arguments: list[str], is_told: bool) -> None:
    found = check_extra_arguments(["--enforce-eager", *arguments], "config")
    assert found == arguments[:is_told]


def test_code_of_others_runs_only_where_the_user_says_so_and_is_told(config, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        load_experiment(config, "config.yaml", check_engine=check_settings)
        assert not caplog.text
        config["engine"]["extra_arguments"] = ["--trust_remote_code", "--max-log-len", "9"]
        load_experiment(config, "config.yaml", check_engine=check_settings)
    (record,) = caplog.records
    assert record.message.startswith("config.yaml: --trust_remote_code lets the server run code")


def test_weights_are_safetensors(config, tmp_path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "pytorch_model.bin").write_bytes(b"\x80\x04.")  # a pickle
    change("config/llms.tsv", "demo-llama-16m.json\t", "demo-llama-16m.json\tweights")
    with pytest.raises(InputError) as caught:
        load_experiment(config)
    for part in ("llms.tsv, line 3, field 'model'", "no *.safetensors", "not loaded"):
        assert part in str(caught.value)
    (weights / "model-00001-of-00001.safetensors").touch()
    assert load_experiment(config).llms["demo-llama-16m"]["model"] == "weights"


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("llms", "demo-opt-6m\t", "a,b\t", "line 2|'llm_id'|selected"),
        ("llms", "demo-opt-6m\t", "Demo-Llama-16M\t", "line 3|'llm_id'|looks alike"),
        ("gpu_profiles", "1xcpu-core\t", "1x,2x\t", "line 2|'gpu_profile_id'|selected"),
        ("gpu_profiles", "cpu-core\t1", "../../secret\t1", "line 2|'gpu_id'"),
        ("scenarios", "users-1-8\t", "a.Server.1\t", "line 2|'scenario_id'|.server"),
        ("traces", "azure-2023-conv-sample\t", "a.Rejected\t", "line 2|'trace_id'"),
        ("workloads", "conversation\t", "a\u200bb\t", "line 2|'workload_id'|U+200B"),
        ("workloads", "conversation\t", "x" * 101 + "\t", "'workload_id'|101 characters"),
        # What sheets say of each other.
        ("benchmarks", "*\t*", "nobody\t*", "line 2|'llm_ids'|'nobody'|demo-opt-6m"),
        ("workloads", f"\t{SAMPLE}\t", "\tnone\t", "line 2|'trace_id'|'none'"),
        ("workloads", "\tsummarization\t", "\tno\t", "line 3|'use_case'|'no'"),
        ("workloads", "summarization\t\t", f"summarization\t{SAMPLE}\t", "'trace_id'|not both"),
        ("workloads", "\t512\t", "\t4096\t", "line 2|'max_input_tokens'|2048"),
        ("traces", "max_rejected_fraction", "start_time", "line 2|'start_time'|0.01"),
        ("traces", "\tsextant\t", "\tcolumns\t", "line 2|'columns'|names no column"),
        ("traces", f"resources/traces/{SAMPLE}", "nowhere", "line 2|'dataset'|nowhere.csv"),
        ("gpu_profiles", "2xcpu-core\tcpu-core", "2xcpu-core\tH900", "line 3|H900.yaml"),
        ("gpu_profiles", "\t0.08", "\t-1", "line 3|'usd_per_hour'"),
        ("llms", "demo-opt-6m.json", "none.json", "none.json|no such file"),
        ("llms", "6m.json\t", "6m.json\tnowhere", "line 2|'model'|'nowhere'"),
        ("demo/slos", None, "", "is empty"),
    ],
)
def test_rows_that_cannot_work_are_refused(config, file: str, old: str | None, new: str, said):
    sheet = Path(f"config/{file}.tsv")
    text = sheet.read_text()
    if old is None:  # all rows, below two lines of comment and the header
        old = "".join(text.splitlines(keepends=True)[3:])
    assert old in text
    sheet.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        load_experiment(config)
    for part in said.split("|"):
        assert part in str(caught.value)
    # An LLM's file is named in place of the sheet that names it.
    assert sheet.name in str(caught.value) or "none.json" in said


def test_fields_that_cannot_work_are_refused(config) -> None:
    decision = {"workload_id": "conversation", "scenario_id": "none"}
    for change, said in (({"sed": 1}, "unknown field"), ({"decision": decision}, "users-1-8")):
        with pytest.raises(InputError, match=f"{min(change)}.*{said}"):
            load_experiment(config | change)


def test_a_cells_names_fit_into_one_file_name(config) -> None:
    """SLURM's executor joins them to the name of a folder."""
    change("config/llms.tsv", "demo-opt-6m\t", "a-0123456" * 11 + "a" + "\t")
    change("config/gpu_profiles.tsv", "1xcpu-core\t", "b-0123456" * 11 + "b" + "\t")
    change("config/benchmarks.tsv", "\tconversation\t", "\t" + "c-0123456789" * 2 + "cccccc" + "\t")
    change("config/workloads.tsv", "conversation\tazure", "c-0123456789" * 2 + "cccccc" + "\tazure")
    config["decision"]["workload_id"] = "c-0123456789" * 2 + "cccccc"
    with pytest.raises(InputError, match=r"benchmarks\.tsv, line 2: .*242 characters.*shorten"):
        load_experiment(config)
