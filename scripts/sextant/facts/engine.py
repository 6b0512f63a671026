"""What is known of engines: how they share out memory and schedule (`resources/engines/*.yaml`)."""

import re
from functools import cache
from typing import Any, NamedTuple

from sextant.base.resources import resource
from sextant.base.sheets import read_yaml

_FOLDER = resource("engines")
DEFAULT_ENGINE = "vllm"  # what an engine without a data sheet is taken for


class EngineMemory(NamedTuple):
    """What a server takes of each GPU."""

    utilization: float  # share of the memory, by default
    is_of_free: bool  # whether that is a share of what the weights leave, and not of all
    framework_gib: float
    graphs_gib: float  # CUDA graphs
    has_activations: bool  # whether the share has to hold the largest step's
    sampler_bytes: int  # of a sequence and a word of the vocabulary, while a step is sampled


class EngineScheduler(NamedTuple):
    """How an engine plans steps, by default."""

    max_num_seqs: int
    max_num_batched_tokens: int
    is_asynchronous: bool  # a step is planned while the one before it runs
    prompts_first: bool  # steps with prompts have no decodes
    reserved_share: float  # of the output, for which a request has to find memory when it joins
    max_waiting_steps: int = 0  # for which prompts are gathered before a step computes them


def is_known_engine(engine: str) -> bool:
    """Return whether an engine has a data sheet."""
    return (_FOLDER / f"{engine}.yaml").is_file()


def has_cuda_graphs(engine: str) -> bool:
    """Return whether an engine launches the kernels of a step at once, by CUDA graphs."""
    return bool(_sheet(engine).get("cuda_graphs", True))


@cache
def memory_sheet(engine: str) -> EngineMemory:
    """Return what a server of an engine takes of each GPU."""
    return EngineMemory(**_sheet(engine)["memory"])


@cache
def scheduler_sheet(engine: str, version: str = "") -> EngineScheduler:
    """Return how a version of an engine schedules; without one, the newest that is known."""
    values = dict(_sheet(engine)["scheduler"])
    for since, changed in values.pop("since", {}).items():
        if not version_numbers(version) or version_numbers(version) >= version_numbers(since):
            values |= changed
    return EngineScheduler(**values)


def handover_ms(engine: str) -> float:
    """Return what an engine takes to hand a request from prefill to decode, beside the network."""
    return float(_sheet(engine)["handover_ms"])


def version_numbers(version: str) -> list[int]:
    """Return the numbers of a version, by which it is older or newer than others."""
    return [int(part) for part in re.findall(r"[0-9]+", version)]


@cache
def _sheet(engine: str) -> dict[str, Any]:
    name = engine if is_known_engine(engine) else DEFAULT_ENGINE
    return dict(read_yaml(_FOLDER / f"{name}.yaml"))
