"""Memory facts: what an LLM needs on a GPU profile, and the batch weights that may fit."""

from dataclasses import dataclass, replace

from sextant.experiment.variants import Variant
from sextant.hardware.gpu import GIB, Devices
from sextant.llm import LLM


@dataclass(frozen=True)
class Feasibility:
    """Whether an LLM can serve a workload's longest request on a GPU profile, and why not."""

    is_feasible: bool
    reason: str
    memory_utilization: float
    """Fraction of the memory that the server may use."""
    weight_gib: float
    kv_gib: float
    """Memory left for the KV cache after the weights (never below 0)."""
    max_batch_weight_tokens: int
    """Upper bound of the batch weight: tokens whose KV cache fits into `kv_gib`."""


def assess(
    llm: LLM, devices: Devices, memory_utilization: float, longest_request_tokens: int
) -> Feasibility:
    """Decide from memory facts alone, before any server starts.

    The bound is optimistic: activations, fragmentation and the runtime take their share
    too, which only a probe under load can show (LLM-Pilot, section III-C2).

    Args:
        llm: the LLM's facts.
        devices: what the server runs on; weights and KV cache are sharded over all.
        memory_utilization: fraction of the memory that the server may use.
        longest_request_tokens: input and output tokens of the workload's longest request.
    """
    usable_bytes = devices.memory_bytes * memory_utilization
    kv_bytes = max(0.0, usable_bytes - llm.weight_bytes)
    tokens = int(kv_bytes // (llm.kv_bytes_per_token * _kv_copies(llm, devices)))
    if devices.kind == "gpu" and not _splits_evenly(llm, devices.n_gpus):
        reason = (
            f"unsupported: {llm.n_heads} heads ({llm.n_kv_heads} KV heads) "
            f"cannot be split over {devices.n_gpus} GPUs"
        )
    elif kv_bytes == 0:
        reason = (
            f"does not fit: the weights take {llm.weight_bytes / GIB:.3f} GiB "
            f"of {usable_bytes / GIB:.3f} GiB"
        )
    elif tokens < longest_request_tokens:
        reason = (
            f"does not fit: the KV cache holds {tokens} tokens, "
            f"the longest request needs {longest_request_tokens}"
        )
    else:
        reason = "fits"
    return Feasibility(
        is_feasible=reason == "fits",
        reason=reason,
        memory_utilization=memory_utilization,
        weight_gib=llm.weight_bytes / GIB,
        kv_gib=kv_bytes / GIB,
        max_batch_weight_tokens=tokens,
    )


def assess_variant(
    llm: LLM,
    devices: Devices,
    variant: Variant,
    memory_utilization: float,
    longest_request_tokens: int,
) -> Feasibility:
    """Decide for servers of a variant: replicas share the memory, the batch weight may be given.

    The arguments and the result are those of `assess`.
    """
    if variant.memory_limit_gib and devices.kind == "cpu":
        limit_gib = min(variant.memory_limit_gib, devices.memory_gib * devices.n_gpus)
        devices = replace(devices, memory_gib=limit_gib / devices.n_gpus)
    utilization = memory_utilization * variant.memory_share
    found = assess(llm, devices, utilization, longest_request_tokens)
    weight = variant.batch_weight_tokens
    if weight is None or not found.is_feasible:
        return found
    reason = "fits"
    if weight > found.max_batch_weight_tokens:
        most = found.max_batch_weight_tokens
        reason = f"does not fit: the KV cache holds {most} tokens, the variant asks for {weight}"
    elif weight < longest_request_tokens:
        reason = (
            f"does not fit: the variant's batch weight is {weight} tokens, "
            f"the longest request needs {longest_request_tokens}"
        )
    return replace(found, is_feasible=reason == "fits", reason=reason)


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
    n_devices = devices.n_gpus if devices.kind == "gpu" else 1
    return llm.kv_bytes_per_token * _kv_copies(llm, devices) / n_devices


def _kv_copies(llm: LLM, devices: Devices) -> int:
    """Return how often each KV head is stored: with fewer heads than GPUs, each GPU has one.

    The latent vector of MLA, from which every head is computed, is on each GPU.
    """
    if devices.kind != "gpu":
        return 1
    n_stored = 1 if llm.kv_latent_size else llm.n_kv_heads
    return max(1, devices.n_gpus // n_stored)
