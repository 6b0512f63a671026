"""What the tests on real servers share: vLLM's environment, and a small LLM on it."""

from dataclasses import replace

import pytest

from sextant.experiment.engine_settings import EngineSettings
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
