"""What is stored comes back as it was."""

import json
from dataclasses import replace

import pytest

from llm_configs import PUBLISHED
from sextant.facts.gpu import GPUProfile, load_gpu
from sextant.facts.llm import load_llm
from sextant.points.measured import load_characterization
from sextant.points.store import build_store, connect, store_fact_rows
from support import ROOT

SETTING = {"source": "measured", "workload_id": "chat", "scenario_id": "users"}


@pytest.mark.parametrize("name", ["DeepSeek-V2-Lite", "Mixtral-8x7B", "Gemma-2-9B", "GPT-2"])
def test_facts_of_llms_and_gpus_come_back_as_they_were(tmp_path, name):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[name][0]))
    plain = load_llm(tmp_path / "config.json")
    quantized = replace(plain, kv_dtype="fp8", weight_bits=4.15625, n_quantized_parameters=2**40)
    llms = {"plain": plain, "quantized": quantized}
    gpu = load_gpu(ROOT / "resources/gpus", "A100-80GB")
    profiles = {"2xA100-80GB": GPUProfile("2xA100-80GB", gpu, 2, 5.0)}
    point = {**SETTING, "llm_id": "plain", "gpu_profile_id": "2xA100-80GB", "level": 1}
    rows = {**store_fact_rows(llms, profiles), "point": [point | {"variant_id": "default"}]}
    path = tmp_path / "sextant.duckdb"
    build_store(path, rows, {})
    known = load_characterization(path, **SETTING)
    assert (known.llms, known.profiles) == (llms, profiles)
    with connect(path, read_only=True) as store:
        columns = "attention, weight_bytes, kv_bytes_per_token"
        stored = store.execute(f"SELECT {columns} FROM llm WHERE llm_id = 'quantized'").fetchone()
    assert stored == (plain.attention, quantized.weight_bytes, plain.kv_bytes_per_token // 2)
