"""Make the samples of metrics in resources/traces: vLLM's, of servers of a known law.

    python benchmarks/metrics_samples.py

A range query of a day by the hour (`vllm-day-sample.json`) of four replicas of Llama 3.1 8B on an
H100 each, and two snapshots of one of them, ten minutes apart (`vllm-1-sample.txt`,
`vllm-2-sample.txt`). A step takes `SLOWER` times what the law of the measurements that ship says.
docs/rightsizing.md reads them.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests")]

from served_metrics import E2E, ITL, TOKENS, TTFT, Server, histogram, scalar  # noqa: E402
from sextant.ask.forecast import MEDIANS  # noqa: E402
from sextant.ask.laws import find_laws  # noqa: E402
from sextant.ask.question import Question  # noqa: E402
from sextant.ask.scheduling import Settings  # noqa: E402
from sextant.simulate.server import OK, Scheduler, StepLaw  # noqa: E402
from sextant.simulate.simulation import simulate  # noqa: E402
from sextant.workload.lengths import Length, RequestLengths  # noqa: E402
from sextant.workload.requests import RequestStream  # noqa: E402

TRACES = ROOT / "resources" / "traces"
LLM = "meta-llama__Llama-3.1-8B-Instruct"
PROFILE = "1xH100-80GB"
SERVED_AS = "meta-llama/Llama-3.1-8B-Instruct"
REPLICAS = 4
SLOWER = 1.3
START_S = 1_772_409_600.0
"""2026-03-02, midnight (UTC)."""
HOUR_S = 3600.0
DAY = (3, 2, 2, 2, 3, 5, 9, 14, 20, 24, 26, 27, 25, 26, 27, 26, 23, 19, 16, 13, 11, 8, 6, 4)
"""Requests a second, by the hour."""
SPEED = 0.5


def law_of_servers() -> tuple[Scheduler, StepLaw]:
    """Return how a replica works: the likeliest law, slower."""
    question = Question(
        MEDIANS,
        hf_config=ROOT / "resources" / "llms" / f"{LLM}.json",
        requests=RequestLengths(Length(900, 900), Length(180, 180)),
        gpu_profile_ids=(PROFILE,),
    )
    laws = find_laws(question, Settings(), 0).servers[PROFILE]
    law = laws.law(0)
    terms = {name: SLOWER * term for name, term in vars(law).items() if name.endswith("_ms")}
    return laws.scheduler, replace(law, **terms)


def requests_of_day(random: np.random.Generator) -> RequestStream:
    """Return the requests of a day, Poisson within each hour."""
    counts = [random.poisson(SPEED * rate * HOUR_S) for rate in DAY]
    arrival_s = np.concatenate(
        [HOUR_S * (hour + np.sort(random.random(n))) for hour, n in enumerate(counts)]
    )
    n = len(arrival_s)
    inputs = np.clip(random.lognormal(np.log(650), 0.8, n), 4, 12000).astype(int)
    outputs = np.clip(random.lognormal(np.log(150), 0.6, n), 2, 2000).astype(int)
    return RequestStream("day", arrival_s, inputs, outputs, 24 * HOUR_S)


class Counted:
    """What all four servers have counted until some time, as one text."""

    def __init__(self, stream: RequestStream, scheduler: Scheduler, law: StepLaw) -> None:
        outcome = simulate(stream, scheduler, law, n_replicas=REPLICAS)
        assert (outcome.status == OK).all()
        self.end_s = outcome.arrival_s + outcome.e2e_s
        self.begin_s = outcome.arrival_s
        self.replica = np.arange(stream.n) % REPLICAS
        self.values = {
            "inputs": outcome.input_tokens,
            "outputs": outcome.output_tokens,
            "ttft_s": outcome.ttft_s,
            "e2e_s": outcome.e2e_s,
        }

    def server(self, number: int, at_s: float, since_s: float = 0.0) -> Server:
        """Return a replica with what it has answered."""
        is_here = self.replica == number
        rows = np.flatnonzero(is_here & (self.end_s <= at_s) & (self.end_s > since_s))
        kept = {name: values[rows].tolist() for name, values in self.values.items()}
        server = Server("vllm", SERVED_AS, **kept)
        server.running = int((is_here & (self.begin_s <= at_s) & (self.end_s > at_s)).sum())
        server.n_failed = len(rows) // 800
        server.cached_tokens = round(0.08 * sum(kept["inputs"]))
        return server


def lines_of(server: Server, labels: dict[str, str]) -> list[str]:
    """Return the series that a range query for Sextant's names gives of a server."""
    reasons = [("stop", len(server.inputs)), ("abort", server.n_failed)]
    finished = [({"finished_reason": why, **labels}, n) for why, n in reasons]
    queries = sum(server.inputs)
    return [
        *scalar("gauge", "vllm:num_requests_running", [(labels, server.running)]),
        *scalar("gauge", "vllm:num_requests_waiting", [(labels, server.waiting)]),
        *scalar("counter", "vllm:prefix_cache_queries_total", [(labels, queries)]),
        *scalar("counter", "vllm:prefix_cache_hits_total", [(labels, server.cached_tokens)]),
        *scalar("counter", "vllm:request_success_total", finished),
        *histogram("vllm:request_prompt_tokens", TOKENS, server.inputs, labels),
        *histogram("vllm:request_generation_tokens", TOKENS, server.outputs, labels),
        *histogram("vllm:time_to_first_token_seconds", TTFT, server.ttft_s, labels),
        *histogram("vllm:inter_token_latency_seconds", ITL, server.gaps_s(), labels),
        *histogram("vllm:e2e_request_latency_seconds", E2E, server.e2e_s, labels),
    ]


def range_answer(counted: Counted) -> dict:
    """Return a day by the hour as Prometheus answers."""
    series: dict[str, dict] = {}
    for hour in range(25):
        for number in range(REPLICAS):
            server = counted.server(number, hour * HOUR_S)
            labels = {"instance": f"10.0.0.{number + 1}:8000", "model_name": SERVED_AS}
            for line in lines_of(server, labels):
                if line.startswith("#"):
                    continue
                key, _, value = line.rpartition(" ")
                name, _, said = key.partition("{")
                pairs = [part.split("=", 1) for part in said.rstrip("}").split('",') if part]
                metric = {"__name__": name, **{it: text.strip('"') for it, text in pairs}}
                row = series.setdefault(key, {"metric": metric, "values": []})
                row["values"].append([START_S + hour * HOUR_S, f"{float(value):.10g}"])
    rows = without_idle_edges([*series.values()])
    return {"status": "success", "data": {"resultType": "matrix", "result": rows}}


def without_idle_edges(rows: list[dict]) -> list[dict]:
    """Return series without edges below or above all values, which only make the file longer."""
    kept = []
    seen: dict[str, list] = {}
    for row in rows:
        metric = {name: value for name, value in row["metric"].items() if name != "le"}
        edge = row["metric"].get("le")
        if edge is not None:
            whole = str(metric)
            is_idle = {value for _, value in row["values"]} == {"0"}
            if edge != "+Inf" and (is_idle or seen.get(whole) == row["values"]):
                continue
            seen[whole] = row["values"]
        kept.append(row)
    return kept


def main() -> None:
    """Write the samples."""
    scheduler, law = law_of_servers()
    counted = Counted(requests_of_day(np.random.default_rng(1)), scheduler, law)
    minutes = (10 * HOUR_S, 10 * HOUR_S + 600)
    for number, at_s in enumerate(minutes, start=1):
        since_s = 9.5 * HOUR_S
        (TRACES / f"vllm-{number}-sample.txt").write_text(counted.server(0, at_s, since_s).text())
    text = json.dumps(range_answer(counted), separators=(",", ":"))
    (TRACES / "vllm-day-sample.json").write_text(
        text.replace('},{"metric"', '},\n{"metric"') + "\n"
    )


if __name__ == "__main__":
    main()
