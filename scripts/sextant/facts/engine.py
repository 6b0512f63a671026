"""Data sheets of engines: memory that they take, how they schedule (`resources/engines/*.yaml`)."""

import re
from functools import cache
from typing import Any, NamedTuple

from sextant.base.resources import resource
from sextant.base.sheets import read_yaml

_FOLDER = resource("engines")
DEFAULT_ENGINE = "vllm"  # its data sheet stands for an engine without one


class EngineMemory(NamedTuple):
    """What a server takes of each GPU."""

    utilization: float  # share of the memory, by default
    is_of_free: bool  # the share is of the memory that the weights leave, not of all memory
    framework_gib: float
    graphs_gib: float  # CUDA graphs
    has_activations: bool  # the share has to hold the activations of the largest step
    sampler_bytes: int  # per sequence and word of the vocabulary, while tokens are sampled


class EngineScheduler(NamedTuple):
    """How an engine plans steps, by default."""

    max_num_seqs: int
    max_num_batched_tokens: int
    is_asynchronous: bool  # a step is planned while the one before it runs
    prompts_first: bool  # steps with prompts have no decodes
    reserved_share: float  # share of a request's output that needs free memory when it joins
    max_waiting_steps: int = 0  # steps for which prompts are gathered before one computes them


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
    """Return how a version of an engine schedules; without a version, the newest on the sheet."""
    values = dict(_sheet(engine)["scheduler"])
    for since, changed in values.pop("since", {}).items():
        if not version_numbers(version) or version_numbers(version) >= version_numbers(since):
            values |= changed
    return EngineScheduler(**values)


def handover_ms(engine: str) -> float:
    """Return the time (ms) to hand a request from prefill to decode, without the network's."""
    return float(_sheet(engine)["handover_ms"])


def version_numbers(version: str) -> list[int]:
    """Return the numbers of a version, which order versions by age."""
    return [int(part) for part in re.findall(r"[0-9]+", version)]


@cache
def _sheet(engine: str) -> dict[str, Any]:
    name = engine if is_known_engine(engine) else DEFAULT_ENGINE
    return dict(read_yaml(_FOLDER / f"{name}.yaml"))
