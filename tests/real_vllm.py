"""What the tests on real servers share: vLLM's environment, and a small LLM on it."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from sextant.benchmark.cell import model_folder
from sextant.experiment.engine_settings import EngineSettings
from sextant.simulate.requests import Requests
from sextant.simulate.scheduler import Scheduler
from sextant.simulate.step_law import StepLaw
from support import ROOT

PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
NEEDS_VLLM = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON.exists(), reason="needs .venv-vllm (make .venv-vllm/.ready)"),
]
CONFIG = ROOT / "resources" / "llms" / "demo-opt-6m.json"
SETTINGS = EngineSettings(
    python=str(PYTHON),
    dtype="bfloat16",
    block_size_tokens=32,
    max_num_seqs=8,
    memory_utilization=0.9,
    start_timeout_s=180,
    request_timeout_s=60,
    max_server_starts=1,
)
SEARCH = replace(SETTINGS, max_num_seqs=64, request_timeout_s=120, max_server_starts=5)
"""Settings for the search for the batch weight: of its test and of its benchmark."""


class Scheduled(NamedTuple):
    """What vLLM's own scheduler made of requests."""

    requests: pd.DataFrame
    """`first_s, last_s, preemptions, cached`."""
    steps: np.ndarray
    """Prompt tokens and decoding sequences of each step, shape (steps, 2)."""


def schedule_with_vllm(
    cases: Sequence[tuple[Requests, Scheduler]], law: StepLaw
) -> list[Scheduled]:
    """Return what vLLM's own scheduler makes of requests, in steps that take what the law says."""
    with model_folder(ROOT / "resources" / "llms" / "demo-llama-16m.json") as config:
        asked = [
            {
                "config": str(config),
                "requests": pd.DataFrame(vars(requests)).to_dict("records"),
                "scheduler": asdict(scheduler)
                | {"longest": scheduler.longest, "n_blocks": scheduler.n_blocks},
                "law": asdict(law),
            }
            for requests, scheduler in cases
        ]
        command = [str(PYTHON), str(ROOT / "tests" / "vllm_scheduler.py")]
        text = json.dumps(asked)
        run = subprocess.run(command, input=text, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout.splitlines()[-1])
    return [Scheduled(pd.DataFrame(e["requests"]), np.array(e["steps"])) for e in found]
