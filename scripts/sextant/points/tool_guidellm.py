"""Reads guidellm's benchmarks.json, of 0.2 to 0.8 (github.com/vllm-project/guidellm).

guidellm's `inter_token_latency_ms` weights the mean gap of each request by its tokens: it is not
TPOT, in which each request counts once, unless all answers are equally long. TPOT comes from the
requests that the file has; where it has none, the mean and the median count as ITL.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sextant.points.tool_run import (
    Content,
    Latency,
    ResultFile,
    RunLoad,
    ToolRun,
    arrival_doubts,
    cut_doubts,
    day_of,
    only_value,
)

AT_ONCE = "throughput"  # the strategy that sends everything at once
_FULL = 0.8  # share of the slots that are taken when a throughput run is a closed loop
_FEWEST_SAMPLED = 20  # requests from which a median of a sample is taken


def read_guidellm(result: ResultFile) -> Iterator[ToolRun]:
    """Yield the runs of a report, one a benchmark."""
    report = result.content
    version = report.get("metadata", {}).get("guidellm_version")
    for benchmark in report["benchmarks"]:
        metrics = benchmark["metrics"]
        config = benchmark.get("config") or benchmark["args"]
        totals = metrics.get("request_totals") or benchmark["request_totals"]
        strategy = config["strategy"]
        means = {
            name: (metrics[theirs]["successful"] or {}).get("mean")
            for name, theirs in {
                "input_tokens": "prompt_token_count",
                "output_tokens": "output_token_count",
                "throughput_tok_s": "output_tokens_per_second",
            }.items()
        }
        per_token, doubts = _per_token(benchmark, totals["successful"])
        yield ToolRun(
            load=_load(strategy, metrics),
            latencies={
                "ttft": _statistics(metrics, "time_to_first_token_ms"),
                "e2e": _statistics(metrics, "request_latency", ms=1e3),
                **per_token,
            },
            n_ok=totals["successful"],
            n_failed=totals["errored"],
            **means,
            llm=_llm(report, benchmark, config),
            tool_version=version,
            day=("start_time", day_of(benchmark["start_time"])),
            doubts=(
                *doubts,
                *arrival_doubts(strategy["type_"]),
                *cut_doubts(totals.get("incomplete"), totals.get("total")),
            ),
        )


def _load(strategy: Content, metrics: Content) -> RunLoad:
    answered = (metrics["requests_per_second"]["successful"] or {}).get("mean")
    kind = strategy["type_"]
    most = strategy.get("max_concurrency")
    if kind == "synchronous":
        return RunLoad(users=1, answered_rps=answered)
    if kind == "concurrent":
        return RunLoad(users=strategy["streams"], answered_rps=answered)
    if strategy.get("rate") is not None:
        asked = strategy["rate"]
        return RunLoad(asked_rps=asked, answered_rps=answered, most_in_flight=most)
    if kind == AT_ONCE:
        e2e_s = (metrics["request_latency"]["successful"] or {}).get("mean")
        return throughput_load(most, answered, e2e_s)
    return RunLoad(answered_rps=answered, no_level=f"guidellm's strategy {kind!r} has no level")


def throughput_load(slots: Any, answered_rps: Any, e2e_s: Any) -> RunLoad:
    """Return the load of a run that sends all it can: users only where the slots were taken.

    By Little's law answered requests a second × mean seconds of a request are in flight.
    """
    is_full = bool(slots and answered_rps and e2e_s and answered_rps * e2e_s >= _FULL * slots)
    if is_full:
        return RunLoad(users=slots, answered_rps=answered_rps)
    return RunLoad(answered_rps=answered_rps, no_level="everything was sent at once")


def _statistics(metrics: Content, name: str, ms: float = 1.0) -> Latency:
    block = metrics[name]["successful"] or {}
    return Latency.of({**block, **(block.get("percentiles") or {})}, ms)


def _per_token(benchmark: Content, n_ok: int) -> tuple[dict[str, Latency], tuple[str, ...]]:
    """Return TPOT, or else ITL, and what is doubtful about it."""
    metrics = benchmark["metrics"]
    by_token = _statistics(metrics, "inter_token_latency_ms")
    lengths = metrics["output_token_count"]["successful"] or {}
    if lengths.get("min") is not None and lengths.get("min") == lengths.get("max"):
        return {"tpot": by_token}, ()

    requests = (benchmark.get("requests") or {}).get("successful") or []
    tpots_ms = _tpots_ms(requests)
    if len(requests) >= n_ok and len(tpots_ms):
        points = np.percentile(tpots_ms, [50, 90, 95, 99])
        return {"tpot": Latency(float(tpots_ms.mean()), *map(float, points))}, ()
    if len(tpots_ms) >= _FEWEST_SAMPLED:
        sampled = Latency(float(tpots_ms.mean()), float(np.median(tpots_ms)))
        return {"tpot": sampled}, (f"TPOT of a sample ({len(requests)} of {n_ok} requests)",)
    # Quantiles by token say nothing of the slowest requests, which may have few tokens.
    middle = Latency(by_token.mean, by_token.median)
    return {"itl": middle}, ("ITL weighted by tokens (the file has no TPOT)",)


def _tpots_ms(requests: Sequence[Content]) -> np.ndarray:
    """Return the mean gap of each request; answers of one token have none."""
    values = [
        request["inter_token_latency_ms"]
        for request in requests
        if request.get("inter_token_latency_ms") is not None
        and (request.get("output_tokens") or 2) > 1
    ]
    return np.array(values, float)


def _llm(report: Content, benchmark: Content, config: Content) -> Any:
    """Return the LLM's name: of the benchmark's backend, else of the report's arguments."""
    backend = config.get("backend")
    name = backend.get("model") if isinstance(backend, Mapping) else None
    name = name or (benchmark.get("worker") or {}).get("backend_model")
    return name or only_value({**report, "benchmarks": []}, "model")
