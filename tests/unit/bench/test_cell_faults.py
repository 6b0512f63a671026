"""A cell whose job is killed, doubled or damaged: what is kept, what is measured again."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import psutil
import pytest
from test_cell import SETTINGS, measure, prepare_cell, read, weights

from fake_nvml import use_fake_nvml
from sextant.base.errors import InputError
from sextant.base.files import write_json
from sextant.base.job_log import Progress
from sextant.base.scratch import cell_lock
from sextant.bench import cell as cell_module
from sextant.bench.cell import measure_cell
from sextant.engine.protocol import ServerError
from sextant.points.cell_files import damaged_files
from support import PATIENCE_S, ROOT, wait_for

pytestmark = pytest.mark.slow

BATCH = {"kind": "batch", "levels": [2, 6], "n_requests": 6}

# A job as Snakemake's script runs it.
JOB = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from sextant.base.job_log import job_log
from test_cell import measure
with job_log(Path(sys.argv[2]) / "job.log"):
    measure(Path(sys.argv[2]), **json.loads(sys.argv[3]))
"""


@pytest.fixture(autouse=True)
def place(monkeypatch) -> Iterator[Path]:
    """A node's disk for scratch, where nothing may be left."""
    with tempfile.TemporaryDirectory(prefix="sx-") as folder:
        monkeypatch.setenv("SLURM_TMPDIR", folder)
        yield Path(folder)
        wait_for(lambda: not list(Path(folder).iterdir()), "scratch is left")


def start_job(folder: Path, **changes: object) -> subprocess.Popen:
    tests = Path(__file__).parents[2]
    given = json.dumps({"levels": [1, 2, 3], "duration_s": 1.0} | changes)
    return subprocess.Popen(
        [sys.executable, "-c", JOB, str(Path(__file__).parent), str(folder), given],
        env=os.environ | {"PYTHONPATH": f"{tests}:{ROOT / 'scripts'}"},
        stderr=subprocess.DEVNULL,
    )


def interrupted(folder: Path, monkeypatch, **changes) -> Path:
    """Measure levels 1 and 2 and fail at 10; return the checkpoint."""
    with monkeypatch.context() as crash:
        crash.setenv("FAKE_CRASH", "RuntimeError: unknown kernel")
        crash.setenv("FAKE_FAIL_AT", "9")
        with pytest.raises(ServerError, match="unknown kernel"):
            measure(folder, levels=(1, 2, 10), **changes)
    return folder / "out" / "partial"


def sent_s(path: Path, level: int) -> list[float]:
    frame = pd.read_parquet(path)
    return frame[frame["level"] == level]["sent_s"].tolist()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_job_that_is_ended_under_load_goes_on_and_leaves_nothing(tmp_path, number, status):
    job = start_job(tmp_path)
    kept = tmp_path / "out" / "partial"
    wait_for(lambda: (kept / "level-1" / "level.json").exists(), "no level ended")
    time.sleep(0.4)  # into the second
    below = psutil.Process(job.pid).children(recursive=True)
    assert len(below) >= 3  # caretaker, keeper, server
    job.send_signal(number)
    assert job.wait(PATIENCE_S) == status
    _, alive = psutil.wait_procs(below, timeout=PATIENCE_S)
    assert not alive
    assert not (tmp_path / "out" / "run.json").exists()
    assert not list((tmp_path / "out").rglob("*.partial*"))
    assert not (tmp_path / "out" / ".lock").exists()
    before = sent_s(kept / "level-1" / "requests.parquet", 1)
    outputs = measure(tmp_path, levels=(1, 2, 3), duration_s=1.0)
    assert [level["level"] for level in read(outputs.run)["levels"]] == [1, 2, 3]
    assert sent_s(outputs.requests, 1) == before
    assert damaged_files(tmp_path / "out") == {}


def test_a_job_that_is_ended_while_its_replicas_end_ends_them_all(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_ENDS_LATE", str(tmp_path / "ends"))
    pair = {"variant_id": "pair", "replicas": 2, "placement": "shared"}
    job = start_job(tmp_path, levels=[1], duration_s=0.2, memory_gib=1, variant=pair)
    wait_for((tmp_path / "ends").exists, "no server was stopped")
    below = psutil.Process(job.pid).children(recursive=True)
    job.terminate()
    assert job.wait(PATIENCE_S) == 128 + signal.SIGTERM
    _, alive = psutil.wait_procs(below, timeout=PATIENCE_S)
    assert not alive
    assert not (tmp_path / "out" / ".lock").exists()


def test_times_count_from_the_first_attempt_and_levels_name_their_host(tmp_path, monkeypatch):
    kept = interrupted(tmp_path, monkeypatch)
    began = read(kept / "level-1" / "level.json")["level"]["times_since"]
    time.sleep(1.0)
    outputs = measure(tmp_path, levels=(1, 2, 10))
    since, run = datetime.fromisoformat(began), read(outputs.run)
    took_s = (datetime.now(UTC) - since).total_seconds()
    assert datetime.fromisoformat(run["started_at"]) == since.replace(microsecond=0)
    first, second, third = run["levels"]
    assert first["started_s"] + first["duration_s"] <= second["started_s"]
    assert third["started_s"] - second["started_s"] - second["duration_s"] > 1.0
    assert min(sent_s(outputs.requests, 10)) >= third["started_s"]
    for name in (outputs.server, outputs.telemetry):
        times = pd.read_parquet(name).query("level == 10")["time_s"]
        assert times.between(second["started_s"] + second["duration_s"], took_s).all()
    assert {level["host"] for level in run["levels"]} == {run["host"]["name"]}


@pytest.mark.parametrize("other", ["hardware", "limit"])
def test_levels_of_other_hardware_or_time_limits_do_not_mix(tmp_path, monkeypatch, caplog, other):
    kept = sent_s(interrupted(tmp_path, monkeypatch) / "level-1" / "requests.parquet", 1)
    settings = replace(SETTINGS, request_timeout_s=7.0) if other == "limit" else SETTINGS
    if other == "hardware":
        monkeypatch.setattr(cell_module, "hardware", lambda *_: "another CPU")
    outputs = measure(tmp_path, settings, levels=(1, 2, 10))
    assert not set(sent_s(outputs.requests, 1)) & set(kept)
    levels = read(outputs.run)["levels"]
    assert {level["timeout_s"] for level in levels} == {settings.request_timeout_s}
    assert ("level-1: it was measured on" in caplog.text) == (other == "hardware")


@pytest.mark.parametrize("damaged", ["level", "probes"])
def test_a_damaged_checkpoint_costs_what_is_damaged(tmp_path, monkeypatch, caplog, damaged):
    kept = interrupted(tmp_path, monkeypatch)
    before = {n: sent_s(kept / f"level-{n}" / "requests.parquet", n) for n in (1, 2)}
    path = kept / "probes.jsonl" if damaged == "probes" else kept / "level-2" / "requests.parquet"
    path.write_bytes(path.read_bytes()[:-40])
    outputs = measure(tmp_path, levels=(1, 2, 10))
    assert "damaged" in caplog.text and path.parent.name in caplog.text
    assert sent_s(outputs.requests, 1) == before[1]
    assert (sent_s(outputs.requests, 2) == before[2]) == (damaged == "probes")
    assert [weight for weight, _ in weights(outputs)] == [4000]
    assert damaged_files(tmp_path / "out") == {}


def test_a_second_job_takes_over_what_the_first_has_measured(tmp_path, caplog):
    caplog.set_level("INFO")
    job = start_job(tmp_path)
    wait_for(lambda: (tmp_path / "out" / "partial" / "probes.jsonl").exists(), "no start")
    outputs = measure(tmp_path, levels=(1, 2, 3), duration_s=1.0)
    assert job.wait(PATIENCE_S) == 0
    assert "another job measures this cell" in caplog.text
    assert "its results are taken over" in caplog.text
    assert [level["level"] for level in read(outputs.run)["levels"]] == [1, 2, 3]
    assert damaged_files(tmp_path / "out") == {}


def test_a_second_job_of_another_definition_measures_when_the_first_has_ended(tmp_path):
    first = measure(tmp_path, levels=(1,), scenario=BATCH)
    assert len(read(first.run)["levels"]) == 2
    cell, outputs = prepare_cell(tmp_path, levels=(1,))
    with cell_lock(tmp_path / "out"):
        waiting = threading.Thread(
            target=measure_cell,
            args=(cell, SETTINGS, outputs.folder, outputs.server_log, Progress("test", 1)),
        )
        waiting.start()
        time.sleep(1.0)
        assert len(read(outputs.run)["levels"]) == 2
    waiting.join(PATIENCE_S)
    assert len(read(outputs.run)["levels"]) == 1


def test_a_full_disk_keeps_the_levels_that_ended_and_says_what_to_do(tmp_path, monkeypatch):
    write = write_json

    def refuse(path: Path, value: object) -> None:
        if "level-6" in str(path):  # as atomic_path tells it
            raise InputError("no room to write level.json", file=path.parent, fix="free some")
        write(path, value)

    with monkeypatch.context() as full:
        full.setattr("sextant.bench.measurement.write_json", refuse)
        with pytest.raises(InputError, match="level-6: no room"):
            measure(tmp_path, scenario=BATCH)
    before = sent_s(tmp_path / "out" / "partial" / "level-2" / "requests.parquet", 2)
    outputs = measure(tmp_path, scenario=BATCH)
    assert sent_s(outputs.requests, 2) == before
    assert json.loads(outputs.run.read_text())["left_out"] is None


def test_a_gpu_that_is_lost_is_told_and_the_next_run_goes_on(tmp_path, monkeypatch):
    # Of an NVML of our own, which only a process has that starts with it.
    use_fake_nvml(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")

    def gpu_job() -> int:
        return start_job(tmp_path, levels=[2, 10], duration_s=2.0, kind="gpu").wait(PATIENCE_S)

    with monkeypatch.context() as lost:
        lost.setenv("FAKE_CRASH", "torch.AcceleratorError: CUDA error: GPU is lost")
        lost.setenv("FAKE_FAIL_AT", "9")
        lost.setenv("FAKE_NVML_LOST", "1:1.0")
        assert gpu_job() == 1
    said = (tmp_path / "job.log").read_text()
    assert "CUDA error: GPU is lost" in said and "out of memory" not in said
    before = pd.read_parquet(tmp_path / "out" / "partial" / "level-2" / "telemetry.parquet")
    assert before["power_w"].max() == 200.0  # until it was lost
    assert not (tmp_path / "out" / "run.json").exists()
    assert gpu_job() == 0
    run = read(tmp_path / "out" / "run.json")
    first, second = run["levels"]
    assert any("GPU is lost" in warning for warning in first["telemetry_warnings"])
    assert second["telemetry_warnings"] == []
    after = pd.read_parquet(tmp_path / "out" / "telemetry.parquet").query("level == 2")
    pd.testing.assert_frame_equal(after.reset_index(drop=True), before)
    assert (after["power_w"].isna() | (after["power_w"] == 200.0)).all()  # null, never zero
    assert [p["outcome"] for p in read(tmp_path / "out" / "tuning.json")["probes"]] == ["ok"]
