"""Memory of a server: what the weights and the engine take of its devices, and what is left.

The one place that counts it: feasibility, the batch weight, the law, simulations and answers.
"""

from functools import cache
from typing import NamedTuple

from sextant import PROJECT
from sextant.base.sheets import read_yaml
from sextant.facts.gpu import GIB, Devices
from sextant.facts.llm import DTYPE_BYTES, LLM

STOPPING_ENGINE = "tgis"
"""It stops to prefill, and keeps to no share of the memory that is known."""


class Memory(NamedTuple):
    """What is where in the memory of all devices of a replica, in bytes."""

    device_bytes: float
    usable_bytes: float
    """What weights and KV cache may take."""
    weight_bytes: float
    token_bytes: float
    """KV cache of a token in the layers that keep all tokens; `window_token_bytes`: the others."""
    window_token_bytes: float
    window_tokens: int
    """Tokens of a request that layers with a sliding window keep."""
    state_bytes: float
    """What a request takes whatever its length."""

    @property
    def kv_bytes(self) -> float:
        """What the weights leave for the KV cache, at least 0."""
        return max(0.0, self.usable_bytes - self.weight_bytes)

    def request_bytes(self, tokens: float) -> float:
        """Return what a request with so many tokens, input and output, takes."""
        kept = self.window_token_bytes * min(tokens, self.window_tokens)
        return self.token_bytes * tokens + kept + self.state_bytes

    def kv_tokens(self, length: float) -> int:
        """Return how many tokens fit, of requests with `length` tokens each.

        Layers with a window or a state take less of a token the longer its request is.
        """
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
    """Return the memory of a server that serves an LLM on all of its devices.

    Weights and KV heads are shared out over the devices. With fewer heads than devices each device
    has one; MLA's latent vector, from which every head is computed, is on every device.

    Args:
        llm: as it is served.
        devices: of one replica.
        utilization: share of the memory that it may use; vLLM's default if None.
        engine: counts what it takes itself (one without a data sheet is taken for vLLM). None: an
            upper bound, as if all of the share was for weights and KV cache.
        data_parallel: copies of attention, each with weights and requests of its own.
    """
    n, total, sheet = devices.n_gpus, devices.memory_bytes, _engine_sheet()
    share = sheet["utilization"] if utilization is None else utilization
    usable = total * share
    if devices.kind == "cpu":
        n = 1  # cores share one memory
    elif engine not in (None, STOPPING_ENGINE):
        seen = total - n * devices.reserved_gib * GIB
        usable = min(seen * share, seen - n * sheet["graphs_gib"] * GIB)
        usable -= n * (sheet["framework_gib"] * GIB + _activation_bytes(llm, n, sheet))
    copies = n / min(n, data_parallel * (1 if llm.kv_latent_size else llm.n_kv_heads))
    windowed = llm.sliding_kv_bytes_per_token
    return Memory(
        device_bytes=total,
        usable_bytes=max(usable, 0.0),
        weight_bytes=llm.weight_bytes + (data_parallel - 1) * llm.attention_weight_bytes,
        token_bytes=max(llm.kv_bytes_per_token - windowed, 0.0) * copies,
        window_token_bytes=windowed * copies,
        window_tokens=llm.sliding_window_tokens,
        state_bytes=float(llm.state_bytes_per_request),
    )


@cache
def _engine_sheet() -> dict[str, float]:
    return dict(read_yaml(PROJECT / "resources" / "engines" / "vllm.yaml")["memory"])


def _activation_bytes(llm: LLM, n_gpus: int, sheet: dict[str, float]) -> float:
    """Return the activations of the largest step on each GPU: of a layer, or of sampling.

    A layer holds two hidden states, and gate, up and their product, of which each GPU has a part;
    in a mixture of experts a further hidden state, and these, per expert that a token uses.
    """
    used = llm.n_experts_per_token
    widths = (2 + used) * llm.hidden_size + (used or 1) * 3 * llm.ffn_size / n_gpus
    layer = sheet["batched_tokens"] * widths * DTYPE_BYTES[llm.dtype]
    return max(layer, sheet["sequences"] * llm.vocab_size * sheet["sampler_bytes"])
