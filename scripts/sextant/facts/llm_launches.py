"""How many kernels one step of an LLM launches: its dense products, and small kernels beside them.

In go an LLM's matrices, whose names tell the blocks of each layer; out come counts over all layers.
Engines multiply with some matrices at once (q, k and v) and fuse small kernels where they can, so
counts are those of a plain implementation of today (vLLM with CUDA graphs and torch.compile).
"""

from collections.abc import Iterable
from typing import NamedTuple

from sextant.facts.llm_modules import Matrix


class Launches(NamedTuple):
    """Kernels of one step, over all layers. What attention itself launches is not among them."""

    products: int  #: Products with dense matrices.
    small: int
    """Norms, rotations, activations, choices: they move a few hidden states."""


_OF_MATRIX = {
    # Attention: rotation, and writing K and V.
    "q": Launches(1, 2),
    "k": Launches(0, 0),
    "v": Launches(0, 0),
    # MLA: norms of both latent vectors, rotation, writing; `kv_b` multiplies queries, then values.
    "q_a": Launches(1, 1),
    "kv_a": Launches(0, 1),
    "q_b": Launches(1, 2),
    "kv_b": Launches(2, 0),
    "wqa_wkv": Launches(1, 2),
    "wq_b": Launches(1, 2),
    # Products of the query and the key, norm, rotation with quantization, scores, choice.
    "indexer": Launches(2, 4),
    # Product, mean of a window, norm with rotation and writing.
    "compressor": Launches(1, 2),
    # Product with Sinkhorn's iterations, mixing out.
    "hyper": Launches(1, 1),
    # States: convolution, the recurrence itself, norm with its gate.
    "qkv": Launches(1, 3),
    "in": Launches(1, 3),
    "z": Launches(0, 0),
    "ba": Launches(1, 0),
    # MLP: gate and up are one matrix; activation.
    "up": Launches(1, 1),
    "gate": Launches(0, 0),
    "down": Launches(1, 0),
}
_OTHER = Launches(1, 0)
# Scores, choice, sorting tokens by expert, quantization, activation, sum; two grouped products,
# each of which starts as slowly as two dense ones (`fixed_us` of `experts` in kernels.csv).
_EXPERTS = Launches(4, 8)
_NORMS_OF_LAYER = Launches(0, 2)


def launches_of(matrices: Iterable[Matrix]) -> Launches:
    """Return the kernels of the layers of an LLM; none where no matrix belongs to a layer."""
    launched = []
    layers = set()
    with_experts = set()
    for matrix in matrices:
        if matrix.layer < 0 or not matrix.n:
            continue
        layers.add(matrix.layer)
        if matrix.part == "experts":
            with_experts.add(matrix.layer)
        else:
            launched.append(_OF_MATRIX.get(matrix.piece, _OTHER))
    launched += [_NORMS_OF_LAYER] * len(layers) + [_EXPERTS] * len(with_experts)
    return Launches(sum(it.products for it in launched), sum(it.small for it in launched))
