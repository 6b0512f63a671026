"""Replicas on more GPUs than one node joins: how fast their links are, and what a sum waits there.

Tensor parallelism adds up hidden states after every block. Within a node that is NVLink's work (or
PCIe's). Beyond it each GPU sends its share over the network.
"""

import math

from sextant.facts.gpu import GPUProfile

NETWORK_GB_S = 50.0
"""Between nodes, of each GPU: one adapter of 400 Gb/s (NVIDIA DGX H100 and H200 User Guide)."""

# What NCCL itself expects of an all-reduce by trees in its protocol of low latency (`baseLat` and
# `hwLat` in github.com/NVIDIA/nccl, src/graph/tuning.cc): 27.5 us on two nodes of 8 GPUs.
_IN_NODES_MS = 0.0175  # 4.4 + 2 x 7 GPUs x 0.52 x 1.8 us
_DOUBLING_MS = 0.010  # 2 x 5 us for each doubling of the nodes


def link_gb_s(profile: GPUProfile) -> float:
    """Return the bandwidth of one GPU, in one direction, that a ring over all GPUs would have.

    An all-reduce over nodes has three parts: the GPUs of a node add up, each GPU adds up its share
    of the sum with its peers of other nodes, and the GPUs of a node exchange the shares.
    """
    gpu = profile.gpu
    n_nodes = profile.n_nodes
    if n_nodes == 1:
        return gpu.interconnect_gb_s
    # No GPU sends faster to the network than to its neighbours.
    network_gb_s = min(NETWORK_GB_S, gpu.interconnect_gb_s)
    share = n_nodes / profile.n_gpus  # of the sum that one GPU of a node has
    seconds_per_gb = (1 - share) / gpu.interconnect_gb_s
    seconds_per_gb += share * (1 - 1 / n_nodes) / network_gb_s
    return (1 - 1 / profile.n_gpus) / seconds_per_gb


def network_sync_ms(profile: GPUProfile) -> float:
    """Return what an all-reduce over several nodes waits for the network; 0 within one node."""
    if profile.n_nodes == 1:
        return 0.0
    return _IN_NODES_MS + math.log2(profile.n_nodes) * _DOUBLING_MS
