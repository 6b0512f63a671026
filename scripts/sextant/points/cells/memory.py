"""Memory facts: what an LLM needs on a GPU profile, and the batch weights that may fit."""

from dataclasses import dataclass, replace

from sextant.experiment.servers import Variant
from sextant.facts.gpu import GIB, Devices
from sextant.facts.llm import LLM
from sextant.points.cells.verdict import FEASIBLE, Outcome, Verdict


@dataclass(frozen=True)
class Feasibility:
    """Whether memory holds an LLM and a workload's longest request, by facts alone."""

    verdict: Verdict
    memory_utilization: float
    """Fraction of the memory that the server may use."""
    weight_gib: float
    kv_gib: float
    """Memory left for the KV cache after the weights (never below 0)."""
    max_batch_weight_tokens: int
    """Upper bound of the batch weight: tokens whose KV cache fits into `kv_gib`."""

    @property
    def is_feasible(self) -> bool:
        """Whether a server may be started."""
        return self.verdict.is_feasible


def assess(
    llm: LLM, devices: Devices, memory_utilization: float, longest_request_tokens: int
) -> Feasibility:
    """Decide from memory facts alone, before any server starts.

    The bound is optimistic: activations, fragmentation and the runtime take their share
    too, which only a probe under load can show (LLM-Pilot, section III-C2). Weights and KV cache
    are sharded over all devices, of whose memory the server may use a fraction.
    """
    usable_bytes = devices.memory_bytes * memory_utilization
    kv_bytes = max(0.0, usable_bytes - llm.weight_bytes)
    tokens = int(kv_bytes // (llm.kv_bytes_per_token * _kv_copies(llm, devices)))
    verdict = FEASIBLE
    if devices.kind != "cpu" and not _splits_evenly(llm, devices.n_gpus):
        heads = {"n_heads": llm.n_heads, "n_kv_heads": llm.n_kv_heads, "n_gpus": devices.n_gpus}
        verdict = Verdict(Outcome.HEADS_CANNOT_BE_SPLIT, heads)
    elif kv_bytes == 0:
        sizes = {"weight_gib": llm.weight_bytes / GIB, "usable_gib": usable_bytes / GIB}
        verdict = Verdict(Outcome.WEIGHTS_TOO_LARGE, sizes)
    elif tokens < longest_request_tokens:
        lengths = {"kv_tokens": tokens, "longest_request_tokens": longest_request_tokens}
        verdict = Verdict(Outcome.KV_CACHE_TOO_SMALL, lengths)
    return Feasibility(verdict, memory_utilization, llm.weight_bytes / GIB, kv_bytes / GIB, tokens)


def assess_variant(
    llm: LLM,
    devices: Devices,
    variant: Variant,
    memory_utilization: float,
    longest_request_tokens: int,
) -> Feasibility:
    """As `assess`, of a variant: replicas share the memory, the batch weight may be given."""
    if variant.memory_limit_gib and devices.kind == "cpu":
        limit_gib = min(variant.memory_limit_gib, devices.memory_gib * devices.n_gpus)
        devices = replace(devices, memory_gib=limit_gib / devices.n_gpus)
    utilization = memory_utilization * variant.memory_share
    found = assess(llm, devices, utilization, longest_request_tokens)
    weight = variant.batch_weight_tokens
    if weight is None or not found.is_feasible:
        return found
    numbers = {"batch_weight_tokens": weight}
    if weight > found.max_batch_weight_tokens:
        numbers["kv_tokens"] = found.max_batch_weight_tokens
        return replace(found, verdict=Verdict(Outcome.BATCH_WEIGHT_TOO_LARGE, numbers))
    if weight < longest_request_tokens:
        numbers["longest_request_tokens"] = longest_request_tokens
        return replace(found, verdict=Verdict(Outcome.BATCH_WEIGHT_TOO_SMALL, numbers))
    return found


def _splits_evenly(llm: LLM, n_gpus: int) -> bool:
    """Return whether tensor parallelism can share the heads out: vLLM accepts nothing else.

    The latent vector of MLA is not split, so only the heads have to be.
    """
    if llm.kv_latent_size:
        return llm.n_heads % n_gpus == 0
    fewer, more = sorted((llm.n_kv_heads, n_gpus))
    return llm.n_heads % n_gpus == 0 and more % fewer == 0


def kv_bytes_per_device(llm: LLM, devices: Devices) -> float:
    """Return what the KV cache of a token takes on each device; all cores of a CPU are one."""
    n_devices = 1 if devices.kind == "cpu" else devices.n_gpus
    return llm.kv_bytes_per_token * _kv_copies(llm, devices) / n_devices


def _kv_copies(llm: LLM, devices: Devices) -> int:
    """Return how often each KV head is stored: with fewer heads than GPUs, each GPU has one.

    The latent vector of MLA, from which every head is computed, is on each GPU.
    """
    if devices.kind == "cpu":
        return 1
    n_stored = 1 if llm.kv_latent_size else llm.n_kv_heads
    return max(1, devices.n_gpus // n_stored)
