"""What identifies the machine of a measurement."""

import json
import subprocess
import sys

import pytest

from fake_nvml import use_fake_nvml
from sextant.engine.devices import hardware, is_mps_running

PRINT = (
    "import json; from sextant.engine.devices import host_facts; "
    "from sextant.points.cell_files import to_json; print(json.dumps(to_json(host_facts())))"
)


def facts() -> dict:
    done = subprocess.run([sys.executable, "-c", PRINT], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_gpus_and_their_driver_are_named(monkeypatch):
    use_fake_nvml(monkeypatch, gpus=2, mig=1)
    host = facts()
    assert (host["gpu_driver"], host["cuda_version"]) == ("550.54.15", "12.4")
    assert host["gpus"] == [
        {"name": "Invented 0", "is_mig_enabled": False},
        {"name": "Invented 1", "is_mig_enabled": True},
    ]
    assert host["python"] == sys.version.split()[0] and "×" in host["processor"]


@pytest.mark.parametrize(("has_pipe", "is_running"), [(False, False), (True, None)])
def test_a_pipe_without_its_daemon_leaves_mps_open(monkeypatch, tmp_path, has_pipe, is_running):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    if has_pipe:
        (tmp_path / "control").touch()
    assert is_mps_running() is is_running


def test_the_mps_daemon_is_found(monkeypatch, tmp_path):
    daemon = tmp_path / "nvidia-cuda-mps-control"
    daemon.symlink_to("/bin/sleep")
    with subprocess.Popen([daemon, "60"]) as process:
        try:
            assert is_mps_running() is True
        finally:
            process.kill()


def test_hardware_is_named_by_processor_and_the_jobs_gpus(monkeypatch):
    use_fake_nvml(monkeypatch, gpus=3)
    script = "from sextant.engine.devices import hardware; print(hardware('gpu', [2, 'GPU-0', 7]))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    *processor, first, second, third = done.stdout.strip().split(", ")
    assert "×" in "".join(processor)
    assert (first, second, third) == ("Invented 2", "Invented 0", "unknown GPU")
    assert hardware("cpu", [0, 1]) == ", ".join(processor)
