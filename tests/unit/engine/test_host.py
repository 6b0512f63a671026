"""What identifies the machine of a measurement."""

import json
import subprocess
import sys

import pytest

from fake_nvml import use_fake_nvml
from sextant.engine.devices import hardware, is_mps_running


def told(script: str) -> str:
    command = [sys.executable, "-c", f"from sextant.engine.devices import *; {script}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_gpus_and_their_driver_are_named(monkeypatch):
    use_fake_nvml(monkeypatch, gpus=2, mig=1)
    as_json = "from sextant.points.cell_files import to_json; import json; "
    host = json.loads(told(f"{as_json}print(json.dumps(to_json(host_facts())))"))
    assert (host["gpu_driver"], host["cuda_version"]) == ("550.54.15", "12.4")
    gpus = [(each["name"], each["is_mig_enabled"]) for each in host["gpus"]]
    assert gpus == [("Invented 0", False), ("Invented 1", True)]
    assert host["python"] == sys.version.split()[0] and "×" in host["processor"]


@pytest.mark.parametrize(("has_pipe", "is_running"), [(False, False), (True, None)])
def test_a_pipe_without_its_daemon_leaves_mps_open(monkeypatch, tmp_path, has_pipe, is_running):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    if has_pipe:
        (tmp_path / "control").touch()
    assert is_mps_running() is is_running
    daemon = tmp_path / "nvidia-cuda-mps-control"
    daemon.symlink_to("/bin/sleep")
    with subprocess.Popen([daemon, "60"]) as process:
        assert is_mps_running() is True
        process.kill()


def test_hardware_is_named_by_processor_and_the_jobs_gpus(monkeypatch):
    use_fake_nvml(monkeypatch, gpus=3)
    said = told("print(hardware('gpu', [2, 'GPU-0', 7]))")
    *processor, first, second, third = said.split(", ")
    assert "×" in "".join(processor)
    assert (first, second, third) == ("Invented 2", "Invented 0", "unknown GPU")
    assert hardware("cpu", [0, 1]) == ", ".join(processor)
