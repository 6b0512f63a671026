"""Importers of what others published: one file each, and the folders that ship."""

import json
import os
from pathlib import Path

import pandas as pd
import pytest

from sextant.base.errors import InputError
from sextant.points.folder import SHIPPED
from sextant.points.frame import LENGTHS, SETTINGS
from support import script

import_inferencex = script("resources/characterizations/inferencex/import.py").import_inferencex
import_mlenergy = script("resources/characterizations/mlenergy/import.py").import_mlenergy
MIRROR = Path(os.environ.get("SEXTANT_MIRROR", "missing"))
needs_mirror = pytest.mark.skipif(not MIRROR.is_dir(), reason="needs the mirror: SEXTANT_MIRROR")
LLAMA, MOE = "meta-llama/Llama-3.1-70B", "openai/gpt-oss-120b"
MINIMAX = "MiniMaxAI/MiniMax-M2.5"
ROW = {
    "id": "first", "backend": "vllm", "backend_version": "0.19.0", "model_path": LLAMA,
    "silicon_data_source": "dump; silicon_concurrency=64; measured=2026-02-25T19:02:12Z",
    "system": "h200_sxm", "precision": "fp8", "mode": "agg", "isl": 1024, "osl": 8192,
    "gemm_quant_mode": "fp8", "batch_size": 64, "tp_size": 4, "attention_dp_size": 1,
    "moe_tp_size": 1, "moe_ep_size": 1, "silicon_ttft_ms": 150.5, "silicon_tpot_ms": 20.0,
}  # fmt: skip


def inferencex(folder: Path, *changes: dict) -> pd.DataFrame:
    """Import rows that differ from `ROW` by these values; return the points by run."""
    table = folder / "silicon_sample.csv"
    pd.DataFrame([ROW | change for change in changes]).to_csv(table, index=False)
    configs = folder / "llms"
    configs.mkdir()
    for name in (LLAMA, MOE, MINIMAX):
        (configs / f"{name.replace('/', '__')}.json").touch()
    folder.joinpath("counts").write_text(str(import_inferencex(table, folder / "out", "../llms")))
    return pd.read_csv(folder / "out" / "points.csv", index_col="run_id")


def test_a_measurement_becomes_a_point(tmp_path) -> None:
    point = inferencex(tmp_path, {}).loc["first"].dropna().to_dict()
    ids = {"llm_id": "meta-llama__Llama-3.1-70B", "gpu_profile_id": "4xH200-141GB"}
    ids |= {"engine_version": "0.19.0", "precision": "fp8", "measured_on": "2026-02-25"}
    ids |= {"kv_precision": "fp8"}
    layout = {"tensor_parallel": 4, "data_parallel": 1, "expert_parallel": 1}
    # Lengths are drawn from 80 to 100% of the nominal ones.
    load = {"users": 64, "input_tokens": 922, "output_tokens": 7373}
    assert point == ids | layout | load | {"mean_ttft_ms": 150.5, "mean_tpot_ms": 20}
    assert (tmp_path / "out" / "llms.tsv").read_text() == (
        "llm_id\tconfig\nmeta-llama__Llama-3.1-70B\t../llms/meta-llama__Llama-3.1-70B.json\n"
    )
    assert (tmp_path / "out" / "gpu_profiles.tsv").read_text() == (
        "gpu_profile_id\tgpu_id\tn_gpus\tusd_per_hour\tprice_source\tprice_as_of\n"
        "4xH200-141GB\tH200-141GB\t4\t31.648\taws on demand, us-east-1\t2026-09-01\n"
    )


def test_requests_of_another_client_are_alike(tmp_path) -> None:
    source = "source_file=aic-auto-gap-analysis/data/qwen.csv; silicon_concurrency=64"
    point = inferencex(tmp_path, {"silicon_data_source": source}).loc["first"]
    assert point[["input_tokens", "output_tokens"]].tolist() == [1024, 8192]


def test_a_cache_and_the_tokens_of_a_step_are_those_of_the_recipe(tmp_path) -> None:
    on_b200 = {"system": "b200_sxm", "model_path": MINIMAX}
    points = inferencex(
        tmp_path,
        on_b200 | {"id": "late"},
        on_b200 | {"id": "early", "backend_version": "0.17.0", "silicon_ttft_ms": 151},
        on_b200 | {"id": "nightly", "backend_version": "nightly-5b8c", "silicon_ttft_ms": 152},
        {"id": "hopper", "model_path": MINIMAX},
        {"id": "packed", "model_path": MINIMAX, "gemm_quant_mode": "nvfp4", "isl": 8192},
    )
    cache = points["kv_precision"].fillna("not known").to_dict()
    assert cache == {
        "late": "fp8",
        "early": "bf16",
        "nightly": "not known",
        "hopper": "bf16",
        "packed": "fp8",
    }
    # Others have vLLM's default.
    assert points["max_num_batched_tokens"].dropna().to_dict() == {"late": 2048}


def test_how_many_devices_a_server_had(tmp_path) -> None:
    experts = {"model_path": MOE, "gemm_quant_mode": "nvfp4"}
    copies = {"attention_dp_size": 4, "moe_ep_size": 16, "batch_size": 16}
    points = inferencex(
        tmp_path,
        experts | copies | {"id": "copies"},
        experts | {"id": "split", "tp_size": 2, "attention_dp_size": None, "moe_tp_size": 4},
        experts | {"id": "shared", "moe_ep_size": 4},
        {"id": "dense", "tp_size": 8, "attention_dp_size": None},
    )
    names = ["tensor_parallel", "data_parallel", "expert_parallel"]
    layout = points[["gpu_profile_id", *names]].T.to_dict("list")
    assert layout == {
        "copies": ["4xH200-141GB", 1, 4, 4],
        "split": ["4xH200-141GB", 2, 2, 1],
        "shared": ["4xH200-141GB", 4, 1, 4],
        "dense": ["8xH200-141GB", 8, 1, 1],
    }
    assert set(points["users"]) == {64}
    assert points["precision"].to_dict() == dict.fromkeys(layout, "mxfp4") | {"dense": "fp8"}


def test_repeats_of_a_row_go_and_repeats_of_a_measurement_stay(tmp_path) -> None:
    again = {"id": "again", "silicon_data_source": "other; silicon_concurrency=64"}
    repeat, other = {"id": "repeat", "silicon_ttft_ms": 151.5}, {"id": "other", "backend": "sglang"}
    unknown = {"id": "unknown", "model_path": "nobody/nothing"}
    points = inferencex(tmp_path, {}, {"id": "exact"}, again, repeat, other, unknown)
    assert points.index.tolist() == ["first", "repeat"]
    assert (tmp_path / "counts").read_text() == (
        "2 points of 5 measurements; 1 exact repeats; 1 listed again; "
        "1 left out of nobody/nothing, without a config.json"
    )


SERVER = {
    "model_id": LLAMA, "architecture": "Dense Transformer", "gpu_model": "H100", "num_gpus": 2,
    "data_parallel": 1, "weight_precision": "bfloat16", "avg_output_len": 600.5,
    "max_num_seqs": 64, "median_itl_ms": 20.0, "p90_itl_ms": 30.0, "p95_itl_ms": 35.0,
    "p99_itl_ms": 50.0, "output_throughput_tokens_per_sec": 3000.0, "energy_per_token_joules": 0.25,
}  # fmt: skip


def mlenergy(folder: Path, *servers: dict) -> str:
    task = folder / "chat.json"
    task.write_text(json.dumps({"task": "chat", "configurations": servers}))
    configs = folder / "llms"
    configs.mkdir()
    (configs / f"{LLAMA.replace('/', '__')}.json").touch()
    return str(import_mlenergy([task], folder / "out", "../llms"))


def test_a_full_server_becomes_a_point(tmp_path) -> None:
    experts = {"architecture": "MoE", "num_gpus": 8, "weight_precision": "fp8"}
    copies, unknown = {"data_parallel": 8, "max_num_seqs": 128}, {"model_id": "nobody/nothing"}
    changes = ({}, experts, experts | copies, unknown)
    told = mlenergy(tmp_path, *(SERVER | change for change in changes))
    assert told == "3 points of 4 measurements; 1 left out of nobody/nothing, without a config.json"
    points = pd.read_csv(tmp_path / "out" / "points.csv")
    assert points["gpu_profile_id"].tolist() == ["2xH100-80GB", "8xH100-80GB", "8xH100-80GB"]
    assert points["tensor_parallel"].tolist() == [2, 1, 8]
    assert points["data_parallel"].tolist() == [1, 8, 1]
    assert points["expert_parallel"].tolist() == [1, 8, 8]
    assert points["precision"].tolist() == ["bf16", "fp8", "fp8"]
    first = points.loc[0, ["users", "output_tokens", "p95_itl_ms", "energy_j_per_token", "run_id"]]
    assert first.tolist() == [64, 600.5, 35, 0.25, f"chat/{LLAMA}"]


@pytest.mark.parametrize(
    ("of", "row", "change", "told"),
    [
        (inferencex, ROW, {"system": "tpu"}, "line 3, field 'system': unknown GPU 'tpu'. Fix: add"),
        (inferencex, ROW, {"isl": None, "tp_size": "four"}, "not InferenceX's table"),
        (mlenergy, SERVER, {"gpu_model": "TPU"}, "'configurations.gpu_model': unknown 'TPU'"),
        (mlenergy, SERVER, {"weight_precision": "fp7"}, ".weight_precision': unknown 'fp7'"),
    ],
)
def test_a_row_of_another_kind_is_an_error(tmp_path, of, row, change, told) -> None:
    with pytest.raises(InputError, match=told):
        of(tmp_path, row, row | {"id": "second"} | change)


@needs_mirror
def test_what_ships_comes_out_byte_for_byte(tmp_path) -> None:
    llms = str(SHIPPED.parent / "llms")
    table = MIRROR / "inferencex" / "silicon_sample_vllm.csv"
    import_inferencex(table, tmp_path / "inferencex", llms)
    tasks = [MIRROR / "mlenergy" / f"{name}.json" for name in ("lm-arena-chat", "sourcegraph-fim")]
    import_mlenergy(tasks, tmp_path / "mlenergy", llms)
    for name in ("inferencex", "mlenergy"):
        for file in ("points.csv", "gpu_profiles.tsv", "characterization.yaml"):
            made, shipped = tmp_path / name / file, SHIPPED / name / file
            assert made.read_bytes() == shipped.read_bytes(), shipped


@needs_mirror
@pytest.mark.parametrize(
    ("name", "shipped"), [("inferencex", "inferencex-other-engines"), ("nvidia", "nvidia-perf")]
)
def test_what_ships_of_other_engines_is_each_published_row_once(name, shipped) -> None:
    published = pd.read_csv(MIRROR / "other_engines" / name / "points.csv")
    published["llm_id"] = published["llm_id"].str.replace("--", "__")
    ships = pd.read_csv(SHIPPED / shipped / "points.csv")
    if shipped.startswith("inferencex"):  # nominal lengths, of which requests have 80 to 100%
        published = published.replace({name: {1024: 922, 8192: 7373} for name in LENGTHS})
    assert len(ships.merge(published.drop_duplicates())) == len(ships)  # unchanged
    assert set(ships) - set(published) <= {"kv_precision", *SETTINGS}
    same = [column for column in published if column != "engine_version"]
    rounded = [each[same].round(2).drop_duplicates() for each in (ships, published)]
    # SGLang's recipes start no copies of attention: rows with copies repeat rows without.
    with_copies = (rounded[1]["engine"] == "sglang") & (rounded[1]["data_parallel"] > 1)
    without = rounded[1][~with_copies]
    measured = [column for column in same if column != "data_parallel"]
    repeated = rounded[1][with_copies].merge(without[measured].drop_duplicates(), on=measured)
    assert len(repeated) == with_copies.sum() == (31 if name == "inferencex" else 0)
    assert len(rounded[0]) == len(without) == len(ships)
