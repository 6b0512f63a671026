"""What serving takes: memory, and the engine's schedule.

Each engine has a data sheet, `resources/engines/*.yaml`. `memory_of` is the one place that counts
the memory that weights and engine take, and the memory that is left: feasibility, the batch weight,
the law, simulations and answers use it.
"""

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from sextant.base.resources import resource
from sextant.base.sheets import read_yaml
from sextant.facts.gpu import GIB, Devices
from sextant.facts.llm import LATENT_ROTARY, LLM, Speculating
from sextant.facts.llm_config import DTYPE_BYTES
from sextant.facts.llm_families import UNBOUNDED_TOKENS

_FOLDER = resource("engines")
DEFAULT_ENGINE = "vllm"  # its data sheet stands for an engine without one
_LEAST_LINK_GB_S = 100.0
"""Slowest link between GPUs that is not PCIe, whose fastest, gen5 x16, moves 64 GB/s."""

_KERNELS_OF_LAYER = 9
"""Of an ordinary layer: those of LLMs whose matrices are not known are not counted."""
_ATTENTION_KERNELS = 2
"""Of a layer; `sextant.facts.llm_launches` counts the other ones."""


class EngineReserve(NamedTuple):
    """What an engine leaves free of each GPU by default, so that its share depends on the GPU."""

    base_gib: float
    token_mib: float  # per token of a step
    graph_sequence_mib: float  # per sequence of the largest CUDA graph
    gpu_mib: float  # per GPU of the server
    least_gib: float  # at least so much, on GPUs with more than `least_from_gib`
    least_from_gib: float


class EngineMemory(NamedTuple):
    """What a server takes of each GPU."""

    is_of_free: bool  # the share is of the memory that the weights leave, not of all memory
    framework_gib: float  # libraries and their work spaces
    graphs_gib: float  # CUDA graphs, whatever the LLM
    has_activations: bool  # the share has to hold the activations of the largest step
    sampler_bytes: int  # per sequence and word of the vocabulary, while tokens are sampled
    utilization: float | None = None  # share of the memory, by default; None: by `reserve`
    reserve: EngineReserve | None = None
    collectives_gib: float = 0.0  # buffers to exchange results with other GPUs, over NVLink
    graphs_in_share: bool = False  # the share has to hold the CUDA graphs
    graph_kernel_kib: float = 0.0  # of each kernel of a step in each CUDA graph
    expert_hidden_multiple: int = 1  # MXFP4 experts are padded to multiples of these
    expert_ffn_multiple: int = 1  # of the part of one GPU


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
    """Values of a sheet that hold under conditions; conditions that are not stated hold."""

    values: Mapping[str, Any]
    since: str = ""  # first version of the engine
    least_memory_gib: float = 0.0  # that a process sees of one GPU
    least_gpus: int = 1  # of the server
    only: tuple[str, ...] = ("",)  # beginnings of the ids of GPUs
    excluded: tuple[str, ...] = ()

    def holds(self, version: str, devices: Devices) -> bool:
        """Return whether a server of a version, "" for the newest, on devices has the values."""
        numbers = version_numbers(version)
        return (
            (not numbers or numbers >= version_numbers(self.since))
            and devices.seen_gib >= self.least_memory_gib
            and devices.n_gpus >= self.least_gpus
            and devices.gpu_id.startswith(self.only)
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
def memory_sheet(engine: str, version: str, devices: Devices) -> EngineMemory:
    """Return what a server of an engine's version takes of each GPU.

    Without a version, "", it is the one that the sheet names: the newest of the shipped points.
    """
    as_of = _sheet(engine)["memory"].get("as_of", "")
    values = _section(engine, "memory", version or as_of, devices)
    values.pop("as_of", None)
    if values.get("reserve") is not None:
        values["reserve"] = EngineReserve(**values["reserve"])
    return EngineMemory(**values)


@cache
def scheduler_sheet(engine: str, version: str, devices: Devices) -> EngineScheduler:
    """Return how a version of an engine schedules on devices, as the engine ships.

    Without a version, "", it is the newest on the sheet. The values of a later change win.
    """
    return EngineScheduler(**_section(engine, "scheduler", version, devices))


def _section(engine: str, name: str, version: str, devices: Devices) -> dict[str, Any]:
    """Return a part of an engine's sheet as it holds for a version on devices."""
    values = dict(_sheet(engine)[name])
    for stated in values.pop("changes", ()):
        ids = {name: tuple(stated[name]) for name in ("only", "excluded") if name in stated}
        change = _Change(**stated | ids)
        if change.holds(version, devices):
            values |= change.values
    return values


class EngineContainers(NamedTuple):
    """The containers that an engine's makers publish."""

    images: Mapping[str, str]  # by what they run on: `nvidia`, `amd`, `cpu`
    tag: str  # of a release, with {version}
    as_of: str  # release that counts where none is stated, or one that has no container


def containers_of(engine: str) -> EngineContainers | None:
    """Return an engine's containers; None: it has none that still serve."""
    sheet = _sheet(engine).get("container") if is_known_engine(engine) else None
    return None if sheet is None else EngineContainers(**sheet)


def long_context_option(engine: str) -> str | None:
    """Return the option of the longest request; None: the engine starts whatever it holds."""
    return _sheet(engine).get("long_context_option")


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


def memory_share(engine: str, version: str, devices: Devices) -> float:
    """Return the share of the memory that a version of an engine takes by default."""
    sheet = memory_sheet(engine, version, devices)
    return _share(sheet, scheduler_sheet(engine, version, devices), devices)


class ServerOptions(NamedTuple):
    """What is stated of a server; by default it is as its engine ships."""

    version: str = ""  # of the engine; "": not stated
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    is_eager: bool = False  # without CUDA graphs


AS_SHIPPED = ServerOptions()


class GPUMemory(NamedTuple):
    """How the memory of one GPU is used, in GiB."""

    weights_gib: float
    kv_cache_gib: float
    activations_gib: float  # of the largest step
    buffers_gib: float  # of libraries, and to exchange results with other GPUs
    graphs_gib: float  # CUDA graphs


class Memory(NamedTuple):
    """How the memory of all devices of a replica is used, in bytes."""

    device_bytes: float
    usable_bytes: float  # for weights and KV cache
    weight_bytes: float
    token_bytes: float  # KV cache of a token in the layers that keep all tokens
    window_token_bytes: float
    window_tokens: int  # tokens of a request that layers with a sliding window keep
    state_bytes: float  # of a request, independent of its length
    n_devices: int = 1  # that share this memory evenly
    activation_bytes: float = 0.0
    buffer_bytes: float = 0.0
    graph_bytes: float = 0.0

    @property
    def kv_bytes(self) -> float:
        """Memory that the weights leave for the KV cache, at least 0."""
        return max(0.0, self.usable_bytes - self.weight_bytes)

    @property
    def per_gpu(self) -> GPUMemory:
        """How the memory of one GPU is used."""
        parts = (self.activation_bytes, self.buffer_bytes, self.graph_bytes)
        sizes = (self.weight_bytes, self.kv_bytes, *parts)
        return GPUMemory(*(size / self.n_devices / GIB for size in sizes))

    def request_bytes(self, tokens: float) -> float:
        """Return the KV cache of a request with `tokens`, input and output."""
        kept = self.window_token_bytes * min(tokens, self.window_tokens)
        return self.token_bytes * tokens + kept + self.state_bytes

    def kv_tokens(self, length: float) -> int:
        """Return how many tokens of requests with `length` tokens each fit."""
        if not (self.window_token_bytes or self.state_bytes):
            return int(self.kv_bytes // self.token_bytes)
        return int(self.kv_bytes * length / self.request_bytes(length))

    def longest_tokens(self, copies: float = 1) -> int:
        """Return the tokens of the longest request that fits alone in one of `copies`."""
        free = self.kv_bytes / copies - self.state_bytes
        beyond_window = free - self.window_token_bytes * self.window_tokens
        if beyond_window > self.token_bytes * self.window_tokens and self.token_bytes:
            return int(beyond_window // self.token_bytes)
        each = self.token_bytes + self.window_token_bytes
        return max(int(free // each), 0) if each else UNBOUNDED_TOKENS


def memory_of(
    llm: LLM,
    devices: Devices,
    utilization: float | None = None,
    engine: str | None = None,
    data_parallel: float = 1,
    options: ServerOptions = AS_SHIPPED,
) -> Memory:
    """Return how a server uses the memory of its devices.

    The devices share weights and KV heads; with fewer heads than devices each device has one head,
    and each has MLA's latent vector. The server may use the share `utilization` of the memory, by
    default the engine's, and takes some of it itself. Without an engine the result
    is an upper bound. Each of `data_parallel` copies of attention has its own weights and requests.
    """
    n = 1 if devices.kind == "cpu" else devices.n_gpus  # cores share one memory
    sheet = memory_sheet(engine or DEFAULT_ENGINE, options.version, devices)
    plan = scheduler_sheet(engine or DEFAULT_ENGINE, options.version, devices)
    share = _share(sheet, plan, devices) if utilization is None else utilization
    weights = _weight_bytes(llm, data_parallel)
    if engine is None or devices.kind == "cpu":
        taken = _Taken(0.0, 0.0, 0.0)
        usable = devices.memory_bytes * share
    else:
        parts = n if data_parallel == 1 else 1  # of an expert
        weights += n * _table_bytes(llm) + _padding_bytes(llm, sheet, parts)
        weights += _latent_bytes(llm, parts)
        taken = _Taken(
            activations=n * _activation_bytes(llm, plan, sheet, options, n),
            buffers=n * _buffer_bytes(sheet, devices),
            graphs=n * _graph_bytes(llm, plan, sheet, options),
        )
        usable = _usable_bytes(sheet, share, weights, n * devices.seen_gib * GIB, taken)

    draft = llm.draft if isinstance(llm, Speculating) else None
    copies = n / min(n, data_parallel * (1 if llm.kv_latent_size else llm.n_kv_heads))
    windowed = llm.sliding_kv_bytes_per_token
    of_draft = draft.kv_bytes_per_token if draft else 0
    return Memory(
        device_bytes=devices.memory_bytes,
        usable_bytes=max(usable, 0.0),
        weight_bytes=weights,
        token_bytes=max(llm.kv_bytes_per_token - windowed + of_draft, 0.0) * copies,
        window_token_bytes=windowed * copies,
        window_tokens=llm.sliding_window_tokens,
        state_bytes=float(llm.state_bytes_per_request),
        n_devices=n,
        activation_bytes=taken.activations,
        buffer_bytes=taken.buffers,
        graph_bytes=taken.graphs,
    )


class _Taken(NamedTuple):
    """What an engine takes of all devices beside weights and KV cache, in bytes."""

    activations: float
    buffers: float
    graphs: float


def _usable_bytes(
    sheet: EngineMemory, share: float, weights: float, seen: float, taken: _Taken
) -> float:
    """Return what a share of the memory that is `seen` holds of weights and KV cache."""
    beside = taken.activations * sheet.has_activations + taken.buffers
    if sheet.is_of_free:
        return weights + share * max(seen - taken.graphs - beside - weights, 0.0)
    if sheet.graphs_in_share:
        return seen * share - taken.graphs - beside
    return min(seen * share, seen - taken.graphs) - beside


def _weight_bytes(llm: LLM, data_parallel: float) -> float:
    """Return the weights of all devices, those of an LLM that drafts included."""
    draft = llm.draft if isinstance(llm, Speculating) else None
    copied = (data_parallel - 1) * llm.attention_weight_bytes
    return llm.weight_bytes + copied + (draft.weight_bytes if draft else 0)


def _table_bytes(llm: LLM) -> float:
    """Return the table of rotary positions, one for all layers, which each device has whole."""
    if llm.context_tokens >= UNBOUNDED_TOKENS:
        return 0.0
    return llm.context_tokens * llm.head_dim * DTYPE_BYTES[llm.dtype]


def _latent_bytes(llm: LLM, parts: int) -> float:
    """Return what latent attention (MLA) has more of weights in `parts` than once.

    The projections to the latent vectors of keys and of queries are whole in each part
    (`ReplicatedLinear` in vllm/model_executor/models/deepseek_v2.py). That of queries is taken for
    8/3 of that of keys, as in DeepSeek-V3 and Kimi-K2. The projections from the vector of keys are
    kept twice, the second time unquantized (`W_UK_T` and `W_UV`); an LLM whose heads are as wide as
    the vector has none (DeepSeek-V4).
    """
    if not llm.kv_latent_size:
        return 0.0
    down = llm.hidden_size * llm.kv_latent_size * (1 + 8 / 3)
    up = 0
    if llm.value_dim < llm.head_dim:
        up = (llm.kv_latent_size - LATENT_ROTARY) * llm.n_heads * 2 * llm.value_dim
    is_quantized = llm.n_quantized_parameters > llm.n_quantized_expert_parameters
    bits = llm.weight_bits if is_quantized else 8 * DTYPE_BYTES[llm.dtype]
    return llm.n_layers * ((parts - 1) * down * bits / 8 + up * DTYPE_BYTES[llm.dtype])


def _padding_bytes(llm: LLM, sheet: EngineMemory, parts: int) -> float:
    """Return what the kernels of MXFP4 experts, each in `parts`, have more of weights."""
    if "mxfp4" not in (llm.expert_format or llm.weight_format) or not llm.n_experts:
        return 0.0
    padded = 1.0
    for width, multiple in (
        (llm.hidden_size, sheet.expert_hidden_multiple),
        (llm.ffn_size / parts, sheet.expert_ffn_multiple),
    ):
        padded *= math.ceil(width / multiple) * multiple / width
    return (padded - 1) * llm.expert_weight_bytes


def _share(sheet: EngineMemory, plan: EngineScheduler, devices: Devices) -> float:
    """Return the share of the memory that an engine takes by default."""
    if sheet.utilization is not None:
        return sheet.utilization
    reserve = sheet.reserve
    assert reserve is not None, "a sheet has a share or a reserve"
    reserved_mib = (
        reserve.token_mib * plan.max_num_batched_tokens
        + reserve.graph_sequence_mib * plan.graph_sequences
        + reserve.gpu_mib * devices.n_gpus
    )
    reserved_gib = reserve.base_gib + reserved_mib / 1024
    if devices.memory_gib > reserve.least_from_gib:
        reserved_gib = max(reserved_gib, reserve.least_gib)
    return max(1 - reserved_gib / devices.memory_gib, 0.0)


def _activation_bytes(
    llm: LLM, plan: EngineScheduler, sheet: EngineMemory, options: ServerOptions, n: int
) -> float:
    """Return the activations of the largest step on each of `n` GPUs: of a layer, or of sampling.

    A layer holds two hidden states, and a part of gate, up and their product. In a mixture of
    experts it holds a further hidden state and such a part for each expert that a token uses.
    Sampling holds the hidden states, and scores of all words for each sequence.
    """
    tokens = options.max_num_batched_tokens or plan.max_num_batched_tokens
    sequences = min(options.max_num_seqs or plan.max_num_seqs, tokens)
    used = llm.n_experts_per_token
    widths = (2 + used) * llm.hidden_size + (used or 1) * 3 * llm.ffn_size / n
    layer = tokens * widths * DTYPE_BYTES[llm.dtype]
    states = tokens * llm.hidden_size * DTYPE_BYTES[llm.dtype]
    return max(layer, states + sequences * llm.vocab_size * sheet.sampler_bytes)


def _graph_bytes(
    llm: LLM, plan: EngineScheduler, sheet: EngineMemory, options: ServerOptions
) -> float:
    """Return the CUDA graphs on each GPU, which keep every kernel of a step once for each size.

    Steps with prompts are captured up to twice the sequences of a server, decodes up to all of its
    sequences (`_set_cudagraph_sizes` in vllm/config/vllm.py).
    """
    if options.is_eager:
        return 0.0
    sequences = options.max_num_seqs or plan.max_num_seqs
    largest = min(2 * sequences, plan.graph_sequences)
    n_graphs = _captured_sizes(largest) + _captured_sizes(min(sequences, largest))
    of_layers = llm.n_products + llm.n_small_kernels or _KERNELS_OF_LAYER * llm.n_layers
    n_kernels = of_layers + _ATTENTION_KERNELS * llm.n_layers
    return sheet.graphs_gib * GIB + sheet.graph_kernel_kib * 1024 * n_kernels * n_graphs


def _captured_sizes(largest: int) -> int:
    """Return how many sizes of a step are captured: 1, 2, 4, every 8th to 256, then every 16th."""
    small = sum(size <= largest for size in (1, 2, 4))
    return small + min(largest, 256) // 8 + max(largest - 256, 0) // 16


def _buffer_bytes(sheet: EngineMemory, devices: Devices) -> float:
    """Return the buffers of libraries on each GPU.

    Collectives have large ones over NVLink and the like alone: over PCIe they use few channels.
    """
    has_links = devices.n_gpus > 1 and devices.interconnect_gb_s >= _LEAST_LINK_GB_S
    return (sheet.framework_gib + sheet.collectives_gib * has_links) * GIB
