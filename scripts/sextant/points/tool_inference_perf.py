"""Reads inference-perf's reports, stage_N_lifecycle_metrics.json, one file a stage
(github.com/kubernetes-sigs/inference-perf).

The LLM and the arrivals stand in config.yaml beside it. The summary of all stages has no level.
"""

from collections.abc import Iterator
from typing import Any

from sextant.points.tool_run import (
    Content,
    Latency,
    ResultFile,
    RunLoad,
    ToolRun,
    arrival_doubts,
)

_LATENCIES = {
    "ttft": "time_to_first_token",
    "tpot": "time_per_output_token",
    "itl": "inter_token_latency",
    "e2e": "request_latency",
}


def read_inference_perf(result: ResultFile) -> Iterator[ToolRun]:
    """Yield the run of one stage."""
    content = result.content
    successes = content["successes"]
    config = result.beside("config.yaml")
    latency = successes["latency"]
    server = config.get("server") or {}
    yield ToolRun(
        load=_load(content),
        latencies={
            ours: Latency.of(latency.get(theirs), 1e3) for ours, theirs in _LATENCIES.items()
        },
        n_ok=successes["count"],
        n_failed=content["failures"]["count"],
        # Lengths are `prompt_len`, since 0.5 `prompt_tokens` and `output_tokens` by the server.
        input_tokens=_mean(successes, "prompt_tokens", "prompt_len"),
        output_tokens=_mean(successes, "output_tokens", "output_len"),
        throughput_tok_s=(successes.get("throughput") or {}).get("output_tokens_per_sec"),
        llm=server.get("model_name"),
        engine=server.get("type"),
        doubts=arrival_doubts(load_kind(config)),
    )


def load_kind(config: Content) -> str | None:
    """Return the kind of arrivals of a config: `constant`, `poisson` or another; None: unknown."""
    kind = (config.get("load") or {}).get("type")
    return kind if isinstance(kind, str) else None


def _load(content: Content) -> RunLoad:
    summary = content["load_summary"]
    answered = (content["successes"].get("throughput") or {}).get("requests_per_sec")
    if summary.get("concurrency"):
        return RunLoad(users=summary["concurrency"], answered_rps=answered)
    if summary.get("requested_rate"):
        return RunLoad(asked_rps=summary["requested_rate"], answered_rps=answered)
    return RunLoad(answered_rps=answered, no_level="it has no requested rate (of one stage)")


def _mean(successes: Content, *names: str) -> Any:
    blocks = (successes.get(name) for name in names)
    means = (block.get("mean") for block in blocks if isinstance(block, dict))
    return next((mean for mean in means if mean is not None), None)
