"""Whether a cell can be measured: its verdict, memory by facts, the search for a batch weight."""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import ClassVar

from pydantic import ConfigDict

from sextant.experiment.servers import Variant
from sextant.facts.engine import AS_SHIPPED, ServerOptions, memory_of
from sextant.facts.gpu import GIB, Devices
from sextant.facts.llm import GIVEN_TYPE, LLM

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)  # how a cell's files are read


class Kind(StrEnum):
    """The group of an outcome: the first words of its sentence."""

    FITS = "fits"
    DOES_NOT_FIT = "does not fit"
    UNSUPPORTED = "unsupported"
    OMITTED = "omitted by the source"


class ProbeOutcome(StrEnum):
    """Whether a cell could be measured; column `verdict` of the store's table `feasibility`."""

    FEASIBLE = "feasible"
    WEIGHTS_TOO_LARGE = "weights_too_large"
    KV_CACHE_TOO_SMALL = "kv_cache_too_small"
    BATCH_WEIGHT_TOO_LARGE = "batch_weight_too_large"  # the variant asks for too much
    BATCH_WEIGHT_TOO_SMALL = "batch_weight_too_small"  # the variant allows too little
    NO_BATCH_WEIGHT_PASSED = "no_batch_weight_passed"
    HEADS_CANNOT_BE_SPLIT = "heads_cannot_be_split"
    MEMORY_TOO_SMALL = "memory_too_small"  # by the source of a characterization, without numbers
    OMITTED = "omitted"  # the source of a characterization left the cell out

    @property
    def kind(self) -> Kind:
        """The group it belongs to."""
        others = {"feasible": Kind.FITS, "heads_cannot_be_split": Kind.UNSUPPORTED}
        return Kind.OMITTED if self == "omitted" else others.get(self, Kind.DOES_NOT_FIT)


_NEED = "the longest request needs {longest_request_tokens}"
_CACHE = "the KV cache holds {kv_tokens} tokens, "
_PHRASES = {
    "feasible": "",
    "weights_too_large": "the weights take {weight_gib:.3f} GiB of {usable_gib:.3f} GiB",
    "kv_cache_too_small": _CACHE + _NEED,
    "batch_weight_too_large": _CACHE + "the variant asks for {batch_weight_tokens}",
    "batch_weight_too_small": (
        "the variant's batch weight is {batch_weight_tokens} tokens, " + _NEED
    ),
    "no_batch_weight_passed": "no batch weight passed in {n_server_starts} server starts",
    "heads_cannot_be_split": (
        "{n_heads} heads ({n_kv_heads} KV heads) cannot be split over {n_gpus} GPUs"
    ),
    "memory_too_small": "memory too small",
    "omitted": "software or hardware limits",
}
"""Why, by outcome, with the numbers that decide."""
OUTCOMES = {
    "measured": ProbeOutcome.FEASIBLE,
    "too_small": ProbeOutcome.MEMORY_TOO_SMALL,
    "omitted": ProbeOutcome.OMITTED,
}
"""By the `status` of a row in `feasibility.csv`, or in an archive's sheet of cells."""


def status_of(outcome: ProbeOutcome) -> str:
    """Return the `status` of an outcome, a key of `OUTCOMES`."""
    statuses = {Kind.FITS: "measured", Kind.DOES_NOT_FIT: "too_small"}
    return statuses.get(outcome.kind, "omitted")


@dataclass(frozen=True)
class Verdict:
    """Whether a cell could be measured; if not, why, with the numbers that decided."""

    outcome: ProbeOutcome
    numbers: Mapping[str, int | float] = field(default_factory=dict)
    """By name, with the unit as suffix; exactly those of the outcome's phrase."""
    source: str | None = None  # who says so, e.g. a paper's table; None for our own measurement

    def __post_init__(self) -> None:
        parts = string.Formatter().parse(_PHRASES[self.outcome])
        needed = {name for _, name, _, _ in parts if name}
        if needed != set(self.numbers):
            wanted, actual = (
                ", ".join(sorted(names)) or "none" for names in (needed, self.numbers)
            )
            raise ValueError(f"verdict {self.outcome} has the numbers {wanted}, not {actual}")

    @property
    def is_feasible(self) -> bool:
        """Whether the LLM can be served."""
        return self.outcome is ProbeOutcome.FEASIBLE

    @property
    def why(self) -> str | None:
        """Why the LLM cannot be served, as a phrase; None if it can."""
        return _PHRASES[self.outcome].format_map(self.numbers) or None

    @property
    def reason(self) -> str:
        """The verdict as a sentence: the group, why, and who says so."""
        words = f"{self.outcome.kind}: {self.why}" if self.why else str(self.outcome.kind)
        return f"{words} ({self.source})" if self.source else words


FEASIBLE = Verdict(ProbeOutcome.FEASIBLE)


@dataclass(frozen=True)
class Feasibility:
    """Whether memory holds an LLM and a workload's longest request, by facts alone."""

    verdict: Verdict
    memory_utilization: float | None  # share of the memory for the server; None: the engine's
    weight_gib: float
    kv_gib: float  # memory left for the KV cache after the weights (never below 0)
    max_batch_weight_tokens: int  # upper bound: tokens whose KV cache fits into `kv_gib`

    @property
    def is_feasible(self) -> bool:
        """Whether a server may be started."""
        return self.verdict.is_feasible


def assess(
    llm: LLM,
    devices: Devices,
    memory_utilization: float | None,
    longest_request_tokens: int,
    engine: str | None = None,
    data_parallel: float = 1,
    options: ServerOptions = AS_SHIPPED,
) -> Feasibility:
    """Decide from memory facts alone; without an engine the bound is optimistic.

    Each of `data_parallel` copies of attention is on its own part of the devices.
    """
    memory = memory_of(llm, devices, memory_utilization, engine, data_parallel, options)
    tokens = memory.kv_tokens(longest_request_tokens)
    weight_gib = memory.weight_bytes / GIB
    kv_gib = memory.kv_bytes / GIB

    # Tensor parallelism shares heads out evenly: vLLM accepts nothing else. MLA's latent vector is
    # not split: only the number of heads has to be divisible. Stated sizes do not tell the heads.
    width = round(devices.n_gpus / data_parallel)
    fewer, more = sorted((llm.n_kv_heads, width))
    is_even = llm.n_heads % width == 0 and (llm.kv_latent_size or more % fewer == 0)
    is_even |= llm.llm_type == GIVEN_TYPE
    verdict = FEASIBLE
    if devices.kind != "cpu" and not is_even:
        heads = {"n_heads": llm.n_heads, "n_kv_heads": llm.n_kv_heads, "n_gpus": width}
        verdict = Verdict(ProbeOutcome.HEADS_CANNOT_BE_SPLIT, heads)
    elif memory.kv_bytes == 0:
        sizes = {"weight_gib": weight_gib, "usable_gib": memory.usable_bytes / GIB}
        verdict = Verdict(ProbeOutcome.WEIGHTS_TOO_LARGE, sizes)
    elif tokens < longest_request_tokens:
        lengths = {"kv_tokens": tokens, "longest_request_tokens": longest_request_tokens}
        verdict = Verdict(ProbeOutcome.KV_CACHE_TOO_SMALL, lengths)
    return Feasibility(verdict, memory_utilization, weight_gib, kv_gib, tokens)


def assess_variant(
    llm: LLM,
    devices: Devices,
    variant: Variant,
    memory_utilization: float,
    longest_request_tokens: int,
) -> Feasibility:
    """As `assess`, for a variant: replicas share the memory, and it may state a batch weight."""
    if variant.memory_limit_gib and devices.kind == "cpu":
        limit_gib = min(variant.memory_limit_gib, devices.memory_gib * devices.n_gpus)
        devices = replace(devices, memory_gib=limit_gib / devices.n_gpus)
    utilization = memory_utilization * variant.memory_share
    assessed = assess(llm, devices, utilization, longest_request_tokens)
    weight = variant.batch_weight_tokens
    kv_tokens = assessed.max_batch_weight_tokens
    if weight is None or not assessed.is_feasible:
        return assessed

    verdict = FEASIBLE
    numbers = {"batch_weight_tokens": weight}
    if weight > kv_tokens:
        verdict = Verdict(ProbeOutcome.BATCH_WEIGHT_TOO_LARGE, numbers | {"kv_tokens": kv_tokens})
    elif weight < longest_request_tokens:
        numbers["longest_request_tokens"] = longest_request_tokens
        verdict = Verdict(ProbeOutcome.BATCH_WEIGHT_TOO_SMALL, numbers)
    return replace(assessed, verdict=verdict)


@dataclass(frozen=True)
class MemoryFacts:
    """Memory of a server at its start, of the device with the least left; None: unknown."""

    idle_free_bytes: int | None = None  # free when the server had started
    free_bytes: int | None = None  # free at the peak so far
    lacking_bytes: int | None = None  # at least what the failed allocation was short of
    profiled_tokens: int | None = None  # size of the KV cache by vLLM's own profiling

    @classmethod
    def least_of(cls, servers: Sequence["MemoryFacts"]) -> "MemoryFacts":
        """Return the facts of the device with the least left, of servers that run together."""
        facts = {}
        for name in (part.name for part in fields(cls)):
            values = [getattr(server, name) for server in servers]
            worst = max if name == "lacking_bytes" else min
            facts[name] = worst((n for n in values if n is not None), default=None)
        return cls(**facts)


@dataclass(frozen=True)
class Probe:
    """One server start with a batch weight, and its outcome."""

    batch_weight_tokens: int
    outcome: str  # `ok`, or `out_of_memory`; any other failure ends the tuning with an error
    detail: str
    duration_s: float
    memory: MemoryFacts = MemoryFacts()
    is_under_load: bool = False  # it passed the corner cases and failed under load


@dataclass(frozen=True)
class Tuning:
    """The content of `tuning.json`: the search for the largest batch weight that works."""

    __pydantic_config__: ClassVar = STRICT

    verdict: Verdict
    batch_weight_tokens: int | None = None  # the chosen batch weight; None if none works
    possible_gain: float | None = None  # of a larger weight that may work, as a fraction
    memory: Feasibility | None = None  # by facts alone; None where a source does not say
    probes: tuple[Probe, ...] | None = ()  # none where a source does not say
