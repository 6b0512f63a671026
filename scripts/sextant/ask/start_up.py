"""What a server has in memory once it has started, and what it may need to start at all."""

import math
from typing import Any, NamedTuple

from sextant.facts.engine import GPUMemory, Memory, long_context_option
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM
from sextant.facts.llm_families import UNBOUNDED_TOKENS

_MARGIN = 0.03
"""Of the KV cache: start-up logs are up to so far from what is computed, but for small caches."""
_STEP_TOKENS = 256

NOT_STARTED = dict.fromkeys(("memory", "max_model_len", "tensor_parallel", "kv_tokens"))
"""`StartUp.facts` of an answer that starts nothing."""


class StartUp(NamedTuple):
    """How a replica starts on a GPU profile."""

    gpu_profile_id: str
    tensor_parallel: int | None
    """GPUs that share each copy of attention; None: on cores."""
    memory: GPUMemory
    kv_tokens: int
    """Tokens of requests as the asked ones that the KV cache of a replica holds."""
    context_tokens: int
    """The longest request that the LLM takes by itself."""
    option: str | None
    """The engine's option of the longest request; None: the engine starts without it."""
    max_model_len: int | None
    """Its value, where a server does not start without it."""

    def facts(self) -> dict[str, Any]:
        """Return its entries in an answer."""
        return {
            "memory": self.memory._asdict(),
            "max_model_len": self.max_model_len,
            "tensor_parallel": self.tensor_parallel,
            "kv_tokens": self.kv_tokens,
        }

    def notes(self) -> list[str]:
        """Return how to start a server that would refuse to start by itself."""
        if self.max_model_len is None:
            return []
        return [
            f"On {self.gpu_profile_id} start the server with --{self.option} {self.max_model_len}: "
            f"the KV cache does not hold a request of the LLM's own {self.context_tokens} tokens, "
            "and the engine refuses to start."
        ]

    def line(self) -> str:
        """Return how a replica lies on its GPUs, and where the memory of one goes, in a sentence
        each."""
        memory = self.memory
        layout = "" if self.tensor_parallel is None else f"tensor parallel {self.tensor_parallel}, "
        device = "the cores" if self.tensor_parallel is None else "a GPU"
        return (
            f"A replica on {self.gpu_profile_id}: {layout}KV cache for {self.kv_tokens:,} tokens. "
            f"Memory of {device}: weights {memory.weights_gib:.1f}, KV cache "
            f"{memory.kv_cache_gib:.1f}, activations {memory.activations_gib:.1f}, buffers "
            f"{memory.buffers_gib:.1f}, CUDA graphs {memory.graphs_gib:.1f} GiB."
        )


def start_up_of(
    llm: LLM,
    gpu_profile: GPUProfile,
    memory: Memory,
    engine: str,
    copies: float,
    needed: int,
    mean_tokens: float,
) -> StartUp:
    """Return how a replica of an LLM starts.

    Args:
        llm: the LLM.
        gpu_profile: what the replica runs on.
        memory: of the replica.
        engine: that serves.
        copies: of attention; a request is held by one of them.
        needed: tokens of the longest request that is asked about.
        mean_tokens: of a request, input and output.
    """
    option = long_context_option(engine)
    longest = memory.longest_tokens(copies)
    is_refused = option is not None and longest < llm.context_tokens < UNBOUNDED_TOKENS
    safe = math.floor((1 - _MARGIN) * longest / _STEP_TOKENS) * _STEP_TOKENS
    is_gpu = gpu_profile.gpu.kind != "cpu"
    return StartUp(
        gpu_profile.gpu_profile_id,
        gpu_profile.n_gpus // int(copies) if is_gpu else None,
        memory.per_gpu,
        memory.kv_tokens(mean_tokens),
        llm.context_tokens,
        option,
        max(safe, min(needed, longest)) if is_refused else None,
    )
