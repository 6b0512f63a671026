"""Metrics of a server, in the words and the layout of a real engine, from requests that it served.

Names, labels and buckets are those of vllm/v1/metrics/loggers.py (0.11 and 0.6), SGLang's
srt/metrics/collector.py, TGI's router/src/server.rs and tensorrt_llm/metrics/collector.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from sextant.ask.forecast import MEDIANS
from sextant.ask.laws import find_laws
from sextant.ask.question import Question
from sextant.ask.scheduling import Settings
from sextant.simulate.server import OK, Scheduler, StepLaw
from sextant.simulate.simulation import simulate
from sextant.workload.lengths import Length, RequestLengths
from sextant.workload.requests import RequestStream

TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
E2E = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TOKENS = tuple(m * 10**e for e in range(5) for m in (1, 2, 5))[:-1]
LINEAR = tuple(41.0 * n for n in range(1, 101))
GEOMETRIC = tuple(0.0001 * 1.5**n for n in range(1, 36))


def slower_law(hf_config: Path, profile_id: str, slower: float) -> tuple[Scheduler, StepLaw]:
    """Return how a replica of known law works: the likeliest law, with longer times."""
    question = Question(
        MEDIANS,
        hf_config=hf_config,
        requests=RequestLengths(Length(720, 720), Length(170, 170)),
        gpu_profile_ids=(profile_id,),
    )
    laws = find_laws(question, Settings(), 0).servers[profile_id]
    law = laws.law(0)
    times = {name: slower * term for name, term in vars(law).items() if name.endswith("_ms")}
    return laws.scheduler, replace(law, **times)


@dataclass
class Server:
    """What a server has counted since its start; by engine one layout."""

    engine: str
    llm: str | None
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)
    n_failed: int = 0
    running: float = 0
    waiting: float = 0
    cached_tokens: int = 0
    extra: dict[str, str] = field(default_factory=dict)

    def serve(self, inputs: int, outputs: int, ttft_s: float, e2e_s: float) -> None:
        self.inputs.append(int(inputs))
        self.outputs.append(int(outputs))
        self.ttft_s.append(float(ttft_s))
        self.e2e_s.append(float(e2e_s))

    def text(self) -> str:
        return "\n".join(LAYOUTS[self.engine](self)) + "\n"

    @property
    def labels(self) -> dict[str, str]:
        return {**self.extra, **({"model_name": self.llm} if self.llm else {})}

    @property
    def tpot_s(self) -> list[float]:
        later = zip(self.ttft_s, self.e2e_s, self.outputs, strict=True)
        return [(e2e - ttft) / (n - 1) for ttft, e2e, n in later if n > 1]

    def gaps_s(self) -> np.ndarray:
        return np.repeat(self.tpot_s, [n - 1 for n in self.outputs if n > 1])


def _labelled(labels: dict[str, str]) -> str:
    said = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{{{said}}}" if said else ""


def scalar(kind: str, name: str, values: Sequence[tuple[dict[str, str], float]]) -> list[str]:
    lines = [f"# HELP {name} What it is.", f"# TYPE {name} {kind}"]
    return lines + [f"{name}{_labelled(labels)} {float(value)}" for labels, value in values]


def histogram(
    name: str, edges: Sequence[float], values: Sequence[float], labels: dict[str, str]
) -> list[str]:
    values = np.asarray(values, float)
    lines = [f"# HELP {name} Histogram of it.", f"# TYPE {name} histogram"]
    for edge in (*edges, math.inf):
        le = "+Inf" if edge == math.inf else str(float(edge))
        count = float((values <= edge).sum())
        lines.append(f"{name}_bucket{_labelled({'le': le, **labels})} {count}")
    lines.append(f"{name}_count{_labelled(labels)} {float(len(values))}")
    lines.append(f"{name}_sum{_labelled(labels)} {float(values.sum())}")
    return lines


def _vllm(server: Server, itl: str) -> list[str]:
    labels = {"engine": "0", **server.labels}
    created = {"engine": "0", **server.labels}
    reasons = [("stop", len(server.inputs)), ("length", 0), ("abort", server.n_failed)]
    finished = [({"finished_reason": why, **labels}, n) for why, n in reasons]
    return [
        "# HELP python_gc_objects_collected_total Objects collected during gc",
        "# TYPE python_gc_objects_collected_total counter",
        'python_gc_objects_collected_total{generation="0"} 12346.0',
        "process_start_time_seconds 1.7645e+09",
        *scalar("gauge", "vllm:num_requests_running", [(labels, server.running)]),
        *scalar("gauge", "vllm:num_requests_waiting", [(labels, server.waiting)]),
        *scalar("gauge", "vllm:kv_cache_usage_perc", [(labels, math.nan)]),
        *scalar("counter", "vllm:prefix_cache_queries_total", [(labels, sum(server.inputs))]),
        *scalar("counter", "vllm:prefix_cache_hits_total", [(labels, server.cached_tokens)]),
        *scalar("counter", "vllm:prompt_tokens_total", [(labels, sum(server.inputs))]),
        *scalar("counter", "vllm:generation_tokens_total", [(labels, sum(server.outputs))]),
        *scalar("counter", "vllm:request_success_total", finished),
        *scalar("gauge", "vllm:request_success_created", [(created, 1.7645e9)]),
        *histogram("vllm:request_prompt_tokens", TOKENS, server.inputs, labels),
        *histogram("vllm:request_generation_tokens", TOKENS, server.outputs, labels),
        *histogram("vllm:iteration_tokens_total", TOKENS, server.outputs, labels),
        *histogram("vllm:time_to_first_token_seconds", TTFT, server.ttft_s, labels),
        *histogram(itl, ITL, server.gaps_s(), labels),
        *histogram("vllm:e2e_request_latency_seconds", E2E, server.e2e_s, labels),
    ]


def _sglang(server: Server) -> list[str]:
    labels = server.labels
    ranks = [({**labels, "tp_rank": str(rank)}, server.running) for rank in range(2)]
    return [
        *scalar("gauge", "sglang:num_running_reqs", ranks),
        *scalar("gauge", "sglang:num_queue_reqs", [(labels, server.waiting)]),
        *scalar("counter", "sglang:prompt_tokens_total", [(labels, sum(server.inputs))]),
        *scalar("counter", "sglang:generation_tokens_total", [(labels, sum(server.outputs))]),
        *scalar("counter", "sglang:cached_tokens_total", [(labels, server.cached_tokens)]),
        *scalar("counter", "sglang:num_requests_total", [(labels, len(server.inputs))]),
        *scalar("counter", "sglang:num_aborted_requests_total", [(labels, server.n_failed)]),
        *histogram("sglang:prompt_tokens_histogram", LINEAR, server.inputs, labels),
        *histogram("sglang:generation_tokens_histogram", LINEAR, server.outputs, labels),
        *histogram("sglang:time_to_first_token_seconds", TTFT, server.ttft_s, labels),
        *histogram("sglang:inter_token_latency_seconds", ITL, server.gaps_s(), labels),
        *histogram("sglang:e2e_request_latency_seconds", E2E, server.e2e_s, labels),
    ]


def _tgi(server: Server) -> list[str]:
    n = len(server.inputs)
    return [
        *scalar("counter", "tgi_request_count", [({}, n + server.n_failed)]),
        *scalar("counter", "tgi_request_success", [({"method": "single"}, n)]),
        *scalar("counter", "tgi_request_failure", [({"err": "overloaded"}, server.n_failed)]),
        *scalar("gauge", "tgi_batch_current_size", [({}, server.running)]),
        *scalar("gauge", "tgi_queue_size", [({}, server.waiting)]),
        *histogram("tgi_request_input_length", LINEAR, server.inputs, {}),
        *histogram("tgi_request_generated_tokens", LINEAR, server.outputs, {}),
        *histogram("tgi_request_duration", GEOMETRIC, server.e2e_s, {}),
        *histogram("tgi_request_mean_time_per_token_duration", GEOMETRIC, server.tpot_s, {}),
    ]


def _trtllm(server: Server) -> list[str]:
    labels = {**server.labels, "engine_type": "trtllm"}
    finished = [({**labels, "finished_reason": "stop"}, len(server.inputs))]
    return [
        *scalar("counter", "trtllm_request_success_total", finished),
        *scalar("counter", "trtllm_request_error_total", [(labels, server.n_failed)]),
        *scalar("counter", "trtllm_prompt_tokens_total", [(labels, sum(server.inputs))]),
        *scalar("counter", "trtllm_generation_tokens_total", [(labels, sum(server.outputs))]),
        *scalar("counter", "trtllm_kv_cache_reused_blocks_total", [(labels, 25)]),
        *scalar("counter", "trtllm_kv_cache_missed_blocks_total", [(labels, 75)]),
        *scalar("gauge", "trtllm_num_requests_running", [(labels, server.running)]),
        *scalar("gauge", "trtllm_num_requests_waiting", [(labels, server.waiting)]),
        *histogram("trtllm_time_to_first_token_seconds", TTFT, server.ttft_s, labels),
        *histogram("trtllm_time_per_output_token_seconds", ITL, server.tpot_s, labels),
        *histogram("trtllm_e2e_request_latency_seconds", E2E, server.e2e_s, labels),
    ]


LAYOUTS = {
    "vllm": lambda server: _vllm(server, "vllm:inter_token_latency_seconds"),
    "vllm-0.6": lambda server: _vllm(server, "vllm:time_per_output_token_seconds"),
    "sglang": _sglang,
    "tgi": _tgi,
    "tensorrt-llm": _trtllm,
}


def simulated(
    rate_rps: float, duration_s: float, replicas: int, scheduler: Scheduler, law: StepLaw, seed=0
) -> list[tuple[float, int, int, float, float]]:
    """Serve requests at a rate: when each was answered, its lengths, TTFT and E2E, in order."""
    random = np.random.default_rng(seed)
    n = random.poisson(rate_rps * duration_s)
    arrival_s = np.sort(random.random(n) * duration_s)
    inputs = np.maximum(random.lognormal(np.log(600), 0.6, n), 1).astype(int)
    outputs = np.maximum(random.lognormal(np.log(150), 0.5, n), 2).astype(int)
    stream = RequestStream("served", arrival_s, inputs, outputs, duration_s)
    outcome = simulate(stream, scheduler, law, n_replicas=replicas)
    rows = [
        (arrival + e2e, i, o, ttft, e2e)
        for arrival, i, o, ttft, e2e, status in zip(
            outcome.arrival_s,
            outcome.input_tokens,
            outcome.output_tokens,
            outcome.ttft_s,
            outcome.e2e_s,
            outcome.status,
            strict=True,
        )
        if status == OK
    ]
    return sorted(rows)


def in_flight(served: Sequence[tuple[float, int, int, float, float]], at_s: float) -> int:
    return sum(end - e2e <= at_s < end for end, _, _, _, e2e in served)


def matrix(snapshots: Sequence[tuple[float, str]]) -> dict:
    """Return texts of `/metrics` with their times as the answer to a range query."""
    series: dict[str, dict] = {}
    for at_s, text in snapshots:
        for line in text.splitlines():
            if line.startswith("#"):
                continue
            key, _, value = line.rpartition(" ")
            name, _, said = key.partition("{")
            pairs = [part.split("=", 1) for part in said.rstrip("}").split('",') if part]
            labels = {label: quoted.strip('"') for label, quoted in pairs}
            metric = {"__name__": name, **labels}
            row = series.setdefault(key, {"metric": metric, "values": []})
            row["values"].append([at_s, "NaN" if value == "nan" else value])
    return {
        "status": "success",
        "data": {"resultType": "matrix", "result": list(series.values())},
    }
