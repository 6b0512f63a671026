"""What the tests on real servers share: vLLM's environment, and a small LLM on it."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from sextant.bench.cell import model_folder
from sextant.bench.tuning import check_corner_cases, corner_cases
from sextant.engine.protocol import ServerSpec
from sextant.engine.vllm import VLLMServer
from sextant.experiment.servers import EngineSettings
from sextant.facts.gpu import Devices
from sextant.facts.llm import LLM, load_llm
from sextant.simulate.server import Scheduler, StepLaw
from sextant.workload.prompts import RandomTokens
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
SMALL = load_llm(CONFIG, "bfloat16")


def random_weights(
    model: Path, llm: LLM, tokens: int, longest: int, core: int, gib: float = 4.0, **more: Any
) -> ServerSpec:
    """Return a server of random weights on one core, which holds so many tokens."""
    return ServerSpec(
        model=model,
        load_format="dummy",
        devices=Devices("cpu", 1, gib),
        batch_weight_tokens=tokens,
        kv_bytes_per_token=llm.kv_bytes_per_token,
        max_request_tokens=longest,
        device_indices=(core,),
        seed=1,
        **more,
    )


def tuning_tools(
    folder: Path, lengths: tuple[tuple[int, int, int], ...], limit_gib: float
) -> tuple[Callable[[int], AbstractContextManager[list[VLLMServer]]], Callable]:
    """Return what starts the small LLM with a batch weight, under a limit of its memory, and what
    probes its corner cases; logs go to the folder.
    """

    @contextmanager
    def start(weight: int) -> Iterator[list[VLLMServer]]:
        longest = lengths[0][-1] + lengths[1][-1]
        memory = {"gib": limit_gib, "memory_limit_gib": limit_gib}
        with model_folder(CONFIG) as model:
            core = max(os.sched_getaffinity(0))
            spec = random_weights(model, SMALL, weight, longest, core, **memory)
            with VLLMServer(spec, SEARCH, folder / f"server-{weight}.log") as server:
                yield [server]

    def check(servers: list[VLLMServer], weight: int) -> None:
        cases = corner_cases(weight, *lengths, SEARCH.max_num_seqs)
        prompts = RandomTokens(SMALL.vocab_size)
        check_corner_cases(servers, cases, prompts, 1, SEARCH.request_timeout_s)

    return start, check


class Scheduled(NamedTuple):
    """What vLLM's own scheduler made of requests."""

    requests: pd.DataFrame
    """`first_s, last_s, preemptions, cached`."""
    steps: np.ndarray
    """Prompt tokens and decoding sequences of each step, shape (steps, 2)."""


def schedule_with_vllm(cases: Sequence[tuple[Scheduler]], law: StepLaw) -> list[Scheduled]:
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
