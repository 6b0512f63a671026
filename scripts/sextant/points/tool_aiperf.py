"""Reads AIPerf's profile_export_aiperf.json (github.com/ai-dynamo/aiperf), and GenAI-Perf's.

`input_config` has the load: since 0.9 a list of `phases`, before a part `loadgen`; GenAI-Perf has
`perf_analyzer.stimulus`. AIPerf calls the mean gap of each request ITL: it is TPOT here, and the
gaps between chunks are ITL where every chunk was one token.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from sextant.base.errors import InputError
from sextant.points.tool_run import (
    Content,
    Latency,
    ResultFile,
    RunLoad,
    ToolRun,
    arrival_doubts,
    in_ms,
    only_value,
)

_AT_A_RATE = ("poisson", "gamma", "constant", "user_centric")
_ONE_TOKEN_CHUNKS = 0.02  # largest difference between gaps of chunks and of tokens, as a share


def read_aiperf(result: ResultFile) -> Iterator[ToolRun]:
    """Yield the run of a result. InputError: phases of several loads, or an unknown unit."""
    content = result.content
    config = content["input_config"]
    load, kind, shape = _load(config, _average(content, "request_throughput"))
    tpot = in_ms(content.get("inter_token_latency"), "inter_token_latency")
    n_ok = _average(content, "request_count")
    n_failed = _average(content, "error_request_count")
    if n_failed is None and n_ok is not None:
        n_failed = 0  # the metric is written where a request failed
    yield ToolRun(
        load=load,
        latencies={
            "ttft": in_ms(content.get("time_to_first_token"), "time_to_first_token"),
            "tpot": tpot,
            "itl": _chunk_gaps(content),
            "e2e": in_ms(content.get("request_latency"), "request_latency"),
        },
        n_ok=n_ok,
        n_failed=n_failed,
        input_tokens=_average(content, "input_sequence_length"),
        output_tokens=_average(content, "output_sequence_length"),
        throughput_tok_s=_average(content, "output_token_throughput"),
        llm=llm_of_config(config),
        tool_version=content.get("aiperf_version"),
        day=("start_time", content.get("start_time")),
        doubts=(*_interrupted(content), *arrival_doubts(kind, shape)),
    )


def llm_of_config(config: Content) -> Any:
    """Return the LLM's name of an `input_config`; None: it has none. InputError: several LLMs."""
    models = config.get("models")
    items = models.get("items") if isinstance(models, Mapping) else None
    names = [item["name"] for item in items or () if isinstance(item, Mapping) and "name" in item]
    if not names:
        stated = only_value(config, "model_names") or only_value(config, "model")
        names = stated if isinstance(stated, list) else [stated]
    if len(names) > 1:
        fix = "give a run of one LLM"
        raise InputError(f"several LLMs were served: {names[:3]}", field="models", fix=fix)
    return names[0] if names else None


def _average(content: Content, name: str) -> Any:
    return (content.get(name) or {}).get("avg")


def _chunk_gaps(content: Content) -> Latency:
    """Return the gaps between chunks, where these are the gaps between tokens."""
    block = content.get("inter_chunk_latency") or {}
    n_tokens = _average(content, "total_osl")
    n_requests = _average(content, "request_count")
    if None in (n_tokens, n_requests, block.get("count")):
        return Latency()
    n_gaps = n_tokens - n_requests
    is_by_token = abs(block["count"] - n_gaps) <= _ONE_TOKEN_CHUNKS * n_gaps
    return in_ms(block, "inter_chunk_latency") if is_by_token else Latency()


def _interrupted(content: Content) -> tuple[str, ...]:
    if not content.get("was_cancelled") and content.get("is_complete") is not False:
        return ()
    reason = content.get("incomplete_reason") or "the run was cancelled"
    return (f"interrupted ({str(reason).rstrip('.')})",)


def load_of_config(config: Content, answered_rps: Any) -> RunLoad:
    """Return the load that an `input_config` describes. InputError: phases of several loads."""
    return _load(config, answered_rps)[0]


def _load(config: Content, answered_rps: Any) -> tuple[RunLoad, str | None, float | None]:
    """Return the load, the kind of its arrivals, and the shape of Gamma gaps."""
    phases = config.get("phases")
    if isinstance(phases, Mapping):
        phases = [{"name": name, **phase} for name, phase in phases.items()]
    if not phases:
        return _older_load(config, answered_rps)

    measured = [
        phase
        for phase in phases
        if not phase.get("exclude_from_results")
        and "warmup" not in (phase.get("kind"), phase.get("name"))
    ]
    loads = [_phase_load(phase, answered_rps) for phase in measured]
    if not loads:
        raise KeyError("phases")
    if any(load != loads[0] for load in loads):
        names = [phase.get("name") for phase in measured]
        fix = "give a result of a single phase"
        raise InputError(f"phases of several loads: {names}", field="phases", fix=fix)
    return loads[0], measured[0].get("type"), measured[0].get("smoothness")


def _phase_load(phase: Content, answered_rps: Any) -> RunLoad:
    kind = phase.get("type", "concurrency")
    changing = [
        name for name in ("rate_ramp", "rate_series", "concurrency_ramp") if phase.get(name)
    ]
    if changing:
        return RunLoad(answered_rps=answered_rps, no_level=f"the load changes by {changing[0]}")
    if kind in _AT_A_RATE or phase.get("rate") is not None:
        return RunLoad(
            asked_rps=phase.get("rate"),
            answered_rps=answered_rps,
            most_in_flight=phase.get("concurrency"),
        )
    if kind == "concurrency":
        return RunLoad(users=phase.get("concurrency", 1), answered_rps=answered_rps)
    return RunLoad(answered_rps=answered_rps, no_level=f"AIPerf's phase {kind!r} has no level")


def _older_load(config: Content, answered_rps: Any) -> tuple[RunLoad, str | None, float | None]:
    """Return the load of `loadgen` (AIPerf before 0.9) or of `perf_analyzer` (GenAI-Perf)."""
    if only_value(config, "fixed_schedule"):
        return RunLoad(answered_rps=answered_rps, no_level="a trace was replayed"), None, None
    users = only_value(config, "concurrency")
    asked = only_value(config, "request_rate")
    if asked is None:
        is_aiperf = "loadgen" in config
        # AIPerf leaves defaults out: one user.
        users = 1 if users is None and is_aiperf else users
        return RunLoad(users=users, answered_rps=answered_rps), None, None
    load = RunLoad(asked_rps=asked, answered_rps=answered_rps, most_in_flight=users)
    # `arrival_pattern` since 0.4.
    kind = only_value(config, "arrival_pattern") or only_value(config, "request_rate_mode")
    return load, kind, only_value(config, "arrival_smoothness")
