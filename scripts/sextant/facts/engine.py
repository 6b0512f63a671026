"""What serving takes: memory, the engine's schedule, and the time until a replica has started.

Each engine has a data sheet, `resources/engines/*.yaml`. `memory_of` is the one place that counts
the memory that weights and engine take, and the memory that is left: feasibility, the batch weight,
the law, simulations and answers use it. `resources/startup.csv` has measured times of starts.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from sextant.base.resources import resource
from sextant.base.sheets import load_sheet, read_yaml
from sextant.facts.gpu import GIB, Devices
from sextant.facts.llm import LLM, Speculating
from sextant.facts.llm_config import DTYPE_BYTES

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
    graph_sequences: int = 0  # sequences of the largest CUDA graph


class _Change(NamedTuple):
    """Values of a scheduler that hold under conditions; conditions that are not stated hold."""

    values: Mapping[str, Any]
    since: str = ""  # first version of the engine
    least_memory_gib: float = 0.0  # that a process sees of one GPU
    least_gpus: int = 1  # of the server
    excluded: tuple[str, ...] = ()  # beginnings of the ids of GPUs

    def holds(self, version: str, devices: Devices) -> bool:
        """Return whether a server of a version, "" for the newest, on devices has the values."""
        numbers = version_numbers(version)
        return (
            (not numbers or numbers >= version_numbers(self.since))
            and devices.seen_gib >= self.least_memory_gib
            and devices.n_gpus >= self.least_gpus
            and not devices.gpu_id.startswith(self.excluded)
        )


@cache
def engines_with_sheets() -> tuple[str, ...]:
    """Return the engines that have a data sheet."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def is_known_engine(engine: str) -> bool:
    """Return whether an engine has a data sheet."""
    return engine in engines_with_sheets()


def has_cuda_graphs(engine: str) -> bool:
    """Return whether an engine launches the kernels of a step at once, by CUDA graphs."""
    return bool(_sheet(engine).get("cuda_graphs", True))


@cache
def memory_sheet(engine: str) -> EngineMemory:
    """Return what a server of an engine takes of each GPU."""
    return EngineMemory(**_sheet(engine)["memory"])


@cache
def scheduler_sheet(engine: str, version: str, devices: Devices) -> EngineScheduler:
    """Return how a version of an engine schedules on devices, as the engine ships.

    Without a version, "", it is the newest on the sheet. The values of a later change win.
    """
    values = dict(_sheet(engine)["scheduler"])
    for change in values.pop("changes", ()):
        change = _Change(**{**change, "excluded": tuple(change.get("excluded", ()))})
        if change.holds(version, devices):
            values |= change.values
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


class Memory(NamedTuple):
    """How the memory of all devices of a replica is used, in bytes."""

    device_bytes: float
    usable_bytes: float  # for weights and KV cache
    weight_bytes: float
    token_bytes: float  # KV cache of a token in the layers that keep all tokens
    window_token_bytes: float
    window_tokens: int  # tokens of a request that layers with a sliding window keep
    state_bytes: float  # of a request, independent of its length

    @property
    def kv_bytes(self) -> float:
        """Memory that the weights leave for the KV cache, at least 0."""
        return max(0.0, self.usable_bytes - self.weight_bytes)

    def request_bytes(self, tokens: float) -> float:
        """Return the KV cache of a request with `tokens`, input and output."""
        kept = self.window_token_bytes * min(tokens, self.window_tokens)
        return self.token_bytes * tokens + kept + self.state_bytes

    def kv_tokens(self, length: float) -> int:
        """Return how many tokens of requests with `length` tokens each fit."""
        if not (self.window_token_bytes or self.state_bytes):
            return int(self.kv_bytes // self.token_bytes)
        return int(self.kv_bytes * length / self.request_bytes(length))


def memory_of(
    llm: LLM,
    devices: Devices,
    utilization: float | None = None,
    engine: str | None = None,
    data_parallel: float = 1,
) -> Memory:
    """Return how a server uses the memory of its devices.

    The devices share weights and KV heads; with fewer heads than devices each device has one head,
    and each has MLA's latent vector. The server may use the share `utilization` of the memory, by
    default the engine's, and takes some of it itself. Without an engine the result
    is an upper bound. Each of `data_parallel` copies of attention has its own weights and requests.
    """
    n = devices.n_gpus
    total = devices.memory_bytes

    weights = llm.weight_bytes + (data_parallel - 1) * llm.attention_weight_bytes
    draft = llm.draft if isinstance(llm, Speculating) else None
    weights += draft.weight_bytes if draft else 0

    name = engine or DEFAULT_ENGINE
    sheet = memory_sheet(name)
    plan = scheduler_sheet(name, "", devices)
    share = sheet.utilization if utilization is None else utilization
    usable = total * share
    if devices.kind == "cpu":
        n = 1  # cores share one memory
    elif engine is not None:
        # The activations of the largest step on each GPU: of a layer, or of sampling. A layer holds
        # two hidden states, and a part of gate, up and their product. In a mixture of experts it
        # holds a further hidden state and such a part for each expert that a token uses.
        used = llm.n_experts_per_token
        widths = (2 + used) * llm.hidden_size + (used or 1) * 3 * llm.ffn_size / n
        layer = plan.max_num_batched_tokens * widths * DTYPE_BYTES[llm.dtype]
        sampling = plan.max_num_seqs * llm.vocab_size * sheet.sampler_bytes
        overhead = sheet.framework_gib * GIB + max(layer, sampling) * sheet.has_activations
        seen = total - n * devices.reserved_gib * GIB
        left = seen - n * sheet.graphs_gib * GIB
        if sheet.is_of_free:
            usable = weights + share * max(left - n * overhead - weights, 0.0)
        else:
            usable = min(seen * share, left) - n * overhead

    copies = n / min(n, data_parallel * (1 if llm.kv_latent_size else llm.n_kv_heads))
    windowed = llm.sliding_kv_bytes_per_token
    of_draft = draft.kv_bytes_per_token if draft else 0
    return Memory(
        device_bytes=total,
        usable_bytes=max(usable, 0.0),
        weight_bytes=weights,
        token_bytes=max(llm.kv_bytes_per_token - windowed + of_draft, 0.0) * copies,
        window_token_bytes=windowed * copies,
        window_tokens=llm.sliding_window_tokens,
        state_bytes=float(llm.state_bytes_per_request),
    )


_STARTUP = resource("startup.csv")
PHASES = ("image", "libraries", "weights", "engine")
_STARTUP_SD = 0.1  # Of the logarithm: five starts of one LLM on one type of node took 78 to 95 s.


@dataclass(frozen=True, kw_only=True)
class StartupRow:
    """resources/startup.csv: each row is a phase of a start on a new node."""

    phase: str  #: what is done
    seconds: Annotated[float, Field(ge=0)]  #: how long it took
    weights_gib: Annotated[float, Field(gt=0)] | None = None
    """weights that were loaded then: time grows with them"""


class Startup(NamedTuple):
    """Time from the order of a replica until it serves; it is lognormal."""

    median_s: float
    sd: float = _STARTUP_SD  # of its logarithm

    def facts(self) -> dict[str, float]:
        """Return the median and the ends of the 90% interval, in seconds."""
        spread = math.exp(1.645 * self.sd)
        ends = {"startup_lo_s": self.median_s / spread, "startup_hi_s": self.median_s * spread}
        return {"startup_s": self.median_s, **ends}


def startup_of(llm: LLM, stated_s: Mapping[str, float] = MappingProxyType({})) -> Startup:
    """Return how long a replica of an LLM takes to start on a new node.

    `stated_s` are times in seconds, by phase of `PHASES`, that replace the table's.
    """
    total_s = 0.0
    for row in load_sheet(_STARTUP, StartupRow, delimiter=","):
        gib = row.get("weights_gib")
        share = llm.weight_bytes / 2**30 / gib if gib else 1.0
        total_s += stated_s.get(row["phase"], share * row["seconds"])
    return Startup(total_s)
