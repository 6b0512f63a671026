"""One cell on the real vLLM server (CPU build): what is measured agrees with the server."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest

from real_vllm import NEEDS_VLLM
from support import PATIENCE_S, ROOT

pytestmark = [pytest.mark.slow, *NEEDS_VLLM]


MEASURE = """
import sys
from dataclasses import asdict
from pathlib import Path
from sextant.base.sheets import read_yaml
from sextant.bench.cell import run_job
from sextant.experiment.scenarios import ClosedLoop, plain
from sextant.facts.llm import load_llm

out, users = Path(sys.argv[1]), tuple(map(int, sys.argv[2].split(",")))
config, settings = Path("resources/llms/demo-opt-6m.json"), read_yaml(Path("config/config.yaml"))
settings["engine"]["extra_arguments"] = sys.argv[3:]
definition = {
    "source": "measured",
    "llm_id": config.stem,
    "llm": asdict(load_llm(config, settings["engine"]["dtype"])),
    "gpu_profile_id": "1xcpu",
    "gpu_profile": None,
    "workload_id": "workload",
    "workload": {},
    "scenario_id": "closed_loop",
    "config_path": str(config),
    "model": None,
    "devices": {"kind": "cpu", "n_gpus": 1, "memory_gib": 0.1},
    "max_input_tokens": 256,
    "max_output_tokens": 64,
    "scenario": plain(ClosedLoop(levels=users, warmup_s=1, duration_s=5)),
    "seed": 0,
    "engine": settings["engine"],
}
logs = {"job": str(out / "job.log"), "server": str(out / "server.log")}
workload = out.parent / "workload" / "requests.parquet"
run_job(definition, settings, str(workload), str(out / "measured.json"), logs)
"""


def command(out: Path, users: str, *extra: str) -> list[str]:
    return [sys.executable, "-c", MEASURE, str(out), users, *extra]


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vllm") / "workload"
    folder.mkdir()
    requests = {"input_tokens": [32, 128, 256], "output_tokens": [64, 32, 48], "count": [5, 3, 2]}
    pd.DataFrame(requests).to_parquet(folder / "requests.parquet")
    return folder


@pytest.fixture(scope="module")
def measured(workload: Path) -> Path:
    out = workload.parent / "measured"
    done = subprocess.run(command(out, "1,8"), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def test_lengths_are_exact_and_counted_by_the_server(measured: Path) -> None:
    requests = pd.read_parquet(measured / "requests.parquet")
    assert set(requests["level"]) == {1, 8}
    assert set(requests["status"]) == {"ok"}
    assert (requests["input_tokens"] == requests["requested_input_tokens"]).all()
    assert (requests["output_tokens"] == requests["requested_output_tokens"]).all()
    assert (requests["token_offsets_ms"].map(len) == requests["output_tokens"]).all()


def test_the_clients_mean_itl_is_the_servers_own_at_eight_users(measured: Path) -> None:
    requests = pd.read_parquet(measured / "requests.parquet").query("level == 8")
    client_ms = np.concatenate([np.diff(offsets) for offsets in requests["token_offsets_ms"]])
    run = json.loads((measured / "run.json").read_text())
    (level,) = [level for level in run["levels"] if level["level"] == 8]
    assert client_ms.mean() == pytest.approx(level["server_mean_itl_ms"], rel=0.1)


def test_with_drafts_the_level_says_how_many_tokens_a_step_emits(workload: Path) -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}
    out = workload.parent / "drafted"
    extra = ("--speculative-config", json.dumps(drafts))
    done = subprocess.run(command(out, "2", *extra), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (level,) = json.loads((out / "run.json").read_text())["levels"]
    assert 1 <= level["server_accepted_length"] <= 4
    assert (pd.read_parquet(out / "requests.parquet")["status"] == "ok").all()


def test_duration_is_the_wall_time_of_the_measured_requests(measured: Path) -> None:
    requests = pd.read_parquet(measured / "requests.parquet")
    run = json.loads((measured / "run.json").read_text())
    for level in run["levels"]:
        rows = requests[requests["level"] == level["level"]]
        wall_s = rows["last_token_s"].max() - rows["sent_s"].min()
        assert level["duration_s"] == pytest.approx(wall_s, rel=0.01)


def test_the_batch_weight_is_what_memory_holds(measured: Path) -> None:
    tuning = json.loads((measured / "tuning.json").read_text())
    assert tuning["verdict"]["outcome"] == "feasible"
    assert tuning["batch_weight_tokens"] == tuning["memory"]["max_batch_weight_tokens"]
    log = (measured / "server.log").read_text()
    assert "num_gpu_blocks_override" in log


def test_killing_the_job_leaves_no_process_behind(workload: Path) -> None:
    out = workload.parent / "killed"
    job = subprocess.Popen(command(out, "1"), cwd=ROOT, start_new_session=True)
    deadline = time.monotonic() + 120
    below: list[psutil.Process] = []
    while time.monotonic() < deadline and len(below) < 3:  # keeper, API server, engine
        time.sleep(0.5)
        assert job.poll() is None
        below = psutil.Process(job.pid).children(recursive=True)
    assert len(below) >= 3
    os.kill(job.pid, signal.SIGKILL)
    job.wait()
    _, alive = psutil.wait_procs(below, timeout=PATIENCE_S)
    assert alive == []
    assert not (out / "run.json").exists()
