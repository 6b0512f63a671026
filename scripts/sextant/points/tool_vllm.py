"""Reads what `vllm bench serve` writes, and SGLang's `bench_serving`, which began as a copy of it.

vLLM writes one object a file with --save-result, and appends objects with --append-result
(github.com/vllm-project/vllm, vllm/benchmarks/serve.py; benchmarks/benchmark_serving.py until
0.9). SGLang appends one line a run (github.com/sgl-project/sglang, python/sglang/bench_serving.py).
"""

import math
from collections.abc import Iterator
from typing import Any

from sextant.base.errors import InputError
from sextant.points.frame import STATISTICS
from sextant.points.tool_run import (
    Content,
    Latency,
    ResultFile,
    RunLoad,
    ToolRun,
    arrival_doubts,
    speculation_doubts,
)


def read_vllm(result: ResultFile) -> Iterator[ToolRun]:
    """Yield the run of one result of `vllm bench serve`. InputError: it measured embeddings."""
    content = result.content
    if "total_input_sequences" in content:
        fix = "give a result of an LLM that generates"
        raise InputError("is a benchmark of embeddings: no answer has tokens", fix=fix)
    n_ok = content["completed"]
    n_failed = content.get("failed")
    if n_failed is None:
        n_failed = content["num_prompts"] - n_ok
    yield ToolRun(
        load=_load(content),
        latencies=_latencies(content, "e2el"),
        n_ok=n_ok,
        n_failed=n_failed,
        **_tokens(content, n_ok),
        llm=content["model_id"],
        day=("date", _day(content.get("date"))),
        doubts=(
            *arrival_doubts(None, _shape(content)),
            *speculation_doubts(content.get("spec_decode_acceptance_length")),
        ),
    )


def read_sglang(result: ResultFile) -> Iterator[ToolRun]:
    """Yield the run of one line of SGLang's `bench_serving`."""
    content = result.content
    n_ok = content["completed"]
    server = content.get("server_info") or {}
    backend = str(content["backend"])
    errors = content.get("errors")  # with --output-details
    n_failed = sum(map(bool, errors)) if isinstance(errors, list) else None
    yield ToolRun(
        load=_load(content),
        latencies=_latencies(content, "e2e_latency"),
        n_ok=n_ok,
        n_failed=n_failed,
        **_tokens(content, n_ok),
        llm=content.get("model") or server.get("served_model_name") or server.get("model_path"),
        engine="sglang" if backend.startswith("sglang") else None,
        engine_version=server.get("version"),
        cuda_graphs=False if server.get("disable_cuda_graph") is True else None,
        doubts=speculation_doubts(content.get("accept_length")),
    )


def _day(written: Any) -> str | None:
    """Return the day of `20261123-051227`; None without a date."""
    return None if written is None else f"{written}".partition("-")[0]


def _load(content: Content) -> RunLoad:
    """Return the load: users, or a rate, with as many in flight as the client allows."""
    asked = content["request_rate"]
    users = content.get("max_concurrency")
    answered = {"answered_rps": content["request_throughput"]}
    if content.get("ramp_up_strategy") is not None:
        ends = f"{content.get('ramp_up_start_rps')} to {content.get('ramp_up_end_rps')}"
        return RunLoad(**answered, no_level=f"the rate rises from {ends} requests/s")
    if asked == "trace":
        return RunLoad(**answered, no_level="requests came at the times of a trace")
    if asked in ("inf", None) or (isinstance(asked, float) and math.isinf(asked)):
        at_once = None if users else "everything was sent at once"
        return RunLoad(**answered, users=users or None, no_level=at_once)
    return RunLoad(**answered, asked_rps=asked, most_in_flight=users or None)


def _shape(content: Content) -> float | None:
    """Return the shape of the gaps where requests came at a rate."""
    has_rate = content["request_rate"] not in ("inf", None)
    return content.get("burstiness") if has_rate else None


def _latencies(content: Content, e2e: str) -> dict[str, Latency]:
    names = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": e2e}
    return {
        ours: Latency(**{name: content.get(f"{name}_{theirs}_ms") for name in STATISTICS})
        for ours, theirs in names.items()
    }


def _tokens(content: Content, n_ok: Any) -> dict[str, Any]:
    """Return the mean lengths of the answered requests, and the tokens a second."""
    return {
        "input_tokens": content["total_input_tokens"] / n_ok if n_ok else None,
        "output_tokens": content["total_output_tokens"] / n_ok if n_ok else None,
        "throughput_tok_s": content["output_throughput"],
    }
