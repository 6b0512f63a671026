"""Feasibility from memory facts: what fits, and the reasons why something does not."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sextant.base.sheets import load_sheet, read_yaml
from sextant.experiment.sheets import CellRow, GpuProfileRow, LlmRow
from sextant.facts.engine import memory_of
from sextant.facts.gpu import GIB, Devices, load_gpu, profile_from_row, profile_of_id
from sextant.facts.llm import LLM, load_llm
from sextant.points.verdict import assess
from support import ROOT

LLAMA = load_llm(ROOT / "resources/llms/meta-llama__Llama-3.1-8B-Instruct.json")


def llm(n_heads=64, n_kv_heads=64, weights_gib=8) -> LLM:
    """An LLM of round numbers: its KV cache takes 2 · 16 · kv_heads · 64 · 2 bytes a token."""
    heads = {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "head_dim": 64}
    sizes = {"n_layers": 16, "hidden_size": 4096, "ffn_size": 1, "vocab_size": 1000, **heads}
    sizes |= {"n_parameters": weights_gib * 2**29, "n_flop_parameters": 1}
    return LLM(llm_type="llama", context_tokens=4096, dtype="float16", **sizes)


def gpus(n: int, memory_gib: float = 20.0) -> Devices:
    return Devices("gpu", n, memory_gib)


def test_what_the_weights_leave_is_kv_cache():
    # Half of 20 GiB is 10; 8 are weights; a token of 64 KV heads takes 256 KiB.
    found = assess(llm(), gpus(1), 0.5, 100)
    assert (found.is_feasible, found.verdict.reason) == (True, "fits")
    assert (found.weight_gib, found.kv_gib) == (8.0, 2.0)
    assert found.max_batch_weight_tokens == 8192
    assert found.memory_utilization == 0.5


@pytest.mark.parametrize(
    ("heads", "kv_heads", "n_gpus", "fits"),
    [
        (64, 64, 3, False),
        (64, 8, 4, True),
        (64, 8, 16, True),
        (48, 8, 12, False),  # 12 GPUs divide the heads, but not 8 KV heads, nor these them
        (48, 1, 12, True),
        (64, 64, 128, False),
    ],
)
def test_heads_have_to_be_shared_out_evenly(heads, kv_heads, n_gpus, fits):
    found = assess(llm(heads, kv_heads), gpus(n_gpus), 0.9, 100)
    assert found.is_feasible == fits
    if not fits:
        assert found.verdict.reason.startswith(f"unsupported: {heads} heads")


def test_a_latent_vector_is_stored_on_every_gpu_and_needs_no_split():
    # 64 heads, one vector of 512 numbers a layer: 16 KiB a token, a quarter of 64 KiB.
    latent = replace(llm(64, 64), kv_latent_size=512)
    assert assess(latent, gpus(1), 0.5, 1).max_batch_weight_tokens == 131_072
    # 32 GiB on four GPUs, each of which has the whole cache.
    assert assess(latent, gpus(4), 0.5, 1).max_batch_weight_tokens == 4 * 131_072
    # 3 KV heads, if they counted, could not be shared out over 2 GPUs; 64 heads can.
    assert assess(replace(latent, n_kv_heads=3), gpus(2), 0.5, 1).is_feasible
    assert not assess(latent, gpus(3), 0.5, 1).is_feasible


def test_facts_of_every_device_are_valid_and_dense():
    folder = ROOT / "resources/gpus"
    facts = {path.stem: load_gpu(folder, path.stem) for path in folder.iterdir()}
    # One direction: PCIe gen3, gen4, gen5; NVLink of Ampere, Hopper, Blackwell.
    links = {"T4-16GB": 16, "L4-24GB": 32, "H100-PCIe-80GB": 64}
    links |= {"A100-80GB": 300, "H200-141GB": 450, "B200-180GB": 900}
    assert {name: facts[name].interconnect_gb_s for name in links} == links
    accelerators = {name for name, gpu in facts.items() if gpu.kind == "accelerator"}
    assert accelerators == {"B60-24GB", "Gaudi-3-128GB"}
    for gpu in facts.values():
        assert gpu.dense_tflops("nvfp4") >= gpu.dense_tflops("mxfp4") >= gpu.dense_16bit_tflops


def test_layers_with_a_window_or_a_state_take_less_of_long_requests():
    # 16 KiB a token and layer. Half of the layers keep 1024 tokens: 128 KiB a token, and 128 MiB.
    half = replace(llm(), n_sliding_layers=8, sliding_window_tokens=1024)
    assert assess(half, gpus(1), 0.5, 1024).max_batch_weight_tokens == 8192
    assert assess(half, gpus(1), 0.5, 8192).max_batch_weight_tokens == 14_563
    assert not assess(llm(), gpus(1), 0.5, 8193).is_feasible
    assert assess(half, gpus(1), 0.5, 8193).is_feasible
    state = replace(llm(), state_bytes_per_request=2**28)  # as much as 1024 tokens
    assert assess(state, gpus(1), 0.5, 1024).max_batch_weight_tokens == 4096


SIZES = [llm(weights_gib=gib, n_kv_heads=heads) for gib in (1, 8, 60) for heads in (1, 8, 64)]
SHAPES = st.builds(
    replace,
    st.sampled_from(SIZES),
    kv_dtype=st.sampled_from(["", "fp8"]),
    n_sliding_layers=st.sampled_from([0, 8, 16]),
    sliding_window_tokens=st.just(512),
    state_bytes_per_request=st.sampled_from([0, 2**20]),
    kv_latent_size=st.sampled_from([0, 576]),
    n_experts=st.just(64),
    n_experts_per_token=st.sampled_from([0, 8]),
)


@given(
    shape=SHAPES,
    n=st.sampled_from([1, 2, 4, 8, 16]),
    gib=st.floats(1, 300),
    more=st.floats(0, 100),
    share=st.floats(0.1, 1),
    length=st.integers(1, 200_000),
    engine=st.sampled_from([None, "vllm", "sglang"]),
)
def test_no_server_has_memory_that_its_devices_lack(shape, n, gib, more, share, length, engine):
    memory = memory_of(shape, gpus(n, gib), share, engine)
    tokens = memory.kv_tokens(length)
    held = tokens / length * memory.request_bytes(length)
    assert held <= memory.kv_bytes * (1 + 1e-9)
    if tokens:
        assert held + memory.weight_bytes <= share * n * gib * GIB * (1 + 1e-9)
    # An engine takes memory, it makes none; a larger device or two more never hold less.
    assert tokens <= memory_of(shape, gpus(n, gib), share).kv_tokens(length)
    assert tokens <= memory_of(shape, gpus(n, gib + more), share, engine).kv_tokens(length)
    assert tokens <= memory_of(shape, gpus(2 * n, gib), share, engine).kv_tokens(length)
    wide = replace(shape, kv_dtype="float32")
    assert tokens >= memory_of(wide, gpus(n, gib), share, engine).kv_tokens(length)
    if not shape.kv_dtype and not shape.state_bytes_per_request:
        eight = memory_of(replace(shape, kv_dtype="fp8"), gpus(n, gib), share, engine)
        assert abs(eight.kv_tokens(length) - 2 * tokens) <= 1


@pytest.mark.parametrize("run", ["run_a", "run_b"])
def test_the_cache_is_that_of_a_real_server(run, mirror):
    """vLLM 0.20.2 logged its blocks on an H100; measured by others (autoscaling/ of the mirror)."""
    path = mirror / "autoscaling" / run / "config.yaml"
    said = read_yaml(path)["engine_cache"]
    share = float(said["gpu_memory_utilization"])
    devices = profile_of_id("1xH100-80GB").devices
    memory = memory_of(LLAMA, devices, share, "vllm")
    logged = int(said["num_gpu_blocks"]) * int(said["block_size"])
    assert memory.kv_tokens(1000) == pytest.approx(logged, rel=0.02)


def test_cores_of_a_processor_share_one_memory_and_need_no_even_heads():
    found = assess(llm(n_heads=5, n_kv_heads=1), Devices("cpu", 3, 8.0), 0.5, 1)
    # 3 · 8 GiB · 0.5 - 8 GiB = 4 GiB at 4 KiB a token.
    assert (found.is_feasible, found.max_batch_weight_tokens) == (True, 2**20)


def test_what_llm_pilot_measured_fits_into_the_facts_of_its_devices():
    def rows(sheet, kind, key=None):
        return load_sheet(ROOT / sheet, kind, key)

    profiles = {
        row["gpu_profile_id"]: profile_from_row(row, load_gpu(ROOT / "resources/gpus", gpu_id))
        for row in rows("config/llm-pilot/gpu_profiles.tsv", GpuProfileRow, "gpu_profile_id")
        for gpu_id in [row["gpu_id"]]
    }
    llms = {
        row["llm_id"]: replace(load_llm(ROOT / row["config"]), dtype="float16")
        for row in rows("config/llm-pilot/llms.tsv", LlmRow, "llm_id")
    }
    cells = rows("resources/llm-pilot/cells.tsv", CellRow)
    assert {(len(llms), len(profiles), len(cells))} == {(10, 14, 140)}
    for cell in cells:
        devices = profiles[cell["gpu_profile_id"]].devices
        # The longest request of the characterization has 946 tokens, input and output together.
        found = assess(llms[cell["llm_id"]], devices, 1.0, 946)
        assert found.is_feasible or cell["status"] != "measured", (cell, found.verdict.reason)
