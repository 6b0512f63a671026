"""Reads genai-bench's results (github.com/sgl-project/genai-bench), one file a level.

The LLM, the server and the unit of times stand in experiment_metadata.json beside it.
"""

from collections.abc import Iterator
from typing import Any

from sextant.base.errors import InputError
from sextant.points.tool_run import MS_PER, Latency, ResultFile, RunLoad, ToolRun

_METADATA = "experiment_metadata.json"
_LATENCIES = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2e_latency"}


def read_genai_bench(result: ResultFile) -> Iterator[ToolRun]:
    """Yield the run of a result. InputError: it measured embeddings, or an unknown unit."""
    content = result.content
    metrics = content["aggregated_metrics"]
    stats = metrics["stats"]
    experiment = result.beside(_METADATA)
    unit = content.get("_time_unit") or experiment.get("metrics_time_unit") or "s"
    if unit not in MS_PER:
        fix = f"one of {', '.join(MS_PER)} is known"
        raise InputError(f"unknown unit {unit!r}", field="_time_unit", fix=fix)
    if metrics.get("iteration_type") == "batch_size":
        fix = "give a result of an LLM that generates (num_concurrency)"
        raise InputError("is a benchmark of embeddings, by batch size", fix=fix)

    latencies = {
        ours: Latency.of(stats[theirs], MS_PER[unit]) for ours, theirs in _LATENCIES.items()
    }
    engine = experiment.get("server_engine")
    yield ToolRun(
        load=_load(metrics),
        latencies=latencies,
        n_ok=metrics["num_completed_requests"],
        n_failed=metrics["num_error_requests"],
        input_tokens=stats["num_input_tokens"]["mean"],
        output_tokens=stats["num_output_tokens"]["mean"],
        throughput_tok_s=metrics["mean_output_throughput_tokens_per_s"],
        llm=_name(experiment),
        tool_version=experiment.get("benchmark_version"),
        engine=engine.lower() if isinstance(engine, str) else None,
        engine_version=experiment.get("server_version"),
    )


def _load(metrics: Any) -> RunLoad:
    level = metrics["num_concurrency"]
    answered = metrics["requests_per_second"]
    if metrics.get("iteration_type") == "request_rate":
        return RunLoad(asked_rps=metrics.get("request_rate", level), answered_rps=answered)
    return RunLoad(users=level, answered_rps=answered)


def _name(experiment: Any) -> Any:
    """Return the LLM's name: the tokenizer's, or the one that the server answers to.

    One as on Hugging Face (`owner/name`) comes first; `model` may be a nickname.
    """
    keys = ("server_model_tokenizer", "api_model_name", "model")
    names = [experiment[key] for key in keys if isinstance(experiment.get(key), str)]
    names = [name for name in names if not name.startswith(("/", "."))]  # a folder
    return next((name for name in names if "/" in name), names[0] if names else None)
