"""The container wrapper, with a stand-in for apptainer that runs what it is told outside."""

import os
import re
import subprocess
import urllib.request
from dataclasses import replace

import psutil
import pytest

from fake_servers import GPU, SETTINGS
from sextant.engine.vllm import VLLMServer
from support import FAKE_PYTHON, ROOT

WRAPPER = ROOT / "workflow" / "envs" / "vllm-apptainer"
# Options up to the image are noted; the interpreter after it is the fake engine's.
APPTAINER = f"""#!/bin/sh
printf '%s\\n' "$@" > "$FAKE_APPTAINER_LOG"
echo "offline $HF_HUB_OFFLINE" >> "$FAKE_APPTAINER_LOG"
while [ "$1" != python3 ]; do shift; done
shift
exec {FAKE_PYTHON} "$@"
"""


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Put the stand-in on PATH; return the file in which it notes its arguments."""
    program = tmp_path / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text(APPTAINER)
    program.chmod(0o755)
    (tmp_path / "vllm image.sif").touch()
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SEXTANT_VLLM_IMAGE", str(tmp_path / "vllm image.sif"))
    monkeypatch.setenv("FAKE_APPTAINER_LOG", str(tmp_path / "arguments"))
    return tmp_path / "arguments"


def test_a_server_runs_and_ends_inside_a_container(log, tmp_path, monkeypatch):
    monkeypatch.setenv("SEXTANT_VLLM_BIND", "/weights,/cache")
    spec = replace(GPU, model=tmp_path)
    settings = replace(SETTINGS, python=str(WRAPPER))
    with VLLMServer(spec, settings, tmp_path / "server.log") as server:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health") as answer:
            assert answer.status == 200
        running = psutil.Process(server.pids[0]).children(recursive=True)
    assert not any(process.is_running() for process in running)
    told = log.read_text().splitlines()
    assert told[:3] == ["exec", "--nv", "--no-home"]
    assert told[told.index("python3") - 1] == str(tmp_path / "vllm image.sif")
    bound = [told[i + 1] for i, word in enumerate(told) if word == "--bind"]
    assert {str(tmp_path), "/weights,/cache"} <= set(bound)
    assert told[-1] == "offline 1"


def test_without_gpus_none_are_asked_for(log, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    subprocess.run([WRAPPER, "-m", "vllm.entrypoints.openai.api_server", "--help"], check=False)
    assert "--nv" not in log.read_text().splitlines()


def test_without_an_image_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("SEXTANT_VLLM_IMAGE", str(tmp_path / "none.sif"))
    done = subprocess.run([WRAPPER, "-m", "vllm"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, f"no image {tmp_path}/none.sif\n")


def test_the_image_has_the_version_of_the_environment():
    definition = (ROOT / "workflow/envs/vllm.def").read_text()
    (pinned,) = re.findall(r"vllm==(\S+)", (ROOT / "workflow/envs/vllm.yaml").read_text())
    assert re.findall(r"^From: vllm/vllm-openai:v(\S+)$", definition, re.M) == [pinned]
