"""The settings of vLLM's scheduler (V1) that a simulation knows, under vLLM's own names."""

from dataclasses import dataclass

from sextant.base.errors import InputError


@dataclass(frozen=True)
class Scheduler:
    """How a replica schedules. Checked when it is made, as vLLM does when it starts."""

    kv_tokens: int
    """Tokens that the KV cache holds: vLLM's log says `GPU KV cache size`."""
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int | None = None
    """Tokens of the longest request, input and output; as many as the KV cache holds if None."""
    block_tokens: int = 16
    """Tokens of a block of the KV cache (vLLM: `block_size`)."""
    has_prefix_caching: bool = True
    """vLLM: `enable_prefix_caching`."""
    is_asynchronous: bool = True
    """vLLM: `async_scheduling`. A step is planned while the one before it runs."""
    timeout_s: float = float("inf")
    """When a client gives up, from the request's arrival on."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_tokens", "timeout_s"):
            if not getattr(self, name) > 0:
                problem = f"{getattr(self, name)} is not above 0"
                raise InputError(problem, field=name, fix="give a number above 0")
        if self.max_num_batched_tokens < self.max_num_seqs:
            problem = (
                f"{self.max_num_batched_tokens} tokens a step for {self.max_num_seqs} requests"
            )
            fix = "give at least max_num_seqs: each of them decodes one token a step"
            raise InputError(problem, field="max_num_batched_tokens", fix=fix)
        if self.n_blocks < 1:
            problem = f"a KV cache of {self.kv_tokens} tokens holds no request"
            fix = f"give {2 * self.block_tokens} or more"
            raise InputError(problem, field="kv_tokens", fix=fix)
        if self.max_model_len is not None and not 1 < self.max_model_len <= self.most_tokens:
            problem = f"a request of {self.max_model_len} tokens and a cache of {self.most_tokens}"
            fix = f"give max_model_len from 2 to {self.most_tokens}, or more KV memory"
            raise InputError(problem, field="max_model_len", fix=fix)

    @property
    def n_blocks(self) -> int:
        """Blocks for requests: one of them all is vLLM's own, its null block."""
        return self.kv_tokens // self.block_tokens - 1

    @property
    def most_tokens(self) -> int:
        """Tokens of the longest request that the KV cache holds."""
        return self.n_blocks * self.block_tokens

    @property
    def longest(self) -> int:
        """Tokens of the longest request that is not refused."""
        return self.max_model_len or self.most_tokens
