"""Reads the benchmark reports of llm-d-benchmark, 0.2 and 0.1, as YAML or JSON
(github.com/llm-d/llm-d-benchmark, benchmark-report). They hold a run of another tool.

A report is of a whole deployment: with several replicas of an engine the load is shared out
evenly. Reports of prefill and decode apart are refused: a point is of one replica.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from sextant.base.errors import InputError
from sextant.facts.engine import is_known_engine
from sextant.points.frame import graphs_of
from sextant.points.tool_aiperf import llm_of_config, load_of_config
from sextant.points.tool_guidellm import AT_ONCE, throughput_load
from sextant.points.tool_inference_perf import load_kind
from sextant.points.tool_run import (
    Content,
    Latency,
    ResultFile,
    RunLoad,
    ToolRun,
    arrival_doubts,
    cut_doubts,
    day_of,
    in_ms,
)

_LATENCIES = {
    "ttft": "time_to_first_token",
    "tpot": "time_per_output_token",
    "itl": "inter_token_latency",
    "e2e": "request_latency",
}
_PROBE = "one of 0.2 and 0.1 is read: convert it with `benchmark-report -b 0.2`"


def read_llmd(result: ResultFile) -> Iterator[ToolRun]:
    """Yield the run of a report. InputError: another version, or prefill and decode apart."""
    version = str(result.content["version"])
    if version.startswith("0.2"):
        yield _run_of_v02(result.content)
    elif version == "0.1":
        yield _run_of_v01(result.content)
    else:
        raise InputError(f"unknown version {version!r}", field="version", fix=_PROBE)


def _run_of_v02(content: Content) -> ToolRun:
    results = content["results"]
    if not results.get("request_performance"):
        fix = "give the report of the requests of that stage"
        raise InputError("has no request_performance (a report of sessions?)", fix=fix)
    measured = results["request_performance"]["aggregate"]
    scenario = content.get("scenario") or {}
    load = (scenario.get("load") or {}).get("standardized") or {}
    native = (scenario.get("load") or {}).get("native") or {}
    config = native.get("config") if isinstance(native.get("config"), Mapping) else {}
    components = [
        component
        for component in scenario.get("stack") or ()
        if component["standardized"].get("kind") == "inference_engine"
    ]
    engines = [component["standardized"] for component in components]
    arguments = [(component.get("native") or {}).get("args") or () for component in components]
    _refuse_pools([engine.get("role") for engine in engines])
    replicas = sum(engine.get("replicas") or 1 for engine in engines) or 1
    first = engines[0] if engines else {}

    tool = load.get("tool") or "unknown"
    latency = measured.get("latency") or {}  # none where every request failed
    throughput = measured.get("throughput") or {}
    answered = _mean(throughput, "request_rate")
    requests = measured.get("requests") or {}
    latencies = _latencies(latency, tool, requests)
    run_load = _load(load, config or {}, tool, answered, latencies["e2e"])
    alongside = ((scenario.get("load") or {}).get("metadata") or {}).get("concurrent_with")
    time = (content.get("run") or {}).get("time") or {}
    return ToolRun(
        load=_of_one_replica(run_load, replicas),
        latencies=latencies,
        **_counts(requests),
        input_tokens=_mean(requests, "input_length"),
        output_tokens=_mean(requests, "output_length"),
        throughput_tok_s=_shared(_mean(throughput, "output_token_rate"), replicas),
        llm=(first.get("model") or {}).get("name") or _llm(config or {}, tool),
        tool_version=" ".join(filter(None, [tool, load.get("tool_version")])),
        **_engine(first.get("tool"), first.get("tool_version")),
        cuda_graphs=graphs_of([*chain.from_iterable(arguments)]),
        day=("run.time", _date(time.get("start") or time.get("end"))),
        doubts=(
            *_deployment_doubts(replicas, alongside),
            *arrival_doubts(load_kind(config or {}) if tool == "inference-perf" else None),
            *_token_doubts(tool, latency, requests),
            *cut_doubts(requests.get("incomplete"), requests.get("total")),
        ),
    )


def _run_of_v01(content: Content) -> ToolRun:
    metrics = content["metrics"]
    scenario = content["scenario"]
    host = scenario.get("host") or {}
    roles = host.get("type") or []
    _refuse_pools([role for role in roles if role != "replica"])
    replicas = max(len(roles), 1)
    load = scenario.get("load") or {}
    args = load.get("args") if isinstance(load.get("args"), Mapping) else {}
    tool = load.get("name") or "unknown"
    latency = metrics.get("latency") or {}
    throughput = metrics.get("throughput") or {}
    requests = metrics.get("requests") or {}
    stage = (load.get("metadata") or {}).get("stage")
    engine = ((scenario.get("platform") or {}).get("engine") or [{}])[0]
    answered = throughput.get("requests_per_sec")
    return ToolRun(
        load=_of_one_replica(_load_of_args(args or {}, tool, stage, answered), replicas),
        latencies=_latencies(latency, tool, requests),
        **_counts(requests),
        input_tokens=_mean(requests, "input_length"),
        output_tokens=_mean(requests, "output_length"),
        throughput_tok_s=_shared(throughput.get("output_tokens_per_sec"), replicas),
        llm=(scenario.get("model") or {}).get("name"),
        tool_version=tool,
        **_engine(engine.get("name"), engine.get("version")),
        day=("metrics.time.start", day_of((metrics.get("time") or {}).get("start"))),
        doubts=(
            *_deployment_doubts(replicas, None),
            *_token_doubts(tool, latency, requests),
            *cut_doubts(requests.get("incomplete"), requests.get("total")),
        ),
    )


def _refuse_pools(roles: list[Any]) -> None:
    # Pods called decode do both where there are none for prefill.
    if "prefill" in roles:
        fix = "give a report of whole replicas"
        problem = "prefill and decode ran apart: a point is of one replica that does both"
        raise InputError(problem, field="role", fix=fix)


def _latencies(block: Content, tool: str, requests: Content) -> dict[str, Latency]:
    found = {ours: in_ms(block.get(theirs), theirs, "units") for ours, theirs in _LATENCIES.items()}
    by_request = {"tpot": found["itl"], "itl": Latency()}
    if tool == "aiperf" or (tool == "guidellm" and _are_alike(requests)):
        found |= by_request  # these tools call the mean gap of a request ITL
    elif tool == "guidellm":
        # ITL is weighted by tokens. Older reports call TPOT what has the first token in it.
        found |= {"tpot": Latency(), "itl": Latency(found["itl"].mean, found["itl"].median)}
    ttft = found["ttft"].mean
    e2e = block.get("request_latency")
    if tool == "guidellm" and e2e and ttft and e2e.get("units") == "ms" and e2e["mean"] < ttft:
        found["e2e"] = Latency.of(e2e, 1e3)  # older reports call its seconds ms
    return found


def _are_alike(requests: Content) -> bool:
    """Return whether all answers have as many tokens."""
    lengths = requests.get("output_length") or {}
    return lengths.get("min") is not None and lengths.get("min") == lengths.get("max")


def _token_doubts(tool: str, latency: Content, requests: Content) -> tuple[str, ...]:
    is_stated = tool == "guidellm" and latency.get("inter_token_latency")
    is_weighted = is_stated and not _are_alike(requests)
    return ("ITL weighted by tokens (the file has no TPOT)",) if is_weighted else ()


def _load(load: Content, config: Content, tool: str, answered: Any, e2e: Latency) -> RunLoad:
    """Return the load of the deployment."""
    rate = _finite(load.get("rate_qps"))
    users = _finite(load.get("concurrency"))
    if rate is None and users is None and tool == "aiperf" and config:
        return load_of_config(config, answered)
    profile = (config.get("spec") or config).get("profile")
    kind = profile.get("kind") if isinstance(profile, Mapping) else profile
    if rate is None and tool == "guidellm" and kind == AT_ONCE:
        return throughput_load(users, answered, e2e.mean and e2e.mean / 1e3)
    if users is not None and (rate is None or tool == "inference-perf"):
        return RunLoad(users=users, answered_rps=answered)
    if rate is not None:
        return RunLoad(asked_rps=rate, answered_rps=answered, most_in_flight=users)
    return RunLoad(answered_rps=answered, no_level="everything was sent at once")


def _load_of_args(args: Content, tool: str, stage: Any, answered: Any) -> RunLoad:
    """Return the load of a report of version 0.1, which has the tool's own arguments."""
    if tool == "inference-perf":
        stages = (args.get("load") or {}).get("stages") or []
        if isinstance(stage, int) and stage < len(stages):
            level = stages[stage]
            users = level.get("concurrency_level")
            rate = None if users else level.get("rate")
            return RunLoad(users=users, asked_rps=rate, answered_rps=answered)
    if tool == "aiperf" and args:
        return load_of_config(args, answered)
    given = {name.replace("-", "_"): value for name, value in args.items()}
    rate = _finite(given.get("request_rate"))
    users = _finite(given.get("max_concurrency"))
    if rate is not None:
        return RunLoad(asked_rps=rate, answered_rps=answered, most_in_flight=users)
    no_level = None if users else f"the report has no level of {tool}"
    return RunLoad(users=users, answered_rps=answered, no_level=no_level)


def _of_one_replica(load: RunLoad, replicas: int) -> RunLoad:
    if replicas == 1:
        return load
    users = load.users and max(round(load.users / replicas), 1)
    return RunLoad(
        users=users,
        asked_rps=_shared(load.asked_rps, replicas),
        answered_rps=_shared(load.answered_rps, replicas),
        most_in_flight=_shared(load.most_in_flight, replicas),
        no_level=load.no_level,
    )


def _deployment_doubts(replicas: int, alongside: Any) -> tuple[str, ...]:
    shared = f"shared out (the load of {replicas} replicas, taken to be even)"
    others = f"other load at once ({alongside})"
    return (*([shared] if replicas > 1 else []), *([others] if alongside else []))


def _shared(value: Any, replicas: int) -> Any:
    return value if value is None or replicas == 1 else value / replicas


def _finite(value: Any) -> Any:
    return None if value in (None, "inf", float("inf")) else value


def _counts(requests: Content) -> dict[str, Any]:
    total = requests.get("total")
    failed = requests.get("failures")
    unfinished = requests.get("incomplete") or 0
    n_ok = None if total is None else total - (failed or 0) - unfinished
    return {"n_ok": n_ok, "n_failed": failed}


def _mean(blocks: Content, name: str) -> Any:
    return (blocks.get(name) or {}).get("mean")


def _llm(config: Content, tool: str) -> Any:
    """Return the LLM's name of a tool's own config."""
    if tool == "aiperf":
        return llm_of_config(config)
    spec = config.get("spec") or config
    for part, key in (("server", "model_name"), ("backend", "model")):
        holder = spec.get(part)
        if isinstance(holder, Mapping) and holder.get(key):
            return holder[key]
    return None


def _engine(name: Any, version: Any) -> dict[str, Any]:
    """Return the columns of the engine; a stack such as llm-d is not one."""
    engine = str(name).lower()
    known = engine if engine.isalnum() and is_known_engine(engine) else None
    return {"engine": known, "engine_version": str(version) if known and version else None}


def _date(time: Any) -> Any:
    return time.isoformat() if hasattr(time, "isoformat") else time
