"""How servers are run: the `engine` part of the configuration."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineSettings:
    """How servers are run; the values come from the `engine` part of the configuration."""

    python: str
    """Interpreter of the environment that has vLLM."""
    dtype: str
    block_size_tokens: int
    max_num_seqs: int
    """Most requests in one batch."""
    memory_utilization: float
    start_timeout_s: float
    request_timeout_s: float
    max_server_starts: int
    extra_arguments: tuple[str, ...] = ()
    dcgm_url: str | None = None
    """Metrics of a dcgm-exporter on the node; None if there is none."""
