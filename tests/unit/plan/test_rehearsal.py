"""A rehearsal writes the files of a cell with the law's latencies."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from sextant.ask import source
from sextant.base.errors import InputError
from sextant.base.job_log import Progress
from sextant.bench.measurement import Cell, cell_from_definition
from sextant.experiment.loading import check_config, load_experiment
from sextant.experiment.servers import EngineSettings
from sextant.facts.gpu import GPUProfile, load_gpu
from sextant.plan.rehearsal import rehearse_cell
from sextant.points.cell_files import damaged_files, read_cell
from sextant.points.folder import load_folder
from sextant.points.verdict import ProbeOutcome
from support import ROOT

SETTINGS = EngineSettings(
    python="none",
    dtype="bfloat16",
    block_size_tokens=16,
    max_num_seqs=64,
    memory_utilization=0.9,
    start_timeout_s=60,
    request_timeout_s=60,
    max_server_starts=2,
    name="simulated",
)
USERS = {"kind": "closed_loop", "levels": [1, 8], "duration_s": 30, "warmup_s": 5}


def profile(gpu_id: str, n_gpus: int = 1) -> GPUProfile:
    gpu = load_gpu(ROOT / "resources/gpus", gpu_id)
    return GPUProfile(f"{n_gpus}x{gpu_id}", gpu, n_gpus, 4.0)


H100 = profile("H100-80GB")


def cell(folder: Path, gpu_profile: GPUProfile, scenario: dict) -> Cell:
    folder.mkdir(exist_ok=True)
    workload = {"input_tokens": [200, 800], "output_tokens": [50, 100], "count": [1, 1]}
    pd.DataFrame(workload).to_parquet(folder / "requests.parquet")
    devices = gpu_profile.devices
    definition = {
        "source": "simulated",
        "llm_id": "llama",
        "gpu_profile_id": gpu_profile.gpu_profile_id,
        "workload_id": "chat",
        "scenario_id": "load",
        "variant": {},
        "config_path": str(ROOT / "resources/llms/meta-llama__Llama-3.1-8B-Instruct.json"),
        "model": None,
        "devices": {name: getattr(devices, name) for name in ("kind", "n_gpus", "memory_gib")},
        "max_input_tokens": 1000,
        "max_output_tokens": 200,
        "scenario": scenario,
        "seed": 1,
    }
    return cell_from_definition(definition, folder / "requests.parquet")


def rehearse(folder: Path, scenario: dict, gpu_profile: GPUProfile = H100) -> Path:
    out = folder / "out"
    asked = cell(folder, gpu_profile, scenario)
    rehearse_cell(asked, SETTINGS, out, Progress("test", 1), gpu_profile=gpu_profile)
    assert damaged_files(out) == {}
    return out


def test_users_share_a_server_and_the_same_seed_gives_the_same_requests(tmp_path):
    out = rehearse(tmp_path / "a", USERS)
    run = read_cell(out).run
    assert run.server.engine == "simulated" and run.source == "simulated"
    one, eight = run.levels
    assert 1 < one.medians.itl_ms < eight.medians.itl_ms < 100
    assert eight.medians.n_ok > 4 * one.medians.n_ok
    rows = pd.read_parquet(out / "requests.parquet")
    assert (rows["status"] == "ok").all() and rows["last_token_s"].is_monotonic_increasing is False
    again = rehearse(tmp_path / "b", USERS)
    pd.testing.assert_frame_equal(rows, pd.read_parquet(again / "requests.parquet"))


@pytest.mark.parametrize(
    "scenario",
    [
        {"kind": "open_loop", "levels": [0.5, 2], "duration_s": 30},
        {"kind": "batch", "levels": [4, 16], "n_requests": 32},
    ],
    ids=lambda scenario: scenario["kind"],
)
def test_rates_and_batches_are_simulated_too(tmp_path, scenario):
    rows = pd.read_parquet(rehearse(tmp_path, scenario) / "requests.parquet")
    assert set(rows["level"]) == set(scenario["levels"]) and (rows["status"] == "ok").all()


def test_bursts_are_refused(tmp_path):
    burst = {"kind": "burst", "levels": [1], "duration_s": 10}
    with pytest.raises(InputError, match="a scenario of kind burst cannot be simulated"):
        rehearse(tmp_path, burst)


def test_what_does_not_fit_is_a_result(tmp_path):
    verdict = read_cell(rehearse(tmp_path, USERS, profile("T4-16GB"))).run.verdict
    assert verdict.outcome in (ProbeOutcome.KV_CACHE_TOO_SMALL, ProbeOutcome.WEIGHTS_TOO_LARGE)


def test_no_answer_takes_its_points_for_measurements(monkeypatch):
    def simulated(path):
        measured = load_folder(path)
        return replace(measured, points=measured.points.assign(engine="simulated"))

    monkeypatch.setattr(source, "load_folder", simulated)
    with pytest.raises(InputError, match="were simulated, not measured"):
        source.load_sources(["archive:nvidia-perf"])


def test_the_source_says_whether_points_are_simulated(config):
    def given(name, source):
        return config | {"source": source, "engine": config["engine"] | {"name": name}}

    for name, called in (("simulated", "measured"), ("vllm", "simulated")):
        with pytest.raises(InputError, match="the points of a rehearsal are called simulated"):
            check_config(given(name, called), "config.yaml")
    check_config(given("simulated", "simulated"), "config.yaml")


def test_processor_cores_are_refused_with_what_to_rehearse_instead(config):
    demo = config | {"source": "simulated", "engine": config["engine"] | {"name": "simulated"}}
    with pytest.raises(InputError, match=r"cpu-core cannot be rehearsed.*config/cluster\.yaml"):
        load_experiment(demo)
