"""The command of an answer starts the real vLLM (CPU build), which then answers."""

import json
import os
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest

from deployments import settings_on
from real_vllm import NEEDS_VLLM, PYTHON
from sextant.base.network import reserve_port
from sextant.bench.cell import model_folder
from sextant.deploy.deployment import HEALTH_PATH, ReplicaDeployment, deployment_of
from sextant.deploy.settings import MODEL_PLACE
from sextant.engine.vllm_command import DATA_SHEET
from support import ROOT, wait_for

pytestmark = [pytest.mark.slow, *NEEDS_VLLM]
CONFIG = ROOT / "resources" / "llms" / "demo-llama-16m.json"
N_TOKENS = 8


def command_here(deployment: ReplicaDeployment, model: Path, port: int) -> list[str]:
    """Return the command with its place filled in, on loopback, for random weights.

    The CPU build has no program `vllm`; the module behind `vllm serve MODEL` takes `--model`.
    """
    program, serve, place, *options = deployment.command.arguments
    assert (program, serve, place) == ("vllm", "serve", MODEL_PLACE)
    options[options.index("--host") + 1] = "127.0.0.1"
    options[options.index("--port") + 1] = str(port)
    module = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    return [*module, *options, "--load-format", "dummy", "--skip-tokenizer-init"]


def is_healthy(url: str, server: subprocess.Popen[bytes], log: Path) -> bool:
    assert server.poll() is None, log.read_text()[-4000:]
    try:
        with urllib.request.urlopen(url + HEALTH_PATH, timeout=5) as response:
            return response.status == 200
    except OSError:
        return False


def test_the_command_of_an_answer_starts_a_server_that_answers(tmp_path: Path) -> None:
    settings = settings_on("1xcpu-core", CONFIG, engine="vllm", max_model_len=2048)
    deployment = deployment_of(settings, 1)
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = kept | dict(deployment.command.environment)
    environment |= DATA_SHEET["environment"]["with"] | {"HF_HUB_OFFLINE": "1"}
    log = tmp_path / "server.log"
    held = reserve_port()
    port = held.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with model_folder(CONFIG) as model, log.open("wb") as output:
        server = subprocess.Popen(
            command_here(deployment, model, port),
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_for(lambda: is_healthy(url, server, log), "the server is not healthy")
            asked = {
                "model": str(model),
                "prompt": [*range(5, 37)],
                "max_tokens": N_TOKENS,
                "ignore_eos": True,
                "detokenize": False,
            }
            request = urllib.request.Request(
                f"{url}/v1/completions",
                json.dumps(asked).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as response:
                answer = json.load(response)
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
            held.close()
    assert answer["usage"]["completion_tokens"] == N_TOKENS
